"""What a method is: an objective that a stage is trained for, and what is said of it elsewhere."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor

from promptccd.data.randomness import torch_generator
from promptccd.data.stage_images import StageImages
from promptccd.models import CategoryDiscoveryModel, CategoryDiscoveryOutput, Replay
from promptccd.training.arguments import TrainingArguments
from promptccd.training.devices import gather_rows
from promptccd.training.exemplars import NO_LABEL, Memory


@dataclass(frozen=True)
class StageContext:
    """What a stage is trained on.

    Attributes:
        images: its readable images.
        labels: their category ids ``(N,)``; `None` at unlabelled stages.
        replay: features drawn from the last stage's mixture; `None` at stage 0.
        num_categories: K_t; `None` to let every fit of a mixture estimate it by splitting and merging.
        memory: images of earlier stages that are shown beside those of an unlabelled one, if any are.
    """

    images: StageImages
    labels: Tensor | None = None
    replay: Replay | None = None
    num_categories: int | None = None
    memory: Memory | None = None

    def of_batch(self, indices: np.ndarray) -> tuple[Tensor | None, Tensor]:
        """Labels and positions of a batch, as `Rows` has them; indices from N on are those of the memory."""
        if self.memory is None:
            return None if self.labels is None else self.labels[indices], torch.from_numpy(indices)
        places = torch.from_numpy(indices) - len(self.images)
        labels = self.memory.labels[places % len(self.memory)].masked_fill(places < 0, NO_LABEL)
        return labels, torch.from_numpy(indices).masked_fill(places >= 0, -1)


@dataclass(frozen=True)
class Rows:
    """What a forward gave for a global batch; V views of B images.

    Attributes:
        output: of this process's share, view-major: ``(V * b, ...)``.
        bottleneck: unit embeddings of the whole batch, ``(V, B, d)``, with their gradient on every process.
        labels: category ids ``(B,)``; `None` at unlabelled stages, or with a memory -1 for images without one.
        positions: of the images in the stage's, ``(B,)``, on the CPU; -1 for those of the memory.
        epoch: of the step.
        step: of the epoch.
    """

    output: CategoryDiscoveryOutput
    bottleneck: Tensor
    labels: Tensor | None
    positions: Tensor
    epoch: int = 0
    step: int = 0

    @cached_property
    def labelled(self) -> tuple[Tensor | slice, Tensor] | None:
        """The images with a label, to index B with, and their labels; `None` where none has one."""
        if self.labels is None:
            return None
        if bool((self.positions >= 0).all()):  # a labelled stage: no device has to be waited for
            return slice(None), self.labels
        places = (self.labels >= 0).nonzero().flatten()
        return (places, self.labels[places]) if len(places) else None

    @cached_property
    def features(self) -> Tensor:
        """Features of the whole batch as they come, ``(V, B, D)``, with their gradient on every process."""
        assert self.output.features is not None
        return self.of_all(self.output.features)

    def among(self, similarities: Tensor, images: Tensor | slice) -> Tensor:
        """Similarities of the views of some images, of those of all ``(V * B, V * B)``; both view-major."""
        views = len(self.bottleneck), -1
        by_view = similarities.unflatten(1, views).unflatten(0, views)  # (V, B, V, B)
        return by_view[:, images][..., images].flatten(2).flatten(0, 1)

    def of_all(self, values: Tensor) -> Tensor:
        """What there is per view of this process's share, ``(V * b, ...)``, of the whole batch: ``(V, B, ...)``."""
        views, images = self.bottleneck.shape[:2]
        return gather_rows(values.float().unflatten(0, (views, -1)), images)

    def mean_of(self, values: Tensor) -> Tensor:
        """Mean over the whole batch of one value per view of this process's share, ``(V * b,)``."""
        return self.of_all(values).mean()


class Objective:
    """What one stage is trained for; made anew for every stage.

    A method overrides `losses`, and the others where it has something to do there.

    Args:
        model: trained in place.
        stage: what it is trained on.
        arguments: how to train.
        accelerator: the processes that train together.
        plain_features: features ``(N, D)`` of the stage's images without prompts; its argument says in a progress bar
            what they are for.
        forward_rows: what the model as it is by then gives for training views of batches of the stage's images, for
            phases beside the epochs; each batch is an epoch, which its views are drawn for, and indices among the
            images. Of several processes each takes its share, and gradients are left for the objective to average.

    Attributes:
        least_batch: share of the batch size that the last batch of an epoch needs, or else it is left out: means over
            a batch of few images are noise.
        needs_count: whether it has to know how many categories there are before it trains.
    """

    least_batch: ClassVar[float] = 0.0
    needs_count: ClassVar[bool] = False

    def __init__(
        self,
        model: CategoryDiscoveryModel,
        stage: StageContext,
        arguments: TrainingArguments,
        accelerator: Accelerator,
        plain_features: Callable[[str], Tensor],
        forward_rows: Callable[[str, Sequence[tuple[int, np.ndarray]]], Iterator[Rows]] | None = None,
    ):
        self.model, self.stage, self.arguments = model, stage, arguments
        self.accelerator, self.plain_features = accelerator, plain_features
        self.forward_rows = forward_rows

    def begin_stage(self) -> None:
        """Prepare a stage, on the model as the stage before left it; nothing to do here.

        A stage that goes on does so too, and its saved state is laid over what this made.
        """

    def begin_epoch(self, epoch: int) -> None:
        """Prepare an epoch that starts at its first step; nothing to do here."""

    def end_stage(self) -> None:
        """Conclude a stage whose epochs are over, in this process or an earlier one; nothing to do here."""

    def prompted(self, epoch: int) -> bool:
        """Whether prompts act in the forwards of an epoch."""
        return True

    def losses(self, rows: Rows) -> dict[str, Tensor]:
        """Scalars by name, the same on every process; ``"loss"`` is what is minimised."""
        raise NotImplementedError

    def generator(self, *position: int) -> torch.Generator:
        """A CPU generator for what is drawn at the start of the stage, or at an epoch and step of it."""
        return torch_generator("objective", self.arguments.seed, self.stage.images.stage.index, *position)

    def adjust_gradients(self, epoch: int) -> None:
        """Change gradients before they are clipped and a step is taken; nothing to do here.

        A parameter without a gradient stays as it is, and so does what the optimiser keeps of it.
        """

    def guessing(self, num_images: int) -> dict[str, float]:
        """What terms are, by name, where all embeddings of so many images are one: a stage there learns nothing."""
        return {}
