import copy
import warnings
from itertools import pairwise

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans

from promptccd.clustering import kmeans as module
from tests.messages import TEXT


class AnchoredKMeans(module.AnchoredKMeans):
    """The same with arrays, which the loops of these tests have."""

    def fit(self, *arrays):
        super().fit(*map(torch.from_numpy, arrays))
        for name in ("labels_", "cluster_centers_", "cluster_ids_"):
            setattr(self, name, getattr(self, name).numpy())
        return self


def blobs(sizes, width=16, spread=0.6, seed=0, dtype=np.float32):
    """Overlapping groups on the unit sphere: points `(N, D)` and their group `(N,)`, shuffled."""
    generator = np.random.default_rng(seed)
    groups = generator.permutation(np.repeat(np.arange(len(sizes)), sizes))
    centres = generator.normal(size=(len(sizes), width))
    points = centres[groups] + spread * generator.normal(size=(len(groups), width))
    return (points / np.linalg.norm(points, axis=1, keepdims=True)).astype(dtype), groups


def mixed(seed=0, spread=0.9, dtype=np.float32):
    """Ten groups, the first six labelled in part: unlabelled, labelled, labels."""
    points, groups = blobs([40] * 10, spread=spread, seed=seed, dtype=dtype)
    known = (groups < 6) & (np.arange(len(groups)) % 3 != 0)
    return points[~known], points[known], groups[known]


def squared_distances(points, centres):
    return np.stack([((points - centre) ** 2).sum(1) for centre in centres.astype(np.float64)], axis=1)


def lloyd_step(model, unlabelled, labelled, labels):
    """The algorithm as a loop: nearest centre, then the mean of labelled and unlabelled members."""
    assigned = model.cluster_ids_[squared_distances(unlabelled, model.cluster_centers_).argmin(1)]
    centres = model.cluster_centers_.astype(np.float64).copy()
    for row, category in enumerate(model.cluster_ids_):
        members = np.concatenate([unlabelled[assigned == category], labelled[labels == category]])
        if len(members):
            centres[row] = members.mean(0, dtype=np.float64)
    return assigned, centres


def loop_inertia(model, unlabelled, labelled, labels):
    rows = {category: row for row, category in enumerate(model.cluster_ids_)}
    own = model.cluster_centers_[[rows[label] for label in labels]].astype(np.float64)
    nearest = squared_distances(unlabelled, model.cluster_centers_).min(1).sum()
    return nearest + ((labelled - own) ** 2).sum()


@pytest.mark.parametrize("iterations", [1, 2, 7])
def test_iterations_equal_the_plain_loop_from_class_means(iterations):
    # All clusters labelled: the start is known, so every iteration can be followed.
    unlabelled, labelled, labels = mixed(spread=1.5, dtype=np.float64)
    model = AnchoredKMeans(6, 1, max_iter=iterations, tol=0.0).fit(unlabelled, labelled, labels)
    plain = copy.copy(model)
    plain.cluster_ids_ = np.arange(6)
    plain.cluster_centers_ = np.stack([labelled[labels == category].mean(0) for category in range(6)])
    for _ in range(iterations):
        plain.cluster_centers_ = lloyd_step(plain, unlabelled, labelled, labels)[1]
    np.testing.assert_allclose(model.cluster_centers_, plain.cluster_centers_, atol=1e-12)
    assert model.n_iter_ == iterations
    assert model.inertia_ == pytest.approx(loop_inertia(model, unlabelled, labelled, labels), rel=1e-9)


def test_stops_at_the_squared_sum_of_movements():
    unlabelled, labelled, labels = mixed(spread=1.5, dtype=np.float64)
    path = [
        AnchoredKMeans(6, 1, max_iter=n, tol=0.0).fit(unlabelled, labelled, labels).cluster_centers_
        for n in range(1, 9)
    ]
    movement = [np.linalg.norm(b - a, axis=1).sum() ** 2 for a, b in pairwise(path)]
    tol = movement[2] * 1.01
    assert movement[1] > tol
    assert AnchoredKMeans(6, 1, tol=tol).fit(unlabelled, labelled, labels).n_iter_ == 4


def test_ids_with_gaps_come_back_and_new_ids_follow_the_largest():
    unlabelled, labelled, labels = mixed()
    plain = AnchoredKMeans(10, n_init=5, random_state=0).fit(unlabelled, labelled, labels)
    ids = np.array([3, 7, 8, 20, 21, 90])
    gaps = AnchoredKMeans(10, n_init=5, random_state=0).fit(unlabelled, labelled, ids[labels])
    assert gaps.cluster_ids_.tolist() == [3, 7, 8, 20, 21, 90, 91, 92, 93, 94]
    assert (gaps.cluster_ids_[plain.labels_] == gaps.labels_).all()
    new = [label for label in gaps.labels_ if label > 90]
    assert list(dict.fromkeys(new)) == [91, 92, 93, 94]  # numbered as they appear


def test_empty_cluster_keeps_its_centre():
    # Every unlabelled point is a copy of one of two, so of three new clusters one or more stay empty.
    unlabelled = np.repeat([[0.0, 1.0], [1.0, 0.0]], 5, axis=0)
    labelled, labels = np.array([[5.0, 5.0], [5.0, 5.2]]), np.array([0, 0])
    model = AnchoredKMeans(4, n_init=3, random_state=0).fit(unlabelled, labelled, labels)
    assert np.isfinite(model.cluster_centers_).all()
    assert model.labels_.tolist() == [1] * 5 + [2] * 5
    np.testing.assert_allclose(model.cluster_centers_[0], [5.0, 5.1])
    assert model.inertia_ == pytest.approx(0.02)


def test_how_many_restarts_are_batched_changes_nothing():
    fits = [
        AnchoredKMeans(10, 7, random_state=5, affinities_at_once=most).fit(*mixed(spread=1.5))
        for most in (None, 1, 3 * 10 * 240)
    ]
    assert all((each.labels_ == fits[0].labels_).all() for each in fits)


def test_float32_survives_features_far_from_the_origin():
    unlabelled, labelled, labels = mixed(dtype=np.float64)
    near = AnchoredKMeans(10, n_init=4, random_state=0).fit(unlabelled, labelled, labels)
    shifted = [(each + 300).astype(np.float32) for each in (unlabelled, labelled)]
    far = AnchoredKMeans(10, n_init=4, random_state=0).fit(*shifted, labels)
    assert (near.labels_ == far.labels_).mean() > 0.99
    assert far.inertia_ == pytest.approx(near.inertia_, rel=1e-3)


def starts_of(points, class_means, draws):
    """Class means, then centres drawn by squared distance, of each few the one that helps most: as loops.

    Args:
        points: `(N, D)`.
        class_means: `(C, D)`.
        draws: `(new clusters, trials)` in [0, 1).
    """
    centres = [*class_means]
    for candidates in draws:
        nearest = squared_distances(points, np.stack(centres)).min(1) if centres else np.ones(len(points))
        shares = np.cumsum(nearest) / nearest.sum()
        drawn = [points[int((shares <= draw).sum())] for draw in candidates]
        left = [squared_distances(points, np.stack([*centres, each])).min(1).sum() for each in drawn]
        centres.append(drawn[int(np.argmin(left))])
    return np.stack(centres)


@pytest.mark.parametrize("num_classes", [0, 2])
def test_starts_are_those_of_greedy_k_means_plus_plus(num_classes):
    unlabelled, groups = blobs([12] * 6, width=5, spread=1.0, dtype=np.float64)
    labelled, labels = blobs([4] * 3, width=5, spread=1.0, dtype=np.float64)
    labelled, labels = labelled[labels < num_classes], labels[labels < num_classes]
    tensors = [torch.from_numpy(each) for each in (unlabelled, labelled, labels)]
    problem = module.prepare(*tensors, num_classes, num_classes + 3, 0)
    draws = np.random.default_rng(0).random((40, 3, 4))
    started = module.start(problem, torch.arange(40), torch.from_numpy(draws))
    means = [labelled[labels == each].mean(0) for each in range(num_classes)]
    expected = np.stack([starts_of(unlabelled, means, each) for each in draws])
    np.testing.assert_allclose(started.centres + problem.mean_point, expected, atol=1e-9)


@pytest.mark.parametrize(("n_clusters", "spread"), [(10, 0.9), (30, 1.5)])
def test_without_labels_as_good_as_scikit_learn(n_clusters, spread):
    points = blobs([60] * 12, width=32, spread=spread)[0]
    ours = AnchoredKMeans(n_clusters, n_init=20, random_state=0).fit(points)
    theirs = KMeans(n_clusters, n_init=20, random_state=0).fit(points)
    assert ours.inertia_ <= theirs.inertia_ * 1.001


@pytest.mark.fault(29)
def test_fewer_clusters_than_categories_are_raised_with_a_warning():
    unlabelled, labelled, labels = mixed()
    with pytest.warns(UserWarning, match=TEXT["n-clusters-4-is-below-the"]):
        model = AnchoredKMeans(4, 1).fit(unlabelled, labelled, labels)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        exact = AnchoredKMeans(6, 1).fit(unlabelled, labelled, labels)
    assert model.cluster_ids_.tolist() == list(range(6))
    assert (model.labels_ == exact.labels_).all()


@pytest.mark.fault(28, 29, 30)
@pytest.mark.parametrize(
    ("points", "n_clusters", "labels"),
    [
        (np.ones((1, 3)), 1, [0]),
        (np.full((8, 4), 0.3, np.float32), 3, [0] * 8),  # equal points share one cluster
        (np.eye(12, 16), 12, list(range(12))),
    ],
    ids=["one point", "equal points", "as many clusters as points"],
)
def test_degenerate_points(points, n_clusters, labels):
    model = AnchoredKMeans(n_clusters, n_init=2, random_state=0).fit(points)
    assert sorted(model.labels_) == labels
    assert np.isfinite(model.cluster_centers_).all()
    assert model.inertia_ == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((np.ones((12, 2)),), r"Expected n_clusters <= number of samples \(12\), got 20: ask for fewer"),
        ((np.ones((2, 2)), np.ones((3, 2)), np.array([0, 0, 4])), r"unlabelled samples \(4\), got 20"),
        ((np.ones((0, 2)),), r"number of samples \(0\), got 20"),
        ((np.diag([1, 1, 1, np.nan]),), r"NaN or infinity in row 3 of features_unlabelled"),
        ((np.eye(4), np.diag([1, 1, 1, np.inf]), np.zeros(4, int)), r"in row 3 of features_labelled"),
        ((np.ones(4),), r"features_unlabelled of shape \(N, D\), got \(4,\)"),
    ],
)
def test_errors_say_what_and_where(arguments, message):
    with pytest.raises(ValueError, match=message) as caught:
        AnchoredKMeans(20, 1).fit(*arguments)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_result_is_a_fixed_point_of_the_plain_algorithm(dtype):
    data = mixed(dtype=dtype)
    model = AnchoredKMeans(10, n_init=5, tol=0.0, max_iter=500, random_state=0).fit(*data)
    assigned, centres = lloyd_step(model, *data)
    assert model.n_iter_ < 500
    assert (assigned == model.labels_).all()
    np.testing.assert_allclose(centres, model.cluster_centers_, atol=1e-6)
    assert model.inertia_ == pytest.approx(loop_inertia(model, *data), rel=1e-9)


def test_held_centres_stay_and_the_others_settle_beside_them():
    unlabelled, labelled, labels = mixed(spread=0.7)
    model = AnchoredKMeans(10, 20, random_state=0, fix_labelled=True).fit(unlabelled, labelled, labels)
    for row in range(6):
        np.testing.assert_allclose(model.cluster_centers_[row], labelled[labels == row].mean(0), atol=1e-6)
    nearest = squared_distances(unlabelled, model.cluster_centers_).argmin(1)
    assert (model.cluster_ids_[nearest] == model.labels_).all()
    for row in range(6, 10):
        mine = unlabelled[model.labels_ == model.cluster_ids_[row]]
        np.testing.assert_allclose(model.cluster_centers_[row], mine.mean(0), atol=1e-5)
    free = AnchoredKMeans(10, 20, random_state=0).fit(unlabelled, labelled, labels)
    assert np.abs(free.cluster_centers_[:6] - model.cluster_centers_[:6]).max() > 1e-3
