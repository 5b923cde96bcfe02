"""RankStats' statistic, model and objective: images whose largest feature dimensions agree are a pair."""

import math
from typing import ClassVar

import torch
import torch.nn.functional as F
from huggingface_hub.dataclasses import strict
from torch import Tensor

from promptccd.methods.classifier import (
    ClassifierConfig,
    ClassifierModel,
    ClassifierObjective,
    LinearClassifier,
)
from promptccd.methods.processes import Rows
from promptccd.models.configuration import bounded
from promptccd.models.head import UnitHead


@strict
class RankStatisticsConfig(ClassifierConfig):
    """RankStats and its successors.

    Attributes:
        ramp_epochs: epochs over which the weights of pseudo-labels and of consistency rise.
    """

    ramp_epochs: int = bounded(300, 1, 1_000_000)


# Values of the released code of RankStats.
TOP_RANKS = 5  # two images whose largest feature dimensions are the same count as a pair
CONSISTENCY_WEIGHT = 25.0  # of the squared distance between predictions of two views, at the end of the ramp


class RankStatisticsModel(ClassifierModel):
    """The last block and a joint linear head.

    `novel`, the head over the classes that are new at a stage, exists only while the stage trains, and is in no
    finished checkpoint.
    """

    config: RankStatisticsConfig
    head_class: ClassVar = UnitHead
    roles: ClassVar = {"classifier": "classifier", "novel": "classifier"}
    classifier_class: ClassVar = LinearClassifier
    novel: LinearClassifier | None

    def __init__(self, config: RankStatisticsConfig):
        super().__init__(config)
        self.novel = None


# Titles of the losses of `RankStatisticsObjective`.
PAIR_LOSSES = {
    "classification": "cross-entropy of labels",
    "pairs": "cross-entropy of pairs",
    "pseudo": "cross-entropy of the novel head's prediction, weighted",
    "consistency": "disagreement between views, weighted",
    "positive_pairs": "share of pairs that are positive",
}


class RankStatisticsObjective(ClassifierObjective):
    """Cross-entropy of labels; a novel head learns new classes from pairs, and the joint head learns its predictions.

    At stage 0 the joint head learns the labels, and equal predictions for both views. Later there are no labels, and
    the method keeps no old images: the cross-entropy of labels falls away. The method assumes that a stage has new
    classes alone, so all its images count as new (the published figures show just that). A novel head of one class
    always predicts that class, and the joint head learns it.

    Attributes:
        pseudo_weight: of the joint head's cross-entropy with the novel head's labels, at the end of the ramp.
        joint_is_consistent: whether the joint head, too, learns equal predictions for both views.
    """

    model: RankStatisticsModel
    pseudo_weight: ClassVar[float] = 0.05
    joint_is_consistent: ClassVar[bool] = True

    def begin_stage(self) -> None:
        """Add rows for new classes to the joint head, and open a novel head at an unlabelled stage."""
        super().begin_stage()
        new = self.model.classifier.num_classes - self.num_old
        if self.stage.labels is None and new:
            rows = self.new_rows(2 * new)[new:]
            self.model.novel = LinearClassifier(0, rows.shape[1]).to(self.model.device)
            self.model.novel.grow(rows)

    def end_stage(self) -> None:
        """Drop the novel head."""
        self.model.novel = None

    def losses(self, rows: Rows) -> dict[str, Tensor]:
        """``classification`` with labels; ``pairs`` and ``pseudo`` of new classes; ``consistency``.

        The share ``positive_pairs`` is only reported.
        """
        features = rows.features
        joint = self.model.classifier(features)  # (V, B, K)
        novel = None if self.model.novel is None else self.model.novel(features)
        rise, parts = ramp(rows.epoch, self.config.ramp_epochs), {}
        if rows.labelled is not None:
            labels = rows.labelled[1].repeat(len(joint))
            parts["classification"] = F.cross_entropy(joint.flatten(0, 1), labels)
        if novel is not None:
            positive = same_top_ranks(features[0])
            parts["pairs"] = pair_loss(novel, positive)
            own = (self.num_old + novel.argmax(-1)).flatten()
            parts["pseudo"] = self.pseudo_weight * rise * F.cross_entropy(joint.flatten(0, 1), own)
        heads = [joint] * self.joint_is_consistent + ([] if novel is None else [novel])
        if heads:
            apart = torch.stack([disagreement(head) for head in heads]).sum()
            parts["consistency"] = CONSISTENCY_WEIGHT * rise * apart
        loss = sum(parts.values(), joint.new_zeros(()))
        if novel is not None:
            parts["positive_pairs"] = share_of_pairs(positive)
        return {"loss": loss, **parts}


def ramp(epoch: int, length: int) -> float:
    """``exp(-5 (1 - e / E)^2)``: how far a weight has risen in epoch e, 1 from epoch E on."""
    return math.exp(-5 * (1 - min(1.0, epoch / length)) ** 2)


def same_top_ranks(features: Tensor) -> Tensor:
    """Which images ``(B, D)`` have the same `TOP_RANKS` largest dimensions, in any order: ``(B, B)``."""
    largest = features.topk(TOP_RANKS).indices.sort().values
    return (largest[:, None] == largest[None]).all(-1)


def share_of_pairs(positive: Tensor) -> Tensor:
    """Share of positive pairs of two different images among ``(B, B)``."""
    images = len(positive)
    return (positive.sum() - images) / max(1, images * (images - 1))


def pair_loss(logits: Tensor, positive: Tensor) -> Tensor:
    """Binary cross-entropy of whether two images are of one class, `positive` ``(B, B)``.

    Its chance is the product of the predictions ``(V, B, N)`` for the first view of one and the second of the other.
    """
    answers = logits.softmax(-1)
    together = (answers[0] @ answers[1].T).clamp(1e-7, 1 - 1e-7)
    return F.binary_cross_entropy(together, positive.to(together))


def disagreement(logits: Tensor) -> Tensor:
    """Mean squared difference of the soft-max of two views ``(2, B, K)``."""
    answers = logits.softmax(-1)
    return F.mse_loss(answers[0], answers[1])
