"""Cells of a sweep share the GPUs of a machine: one each, as long as there are some."""

import json
import os
from pathlib import Path

import pytest

from promptccd.cli.main import main
from promptccd.experiments import plan_cells
from promptccd.experiments.engines.local import VISIBLE, CellProcess, least_used, visible_devices
from promptccd.experiments.sweep_cells import devices_of
from promptccd.runs import RunDirectory
from promptccd.training.recipe import Recipe
from tests.conftest import TINY_BACKBONE


def note_device(recipe: Recipe) -> None:
    """What a cell does in these tests: it writes down what it sees."""
    folder = Path(recipe.training.output_dir)
    (folder / "device.txt").write_text(os.environ.get(VISIBLE, "all"))


@pytest.mark.parametrize(
    ("named", "devices"),
    [
        ("0,1,2", ["0", "1", "2"]),
        ("GPU-8a56, MIG-77ff", ["GPU-8a56", "MIG-77ff"]),
        ("3", ["3"]),
        ("", []),
        ("-1", []),
        ("0,-1,1", ["0"]),
    ],
)
def test_devices_are_those_that_the_sweep_sees(named, devices, monkeypatch):
    monkeypatch.setenv(VISIBLE, named)
    assert visible_devices() == devices


def test_the_next_cell_gets_the_device_with_the_fewest():
    assert least_used(["a", "b"], []) == "a"
    assert least_used(["a", "b"], ["a"]) == "b"
    assert least_used(["a", "b"], ["a", "b", "b"]) == "a"
    assert least_used([], []) == ""


@pytest.mark.parametrize(
    ("cells", "jobs", "devices", "wanted"),
    [
        (3, 1, ["0", "1"], ["0", "0", "0"]),
        (4, 2, ["0", "1", "2"], ["0", "1", "0 or 1", "0 or 1"]),
        (5, 4, ["0", "1"], ["0", "1", "0", "1", "0 or 1"]),
        (1, 8, ["GPU-a", "GPU-b"], ["GPU-a"]),
        (2, 1, [], ["", ""]),
    ],
)
def test_which_device_a_cell_will_get_is_known_before(cells, jobs, devices, wanted, recipe_values, tmp_path):
    planned = planned_cells(recipe_values, tmp_path, range(cells))
    assert list(devices_of(planned, jobs, devices).values()) == wanted


def planned_cells(values: dict, folder: Path, seeds, settings: dict | None = None):
    recipe = folder / "tiny.yaml"
    recipe.write_text(json.dumps(values | {"training": {"epochs": 1}}))
    return plan_cells([recipe], list(seeds), settings or {}, folder / "out")


def test_a_cell_waits_for_the_backbone_that_another_makes(recipe_values, tmp_path):
    described = {"backbone": None, "backbone_config": TINY_BACKBONE}
    settings = {"training.learning_rate": [0.1, 0.2]}
    cells = planned_cells(recipe_values | {"model": described}, tmp_path, (1, 2), settings)
    given = {cell.name.removeprefix("tiny-learning_rate="): cell for cell in cells}
    found = devices_of(cells, 3, ["0", "1", "2"])
    wanted = {"0.1-seed1": "0", "0.1-seed2": "1", "0.2-seed1": "0 or 1 or 2", "0.2-seed2": "0 or 1 or 2"}
    assert {name: found[cell.name] for name, cell in given.items()} == wanted
    RunDirectory(given["0.1-seed1"].path).backbone.mkdir(parents=True)
    found = devices_of(cells, 3, ["0", "1", "2"])
    wanted |= {"0.2-seed1": "2"}
    assert {name: found[cell.name] for name, cell in given.items()} == wanted


def test_a_dry_run_names_the_device_of_every_cell(recipe_values, tmp_path, monkeypatch, capsys):
    recipe = tmp_path / "tiny.yaml"
    recipe.write_text(json.dumps(recipe_values | {"training": {"epochs": 1}}))
    words = [
        "sweep",
        "--config",
        str(recipe),
        "--seeds",
        "1",
        "2",
        "3",
        "--dry-run",
        "--out",
        str(tmp_path / "out"),
    ]
    monkeypatch.setenv(VISIBLE, "3,5")
    assert main([*words, "--jobs", "2", "--json"]) == 0
    cells = json.loads(capsys.readouterr().out)
    assert [(cell["cell"], cell["device"]) for cell in cells] == [
        ("tiny-seed1", "GPU 3"), ("tiny-seed2", "GPU 5"), ("tiny-seed3", "GPU 3 or 5"),
    ]  # fmt: skip
    monkeypatch.setenv(VISIBLE, "")
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "device" in said
    assert said.count("CPU") == 3


@pytest.mark.slow
def test_the_process_of_a_cell_sees_its_device_alone(recipe_values, tmp_path, monkeypatch):
    monkeypatch.setenv(VISIBLE, "4,GPU-5,6")
    recipes = []
    for number in range(3):
        recipe_values["training"]["output_dir"] = str(tmp_path / f"cell{number}")
        recipes.append(Recipe.from_dict(recipe_values))
    cells = [
        CellProcess(recipe, note_device, device)
        for recipe, device in zip(recipes, ["4", "GPU-5", ""], strict=True)
    ]
    assert [cell.problem() for cell in cells] == [None, None, None]
    seen = [(tmp_path / f"cell{number}" / "device.txt").read_text() for number in range(3)]
    assert seen[:2] == ["4", "GPU-5"]
    assert seen[2] not in ("4", "GPU-5")
