"""FRoST (Roy et al., ECCV 2022): RankStats that rehearses old classes with features drawn around their means."""

import torch
import torch.nn.functional as F
from huggingface_hub.dataclasses import strict
from torch import Tensor

from promptccd.methods.base import Method, Rows
from promptccd.methods.classifier import RememberingModel
from promptccd.methods.pairs import (
    PAIR_LOSSES,
    RankStatisticsConfig,
    RankStatisticsModel,
    RankStatisticsObjective,
)
from promptccd.methods.processes import gather_rows, same_on_all, sent
from promptccd.models.configuration import bounded


@strict
class FrostConfig(RankStatisticsConfig):
    """FRoST.

    Attributes:
        drawn_per_class: features drawn around the mean of every old class for a batch.
        drift_weight: of the distance to the features of the stage before.
        num_means: classes whose mean is known; sizes the buffer.
    """

    model_type = "frost"

    pseudo_weight: float = bounded(0.01, 0, 1e6)
    drawn_per_class: int = bounded(2, 0, 65_536)
    drift_weight: float = bounded(10.0, 0, 1e6)
    num_means: int = bounded(0, 0, 1_000_000, stored=True)


class FrostModel(RankStatisticsModel, RememberingModel):
    """The last block, a joint linear head, and what later stages draw features from.

    `class_deviation`, ``(D,)``, is the standard deviation of features around the mean of their class, averaged over
    the classes.
    """

    config: FrostConfig
    class_deviation: Tensor

    def __init__(self, config: FrostConfig):
        super().__init__(config)
        self.add_buffer("class_deviation", config.vision_config.hidden_size)


class FrostObjective(RankStatisticsObjective):
    """Cross-entropy at stage 0; later RankStats' terms of new classes, rehearsal of old ones, and a drift penalty."""

    model: FrostModel

    def begin_stage(self) -> None:
        """Keep the last block as the previous stage left it, then add new classes."""
        if self.stage.labels is None:
            self.keep_last_block()
        super().begin_stage()

    def losses(self, rows: Rows) -> dict[str, Tensor]:
        """RankStats', and at unlabelled stages ``replay`` and ``drift``."""
        parts = super().losses(rows)
        if self.previous is None:
            return parts
        views, images = rows.bottleneck.shape[:2]
        before = gather_rows(self.features_before(rows).unflatten(0, (views, -1)), images)
        parts["replay"] = self.replay_loss(rows)
        parts["drift"] = self.config.drift_weight * flat_distance(before, rows.features)
        return {**parts, "loss": parts["loss"] + parts["replay"] + parts["drift"]}

    def consistent_heads(self, joint: Tensor, novel: Tensor | None) -> list[Tensor]:
        """See the base class: the novel head alone."""
        return [] if novel is None else [novel]

    def replay_loss(self, rows: Rows) -> Tensor:
        """Cross-entropy of features drawn around the means of old classes, as many of each."""
        means, each = self.model.class_means, self.config.drawn_per_class
        noise = torch.randn(
            each * len(means), means.shape[1], generator=self.generator(rows.epoch, rows.step)
        )
        features = means.repeat(each, 1) + self.model.class_deviation * sent(
            noise.to(means.dtype), means.device
        )
        classes = torch.arange(len(means), device=means.device).repeat(each)
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
        known, classes = self.config.num_means, self.model.classifier.num_classes
        own, means, deviations = own.to(features.device), [], [self.model.class_deviation] * known
        for number in range(known, classes):
            members = features[own == number]
            # The classifier's row stands in for a class without images.
            row = F.normalize(self.model.classifier.weight[number], dim=-1)
            means.append(members.mean(0) if len(members) else row)
            if len(members):
                deviations.append(members.std(0, correction=0))
        self.model.remember(same_on_all(torch.stack(means)))
        deviation = same_on_all(torch.stack(deviations).mean(0))
        self.model.class_deviation.copy_(deviation)


def flat_distance(before: Tensor, after: Tensor) -> Tensor:
    """Distance of two sets of rows, each flattened to one unit vector (of unit rows: root mean squared distance)."""
    return (F.normalize(before.flatten(), dim=0) - F.normalize(after.flatten(), dim=0)).norm()


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
