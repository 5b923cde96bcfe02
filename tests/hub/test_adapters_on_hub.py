"""Low-rank adapters on the Hub: beside the weights of a stage, in a repository of their own, and where others go on."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import HfApi
from torch import Tensor
from transformers import AutoModel

from promptccd.hub import push_run
from promptccd.hub.verify import verify
from promptccd.runs import RunDirectory, load_model
from promptccd.trainer import train_recipe
from promptccd.training.recipe import Recipe
from tests.conftest import quick_recipe
from tests.hub.server import Hub

pytest.importorskip("peft", reason="peft is not installed")
WEIGHTS, OPTIONS = "adapter/adapter_model.safetensors", "adapter/adapter_config.json"


@pytest.fixture
def values(image_folder: Path, tiny_backbone: Path, hub: Hub, tmp_path: Path) -> dict[str, dict[str, Any]]:
    """Of a recipe of three stages, over a backbone that lies on the Hub."""
    hub.add("lab/plain", tiny_backbone)
    values = quick_recipe(image_folder, tiny_backbone, tmp_path / "run")
    values["model"]["backbone"] = "lab/plain"
    values["data"]["class_blocks"] = [2, 2, 1]
    values["training"] |= {"epochs": 1, "lora_rank": 2}
    return values


def trained(values: dict[str, dict[str, Any]], folder: Path, **training: object) -> RunDirectory:
    own = {**values["training"], "output_dir": str(folder), **training}
    train_recipe(Recipe.from_dict({**values, "training": own}))
    return RunDirectory(folder)


def card_of(hub: Hub, repo_id: str) -> str:
    return hub.repo(repo_id).at("main").files["README.md"].data.decode()


@pytest.mark.slow
def test_an_adapter_is_pushed_loaded_made_a_repository_and_gone_on_from(
    values: dict[str, dict[str, Any]], hub: Hub, tmp_path: Path
) -> None:
    run = trained(values, tmp_path / "run")
    push_run(run)
    assert [each.sent for each in push_run(run)] == [()] * 3
    pixels = torch.randn(2, 3, 16, 16)
    merged = load_model("user/run-stage1")(pixels, prompted=False).features

    def features_of(model: Any) -> Tensor:
        found: Tensor = model(pixels).last_hidden_state[:, 0]
        torch.testing.assert_close(found, merged, rtol=1e-5, atol=1e-5)
        return found

    snippet = re.findall(r"```python\n(.*?)```", card_of(hub, "user/run-stage1"), re.DOTALL)[2]
    names: dict[str, Any] = {}
    exec(snippet, names)
    features = features_of(names["adapted"])
    # By itself, as it lies there: it names its backbone.
    HfApi().create_repo("user/own")
    HfApi().upload_folder(repo_id="user/own", folder_path=run.stage(1) / "adapter")
    assert torch.equal(features_of(AutoModel.from_pretrained("user/own")), features)

    again = trained(values, tmp_path / "again", resume_from="user/run-stage1")
    for stage in range(3):
        assert (again.stage(stage) / WEIGHTS).read_bytes() == (run.stage(stage) / WEIGHTS).read_bytes()
    assert '"lab/plain"' in (again.stage(1) / OPTIONS).read_text()
    assert "lab/plain" not in (again.stage(2) / OPTIONS).read_text()  # who fetches stages may name any
    assert 'from_pretrained("BACKBONE")' in (again.stage(2) / "README.md").read_text()
    (again.stage(2) / WEIGHTS).write_bytes((run.stage(0) / WEIGHTS).read_bytes())
    altered = [each.problem for each in verify(str(again.stage(2))) if each.problem]
    assert altered == [f"{WEIGHTS} was altered or cut short"]
