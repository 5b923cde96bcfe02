"""Run transformers' common model tests over every method and backbone, and print them beside those of a DINOv2.

Their text comes with the source distribution of the installed version, from the package index, once. Nothing of it is
part of this package.
"""

import argparse
import importlib
import io
import logging
import subprocess
import sys
import tarfile
import unittest
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import transformers
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

CACHE = Path(".peers_cache")
NAME = "transformers_tests"

# Every method as the common tests want one: a class that makes a configuration and a batch

SIZES = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": 16, "patch_size": 4,
}  # fmt: skip
BACKBONES: dict[str, Callable[[], PreTrainedConfig]] = {
    "dinov2": lambda: Dinov2Config(**SIZES, mlp_ratio=2),
    "registers": lambda: Dinov2WithRegistersConfig(**SIZES, mlp_ratio=2, num_register_tokens=3),
    "dino": lambda: ViTConfig(**SIZES, intermediate_size=37),
    "dinov3": lambda: DINOv3ViTConfig(**SIZES, intermediate_size=37, num_register_tokens=4),
}
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
        self.seq_length = (16 // 4) ** 2 + 1 + getattr(BACKBONES[kind](), "num_register_tokens", 0)

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


def fetched() -> ModuleType:
    """Their module of common tests, fetched if it is not in the cache; ends the program where it cannot be had."""
    version = transformers.__version__
    folder = CACHE / version
    if not (folder / NAME).is_dir():
        words = ["download", "--quiet", "--no-deps", "--no-build-isolation", "--no-binary", ":all:"]
        pip = [sys.executable, "-m", "pip", *words, f"transformers=={version}", "--dest", str(folder)]
        if subprocess.run(pip).returncode:
            sys.exit(f"pip found no source of transformers {version}: run the same with a network")
        inside, new = f"transformers-{version}/tests/", folder / f"{NAME}.new"
        with tarfile.open(folder / f"transformers-{version}.tar.gz") as archive:
            for member in archive.getmembers():
                if member.isfile() and member.name.startswith(inside) and member.name.endswith(".py"):
                    member.name = member.name.removeprefix(inside)
                    archive.extract(member, new, filter="data")
        new.rename(folder / NAME)
    sys.path.insert(0, str(folder))
    while True:
        try:
            return importlib.import_module(f"{NAME}.test_modeling_common")
        except ModuleNotFoundError as error:
            if not (error.name or "").startswith(f"{NAME}."):
                sys.exit(f"their tests need {error.name}: pip install {error.name}")
            print(f"left out, since no source distribution has it: {error.name}")
            sys.modules[str(error.name)] = without(str(error.name))


def without(name: str) -> ModuleType:
    """A module whose classes have no test."""
    module = ModuleType(name)
    module.__path__ = []
    module.__getattr__ = lambda each: type(each, (), {})  # type: ignore[method-assign]
    return module


def run(common: ModuleType, name: str) -> dict[str, str]:
    """What became of each test of a case: "pass", "skip", or the last line of what went wrong."""
    suite = unittest.defaultTestLoader.loadTestsFromTestCase(made(common, name))
    found = {_called(test): "pass" for test in suite}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = unittest.TextTestRunner(io.StringIO(), verbosity=0).run(suite)
    found |= {_called(test): "skip" for test, _ in result.skipped}
    for test, said in [*result.failures, *result.errors]:
        found[_called(test)] = said.strip().splitlines()[-1][:200]
    return found


def _called(test: Any) -> str:
    """The method of a test, or of the one that a sub-test is of."""
    called: str = getattr(test, "test_case", test)._testMethodName
    return called


def sort_of(test: str, said: str, control: dict[str, str]) -> str:
    """How a result counts: pass, skip, by design, like the control, or FAIL."""
    if said in ("pass", "skip"):
        return said
    if test in BY_DESIGN:
        return "by design"
    return "FAIL" if control.get(test) in ("pass", "skip", None) else "as the control"


def main() -> int:
    """Print a line for every case, then what failed; 1 if something failed that should not."""
    parser = argparse.ArgumentParser(prog="python -m tests.peers", description=__doc__)
    parser.add_argument("cases", nargs="*", help=f"some of {', '.join(CASES)}; all by default")
    given = parser.parse_args().cases or [*CASES]
    logging.disable(logging.WARNING)  # they set keys that no configuration of ours has, and this is said
    transformers.utils.logging.disable_progress_bar()
    common, failed = fetched(), dict[str, list[str]]()
    control = run(common, CONTROL)
    for name in (CONTROL, *given):
        found = control if name == CONTROL else run(common, name)
        sorts = {test: sort_of(test, said, control) for test, said in found.items()}
        counted = ", ".join(f"{count} {sort}" for sort, count in sorted(Counter(sorts.values()).items()))
        print(f"{name:32}{counted}", flush=True)
        for test in (test for test, sort in sorts.items() if sort == "FAIL"):
            failed.setdefault(test, []).append(f"{name}: {found[test]}")
    for test, reason in BY_DESIGN.items():
        print(f"by design, {test}: {reason}.")
    for test, cases in failed.items():
        print(f"FAIL {test} in {len(cases)} cases; {cases[0]}")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
