"""A model whose steps of whole batches are compiled, each as a static graph."""

import logging
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from promptccd.errors import one_line
from promptccd.models import CategoryDiscoveryModel, CategoryDiscoveryOutput
from promptccd.models.backbones import blocks_of

logger = logging.getLogger(__name__)


Backend = str | Callable[..., Any]


class WholeBatches:
    """The forward of a model, compiled for as many rows as a whole batch has.

    Others run uncompiled. So which kernels compute a batch does not depend on the batches before it, and a training
    that goes on after a kill runs the same ones. Where no step can be compiled none is, which is said.

    Args:
        model: of this stage.
        wrapped: the same, as Accelerate wrapped it.
        rows: of a whole batch, in this process.
        backend: that compiles.
    """

    def __init__(
        self, model: CategoryDiscoveryModel, wrapped: nn.Module, rows: int, backend: Backend = "inductor"
    ):
        torch.compiler.reset()  # forgets the graphs of earlier stages: of eight on, dynamo makes no more
        self.model, self.wrapped, self.rows = model, wrapped, rows
        self._compiled: Callable[..., CategoryDiscoveryOutput] = torch.compile(
            wrapped, dynamic=False, backend=backend
        )
        self._is_settled = False  # whether steps are compiled

    def __call__(self, pixel_values: torch.Tensor, **options: Any) -> CategoryDiscoveryOutput:
        """The output of a forward."""
        if len(pixel_values) != self.rows:
            return self.wrapped(pixel_values, **options)
        if (prefix := getattr(self.model.backbone, "frozen_prefix", None)) is not None:
            prefix.follow(blocks_of(self.model.backbone)[:-1])
        # What fails later, such as a GPU that is full, ends the stage: its steps run alike.
        if self._is_settled:
            return self._compiled(pixel_values, **options)
        self._is_settled = True
        try:
            with warnings.catch_warnings():  # of products in TensorFloat32, which no training here uses
                warnings.filterwarnings("ignore", "TensorFloat32 tensor cores")
                return self._compiled(pixel_values, **options)
        # Of a compiler, of which there are many; what is the model's own comes again.
        except Exception as error:
            why = one_line(error).partition(" Set TORCHDYNAMO_VERBOSE")[0][:200]
            logger.warning("A step cannot be compiled here, and this stage is trained without: %s", why)
            self._compiled = self.wrapped
            return self.wrapped(pixel_values, **options)
