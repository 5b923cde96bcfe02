"""Run transformers' common model tests over every method and backbone, without those that a DINOv2 fails too.

Their text comes with the source distribution of the installed version, from the package index, once. Nothing of it is
part of this package.
"""

import argparse
import importlib
import logging
import subprocess
import sys
import tarfile
import unittest
import warnings
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import transformers
from transformers import Dinov2Model, PreTrainedConfig

from tests.conftest import TINY_HEAD
from tests.models.finished import BACKBONES, METHODS, model_of, stage_of

CACHE = Path(".peers_cache")
NAME = "transformers_tests"
PROMPTED = ("promptccd", "promptccd-b", "promptccd-b-dualprompt", "promptccd-pp")
CONTROL = "Dinov2Model"
# Name of a class, the method, the backbone, and whether a stage is finished.
CASES = {
    **{f"{name} finished": (name, "dinov2", True) for name in METHODS},
    **{f"{name} fresh": (name, "dinov2", False) for name in ("promptccd", "promptccd-pp", "grow-merge", "simgcd")},
    **{f"{name} on {kind}": (name, kind, True) for kind in ("registers", "dino", "dinov3") for name in PROMPTED},
}  # fmt: skip

# What fails, and rightly so, or does not apply: the reason, and how names of tests begin.
BY_DESIGN = {
    "a checkpoint that is not whole is refused, not filled up": ["test_model_weights_reload_no_missing"],
    "without a checkpoint a model is made from its configuration": ["test_from_pretrained_no_checkpoint"],
    "in the last block [CLS] alone attends, by a function of ours": ["test_attn_implementation_composite"],
    "a forward returns features; `model.backbone` returns hidden states and attentions": [
        *("test_attention_outputs", "test_can_capture", "test_capture", "test_eager_matches_sdpa"),
        *("test_hidden_states", "test_model_outputs_equivalence", "test_retain_grad_hidden_states"),
    ],
}


class Tester:
    """What transformers calls a model tester."""

    image_size, patch_size, num_channels, batch_size = 16, 8, 3, 5
    hidden_size, num_hidden_layers, num_attention_heads = 32, 3, 4
    num_masks, mask_length = 2, 4  # of a control that takes masks
    is_training = False  # a forward has no loss: objectives hold it
    attn_implementation = "eager"

    def __init__(self, method: str | None, kind: str, finished: bool):
        self.method, self.kind, self.finished = method, kind, finished
        self.seq_length = (16 // 8) ** 2 + 1 + getattr(BACKBONES[kind][1](), "num_register_tokens", 0)

    def get_config(self) -> PreTrainedConfig:
        """A configuration of the method; of the backbone alone for the control."""
        if self.method is None:
            return BACKBONES[self.kind][1]()
        config = stage_of(self.method, self.kind).config
        if not self.finished:
            return type(config)(vision_config=config.vision_config, **TINY_HEAD)
        if self.method == "promptccd":
            config.prompts_at_test = True
        return config

    def prepare_config_and_inputs_for_common(self) -> tuple[PreTrainedConfig, dict[str, torch.Tensor]]:
        """The configuration, and a batch."""
        pixels = torch.rand(self.batch_size, 3, 16, 16, generator=torch.Generator().manual_seed(0))
        return self.get_config(), {"pixel_values": pixels}


def made(common: ModuleType, name: str, without: Iterable[str] = ()) -> unittest.TestSuite:
    """The common tests of transformers of a case, or of the control."""
    method, kind, finished = (None, "dinov2", False) if name == CONTROL else CASES[name]
    model = Dinov2Model if method is None else type(model_of(method))

    def set_up(self: Any) -> None:
        self.model_tester = Tester(method, kind, finished)

    body = {
        "all_model_classes": (model,),
        "setUp": set_up,
        "test_resize_embeddings": False,  # of words
        "test_model_get_set_embeddings": None,  # of words
        "_is_composite": method is not None,
        **{test: None for test in dir(common.ModelTesterMixin) if test.startswith(tuple(without))},
    }
    case = type(name, (common.ModelTesterMixin, unittest.TestCase), body)
    return unittest.defaultTestLoader.loadTestsFromTestCase(case)


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
            sys.modules[str(error.name)] = empty_module(str(error.name))


def empty_module(name: str) -> ModuleType:
    """A module whose classes have no test."""
    module = ModuleType(name)
    module.__path__ = []
    module.__getattr__ = lambda each: type(each, (), {})  # type: ignore[method-assign]
    return module


def main() -> int:
    """Run every case; 1 if something failed that should not."""
    parser = argparse.ArgumentParser(prog="python -m tests.peers", description=__doc__)
    parser.add_argument("cases", nargs="*", help=f"some of {', '.join(CASES)}; all by default")
    given = parser.parse_args().cases or [*CASES]
    logging.disable(logging.WARNING)  # they set keys that no configuration of ours has, and this is said
    warnings.simplefilter("ignore")
    transformers.utils.logging.disable_progress_bar()
    common, control = fetched(), unittest.TestResult()
    made(common, CONTROL).run(control)
    alike = {str(test).partition(" ")[0] for test, _ in [*control.failures, *control.errors]}
    print(f"{CONTROL} fails {len(alike)} of {control.testsRun}: {sorted(alike)}. By design: {BY_DESIGN}")
    passed = True
    for name in given:
        print(f"\n{name}", flush=True)
        suite = made(common, name, [*alike, *chain(*BY_DESIGN.values())])
        passed &= (
            unittest.TextTestRunner(sys.stdout, verbosity=0, warnings="ignore").run(suite).wasSuccessful()
        )
    return int(not passed)


if __name__ == "__main__":
    raise SystemExit(main())
