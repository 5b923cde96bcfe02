"""Two estimators as scikit-learn expects them, on real digits."""

import doctest
import itertools
import sys

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.preprocessing import StandardScaler

from promptccd.clustering import CalibratedMixture, CategoryCounter, SemiSupervisedKMeans
from promptccd.clustering.kmeans import AnchoredKMeans
from promptccd.evaluation import clustering_accuracy
from tests.messages import TEXT


@pytest.fixture(scope="module")
def digits() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Points, their digits, and what is known of them: a third of those below six."""
    points, ids = (each[:600] for each in load_digits(return_X_y=True))
    return points, ids, np.where((ids < 6) & (np.arange(600) % 3 == 0), ids, -1)


@pytest.mark.slow
@pytest.mark.parametrize("estimator", [SemiSupervisedKMeans(n_clusters=3), CategoryCounter()], ids=str)
def test_scikit_learn_finds_nothing_to_say(estimator) -> None:
    from sklearn.utils.estimator_checks import check_estimator  # for no other test

    found = check_estimator(estimator, on_fail=None)
    assert [each["check_name"] for each in found if each["status"] == "failed"] == []
    assert len(found) > 40


def test_labelled_points_keep_their_category_and_others_find_one(digits) -> None:
    points, ids, known = digits
    before = known.copy()
    kmeans = SemiSupervisedKMeans(10, random_state=1)
    assert kmeans.fit(points, known) is kmeans
    assert np.array_equal(known, before)
    free = known < 0
    assert np.array_equal(kmeans.labels_[~free], known[~free])
    parts = map(torch.from_numpy, (points[free], points[~free], known[~free]))
    apart = AnchoredKMeans(10, 10, random_state=1).fit(*parts)
    assert np.array_equal(kmeans.labels_[free], apart.labels_.numpy())
    assert kmeans.inertia_ == apart.inertia_ and kmeans.n_iter_ == apart.n_iter_
    assert np.array_equal(kmeans.cluster_ids_, np.arange(10))
    assert np.array_equal(kmeans.predict(points)[free], kmeans.labels_[free])
    assert clustering_accuracy(ids[free], kmeans.labels_[free], range(6)).all > 0.75
    assert np.array_equal(clone(kmeans).fit_predict(points, known), kmeans.labels_)
    assert kmeans.score(points[free]) > -apart.inertia_


def test_parameters_are_those_of_scikit_learn(digits) -> None:
    points, _, known = digits
    few = {"n_clusters": 9, "n_init": 2, "max_iter": 5, "tol": 0.1, "fix_labelled": True}
    kmeans = SemiSupervisedKMeans(**few, random_state=np.random.RandomState(3))
    assert {**kmeans.get_params(), **few} == kmeans.get_params()
    found = kmeans.fit_predict(points, known)
    again = SemiSupervisedKMeans(**few, random_state=np.random.RandomState(3)).fit_predict(points, known)
    assert np.array_equal(found, again) and kmeans.n_iter_ <= 5
    means = np.stack([points[known == each].mean(0) for each in range(6)])
    np.testing.assert_allclose(kmeans.cluster_centers_[:6], means, atol=1e-12)
    other = SemiSupervisedKMeans(**few, random_state=4).fit(points, known)
    assert other.inertia_ != kmeans.inertia_
    once = SemiSupervisedKMeans(9, n_init=1, random_state=0).fit(points)
    assert once.inertia_ > SemiSupervisedKMeans(9, random_state=0).fit(points).inertia_


@pytest.mark.parametrize(
    ("y", "said"),
    [
        ([0, -1, 0.5, 1], "whole numbers from 0 on in y, and -1 for unknown, got .*0.5"),
        ([-2, -1, 0, 1], "got .*-2"),
        ([0, np.nan, 0, 1], "got .*nan"),
        ([0, 1, 2, np.inf], "got .*inf"),
        (["a", "b", "c", "d"], r"got .*a.*: number .*LabelEncoder does"),
        (np.array([0, 1, None, 2], dtype=object), "number the categories"),
        ([0, 1], "a label or -1 for each of 4 points, got 2"),
        ([0, 1, 1, -1], "n_samples=1 without a label should be >= n_clusters=8 without the 2"),
    ],
)
def test_labels_that_are_none_are_refused(y: list, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        SemiSupervisedKMeans().fit(np.eye(4), y)


@pytest.mark.filterwarnings("error")
def test_labels_may_be_numbers_of_any_kind() -> None:
    for kind in (np.int8, np.uint64, np.float32, bool, object):
        y = np.array([0, 0, 1, 1]).astype(kind)
        assert SemiSupervisedKMeans(2).fit(np.eye(4), y).labels_.tolist() == [0, 0, 1, 1]
    fixed = np.eye(4)
    fixed.setflags(write=False)
    assert SemiSupervisedKMeans(2).fit(fixed, [0, 0, 1, 1]).predict(fixed).tolist() == [0, 0, 1, 1]
    halves = torch.eye(4, dtype=torch.bfloat16)
    of_halves = SemiSupervisedKMeans(2).fit(halves, torch.tensor([0, 0, 1, 1]))
    assert of_halves.predict(halves[2:]).tolist() == [1, 1]


@pytest.mark.parametrize(
    ("estimator", "error", "said"),
    [
        (SemiSupervisedKMeans(2.5), TypeError, "n_clusters must be an instance of int"),
        (SemiSupervisedKMeans(0), ValueError, "n_clusters == 0, must be >= 1"),
        (SemiSupervisedKMeans(2, n_init="all"), TypeError, "n_init must be an instance of int"),
        (SemiSupervisedKMeans(2, n_init=0), ValueError, "n_init == 0, must be >= 1"),
        (SemiSupervisedKMeans(2, max_iter=None), TypeError, "max_iter must be an instance of int"),
        (SemiSupervisedKMeans(2, max_iter=0), ValueError, "max_iter == 0, must be >= 1"),
        (SemiSupervisedKMeans(2, tol="x"), TypeError, "tol must be an instance of float"),
        (SemiSupervisedKMeans(2, tol=-1), ValueError, "tol == -1, must be >= 0"),
        (CategoryCounter(start=2.5), TypeError, "start must be an instance of int"),
        (CategoryCounter(start=0), ValueError, "start == 0, must be >= 1"),
        (CategoryCounter(prior="matched"), ValueError, "got 4 labelled points of 4"),
        (CategoryCounter(prior="calibrated"), ValueError, "prior='calibrated' needs"),
        (CategoryCounter(prior="none"), ValueError, TEXT["a-prior-of-auto-paper-matched"]),
    ],
    ids=str,
)  # fmt: skip
def test_parameters_that_are_none_are_named(estimator, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        estimator.fit(np.eye(4), [0, 1, 2, 3])


@pytest.mark.filterwarnings("ignore:n_clusters=8 is above the 2 labelled categories")
def test_where_all_is_labelled_there_is_nothing_to_find() -> None:
    with pytest.warns(ConvergenceWarning, match=TEXT["using-2-give-1-in-y"]):
        SemiSupervisedKMeans(3).fit(np.eye(4), [3, 3, 5, 5])
    kmeans = SemiSupervisedKMeans().fit(np.eye(4), [3, 3, 5, 5])
    assert kmeans.labels_.tolist() == [3, 3, 5, 5] and kmeans.cluster_ids_.tolist() == [3, 5]
    assert kmeans.predict([[1, 0, 0, 0], [0, 0, 0, 1]]).tolist() == [3, 5]
    exact = SemiSupervisedKMeans(3).fit(np.eye(4), [0, 0, -1, 1])
    assert set(exact.labels_) <= {0, 1, 2}
    failed = SemiSupervisedKMeans()
    with pytest.raises(ValueError, match="whole numbers"):
        failed.fit(np.eye(4), [0.5] * 4)
    for kmeans in (SemiSupervisedKMeans(), failed):
        with pytest.raises(NotFittedError):
            kmeans.predict(np.eye(4))


@pytest.mark.parametrize(
    ("load", "share"),
    [
        *itertools.product((load_iris, load_breast_cancer), (0.6, 1.0)),
        *(
            pytest.param(*each, marks=pytest.mark.moderate)
            for each in ((load_wine, 0.6), (load_wine, 1.0), (load_digits, 1.0))
        ),
    ],
)
def test_without_labels_the_range_holds_the_truth(load, share: float) -> None:
    """Of real data that choose nothing, in their own units and scaled: the variance within categories is unknown."""
    points, truth = load(return_X_y=True)
    chosen = np.random.default_rng(0).permutation(len(points))[: int(min(500, share * len(points)))]
    for each in (points, StandardScaler().fit_transform(points)):
        low, high = CategoryCounter().fit(each[chosen]).range_
        assert low < high
        assert low <= len(np.unique(truth)) <= high


@pytest.mark.slow
@pytest.mark.parametrize(("estimator", "lines"), [(CategoryCounter, 8), (CalibratedMixture, 5)])
def test_the_examples_run(estimator, lines: int) -> None:
    ran = doctest.testmod(sys.modules[estimator.__module__])
    assert ran.attempted >= lines and not ran.failed
