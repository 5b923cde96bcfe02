"""Objectives of a stage, and one training step of a method on drawn pixels, without images and a trainer."""

from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from accelerate import Accelerator

from promptccd.data.randomness import torch_generator
from promptccd.methods import Method, Rows, StageContext
from promptccd.training.options import TrainingArguments
from tests.conftest import TINY_BACKBONE, TINY_HEAD

IMAGES, CATEGORIES = 8, 2


def drawn(*shape: int) -> torch.Tensor:
    """Normal values that follow from the shape."""
    return torch.randn(shape, generator=torch_generator("drawn", *shape))


def of(*rows: list[float]) -> torch.Tensor:
    """Rows in float64."""
    return torch.tensor(rows, dtype=torch.float64)


def objective_of(
    kind: type[Any],
    model: Any,
    features: torch.Tensor | None = None,
    labels: torch.Tensor | None = None,
    count: int | None = None,
    index: int | None = None,
    **arguments: Any,
) -> Any:
    """An objective of stage 0 where there are labels, else of stage 1, whose images have these plain features."""
    images: Any = _Images(int(labels is None) if index is None else index)
    stage = StageContext(images, labels, num_categories=count)
    options = TrainingArguments(**arguments)
    return kind(model, stage, options, Accelerator(cpu=True), lambda what: features)


def begun(*given: Any, **options: Any) -> Any:
    """The same after it has begun its stage."""
    objective = objective_of(*given, **options)
    objective.begin_stage()
    return objective


def trained_a_step(method: Method) -> None:
    """Train a tiny model for one step of stage 0.

    Raises:
        AssertionError: a loss is not finite, or no parameter has moved.
    """
    generator = torch.Generator().manual_seed(0)
    vision = {"model_type": "dinov2", **TINY_BACKBONE}
    model = method.model(method.model.config_class(vision_config=vision, **TINY_HEAD)).train()
    pixels = torch.randn(2 * IMAGES, 3, 16, 16, generator=generator)
    labels = torch.arange(IMAGES) % CATEGORIES
    with torch.no_grad():
        features = F.normalize(model(pixels[:IMAGES], prompted=False).features, dim=-1)
    arguments: dict[str, Any] = {"epochs": 1, "batch_size": IMAGES, "prompt_warmup_epochs": 0}
    objective = begun(method.objective, model, features, labels, CATEGORIES, **arguments)
    objective.begin_epoch(0)
    learning = [each for each in model.parameters() if each.requires_grad]
    before = [each.detach().clone() for each in learning]
    views = pixels.unflatten(0, (2, IMAGES)).transpose(0, 1)
    rows = Rows.of(model, views, labels, torch.arange(IMAGES), prompted=objective.prompted(0))
    losses = objective.losses(rows)
    losses["loss"].backward()
    torch.optim.SGD(learning, lr=0.1).step()
    assert all(bool(value.isfinite()) for value in losses.values())
    assert any(not torch.equal(old, new) for old, new in zip(before, learning, strict=True))


class _Images:
    """Images of a stage, as an objective reads them: their number and their stage."""

    def __init__(self, index: int):
        self.stage = SimpleNamespace(index=index)

    def __len__(self) -> int:
        return IMAGES
