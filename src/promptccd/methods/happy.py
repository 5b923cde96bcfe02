"""Happy (Ma et al., NeurIPS 2024): SimGCD that starts new classes at clusters and rehearses old ones from Gaussians."""

import torch
import torch.nn.functional as F
from huggingface_hub.dataclasses import strict
from torch import Tensor

from promptccd.methods.base import Method, Rows
from promptccd.methods.classifier import (
    DISTILLATION_LOSSES,
    ClassifierModel,
    DiscoveryConfig,
    DiscoveryObjective,
    RememberingModel,
)
from promptccd.methods.processes import same_on_all, sent
from promptccd.models.configuration import bounded


@strict
class HappyConfig(DiscoveryConfig):
    """Happy.

    Attributes:
        replay_weight: of the cross-entropy of features drawn around the means of old classes.
        hardness_temperature: of the soft-max by which classes near others are drawn more often.
        drift_weight: of the squared distance to the features of the stage before.
        num_means: classes whose mean is known; sizes the buffer.
        class_radius: root of the mean variance, per direction, of features around the mean of their class.
    """

    model_type = "happy"

    replay_weight: float = bounded(1.0, 0, 1e6)
    hardness_temperature: float = bounded(0.1, 1e-6, 1e6)
    drift_weight: float = bounded(1.0, 0, 1e6)
    num_means: int = bounded(0, 0, 1_000_000, stored=True)
    class_radius: float = bounded(0.0, 0, 1e3, stored=True)


class HappyModel(ClassifierModel, RememberingModel):
    """The last block, an MLP and a cosine classifier, and the unit means that later stages draw features around."""

    config: HappyConfig


class HappyObjective(DiscoveryObjective):
    """SimGCD's loss at stage 0 (as in the released code; the paper has no self-distillation there).

    Later: self-distillation, evenness between and within old and new classes, InfoNCE, cross-entropy of features drawn
    around the means of old classes, and squared distance to the previous stage's features. All have weight 1 unless
    the model's configuration says otherwise (the paper's ablation).
    """

    model: HappyModel

    def begin_stage(self) -> None:
        """Keep the last block as the previous stage left it, then add new classes."""
        if self.stage.labels is None:
            self.keep_last_block()
            self.hardness = hardness(self.model.class_means, self.config.hardness_temperature).cpu()
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
        """Cross-entropy of as many drawn features as the batch has; classes near others are drawn more often."""
        generator = self.generator(rows.epoch, rows.step)
        means, count = self.model.class_means, rows.bottleneck.shape[:2].numel()
        classes = torch.multinomial(self.hardness, count, replacement=True, generator=generator)
        noise = torch.randn(count, means.shape[1], generator=generator)
        classes, noise = sent(classes, means.device), sent(noise.to(means.dtype), means.device)
        features = means[classes] + self.config.class_radius * noise
        logits = self.model.classifier(features) / self.config.student_temperature
        return F.cross_entropy(logits, classes)

    @torch.no_grad()
    def end_stage(self) -> None:
        """Keep the means of new classes; at stage 0 also how far features spread around the means of labels."""
        features = self.plain_features("features for the means of classes")
        first = self.stage.labels is not None
        own = self.stage.labels if first else self.model.assign_natively(features)
        assert own is not None
        own, means, variances = own.to(features.device), [], []
        for number in range(self.config.num_means, self.model.classifier.num_classes):
            members = features[own == number]
            row = self.model.classifier.weight[number]
            means.append(F.normalize(members.mean(0) if len(members) else row, dim=-1))
            if len(members):
                variances.append(members.var(0, correction=0))
        if means:
            self.model.remember(same_on_all(torch.stack(means)))
        if first:
            self.config.class_radius = float(same_on_all(torch.stack(variances).mean().sqrt()))


def hardness(means: Tensor, temperature: float) -> Tensor:
    """Share of rehearsal of each class, ``(C,)``: larger where its unit mean lies nearer to the others."""
    similarity = (means @ means.T).fill_diagonal_(0).sum(1) / max(1, len(means) - 1)
    return torch.softmax(similarity / temperature, dim=0)


METHOD = Method(
    name="happy",
    model=HappyModel,
    objective=HappyObjective,
    title="Happy",
    summary="SimGCD with clustered starts of new classes and rehearsal of old ones",
    parts={"classifier": "cosine classifier"},
    losses={
        **DISTILLATION_LOSSES,
        "replay": "cross-entropy of drawn features",
        "drift": "distance to the features before",
    },
    predicts_natively=True,
)
