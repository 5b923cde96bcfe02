"""Every method as transformers' common tests want one: a class that makes a configuration and a batch."""

import unittest
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from transformers import (
    Dinov2Config,
    Dinov2Model,
    Dinov2WithRegistersConfig,
    DINOv3ViTConfig,
    PreTrainedConfig,
    ViTConfig,
)

from promptccd.methods import METHODS
from tests.conftest import TINY_HEAD

SIZES = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": 16, "patch_size": 4,
}  # fmt: skip
BACKBONES: dict[str, Callable[[], PreTrainedConfig]] = {
    "dinov2": lambda: Dinov2Config(**SIZES, mlp_ratio=2),
    "registers": lambda: Dinov2WithRegistersConfig(**SIZES, mlp_ratio=2, num_register_tokens=3),
    "dino": lambda: ViTConfig(**SIZES, intermediate_size=37),
    "dinov3": lambda: DINOv3ViTConfig(**SIZES, intermediate_size=37, num_register_tokens=4),
}
REGISTERS = {"registers": 3, "dinov3": 4}
KNOWN = {"category_ids": [0, 1, 4], "category_names": ["cat", "dog", "owl"], "num_known": 1, "stage": 1}
# What a finished stage of each method has; a method that is not here has nothing of its own.
FINISHED: dict[str, dict[str, Any]] = {
    "promptccd": {
        "num_components": 6,
        "component_categories": [0, 0, 1, 1, 4, 4],
        "prompts_at_test": True,
        "prompts_per_image": 3,
    },
    "promptccd-pp": {"num_parts": 4, "pool_size": 6, "prompt_length": 2},
    "grow-merge": {"num_means": 2, "num_branches": 2, "num_clusters": 2},
    "frost": {"num_classes": 3, "num_means": 3},
    "happy": {"num_classes": 3, "num_means": 3},
    **{name: {"num_classes": 3} for name in ("simgcd", "orca", "pa-cgcd", "rankstats")},
}
PROMPTED = ("promptccd", "promptccd-b", "promptccd-b:dualprompt", "promptccd-pp")
CONTROL = "Dinov2Model"
# Name of a class, the method, the backbone, and whether a stage is finished.
CASES = {
    **{f"{name} finished": (name, "dinov2", True) for name in (*METHODS, "promptccd-b:dualprompt")},
    **{f"{name} fresh": (name, "dinov2", False) for name in ("promptccd", "promptccd-pp", "grow-merge", "simgcd")},
    **{f"{name} on {kind}": (name, kind, True) for kind in BACKBONES if kind != "dinov2" for name in PROMPTED},
}  # fmt: skip

# What fails, and rightly so, or does not apply: a name of a test, and the reason.
BY_DESIGN = {
    "test_model_weights_reload_no_missing_tied_weights": "a checkpoint that is not whole is refused, not filled up",
    "test_retain_grad_hidden_states_attentions": "embeddings and earlier blocks are frozen, so they have no graph",
}


class Tester:
    """What transformers calls a model tester."""

    image_size, patch_size, num_channels, batch_size = 16, 4, 3, 5
    hidden_size, num_hidden_layers, num_attention_heads = 32, 2, 4
    num_masks, mask_length = 8, 16  # of a control that takes masks
    is_training = False  # a forward has no loss: objectives hold it
    attn_implementation = "eager"

    def __init__(self, method: str | None, kind: str, finished: bool):
        self.method, self.kind, self.finished = method, kind, finished
        self.seq_length = (16 // 4) ** 2 + 1 + REGISTERS.get(kind, 0)

    def get_config(self) -> PreTrainedConfig:
        """A configuration of the method; of the backbone alone for the control."""
        if self.method is None:
            return BACKBONES[self.kind]()
        name, _, pool = self.method.partition(":")
        options = {**FINISHED.get(name, {}), **KNOWN} if self.finished else {}
        if pool:
            options["pool"] = pool
        config: PreTrainedConfig = METHODS[name].model.config_class(
            vision_config=BACKBONES[self.kind](), **TINY_HEAD, **options
        )
        return config

    def prepare_config_and_inputs_for_common(self) -> tuple[PreTrainedConfig, dict[str, torch.Tensor]]:
        """The configuration, and a batch."""
        pixels = torch.rand(self.batch_size, 3, 16, 16, generator=torch.Generator().manual_seed(0))
        return self.get_config(), {"pixel_values": pixels}


def made(common: ModuleType, name: str) -> type[unittest.TestCase]:
    """The class of a case, or the control, with the common tests of transformers."""
    method, kind, finished = (None, "dinov2", False) if name == CONTROL else CASES[name]
    model = Dinov2Model if method is None else METHODS[method.partition(":")[0]].model

    def set_up(self: Any) -> None:
        self.model_tester = Tester(method, kind, finished)

    body = {
        "all_model_classes": (model,),
        "setUp": set_up,
        "test_resize_embeddings": False,  # of words
        "test_model_get_set_embeddings": None,  # of words
        "_is_composite": method is not None,
    }
    return type(name, (common.ModelTesterMixin, unittest.TestCase), body)
