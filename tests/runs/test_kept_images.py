"""A run on images that are kept: the same bytes, and nothing is decoded again."""

import json
from dataclasses import replace
from pathlib import Path

import datasets
import pytest

from promptccd.cli.main import main
from promptccd.reports.sweep import ProtocolScoring, score_baselines
from promptccd.runs import RunDirectory, RunEvaluation, stage_stream, train_run
from promptccd.training.recipe import Recipe
from tests.conftest import quick_recipe


def recipe_at(
    place: str, image_folder: Path, backbone_folder: Path, folder: Path, **training: object
) -> Recipe:
    recipe = Recipe.from_dict(quick_recipe(image_folder, backbone_folder, folder))
    changed = replace(recipe.training, image_cache=place, epochs=1, **training)
    return replace(recipe, training=changed)


def bytes_of(run: Path) -> list[bytes]:
    return [(run / f"stage{stage}" / "model-00002-of-00002.safetensors").read_bytes() for stage in range(4)]


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
    assert bytes_of(tmp_path / "first") == bytes_of(tmp_path / "second") == bytes_of(tmp_path / "without")
    recorded = [RunDirectory(tmp_path / name).recipe.training.image_cache for name in ("first", "without")]
    assert recorded == ["auto", "off"], "no folder of this machine"
    assert cache not in (tmp_path / "first" / "manifest.json").read_text()
    decoded.clear()
    train_run(recipe_at("off", image_folder, tiny_backbone, tmp_path / "first"), stages=stages)
    assert len(decoded) == 0, "a finished run reads nothing, and may be asked with another place"


@pytest.mark.slow
def test_a_folder_in_a_record_is_not_written_to(
    image_folder: Path, tiny_backbone: Path, tmp_path: Path
) -> None:
    recipe = recipe_at("off", image_folder, tiny_backbone, tmp_path / "run")
    train_run(recipe)
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    manifest["recipe"]["training"]["image_cache"] = str(tmp_path / "of a stranger")
    (tmp_path / "run" / "manifest.json").write_text(json.dumps(manifest))
    assert RunDirectory(tmp_path / "run").recipe.training.image_cache == "auto"
    RunEvaluation(tmp_path / "run")
    assert not (tmp_path / "of a stranger").exists()


@pytest.mark.slow
def test_whoever_reads_a_run_again_takes_the_copies_that_it_is_told_of(
    image_folder: Path,
    tiny_backbone: Path,
    tmp_path: Path,
    decoded: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "usual")
    cache, run = str(tmp_path / "cache"), str(tmp_path / "run")
    recipe = recipe_at(cache, image_folder, tiny_backbone, tmp_path / "run")
    train_run(recipe)
    decoded.clear()
    stage_stream(recipe.data, 1)
    to_cut = len(decoded)  # by whoever reads it again: some images tell whether the data is the same
    words = ["--image_cache", cache]
    ProtocolScoring("gcd")(recipe)
    score_baselines(recipe)
    assert main(["evaluate", run, *words]) == 0
    assert main(["report", run, "--out", str(tmp_path / "page"), "--no-map", "--samples", "0", *words]) == 0
    assert len(decoded) == 5 * to_cut + 2 * 150, "raw pixels are those of the files: their size, then they"
    assert main(["evaluate", run, "--image_cache", "off"]) == 0
    assert len(decoded) == 6 * to_cut + 3 * 150, "the run records auto"
    assert not (tmp_path / "usual" / "promptccd").exists()
