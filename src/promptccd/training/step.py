"""One step of any method: which images are in it, their views, and the rows that its objective reads."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Sampler

from promptccd.data.randomness import numpy_generator
from promptccd.data.stage_images import StageImages, workers_for
from promptccd.data.views import TrainingViews
from promptccd.models import CategoryDiscoveryOutput
from promptccd.training.devices import gather_rows, share_of
from promptccd.training.exemplars import Memory
from promptccd.training.objectives import Objective, Rows

MIN_BATCH = 2  # one image alone has nothing to be contrasted with


def steps_per_epoch(num_images: int, batch_size: int, least: float = 0.0, num_exemplars: int = 0) -> int:
    """Steps of an epoch. The last, smaller batch is kept if it has two images or more, or is the only one.

    (The released code drops it at every stage, which on small sets hides many images from training.)

    Args:
        num_images: N.
        batch_size: B.
        least: share of B that a last batch needs, for objectives that take means over a batch.
        num_exemplars: images of earlier stages, as `epoch_batches` takes them.
    """
    own = stream_share(batch_size, num_exemplars)
    full, rest = divmod(num_images, own)
    return full + (rest >= MIN_BATCH and (rest >= least * own or full == 0))


def epoch_order(num_images: int, seed: int, stage: int, epoch: int) -> np.ndarray:
    """Positions of one epoch in the order they are visited, ``(N,)``."""
    return numpy_generator("order", seed, stage, epoch).permutation(num_images)


def stream_share(batch_size: int, num_exemplars: int) -> int:
    """Images of a batch that are the stage's own: all, or half where images of earlier stages are shown again."""
    return batch_size - batch_size // 2 if num_exemplars else batch_size


def epoch_batches(
    num_images: int, batch_size: int, seed: int, stage: int, epoch: int, num_exemplars: int = 0
) -> list[np.ndarray]:
    """Positions of every global batch of an epoch, ``(B,)`` each; a last one that may be left out is among them.

    Exemplars stand behind the images of the stage, as many of them in a batch. They come in rounds, each in an order of
    its own, and their positions count on from N from round to round: a stream shows every image once an epoch.
    """
    order, own = epoch_order(num_images, seed, stage, epoch), stream_share(batch_size, num_exemplars)
    batches = [order[first : first + own] for first in range(0, num_images, own)]
    if not num_exemplars:
        return batches
    others = batch_size - own
    rounds = [
        num_images
        + lap * num_exemplars
        + numpy_generator("exemplar order", seed, stage, epoch, lap).permutation(num_exemplars)
        for lap in range(-(-len(batches) * others // num_exemplars))
    ]
    again = np.concatenate(rounds)
    return [
        np.concatenate([batch, again[step * others :][: min(others, len(batch))]])
        for step, batch in enumerate(batches)
    ]


class PositionSampler(Sampler[list[tuple[int, int]]]):
    """This process's share of every global batch from a position on, as lists of (epoch, index).

    Args:
        num_images: N.
        batch_size: images of a global batch.
        seed: seed of the run.
        stage: index of the stage.
        epochs: epochs of the stage.
        least: as `steps_per_epoch` takes it.
        start: (epoch, step) of the first batch.
        rank: this process.
        num_processes: all processes.
        num_exemplars: images of earlier stages, as `epoch_batches` takes them.
    """

    def __init__(
        self,
        num_images: int,
        batch_size: int,
        *,
        seed: int,
        stage: int,
        epochs: int,
        least: float = 0.0,
        start: tuple[int, int] = (0, 0),
        rank: int = 0,
        num_processes: int = 1,
        num_exemplars: int = 0,
    ):
        self.num_images, self.batch_size = num_images, batch_size
        self.seed, self.stage, self.epochs, self.start = seed, stage, epochs, start
        self.rank, self.num_processes = rank, num_processes
        self.num_exemplars = num_exemplars
        self.steps = steps_per_epoch(num_images, batch_size, least, num_exemplars)

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        first_epoch, first_step = self.start
        for epoch in range(first_epoch, self.epochs):
            position = self.num_images, self.batch_size, self.seed, self.stage, epoch
            skipped = first_step if epoch == first_epoch else 0
            for batch in epoch_batches(*position, self.num_exemplars)[skipped : self.steps]:
                share = share_of(batch, self.num_processes, self.rank)
                yield [(epoch, int(index)) for index in share]


class _Views(Dataset):
    def __init__(self, images: StageImages, views: TrainingViews, seed: int, memory: Memory | None):
        self.images, self.views, self.seed, self.memory = images, views, seed, memory

    def __getitem__(self, key: tuple[int, int]) -> Tensor:
        epoch, index = key
        position: tuple[int, ...]
        if self.memory is None or index < len(self.images):
            image, position = self.images[index], (int(self.images.sample_ids[index]),)
        else:  # another round, another crop
            lap, place = divmod(index - len(self.images), len(self.memory))
            image, sample = self.memory.sample(place)
            position = sample, lap
        return self.views(
            image, numpy_generator("view", self.seed, self.images.stage.index, epoch, *position)
        )


def training_loader(
    images: StageImages,
    views: TrainingViews,
    batches: Iterable[list[tuple[int, int]]],
    seed: int,
    num_workers: int,
    memory: Memory | None = None,
) -> DataLoader[Any]:
    """Loader of uint8 views ``(b, V, 3, S, S)`` for batches of (epoch, index)."""
    return DataLoader(
        _Views(images, views, seed, memory),
        batch_sampler=batches,
        num_workers=workers_for(num_workers),
        collate_fn=torch.stack,
        pin_memory=torch.cuda.is_available(),
    )


@dataclass(frozen=True)
class Batch:
    """One process's share of a global batch.

    Attributes:
        pixel_values: normalised views ``(b, V, 3, H, W)``.
        labels: category ids ``(B,)`` of the whole global batch; `None` at unlabelled stages, or with a memory -1 for
            images without one.
        positions: of the images of the whole global batch in the stage's, ``(B,)``, -1 for those of the memory.
    """

    pixel_values: Tensor
    labels: Tensor | None
    positions: Tensor

    def rows(self, model: nn.Module, prompted: bool, epoch: int, step: int = 0) -> Rows:
        """What an objective reads: the forward of this process's share, gathered from all."""
        views = self.pixel_values.transpose(0, 1)  # (V, b, 3, H, W): view-major, as the losses expect
        output: CategoryDiscoveryOutput = model(views.flatten(0, 1), prompted=prompted, project=True)
        assert output.bottleneck is not None  # asked for by project=True
        share = output.bottleneck.float().unflatten(0, views.shape[:2])
        bottleneck = gather_rows(share, len(self.positions))
        return Rows(output, bottleneck, self.labels, self.positions, epoch, step)


def training_loss(
    model: nn.Module, objective: Objective, batch: Batch, epoch: int, step: int = 0
) -> dict[str, Tensor]:
    """The losses of one step.

    Args:
        model: the objective's model as Accelerate wrapped it; its forward is what synchronises gradients.
        objective: of the stage.
        batch: this process's share of the global batch.
        epoch: of the step.
        step: of the epoch.

    Returns:
        Scalars by name; ``"loss"`` is what is minimised, the same on every process.
    """
    return objective.losses(batch.rows(model, objective.prompted(epoch), epoch, step))
