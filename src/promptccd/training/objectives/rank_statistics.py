"""RankStats (Han et al., ICLR 2020) under the continual protocol, and what FRoST takes from it."""

import logging
import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from promptccd.models.modeling_rankstats import RankStatsModel
from promptccd.training.methods import Method
from promptccd.training.objectives.objective import Rows
from promptccd.training.objectives.self_distillation import ClassifierObjective

logger = logging.getLogger(__name__)

FEWEST_POSITIVES = 1e-3  # of all pairs of images; with fewer the novel head only learns to keep images apart


class PairWatch:
    """Says so, once a stage, when hardly any pair is put together: the statistic was made for values >= 0.

    Args:
        top_ranks: how many dimensions two images must have in common.
        speaks: whether this process is the one that says it.
    """

    def __init__(self, top_ranks: int, speaks: bool):
        self.top_ranks, self.speaks = top_ranks, speaks
        self.shares: list[Tensor] = []

    def share(self, positive: Tensor) -> Tensor:
        """Share of pairs of two images that are put together, of ``(B, B)``."""
        images = len(positive)
        share = (positive.sum() - images) / max(1, images * (images - 1))
        if images > 1:
            self.shares.append(share)
        return share

    def judge(self) -> None:
        """Judge the batches since the last time."""
        share = float(torch.stack(self.shares).mean()) if self.shares else 1.0
        self.shares = []
        if share < FEWEST_POSITIVES and self.speaks:
            self.speaks = False
            logger.warning(
                "Only %.4f %% of all pairs of images have the same %d largest dimensions: nearly all others, also of "
                "one category, are pushed apart. Set a smaller top_ranks among model.options.",
                100 * share, self.top_ranks,
            )  # fmt: skip


class RankStatisticsObjective(ClassifierObjective):
    """Cross-entropy of labels; of new classes, pairs that a novel head puts together and the joint head learns from.

    At stage 0 the joint head learns labels, and to answer alike to both views: there are no new classes to be paired.
    Later it has no labels any more, and the method keeps no old images: its cross-entropy of labels falls away, the
    rest stays. The method takes a stream for one of new classes alone, and so all images of a stage count as new (the
    published rows show just that). A novel head of one class answers always that, which the joint head then learns.
    """

    model: RankStatsModel

    def begin_stage(self) -> None:
        """Rows for new classes in the joint head, and at an unlabelled stage a head of their own."""
        self.num_old = self.model.classifier.num_classes
        super().begin_stage()
        new = self.model.classifier.num_classes - self.num_old
        if self.stage.labels is None and new:
            self.model.open_novel_head(self.new_rows(2 * new)[new:])
        self.watch = PairWatch(self.model.config.top_ranks, self.accelerator.is_main_process)

    def begin_epoch(self, epoch: int) -> None:
        """Judge the epochs before."""
        self.watch.judge()

    def end_stage(self) -> None:
        """Judge the last epoch; the novel head is done."""
        self.watch.judge()
        self.model.close_novel_head()

    def losses(self, rows: Rows) -> dict[str, Tensor]:
        """``classification`` with labels; ``pairs`` and ``pseudo`` of new classes; ``consistency``.

        Beside them ``positive_pairs``, the share of pairs of images that are put together.
        """
        features = rows.features
        joint = self.model.classifier(features)  # (V, B, K)
        novel = None if self.model.novel is None else self.model.novel(features)
        rise, parts = ramp(rows.epoch, self.model.config.ramp_epochs), {}
        if rows.labels is not None:
            parts["classification"] = F.cross_entropy(joint.flatten(0, 1), rows.labels.repeat(len(joint)))
        if novel is not None:
            positive = same_top_ranks(features[0].detach(), self.model.config.top_ranks)
            parts["pairs"] = pair_loss(novel, positive)
            own = (self.num_old + novel.argmax(-1)).flatten()
            weight = self.model.config.pseudo_weight * rise
            parts["pseudo"] = weight * F.cross_entropy(joint.flatten(0, 1), own)
        heads = self.steadied(joint, novel)
        if heads:
            apart = torch.stack([disagreement(head) for head in heads]).sum()
            parts["consistency"] = self.model.config.consistency_weight * rise * apart
        loss = sum(parts.values(), joint.new_zeros(()))
        if novel is not None:
            parts["positive_pairs"] = self.watch.share(positive)
        return {"loss": loss, **parts}

    def steadied(self, joint: Tensor, novel: Tensor | None) -> Sequence[Tensor]:
        """Logits ``(V, B, K)`` of the heads that shall answer alike to both views."""
        return [joint] if novel is None else [joint, novel]


def ramp(epoch: int, length: int) -> float:
    """``exp(-5 (1 - e / E)^2)``: how far a weight has risen in epoch e, 1 from epoch E on."""
    return math.exp(-5 * (1 - min(1.0, epoch / length)) ** 2)


def same_top_ranks(features: Tensor, count: int) -> Tensor:
    """Which images ``(B, D)`` have the same `count` largest dimensions, in whatever order: ``(B, B)``."""
    largest = features.topk(count).indices.sort(-1).values
    return (largest[:, None] == largest[None]).all(-1)


def pair_loss(logits: Tensor, positive: Tensor) -> Tensor:
    """Binary cross-entropy of whether two images are of one class, by the product of what two views are taken for.

    Args:
        logits: ``(V, B, N)``; those of the first view are held against those of the second.
        positive: which images are of one class, ``(B, B)``.
    """
    answers = logits.softmax(-1)
    together = (answers[0] @ answers[1].T).clamp(1e-7, 1 - 1e-7)
    return F.binary_cross_entropy(together, positive.to(together))


def disagreement(logits: Tensor) -> Tensor:
    """Mean squared difference of the soft-max of two views, ``(2, B, K)``."""
    answers = logits.softmax(-1)
    return F.mse_loss(answers[0], answers[1])


METHOD = Method(
    name="rankstats",
    model=RankStatsModel,
    objective=RankStatisticsObjective,
    title="RankStats",
    summary="a linear head that learns new classes from images whose largest features agree",
    parts={"classifier": "joint linear head"},
    losses={
        "classification": "cross-entropy of labels",
        "pairs": "cross-entropy of pairs",
        "pseudo": "cross-entropy of what the novel head answers, weighted",
        "consistency": "disagreement between views, weighted",
        "positive_pairs": "share of pairs that are positive",
    },
    answers_natively=True,
)
