"""Batches keyed by position: which images stand in step s of epoch e, and how each is cropped.

Order is a permutation drawn for (seed, stage, epoch), a view is drawn for (seed, stage, epoch, sample id).
Workers, processes and interruptions change neither, so a run can stop anywhere and nothing about random
states has to be saved.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from promptccd.data.randomness import numpy_generator
from promptccd.data.stage_images import StageImages
from promptccd.data.views import TrainingViews
from promptccd.training.devices import shard_bounds

MIN_BATCH = 2  # one image alone has nothing to be contrasted with


def steps_per_epoch(num_images: int, batch_size: int) -> int:
    """Steps of an epoch. The last, smaller batch is kept if it has two images or more.

    (The released code drops it at every stage, which on small sets hides many images from training.)
    """
    full, rest = divmod(num_images, batch_size)
    return full + (rest >= MIN_BATCH)


def epoch_order(num_images: int, seed: int, stage: int, epoch: int) -> np.ndarray:
    """Positions of one epoch in the order they are visited, ``(N,)``."""
    return numpy_generator("order", seed, stage, epoch).permutation(num_images)


class PositionSampler(Sampler[list[tuple[int, int]]]):
    """This process's share of every global batch from a position on, as lists of (epoch, index).

    Args:
        num_images: N.
        batch_size: images of a global batch.
        seed: seed of the run.
        stage: index of the stage.
        epochs: epochs of the stage.
        start: (epoch, step) of the first batch.
        rank: this process.
        num_processes: all processes.
    """

    def __init__(
        self,
        num_images: int,
        batch_size: int,
        *,
        seed: int,
        stage: int,
        epochs: int,
        start: tuple[int, int] = (0, 0),
        rank: int = 0,
        num_processes: int = 1,
    ):
        self.num_images, self.batch_size = num_images, batch_size
        self.seed, self.stage, self.epochs, self.start = seed, stage, epochs, start
        self.rank, self.num_processes = rank, num_processes

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        first_epoch, first_step = self.start
        for epoch in range(first_epoch, self.epochs):
            order = epoch_order(self.num_images, self.seed, self.stage, epoch)
            skipped = first_step if epoch == first_epoch else 0
            for step in range(skipped, steps_per_epoch(self.num_images, self.batch_size)):
                batch = order[step * self.batch_size : (step + 1) * self.batch_size]
                low, high = shard_bounds(len(batch), self.num_processes)[self.rank]
                yield [(epoch, int(index)) for index in batch[low:high]]


class _Views(Dataset):
    def __init__(self, images: StageImages, views: TrainingViews, seed: int):
        self.images, self.views, self.seed = images, views, seed

    def __getitem__(self, key: tuple[int, int]) -> Tensor:
        epoch, index = key
        sample = int(self.images.sample_ids[index])
        generator = numpy_generator("view", self.seed, self.images.stage.index, epoch, sample)
        return self.views(self.images[index], generator)


def training_loader(
    images: StageImages, views: TrainingViews, sampler: PositionSampler, num_workers: int
) -> DataLoader[Any]:
    """Loader of uint8 views ``(b, V, 3, S, S)`` for all epochs that are left of a stage."""
    return DataLoader(
        _Views(images, views, sampler.seed),
        batch_sampler=sampler,
        num_workers=num_workers,
        collate_fn=torch.stack,
        pin_memory=torch.cuda.is_available(),
    )
