import pytest
import torch

from promptccd.data.randomness import seed_of
from promptccd.errors import DataError
from promptccd.evaluation import counting as module
from promptccd.evaluation.counting import COUNTS, estimate_by_accuracy
from promptccd.training.options import TrainingArguments


def stage(num_old=8, num_new=4, per_category=30, spread=0.3, width=32, seed=0):
    """Features of old categories, half of them labelled, and of new ones: labelled, labels, unlabelled."""
    generator = torch.Generator().manual_seed(seed)
    groups = torch.arange(num_old + num_new).repeat_interleave(per_category)
    centres = torch.randn(num_old + num_new, width, generator=generator)
    points = centres[groups] + spread * torch.randn(len(groups), width, generator=generator)
    points = torch.nn.functional.normalize(points, dim=1)
    known = (groups < num_old) & (torch.arange(len(groups)) % 2 == 0)
    return points[known], groups[known], points[~known]


@pytest.mark.parametrize("seed", range(3))
def test_finds_about_the_true_count_of_separated_categories(seed):
    estimate = estimate_by_accuracy(*stage(seed=seed), restarts=5, seed=0)
    assert 10 <= estimate.count <= 14
    assert "labelled accuracy" in str(estimate)


def scripted(monkeypatch, accuracy, given=None):
    """Replaces k-means by a table of accuracies; returns the counts tried, in order. `given` gets how each was."""
    tried = []

    class Clusters:
        def __init__(self, n_clusters, n_init, random_state):
            tried.append(n_clusters)
            if given is not None:
                given.append((n_init, random_state))

        def fit_predict(self, points):
            return torch.zeros(len(points), dtype=torch.int64)

    monkeypatch.setattr(module, "AnchoredKMeans", Clusters)
    monkeypatch.setattr(
        module, "clustering_accuracy", lambda *_: type("Accuracy", (), {"all": accuracy(tried[-1])})
    )
    return tried


@pytest.mark.parametrize("best", [8, 11, 14, 16])
def test_search_reaches_every_count_and_tries_none_twice(monkeypatch, best):
    tried = scripted(monkeypatch, lambda count: 100 - 5.0 * abs(count - best))
    assert estimate_by_accuracy(*stage(), restarts=1, seed=0).count == best
    assert len(tried) == len(set(tried))
    assert min(tried) >= 8 and max(tried) <= 16


@pytest.mark.parametrize("most", [None, 9])
def test_a_run_counts_with_three_restarts_its_own_seed_and_at_most_as_many_as_it_allows(monkeypatch, most):
    given = []
    tried = scripted(monkeypatch, lambda count: 50.0 + count, given)
    arguments = TrainingArguments(category_count="kmeans", count_prior="paper", max_categories=most, seed=3)
    labelled, labels, unlabelled = stage()
    found = COUNTS["kmeans"](arguments).estimate(2, [labelled, unlabelled], [labels.numpy()])
    assert found.count == max(tried) == (16 if most is None else most)
    assert set(given) == {(3, seed_of("count", 3, 2))}


def test_the_smallest_of_equals_and_the_counts_within_a_point(monkeypatch):
    assert module._estimate({8: 70.0, 9: 89.0, 11: 90.0, 12: 90.0, 13: 88.9, 14: 89.9}).to_dict() == {
        "count": 11,
        "low": 9,
        "high": 12,
        "method": "labelled accuracy of k-means",
        "margin": "1 point of labelled accuracy",
    }


def test_one_possible_count_needs_no_search():
    assert estimate_by_accuracy(*stage(), max_count=8, restarts=1, seed=0).range == (
        8,
        9,
    )  # no estimate is certain


def test_bad_input_is_one_clear_line():
    labelled, labels, unlabelled = stage()

    def refused(match, *data, **options):
        with pytest.raises(DataError, match=match):
            estimate_by_accuracy(*data, restarts=1, seed=0, **options)

    refused(r"max_count >= number of labelled categories \(8\), got 7", *stage(), max_count=7)
    refused(r"n_clusters <= number of samples \(360\)", *stage(), max_count=1000)
    nan = torch.full((1, 32), torch.nan)
    refused("NaN or infinity in row 120", labelled, labels, torch.cat([nan, unlabelled]))
