"""Maps of features keep neighbours together."""

import numpy as np
import pytest

from promptccd.reports import choose_points, layout_of


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
