"""Tables of the paper: laid out as it prints them, planned whole, and filled by real small runs."""

import json
import math
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from promptccd.cli.main import main, parse
from promptccd.cli.sweep_commands import _table_plan
from promptccd.evaluation import PROTOCOLS, ContinualScore, StageScore, published_rows
from promptccd.reports import costs
from promptccd.reports.paper_tables import (
    TableEntry,
    TablePart,
    TablePlan,
    layout,
    paper_tables,
    printed_entries,
    remarks,
    table_rows,
)
from tests.conftest import TINY_BACKBONE, TINY_HEAD, coloured_images
from tests.kept import GOLDEN
from tests.messages import TEXT
from tests.test_golden_numbers import require_kept

RECIPES = Path(__file__).parents[2] / "hub_configs"
TABLES = paper_tables()
PLANS = json.loads((GOLDEN / "reports.json").read_text())["plans"]


def plan(out: Path, **options: Any) -> TablePlan:
    wanted = {"recipes": RECIPES, "seeds": [1], "out": out, "backbone": "dino", "look": False}
    return TablePlan(**{**wanted, **options})


@pytest.mark.parametrize("backbone", ["dino", "dinov2"])
@pytest.mark.parametrize("name", TABLES)
def test_rows_and_columns_are_those_that_the_paper_prints(name: str, backbone: str) -> None:
    for part in TABLES[name]:
        assert part.protocol in PROTOCOLS
        entries = printed_entries(part, backbone)
        if not part.label:
            assert len(entries) == {"spectrum": 3 * 7, "main": 2 * 4}[name]
            assert all(math.isnan(value) for entry in entries for value in entry.printed.values())
            continue
        rows = published_rows(
            protocol=part.published, backbone=backbone, setting=part.setting, table=part.label
        )
        listed = {(entry.method, entry.benchmark) for entry in entries}
        assert set(zip(rows["method"], rows["benchmark"], strict=True)) == listed
        assert all(0 <= value <= 100 for entry in entries for value in entry.printed.values())


def test_the_averages_are_those_of_the_specification() -> None:
    for name, index, backbone, place, printed in (
        ("main", 0, "dino", ("orca", "cifar100"), (60.91, 66.61, 58.33)),
        ("main", 0, "dinov2", ("happy", "caltech101"), (88.27, 90.98, 87.69)),
        ("ssb", 0, "dino", ("simgcd-replay", "cub"), (42.08, 72.65, 31.92)),
        ("unknown", 0, "dino", ("pa-cgcd", "cub"), (52.27, 76.38, 44.24)),
        ("unknown", 1, "dino", ("metagcd", "tinyimagenet"), (59.52, 63.18, 56.34)),
        ("inductive", 0, "dino", ("grow-merge", "cifar100"), (55.85, 65.19, 52.34)),
        ("gcd", 0, "dino", ("promptccd-gcd", "imagenet100"), (64.51, 81.20, 60.26)),
    ):
        entries = printed_entries(TABLES[name][index], backbone)
        (entry,) = [each for each in entries if (each.method, each.benchmark) == place]
        assert tuple(entry.printed.values()) == printed


def record(method: str, benchmark: str, own: tuple, paper: tuple, mark: str = "") -> dict[str, Any]:
    values = {"part": "p", "method": method, "benchmark": benchmark, "runs": 2, "mark": mark}
    for part, mean, printed in zip(("all", "old", "new"), own, paper, strict=True):
        difference = {f"{part}_paper": printed, f"{part}_difference": mean - printed}
        values |= {part: mean, f"{part}_std": 0.25, **difference}
    return values


def test_layout_of_hand_made_records() -> None:
    none = (math.nan, math.nan, math.nan)
    records = [
        record("a", "one", (50.0, 60.0, 40.0), (48.5, 61.25, 40.0), "!"),
        record("a", "two", none, (70.0, 80.0, 60.0), "i"),
        record("b", "one", none, none),
        record("b", "two", (1.0, 2.0, 3.0), none),
        record("b, k-means", "two", (4.0, 5.0, 6.0), none),
    ]
    table = pd.DataFrame([*records, {**records[0], "part": "earlier in the alphabet"}])
    grids = layout(table)
    assert [*grids] == ["p", TEXT["earlier-in-the-alphabet"]]
    header, rows = grids["p"]
    assert header == ["", "one All", "Old", "New", "two All", "Old", "New"]
    absent = "\N{EN DASH}"
    assert rows == [
        ["a", "50.0 ± 0.2", "60.0 ± 0.2", "40.0 ± 0.2", absent, absent, absent],
        ["a, paper", "48.50 !", "61.25", "40.00", "70.00 i", "80.00", "60.00"],
        ["a, difference", "+1.5", "\N{MINUS SIGN}1.2", "+0.0", absent, absent, absent],
        ["b", absent, absent, absent, "1.0 ± 0.2", "2.0 ± 0.2", "3.0 ± 0.2"],
        ["b, k-means", absent, absent, absent, "4.0 ± 0.2", "5.0 ± 0.2", "6.0 ± 0.2"],
    ]
    part = TablePart(title="p", note="note")
    answers: Any = SimpleNamespace(predicts_natively=True)
    entries = [
        TableEntry(part, "a", "one", {}, notes=["why"]),
        TableEntry(part, "b", "one", {}, "", [answers]),
    ]
    said = remarks(entries, set(table["mark"]))
    assert TEXT["native-prediction-for-b-k-means"] in said[0]
    assert said[1:3] == ["why", "note"]
    assert [line[0] for line in said[3:]] == ["!", "i"]


@pytest.mark.parametrize("name", PLANS)
def test_cells_of_a_table_are_those_that_were_planned(name: str, tmp_path: Path, monkeypatch) -> None:
    table, options = PLANS[name]
    monkeypatch.setitem(TABLES, table, TABLES[table][:2])  # more parts take longer
    found = []
    for entry in plan(tmp_path, **options).entries(table):
        recipes = {cell.name: cell.recipe for cell in entry.cells}
        used = {
            key: (it.training.category_count, it.model.backbone, it.data.resolved)
            for key, it in recipes.items()
        }
        found.append([entry.part.title, entry.method, entry.benchmark, entry.notes, used])
    require_kept("reports", f"plan of {name}", found)


def test_rows_of_a_table_are_means_over_seeds_for_every_value(tmp_path: Path) -> None:
    options = {"seeds": [1, 2], "settings": {"training.epochs": [3, 4]}, "methods": ["happy"], "small": True}
    (entry,) = plan(tmp_path, places={"cifar100": None}, **options).entries("main")
    vars(entry)["finished"] = entry.cells[:3]
    for number, cell in enumerate(entry.cells[:3]):
        native = None if number == 2 else (1.0, 2.0, 4.0 + number)
        score = StageScore(1, 50.0 + number**2, 60.0, 40.0, 5, 9, native=native)
        cell.path.mkdir()
        cell.run.write("results.json", ContinualScore("cacc", [score]).to_dict())
    require_kept("reports", "rows", table_rows([entry], ["training.epochs"]).to_csv())


def test_without_recipes_rows_without_figures_are_asked_for(tmp_path: Path) -> None:
    rows = plan(tmp_path, recipes=tmp_path).entries("main")
    assert {bool(each.part.label) for each in rows} == {True}


def test_what_keeps_a_run_from_the_paper_is_said(tmp_path: Path) -> None:
    wanted: dict[str, Any] = {"methods": ["happy"], "places": {"cub": "/birds"}}
    for options, said in (
        ({}, []),
        ({"weights": "/weights"}, []),
        ({"overrides": {"model": {"backbone": "/weights"}}}, ["the backbone is not facebook/dino-vitb16"]),
    ):
        (entry,) = plan(tmp_path, **wanted, **options).entries("ssb")
        assert list(entry.notes) == [f"Not comparable: {each}." for each in said]
    places = {"cifar100": None, "imagenet100": "/nowhere"}
    small, absent = plan(tmp_path, methods=["happy"], places=places, small=True).entries("main")
    notes = [TEXT["not-comparable-the-backbone-is-not"], TEXT["not-comparable-the-data-or-its"]]
    assert list(small.notes) == notes
    assert list(absent.notes) == [TEXT["imagenet100-is-left-out-there-is"]]
    (absent,) = plan(tmp_path, methods=["happy"], places={"cifar100": "/nowhere"}, look=True).entries("main")
    assert absent.notes[0].startswith("cifar100 is left out: Nothing is at '/nowhere'")


@pytest.mark.parametrize(
    ("words", "table", "weights", "trained_on"),
    [
        ([], "dino", None, "facebook/dino-vitb16"),
        (["--backbone", "dinov2"], "dinov2", "facebook/dinov2-base", "facebook/dinov2-base"),
        (["--backbone", "dinov2=/weights"], "dinov2", "/weights", "/weights"),
        (["--backbone", "/weights"], "dino", None, "/weights"),
        (["--small"], "dino", None, None),
        (["--small", "--backbone", "dino"], "dino", "facebook/dino-vitb16", "facebook/dino-vitb16"),
        (["--backbone", "none"], "dino", None, None),
    ],
)
def test_a_backbone_is_a_half_of_a_table_or_a_place(words, table, weights, trained_on) -> None:
    given = ["sweep", "--table", "main", "--config", str(RECIPES), "--seeds", "1", "--dry-run", *words]
    options = parse([*given, "--methods", "happy", "--datasets", "cifar100=/photos"])
    wanted = _table_plan(options, {})
    assert (wanted.backbone, wanted.weights, wanted.look) == (table, weights, False)
    assert wanted.out == Path(f"runs/main-{table}{'-small' if '--small' in words else ''}")
    (entry,) = wanted.entries("main")
    assert entry.printed["all"] == {"dino": 64.27, "dinov2": 73.13}[table]
    assert entry.cells[0].recipe.model.backbone == trained_on
    assert entry.cells[0].recipe.data.dataset == "/photos"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--table", "main", "--methods", "promptcd"], "has no method 'promptcd': it has orca, promptccd"),
        (["--table", "main", "--datasets", "cub=/x"], "has no data set 'cub': it has cifar100, imagenet100"),
        (["--table", "gcd", "--backbone", "dinov2"], "has no backbone 'dinov2': it has dino."),
        (["--table", "gcd", "--baselines"], "no --baselines"),
        (["--table", "gcd", "--config", "a", "b"], "one folder of recipes"),
        (["--small", "--config", "a"], "belong to --table"),
        ([], "Expected a folder of your images, --config"),
        (["--table", "table2"], "invalid choice: 'table2'"),
    ],
)
def test_what_a_table_has_not_is_refused(words: list[str], message: str, capsys) -> None:
    assert main(["sweep", "--seeds", "1", *words]) == 2
    assert message in capsys.readouterr().err


def test_a_dry_run_fetches_nothing_and_lists_the_cells(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(costs, "timed_step", lambda recipe: costs.TimedStep(1.0, 0, 0))
    recipes = Path(shutil.copytree(RECIPES, tmp_path / "recipes"))
    (recipes / "methods" / "grow-merge.yaml").unlink()
    words = ["sweep", "--table", "splits", "--seeds", "1", "7", "--config", str(recipes), "--dry-run"]
    assert main([*words, "--out", str(tmp_path / "runs"), "--methods", "promptccd", "grow-merge"]) == 0
    said = capsys.readouterr().out
    assert "6 cells" in said
    assert "promptccd-cifar100-4321-seed7" in said
    assert TEXT["grow-merge-is-not-built"] in said
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_another_protocol_is_scored_once_beside_the_run(tmp_path: Path, capsys) -> None:
    images, out = tmp_path / "images", tmp_path / "gcd"
    coloured_images(20, 40).save_to_disk(str(images))
    words = ["sweep", "--table", "gcd", "--methods", "promptccd-gcd", "--small", "--seeds", "1", "2"]
    words += ["--config", str(RECIPES), "--out", str(out), "--datasets", f"cifar100={images}", "imagenet100"]
    words += ["--backbone_config", json.dumps(TINY_BACKBONE), "--image_size", "16", "--resize_size", "18"]
    quick = dict.fromkeys(("epochs", "discovery_epochs", "pretraining.epochs", "kmeans_restarts"), 1)
    words += [word for name, value in (TINY_HEAD | quick).items() for word in (f"--{name}", str(value))]
    assert main(words) == 0
    capsys.readouterr()
    run = out / "promptccd-gcd-cifar100-small-seed1"
    assert main(["evaluate", str(run), "--protocol", "gcd", "--json"]) == 0
    evaluated = json.loads(capsys.readouterr().out)
    stored = json.loads((run / "score-gcd.json").read_text())
    assert stored == evaluated
    for seed, value in ((1, 12.5), (2, 14.5)):  # what is scored is not scored again
        changed = {**stored, "stages": [{**row, "all": value} for row in stored["stages"]]}
        (out / f"promptccd-gcd-cifar100-small-seed{seed}" / "score-gcd.json").write_text(json.dumps(changed))
    assert main([*words, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    rows = {(row["method"], row["benchmark"]): row for row in printed["rows"]}
    row, absent = (rows["promptccd-gcd", name] for name in ("cifar100", "imagenet100"))
    assert ("promptccd-gcd, native prediction", "cifar100") in rows
    assert (row["all"], row["all_std"]) == (13.5, pytest.approx(2**0.5, abs=1e-3))
    assert row["all_difference"] == pytest.approx(13.5 - row["all_paper"], abs=1e-3)
    assert (absent["runs"], absent["all_paper"] is None) == (0, False)
    assert any(TEXT["there-is-no-recipe-for-imagenet100"] in line for line in printed["remarks"])
    assert "promptccd-gcd, difference" in (out / "table.md").read_text()
