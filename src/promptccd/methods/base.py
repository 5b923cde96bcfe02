"""A method, its objective at a stage, and the contrastive losses of GCD, which train every prompt of the paper."""

import inspect
import logging
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from accelerate import Accelerator
from torch import Tensor, nn
from transformers import PreTrainedConfig

from promptccd.data.randomness import torch_generator
from promptccd.data.readable import StageImages
from promptccd.errors import ConfigurationError
from promptccd.methods.exemplars import NO_LABEL, Memory
from promptccd.methods.processes import Rows
from promptccd.models import CategoryDiscoveryModel, Replay, register_variant
from promptccd.models.backbone import class_row
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


@dataclass(eq=False)
class Objective:
    """The losses of one stage; every stage makes a new objective. By default they are GCD's, and the terms of prompts.

    A method overrides `losses`, and other methods where it needs them.

    Attributes:
        model: trained in place.
        stage: its training data.
        arguments: how to train.
        accelerator: the processes that train together.
        plain_features: computes features ``(N, D)`` of the stage's images without prompts; its argument is the label
            of a progress bar.
        forward_rows: runs the model on training views of given batches, for phases in addition to the epochs. A batch
            is the epoch that keys its views, and indices of images. Every process runs its share; the objective
            averages gradients itself.
        least_batch: share of the batch size below which the last batch of an epoch is left out: means over few images
            are noise.
        needs_count: whether the number of categories must be known before training.
        previous: an earlier last block, which `moved` compares with.
    """

    model: CategoryDiscoveryModel
    stage: StageContext
    arguments: TrainingArguments
    accelerator: Accelerator
    plain_features: Callable[[str], Tensor]
    forward_rows: Callable[[str, Sequence[tuple[int, np.ndarray]]], Iterator[Rows]] | None = None
    previous: nn.Module | None = None

    least_batch: ClassVar[float] = 0.0
    needs_count: ClassVar[bool] = False

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
        """Scalars by name, the same on every process; ``"loss"`` is minimised.

        ``(1 - w) InfoNCE + w SupCon`` where labels are given, InfoNCE alone elsewhere, and the model's
        `auxiliary_losses`, which are weighted already. (The paper prints one loss with one temperature; its code mixes
        two, and so do we.)
        """
        parts = self.contrast(rows)
        loss = parts["info_nce"]
        if "supervised" in parts:
            loss = torch.lerp(loss, parts["supervised"], self.arguments.supervised_weight)
        for name, values in self.model.auxiliary_losses(rows.output).items():
            parts[name] = rows.of_all(values).mean()
            loss = loss + parts[name]
        return {"loss": loss, **parts}

    def contrast(self, rows: Rows) -> dict[str, Tensor]:
        """``info_nce`` of all images, and ``supervised`` among labelled images, if any.

        Both read one matrix of similarities, whose rows are views: ``[view 1 of all images; view 2 of all images]``.
        """
        similarities = self.model.head.similarities(rows.bottleneck.flatten(0, 1))
        parts = {"info_nce": info_nce_loss(similarities, self.arguments.temperature_unsupervised)}
        if rows.labelled is not None:
            which, labels = rows.labelled
            if isinstance(which, Tensor):
                both = torch.cat([which, which + rows.bottleneck.shape[1]])
                similarities = similarities[both][:, both]
            parts["supervised"] = supervised_contrastive_loss(
                similarities, labels, self.arguments.temperature_supervised
            )
        return parts

    def generator(self, *position: int) -> torch.Generator:
        """A CPU generator for the start of the stage, or for an epoch and step of it."""
        return torch_generator("objective", self.arguments.seed, self.stage.images.stage.index, *position)

    def adjust_gradients(self, epoch: int) -> None:
        """Change gradients before they are clipped and a step is taken; does nothing by default.

        A parameter without a gradient keeps its value and its optimiser state.
        """

    @torch.no_grad()
    def features_before(self, rows: Rows) -> Tensor:
        """Features of the same views by the earlier block, not normalised: ``(V * b, D)`` of this process's share."""
        assert self.previous is not None
        assert rows.output.entering is not None
        with self.accelerator.autocast():
            return class_row(self.model.backbone, rows.output.entering, self.previous, rows.output.rotation)

    def moved(self, rows: Rows) -> Tensor:
        """Squared distance of unit features to the earlier features, of the whole batch: ``(V, B)``."""
        assert rows.output.features is not None
        before = F.normalize(self.features_before(rows))
        moved = F.normalize(rows.output.features.float()) - before
        return rows.of_all(moved.square().sum(1))


def info_nce_loss(similarities: Tensor, temperature: float = 1.0) -> Tensor:
    """Unsupervised contrastive loss: find the other view of the same image among all other rows.

    It is the mean over the rows of cosine similarities ``(2B, 2B)``; tau_u is 1.0 in the released configurations.
    """
    rows = len(similarities)
    logits = (similarities / temperature).fill_diagonal_(float("-inf"))
    partner = torch.arange(rows, device=similarities.device).roll(rows // 2)
    return F.cross_entropy(logits, partner)


def supervised_contrastive_loss(similarities: Tensor, labels: Tensor, temperature: float = 0.07) -> Tensor:
    """Supervised contrastive loss: every other row of the same category is a positive.

    It is the mean over the rows of cosine similarities ``(2B, 2B)``, and for each row over its positives, its other
    view at least. Labels ``(B,)`` belong to the images; the temperature is tau_s.
    """
    log_probabilities = (similarities / temperature).fill_diagonal_(float("-inf")).log_softmax(1)
    both = labels.repeat(2)
    positive = (both[:, None] == both[None, :]).fill_diagonal_(False)
    # The diagonal is log 0, which times a weight of 0 would be NaN: it is masked out.
    return -(log_probabilities.masked_fill(~positive, 0.0).sum(1) / positive.sum(1)).mean()


@dataclass(frozen=True)
class Method:
    """A method: a model, an objective, and the words for them.

    Attributes:
        name: in recipes, checkpoints and tables; usually its configuration's ``model_type``.
        model: the saved model.
        title: as a person writes it.
        summary: what its prompts are, as a phrase for cards.
        objective: its objective; by default GCD's.
        parts: titles of the model's children, except backbone and head, that learn or are fitted.
        losses: titles of its terms, except the terms of `Objective`.
        published: its names in the paper's tables, by a pool, a way of counting categories, or ``exemplars``; in any
            other case the tables have the method's name.
        predicts_natively: whether the paper's figures are compared with its native prediction, and not with
            semi-supervised k-means over its features (the paper does not say which they are).
        uses_exemplars: whether it can train on images of earlier stages (`exemplars_per_class`): its losses read
            `Rows.labelled`.
    """

    name: str
    model: type[CategoryDiscoveryModel]
    title: str
    summary: str
    objective: type[Objective] = Objective
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
