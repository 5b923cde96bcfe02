"""Common parts of methods with a classifier: classifiers that grow, self-distillation, pairs of images, class means."""

import copy
import math
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from huggingface_hub.dataclasses import strict
from sklearn.cluster import KMeans
from torch import Tensor, nn
from transformers import initialization as init

from promptccd.methods.base import Objective
from promptccd.methods.processes import Rows, same_on_all, sent
from promptccd.models.backbone import BottleneckHead, UnitHead, blocks_of
from promptccd.models.base import CategoryDiscoveryModel
from promptccd.models.configuration import CategoryDiscoveryConfig, bounded


class CosineClassifier(nn.Module):
    """``logits = unit(f) . unit(w)`` of K rows w, zero before stage 0: the largest logit is that of the nearest row."""

    def __init__(self, num_classes: int, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_classes, width))

    def initialise(self, std: float) -> None:
        """As transformers initialises a module whose weights are not loaded; training sets the rows itself."""
        init.trunc_normal_(self.weight, std=std)

    @property
    def num_classes(self) -> int:
        """K."""
        return len(self.weight)

    def grow(self, rows: Tensor) -> None:
        """Append rows ``(n, D)``; earlier rows keep every bit."""
        grown = torch.cat([self.weight.detach(), rows.to(self.weight)])
        self.weight = nn.Parameter(grown, requires_grad=self.weight.requires_grad)

    def forward(self, features: Tensor) -> Tensor:
        """Cosines ``(..., K)`` of features ``(..., D)`` with every row."""
        return F.normalize(features, dim=-1) @ F.normalize(self.weight).T


class LinearClassifier(CosineClassifier):
    """``logits = sqrt(D) unit(f) . w + b``.

    The original networks read features of any length. Here a stage clusters and stores unit features, and logits must
    not depend on the length: so it is set to sqrt(D), that of a layer norm without scale and shift (ours).
    """

    def __init__(self, num_classes: int, width: int):
        super().__init__(num_classes, width)
        self.bias = nn.Parameter(torch.empty(num_classes))

    def initialise(self, std: float) -> None:
        """See the base class."""
        super().initialise(std)
        init.zeros_(self.bias)

    def grow(self, rows: Tensor) -> None:
        """Append rows ``(n, D)`` with a bias of one less than the lowest so far, or 0 for the first rows."""
        bias = self.bias.detach()
        start = float(bias.min()) - 1 if len(bias) else 0.0
        grown = torch.cat([bias, bias.new_full((len(rows),), start)])
        self.bias = nn.Parameter(grown, requires_grad=self.bias.requires_grad)
        super().grow(rows)

    def forward(self, features: Tensor) -> Tensor:
        """Logits ``(..., K)`` of features ``(..., D)`` of any length."""
        return F.linear(F.normalize(features, dim=-1) * features.shape[-1] ** 0.5, self.weight, self.bias)


@strict
class ClassifierConfig(CategoryDiscoveryConfig):
    """Configuration of a model with a classifier.

    Attributes:
        num_classes: K, rows of the classifier; 0 until stage 0 begins.
    """

    num_classes: int = bounded(0, 0, 1_000_000, stored=True)


class ClassifierModel(CategoryDiscoveryModel):
    """A model without prompts whose classifier grows from stage to stage.

    Its losses compare the head's bottleneck, so the head has no wide last layer. `UnitHead` suits losses that read only
    the classifier and the features.
    """

    config: ClassifierConfig
    roles: ClassVar = {"classifier": "classifier"}
    predicts: ClassVar = True
    compares_blocks: ClassVar = True
    head_class: ClassVar[type[UnitHead]] = BottleneckHead
    classifier_class: ClassVar[type[CosineClassifier]] = CosineClassifier

    def __init__(self, config: ClassifierConfig):
        super().__init__(config)
        self.classifier = self.classifier_class(config.num_classes, config.vision_config.hidden_size)
        self.post_init()

    def grow(self, rows: Tensor) -> None:
        """Append classes with these rows ``(n, D)`` to the classifier."""
        self.classifier.grow(rows)
        self.config.num_classes = self.classifier.num_classes

    @torch.no_grad()
    def assign_natively(self, features: Tensor) -> Tensor:
        """Row ``(N,)`` of the classifier with the largest logit for features ``(N, D)``."""
        return self.classifier(features.to(self.prototypes)).argmax(1)


class RememberingModel(CategoryDiscoveryModel):
    """Mixin of a model that also keeps the mean feature of its classes.

    Its configuration has ``num_means``, the number of known means, which sizes the buffer.
    """

    class_means: Tensor

    def __init__(self, config: Any):
        super().__init__(config)
        self.register_buffer("class_means", torch.zeros(config.num_means, config.vision_config.hidden_size))

    def remember(self, means: Tensor) -> None:
        """Append the means ``(n, D)`` of the next classes."""
        self.class_means = torch.cat([self.class_means, means.to(self.class_means)])
        self.config.num_means = len(self.class_means)

    def remember_members(self, features: Tensor, own: Tensor, rows: Tensor) -> list[Tensor]:
        """Append the means of further classes, given features ``(N, D)`` and their classes ``(N,)``.

        Row k of the classifier ``(K, D)`` replaces the mean of class k where that has no features. Returns the
        features of every further class that has some.
        """
        known, own = len(self.class_means), own.to(features.device)
        groups = [features[own == number] for number in range(known, len(rows))]
        unit = F.normalize(rows[known:])
        means = [group.mean(0) if len(group) else row for group, row in zip(groups, unit, strict=True)]
        if means:
            self.remember(same_on_all(torch.stack(means)))
        return [group for group in groups if len(group)]


def drawn_around(means: Tensor, deviation: Tensor | float, generator: torch.Generator) -> Tensor:
    """A feature drawn around each of the means ``(N, D)``, with noise of a CPU generator."""
    noise = torch.randn(means.shape, generator=generator)
    return means + deviation * sent(noise.to(means.dtype), means.device)


@strict
class SelfDistillationConfig(ClassifierConfig):
    """Options of methods whose classifier learns from its own prediction of another view.

    Attributes:
        entropy_weight: epsilon, weight of the term that keeps the mean prediction even over all classes.
    """

    entropy_weight: float = bounded(2.0, 0, 1e6)


class ClassifierObjective(Objective):
    """An objective over a classifier that grows by the new categories when a stage begins.

    Attributes:
        num_old: classes of earlier stages.
        keeps_last_block: whether unlabelled stages compare features with the last block of the stage before.
    """

    model: ClassifierModel
    least_batch = 0.5
    needs_count = True
    keeps_last_block: ClassVar[bool] = False

    def begin_stage(self) -> None:
        """Keep the last block as the previous stage left it, then add a row for every new category."""
        self.num_old = self.model.classifier.num_classes
        if self.keeps_last_block and self.stage.labels is None:
            self.previous = copy.deepcopy(blocks_of(self.model.backbone)[-1])
        if (more := self.stage.count - self.num_old) > 0:
            self.model.grow(self.new_rows(more))

    def new_rows(self, count: int) -> Tensor:
        """First values of further rows of the classifier, ``(n, D)``."""
        return sampled_rows(count, self.config.vision_config.hidden_size, self.generator())


def sampled_rows(count: int, width: int, generator: torch.Generator) -> Tensor:
    """Rows ``(n, D)`` as `torch.nn.Linear` draws them: uniform between -1 / sqrt(D) and 1 / sqrt(D)."""
    return (2 * torch.rand(count, width, generator=generator) - 1) / width**0.5


class SelfDistillationObjective(ClassifierObjective):
    """SimGCD (Wen et al., ICCV 2023), with its labelled terms where images have labels: at stage 0, or in a memory.

    ``(1 - w) (distillation + eps R + InfoNCE) + w (cross-entropy + SupCon)``; without a label w is 0. The contrastive
    terms read the MLP's unit outputs, all other terms the classifier.
    """

    def losses(self, rows: Rows) -> dict[str, Tensor]:
        """``distillation``, `evenness_terms`, ``info_nce``; with labels ``classification`` and ``supervised``."""
        logits, contrast = self.model.classifier(rows.features), self.contrast(rows)  # (V, B, K)
        parts = {
            "distillation": self_distillation_loss(logits, self.teacher_temperature(rows.epoch)),
            **self.evenness_terms(logits),
            "info_nce": contrast["info_nce"],
        }
        loss = torch.stack(list(parts.values())).sum()
        if rows.labelled is not None:
            which, labels = rows.labelled
            of_labelled = logits[:, which].flatten(0, 1) / STUDENT_TEMPERATURE
            parts["classification"] = F.cross_entropy(of_labelled, labels.repeat(len(logits)))
            parts["supervised"] = contrast["supervised"]
            labelled_loss = parts["classification"] + parts["supervised"]
            loss = torch.lerp(loss, labelled_loss, self.arguments.supervised_weight)
        return {"loss": loss, **parts}

    def evenness_terms(self, logits: Tensor) -> dict[str, Tensor]:
        """Weighted terms that keep the predictions ``(V, B, K)`` from being one class for all images."""
        return {"entropy": self.config.entropy_weight * unevenness(mean_prediction(logits))}

    def teacher_temperature(self, epoch: int) -> float:
        """Temperature of the teaching prediction; it changes linearly over the first epochs of a stage."""
        first, last = TEACHER_TEMPERATURES
        return first + (last - first) * min(1.0, epoch / (TEACHER_EPOCHS - 1))


@strict
class DiscoveryConfig(SelfDistillationConfig):
    """Options of methods that discover as Happy does.

    Attributes:
        discovery_entropy_weight: of the terms that keep predictions even between and within old and new classes.
        clustered_rows: whether new rows of the classifier start at cluster centres far from the old rows, or at random.
    """

    entropy_weight: float = bounded(1.0, 0, 1e6)
    discovery_entropy_weight: float = bounded(1.0, 0, 1e6)
    clustered_rows: bool = True


class DiscoveryObjective(SelfDistillationObjective):
    """SimGCD whose new classes start at clusters, and whose predictions are even over old and new classes.

    "Old" are all classes of earlier stages. Stage 0 is SimGCD's.
    """

    def new_rows(self, count: int) -> Tensor:
        """At an unlabelled stage, the cluster centres farthest from all old rows, with the length of drawn rows."""
        drawn = super().new_rows(count)
        if self.stage.labels is not None or not self.config.clustered_rows:
            return drawn
        features = self.plain_features("features for new classes").cpu()
        kmeans = KMeans(min(self.num_old + count, len(features)), random_state=0)
        centres = F.normalize(torch.from_numpy(same_on_all(kmeans.fit(features.numpy()).cluster_centers_)))
        nearest = (centres @ F.normalize(self.model.classifier.weight.detach().cpu()).T).amax(1)
        chosen = drawn.norm(dim=1).mean() * centres[nearest.argsort(stable=True)[:count]]
        return torch.cat([chosen, drawn[len(chosen) :]])  # of fewer images than classes, some rows are drawn

    def teacher_temperature(self, epoch: int) -> float:
        """See the base class."""
        return DISCOVERY_TEMPERATURE if self.stage.labels is None else super().teacher_temperature(epoch)

    def evenness_terms(self, logits: Tensor) -> dict[str, Tensor]:
        """See the base class; at unlabelled stages between old and new classes, and within each."""
        if self.stage.labels is not None:
            return super().evenness_terms(logits)
        mean = mean_prediction(logits)
        weight = self.config.discovery_entropy_weight
        old, new = mean[: self.num_old], mean[self.num_old :]
        if not len(new):
            return {"entropy": weight * unevenness(old)}
        groups = torch.stack([old.sum(), new.sum()])
        within = [unevenness(each / each.sum().clamp(min=LEAST_SHARE)) for each in (old, new)]
        return {"entropy": weight * (unevenness(groups) + within[0] + within[1])}


# Titles of the losses of `SelfDistillationObjective`.
DISTILLATION_LOSSES = {
    "distillation": "self-distillation",
    "entropy": "unevenness of the mean prediction, weighted",
    "classification": "cross-entropy of labels",
}

LEAST_SHARE = 1e-8  # a share of the mass whose logarithm still has a gradient

# Temperatures of the released code of SimGCD and Happy.
STUDENT_TEMPERATURE = 0.1  # of the learning prediction
TEACHER_TEMPERATURES = 0.07, 0.04  # of the teaching prediction, in the first and the last of `TEACHER_EPOCHS`
TEACHER_EPOCHS = 30  # of a stage
DISCOVERY_TEMPERATURE = 0.05  # of the teaching prediction at unlabelled stages of Happy and DYDM


def self_distillation_loss(logits: Tensor, teacher_temperature: float) -> Tensor:
    """Cross-entropy of one view's prediction with the sharper, detached prediction of the other; mean of both ways.

    Logits ``(2, B, K)`` are cosines.
    """
    targets = torch.softmax(logits.detach().flip(0) / teacher_temperature, dim=-1)
    return -(targets * torch.log_softmax(logits / STUDENT_TEMPERATURE, dim=-1)).sum(-1).mean()


def mean_prediction(logits: Tensor, temperature: float = STUDENT_TEMPERATURE) -> Tensor:
    """Mean ``(K,)`` over all views and images of the soft-max of ``(V, B, K)``."""
    return torch.softmax(logits / temperature, dim=-1).flatten(0, 1).mean(0)


def unevenness(shares: Tensor) -> Tensor:
    """``log K`` less the entropy of shares ``(K,)`` that sum to one: 0 where all are alike, at most ``log K``."""
    return math.log(len(shares)) + (shares * shares.clamp(min=1e-8).log()).sum()


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
