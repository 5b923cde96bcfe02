"""transformers' Trainer and peft, by the blocks of docs/how_to/transformers.md, over finished stages."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from transformers import AutoModel

from promptccd import GCDModel
from promptccd.models import CategoryDiscoveryModel
from promptccd.pipeline import CategoryDiscoveryPipeline
from tests.conftest import TINY_HEAD
from tests.docs.pages import blocks, section
from tests.messages import TEXT
from tests.models.finished import some_methods, write_backbone, write_stage

of_methods = some_methods("promptccd")
STAGE = "runs/promptccd-digits/stage0"


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], dict[str, Any]]:
    """What the first block leaves, over a stage of a method."""

    def run(method: str) -> dict[str, Any]:
        monkeypatch.chdir(tmp_path)
        write_stage(method, tmp_path / STAGE)
        labels = np.arange(16) % 4
        drawn = np.random.default_rng(0).normal(size=(16, 3, 16, 16)) * 0.3 + labels[:, None, None, None]
        values = {"pixel_values": drawn.astype("float32").tolist(), "labels": labels.tolist()}
        names: dict[str, Any] = {"images": Dataset.from_dict(values).with_format("torch")}
        torch.manual_seed(0)
        exec(written()[0], names)
        return names

    return run


def written() -> list[str]:
    """The two blocks; a run of a test is said nowhere and stays on the CPU."""
    found = blocks(section("Trainer and adapters", "docs/how_to/transformers.md"), "python")
    assert len(found) == 2
    return [each.replace('"out",', '"out", report_to=[], use_cpu=True, disable_tqdm=True,') for each in found]


def learnt(model: CategoryDiscoveryModel, before: CategoryDiscoveryModel) -> set[str]:
    """Parts whose values changed."""
    other = dict(before.named_parameters())
    return {name for name, value in model.named_parameters() if not torch.equal(value, other[name])}


@pytest.mark.slow
@of_methods
def test_a_trainer_trains_saves_and_resumes(page, method: str) -> None:
    names = page(method)
    before, tuned = AutoModel.from_pretrained(STAGE), names["tuned"]
    changed = learnt(tuned, before)
    assert changed and all(dict(before.named_parameters())[name].requires_grad for name in changed)
    pixels = torch.ones(2, 3, 16, 16)
    trained = names["trainer"].model.eval()
    checkpoint = "out/checkpoint-2"
    for place in ("tuned", checkpoint):
        for load in (AutoModel.from_pretrained, type(before).from_pretrained):
            assert torch.equal(load(place)(pixels).features, trained(pixels).features)
    for place in ("tuned", checkpoint):
        CategoryDiscoveryPipeline.from_pretrained(place)
    again = names["Contrastive"](
        AutoModel.from_pretrained(STAGE), names["arguments"], train_dataset=names["images"]
    )
    again.args.num_train_epochs = 2
    assert again.train(resume_from_checkpoint=checkpoint).global_step == 4


@pytest.mark.slow
@of_methods
def test_adapters_are_trained_kept_and_merged(page, method: str) -> None:
    pytest.importorskip("peft", reason="peft is not installed")
    names = page(method)
    exec(written()[1], names)
    CategoryDiscoveryPipeline.from_pretrained("merged")
    adapters = {name: value for name, value in names["adapted"].named_parameters() if "lora_B" in name}
    assert all(value.detach().any() for value in adapters.values()) or method == "grow-merge"
    before, merged = AutoModel.from_pretrained(STAGE), AutoModel.from_pretrained("merged")
    changed = learnt(merged, before)
    assert any("layer.0.attention" in name for name in changed) and (
        any("head" in name for name in changed) or not [*before.head.parameters()]
    )
    assert all("_proj.weight" in name or name.startswith("head.") for name in changed)
    pixels = torch.ones(2, 3, 16, 16)
    with torch.no_grad():
        one, other = (
            each(pixels, prompted=True).features for each in (names["adapted"].eval(), merged.eval())
        )
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_a_model_whose_weights_adapters_hold_is_not_saved_as_one(tmp_path: Path) -> None:
    """Those that transformers itself added are saved beside the model, as it does."""
    peft = pytest.importorskip("peft", reason="peft is not installed")
    bare, options = write_backbone("dinov2", tmp_path / "bare"), peft.LoraConfig(target_modules=["q_proj"])
    adapted = GCDModel.from_pretrained(bare, **TINY_HEAD)
    peft.get_peft_model(adapted, options)
    with pytest.raises(ValueError, match=TEXT["has-adapters-and-its-checkpoint-could"]):
        adapted.save_pretrained(tmp_path / "saved")
    assert not (tmp_path / "saved").exists()
    own = GCDModel.from_pretrained(bare, **TINY_HEAD)
    own.add_adapter(options)
    own.save_pretrained(tmp_path / "saved")
    assert {each.name for each in (tmp_path / "saved").glob("adapter_*")} == {
        "adapter_config.json", "adapter_model.safetensors",
    }  # fmt: skip
