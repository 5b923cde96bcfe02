"""Low-rank adapters in place of the last block: what learns, what is saved, and that a kill changes nothing."""

import itertools
import json
import math
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate.state import AcceleratorState
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch._dynamo.utils import counters
from transformers import AutoModel

from promptccd import GCDModel
from promptccd.data.randomness import torch_generator
from promptccd.errors import ConfigurationError, InterruptedRunError
from promptccd.methods.grow_merge import GrowMergeModel
from promptccd.models import VARIANTS
from promptccd.models.untrusted import CheckpointError
from promptccd.runs import RunEvaluation, count_parameters, load_model, train_run
from promptccd.runs.models import TrainingSpace
from promptccd.training import trainer
from promptccd.training.callbacks import CategoryDiscoveryCallback
from promptccd.training.compiling import WholeBatches
from promptccd.training.recipe import Recipe
from tests.conftest import TINY_HEAD, quick_recipe
from tests.models.finished import BACKBONES, some_methods, write_backbone
from tests.training.test_compiling import Graphs, stage_bytes, trained
from tests.training.test_pretend_gpu import MODEL, TRAINING

Values = dict[str, dict[str, Any]]


@pytest.fixture
def adapters() -> Any:
    """The module, where peft is installed."""
    pytest.importorskip("peft", reason="peft is not installed")
    from promptccd.training import adapters

    return adapters


@pytest.fixture
def values(image_folder: Path, tiny_backbone: Path, tmp_path: Path) -> Values:
    return adapting(quick_recipe(image_folder, tiny_backbone, tmp_path / "run", variant="promptccd-gcd"))


def adapting(values: Values, **training: Any) -> Values:
    values["data"]["class_blocks"] = [3, 2]
    own = {"epochs": 1, "batch_size": 16, "learning_rate": 1e-3, "lora_rank": 3, "prompt_warmup_epochs": 0}
    return {**values, "training": {**values["training"], **own, **training}}


def factors(model: nn.Module, kind: str) -> dict[str, Tensor]:
    return {name: value for name, value in model.named_parameters() if f".lora_{kind}." in name}


def by_peft(backbone: Path, stage: Path, pixels: Tensor) -> Tensor:
    """Features of a plain backbone with a stage's adapter, as people without this package compute them."""
    from peft import PeftModel

    adapted = PeftModel.from_pretrained(AutoModel.from_pretrained(backbone), stage, subfolder="adapter")
    return adapted(pixels).last_hidden_state[:, 0]


@pytest.mark.moderate
@pytest.mark.parametrize("kind", BACKBONES)
def test_merged_weights_give_the_features_of_the_adapters(adapters, kind: str, tmp_path: Path) -> None:
    model = GCDModel.from_pretrained(write_backbone(kind, tmp_path), **TINY_HEAD)
    pixels, before = (
        torch.randn(2, 3, 16, 24),
        {name: each.clone() for name, each in model.state_dict().items()},
    )
    plain = model(pixels).features
    added = adapters.Adapters(model, 3, torch_generator("test"))
    torch.testing.assert_close(model(pixels).features, plain)  # the second factors begin at zero
    learning = {name for name, each in model.named_parameters() if each.requires_grad}
    assert learning == {
        name for name, _ in model.named_parameters() if name.startswith("head.") or ".lora_" in name
    }
    products = 7 if kind == "dinov3-gated" else 6
    assert len(factors(model, "A")) == len(factors(model, "B")) == 3 * products
    for factor in factors(model, "B").values():
        factor.data.normal_(std=0.1)
    (place, first), second = next(iter(factors(model, "A").items())), next(iter(factors(model, "B").values()))
    place = place.replace("lora_A.default.weight", "weight")
    expected = before[place] + (second @ first).detach()  # scaled by 1
    adapted = model(pixels).features
    adapted.square().sum().backward()
    assert all(each.grad.any() for kind in "AB" for each in factors(model, kind).values())
    with pytest.raises(ValueError, match="has adapters"):
        model.save_pretrained(tmp_path / "saved")
    kept = adapters.StageAdapter(None, added.merge())
    model.save_pretrained(tmp_path / "saved")
    assert torch.equal(GCDModel.from_pretrained(tmp_path / "saved")(pixels).features, model(pixels).features)
    assert list(model.state_dict()) == list(before)
    torch.testing.assert_close(model.state_dict()[place], expected)
    merged = model(pixels).features
    assert (adapted - plain).abs().max() > 0.01
    torch.testing.assert_close(merged, adapted, rtol=1e-5, atol=1e-5)
    kept.save(tmp_path / "saved")
    square = pixels[..., :16]  # DINO takes no other by itself
    features = by_peft(tmp_path, tmp_path / "saved", square)
    torch.testing.assert_close(features, model(square).features, rtol=1e-5, atol=1e-5)
    changed = {name for name, each in model.state_dict().items() if not torch.equal(each, before[name])}
    assert len(changed) == 3 * products and all(name.endswith(".weight") for name in changed)
    assert {name for name, each in model.named_parameters() if each.requires_grad} == {
        name for name, _ in model.named_parameters() if name.startswith("head.") or ".layer.2." in name
        or name.startswith("backbone.layers.2.")
    }  # fmt: skip


def test_first_factors_are_drawn_by_place_and_seed(adapters, tiny_backbone: Path) -> None:
    def drawn(*position: int) -> list[Tensor]:
        model = GCDModel.from_pretrained(tiny_backbone, **TINY_HEAD)
        adapters.Adapters(model, 2, torch_generator("lora", *position))
        return [*factors(model, "A").values()]

    first = drawn(1, 0)
    assert all(map(torch.equal, first, drawn(1, 0)))
    assert not any(map(torch.equal, first, drawn(1, 1)))
    for factor in first:  # as wide as peft and PyTorch draw them
        assert 0.8 / math.sqrt(factor.shape[1]) < factor.abs().max() <= 1 / math.sqrt(factor.shape[1])


WIDE, TALL = "base_model.model.block.fc1.lora_A.weight", "base_model.model.block.fc1.lora_B.weight"
LEARNT = {WIDE: torch.full((2, 5), 1.0), TALL: torch.full((7, 2), 2.0)}


def stage_with(folder: Path, **factors: Tensor) -> Path:
    (folder / "adapter").mkdir(parents=True)
    save_file({**LEARNT, **factors}, folder / "adapter/adapter_model.safetensors")
    return folder


@pytest.mark.parametrize(
    ("factors", "learnt"),
    [
        ({"another": torch.zeros(2, 5)}, LEARNT),
        ({}, {**LEARNT, "another": torch.zeros(2, 5)}),
        ({WIDE: torch.zeros(2, 6)}, LEARNT),
        ({WIDE: torch.zeros(3, 5)}, LEARNT),
        ({TALL: torch.zeros(7, 3)}, {}),  # only passed on
        ({TALL: torch.zeros(7)}, {}),
    ],
)
def test_a_strangers_adapter_that_does_not_fit_is_not_gone_on_from(
    adapters, factors: dict[str, Tensor], learnt: dict[str, Tensor], tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match="That of stage2 is not of the products that learn here"):
        adapters.StageAdapter.after(stage_with(tmp_path / "stage2", **factors), learnt, None)


def test_there_is_none_where_the_stage_before_has_none(adapters, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"^stage0 has none: adapters alone did not train it\.$"):
        adapters.StageAdapter.after(tmp_path / "stage0", LEARNT, None)


def test_a_branch_beside_the_backbone_is_no_part_of_it(adapters, tiny_backbone: Path) -> None:
    model = GrowMergeModel.from_pretrained(tiny_backbone, **TINY_HEAD)
    assert len(adapters.Adapters(model, 2).merge()) == 2 * 6
    model.grow(torch.zeros(2, 32))
    assert adapters.Adapters(model, 2).merge() == {}


def test_what_peft_is_told_of_an_adapter(adapters, tmp_path: Path) -> None:
    before = stage_with(tmp_path / "stage0", **{WIDE: torch.full((3, 5), 3.0), TALL: torch.full((7, 3), 4.0)})
    for learnt, rank in ((LEARNT, 5), ({}, 3)):
        stage = tmp_path / f"of-rank-{rank}"
        stage.mkdir()
        adapters.StageAdapter.after(before, learnt, "team/plain").save(stage)
        assert json.loads((stage / "adapter/adapter_config.json").read_text()) == {
            "peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": ["block.fc1"],
            "base_model_name_or_path": "team/plain", "inference_mode": True,
        }  # fmt: skip
        kept = load_file(stage / "adapter/adapter_model.safetensors")
        assert torch.equal(kept[TALL] @ kept[WIDE], torch.full((7, 5), 36.0 + (4.0 if learnt else 0)))


RATES = {"promptccd-b": 0.01}  # at the others' its second stage collapses, and nothing changes


@pytest.mark.moderate
@some_methods("promptccd", called="name")
def test_adapters_learn_in_every_stage_and_what_is_saved_needs_none(
    adapters, name: str, image_folder: Path, tiny_backbone: Path, tmp_path: Path
) -> None:
    values = adapting(
        quick_recipe(image_folder, tiny_backbone, tmp_path / "run", variant=name, **MODEL.get(name, {})),
        **{"learning_rate": RATES.get(name, 0.05), **TRAINING.get(name, {})},
    )
    recipe = Recipe.from_dict(values)
    train_run(recipe)
    run = tmp_path / "run"
    states = [AutoModel.from_pretrained(tiny_backbone).state_dict()]
    states += [AutoModel.from_pretrained(run / f"stage{stage}").backbone.state_dict() for stage in (0, 1)]
    first = 1 if VARIANTS[name].shares_prefix else 0
    for stage, (before, after) in enumerate(itertools.pairwise(states)):
        changed = {key for key in before if not torch.equal(before[key], after[key])}
        grown = name == "grow-merge" and stage  # a branch learns beside the backbone, which rests
        blocks = () if grown else range(first, 2)
        assert {int(key.split("layer.")[1][0]) for key in changed} == {*blocks}
        assert len(changed) == 6 * len(blocks)
        assert all(before[key].ndim == 2 for key in changed)  # norms, biases and scales rest
    kept = {
        key: value
        for shard in (run / "stage1").glob("model*.safetensors")
        for key, value in load_file(shard).items()
    }
    assert kept
    assert not any("lora" in key or "base_layer" in key for key in kept)
    pixels = torch.randn(3, 3, 16, 16)
    plain = AutoModel.from_pretrained(tiny_backbone)(pixels).last_hidden_state[:, 0]
    for stage in (0, 1):
        merged = load_model(run / f"stage{stage}")(pixels, prompted=False).features
        by_adapter = by_peft(tiny_backbone, run / f"stage{stage}", pixels)
        torch.testing.assert_close(by_adapter, merged, rtol=1e-5, atol=1e-5)
        assert (by_adapter - plain).abs().max() > 1e-4
    of_first, of_both = (
        load_file(run / stage / "adapter/adapter_model.safetensors") for stage in ("stage0", "stage1")
    )
    for key, factor in of_both.items():
        own, *added = factor.split(3, dim=int(".lora_B." in key))
        assert torch.equal(own, of_first[key])
        assert [bool(each.any()) for each in added] == [True] * (name != "grow-merge")
    found_later = {"prototypes", "whitener", "spreads"}
    written = [*of_both.values(), *(value for key, value in kept.items() if key not in found_later)]
    if name != "grow-merge":  # whose first stage has the largest adapters, and the last the most branches
        assert sum(each.nbytes for each in written) == TrainingSpace.of(recipe).stage
    learnt = {row.part: row.unlabelled for row in count_parameters(recipe)}
    assert learnt["low-rank adapters of the backbone"] == (2 - first) * 3 * (4 * 64 + 2 * (32 + 128))
    assert "last block of the backbone" not in learnt
    assert RunEvaluation(str(run)).evaluate("cacc").stages[-1].stage == 1


class Interrupting(CategoryDiscoveryCallback):
    """Sends this process a signal after every third step."""

    steps = 0

    def on_step_end(self, args, state, control) -> None:
        self.steps += 1
        if self.steps % 3 == 0:
            os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["promptccd-gcd", "metagcd", "grow-merge"])
def test_an_interrupted_run_ends_in_the_same_bytes(
    adapters, name: str, values: Values, tmp_path: Path
) -> None:
    values["model"] |= {"variant": name, **MODEL.get(name, {})}
    expected = trained(values, tmp_path / "whole")
    callback, recipe, sittings = Interrupting(), Recipe.from_dict(values), 0
    while True:
        sittings += 1
        AcceleratorState._reset_state(reset_partial_state=True)
        try:
            train_run(recipe, callbacks=[callback])
            break
        except InterruptedRunError:
            states = [load_file(each) for each in tmp_path.glob("run/resume/stage*/*.safetensors")]
            assert any(".lora_A." in key for state in states for key in state) or not states
    assert sittings > 3
    assert stage_bytes(tmp_path / "run") == expected


@pytest.mark.slow
def test_a_killed_process_changes_no_byte_and_what_it_trained_is_used(
    adapters, values: Values, tmp_path: Path
) -> None:
    """By the commands, as a user would."""
    expected = trained(values, tmp_path / "whole")
    recipe = tmp_path / "recipe.json"
    recipe.write_text(json.dumps({**values, "training": {**values["training"], "save_minutes": 0.0}}))
    victim = Path(__file__).parents[1] / "runs" / "victim.py"
    result = subprocess.run(
        [sys.executable, str(victim), str(recipe), "4", "7"], capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    assert report["kills"] == 4
    for number in range(report["runs"]):
        assert stage_bytes(tmp_path / f"run-{number}") == expected


@pytest.mark.slow
@pytest.mark.parametrize("name", ["promptccd", "promptccd-pp"])
def test_steps_with_adapters_are_compiled_whole(
    adapters, name: str, values: Values, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values["model"] |= {"variant": name, **MODEL.get(name, {})}
    plain, graphs = trained(values, tmp_path / "plain"), Graphs()
    monkeypatch.setattr(trainer, "WholeBatches", partial(WholeBatches, backend=graphs))
    counters.clear()
    assert trained(values, tmp_path / "with", compile=True) == plain
    assert len(graphs.rows) >= 2
    assert not counters["graph_break"]


@pytest.mark.slow
def test_a_frozen_precision_is_for_blocks_that_do_not_learn(
    adapters, values: Values, caplog: pytest.LogCaptureFixture
) -> None:
    values["training"]["frozen_precision"] = "bf16"
    with pytest.raises(
        ConfigurationError, match="with lora_rank 3 every block of promptccd-gcd does: leave one"
    ):
        Recipe.from_dict(values)
    values["model"]["variant"] = "happy"  # adapters in its last block alone
    train_run(Recipe.from_dict(values))
    assert "in spite of frozen_precision" not in caplog.text


def test_who_lacks_peft_is_told_before_anything_is_written(
    values: Values, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(
        ConfigurationError, match=r"lora_rank 3 takes peft, .* pip install 'promptccd\[peft\]'"
    ):
        train_run(Recipe.from_dict(values))
    assert not (tmp_path / "run").exists()
