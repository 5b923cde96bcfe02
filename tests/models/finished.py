"""Finished stages of every method, over every kind of backbone, without training one.

Every term of their networks shows: no bias is zero, no norm or layer scale is one, nothing is tiny. Weights as they are
initialised hide what they multiply: with zero biases, unit norms and prompts of 0.02 a term that is forgotten changes a
result by less than rounding does.
"""

import copy
import functools
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import (
    Dinov2Config,
    Dinov2Model,
    Dinov2WithRegistersConfig,
    Dinov2WithRegistersModel,
    DINOv3ViTConfig,
    DINOv3ViTModel,
    PreTrainedModel,
    ViTConfig,
    ViTModel,
)

from promptccd.data.options import ViewOptions
from promptccd.data.randomness import torch_generator
from promptccd.data.views import build_image_processor
from promptccd.methods import METHODS as BY_NAME
from promptccd.models import CategoryDiscoveryModel
from tests.conftest import TINY_BACKBONE, TINY_HEAD

DEEPER = {**TINY_BACKBONE, "num_hidden_layers": 3}
MLP = {"intermediate_size": 64}
# A checkpoint of each format, as its own class writes it.
BACKBONES: dict[str, tuple[type[PreTrainedModel], Any]] = {
    "dinov2": (Dinov2Model, lambda: Dinov2Config(**DEEPER)),
    "registers": (
        Dinov2WithRegistersModel,
        lambda: Dinov2WithRegistersConfig(**DEEPER, num_register_tokens=3),
    ),
    "dino": (ViTModel, lambda: ViTConfig(**DEEPER, **MLP)),
    "dinov3": (DINOv3ViTModel, lambda: DINOv3ViTConfig(**DEEPER, **MLP, num_register_tokens=4)),
    "dinov3-gated": (DINOv3ViTModel, lambda: DINOv3ViTConfig(**DEEPER, **MLP, use_gated_mlp=True)),
}
# A method, and the fields that make another model of it.
METHODS: dict[str, tuple[str, dict[str, Any]]] = {name: (name, {}) for name in BY_NAME} | {
    "promptccd-b-dualprompt": ("promptccd-b", {"pool": "dualprompt"})
}
# Prefix tuning reaches three blocks; dropout acts only where somebody forgot that the backbone stays in eval mode.
LIVELY_BACKBONE = {
    **TINY_BACKBONE,
    "num_hidden_layers": 3,
    "mlp_ratio": 2,
    "hidden_dropout_prob": 0.2,
    "attention_probs_dropout_prob": 0.2,
}


def drawn(name: str, shape: torch.Size, key: str = "reference") -> Tensor:
    """Values for a parameter of that name, which keep what flows through a network of order 1."""
    values = torch.randn(shape, generator=torch_generator(key, name))
    if name.endswith("bias"):
        return 0.5 * values
    if name.endswith("weight") and len(shape) > 1 and "last_weight" not in name:
        return values / shape[1:].numel() ** 0.5
    if name.endswith(("weight", "lambda1")) and len(shape) == 1:  # of norms, and layer scales
        return 1 + 0.3 * values
    return 0.3 * values if "embeddings" in name else values


@torch.no_grad()
def fill(module: nn.Module, key: str = "reference", only_learning: bool = False) -> None:
    """Give the parameters of a module such values; those that learn alone, or all."""
    for name, parameter in module.named_parameters():
        if parameter.requires_grad or not only_learning:
            parameter.copy_(drawn(name, parameter.shape, key))


def lively_backbone() -> Dinov2Model:
    """A backbone of three blocks, 32 wide, in pictures of 8-pixel patches."""
    backbone = Dinov2Model(Dinov2Config(**LIVELY_BACKBONE))
    fill(backbone)
    return backbone.eval()


def some_methods(*quick: str) -> Callable[[Callable], Callable]:
    """For a test of what methods have in common: these, and among the slow tests a third of the others.

    Which third follows from the test's name, so that tests of one kind meet all methods together.
    """

    def parametrised(test: Callable) -> Callable:
        turn = zlib.crc32(test.__name__.encode())
        others = [name for place, name in enumerate(METHODS) if name not in quick and (turn + place) % 3 == 0]
        cases = [*quick, *(pytest.param(name, marks=pytest.mark.slow) for name in others)]
        return pytest.mark.parametrize("method", cases)(test)

    return parametrised


def write_backbone(kind: str, folder: Path) -> Path:
    """A bare checkpoint in which every term shows."""
    model_class, config = BACKBONES[kind]
    backbone = model_class(config())
    fill(backbone)
    backbone.save_pretrained(folder)
    return folder


def model_of(method: str, kind: str = "dinov2") -> CategoryDiscoveryModel:
    """A model of one's own that knows three categories, of which one was labelled; a middle one was merged away."""
    return copy.deepcopy(_made(method, kind))


@functools.cache
def _made(method: str, kind: str) -> CategoryDiscoveryModel:
    name, options = METHODS[method]
    with tempfile.TemporaryDirectory() as folder:
        bare = write_backbone(kind, Path(folder))
        model = BY_NAME[name].model.from_pretrained(bare, **TINY_HEAD, **options)
    model.head.reset_parameters(torch_generator("head"))
    model.reset_prompts(torch_generator("prompts"))
    if model.mixture is not None:
        draws = torch.randn(6, 32, generator=torch_generator("components"))
        unit = draws / draws.norm(dim=1, keepdim=True)
        model.load_mixture(unit, torch.full((6, 32), 0.02), torch.zeros(6))
        model.load_native_mixture(
            [0], unit.flip(0), torch.full((6, 32), 0.3), torch.zeros(6), torch.tensor(0.2)
        )
    prototypes = torch.randn(3, 32, generator=torch_generator("prototypes"))
    model.config.num_known = 1
    model.set_categories(prototypes / prototypes.norm(dim=1, keepdim=True), [0, 1, 4], ["cat", "dog", "owl"])
    return model.eval()


def stage_of(method: str, kind: str = "dinov2") -> CategoryDiscoveryModel:
    """The same after a stage that grew it."""
    model = model_of(method, kind)
    if hasattr(model, "class_means"):
        model.remember(model.prototypes[:1].clone())
    if hasattr(model, "grow"):  # classes, or a branch and its clusters
        model.grow(model.prototypes.clone())
    return model


def write_stage(method: str, folder: Path, kind: str = "dinov2") -> Path:
    """Its checkpoint, with the image processor beside it."""
    stage_of(method, kind).save_pretrained(folder)
    build_image_processor(ViewOptions(image_size=16, resize_size=18)).save_pretrained(folder)
    return folder
