"""Groups, mixtures, counts and spreads of drawn features are those of the commit before the rooms were joined.

``tests/golden/clustering.json`` was written by that commit's code. Numbers come from matrix products, which differ
between processors: they may be off by a thousandth. Labels and counts are equal.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from promptccd.clustering import (
    PRIORS,
    AnchoredKMeans,
    estimate_as_taught,
    estimate_by_split_merge,
    fit_gaussian_mixture,
    fit_part_labels,
    split_and_merge,
)
from promptccd.clustering.spread import measure_spread
from promptccd.clustering.stream import Stream

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "clustering.json").read_text(encoding="utf-8"))
Result = tuple[Sequence[Tensor], Sequence[float]]


def blobs(images: int, categories: int, width: int, spread: float = 0.9) -> tuple[Tensor, Tensor]:
    """Unit features of categories that overlap, and the categories."""
    generator = torch.Generator().manual_seed(width)
    centres = F.normalize(torch.randn(categories, width, generator=generator))
    labels = torch.arange(images) % categories
    noise = torch.randn(images, width, generator=generator)
    return F.normalize(centres[labels] + spread * noise / width**0.5), labels


def data(width: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    points, labels = blobs(300, 7, width)
    known = (labels < 4) & (torch.arange(300) % 3 == 0)
    return points, labels, known, torch.where(known, labels, -1)


def kmeans(width: int, fix: bool) -> Result:
    points, labels, known, _ = data(width)
    model = AnchoredKMeans(9, n_init=7, random_state=3, **{FIX: fix})
    model.fit(points[~known], points[known], labels[known] * 5)
    return [model.labels_, model.cluster_ids_, model.cluster_centers_], [model.inertia_, model.n_iter_]


def mixture(width: int, covariance: Any) -> Result:
    points, _, _, fixed = data(width)
    fit = fit_gaussian_mixture(
        points, 8, **{FIXED: fixed}, covariance_type=covariance, seed=5, floor_share=0.05
    )
    numbers = [fit.log_likelihood, fit.num_iterations, fit.converged]
    return [fit.means, fit.variances, fit.log_weights, fit.floor], numbers


def split(width: int) -> Result:
    points, _, _, fixed = data(width)
    found = split_and_merge(points, 5, **{FIXED: fixed}, seed=2)
    return [found.labels], [found.count, found.log_posterior, found.converged]


def search(width: int) -> Result:
    points, _, _, fixed = data(width)
    found = estimate_by_split_merge(points, 4, **{FIXED: fixed}, seed=9)
    return [], [found.low, found.count, found.high]


def counted(width: int, prior: str) -> Result:
    points, labels, known, fixed = data(width)
    taught = {"labelled": points[known], "labels": labels[known], "seed": 4, "prior": prior}
    found = estimate_as_taught(points, 4, **{FIXED: fixed}, **taught)
    return [], [found.low, found.count, found.high]


def spread(width: int) -> Result:
    points, labels, known, _ = data(width)
    means = torch.stack([points[labels == each].mean(0) for each in range(7)])
    rows = torch.where(torch.arange(300) % 11 == 0, -1, labels)
    found = measure_spread(points, rows, means, seed=4, labelled=known)
    values = vars(found).values()
    return [each for each in values if isinstance(each, Tensor)], [
        each for each in values if isinstance(each, int | float)
    ]


def stream(width: int) -> Result:
    earlier, labels = blobs(400, 5, width, 0.4)
    newest, _ = blobs(400, 8, width, 0.4)
    means = torch.stack([earlier[labels == each].mean(0) for each in range(5)])
    opened = Stream(newest, earlier, torch.arange(400) // 100, means, 4, 7).opened()
    return [opened.centres], [len(opened.centres), opened.doubtful, opened.missed]


def parts(number: Any) -> Result:
    generator = torch.Generator().manual_seed(1)
    patches = torch.randn(6, 16, 24, generator=generator)
    patches[:, 5:11] += 2 * torch.randn(24, generator=generator)
    found = fit_part_labels(patches, (4, 4), number, seed=3)
    return [found.projection, found.centres], [found.num_parts]


FIXED, FIX = "fixed", "fix_labelled"
CASES: dict[str, Callable[[], Result]] = {
    **{f"k-means {width} {fix}": lambda w=width, f=fix: kmeans(w, f) for width in (16, 80) for fix in (False, True)},
    **{f"mixture {kind}": lambda k=kind: mixture(16, k) for kind in ("diag", "spherical")},
    "mixture wide": lambda: mixture(80, "diag"),
    "split and merge": lambda: split(16),
    "search": lambda: search(80),
    **{f"count {prior}": lambda p=prior: counted(80, p) for prior in PRIORS},
    "spread": lambda: spread(16),
    "stream": lambda: stream(16),
    **{f"parts {number}": lambda n=number: parts(n) for number in (3, "auto")},
}  # fmt: skip


def described(result: Result) -> dict[str, Any]:
    """Whole numbers as they are, a weighted sum of every other tensor, and the numbers."""
    tensors, numbers = result
    whole = [each.tolist() for each in tensors if not each.is_floating_point()]
    weights = [torch.arange(1, each.numel() + 1) / each.numel() for each in tensors]
    sums = [
        float((each.double().flatten() * weight).sum())
        for each, weight in zip(tensors, weights, strict=True)
        if each.is_floating_point()
    ]
    return {"whole": whole, "sums": sums, "numbers": [float(each) for each in numbers]}


@pytest.mark.parametrize("name", CASES)
def test_results_are_those_of_before(name: str) -> None:
    found, expected = described(CASES[name]()), GOLDEN[name]
    assert found["whole"] == expected["whole"]
    assert found["sums"] == pytest.approx(expected["sums"], rel=1e-3, abs=1e-5)
    assert found["numbers"] == pytest.approx(expected["numbers"], rel=1e-3)
