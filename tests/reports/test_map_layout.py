"""Maps of features: they keep neighbours, and points stay where they were."""

from itertools import pairwise

import numpy as np
import pytest

from promptccd.errors import ConfigurationError
from promptccd.reports import stage_layouts
from promptccd.reports.map import MARGIN, WIDTH, choose_points, map_figure


def groups(sizes: list[int], width: int = 12, seed: int = 0) -> np.ndarray:
    """Points around as many far-apart centres as there are sizes."""
    generator = np.random.default_rng(seed)
    centres = 10 * np.random.default_rng(1).normal(size=(len(sizes), width))
    return np.concatenate(
        [centre + generator.normal(size=(size, width)) for centre, size in zip(centres, sizes, strict=True)]
    )


def moved(maps: list[np.ndarray], stage: int) -> float:
    """Median distance that points moved at a stage, as a share of the width of the map before."""
    before, after = maps[stage - 1 : stage + 1]
    distances = np.linalg.norm(after[: len(before)] - before, axis=1)
    return float(np.median(distances) / np.ptp(before, axis=0).max())


@pytest.mark.slow
@pytest.mark.parametrize("method", ["tsne", "pca"])
def test_points_whose_features_stay_hardly_move(method: str) -> None:
    features = groups([40, 40, 40])
    maps = stage_layouts([features, features, features], method, seed=3)
    assert all(moved(maps, stage) < 0.05 for stage in (1, 2))
    for before, after in pairwise(maps):
        assert np.linalg.norm(after - before, axis=1).max() < 0.25 * np.ptp(before, axis=0).max()


@pytest.mark.slow
@pytest.mark.parametrize("method", ["tsne", "pca"])
def test_a_turned_and_mirrored_feature_space_gives_the_same_map(method: str) -> None:
    """Every stage has a model of its own, whose axes need not be those of the last one."""
    features = groups([40, 40, 40])
    turn, _ = np.linalg.qr(np.random.default_rng(5).normal(size=(12, 12)))
    maps = stage_layouts([features, features @ turn], method, seed=3)
    assert moved(maps, 1) < 0.05


@pytest.mark.slow
@pytest.mark.parametrize("method", ["tsne", "pca"])
def test_new_points_come_near_their_like(method: str) -> None:
    first, more = groups([40, 40, 40]), groups([10, 10, 10], seed=9)
    maps = stage_layouts([first, np.concatenate([first, more])], method, seed=3)
    layout = maps[1]
    centres = [layout[40 * number : 40 * number + 40].mean(axis=0) for number in range(3)]
    for number in range(3):
        for point in layout[120 + 10 * number : 130 + 10 * number]:
            assert np.argmin([np.linalg.norm(point - centre) for centre in centres]) == number


@pytest.mark.parametrize("method", ["tsne", "pca"])
@pytest.mark.parametrize("sizes", [[5, 5], [1, 2, 3], [0, 5], [4, 6]])
def test_few_points_are_laid_out_too(method: str, sizes: list[int]) -> None:
    features = groups([3, 3])[: max(sizes)]
    maps = stage_layouts([features[:size] for size in sizes], method)
    assert [layout.shape for layout in maps] == [(size, 2) for size in sizes]
    assert all(np.isfinite(layout).all() for layout in maps)


def test_equal_points_and_equal_seeds() -> None:
    assert np.isfinite(stage_layouts([np.ones((9, 4)), np.ones((9, 4))])[1]).all()
    features = groups([20, 20])
    first, again = (stage_layouts([features, features], seed=4) for _ in range(2))
    assert all((one == other).all() for one, other in zip(first, again, strict=True))


def test_a_map_of_many_points_shows_a_share_of_every_stage() -> None:
    rows = choose_points([4000, 1000, 3], seed=1, max_points=500)
    assert (np.diff(rows) > 0).all()
    assert [int(((rows >= low) & (rows < high)).sum()) for low, high in ((0, 4000), (4000, 5000), (5000, 5003))] == [
        400, 100, 1,
    ]  # fmt: skip
    assert (choose_points([4000, 1000, 3], 1, 500) == rows).all()
    assert (choose_points([4000, 1000, 3], 2, 500) != rows).any()
    assert choose_points([3, 4], 1).tolist() == [0, 1, 2, 3, 4, 5, 6]


def test_an_unknown_layout_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="tsne or pca, got 'umap'"):
        stage_layouts([groups([5])], "umap")


@pytest.mark.parametrize(
    ("corner", "height"),
    [
        ((4.0, 3.0), 432.0), ((4.0, 1.0), 240.0), ((1.0, 9.0), 600.0),
        ((5.0, 0.0), 240.0), ((0.0, 5.0), 600.0), ((0.0, 0.0), 240.0),
    ],
    ids=["as it is", "wide", "tall", "flat", "upright", "one point"],
)  # fmt: skip
def test_a_map_of_any_shape_lies_on_its_drawing_and_fills_it(
    corner: tuple[float, float], height: float
) -> None:
    layout = np.array([(7.0, -2.0), np.add((7.0, -2.0), corner)])
    ids = np.zeros(2, dtype=int)
    figure = map_figure([layout], ids, np.array([3, 4]), ids, ids, {0: "heron"}, ["heron"])
    assert figure.height == height + 2 * MARGIN
    ((first,), (second,)) = figure.points["places"]
    assert list(first) == [MARGIN, MARGIN]
    x, y = np.subtract(second, first)
    assert 0 <= x <= WIDTH - 2 * MARGIN and 0 <= y <= height
    assert not any(corner) or x == WIDTH - 2 * MARGIN or y == height
    assert x * corner[1] == pytest.approx(y * corner[0], abs=1)  # both directions at one scale
