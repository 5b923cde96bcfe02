"""Images of earlier stages beside a stream a second time: plain torch in float64 over `Reference`."""

import math
from typing import Any

import torch
from torch import Tensor

from promptccd.data.randomness import numpy_generator
from promptccd.data.stages import Stage
from tests.training.reference import Reference
from tests.training.reference_classifiers import SimGCDReference
from tests.training.reference_networks import Weights, unit


class GCDReplayReference(Reference):
    """Half of a step are images of stage 0 that lie next to the mean of their category, with their labels."""

    def train(self, stage: Stage) -> Weights:
        """See the base class."""
        self.now = stage
        return super().train(stage)

    @property
    def most_rows(self) -> int:
        """The larger half at the stage without labels."""
        return self.t.batch_size if self.stage == 0 else math.ceil(self.t.batch_size / 2)

    def shown(self, images: list[Any], ids: Any, rows: Any, epoch: int) -> tuple[Tensor, Tensor | None]:
        """See the base class; the memory comes round by round, in another order each, and with other views."""
        pixels, labels = super().shown(images, ids, rows, epoch)
        if self.stage == 0:
            return pixels, labels
        others, again = self.t.batch_size // 2, []
        for place in range(self.step * others, self.step * others + min(others, len(rows))):
            lap, turn = divmod(place, len(self.kept))
            order = numpy_generator("exemplar order", self.t.seed, self.stage, epoch, lap)
            again.append((*self.kept[order.permutation(len(self.kept))[turn]], lap))
        memory, sample_ids, kept, laps = zip(*again, strict=True)
        views = self.drawn(memory, sample_ids, epoch, laps)
        one, other, first, second = *pixels.chunk(2), *views.chunk(2)
        return torch.cat([one, first, other, second]), torch.tensor([-1] * len(rows) + list(kept))

    @torch.no_grad()
    def end(self) -> None:
        """Keep images of stage 0, category by category."""
        super().end()
        if self.stage:
            return
        features, self.kept = unit(self.nets.plain(self.w, self.fixed)[0]), []
        for label in sorted(set(self.labels.tolist())):
            own = [place for place, each in enumerate(self.labels.tolist()) if each == label]
            mean = features[own].mean(0)
            nearest = sorted(own, key=lambda place: -float(features[place] @ mean))
            count = min(self.t.exemplars_per_class, math.ceil(self.t.exemplar_share * len(own)))
            self.kept += [
                (self.now.decode(place).image, int(self.now.sample_ids[place]), label)
                for place in sorted(nearest[:count])
            ]


class SimGCDReplayReference(GCDReplayReference, SimGCDReference):
    """The same with SimGCD's losses."""
