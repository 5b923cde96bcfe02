"""Clustering accuracy against all permutations, and Algorithm 1 on features a person can check."""

import itertools
import time

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from promptccd.errors import DataError
from promptccd.evaluation import (
    ContinualAccuracy,
    clustering_accuracy,
    continual_accuracy,
    discover_categories,
    separate_clustering_accuracy,
)
from promptccd.evaluation.accuracy import matched_categories


def brute_force(y_true: np.ndarray, y_pred: np.ndarray, old: set[int]) -> list[tuple[float, float, float]]:
    """Accuracies of every best one-to-one map from clusters to categories."""
    clusters, categories = sorted(set(y_pred)), sorted(set(y_true))
    slots = categories + [None] * len(clusters)
    best, results = -1, []
    for chosen in set(itertools.permutations(slots, len(clusters))):
        mapping = dict(zip(clusters, chosen, strict=True))
        right = np.array([mapping[p] == t for p, t in zip(y_pred, y_true, strict=True)])
        is_old = np.array([t in old for t in y_true])
        kinds = (right, right[is_old], right[~is_old])
        parts = [100 * each.mean() if len(each) else np.nan for each in kinds]
        if right.sum() > best:
            best, results = right.sum(), []
        if right.sum() == best:
            results.append(tuple(parts))
    return results


@pytest.mark.moderate
@pytest.mark.fault(34)
def test_equals_brute_force_over_all_matchings() -> None:
    generator = np.random.default_rng(0)
    for _ in range(300):
        n, c, k = generator.integers(1, 12), generator.integers(1, 5), generator.integers(1, 5)
        y_true, y_pred = generator.choice([0, 2, 3, 7], n) % (c + 4), generator.integers(0, k, n) * 5
        old = {0, 2}
        found = clustering_accuracy(y_true, y_pred, old)
        assert any(np.allclose(found, wanted, equal_nan=True) for wanted in brute_force(y_true, y_pred, old))


def test_names_of_clusters_do_not_matter_and_text_is_scored_as_tables_hold_it() -> None:
    y_true = ["cat", "cat", "dog", "dog", "owl"]
    assert clustering_accuracy(y_true, [9, 9, 4, 4, 0], ["cat", "dog"]) == (100.0, 100.0, 100.0)
    assert clustering_accuracy(y_true, ["x", "x", "x", "x", "y"], ["cat"]).all == pytest.approx(60.0)
    for old in (np.array(["cat"], dtype=object), {"cat"}):
        found = clustering_accuracy(np.array(y_true, dtype=object), [0, 0, 1, 1, 2], old)
        assert found == (100.0, 100.0, 100.0)


def test_a_cluster_is_matched_to_a_category_it_shares_images_with() -> None:
    true, found = [0] * 14 + [1] * 8 + [2] * 2, [0] * 10 + [1] * 4 + [3] * 8 + [0] * 2
    assert matched_categories(true, found) == {0: 0, 3: 1}  # SciPy also pairs cluster 1 with category 2
    assert clustering_accuracy(true, found, [0, 1]) == (75.0, pytest.approx(100 * 18 / 22), 0.0)


def test_separate_assignments_are_the_best_for_each_part() -> None:
    """Against all permutations of each part, never below the joint matching, All their weighted mean."""
    generator = np.random.default_rng(4)
    for _ in range(200):
        n, k = generator.integers(2, 12), generator.integers(1, 5)
        y_true, y_pred = generator.choice([0, 2, 3, 7], n), generator.integers(0, k, n) * 5
        found = separate_clustering_accuracy(y_true, y_pred, {0, 2})
        joint = clustering_accuracy(y_true, y_pred, {0, 2})
        is_old = np.isin(y_true, [0, 2])
        share, parts = is_old.mean(), {}
        for name, mask in (("old", is_old), ("new", ~is_old)):
            if mask.any():
                best = brute_force(y_true[mask], y_pred[mask], {0, 2})[0][0]
                assert getattr(found, name) == pytest.approx(best)
                assert getattr(found, name) >= getattr(joint, name) - 1e-9
                parts[name] = best
            else:
                assert np.isnan(getattr(found, name))
        expected = share * parts.get("old", 0) + (1 - share) * parts.get("new", 0)
        assert found.all == pytest.approx(expected, abs=1e-9)


@pytest.mark.fault(34)
@pytest.mark.parametrize(
    ("kind", "offset"),
    [("int8", -128), ("uint8", 0), ("uint64", 2**64 - 200), ("int64", -(2**63)), ("int32", 5)],
)
def test_labels_of_any_width_are_the_same_labels(kind: str, offset: int) -> None:
    true, found = np.repeat(np.arange(0, 200, 2), 3), np.random.default_rng(0).integers(0, 200, 300)
    shifted = [np.array([offset + each for each in labels.tolist()], dtype=kind) for labels in (true, found)]
    old = range(offset, offset + 100)
    assert clustering_accuracy(*shifted, old) == clustering_accuracy(true, found, range(100))


@pytest.mark.parametrize(
    ("y_true", "y_pred", "old", "said"),
    [
        ([1, 2], [1], [1], "2 and 1"),
        ([], [], [1], "at least one"),
        ([1.5, 2.0], [1, 2], [1], "float64"),
        ([1, 2], [[1, 2]], [1], "shape"),
        ([0, 0, 1], [0, 0, 1], ["0"], "such as 0, got .0."),
        (["0", "0", "1"], [0, 0, 1], [0], "such as .0., got 0"),
        (["cat", "dog", "dog"], [0, 0, 1], "cat", r"a sequence such as \['cat'\], got 'cat'"),
        ([0, 0, 1], [0, 0, 1], 1, r"a sequence such as \[1\], got 1"),
        ([0, 0, 1], [0, 0, 1], [0.5], "old_classes to be a flat sequence of integers or strings"),
    ],
)
def test_bad_input_is_named(y_true: list, y_pred: list, old: object, said: str) -> None:
    for score in (clustering_accuracy, separate_clustering_accuracy):
        with pytest.raises(DataError, match=said):
            score(y_true, y_pred, old)


@pytest.mark.fault(35)
def test_a_mistake_of_one_stage_stands_at_the_next() -> None:
    """Algorithm 1 by hand: two images of category 1 that look like the new one settle its cluster with them."""
    looks = torch.eye(8)
    features = [
        looks[[0, 0, 0, 1, 1, 1]],
        looks[[0, 0, 2, 2, 2, 2, 2, 2]],
        looks[[2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3]],
    ]
    labels = [
        np.array([0, 0, 0, 1, 1, 1]),
        np.array([0, 0, 1, 1, 2, 2, 2, 2]),  # the two of category 1 are grouped with the new category 2
        np.array([1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3]),  # and so are those of the next stage
    ]
    score = continual_accuracy(lambda t: features[: t + 1], labels, [2, 3, 4], num_known=2, restarts=5)
    first, second = score.stages
    assert (first.all, first.old, first.new) == pytest.approx((100 * 6 / 8, 100 * 2 / 4, 100.0))
    assert (second.all, second.old, second.new) == pytest.approx((100 * 8 / 11, 0.0, 100.0))
    assert score.average["all"] == pytest.approx(100 * (6 / 8 + 8 / 11) / 2)  # stages weigh the same


@pytest.mark.fault(35)
def test_what_was_predicted_is_the_reference_and_not_the_truth() -> None:
    """A category that was split at stage 1 stays split at stage 2, however clear its images are by then."""
    looks = normalize(torch.tensor([[1.0, 0, 0], [0, 1.0, 0], [0, 0.1, 1.0], [0, -0.1, 1.0]]))
    known, split = looks[[0, 0, 1, 1]], looks[[2, 2, 2, 3, 3, 3]]
    labels = [np.array([0, 0, 1, 1]), np.full(6, 2), np.full(6, 2)]
    features = [known, split, split]
    score = continual_accuracy(lambda t: features[: t + 1], labels, [2, 4, 4], num_known=2, restarts=5)
    assert [row.all for row in score.stages] == [50.0, 50.0]  # with the truth as reference the second is 100
    earlier, true_labels = torch.cat([known, split]), np.r_[labels[0], labels[1]]
    truth = discover_categories(split, earlier, true_labels, 3, restarts=5, seed=0)
    assert set(truth.category_ids.tolist()) == {2}


@pytest.mark.slow
@pytest.mark.fault(32)
def test_ten_stages_and_a_thousand_categories_are_linear_and_keep_their_ids() -> None:
    """Stages 3 and 6 bring nothing new. Four times the images take about four times the time, not sixteen."""
    blocks = [600, 50, 50, 0, 50, 50, 0, 50, 50, 50, 50]
    counts = np.cumsum(blocks)
    looks = normalize(torch.randn(1000, 64, generator=torch.Generator().manual_seed(0)))
    seconds = {}
    for per_category in (1, 4):
        labels = [np.tile(np.arange(count), per_category) for count in counts]
        features = [looks[torch.from_numpy(each)] for each in labels]
        protocol = ContinualAccuracy(labels[0], 600, restarts=1, seed=3)
        started = time.process_time()
        for stage in range(1, len(blocks)):
            found = protocol.discover(features[: stage + 1], int(counts[stage]))
            assert len(found.prototype_ids) <= counts[stage]
        seconds[per_category] = time.process_time() - started
        given: dict[int, int] = {}
        for stage_labels, ids in zip(labels, protocol.assigned, strict=True):
            for category, identity in set(zip(stage_labels.tolist(), ids.tolist(), strict=True)):
                assert given.setdefault(category, identity) == identity
        assert sorted(given.values()) == list(range(1000))
    assert seconds[4] < 9 * seconds[1], seconds


@pytest.mark.parametrize("accumulate", [True, False], ids=["cacc", "gcd"])
@pytest.mark.parametrize("seed", range(12))
def test_an_id_is_given_once_whatever_the_features(seed: int, accumulate: bool) -> None:
    """A new id of a stage was in no earlier stage; one that was is settled for this stage's reference."""
    generator = np.random.default_rng(seed)
    sizes, counts = generator.integers(12, 40, 5), [3, *(3 + np.cumsum(generator.integers(1, 4, 4))).tolist()]
    features = [normalize(torch.from_numpy(generator.standard_normal((size, 6)))) for size in sizes]
    protocol = ContinualAccuracy(np.arange(sizes[0]) % 3, 3, restarts=2, seed=seed, accumulate=accumulate)
    for stage in range(1, 5):
        earlier = protocol.assigned[:stage]
        earlier_ids = set(np.concatenate(earlier if accumulate else earlier[:1]).tolist())
        found = protocol.discover(features[: stage + 1], counts[stage])
        given = set(found.category_ids.tolist())
        used = set(np.concatenate(earlier).tolist())
        assert (given - earlier_ids).isdisjoint(used)
        assert given <= set(found.prototype_ids)
        assert len(found.prototype_ids) == len(set(found.prototype_ids)) == len(found.prototypes)
    assert [len(ids) for ids in protocol.assigned] == sizes.tolist()


def test_discovered_ids_have_no_gaps_and_the_largest_comes_first_and_of_equals_the_first_seen() -> None:
    looks = torch.eye(41)
    features = looks[torch.tensor([0, 0, 3, 3, 3, 3, 5])]
    found = discover_categories(features, looks[[0] * 5], np.zeros(5, dtype=int), 3, restarts=3, seed=0)
    assert found.category_ids.tolist() == [0, 0, 1, 1, 1, 1, 2]
    order = np.random.default_rng(0).permutation(40)
    found = discover_categories(looks[1 + order.repeat(2)], looks[:1], np.array([0]), 41, restarts=1, seed=0)
    assert found.category_ids.tolist() == (1 + np.arange(40).repeat(2)).tolist()
