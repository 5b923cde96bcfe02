"""FRoST (Roy et al., ECCV 2022): RankStats that rehearses old classes with features drawn around their means."""

import torch
import torch.nn.functional as F
from huggingface_hub.dataclasses import strict
from torch import Tensor

from promptccd.methods.base import Method
from promptccd.methods.classifier import (
    PAIR_LOSSES,
    RankStatisticsConfig,
    RankStatisticsModel,
    RankStatisticsObjective,
    RememberingModel,
    drawn_around,
)
from promptccd.methods.processes import Rows, same_on_all
from promptccd.models.configuration import bounded


@strict
class FrostConfig(RankStatisticsConfig):
    """FRoST.

    Attributes:
        drift_weight: of the distance to the features of the stage before.
        num_means: classes whose mean is known; sizes the buffer.
    """

    model_type = "frost"

    drift_weight: float = bounded(10.0, 0, 1e6)
    num_means: int = bounded(0, 0, 1_000_000, stored=True)


DRAWN_PER_CLASS = 2  # features around the mean of every old class for a batch


class FrostModel(RankStatisticsModel, RememberingModel):
    """The last block, a joint linear head, and what later stages draw features from.

    `class_deviation`, ``(D,)``, is the standard deviation of features around the mean of their class, averaged over
    the classes.
    """

    config: FrostConfig
    class_deviation: Tensor

    def __init__(self, config: FrostConfig):
        super().__init__(config)
        self.register_buffer("class_deviation", torch.zeros(config.vision_config.hidden_size))


class FrostObjective(RankStatisticsObjective):
    """Cross-entropy at stage 0; later RankStats' terms of new classes, rehearsal of old classes, a drift penalty."""

    model: FrostModel
    keeps_last_block = True
    pseudo_weight = 0.01
    joint_is_consistent = False

    def losses(self, rows: Rows) -> dict[str, Tensor]:
        """RankStats', and at unlabelled stages ``replay`` and ``drift``."""
        parts = super().losses(rows)
        if self.previous is None:
            return parts
        parts["replay"] = self.replay_loss(rows)
        # Both as one unit vector: of unit rows, it is the root mean squared distance.
        both = rows.of_all(self.features_before(rows)), rows.features
        before, after = (F.normalize(each.flatten(), dim=0) for each in both)
        parts["drift"] = self.config.drift_weight * (before - after).norm()
        return {**parts, "loss": parts["loss"] + parts["replay"] + parts["drift"]}

    def replay_loss(self, rows: Rows) -> Tensor:
        """Cross-entropy of features drawn around the means of old classes, as many of each."""
        means, generator = self.model.class_means, self.generator(rows.epoch, rows.step)
        features = drawn_around(means.repeat(DRAWN_PER_CLASS, 1), self.model.class_deviation, generator)
        classes = torch.arange(len(means), device=means.device).repeat(DRAWN_PER_CLASS)
        return F.cross_entropy(self.model.classifier(features), classes)

    @torch.no_grad()
    def end_stage(self) -> None:
        """Keep the means of new classes, by the labels or by the predictions of the novel head."""
        features = self.plain_features("features for the means of classes")
        own = self.stage.labels
        if own is None and self.model.novel is not None:
            own = self.num_old + self.model.novel(features).argmax(1)
        super().end_stage()
        if own is None:
            return  # without a novel head there are no new classes
        deviations = [self.model.class_deviation] * self.config.num_means
        groups = self.model.remember_members(features, own, self.model.classifier.weight)
        deviations += [group.std(0, correction=0) for group in groups]
        self.model.class_deviation.copy_(same_on_all(torch.stack(deviations).mean(0)))


METHOD = Method(
    name="frost",
    model=FrostModel,
    objective=FrostObjective,
    title="FRoST",
    summary="RankStats with rehearsal of old classes from drawn features",
    parts={"classifier": "joint linear head"},
    losses={
        **PAIR_LOSSES,
        "replay": "cross-entropy of drawn features",
        "drift": "distance to the features before, weighted",
    },
    predicts_natively=True,
)
