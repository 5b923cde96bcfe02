import numpy as np
import pytest
import scipy.stats
import torch
from sklearn.metrics import silhouette_score

from promptccd.discovery.grouping.silhouettes import estimate_by_silhouette, log_likelihood, silhouette
from tests.clustering.test_split_merge import blobs


@pytest.mark.parametrize("sizes", [[12, 9, 15], [12, 9], [2, 9, 1]])
def test_silhouette_is_that_of_the_images_behind_the_centres(sizes):
    points, groups = blobs(sizes, width=16, spread=0.8)
    points = points.double()
    centres = torch.stack([points[groups == each].mean(0) for each in range(len(sizes))])
    expected = silhouette_score(torch.cdist(points, points).square().numpy(), groups, metric="precomputed")
    assert silhouette(points, groups, centres, points.new_empty(0)) == pytest.approx(expected, abs=1e-6)


def test_silhouette_counts_the_images_behind_known_prototypes():
    """Those of one known category are not here: an image's distances to them follow from their mean and variance."""
    points, groups = blobs([60, 30, 30], width=16, spread=0.8)
    points = points.double()
    behind = points[groups == 0]
    centres = torch.stack([points[groups == each].mean(0) for each in range(3)])
    here = torch.cat([behind[:20], points[groups > 0]])
    labels = torch.cat([torch.zeros(20, dtype=torch.int64), groups[groups > 0]])
    spread = (behind - behind.mean(0)).square().sum(1).mean()
    values = []
    for point, label in zip(here, labels.tolist(), strict=True):
        to = [(point - points[groups == each]).square().sum(1) for each in range(3)]
        sizes = [len(behind), *(int((groups == each).sum()) - (label == each) for each in (1, 2))]
        means = [float(each.sum() / size) for each, size in zip(to, sizes, strict=True)]
        others = min(mean for each, mean in enumerate(means) if each != label)
        values.append((others - means[label]) / max(others, means[label]))
    expected = sum(values) / len(values)
    assert silhouette(here, labels, centres, spread[None]) == pytest.approx(expected, abs=1e-6)


def test_the_likelihood_is_that_of_round_groups_of_one_variance():
    """Written out point by point, with the variance that fits best."""
    points, groups = blobs([30, 20, 10], width=4, spread=0.5)
    points = points.double()
    centres = torch.stack([points[groups == each].mean(0) for each in range(3)])
    costs = (points - centres[groups]).square().sum(1)
    variance = float(costs.sum() / (4 * 57))
    expected = -3 * 5 / 2 * np.log(60)
    for point, group in zip(points, groups.tolist(), strict=True):
        expected += np.log(float((groups == group).double().mean()))
        expected += scipy.stats.norm.logpdf(point.numpy(), centres[group].numpy(), np.sqrt(variance)).sum()
    # The variance is unbiased, so that images and dimensions do not quite cancel to N D / 2.
    expected += 4 * 57 / 2 - 4 * 60 / 2
    assert log_likelihood(costs, groups, 3, 4) == pytest.approx(float(expected))


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("likeliest", [3, 5, 7, 9])
def test_where_groups_overlap_the_likeliest_number_within_the_range_counts(likeliest, overlap):
    scores = {2: 0.3, 3: 0.45, 4: 0.499, 5: 0.5, 7: 0.46, 9: 0.2}  # 5 is not enough better than 4
    scores = {each: score / 2 if overlap else score for each, score in scores.items()}
    likelihoods = {each: -abs(each - likeliest) for each in scores}
    found = estimate_by_silhouette(scores, likelihoods)
    assert (found.low, found.high) == (3, 7)
    assert found.count == (min(likeliest, 7) if overlap else 4)


def test_without_structure_the_smallest_number_counts():
    scores = {1: 0.0, 2: 0.049, 3: 0.01, 4: -0.02}
    found = estimate_by_silhouette(scores, dict.fromkeys(scores, 0.0))
    assert (found.count, found.low, found.high) == (1, 1, 2)
