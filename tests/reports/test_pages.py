"""Pieces of pages: cells, charts, thumbnails, measures, cards of categories, maps of features."""

import base64
import io
import json
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from jinja2 import UndefinedError
from PIL import Image

from promptccd.evaluation import ContinualScore, StageScore, clustering_accuracy
from promptccd.evaluation.tables import count_texts, over_runs, score_table
from promptccd.reports import write_comparison
from promptccd.reports.cards import thumbnail
from promptccd.reports.charts import TOP, line_chart, nice_ticks
from promptccd.reports.map import MARGIN, SIDE, choose_points, layout_of, map_series
from promptccd.reports.page import csv_text, render_page, safe_cell
from promptccd.reports.report import stage_table
from promptccd.reports.tables import ReportedRun, blocks, confusion, forgotten, image_table
from tests.browsing import Visit
from tests.messages import TEXT


def test_formulas_become_text_and_other_values_stay() -> None:
    for text in ("=1+1", "+1", "-1", "@a", "\tx", "\rx"):
        assert safe_cell(text) == f"'{text}"
    for value in ("a=b", "", "ordinary", 5, -5, -1.5, None, True):
        assert safe_cell(value) is value
    assert csv_text(["a", "=b"], [{"a": -1, "=b": "-x"}, {"a": 'say "hi", you'}]) == (TEXT["a-b-1-x-say-hi"])


def test_a_missing_value_is_an_error_not_an_empty_place() -> None:
    with pytest.raises(UndefinedError):
        render_page("comparison.html.jinja", title="x")


@pytest.mark.parametrize(
    "low, high", [(0, 1), (0, 0), (3, 3), (-2.5, 7), (0.001, 0.0011), (99.2, 100), (0, 1e7)]
)
def test_ticks_enclose_the_range(low: float, high: float) -> None:
    ticks = nice_ticks(low, high)
    assert ticks[0] <= low + 1e-9
    assert ticks[-1] >= high - 1e-9
    assert 2 <= len(ticks) <= 8
    assert ticks == sorted(set(ticks))


@pytest.mark.parametrize(
    "found, labels",
    [((8.33, None), ["8", "9"]), ((8.5, 0.7), ["7", "8", "9", "10"]), ((8, None), ["8", "10"])],
)
def test_counts_have_whole_ticks_around_all_that_is_drawn(found, labels) -> None:
    chart = line_chart("l", {"true": [(1, 8)], "found": [(1, *found)]}, x_label="x", y_label="y", whole=True)
    assert [tick.label for tick in chart.y_ticks] == labels
    true, other = (series.points[0] for series in chart.series)
    assert (other.y < true.y) is (found[0] > 8)
    ends = [end for end in (other.low, other.high) if end is not None]
    assert all(TOP <= end <= chart.base for end in [true.y, other.y, *ends])


def test_a_number_of_categories_lies_in_its_range() -> None:
    """Clusters that ended empty got no category."""
    rows = [StageScore(3, 90.0, 90.0, 90.0, 9, 100, (10, 11)), StageScore(3, 90.0, 90.0, 90.0, 10, 100)]
    tables = [score_table(ContinualScore("cacc", [row])) for row in rows]
    assert [count_texts(each)[0] for each in tables] == [TEXT["9-9-to-11"], "10"]
    assert count_texts(over_runs(pd.concat(tables), ["stage"])) == [TEXT["9-5-9-to-11"], ""]
    (record,) = stage_table({"x": [ContinualScore("cacc", rows[:1])]}).to_dict("records")
    assert (record["num_categories"], record["count_low"], record["count_high"]) == (9, 9, 11)


def test_lines_lie_on_the_drawing() -> None:
    series = {"a": [(1, 90.0, 20.0), (2, math.nan, None)], "b": []}
    lines = line_chart("l", series, x_label="x", y_label="y", y_most=100)
    (point,) = lines.series[0].points
    assert lines.series[1].points == []
    assert point.high is not None and point.low is not None
    assert 0 < point.high < point.y < point.low < lines.base + 1
    assert lines.y_ticks[-1].label == "100"
    few = line_chart("f", {"a": [(1, 2.0, 3.0)]}, x_label="x", y_label="y", y_least=0)
    assert few.y_ticks[0].label == "0"
    assert few.series[0].points[0].low == few.base


@pytest.mark.parametrize(("lines", "points", "shift"), [(2, 12, 3.0), (2, 13, 0.0), (10, 12, 2.0)])
def test_lines_of_few_points_are_drawn_next_to_each_other(lines: int, points: int, shift: float) -> None:
    series = {f"{number}": [(x, 1.0) for x in range(points)] for number in range(lines)}
    first, second, *_ = line_chart("l", series, x_label="x", y_label="y").series
    assert second.points[0].x - first.points[0].x == pytest.approx(shift)


def test_thumbnails_are_small_and_hold_their_picture() -> None:
    for size, kind, small in (((8, 8), "png", True), ((640, 480), "jpeg", False)):
        picture = thumbnail(Image.new("RGB", size, (200, 30, 30)))
        head, data = picture.uri.split(",")
        assert head == f"data:image/{kind};base64"
        assert picture.is_small is small
        opened = Image.open(io.BytesIO(base64.b64decode(data)))
        assert max(opened.size) <= 96
        assert opened.convert("RGB").getpixel((2, 2))[0] > 150


def grouped(true: np.ndarray, found: np.ndarray, class_blocks: list[int]) -> ReportedRun:
    """A run of one stage as tables read it; names are the ids."""
    names = {each: str(each) for each in range(20)}
    stage = len(class_blocks) - 1
    images = image_table(stage, true, found, list(names.values()), names)
    return SimpleNamespace(images=images, class_blocks=class_blocks)


@pytest.mark.moderate
def test_tables_agree_with_the_accuracy() -> None:
    """Random groups, more of them than categories and fewer: the parts give All, Old and New."""
    generator = np.random.default_rng(0)
    for trial in range(50):
        true = generator.integers(0, 5, size=30)
        found = np.where(generator.random(30) < 0.5, true, generator.integers(0, 1 + trial % 9, size=30))
        accuracy, run = clustering_accuracy(true, found, range(2)), grouped(true, found, [2, 1, 2])
        parts = blocks(run)
        assert (parts["images"] * parts["accuracy"]).sum() / 30 == pytest.approx(accuracy.all)
        assert parts["block"].tolist() == [0, 1, 2]
        assert parts["images"].tolist() == [np.isin(true, each).sum() for each in ([0, 1], [2], [3, 4])]
        assert parts["accuracy"][0] == pytest.approx(accuracy.old, nan_ok=True)
        assert confusion(run)["images"].sum() == 30


def test_groups_are_in_the_order_of_the_categories_that_they_are_matched_to() -> None:
    true = np.repeat([0, 1, 2], [14, 8, 2])
    found = np.repeat([0, 1, 3, 0], [10, 4, 8, 2])  # group 1 and category 2 share no image
    pairs = confusion(grouped(true, found, [2, 1]))
    assert pairs["images"].tolist() == [10, 4, 8, 2]
    assert pairs[["true", "found"]].to_numpy().tolist() == [[0, 0], [0, 1], [1, 3], [2, 0]]
    assert forgotten([90.0, 95.0, 80.0]) == 15
    assert forgotten([80.0, 90.0]) == -10
    assert math.isnan(forgotten([80.0]))


@pytest.mark.moderate
def test_a_comparison_needs_scores_alone(tmp_path: Path, visit: Visit) -> None:
    one, two, three = (
        ContinualScore("cacc", [StageScore(1, value, value, math.nan, 8, 50, (7, 9))])
        for value in (50, 60, 70)
    )
    hostile = "<b onmouseover=alert(1)>b</b>"
    page = write_comparison({"a": [one, two], hostile: [three]}, tmp_path / "deep" / "out", title="T")
    report = json.loads((page.parent / "report.json").read_text())
    first, second = report["sections"]["averages"]
    assert (first["all"], first["all_std"], first["all_difference"]) == (55.0, pytest.approx(7.0711), 0.0)
    shown = [second[name] for name in ("all", "all_std", "all_difference", "new")]
    assert shown == [70.0, None, 15.0, None]
    assert hostile not in page.read_text()
    visit.page.goto(page.as_uri())
    assert visit.complaints == []


# Maps of features


@pytest.mark.moderate
def test_similar_features_are_near_each_other() -> None:
    centres = 10 * np.random.default_rng(1).normal(size=(3, 12))
    features = np.repeat(centres, 30, axis=0) + np.random.default_rng(0).normal(size=(90, 12))
    layout = layout_of(features, seed=3)
    means = layout.reshape(3, 30, 2).mean(axis=1)
    nearest = np.linalg.norm(layout[:, None] - means, axis=2).argmin(axis=1)
    assert (nearest == np.repeat(range(3), 30)).all()
    assert (layout_of(features, seed=3) == layout).all()


@pytest.mark.parametrize("features", [np.eye(4)[:1], np.eye(4)[:3], np.eye(4)[[1] * 9], np.zeros((0, 4))])
def test_few_or_equal_points_have_places_too(features: np.ndarray) -> None:
    layout = layout_of(features, seed=1)
    assert layout.shape == (len(features), 2)
    assert np.isfinite(layout).all()
    assert layout.any() == (len(np.unique(features, axis=0)) > 1)


def test_a_map_of_many_points_shows_some() -> None:
    rows = choose_points(4000, seed=1)
    assert len(rows) == 1500
    assert (np.diff(rows) > 0).all()
    assert (choose_points(4000, 2) != rows).any()
    assert choose_points(3, 1).tolist() == [0, 1, 2]


def test_groups_of_a_map_lie_in_its_drawing() -> None:
    features = np.repeat(10 * np.eye(3), 4, axis=0) + np.random.default_rng(0).normal(size=(12, 3))
    images = pd.DataFrame({"group": np.repeat(["a", "b", "c"], 4), "category": ["a", None] * 6})
    series = map_series(features, images, seed=1)
    assert [(each.name, each.style) for each in series] == [("a", 0), ("b", 1), ("c", 2)]
    assert [each.text for each in series[1].points] == ["b (is a)", "b"] * 2
    places = np.array([[point.x, point.y] for each in series for point in each.points])
    assert places.shape == (12, 2)
    assert places.min() >= MARGIN - 1e-9
    assert places.max() <= SIDE - MARGIN + 1e-9
