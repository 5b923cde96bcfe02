"""A method, its objective at a stage, and the rows that it reads."""

import inspect
import logging
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from functools import cached_property
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor
from transformers import PreTrainedConfig

from promptccd.data.randomness import torch_generator
from promptccd.data.readable import StageImages
from promptccd.errors import ConfigurationError
from promptccd.methods.exemplars import NO_LABEL, Memory
from promptccd.methods.processes import gather_rows, sent
from promptccd.models import CategoryDiscoveryModel, CategoryDiscoveryOutput, Replay, register_variant
from promptccd.models.configuration import STORED
from promptccd.training.options import TrainingArguments

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class StageContext:
    """The training data of a stage.

    Attributes:
        images: its readable images.
        labels: their category ids ``(N,)``; `None` at unlabelled stages.
        replay: features drawn from the last stage's mixture; `None` at stage 0.
        num_categories: K_t; `None` to let every fit of a mixture estimate it by splitting and merging.
        memory: exemplars of earlier stages, shown with the images of an unlabelled stage.
    """

    images: StageImages
    labels: Tensor | None = None
    replay: Replay | None = None
    num_categories: int | None = None
    memory: Memory | None = None

    @property
    def count(self) -> int:
        """K_t, where the objective has `needs_count`."""
        assert self.num_categories is not None
        return self.num_categories

    def of_batch(self, indices: np.ndarray) -> tuple[Tensor | None, Tensor]:
        """Labels and positions of a batch, as in `Rows`; indices from N on are exemplars."""
        if self.memory is None:
            return None if self.labels is None else self.labels[indices], torch.from_numpy(indices)
        places = torch.from_numpy(indices) - len(self.images)
        labels = self.memory.labels[places % len(self.memory)].masked_fill(places < 0, NO_LABEL)
        return labels, torch.from_numpy(indices).masked_fill(places >= 0, -1)


@dataclass(frozen=True)
class Rows:
    """The outputs of the model for a global batch: V views of B images.

    Attributes:
        output: of this process's share, view-major: ``(V * b, ...)``.
        bottleneck: unit embeddings of the whole batch, ``(V, B, d)``, with their gradient on every process.
        labels: category ids ``(B,)``, -1 for images without a category; `None` at an unlabelled stage without a memory.
        positions: index of every image in the stage, ``(B,)``, on the CPU; -1 for exemplars.
        epoch: of the step.
        step: of the epoch.
        with_label: places ``(M,)`` of the images with a label; `None` if all images or no images have a label.
    """

    output: CategoryDiscoveryOutput
    bottleneck: Tensor
    labels: Tensor | None
    positions: Tensor
    epoch: int = 0
    step: int = 0
    with_label: Tensor | None = None

    @cached_property
    def labelled(self) -> tuple[Tensor | slice, Tensor] | None:
        """An index of the images with a label, and their labels; `None` if no image has a label."""
        if self.labels is None:
            return None
        if bool((self.positions >= 0).all()):  # a labelled stage: this way does not wait for the device
            return slice(None), self.labels
        places = self.with_label
        if places is None:  # exemplars, all with or all without labels
            places = (self.labels >= 0).nonzero().flatten()
        return (places, self.labels[places]) if len(places) else None

    @cached_property
    def features(self) -> Tensor:
        """Features of the whole batch, not normalised: ``(V, B, D)``, with their gradient on every process."""
        assert self.output.features is not None
        return self.of_all(self.output.features)

    def places(self, which: Tensor) -> Tensor:
        """An index on the device for a mask ``(B,)`` of the CPU; a mask itself would make the host wait."""
        return sent(which.nonzero().flatten(), self.bottleneck.device)

    def among(self, similarities: Tensor, images: Tensor | slice) -> Tensor:
        """The part of the similarities ``(V * B, V * B)`` that belongs to some images; both view-major."""
        views = len(self.bottleneck), -1
        by_view = similarities.unflatten(1, views).unflatten(0, views)  # (V, B, V, B)
        return by_view[:, images][..., images].flatten(2).flatten(0, 1)

    def of_all(self, values: Tensor) -> Tensor:
        """Gather values of this process's share, ``(V * b, ...)``, to values of the whole batch: ``(V, B, ...)``."""
        views, images = self.bottleneck.shape[:2]
        return gather_rows(values.float().unflatten(0, (views, -1)), images)


class Objective:
    """The losses of one stage; every stage makes a new objective.

    A method overrides `losses`, and other methods where it needs them.

    Args:
        model: trained in place.
        stage: its training data.
        arguments: how to train.
        accelerator: the processes that train together.
        plain_features: computes features ``(N, D)`` of the stage's images without prompts; its argument is the label
            of a progress bar.
        forward_rows: runs the model on training views of given batches, for phases in addition to the epochs. A batch
            is the epoch that keys its views, and indices of images. Every process runs its share; the objective
            averages gradients itself.

    Attributes:
        least_batch: share of the batch size below which the last batch of an epoch is left out: means over few images
            are noise.
        needs_count: whether the number of categories must be known before training.
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

    @property
    def config(self) -> Any:
        """The model's configuration."""
        return self.model.config

    def begin_stage(self) -> None:
        """Prepare a stage, on the model as the previous stage left it; does nothing by default.

        A resumed stage calls it too, before its saved state is restored.
        """

    def begin_epoch(self, epoch: int) -> None:
        """Prepare an epoch that starts at its first step; does nothing by default."""

    def end_stage(self) -> None:
        """Conclude a stage after its epochs, also if the epochs ran before an interruption; does nothing by default."""

    def prompted(self, epoch: int) -> bool:
        """Whether prompts act in the forwards of an epoch."""
        return True

    def losses(self, rows: Rows) -> dict[str, Tensor]:
        """Scalars by name, the same on every process; ``"loss"`` is minimised."""
        raise NotImplementedError

    def generator(self, *position: int) -> torch.Generator:
        """A CPU generator for the start of the stage, or for an epoch and step of it."""
        return torch_generator("objective", self.arguments.seed, self.stage.images.stage.index, *position)

    def adjust_gradients(self, epoch: int) -> None:
        """Change gradients before they are clipped and a step is taken; does nothing by default.

        A parameter without a gradient keeps its value and its optimiser state.
        """


@dataclass(frozen=True)
class Method:
    """A method: a model, an objective, and the words for them.

    Attributes:
        name: in recipes, checkpoints and tables; usually its configuration's ``model_type``.
        model: the saved model.
        objective: its objective.
        title: as a person writes it.
        summary: what its prompts are, as a phrase for cards.
        parts: titles of the model's children, except backbone and head, that learn or are fitted.
        losses: titles of its terms, except the terms of `ContrastiveObjective`.
        published: its names in the paper's tables, by a pool, a way of counting categories, or ``exemplars``; in any
            other case the tables have the method's name.
        predicts_natively: whether the paper's figures are compared with its native prediction, and not with
            semi-supervised k-means over its features (the paper does not say which they are).
        uses_exemplars: whether it can train on images of earlier stages (`exemplars_per_class`): its losses read
            `Rows.labelled`.
    """

    name: str
    model: type[CategoryDiscoveryModel]
    objective: type[Objective]
    title: str
    summary: str
    parts: Mapping[str, str] = field(default_factory=dict)
    losses: Mapping[str, str] = field(default_factory=dict)
    published: Mapping[str, str] = field(default_factory=dict)
    predicts_natively: bool = False
    uses_exemplars: bool = False

    @property
    def options(self) -> dict[str, Field[Any]]:
        """The fields of its configuration that a recipe may set, by name, with their type and default.

        Their bounds are `promptccd.models.configuration.bounds_of` the configuration, their help is `Method.help_of`.
        """
        own = {item.name: item for item in fields(self.model.config_class)}
        stored = {name for name, item in own.items() if STORED.items() <= item.metadata.items()}
        common = {item.name for item in fields(PreTrainedConfig)}
        return {name: item for name, item in own.items() if name not in stored | common}

    def help_of(self, option: str) -> str:
        """The text of an option under ``Attributes:`` of the configuration that declares it; empty without one."""
        for parent in self.model.config_class.__mro__:
            documented = inspect.cleandoc(parent.__doc__ or "").partition("Attributes:")[2]
            if found := re.search(rf"^    {option}: (.*(?:\n {{5,}}.*)*)", documented, re.MULTILINE):
                return " ".join(found[1].split()).rstrip(".")
        return ""


METHODS: dict[str, Method] = {}

# Titles of parts and losses that every method has; a method declares its own in addition.
COMMON_PARTS = {"backbone": "last block of the backbone", "head": "projection head"}
LOSSES = {"loss": "loss, all parts", "info_nce": "InfoNCE", "supervised": "supervised contrastive"}


def register(method: Method) -> Method:
    """Add a method to `METHODS`, and its model to the auto classes; returns the method.

    Raises:
        ConfigurationError: another method has its name, or its model has no configuration of its own.
    """
    if METHODS.get(method.name, method) is not method:
        raise ConfigurationError(f"There is a method {method.name!r} already: give yours another name.")
    register_variant(method.model)
    METHODS[method.name] = method
    return method


def load_plugin(place: str) -> Method:
    """The ``METHOD`` of a Python file, which is run and registered; a second time it does nothing.

    Raises:
        ConfigurationError: there is no such file, its code fails, or it has no method that can be registered.
    """
    path = Path(place).expanduser().resolve()
    if not path.is_file() or path.suffix != ".py":
        raise ConfigurationError(f"No plugin {place!r}: give a Python file (.py) with a METHOD.")
    # Under the name that `import` gives it, which cards show.
    module = sys.modules.get(path.stem)
    if module is None:
        spec = spec_from_file_location(path.stem, path)
        assert spec is not None and spec.loader is not None
        module = sys.modules[path.stem] = module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except Exception as error:
            del sys.modules[path.stem]
            raise ConfigurationError(f"Plugin {place!r} fails: {type(error).__name__}: {error}") from error
    found = getattr(module, "METHOD", None)
    if not isinstance(found, Method) or getattr(module, "__file__", None) != str(path):
        raise ConfigurationError(
            f"Plugin {place!r} has no METHOD. Expected METHOD = Method(...) in the file, and a name of the file that "
            "no imported module has."
        )
    return register(found)


def method_named(name: str) -> Method:
    """The method of a recipe's ``model.variant``.

    Raises:
        ConfigurationError: there is no such method.
    """
    if name not in METHODS:
        raise ConfigurationError(
            f"Unknown model.variant {name!r}: expected {' | '.join(METHODS)}. --plugin FILE adds a method of your own."
        )
    return METHODS[name]
