"""A run on images that are kept: the same bytes, and nothing is decoded again."""

import json
import shutil
from pathlib import Path

import pytest

from promptccd.runs import RunDirectory, RunEvaluation, stage_stream, train_run
from promptccd.training.recipe import Recipe
from tests.conftest import quick_recipe
from tests.runs.test_resume import stage_hashes


def recipe_at(place: str, image_folder: Path, backbone_folder: Path, folder: Path) -> Recipe:
    values = quick_recipe(image_folder, backbone_folder, folder)
    values["training"] |= {"image_cache": place, "epochs": 1}
    return Recipe.from_dict(values)


@pytest.mark.slow
def test_runs_share_what_is_kept_and_end_in_the_same_bytes(
    image_folder: Path, tiny_backbone: Path, tmp_path: Path, decoded: list[int]
) -> None:
    counts = []
    cache = str(tmp_path / "cache")
    for name, place in (("first", cache), ("second", cache), ("without", "off")):
        recipe = recipe_at(place, image_folder, tiny_backbone, tmp_path / name)
        stages = stage_stream(recipe.data, 1)
        decoded.clear()
        train_run(recipe, stages=stages)
        counts.append(len(decoded))
    number = sum(map(len, stages))
    assert counts == [number, 0, number]
    first, *others = (stage_hashes(tmp_path / name) for name in ("first", "second", "without"))
    assert [first] * 2 == others
    recorded = [RunDirectory(tmp_path / name).recipe.training.image_cache for name in ("first", "without")]
    assert recorded == ["auto", "off"], "no folder of this machine"
    assert cache not in (tmp_path / "first" / "manifest.json").read_text()
    decoded.clear()
    train_run(recipe_at("off", image_folder, tiny_backbone, tmp_path / "first"), stages=stages)
    assert len(decoded) == 0, "a finished run reads nothing, and may be asked with another place"


def test_a_folder_in_a_record_is_not_written_to(trained_run: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(trained_run, tmp_path / "run"))
    manifest = json.loads((run / "manifest.json").read_text())
    manifest["recipe"]["training"]["image_cache"] = str(tmp_path / "of a stranger")
    (run / "manifest.json").write_text(json.dumps(manifest))
    assert RunDirectory(run).recipe.training.image_cache == "auto"
    RunEvaluation(str(run), dataset=str(RunDirectory(trained_run).recipe.data.dataset))
    assert not (tmp_path / "of a stranger").exists()
