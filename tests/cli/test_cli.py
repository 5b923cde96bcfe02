"""The commands as a person types them, and one line for every common mistake."""

import json
import re
import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from datasets import load_from_disk

from promptccd import reports
from promptccd.cli.main import COMMANDS, main, parse
from promptccd.cli.recipe_options import plugins_in
from promptccd.cli.tables import explanation_table
from promptccd.reports.sweep import SweepResult
from promptccd.training.recipe import known_fields
from tests.conftest import coloured_images, save_by_kind, write_recipe
from tests.messages import TEXT
from tests.processes import ended

Values = dict[str, dict]


def test_a_report_is_about_seeds_or_compares(monkeypatch: pytest.MonkeyPatch, run) -> None:
    monkeypatch.setattr(reports, "write_run_comparison", lambda *given: Path("of", *given[0], given[1]))
    monkeypatch.setattr(reports, "write_report", lambda *given, **more: [*given, *more.values()])
    words = ["report", "a", "b", "--out", "here"]
    assert run(*words, "--compare")[1] == "of/a/b/here\n"
    own = "--samples 3 --baselines --dataset images --num_workers 2 --image_cache off"
    assert run(*words, *own.split())[1] == "[['a', 'b'], 'here', 3, True, 'images', 2, 'off']\n"
    assert json.loads(run(*words, "--json")[1])["files"] == ["index.html", "report.csv", "report.json"]


@pytest.mark.parametrize(
    ("words", "engine", "jobs"),
    [
        *(
            ("", None, 1),
            ("--jobs 3 --baselines", None, 3),
            ("--engine slurm", (Path("out"), {}, "slurm"), 2),
        ),
        ("--engine slurm --slurm gres=gpu:1 cluster=local", (Path("out"), {"gres": "gpu:1"}, "local"), 2),
        *(("--engine ray", (0.0,), 2), ("--engine ray --cell-gpus 0.5 --jobs 1", (0.5,), 1)),
    ],
)
def test_cells_go_to_the_engine_that_is_asked_for(words, engine, jobs, monkeypatch, run, tmp_path) -> None:
    def result(cells, out, **given):
        assert (given["engine"], given["jobs"], given["baselines"]) == (engine, jobs, "--baselines" in words)
        return SweepResult(cells, {}, {each.name: "new" for each in cells}, False)

    monkeypatch.chdir(tmp_path)
    for name in ("SlurmEngine", "RayEngine"):
        monkeypatch.setattr(reports, name, lambda *given: given)
    monkeypatch.setattr(reports, "run_sweep", result)
    code, out, _ = run(
        "sweep", "--config", "promptccd-digits", "--seeds", 1, 2, "--out", "out", *words.split()
    )
    lines = [f"not finished: promptccd-digits-seed{seed}: new" for seed in (1, 2)]
    assert (code, out.splitlines()) == (0, lines)
    assert Path("out/table.md").read_text() == "\n\n".join(lines) + "\n"


@pytest.mark.moderate
def test_a_run_finds_its_data_again_or_asks_where_it_is(
    trained_run: Path, tmp_path: Path, image_folder: Path, run, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = json.loads((trained_run / "results.json").read_text())
    columns = "stage all old new num_categories num_images count_range native nmi"
    assert (results["protocol"], set(results["stages"][0])) == ("cacc", {*columns.split()})
    monkeypatch.chdir("/")
    assert json.loads(run("evaluate", trained_run, "--json")[1]) == results
    moved = shutil.copytree(trained_run, tmp_path / "far" / "away" / "run")
    code, _, err = run("evaluate", moved)
    assert code == 2
    assert "--dataset" in err
    assert json.loads(run("evaluate", moved, "--dataset", image_folder, "--json")[1]) == results
    assert run("verify", moved)[0] == 1 and run("verify", moved, "--dataset", image_folder)[0] == 0


@pytest.mark.slow
@pytest.mark.fault(16)
def test_predictions_are_those_of_training_for_every_image(
    trained_run: Path, tmp_path: Path, image_folder: Path, run
) -> None:
    """From disk, in predict's own way of reading images, every training-time label comes back."""
    stage, folder = trained_run / "stage3", tmp_path / "all"
    table = load_from_disk(str(image_folder))
    assigned = json.loads((stage / "assignments.json").read_text())
    folder.mkdir()
    for sample in assigned["sample_ids"]:
        table[sample]["image"].save(folder / f"{sample:04d}.png")
    (folder / "notes.txt").write_text("no picture")
    words = ["predict", str(stage), str(folder), "--json"]
    found = json.loads(run(*words)[1])
    assert [item["category"] for item in found["predictions"]] == assigned["category_ids"]
    assert list(found["skipped"]) == ["notes.txt"]
    elsewhere = ended(sys.executable, "-m", "promptccd", *words, cwd=tmp_path)
    assert json.loads(elsewhere.stdout) == found  # confidences and distances too, to the last digit


def spoilt_recipe(values: Values, folder: Path, spoilt: Callable[[int, bytes], bytes]) -> Path:
    """A recipe of 150 pictures in folders, whose files a function of their number changes."""
    for picture in save_by_kind(coloured_images(5, 30), folder / "pictures").rglob("*.png"):
        picture.write_bytes(spoilt(int(picture.stem), picture.read_bytes()))
    values["data"]["dataset"] = str(folder / "pictures")
    return write_recipe(folder / "recipe.yaml", values)


@pytest.mark.slow
@pytest.mark.fault(24)
def test_unreadable_images_are_left_out_and_reported(recipe_values: Values, tmp_path: Path, run) -> None:
    recipe = spoilt_recipe(
        recipe_values, tmp_path, lambda row, whole: whole if row % 25 else whole[: len(whole) // 2]
    )
    assert run("train", "--config", recipe, "--epochs", "1")[0] == 0
    reports = json.loads((tmp_path / "run" / "images.json").read_text())["stages"]
    assert sum(len(report["skipped"]) for report in reports) == 6
    assert all(report["used"] + len(report["skipped"]) == report["images"] for report in reports)
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert [row["num_images"] for row in results["stages"]] == [report["used"] for report in reports[1:]]


@pytest.mark.fault(24)
def test_a_data_set_that_is_mostly_unreadable_stops_with_the_reasons(
    recipe_values: Values, tmp_path: Path, run
) -> None:
    recipe = spoilt_recipe(
        recipe_values, tmp_path, lambda row, whole: b"<html>not found</html>" if row % 3 else whole
    )
    code, _, err = run("train", "--config", recipe)
    assert code == 2
    assert TEXT["100-of-150-images-in"] in err
    assert "starts like HTML" in err


def test_help_fits_a_screen_and_help_all_lists_every_field(capsys, monkeypatch) -> None:
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
    assert not [each for each in known_fields() if not {each, each.partition(".")[2]} & {*shown}]


def test_a_plugin_is_found_behind_an_equals_sign_and_as_the_next_word() -> None:
    assert plugins_in(["--plugin=own.py", "x", "--plugin", "other.py"]) == ["own.py", "other.py"]


def test_an_explanation_lists_parts_and_prompts() -> None:
    prompts = [{"prompt": "prompt 3", "times": 2, "best_score": 0.25}]
    found = {"name": "owl", "confidence": 0.5, "patches_per_part": {"head": 3, "wing": 1}, "prompts": prompts}
    said, parts, *_, row = explanation_table(found).splitlines()
    assert (said, parts) == ("owl, confidence 0.500", "patches per part: head: 3, wing: 1")
    assert row.split() == ["prompt", "3", "2", "0.25"]


@pytest.mark.parametrize("command", [name for commands in COMMANDS.values() for name in commands])
@pytest.mark.parametrize("empty", ["{}", "--out=", "x -- {}"])
def test_an_empty_argument_is_refused_by_every_command(command, empty, run, tmp_path, monkeypatch) -> None:
    """An empty path would be the current folder."""
    monkeypatch.chdir(tmp_path)
    code, _, err = run(command, *(word.format("") for word in empty.split(" ")))
    assert code == 2
    assert [*tmp_path.iterdir()] == []
    (line,) = err.splitlines()
    assert TEXT["an-argument-is-empty"] in line
