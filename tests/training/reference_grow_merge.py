"""Grow & Merge a second time, as the specification of our design has it: plain torch in float64 over `Reference`."""

import math

import torch
from torch import Tensor

from promptccd.data.randomness import torch_generator
from tests.training.reference_networks import Weights, eq5, unit
from tests.training.reference_replay import GCDReplayReference

BRANCH = "branches.0."


class GrowMergeReference(GCDReplayReference):
    """GCD at stage 0; at the next one a copy of its last block learns, held to the first where images look known."""

    @property
    def last_block(self) -> str:
        """What names of the static branch begin with."""
        return f"backbone.encoder.layer.{self.nets.config.num_hidden_layers - 1}."

    def branched(self) -> Weights:
        """All weights, the branch in the place of the last block."""
        own = {name.removeprefix(BRANCH): value for name, value in self.w.items() if name.startswith(BRANCH)}
        return self.w | {self.last_block + name: value for name, value in own.items()}

    @torch.no_grad()
    def begin(self, num_categories: int) -> None:
        """At the stage without labels: what looks known, a branch, and a head of the new categories."""
        if self.stage == 0:
            self.num_known = num_categories
            return
        features = unit(self.nets.plain(self.w, self.fixed)[0])
        self.looks_known = [max(float(row @ mean) for mean in self.means) >= self.least for row in features]
        width, new = features.shape[1], num_categories - self.num_known
        self.static = dict(self.w)
        block = [name for name in self.w if name.startswith(self.last_block)]
        branch = {BRANCH + name.removeprefix(self.last_block): self.w[name] for name in block}
        drawn = torch.rand(new, width, generator=torch_generator("objective", self.t.seed, self.stage))
        head = {"weight": ((2 * drawn - 1) / math.sqrt(width)).double(), "bias": torch.zeros(new).double()}
        added = branch | {f"clusters.{name}": value for name, value in head.items()}
        self.w |= added
        self.learning = [name for name in self.learning if name not in block] + list(added)

    def loss(self, pixels: Tensor, labels: Tensor | None, epoch: int) -> Tensor:
        """InfoNCE of all images, distance of the known ones, pairs of the others, SupCon of the memory."""
        if self.stage == 0:
            return super().loss(pixels, labels, epoch)
        assert labels is not None
        raw, static = self.nets.plain(self.branched(), pixels)[0], self.nets.plain(self.static, pixels)[0]
        z, n = self.nets.project(self.w, raw), len(pixels) // 2
        rows = torch.arange(2 * n)
        known = [image for image, row in enumerate(self.positions) if self.looks_known[row]]
        others = [image for image, row in enumerate(self.positions) if not self.looks_known[row]]
        loss = eq5(z, rows[:, None] == rows.roll(n), self.t.temperature_unsupervised)
        loss = loss + self.supervised(z, labels)
        if known:
            both = [*known, *(n + image for image in known)]
            apart = (unit(raw[both]) - unit(static[both])).square().sum(1)
            loss = loss + self.nets.model.distill_weight * apart.mean()
        return loss + self.pairs(raw[others], raw[[n + image for image in others]]) if others else loss

    def pairs(self, one: Tensor, other: Tensor) -> Tensor:
        """Cross-entropy of whether the largest features of two images are the same dimensions."""
        largest = [set(row.argsort(descending=True)[: self.nets.model.top_ranks].tolist()) for row in one]
        terms = []
        for i, first in enumerate(self.answers(one)):
            for j, second in enumerate(self.answers(other)):
                together = first @ second
                terms.append(-(together if largest[i] == largest[j] else 1 - together).log())
        return torch.stack(terms).mean()

    def answers(self, raw: Tensor) -> Tensor:
        """The cluster head's, of features of length sqrt(D), which is ours."""
        logits = math.sqrt(raw.shape[1]) * unit(raw) @ self.w["clusters.weight"].T + self.w["clusters.bias"]
        return logits.softmax(1)

    @torch.no_grad()
    def end(self) -> None:
        """After stage 0 the means of its categories, and how near to one of them most images lie."""
        super().end()
        if self.stage:
            self.extra |= {name: self.w[name] for name in self.learning}
            return
        features = unit(self.nets.plain(self.w, self.fixed)[0])
        self.means = unit(
            torch.stack([features[self.labels == each].mean(0) for each in self.labels.unique()])
        )
        nearest = sorted(max(float(row @ mean) for mean in self.means) for row in features)
        place = self.nets.model.known_quantile * (len(nearest) - 1)
        low = nearest[int(place)]
        self.least = low + (place - int(place)) * (nearest[int(place) + 1] - low)
        self.extra = {"class_means": self.means}
