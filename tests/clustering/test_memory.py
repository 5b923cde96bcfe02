"""What fits take beside the features, which a device has to hold: a million images of ViT-B are 3.1 GB."""

import weakref
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from promptccd.clustering import (
    CalibratedMixture,
    calibrated,
    fit_gaussian_mixture,
    kmeans,
    mixture_fit,
    spread,
)
from promptccd.clustering.spread import measure_spread

IMAGES, WIDTH, CATEGORIES = 40_000, 96, 4
FEATURES = IMAGES * WIDTH * 4


class TensorMemory(TorchDispatchMode):
    """Counts the bytes of tensors that operators make in this block while they live.

    What was there before is not counted, nor what a kernel needs for itself.

    Attributes:
        peak: most bytes at once so far.
    """

    def __init__(self) -> None:
        super().__init__()
        self.peak = self.now = 0
        self._alive: dict[int, weakref.ref[Any]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        tensors = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
        given = {id(each.untyped_storage()) for each in tensors}
        for each in tree_leaves(result):
            if isinstance(each, Tensor) and id(each.untyped_storage()) not in given | self._alive.keys():
                self._count(each.untyped_storage())
        return result

    def _count(self, storage: torch.UntypedStorage) -> None:
        key, size = id(storage), storage.nbytes()

        def freed(_: Any) -> None:
            self.now -= size
            del self._alive[key]

        self._alive[key] = weakref.ref(storage, freed)
        self.now += size
        self.peak = max(self.peak, self.now)


@pytest.fixture(scope="module")
def features() -> tuple[Tensor, Tensor, Tensor]:
    """Features, their categories and prototypes."""
    generator = torch.Generator().manual_seed(0)
    prototypes = F.normalize(torch.randn(CATEGORIES, WIDTH, generator=generator))
    rows = torch.arange(IMAGES) % CATEGORIES
    points = prototypes[rows] + 0.1 * torch.randn(IMAGES, WIDTH, generator=generator)
    return F.normalize(points), rows, prototypes


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """As small beside these features as they are beside those of a million images."""
    monkeypatch.setattr(kmeans, "MAX_BATCH_AFFINITIES", 2**18)
    monkeypatch.setattr(mixture_fit, "SQUARES_AT_ONCE", 2**18)
    monkeypatch.setattr(spread, "DOUBLES_AT_ONCE", 2**18)
    monkeypatch.setattr(calibrated, "VALUES_AT_ONCE", 2**18)
    monkeypatch.setattr(calibrated, "MOST_STARTED", 2**11)
    monkeypatch.setattr(calibrated, "AFFINITIES_AT_ONCE", 2**18)


@pytest.mark.moderate
def test_a_calibrated_mixture_learns_a_stream_in_one_and_a_half_times_its_features(features) -> None:
    points, rows, _ = features
    mixture = CalibratedMixture().fit(points[rows < 2][:400], rows[rows < 2][:400])
    with TensorMemory() as memory:
        mixture.partial_fit(points, num_categories=CATEGORIES)
    assert memory.peak < 1.5 * FEATURES
    assert (mixture.predict(points) == rows.numpy()).mean() > 0.95


@pytest.mark.moderate
def test_so_does_a_stream_of_ten_thousand_images_with_the_usual_blocks(monkeypatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(calibrated, "STEPS", 1)
    points = torch.randn(10_000, 768)
    mixture = CalibratedMixture().fit(points[:300], torch.arange(300) % 15)
    with TensorMemory() as memory:
        mixture.partial_fit(points, num_categories=20)
    assert memory.peak < 1.5 * points.nbytes


@pytest.mark.slow
@pytest.mark.parametrize("covariance_type", ["diag", "spherical"])
@pytest.mark.parametrize("known", [0, CATEGORIES // 2])
def test_a_mixture_is_fitted_in_two_and_a_half_times_its_features(features, covariance_type, known) -> None:
    points, rows, _ = features
    fixed = torch.where(rows < known, rows, -1)
    with TensorMemory() as memory:
        fit_gaussian_mixture(
            points, CATEGORIES, fixed=fixed, covariance_type=covariance_type, max_iter=2, seed=1
        )
    assert 1 < memory.peak / FEATURES < 2.5


@pytest.mark.moderate
def test_a_spread_is_measured_in_less_than_its_features(features) -> None:
    with TensorMemory() as memory:
        measure_spread(*features, seed=1)
    assert memory.peak < FEATURES
    bytes_per_image = WIDTH * 8  # in float64
    assert memory.peak > 4_096 * bytes_per_image


@pytest.mark.moderate
def test_how_much_is_read_at_once_changes_no_spread_and_images_of_no_row_are_left_out(
    features, monkeypatch
) -> None:
    points, rows, prototypes = features[0][:1_003], features[1][:1_003], features[2]
    counts, given = torch.arange(len(rows)) % 5 > 0, torch.arange(len(rows)) < 600
    of_rows = measure_spread(points[counts], rows[counts], prototypes, seed=1, labelled=given[counts])
    monkeypatch.setattr(spread, "DOUBLES_AT_ONCE", 7 * WIDTH)
    blocked = measure_spread(points, torch.where(counts, rows, -1), prototypes, seed=1, labelled=given)
    for name in ("spreads", "typical", "reach", "border", "slope", "temperature", "separation"):
        torch.testing.assert_close(getattr(of_rows, name), getattr(blocked, name), rtol=1e-6, atol=0)
    metrics = [each.whitener @ each.whitener.T for each in (of_rows, blocked)]
    torch.testing.assert_close(*metrics, rtol=1e-5, atol=1e-5)
