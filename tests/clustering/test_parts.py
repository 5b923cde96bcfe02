import numpy as np
import pytest
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from promptccd.clustering import parts as part_labels
from promptccd.clustering.parts import ENOUGH_PATCHES, PartLabeller, fit_part_labels, sample_for_part_labels
from promptccd.errors import DataError
from tests.messages import TEXT

GRID = 10
WIDTH = 48


def layouts(num_images: int, num_regions: int, seed: int = 0) -> Tensor:
    """True part maps `(I, G, G)`: 0 around a rectangle that the regions 1.. share, each time elsewhere.

    Every region is what lies nearest to one of a few random patches, so that all occur in every image.
    """
    generator = np.random.default_rng(seed)
    maps = np.zeros((num_images, GRID, GRID), dtype=np.int64)
    for each in maps:
        height, width = generator.integers(GRID // 2 + 1, GRID - 2, 2)
        top, left = generator.integers(1, GRID - height), generator.integers(1, GRID - width)
        places = np.argwhere(np.ones((height, width)))
        seeds = places[generator.permutation(len(places))[:num_regions]]
        nearest = np.square(places[:, None] - seeds).sum(-1).argmin(1)
        each[top : top + height, left : left + width] = 1 + nearest.reshape(height, width)
    return torch.from_numpy(maps)


def features_of(maps: Tensor, noise: float = 0.1, seed: int = 0) -> Tensor:
    """Patch features `(I, L, D)`: what all parts share, what each has of its own, and noise.

    The parts stand on a circle. Three dimensions are all the method keeps, and one tells object from
    background: more parts than fit into a plane could not be told apart.
    """
    generator = torch.Generator().manual_seed(seed)
    shared, *plane = torch.linalg.qr(torch.randn(WIDTH, 3, generator=generator)).Q.T
    angles = torch.linspace(0, 2 * torch.pi, int(maps.max()) + 1)[1:, None]
    parts = 4 * shared + angles.cos() * plane[0] + angles.sin() * plane[1]
    regions = torch.cat([-4 * shared[None], parts])
    return regions[maps.flatten(1)] + noise * torch.randn(*maps.flatten(1).shape, WIDTH, generator=generator)


def fitted(features: Tensor, grid: tuple[int, int], num_parts: int | str, seed: int = 0) -> PartLabeller:
    labeller = PartLabeller(2, features.shape[-1]).to(features.dtype)
    labeller.load(fit_part_labels(features, grid, num_parts, seed=seed))
    return labeller


def matching(found: Tensor, true: Tensor) -> Tensor:
    """The true part that every found part is taken for, one to one, `(P,)`."""
    num_parts = int(max(found.max(), true.max())) + 1
    counts = torch.zeros(num_parts, num_parts, dtype=torch.int64)
    counts.index_put_((found.flatten(), true.flatten()), torch.tensor(1), accumulate=True)
    return torch.from_numpy(linear_sum_assignment(-counts.numpy())[1])


@pytest.mark.parametrize("num_regions", [3, 4, 5, 6])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_finds_the_parts_of_synthetic_features(num_regions, seed):
    maps = layouts(12, num_regions, seed)
    features = features_of(maps, seed=seed)
    found = fitted(features, (GRID, GRID), num_regions + 1)(features)
    assert found.shape == (12, GRID * GRID) and found.dtype == torch.int64
    taken_for = matching(found, maps)
    right, is_object = taken_for[found] == maps.flatten(1), maps.flatten(1) > 0
    assert right[is_object].double().mean() >= 0.95
    assert taken_for[0] == 0, "part 0 is the background"
    assert (found == 0).eq(maps.flatten(1) == 0).double().mean() >= 0.95


@pytest.mark.slow
@pytest.mark.parametrize("num_regions", [3, 4, 5, 6])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_auto_finds_the_number_of_parts(num_regions, seed, monkeypatch):
    """The criterion rewards equal sizes, so the background is as small here as a part."""
    maps = stripes(6, num_regions)
    grid = tuple(maps.shape[1:])
    features = features_of(maps, noise=0.02, seed=seed)
    monkeypatch.setattr(part_labels, "CANDIDATES", range(3, 9))
    found = fitted(features, grid, "auto")
    assert found.num_parts == len(found.centres) == num_regions + 1
    assert torch.equal(fitted(features, grid, num_regions + 1).centres, found.centres)


def stripes(num_images: int, num_regions: int) -> Tensor:
    """Part maps `(I, 16 or so, 5R + 2)`: a frame of background, five columns of each part, in any order."""
    maps = torch.zeros(num_images, 2 * num_regions + 8, 5 * num_regions + 2, dtype=torch.int64)
    for index in range(num_images):
        order = torch.randperm(num_regions, generator=torch.Generator().manual_seed(index))
        maps[index, 1:-1, 1:-1] = (1 + order).repeat_interleave(5)
    return maps


def test_background_comes_first_and_the_others_by_size():
    features = features_of(layouts(12, 4))
    found = fitted(features, (GRID, GRID), 5)
    sizes = found(features).flatten().bincount(minlength=5)[1:].tolist()
    assert sizes == sorted(sizes, reverse=True)
    background = -found.projection_mean / found.projection_scale  # where a zeroed patch lies
    assert (found.centres - background).square().sum(1).argmin() == 0
    assert (found(features[:1] * 0 - 50 * found.object_direction) == 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_same_seed_same_labels_in_any_order_of_the_images(dtype):
    features = features_of(layouts(12, 4), noise=0.5).to(dtype)
    first = fit_part_labels(features, (GRID, GRID), 5, seed=7)
    again = fit_part_labels(features.clone(), (GRID, GRID), 5, seed=7)
    order = torch.randperm(12, generator=torch.Generator().manual_seed(0))
    shuffled = fit_part_labels(features[order], (GRID, GRID), 5, seed=7)
    for name, value in first.items():
        assert value.dtype == (torch.float32 if dtype == torch.bfloat16 else dtype)
        assert torch.equal(value, again[name]) and torch.equal(value, shuffled[name]), name


@pytest.mark.parametrize("factor", [1, -1, 0.01, -0.01])
def test_without_inner_patches_the_object_is_the_smaller_side(factor):
    maps = torch.tensor([[[0, 0], [0, 1]], [[2, 0], [0, 0]], [[0, 1], [0, 0]], [[0, 0], [2, 0]]])
    maps = maps.repeat(5, 1, 1)
    features = factor * features_of(maps)
    found = fitted(features, (2, 2), 3)(features)
    assert torch.equal(matching(found, maps)[found], maps.flatten(1))
    assert ((found == 0) == (maps.flatten(1) == 0)).all()


@pytest.mark.parametrize("value", [0.0, 1.0])
@pytest.mark.parametrize("num_parts", [2, "auto"])
def test_refuses_patches_that_are_all_equal(num_parts, value):
    with pytest.raises(DataError, match=TEXT["patch-features-are-all-equal-use"]):
        fit_part_labels(torch.full((5, 16, 8), value), (4, 4), num_parts, seed=0)


def test_refuses_more_parts_than_distinct_patches(monkeypatch):
    features = features_of(layouts(4, 3), noise=1e-6)  # three regions and the background, but for rounding
    assert fitted(features, (GRID, GRID), 4).num_parts == 4
    with pytest.raises(DataError, match=TEXT["5-distinct-patches-for-5-parts"]):
        fit_part_labels(features, (GRID, GRID), 5, seed=0)
    monkeypatch.setattr(part_labels, "CANDIDATES", range(4, 8))
    assert fitted(features, (GRID, GRID), "auto").num_parts == 4
    monkeypatch.setattr(part_labels, "CANDIDATES", range(5, 8))
    with pytest.raises(DataError, match="set fewer parts"):
        fit_part_labels(features, (GRID, GRID), "auto", seed=0)


def test_mean_and_scale_are_of_the_patches_with_the_background_at_zero():
    """One bright patch in the middle; one that reaches the threshold exactly, 0.6, is background yet."""
    features = torch.zeros(1, 9, 1, dtype=torch.float64)
    features[0, 4], features[0, 0] = 1.0, 0.6
    found = fitted(features, (3, 3), 2)
    assert (found.object_direction.tolist(), found.object_range.tolist()) == ([1], [0, 1])
    assert found.projection.tolist() == [[1, 0, 0]]
    assert found.projection_mean.tolist() == pytest.approx([1 / 9, 0, 0])
    assert found.projection_scale.tolist() == pytest.approx([8**0.5 / 9, 1, 1])
    assert found.centres[:, 0].tolist() == pytest.approx([-1 / 8**0.5, 8**0.5])


def test_one_image_per_category_is_enough_for_large_grids():
    ids = [5, 5, 2, 9, 2, 5, 9, 9] * 3
    chosen = sample_for_part_labels(ids, 1024, seed=0)
    assert [ids[index] for index in sorted(chosen, key=lambda index: ids[index])] == [2, 5, 9]
    assert chosen == sorted(chosen) == sample_for_part_labels(ids, 1024, seed=0)
    assert all(type(index) is int for index in chosen)
    draws = {tuple(sample_for_part_labels(ids, 1024, seed=seed)) for seed in range(20)}
    assert len(draws) > 1


def test_more_images_per_category_where_patches_are_few():
    ids = [index % 50 for index in range(1000)]
    chosen = sample_for_part_labels(ids, 4, seed=0)
    assert np.bincount([ids[index] for index in chosen]).tolist() == [10] * 50
    assert len(chosen) * 4 >= ENOUGH_PATCHES
    assert len(sample_for_part_labels(ids[:100], 4, seed=0)) == 100, "two of each are all there are"
    without_last = [each for each in ids if each != 49]
    assert len(sample_for_part_labels(without_last, 4, seed=0)) == 49 * 11
