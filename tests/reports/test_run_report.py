"""A report says what the run says, in a page that stands alone; runs that belong together share a row."""

import copy
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from datasets import ClassLabel

from promptccd.errors import ConfigurationError, RunError
from promptccd.evaluation.tables import ABSENT, over_runs, text_grid
from promptccd.reports import write_report, write_run_comparison
from promptccd.reports.report import _run_facts, history_charts
from promptccd.reports.run_groups import baseline_rows, require_seeds_alone, row_names
from promptccd.reports.tables import ReportedRun, report_tables
from promptccd.runs import RunDirectory, RunEvaluation, train_run
from promptccd.training.progress import EpochRecord
from promptccd.training.recipe import Recipe
from tests.browsing import Visit
from tests.conftest import coloured_images, quick_recipe
from tests.kept import GOLDEN
from tests.messages import TEXT
from tests.test_golden_numbers import require_kept

NAMES = [
    "<img src=x onerror=alert(1)>",
    "=SUM(A1)",
    '"><script>alert(2)</script>',
    "{{ 7 * 7 }}",
    "Ünïcode & co",
]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, backbone_folder: Path) -> Path:
    """The folder ``tiny-seed1`` of a PromptCCD of four stages."""
    folder = tmp_path_factory.mktemp("runs")
    data = coloured_images(5, 30).cast_column("label", ClassLabel(names=NAMES))
    data.save_to_disk(str(folder / "images"))
    values = quick_recipe(folder / "images", backbone_folder, folder / "tiny-seed1")
    train_run(Recipe.from_dict(values))
    return folder / "tiny-seed1"


def changed(run: ReportedRun, **values: object) -> ReportedRun:
    other = copy.copy(run)
    vars(other).update(values)
    return other


@pytest.fixture(scope="module")
def report(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page about one run, which a person names from inside."""
    return write_report([run / "stage0" / ".."], tmp_path_factory.mktemp("report"))


@pytest.mark.moderate
def test_names_are_text_on_the_page(report: Path) -> None:
    page = report.read_text(encoding="utf-8")
    assert "<h1>Report of tiny</h1>" in page
    assert "&lt;img src=x onerror=alert(1)&gt;" in page
    assert "<img src=x" not in page
    assert "<script>alert(2)" not in page
    assert "{{ 7 * 7 }}" in page
    assert "http://" not in page
    assert "https://" not in page
    assert str(report.parent) not in page


@pytest.mark.moderate
@pytest.mark.parametrize("width", [1280, 390, 360])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_in_a_browser(report: Path, visit: Visit, width: int, scheme: str) -> None:
    page = visit.page
    page.on("dialog", lambda dialog: visit.complaints.append(f"dialog: {dialog.message}"))
    page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    page.set_viewport_size({"width": width, "height": 800})
    page.goto(report.as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.locator("h1").inner_text() == "Report of tiny"
    assert page.locator("img").evaluate_all("images => images.every(image => image.naturalWidth > 0)")

    page.locator("details").evaluate_all("all => all.forEach(each => { each.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert visit.complaints == []
    assert visit.foreign_requests == []


def test_runs_that_cannot_be_reported(run: Path, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="Nothing is at"):
        write_report([tmp_path / "nothing"], tmp_path / "out")
    other = Path(shutil.copytree(run, tmp_path / "other"))
    options = {"samples": 0, "dataset": str(run.parent / "images")}
    for write in (write_report, write_run_comparison):
        with pytest.raises(ConfigurationError, match="given twice|in both"):
            write([run, run], tmp_path / "out")
    with pytest.raises(ConfigurationError, match="--compare"):
        write_report([run, other], tmp_path / "out", **options)

    recorded = (other / "results.json").read_text()
    for rows in ([], [1, 3]):
        table = json.loads(recorded)
        table["stages"] = [row for row in table["stages"] if row["stage"] in rows]
        (other / "results.json").write_text(json.dumps(table))
        with pytest.raises(RunError, match="lacks rows"):
            write_report([other], tmp_path / "out", **options)
    (other / "results.json").write_text(recorded)
    (other / "stage2" / "assignments.json").write_text("{}")
    with pytest.raises(RunError, match=TEXT["assignmentsjson-was-altered"]):
        write_report([other], tmp_path / "out", **options)
    for stage in (1, 2, 3):
        shutil.rmtree(other / f"stage{stage}")
    with pytest.raises(ConfigurationError, match=TEXT["has-finished-only-stage-0"]):
        write_report([other], tmp_path / "out", **options)
    with pytest.raises(ConfigurationError, match="leave --compare out"):
        write_run_comparison([other], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_costs_are_means_over_runs(run: Path) -> None:
    found = ReportedRun(RunEvaluation(str(run)))
    memory = {"stage0": {"process": 2_000_000, "accelerator": None}}
    memory["stage1"] = {"process": 4_000_000, "accelerator": 7_000_000}
    both, one = {"seconds": {"stage1": 5.0, "stage0": 9.0}}, {"seconds": {"stage0": 11.0}}
    recorded = [changed(found, manifest={**each, "peak_memory": memory}) for each in (both, one)]
    tables = report_tables(recorded, [])
    _, rows = text_grid(over_runs(tables["costs"], ["stage"]))
    assert rows == [
        ["stage 0", "2", "10.0 ± 1.4", "2.0 ± 0.0", ABSENT],
        ["stage 1", "1", "5.0", "4.0", "7.0"],
    ]


def test_of_many_stages_as_many_curves_are_drawn_as_can_be_told_apart(run: Path) -> None:
    found = ReportedRun(RunEvaluation(str(run)))
    losses = {"loss": 2.0, "prompt": 0.5}, {"loss": 1.0, "other_part": 0.25}
    rows = [EpochRecord(at, it, 3, losses[it], 0.1 / (it + 1), 1) for at in range(53) for it in (0, 1)]
    charts = [history_charts(changed(found, history=rows[:count])) for count in (0, 6, 106)]
    require_kept("reports", "history", charts)


def test_facts_name_counts_backbones_and_seeds_of_all_runs(run: Path) -> None:
    found, facts = ReportedRun(RunEvaluation(str(run))), []
    manifest = {**found.manifest, "split_fingerprint": 16 * "s", "versions": {"promptccd": 1, "torch": 2}}
    for own in json.loads((GOLDEN / "reports.json").read_text())["facts"]:
        parts = {name: replace(getattr(found.recipe, name), **values) for name, values in own.items()}
        other = changed(found, recipe=replace(found.recipe, **parts), manifest=manifest)
        facts.append({**_run_facts([other, changed(found, manifest=manifest)]), "data": ""})
    require_kept("reports", "facts", facts)


# Which runs share a row of a table, and which of them give the baselines

ELSEWHERE = {"benchmark": "caltech101"}


def made(path: Path, seed: int = 1, stages: int = 4, pixels: str = "p", **sections: dict[str, Any]) -> Path:
    """A folder with the records of a run of four stages; the backbone was pretrained there unless one is named."""
    model = {"backbone": None, **sections.pop("model", {})}
    training = {"seed": seed, "output_dir": path.name, **sections.pop("training", {})}
    run = RunDirectory(path)
    run.path.mkdir(parents=True)
    run.backbone.mkdir()
    run.write("split.json", {"stages": [[0], [1], [2], [3]]})
    recipe = Recipe.from_dict({"model": model, "training": training, **sections})
    fingerprints = {"split_fingerprint": "s", "data_fingerprint": pixels}
    run.write("manifest.json", {"format": 1, "recipe": recipe.to_dict(), **fingerprints, "versions": {}})
    for stage in range(stages):
        run.stage(stage).mkdir()
    return path


def test_an_unfinished_run_has_a_row_of_its_own(tmp_path: Path) -> None:
    runs = [made(tmp_path / "x-seed7", 7), made(tmp_path / "x-seed1", 1, stages=2)]
    assert row_names(runs) == ["x", TEXT["x-1-of-3-stages"]]


def test_a_run_given_twice_is_refused(tmp_path: Path) -> None:
    run = made(tmp_path / "b")
    for refuse in (row_names, require_seeds_alone):
        with pytest.raises(ConfigurationError, match=TEXT["given-twice-training-seed-is-1"]):
            refuse([made(tmp_path / refuse.__name__, 3), run, tmp_path / "b" / ".." / "b"])


def test_seeds_share_a_row_wherever_they_lie(tmp_path: Path) -> None:
    runs = [
        made(tmp_path / "a" / "x-seed1", 1, data={"dataset": "/here"}),
        made(tmp_path / "b" / "x-seed2", 2, data={"dataset": "/there"}, training={"num_workers": 3}),
    ]
    assert row_names(runs) == ["x", "x"]
    require_seeds_alone(runs)


@pytest.mark.parametrize(
    "other, difference",
    [
        ({}, "training.seed is 1 in both"),
        ({"seed": 2, "pixels": "q"}, r"data\.fingerprint is 'p' in .*a/x-seed1 and 'q' in .*c/x-seed1"),
        ({"seed": 2, "data": ELSEWHERE}, "data.benchmark is None"),
        ({"seed": 2, "training": {"epochs": 3}}, r"training\.epochs is 200 in .* and 3 in"),
        ({"seed": 2, "data": {"split": "test"}}, "data.split is None"),
        ({"seed": 2, "model": {"backbone": "facebook/dinov2-base"}}, "backbone"),
    ],
)
def test_runs_of_one_name_that_are_no_seeds_stay_apart(tmp_path, other, difference) -> None:
    first, second = made(tmp_path / "a" / "x-seed1"), made(tmp_path / "c" / "x-seed1", **other)
    with pytest.raises(ConfigurationError, match=difference):
        require_seeds_alone([first, second])
    more = made(tmp_path / "a" / "x-seed7", 7)
    assert row_names([first, second, more]) == ["a/x", "c/x", "a/x"]


def test_sessions_number_categories_by_seed(tmp_path: Path) -> None:
    data = {"split_rule": "sessions"}
    runs = [made(tmp_path / f"x-seed{seed}", seed, pixels=f"of {seed}", data=data) for seed in (1, 2)]
    require_seeds_alone(runs)


def test_a_baseline_is_scored_once_per_seed(tmp_path: Path) -> None:
    """Backbones that were pretrained in the same way are the same."""
    runs = [made(tmp_path / f"{name}-seed{seed}", seed) for name in "xy" for seed in (1, 2)]
    assert baseline_rows(runs, row_names(runs)) == ["", "", None, None]


@pytest.mark.parametrize(
    "other",
    [
        {"data": ELSEWHERE},
        {"data": {"category_ratio": 0.2, "sample_ratio": 0.5}},
        {"training": {"kmeans_restarts": 3}},
        {"training": {"category_count": "split_merge"}},
        {"stages": 2},
        {"model": {"backbone_config": {"hidden_size": 48}}},
    ],
)
def test_baselines_that_differ_in_more_than_the_seed_are_not_averaged(tmp_path, other) -> None:
    runs = [made(tmp_path / "x-seed1"), made(tmp_path / "y-seed2", 2, **other), made(tmp_path / "x-seed2", 2)]
    names = row_names(runs)
    assert baseline_rows(runs, names) == [" (x)", f" ({names[1]})", " (x)"]
