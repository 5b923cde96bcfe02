"""Batches of a stage: which images a step sees, and their views."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from promptccd.data.loaders import loader_options
from promptccd.data.randomness import numpy_generator
from promptccd.data.readable import StageImages
from promptccd.data.views import TrainingViews
from promptccd.methods import StageContext
from promptccd.methods.exemplars import Memory
from promptccd.methods.processes import share_of
from promptccd.training.options import TrainingArguments

MIN_BATCH = 2  # one image alone has nothing to contrast with


@dataclass(frozen=True)
class BatchPlan:
    """Which images every step of a stage sees.

    The last, smaller batch of an epoch is kept if it has two images or more, or is the only batch. (The released code
    drops it at every stage, which on small sets hides many images from training.)

    Attributes:
        num_images: N.
        batch_size: B, images of a step over all processes.
        seed: of the run.
        stage: its index.
        least: share of a full batch that the last one needs, for objectives that take means over a batch.
        num_exemplars: M, images of earlier stages that fill half of every batch; may be 0.
    """

    num_images: int
    batch_size: int
    seed: int
    stage: int
    least: float = 0.0
    num_exemplars: int = 0

    @property
    def own(self) -> int:
        """Images of the stage itself in a full batch."""
        return self.batch_size - self.batch_size // 2 if self.num_exemplars else self.batch_size

    @property
    def steps(self) -> int:
        """Steps of an epoch."""
        full, rest = divmod(self.num_images, self.own)
        return full + (rest >= MIN_BATCH and (rest >= self.least * self.own or full == 0))

    def batches(self, epoch: int) -> list[np.ndarray]:
        """Positions of every batch of an epoch, ``(B,)`` each; positions of exemplars start at N.

        Exemplars come in rounds, each in an order of its own. Position N + l M + m is exemplar m in round l.
        """
        order = numpy_generator("order", self.seed, self.stage, epoch).permutation(self.num_images)
        batches = [order[step * self.own :][: self.own] for step in range(self.steps)]
        if not batches or not self.num_exemplars:
            return batches
        others, count = self.batch_size - self.own, self.num_exemplars
        rounds = []
        for lap in range(math.ceil(self.steps * others / count)):
            generator = numpy_generator("exemplar order", self.seed, self.stage, epoch, lap)
            rounds.append(lap * count + generator.permutation(count))
        again = self.num_images + np.concatenate(rounds)
        return [
            np.concatenate([batch, again[step * others :][: min(others, len(batch))]])
            for step, batch in enumerate(batches)
        ]

    def shares(
        self, epochs: int, start: tuple[int, int] = (0, 0), num_processes: int = 1, rank: int = 0
    ) -> Iterator[list[tuple[int, int]]]:
        """A process's share of every batch from (epoch, step) `start` on, as lists of (epoch, position)."""
        first_epoch, first_step = start
        for epoch in range(first_epoch, epochs):
            skipped = first_step if epoch == first_epoch else 0
            for batch in self.batches(epoch)[skipped:]:
                yield [(epoch, int(position)) for position in share_of(batch, num_processes, rank)]


class _Views(Dataset):
    def __init__(self, images: StageImages, views: TrainingViews, seed: int, memory: Memory | None):
        self.images, self.views, self.seed, self.memory = images, views, seed, memory

    def __getitem__(self, key: tuple[int, int]) -> Tensor:
        (epoch, index), side, stage = key, self.views.shorter_side, self.images.stage.index
        if self.memory is None or index < len(self.images):
            generator = numpy_generator("view", self.seed, stage, epoch, int(self.images.sample_ids[index]))
            return self.views(self.images.for_view(index, side), generator)
        lap, place = divmod(index - len(self.images), len(self.memory))
        image, sample = self.memory.sample(place, side)  # another round, another crop
        return self.views(image, numpy_generator("view", self.seed, stage, epoch, sample, lap))


def training_loader(
    context: StageContext,
    views: TrainingViews,
    batches: Iterable[list[tuple[int, int]]],
    arguments: TrainingArguments,
) -> DataLoader[Any]:
    """Loader of uint8 views ``(b, V, 3, S, S)`` for batches of (epoch, index)."""
    return DataLoader(
        _Views(context.images, views, arguments.seed, context.memory),
        batch_sampler=batches,
        collate_fn=torch.stack,
        pin_memory=torch.cuda.is_available(),
        **loader_options(arguments.num_workers, arguments.batch_size * views.num_bytes),
    )
