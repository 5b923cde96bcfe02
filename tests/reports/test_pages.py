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

from promptccd import reports
from promptccd.evaluation import ContinualScore, StageScore, clustering_accuracy
from promptccd.evaluation.tables import count_texts, over_runs, score_table
from promptccd.reports import write_comparison
from promptccd.reports.cards import card_of, mean_direction, picture_uri, thumbnail
from promptccd.reports.charts import line_chart, nice_ticks
from promptccd.reports.map import choose_points, layout_of, map_series
from promptccd.reports.page import csv_text, render_page, safe_cell
from promptccd.reports.report import stage_table
from promptccd.reports.tables import ReportedRun, blocks, confusion, forgotten, image_table
from tests.browsing import Visit
from tests.kept import GOLDEN
from tests.messages import TEXT
from tests.test_golden_numbers import require_kept, two_stages


def test_formulas_become_text_and_other_values_stay() -> None:
    for text in ("=1+1", "+1", "-1", "@a", "\tx", "\rx"):
        assert safe_cell(text) == f"'{text}"
    for value in ("a=b", "", "ordinary", 5, -5, -1.5, None, True):
        assert safe_cell(value) is value
    assert csv_text(["a", "=b"], [{"a": -1, "=b": "-x"}, {"a": 'say "hi", you'}]) == (TEXT["a-b-1-x-say-hi"])


def test_a_missing_value_is_an_error_not_an_empty_place() -> None:
    with pytest.raises(UndefinedError):
        render_page("comparison.html.jinja", title="x")


GIVEN = json.loads((GOLDEN / "reports.json").read_text())


@pytest.mark.parametrize("name", GIVEN["charts"])
def test_a_chart_is_drawn_as_it_was(name: str) -> None:
    series, more = GIVEN["charts"][name]
    require_kept("reports", f"chart of {name}", line_chart("l", series, x_label="x", y_label="y", **more))


def test_ticks_cards_and_points_of_a_map_are_those_that_were() -> None:
    require_kept("reports", "ticks", [nice_ticks(*each) for each in GIVEN["ranges"]])
    _, images = two_stages()
    features = np.random.default_rng(3).normal(size=(len(images), 5))
    true = images.sample_ids % 4
    table, known = grouped(true, 5 + np.arange(len(true)) % 3, [2, 2]).images, np.eye(5) + features[:5] / 10
    means = {f"known {each}": mean_direction(known[each : each + 2]) for each in range(5)}
    cards = [card_of(np.arange(first, 12, 3), table, images, features, means, 2) for first in range(2)]
    require_kept("reports", "cards", [{**each, "thumbnails": len(each["thumbnails"])} for each in cards])
    require_kept("reports", "chosen", [choose_points(4000, seed)[1480:] for seed in (1, 2)])


def test_a_number_of_categories_lies_in_its_range() -> None:
    """Clusters that ended empty got no category."""
    rows = [StageScore(3, 90.0, 90.0, 90.0, 9, 100, (10, 11)), StageScore(3, 90.0, 90.0, 90.0, 10, 100)]
    tables = [score_table(ContinualScore("cacc", [row])) for row in rows]
    assert [count_texts(each)[0] for each in tables] == [TEXT["9-9-to-11"], "10"]
    assert count_texts(over_runs(pd.concat(tables), ["stage"])) == [TEXT["9-5-9-to-11"], ""]
    (record,) = stage_table({"x": [ContinualScore("cacc", rows[:1])]}).to_dict("records")
    assert (record["num_categories"], record["count_low"], record["count_high"]) == (9, 9, 11)


def test_thumbnails_are_small_and_hold_their_picture() -> None:
    assert picture_uri(b"") == ""
    for size, kind, small in (((32, 8), "png", True), ((33, 8), "jpeg", False), ((640, 480), "jpeg", False)):
        picture = thumbnail(Image.new("RGB", size, (200, 30, 30)))
        head, data = picture.uri.split(",")
        assert head == f"data:image/{kind};base64"
        assert picture.is_small is small
        opened = Image.open(io.BytesIO(base64.b64decode(data)))
        assert max(opened.size) == min(96, size[0])
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


def test_groups_of_a_map_lie_in_its_drawing(monkeypatch: pytest.MonkeyPatch) -> None:
    features = np.repeat(10 * np.eye(3), 4, axis=0) + np.random.default_rng(0).normal(size=(12, 3))
    images = pd.DataFrame({"group": np.repeat(["b", "a", "c"], 4), "category": ["a", None] * 6})
    series = map_series(features, images, seed=1)
    assert [(each.name, each.style) for each in series] == [("b", 0), ("a", 1), ("c", 2)]
    assert [each.text for each in series[1].points] == ["a (is a)", "a"] * 2
    places = np.array([[point.x, point.y] for each in series for point in each.points])
    assert places.shape == (12, 2)
    assert (places.min(), places.max()) == pytest.approx((12, 588))
    monkeypatch.setattr(reports.map, "MAX_POINTS", 4)
    require_kept("reports", "map", map_series(features, images, seed=1))
