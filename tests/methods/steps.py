"""Objectives of a stage without images and a trainer."""

from types import SimpleNamespace
from typing import Any

import torch
from accelerate import Accelerator

from promptccd.data.randomness import torch_generator
from promptccd.methods import StageContext
from promptccd.training.options import TrainingArguments

IMAGES = 8


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


class _Images:
    """Images of a stage, as an objective reads them: their number and their stage."""

    def __init__(self, index: int):
        self.stage = SimpleNamespace(index=index)

    def __len__(self) -> int:
        return IMAGES
