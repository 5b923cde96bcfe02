"""Happy (Ma et al., NeurIPS 2024): SimGCD that starts new classes at clusters and rehearses old ones by Gaussians."""

import torch
import torch.nn.functional as F
from huggingface_hub.dataclasses import strict
from torch import Tensor

from promptccd.methods.base import Method
from promptccd.methods.classifier import (
    DISTILLATION_LOSSES,
    STUDENT_TEMPERATURE,
    ClassifierModel,
    DiscoveryConfig,
    DiscoveryObjective,
    RememberingModel,
    drawn_around,
)
from promptccd.methods.processes import Rows, same_on_all, sent
from promptccd.models.configuration import bounded


@strict
class HappyConfig(DiscoveryConfig):
    """Happy.

    Attributes:
        replay_weight: of the cross-entropy of features drawn around the means of old classes.
        drift_weight: of the squared distance to the features of the stage before.
        num_means: classes whose mean is known; sizes the buffer.
        class_radius: root of the mean variance, per direction, of features around the mean of their class.
    """

    model_type = "happy"

    replay_weight: float = bounded(1.0, 0, 1e6)
    drift_weight: float = bounded(1.0, 0, 1e6)
    num_means: int = bounded(0, 0, 1_000_000, stored=True)
    class_radius: float = bounded(0.0, 0, 1e3, stored=True)


HARDNESS_TEMPERATURE = 0.1  # of the released code


class HappyModel(ClassifierModel, RememberingModel):
    """The last block, an MLP and a cosine classifier, and the unit means that later stages draw features around."""

    config: HappyConfig

    def remember(self, means: Tensor) -> None:
        """See the base class; means are unit vectors."""
        super().remember(F.normalize(means))


class HappyObjective(DiscoveryObjective):
    """SimGCD's loss at stage 0 (as in the released code; the paper has no self-distillation there).

    Later: self-distillation, evenness between and within old and new classes, InfoNCE, cross-entropy of features drawn
    around the means of old classes, and squared distance to the previous stage's features. All have weight 1 unless
    the model's configuration says otherwise (the paper's ablation).
    """

    model: HappyModel
    keeps_last_block = True

    def begin_stage(self) -> None:
        """Measure how near old classes lie to each other, then add new ones."""
        if self.stage.labels is None:
            self.hardness = hardness(self.model.class_means).cpu()
        super().begin_stage()

    def losses(self, rows: Rows) -> dict[str, Tensor]:
        """SimGCD's, and at unlabelled stages ``replay`` and ``drift``."""
        parts = super().losses(rows)
        if self.previous is None:
            return parts
        parts["replay"] = self.config.replay_weight * self.replay_loss(rows)
        # The paper has 1 - cos, which is half of it.
        parts["drift"] = self.config.drift_weight * self.moved(rows).mean()
        return {**parts, "loss": parts["loss"] + parts["replay"] + parts["drift"]}

    def replay_loss(self, rows: Rows) -> Tensor:
        """Cross-entropy of as many drawn features as the batch has; classes near other classes are drawn more often."""
        generator = self.generator(rows.epoch, rows.step)
        means, count = self.model.class_means, rows.bottleneck.shape[:2].numel()
        classes = torch.multinomial(self.hardness, count, replacement=True, generator=generator)
        classes = sent(classes, means.device)
        features = drawn_around(means[classes], self.config.class_radius, generator)
        return F.cross_entropy(self.model.classifier(features) / STUDENT_TEMPERATURE, classes)

    @torch.no_grad()
    def end_stage(self) -> None:
        """Keep the means of new classes; at stage 0 also how far features spread around the means of labels."""
        features = self.plain_features("features for the means of classes")
        first = self.stage.labels is not None
        own = self.stage.labels if first else self.model.assign_natively(features)
        assert own is not None
        groups = self.model.remember_members(features, own, self.model.classifier.weight)
        if first:
            variances = torch.stack([group.var(0, correction=0) for group in groups])
            self.config.class_radius = float(same_on_all(variances.mean().sqrt()))


def hardness(means: Tensor) -> Tensor:
    """Share of rehearsal of each class, ``(C,)``: larger where its unit mean is nearer to other means."""
    similarity = (means @ means.T).fill_diagonal_(0).sum(1) / max(1, len(means) - 1)
    return torch.softmax(similarity / HARDNESS_TEMPERATURE, dim=0)


METHOD = Method(
    name="happy",
    model=HappyModel,
    objective=HappyObjective,
    title="Happy",
    summary="SimGCD with clustered starts of new classes and rehearsal of old classes",
    parts={"classifier": "cosine classifier"},
    losses={
        **DISTILLATION_LOSSES,
        "replay": "cross-entropy of drawn features",
        "drift": "distance to the features before",
    },
    predicts_natively=True,
)
