"""Methods with a classifier a second time, as their papers print them: plain torch in float64 over `Reference`."""

import math

import torch
import torch.nn.functional as F
from sklearn.cluster import KMeans
from torch import Tensor

from promptccd.data.randomness import torch_generator
from promptccd.data.stages import Stage
from tests.training.reference import NATIVE, Reference
from tests.training.reference_networks import Weights, eq5, linear, unit


class ClassifierReference(Reference):
    """A classifier that grows when a stage begins."""

    def train(self, stage: Stage) -> Weights:
        """See the base class; and what the classifier says of the stage's images."""
        return super().train(stage) | {NATIVE: self.answers()}

    @property
    def least_rows(self) -> int:
        """Half a batch: the mean answer over fewer is noise."""
        return math.ceil(self.most_rows / 2)

    def begin(self, num_categories: int) -> None:
        """Rows of the new categories, as torch draws those of a linear layer."""
        old = self.w["classifier.weight"].detach()
        self.num_old = 0 if self.stage == 0 else len(old)
        if (more := num_categories - len(old)) > 0:
            self.w["classifier.weight"] = torch.cat([old, self.placed(self.uniform(more))])

    def uniform(self, count: int) -> Tensor:
        """Rows as torch draws those of a linear layer."""
        width, generator = self.nets.config.hidden_size, torch_generator("objective", self.t.seed, self.stage)
        return (2 * torch.rand(count, width, generator=generator) - 1) / math.sqrt(width)

    def placed(self, rows: Tensor) -> Tensor:
        """What new rows become."""
        return rows.double()

    def logits(self, raw: Tensor) -> Tensor:
        """Cosines of features as they come with every row."""
        return unit(raw) @ unit(self.w["classifier.weight"]).T

    def features(self) -> Tensor:
        """Unit features of all images of the stage, in the fixed view."""
        return unit(self.nets.plain(self.w, self.fixed)[0]).detach()

    def answers(self) -> Tensor:
        """Its own answer for each of them."""
        return self.logits(self.features()).argmax(1)


class SimGCDReference(ClassifierReference):
    """Self-distillation, an even mean answer and InfoNCE of the MLP; at stage 0 cross-entropy and SupCon besides."""

    def loss(self, pixels: Tensor, labels: Tensor | None, epoch: int) -> Tensor:
        """All terms."""
        raw = self.nets.plain(self.w, pixels)[0]
        z, n = bottleneck(self.w, raw), len(pixels) // 2
        logits = self.logits(raw)
        answers = (logits / 0.1).softmax(1)
        loss = self.spread(answers.mean(0))
        for own, other in ((slice(n), slice(n, None)), (slice(n, None), slice(n))):
            teacher = (logits[other].detach() / self.teacher_temperature(epoch)).softmax(1)
            loss = loss - (teacher * answers[own].log()).sum(1).mean() / 2
        rows = torch.arange(2 * n)
        loss = loss + eq5(z, rows[:, None] == rows.roll(n), self.t.temperature_unsupervised)
        if labels is not None:
            both, share = torch.cat([labels, labels]), self.t.supervised_weight
            asked = answers[rows, both.clamp(min=0)][both >= 0]
            taught = -asked.log().mean() + self.supervised(z, labels)
            return (1 - share) * loss + share * taught
        return loss + self.kept(raw, pixels, epoch)

    def spread(self, mean: Tensor) -> Tensor:
        """epsilon times log K minus the entropy of the mean answer."""
        return self.nets.model.entropy_weight * (math.log(len(mean)) + (mean * mean.log()).sum())

    def teacher_temperature(self, epoch: int) -> float:
        """In a line over so many epochs, both ends included."""
        share = epoch / 29
        return 0.04 if share > 1 else 0.07 * (1 - share) + 0.04 * share

    def kept(self, raw: Tensor, pixels: Tensor, epoch: int) -> Tensor | float:
        """What a method adds so that nothing is forgotten."""
        return 0.0


class HappyReference(SimGCDReference):
    """New rows at far clusters, evenness group by group, features drawn around means, squared distance to before."""

    def begin(self, num_categories: int) -> None:
        """See the base class; what the stage before left is kept."""
        self.before = {name: value.detach() for name, value in self.w.items()}
        super().begin(num_categories)

    def placed(self, rows: Tensor) -> Tensor:
        """The centres with the least cosine to any old row, as long as drawn rows are on average."""
        old = self.w["classifier.weight"].detach()
        count = len(old) + len(rows)
        kmeans = KMeans(count, n_init="auto", random_state=0).fit(self.features().float().numpy())
        centres = torch.from_numpy(kmeans.cluster_centers_)
        similar = (unit(centres.double()) @ unit(old).T).max(1).values
        return rows.norm(dim=1).mean() * unit(centres.double())[similar.argsort()[: len(rows)]]

    def teacher_temperature(self, epoch: int) -> float:
        """Constant where nothing is labelled."""
        return super().teacher_temperature(epoch) if self.stage == 0 else 0.05

    def spread(self, mean: Tensor) -> Tensor:
        """Between old and new, within old, within new."""
        if self.stage == 0:
            return super().spread(mean)

        def even(shares: Tensor) -> Tensor:
            return math.log(len(shares)) + (shares * shares.log()).sum()

        old, new = mean[: self.num_old], mean[self.num_old :]
        groups = torch.stack([old.sum(), new.sum()])
        return even(groups) + even(old / old.sum()) + even(new / new.sum())

    def kept(self, raw: Tensor, pixels: Tensor, epoch: int) -> Tensor:
        """Both weigh 1."""
        cosines = self.means @ self.means.T
        others = torch.stack([(row.sum() - row[i]) / (len(row) - 1) for i, row in enumerate(cosines)])
        generator = torch_generator("objective", self.t.seed, self.stage, epoch, self.step)
        hard = (others / 0.1).softmax(0).float()
        drawn = torch.multinomial(hard, len(pixels), replacement=True, generator=generator)
        noise = torch.randn(len(pixels), raw.shape[1], generator=generator).double()
        logits = unit(self.means[drawn] + self.radius * noise) @ unit(self.w["classifier.weight"]).T
        rehearsed = F.cross_entropy(logits / 0.1, drawn)
        moved = unit(raw) - unit(self.nets.plain(self.before, pixels)[0])
        return rehearsed + (moved**2).sum(1).mean()

    def end(self) -> None:
        """Means of the classes that are new, and how far features of stage 0 lie from theirs."""
        rows = unit(self.w["classifier.weight"].detach())
        features = self.features()
        own = self.labels if self.stage == 0 else self.answers()
        members = [features[own == number] for number in range(self.num_old, len(rows))]
        means = [
            unit(each.mean(0)) if len(each) else rows[self.num_old + place]
            for place, each in enumerate(members)
        ]
        if self.stage == 0:
            self.means = torch.zeros(0, features.shape[1]).double()
            spreads = [((each - each.mean(0)) ** 2).sum(1).mean() for each in members]
            self.radius = float(torch.stack(spreads).mean() / features.shape[1]) ** 0.5
        self.means = torch.cat([self.means, torch.stack(means)])
        self.extra = {"class_means": self.means}


def bottleneck(w: Weights, x: Tensor) -> Tensor:
    """The MLP alone."""
    x = F.gelu(linear(w, "head.mlp.2", F.gelu(linear(w, "head.mlp.0", x))))
    return unit(linear(w, "head.mlp.4", x))
