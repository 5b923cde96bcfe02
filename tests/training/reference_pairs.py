"""ORCA, RankStats and FRoST a second time, as their papers print them: plain torch in float64 over `Reference`."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from promptccd.data.randomness import torch_generator
from tests.training.reference_classifiers import ClassifierReference
from tests.training.reference_networks import unit


class ORCAReference(ClassifierReference):
    """Pairs of images that should be one and an even mean answer; at stage 0 cross-entropy with a margin besides."""

    def placed(self, rows: Tensor) -> Tensor:
        """See the base class; unit rows."""
        return unit(rows.double())

    def begin_epoch(self) -> None:
        """How uncertain the answers are, as long as there are labels that wait for it."""
        if self.stage == 0:
            sure = (self.nets.model.logit_scale * self.logits(self.features())).softmax(1).max(1).values
            self.margin = min(float(1 - sure.mean()), self.nets.model.largest_margin)

    def loss(self, pixels: Tensor, labels: Tensor | None, epoch: int) -> Tensor:
        """All terms: cross-entropy and evenness of the first view, pairs of both."""
        n, scale = len(pixels) // 2, self.nets.model.logit_scale
        raw = self.nets.plain(self.w, pixels)[0]
        logits = scale * self.logits(raw)
        answers, others = logits.softmax(1).split(n)
        partner = self.nearest(raw[:n].detach()) if labels is None else self.companions(labels)
        loss = -(answers * others[partner]).sum(1).log().mean()
        mean = answers.mean(0)
        loss = loss + (mean * mean.log()).sum()
        if labels is None:
            return loss
        raised = logits[:n] + scale * self.margin * F.one_hot(labels, logits.shape[1])
        return loss - raised.log_softmax(1)[torch.arange(n), labels].mean()

    def companions(self, labels: Tensor) -> Tensor:
        """Another image of the same category, drawn; oneself where there is none."""
        chances = torch.zeros(len(labels), len(labels))
        for image, label in enumerate(labels):
            others = [other for other in range(len(labels)) if labels[other] == label and other != image]
            chances[image, others or [image]] = 1.0
        generator = torch_generator("objective", self.t.seed, self.stage, self.epoch, self.step)
        return torch.multinomial(chances, 1, generator=generator)[:, 0]

    def nearest(self, raw: Tensor) -> Tensor:
        """The other image with the largest cosine."""
        cosines = unit(raw) @ unit(raw).T - 3 * torch.eye(len(raw))
        return cosines.argmax(1)

    def end(self) -> None:
        """The margin is kept."""
        self.extra = {"margin": torch.tensor(self.margin).double()}


class RankStatsReference(ClassifierReference):
    """A joint linear head; at later stages a head over new classes, which pairs teach and the joint one learns from."""

    def begin(self, num_categories: int) -> None:
        """The joint head grows, with a bias one below its lowest; a novel head is drawn, without a bias."""
        super().begin(num_categories)
        bias, more = self.w["classifier.bias"].detach(), num_categories - self.num_old
        if self.stage > 0:
            self.w["classifier.bias"] = torch.cat([bias, (bias.min() - 1).expand(more)])
            drawn = self.uniform(2 * more)[more:].double()
            self.w |= {"novel.weight": drawn, "novel.bias": torch.zeros(more).double()}
            self.learning += ["novel.weight", "novel.bias"]

    def logits(self, raw: Tensor, head: str = "classifier") -> Tensor:
        """Of a linear head that reads features of length sqrt(D), which is ours."""
        return math.sqrt(raw.shape[1]) * unit(raw) @ self.w[f"{head}.weight"].T + self.w[f"{head}.bias"]

    def loss(self, pixels: Tensor, labels: Tensor | None, epoch: int) -> Tensor:
        """Cross-entropy of labels and agreement of the views; without labels pairs and pseudo-labels, too."""
        raw, options = self.nets.plain(self.w, pixels)[0], self.nets.model
        joint = self.logits(raw)
        rise = math.exp(-5 * (1 - min(1.0, epoch / options.ramp_epochs)) ** 2)
        steady = options.consistency_weight * rise
        if labels is not None:
            taught = F.cross_entropy(joint, torch.cat([labels, labels]))
            return taught + steady * self.apart_at_stage_0(joint)
        novel = self.logits(raw, "novel")
        pseudo = F.cross_entropy(joint, self.num_old + novel.detach().argmax(1))
        loss = self.pairs(raw.detach(), novel.softmax(1)) + options.pseudo_weight * rise * pseudo
        return loss + steady * self.apart(joint, novel) + self.kept(raw, pixels)

    def pairs(self, raw: Tensor, answers: Tensor) -> Tensor:
        """Cross-entropy of whether the largest features of two images are the same dimensions."""
        n, k = len(raw) // 2, self.nets.model.top_ranks
        largest = [set(row.argsort(descending=True)[:k].tolist()) for row in raw[:n]]
        terms = []
        for i in range(n):
            for j in range(n):
                together = answers[i] @ answers[n + j]
                terms.append(-(together if largest[i] == largest[j] else 1 - together).log())
        return torch.stack(terms).mean()

    def apart_at_stage_0(self, joint: Tensor) -> Tensor | float:
        """How far the answers to two views are apart."""
        return squared(joint)

    def apart(self, joint: Tensor, novel: Tensor) -> Tensor:
        """The same of both heads."""
        return squared(joint) + squared(novel)

    def kept(self, raw: Tensor, pixels: Tensor) -> Tensor | float:
        """What a method adds so that nothing is forgotten."""
        return 0.0


class FrostReference(RankStatsReference):
    """RankStats' novel head alone, features drawn around old classes, and features that stay where they were."""

    def begin(self, num_categories: int) -> None:
        """See the base class; what the stage before left is kept."""
        self.before = {name: value.detach() for name, value in self.w.items()}
        super().begin(num_categories)

    def apart_at_stage_0(self, joint: Tensor) -> float:
        """Stage 0 has cross-entropy alone."""
        return 0.0

    def apart(self, joint: Tensor, novel: Tensor) -> Tensor:
        """See the base class; of the novel head."""
        return squared(novel)

    def kept(self, raw: Tensor, pixels: Tensor) -> Tensor:
        """Every old class so many times a batch, and the distance of all features as one unit vector."""
        old, times = len(self.means), self.nets.model.drawn_per_class
        generator = torch_generator("objective", self.t.seed, self.stage, self.epoch, self.step)
        noise = torch.randn(times * old, raw.shape[1], generator=generator).double()
        classes = torch.arange(old).repeat(times)
        logits = self.logits(self.means[classes] + self.deviations.mean(0) * noise)
        then = self.nets.plain(self.before, pixels)[0]
        distance = (unit(then.flatten()) - unit(raw.flatten())).norm()
        return F.cross_entropy(logits, classes) + self.nets.model.drift_weight * distance

    def end(self) -> None:
        """Means and deviations of the classes that are new, by the labels or by the novel head."""
        features = self.features()
        own = self.labels if self.stage == 0 else self.num_old + self.logits(features, "novel").argmax(1)
        members = [features[own == number] for number in range(self.num_old, len(self.w["classifier.bias"]))]
        rows = unit(self.w["classifier.weight"].detach())[self.num_old :]  # of a class without images, ours
        means = [each.mean(0) if len(each) else row for each, row in zip(members, rows, strict=True)]
        spreads = [((each - each.mean(0)) ** 2).mean(0).sqrt() for each in members if len(each)]
        means, spreads = torch.stack(means), torch.stack(spreads)
        self.means = means if self.stage == 0 else torch.cat([self.means, means])
        self.deviations = spreads if self.stage == 0 else torch.cat([self.deviations, spreads])
        self.extra = {"class_means": self.means, "class_deviation": self.deviations.mean(0)}


def squared(logits: Tensor) -> Tensor:
    """Mean squared difference of the answers to two views."""
    first, second = logits.softmax(1).chunk(2)
    return ((first - second) ** 2).mean()
