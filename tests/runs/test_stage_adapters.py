"""What low-rank adapters leave beside the weights of a stage, what its card says of it, and how much a disk needs."""

import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from promptccd.runs import RunDirectory, load_model, train_run
from promptccd.runs.card import adapter_usage
from promptccd.runs.stage import stage_adapter
from promptccd.runs.start import TrainingSpace
from promptccd.storage import problems_of
from promptccd.training.recipe import Recipe
from tests.conftest import quick_recipe

FIRST, SECOND = (f"base_model.model.block.fc1.lora_{factor}.weight" for factor in "AB")
LEARNT = {FIRST: torch.ones(2, 5), SECOND: torch.ones(7, 2)}


@pytest.fixture
def recipe(image_folder: Path, tiny_backbone: Path, tmp_path: Path) -> Recipe:
    values = quick_recipe(image_folder, tiny_backbone, tmp_path / "run", variant="promptccd-gcd")
    values["data"]["class_blocks"] = [3, 2]
    values["training"] |= {"epochs": 1, "batch_size": 64, "lora_rank": 2}
    return Recipe.from_dict(values)


@pytest.mark.moderate
def test_a_stage_holds_its_adapter_and_its_card_loads_it(
    recipe: Recipe, tiny_backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("peft", reason="peft is not installed")
    train_run(recipe)
    for stage in (0, 1):
        folder = tmp_path / "run" / f"stage{stage}"
        assert problems_of(folder) == []
        factors = load_file(folder / "adapter/adapter_model.safetensors")
        assert {min(each.shape) for each in factors.values()} == {2 * (stage + 1)}
    shutil.copytree(folder, tmp_path / "run-stage1")
    shutil.copytree(tiny_backbone, tmp_path / "BACKBONE")
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    exec(re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL)[2], names)
    pixels = torch.randn(2, 3, 16, 16)
    found, merged = names["adapted"](pixels).last_hidden_state[:, 0], load_model(folder)(pixels).features
    torch.testing.assert_close(found, merged, rtol=1e-5, atol=1e-5)
    assert '\nplain = AutoModel.from_pretrained("team/plain")\n' in adapter_usage("run-stage1", "team/plain")


def test_the_plain_backbone_is_named_unless_stages_of_others_may_have_begun_with_another(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = RunDirectory(tmp_path / "run")
    first = stage_adapter(run, 0, LEARNT, "team/plain")
    assert (first.plain, first.factors) == ("team/plain", LEARNT)
    assert stage_adapter(run, 1, LEARNT, "team/plain") is None
    assert caplog.messages == [
        "Stage 1 keeps no adapter beside its weights: stage0 has none: adapters alone did not train it."
    ]
    run.stage(0).mkdir(parents=True)
    first.save(run.stage(0))
    (run.stage(0) / "adapter/adapter_model.safetensors").write_bytes(b"no header")
    assert stage_adapter(run, 1, LEARNT, "team/plain") is None
    assert "Stage 1 keeps no adapter beside its weights: adapter_model.safetensors of " in caplog.messages[1]
    shutil.rmtree(run.stage(0) / "adapter")
    first.save(run.stage(0))
    both = stage_adapter(run, 1, LEARNT, "team/plain")
    assert (both.plain, both.factors[FIRST].shape, both.factors[SECOND].shape) == (
        "team/plain",
        (4, 5),
        (7, 4),
    )
    run.note_source(0, "lab/sent-stage0@1")
    assert stage_adapter(run, 1, LEARNT, "team/plain").plain is None


def test_room_is_kept_for_the_adapters_of_all_stages_so_far(recipe: Recipe) -> None:
    pytest.importorskip("peft", reason="peft is not installed")

    def of(rank: int | None) -> int:
        space = TrainingSpace.of(
            replace(
                recipe,
                data=replace(recipe.data, class_blocks=[3, 1, 1]),
                training=replace(recipe.training, lora_rank=rank),
            )
        )
        return space.stage + space.frozen

    of_one_rank = 2 * 4 * (4 * 64 + 2 * (32 + 128))  # blocks, bytes, and factors of four products and two
    assert of(5) == of(None) + 3 * 5 * of_one_rank
