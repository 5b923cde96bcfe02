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
from tests.data.test_cached import folder_of


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


@pytest.mark.slow
def test_copies_are_made_beforehand(
    image_folder: Path,
    tiny_backbone: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    decoded: list[int],
) -> None:
    values = quick_recipe(image_folder, tiny_backbone, tmp_path / "run")
    (tmp_path / "recipe.yaml").write_text(json.dumps(values))
    words = ["data", "cache", str(tmp_path / "recipe.yaml"), "--image_cache", str(tmp_path / "cache")]
    assert main([*words, "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made == {"folder": str(tmp_path / "cache"), "images": 150, "bytes": 150 * 3 * 18 * 18}
    assert main(words) == 0
    assert capsys.readouterr().out == f"150 images, 0.1 MB, in {tmp_path / 'cache'}\n"
    recipe = recipe_at(str(tmp_path / "cache"), image_folder, tiny_backbone, tmp_path / "run")
    stages = stage_stream(recipe.data, 1)
    decoded.clear()
    train_run(recipe, stages=stages)
    assert decoded == []
    assert main([*words[:3], "--image_cache", "off"]) == 2
    assert "image_cache is off" in capsys.readouterr().err
    (tmp_path / "a file").write_text("")
    assert main([*words[:3], "--image_cache", str(tmp_path / "a file")]) == 3


def test_whoever_makes_copies_beforehand_is_told_what_a_training_would_be_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    data = folder_of(tmp_path / "data", 12)
    broken = min(each for each in data.rglob("*.*") if each.is_file())
    broken.write_bytes(broken.read_bytes()[:60])
    words = ["data", "cache", str(data), "--class_blocks", "1", "1", "--image_cache", str(tmp_path / "cache")]
    for _ in range(2):
        caplog.clear()
        assert main(words) == 0
        assert "images cannot be read and are left out" in caplog.text
        assert broken.name in caplog.text
        assert capsys.readouterr().out.startswith("12 images, ")
