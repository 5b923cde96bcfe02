"""A report says what the run says, in a page that stands alone."""

import copy
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from datasets import ClassLabel

from promptccd.errors import ConfigurationError, RunError
from promptccd.evaluation.tables import ABSENT, over_runs, text_grid
from promptccd.reports import write_report, write_run_comparison
from promptccd.reports.charts import NUM_STYLES
from promptccd.reports.report import history_charts
from promptccd.reports.tables import ReportedRun, report_tables
from promptccd.runs import RunEvaluation, train_run
from promptccd.training.recipe import Recipe
from tests.browsing import Visit
from tests.conftest import coloured_images, quick_recipe
from tests.messages import TEXT

NAMES = [
    "<img src=x onerror=alert(1)>",
    "=SUM(A1)",
    '"><script>alert(2)</script>',
    "{{ 7 * 7 }}",
    "Ünïcode & co",
]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, backbone_folder: Path) -> list[Path]:
    """Folders ``tiny-seed1`` and ``tiny-seed2`` of a PromptCCD of four stages."""
    folder = tmp_path_factory.mktemp("runs")
    data = coloured_images(5, 30).cast_column("label", ClassLabel(names=NAMES))
    data.save_to_disk(str(folder / "images"))
    for seed in (1, 2):
        values = quick_recipe(folder / "images", backbone_folder, folder / f"tiny-seed{seed}")
        values["training"]["seed"] = seed
        train_run(Recipe.from_dict(values))
    return [folder / "tiny-seed1", folder / "tiny-seed2"]


def changed(run: ReportedRun, **values: object) -> ReportedRun:
    other = copy.copy(run)
    vars(other).update(values)
    return other


@pytest.fixture(scope="module")
def report(runs: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page about one run, which a person names from inside."""
    return write_report([runs[0] / "stage0" / ".."], tmp_path_factory.mktemp("report"))


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


def test_runs_that_cannot_be_reported(runs: list[Path], tmp_path: Path) -> None:
    with pytest.raises(RunError, match="Nothing is at"):
        write_report([tmp_path / "nothing"], tmp_path / "out")
    other = tmp_path / "other"
    shutil.copytree(runs[0], other)
    options = {"samples": 0, "dataset": str(runs[0].parent / "images")}
    for write in (write_report, write_run_comparison):
        with pytest.raises(ConfigurationError, match="given twice|in both"):
            write([runs[0], runs[0]], tmp_path / "out")
    with pytest.raises(ConfigurationError, match="--compare"):
        write_report([runs[0], other], tmp_path / "out", **options)

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


def test_costs_are_means_over_runs(runs: list[Path]) -> None:
    run = ReportedRun(RunEvaluation(str(runs[0])))
    memory = {"stage0": {"process": 2_000_000, "accelerator": None}}
    memory["stage1"] = {"process": 4_000_000, "accelerator": 7_000_000}
    both, one = {"seconds": {"stage1": 5.0, "stage0": 9.0}}, {"seconds": {"stage0": 11.0}}
    recorded = [changed(run, manifest={**each, "peak_memory": memory}) for each in (both, one)]
    tables = report_tables(recorded, [])
    _, rows = text_grid(over_runs(tables["costs"], ["stage"]))
    assert rows == [
        ["stage 0", "2", "10.0 ± 1.4", "2.0 ± 0.0", ABSENT],
        ["stage 1", "1", "5.0", "4.0", "7.0"],
    ]


def test_of_many_stages_as_many_curves_are_drawn_as_can_be_told_apart(runs: list[Path]) -> None:
    run = ReportedRun(RunEvaluation(str(runs[0])))
    few = history_charts(run)
    every = 1 + len(run.score.stages)
    assert [len(each.series) for each in few] == [every, every, 1, every]
    year = [
        replace(record, stage=stage) for stage in range(53) for record in run.history if record.stage == 1
    ]
    for chart in history_charts(changed(run, history=year)):
        names = [each.name for each in chart.series]
        assert len(names) == NUM_STYLES
        assert (names[0], names[-1]) == ("stage 0", "stage 52")
        assert f"{NUM_STYLES} of 53 stages" in chart.label
        assert chart.y_label.endswith(f", {NUM_STYLES} of 53 stages")
