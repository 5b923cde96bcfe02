"""The commands as a person types them, and one line for every common mistake."""

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from datasets import load_from_disk

from promptccd.cli.main import COMMANDS, main, parse
from tests.conftest import coloured_images
from tests.messages import TEXT

Values = dict[str, dict]


@pytest.fixture
def recipe(recipe_values: Values, tmp_path: Path) -> Path:
    path = tmp_path / "recipe.yaml"
    path.write_text(json.dumps(recipe_values))
    return path


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory, image_folder: Path) -> Path:
    """A folder of ten readable pictures and two files that are none."""
    folder = tmp_path_factory.mktemp("pictures")
    (folder / "below").mkdir()
    for row, record in enumerate(load_from_disk(str(image_folder)).select(range(10))):
        record["image"].save(folder / ("below" if row % 2 else ".") / f"{row}.png")
    (folder / "notes.txt").write_text("no picture")
    (folder / "broken.png").write_bytes((folder / "0.png").read_bytes()[:60])
    return folder


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    code = main([*map(str, argv)])
    out, err = capsys.readouterr()
    return code, out, err


@pytest.mark.moderate
def test_split_shows_the_stages_and_trains_nothing(recipe: Path, tmp_path: Path, capsys) -> None:
    code, out, _ = run(capsys, "split", recipe, "--json")
    summary = json.loads(out)
    assert code == 0
    assert [stage["images"] for stage in summary["stages"]] == [52, 25, 35, 38]
    assert [stage["classes"] for stage in summary["stages"]] == [2, 3, 4, 5]
    assert summary["stages"][0]["old_share"] == 1.0
    assert len(summary["fingerprint"]) == 64
    assert not (tmp_path / "run").exists()
    _, table, _ = run(capsys, "split", recipe)
    assert summary["fingerprint"] in table
    _, other, _ = run(capsys, "split", recipe, "--json", "--seed", "5")
    assert json.loads(other)["fingerprint"] != summary["fingerprint"]


@pytest.mark.slow
def test_train_evaluate_predict(recipe: Path, tmp_path: Path, pictures: Path, capsys) -> None:
    code, out, err = run(capsys, "train", "--config", recipe, "--epochs", "2")
    assert code == 0
    assert "average" in out
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert results["protocol"] == "cacc"
    assert [row["stage"] for row in results["stages"]] == [1, 2, 3]
    columns = "stage all old new num_categories num_images count_range native nmi"
    assert set(results["stages"][0]) == {*columns.split()}
    for part in ("all", "old", "new"):
        mean = np.mean([row[part] for row in results["stages"]])
        assert results["average"][part] == pytest.approx(mean, abs=1e-3)

    code, out, _ = run(capsys, "evaluate", tmp_path / "run", "--json")
    assert code == 0
    assert json.loads(out) == results
    code, out, _ = run(capsys, "evaluate", tmp_path / "run", "--protocol", "gcd", "--json")
    assert json.loads(out)["protocol"] == "gcd"
    code, out, _ = run(capsys, "evaluate", tmp_path / "run", "--baselines")
    assert "raw pixels" in out
    assert "frozen backbone" in out

    code, out, _ = run(capsys, "predict", tmp_path / "run" / "stage3", pictures, "--json")
    found = json.loads(out)
    assert code == 0
    assert len(found["predictions"]) == 10
    assert set(found["skipped"]) == {"notes.txt", "broken.png"}
    assert all(0 < item["confidence"] <= 1 for item in found["predictions"])
    assert {item["known"] for item in found["predictions"]} == {True, False}


@pytest.mark.slow
@pytest.mark.fault(47)
def test_a_run_holds_no_path_of_this_machine(recipe: Path, tmp_path: Path, capsys) -> None:
    run(capsys, "train", "--config", recipe, "--epochs", "1")
    for file in (tmp_path / "run").rglob("*"):
        if file.is_file():
            assert str(tmp_path.parent).encode() not in file.read_bytes(), file


@pytest.mark.slow
def test_a_run_finds_its_data_again_or_asks_where_it_is(
    recipe: Path, tmp_path: Path, image_folder: Path, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(capsys, "train", "--config", recipe, "--epochs", "1")
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    monkeypatch.chdir("/")
    _, out, _ = run(capsys, "evaluate", tmp_path / "run", "--json")
    assert json.loads(out) == results
    moved = tmp_path / "far" / "away" / "run"
    shutil.copytree(tmp_path / "run", moved)
    code, _, err = run(capsys, "evaluate", moved)
    assert code == 2
    assert "--dataset" in err
    _, out, _ = run(capsys, "evaluate", moved, "--dataset", image_folder, "--json")
    assert json.loads(out) == results


@pytest.mark.slow
@pytest.mark.fault(16)
def test_predictions_are_those_of_training_for_every_image(
    recipe: Path, tmp_path: Path, image_folder: Path, capsys
) -> None:
    """From disk, in predict's own way of reading images, every training-time label comes back."""
    run(capsys, "train", "--config", recipe, "--epochs", "2")
    table = load_from_disk(str(image_folder))
    assigned = json.loads((tmp_path / "run" / "stage3" / "assignments.json").read_text())
    folder = tmp_path / "all"
    folder.mkdir()
    for sample in assigned["sample_ids"]:
        table[sample]["image"].save(folder / f"{sample:04d}.png")
    _, out, _ = run(capsys, "predict", tmp_path / "run" / "stage3", folder, "--json")
    found = [item["category"] for item in json.loads(out)["predictions"]]
    assert found == assigned["category_ids"]

    argv = [
        sys.executable,
        "-m",
        "promptccd",
        "predict",
        str(tmp_path / "run" / "stage3"),
        str(folder),
        "--json",
    ]
    elsewhere = subprocess.run(argv, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert json.loads(elsewhere.stdout) == json.loads(out)  # confidences and distances too, to the last digit


def test_command_line_beats_file_beats_default(recipe: Path) -> None:
    from promptccd.cli.main import parse
    from promptccd.cli.recipe_options import recipe_from

    more = ["--epochs", "9", "--class_blocks", "3", "1", "1", "--learning_rate", "1e-3"]
    argv = ["train", "--config", str(recipe), *more]
    parsed = recipe_from(parse(argv))
    assert parsed.training.epochs == 9  # command line
    assert parsed.training.batch_size == 16  # file
    assert parsed.training.momentum == 0.9  # default
    assert parsed.data.class_blocks == [3, 1, 1]
    assert parsed.training.learning_rate == 1e-3


@pytest.mark.slow
@pytest.mark.fault(24)
def test_unreadable_images_are_left_out_and_reported(recipe_values: Values, tmp_path: Path, capsys) -> None:
    folder = tmp_path / "pictures"
    for row, record in enumerate(coloured_images(5, 30)):
        kind = folder / f"category {record['label']}"
        kind.mkdir(parents=True, exist_ok=True)
        record["image"].save(kind / f"{row:03d}.png")
        if row % 25 == 0:
            whole = (kind / f"{row:03d}.png").read_bytes()
            (kind / f"{row:03d}.png").write_bytes(whole[: len(whole) // 2])
    recipe_values["data"]["dataset"] = str(folder)
    path = tmp_path / "recipe.yaml"
    path.write_text(json.dumps(recipe_values))
    code, _, err = run(capsys, "train", "--config", path, "--epochs", "1")
    assert code == 0
    reports = json.loads((tmp_path / "run" / "images.json").read_text())["stages"]
    skipped = sum(len(report["skipped"]) for report in reports)
    assert skipped == 6
    assert all(report["used"] + len(report["skipped"]) == report["images"] for report in reports)
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert [row["num_images"] for row in results["stages"]] == [report["used"] for report in reports[1:]]


@pytest.mark.fault(24)
def test_a_data_set_that_is_mostly_unreadable_stops_with_the_reasons(
    recipe_values: Values, tmp_path: Path, capsys
) -> None:
    folder = tmp_path / "pictures"
    for row, record in enumerate(coloured_images(5, 30)):
        kind = folder / f"category {record['label']}"
        kind.mkdir(parents=True, exist_ok=True)
        record["image"].save(kind / f"{row:03d}.png")
        if row % 3:
            (kind / f"{row:03d}.png").write_bytes(b"<html>not found</html>")
    recipe_values["data"]["dataset"] = str(folder)
    path = tmp_path / "recipe.yaml"
    path.write_text(json.dumps(recipe_values))
    code, _, err = run(capsys, "train", "--config", path)
    assert code == 2
    assert "100 of 150 images in" in err
    assert "starts like HTML" in err


def test_help_fits_a_screen_and_help_all_lists_every_field(capsys, monkeypatch) -> None:
    from promptccd.training.recipe import known_fields

    monkeypatch.setenv("COLUMNS", "80")
    for name in (name for commands in COMMANDS.values() for name in commands):
        with pytest.raises(SystemExit):
            main([name, "--help-all"])
        assert capsys.readouterr().out
        with pytest.raises(SystemExit):
            main([name, "--help"])
        lines = capsys.readouterr().out.splitlines()
        assert len(lines) <= 60, (name, len(lines))
        (example,) = (line for line in lines if line.startswith(f"Example: promptccd {name} "))
        assert parse(shlex.split(example)[2:]).command
    with pytest.raises(SystemExit):
        main(["train", "--help-all"])
    shown = re.findall(r"^  --([\w.-]+)", capsys.readouterr().out, re.MULTILINE)
    fields = [name for name in known_fields()]
    assert not [each for each in fields if not {each, each.partition(".")[2]} & {*shown}]


@pytest.mark.parametrize("command", [name for commands in COMMANDS.values() for name in commands])
@pytest.mark.parametrize("empty", ["{}", "--out=", "x -- {}"])
def test_an_empty_argument_is_refused_by_every_command(command, empty, capsys, tmp_path, monkeypatch) -> None:
    """An empty path would be the current folder."""
    monkeypatch.chdir(tmp_path)
    words = [word.format("") for word in empty.split(" ")]
    assert main([command, *words]) == 2
    assert [*tmp_path.iterdir()] == []
    (line,) = capsys.readouterr().err.splitlines()
    assert TEXT["an-argument-is-empty"] in line
