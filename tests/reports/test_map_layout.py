"""Maps of features keep neighbours together."""

import numpy as np
import pandas as pd
import pytest

from promptccd.reports.map import MARGIN, SIDE, choose_points, layout_of, map_series


@pytest.mark.moderate
def test_similar_features_are_near_each_other() -> None:
    centres = 10 * np.random.default_rng(1).normal(size=(3, 12))
    features = np.repeat(centres, 30, axis=0) + np.random.default_rng(0).normal(size=(90, 12))
    layout = layout_of(features, seed=3)
    means = layout.reshape(3, 30, 2).mean(axis=1)
    nearest = np.linalg.norm(layout[:, None] - means, axis=2).argmin(axis=1)
    assert (nearest == np.repeat(range(3), 30)).all()
    assert (layout_of(features, seed=3) == layout).all()


@pytest.mark.parametrize("features", [np.eye(4)[:1], np.eye(4)[:3], np.ones((9, 4)), np.zeros((0, 4))])
def test_few_or_equal_points_have_places_too(features: np.ndarray) -> None:
    layout = layout_of(features, seed=1)
    assert layout.shape == (len(features), 2)
    assert np.isfinite(layout).all()


def test_a_map_of_many_points_shows_some() -> None:
    rows = choose_points(4000, seed=1, max_points=500)
    assert len(rows) == 500
    assert (np.diff(rows) > 0).all()
    assert (choose_points(4000, 2, 500) != rows).any()
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
