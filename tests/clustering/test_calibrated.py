"""The calibrated mixture equals its formulas written out, and finds new categories without losing known ones."""

import numpy as np
import pytest
import torch
from scipy.special import log_softmax, logsumexp, softmax
from sklearn.base import clone
from sklearn.covariance import ledoit_wolf_shrinkage
from sklearn.exceptions import NotFittedError

import promptccd.clustering.calibrated as module
from promptccd.clustering import AnchoredKMeans, CalibratedMixture
from promptccd.data.randomness import torch_generator
from promptccd.evaluation import clustering_accuracy
from tests.messages import TEXT

KNOWN, NEW, WIDTH = 6, 3, 12


def drawn(sizes: list[int], seed: int, first: int = 0, noise: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Points of Gaussians around fixed means, stretched along three axes, and their categories."""
    means = np.random.default_rng(1).normal(0, 2.0, (KNOWN + NEW, WIDTH))
    draws = np.random.default_rng(seed)
    labels = np.repeat(np.arange(first, first + len(sizes)), sizes)
    return means[labels] + draws.normal(0, noise, (len(labels), WIDTH)) * np.linspace(0.3, 1.5, WIDTH), labels


@pytest.fixture(scope="module")
def labelled() -> tuple[np.ndarray, np.ndarray]:
    return drawn([40] * KNOWN, seed=2)


@pytest.fixture(scope="module")
def stream() -> tuple[np.ndarray, np.ndarray]:
    """Few images of known categories, many of new ones."""
    return drawn([8] * KNOWN + [50] * NEW, seed=3)


def squared(points: np.ndarray, means: np.ndarray) -> np.ndarray:
    return ((points[:, None] - means) ** 2).sum(2)


SIZES = np.arange(10, 10 + KNOWN)  # of labelled categories


def log_densities(points: np.ndarray, means: np.ndarray, factor: float) -> np.ndarray:
    """Labelled means are off by D / n in the mean, squared."""
    return -factor / 2 * (squared(points, means) - np.append(WIDTH / SIZES, np.zeros(NEW)))


def written_out(points: np.ndarray, means: np.ndarray, factor: float) -> tuple[float, np.ndarray, float]:
    """Expectation-maximisation, one step after the other: log-likelihood, means and share of known categories."""
    share, means = 0.5, means.copy()
    for _ in range(module.STEPS):
        weights = np.log(np.repeat([share / KNOWN, (1 - share) / NEW], [KNOWN, NEW]))
        joint = weights + log_densities(points, means, factor)
        posterior = softmax(joint, axis=1)
        mass = posterior.sum(0)
        means[KNOWN:] = posterior[:, KNOWN:].T @ points / mass[KNOWN:, None]
        share = (mass[:KNOWN].sum() + KNOWN) / (len(points) + KNOWN + NEW)
    return logsumexp(joint, axis=1).sum(), means, share


def first_means(points: np.ndarray, known: np.ndarray) -> list[np.ndarray]:
    """Both starts: k-means around the known means, and the new clusters' images that no known mean is nearer to."""
    seed, (points, known) = module.seed_of("calibrated", 0, KNOWN), map(torch.from_numpy, (points, known))
    fixed = AnchoredKMeans(KNOWN + NEW, module.RESTARTS, random_state=seed, fix_labelled=True)
    alone = AnchoredKMeans(NEW, module.RESTARTS, random_state=seed).fit(points)
    is_new = torch.cdist(points, alone.cluster_centers_).amin(1) < torch.cdist(points, known).amin(1)
    means = [points[(alone.labels_ == each) & is_new].mean(0) for each in range(NEW)]
    first = fixed.fit(points, known, torch.arange(KNOWN)).cluster_centers_[KNOWN:]
    return [first.numpy(), torch.stack(means).numpy()]


@pytest.mark.parametrize(
    ("seed", "likelier", "loss"), [(16, 0, 0.02), (18, 1, 0.002)], ids=["the first start", "the second start"]
)
def test_the_fit_of_a_stream_is_the_formula(seed: int, likelier: int, loss: float) -> None:
    stream, _ = drawn([3] * KNOWN + [50] * NEW, seed, noise=2.5)
    mixture = CalibratedMixture(known_loss=loss).fit(*drawn(SIZES.tolist(), seed=2))
    points = stream @ mixture.gaussians_.whitener.numpy()
    known = mixture.gaussians_.means.numpy()
    starts = [np.concatenate([known, first]) for first in first_means(points, known)]
    fits = [written_out(points, means, mixture.gaussians_.temperature) for means in starts]
    assert fits[likelier][0] > fits[1 - likelier][0] + 1
    _, means, share = fits[likelier]
    mixture.partial_fit(stream, num_categories=KNOWN + NEW)
    assert mixture.gaussians_.means.numpy() == pytest.approx(means, rel=1e-8)
    assert mixture.gaussians_.known_share == pytest.approx(share, rel=1e-9)
    weights = np.log(np.repeat([share / KNOWN, (1 - share) / NEW], [KNOWN, NEW]))
    joint = weights + log_densities(points, means, mixture.gaussians_.temperature)
    even = weights[-1] - weights[0]
    chances = softmax(joint, axis=1)

    def recalled(balance: float) -> float:
        """Images of known categories that are expected to be found."""
        said = (joint + balance * even * (np.arange(KNOWN + NEW) < KNOWN)).argmax(1)
        return chances[said < KNOWN, said[said < KNOWN]].sum() / chances[:, :KNOWN].sum()

    balance = mixture.gaussians_.balance
    assert (balance > 0) == (loss < 0.01)
    assert recalled(balance) >= recalled(1) - loss
    assert balance == 0 or recalled(balance - 0.025) < recalled(1) - loss
    joint[:, :KNOWN] += balance * even
    sharp = np.exp(log_softmax(mixture.gaussians_.sharpness * joint, axis=1))
    assert mixture.predict_proba(stream) == pytest.approx(sharp, abs=1e-9)
    assert (mixture.predict(stream) == joint.argmax(1)).all()


@pytest.mark.parametrize(
    ("sizes", "noise"), [([40] * KNOWN, 1.0), ([12, 12, 9, 2, 1, 1], 2.5)], ids=["many images", "some alone"]
)
def test_metric_temperature_and_sharpness_are_the_formula(sizes: list[int], noise: float) -> None:
    """Also with categories of one or two images, which some folds lack."""
    points, labels = drawn(sizes, seed=3, noise=noise)
    points -= points[labels < 2].mean(0)  # around 0, where a category without images would have its mean
    mixture = CalibratedMixture().fit(points, labels)
    means = np.stack([points[labels == each].mean(0) for each in range(KNOWN)])
    residuals = points - means[labels]
    shrinkage = max(0.01, ledoit_wolf_shrinkage(residuals, assume_centered=True))

    def whitener(residuals: np.ndarray, categories: int) -> np.ndarray:
        values, vectors = np.linalg.eigh(residuals.T @ residuals / (len(residuals) - categories))
        values = (1 - shrinkage) * values + shrinkage * values.mean()
        return vectors @ np.diag(values**-0.25) @ vectors.T

    of_category = torch.randperm(KNOWN, generator=torch_generator("calibrated categories", 0)).numpy() % 5
    of_image = torch.randperm(len(points), generator=torch_generator("calibrated images", 0)).numpy() % 5
    losses = np.zeros((2, 40))
    for fold, part in np.ndindex(6, 5):  # the last fold leaves out images of all categories
        rest = of_image != part
        teaches = of_category[labels] != fold if fold < 5 else rest
        teachers = np.unique(labels[teaches])
        z = points @ whitener(residuals[teaches], len(teachers))
        present = np.unique(labels[rest])
        tested = ~teaches & ~rest & np.isin(labels, present)
        centres = np.stack([z[rest & (labels == each)].mean(0) for each in present])
        own = np.searchsorted(present, labels)
        variance = ((z[rest] - centres[own[rest]]) ** 2).mean()
        logits = -0.5 * squared(z[tested], centres) / variance
        for place, factor in enumerate(module.TEMPERATURES.tolist()):
            scaled = factor * logits
            own_logits = scaled[np.arange(tested.sum()), own[tested]]
            losses[fold // 5, place] += (logsumexp(scaled, axis=1) - own_logits).sum()
    factor, sharper = module.TEMPERATURES[losses.argmin(1)].tolist()
    assert mixture.gaussians_.sharpness == pytest.approx(sharper / factor, rel=1e-9)
    whitened = residuals @ whitener(residuals, KNOWN)
    own_size = np.array(sizes)[labels]
    apart = np.where(own_size > 1, own_size / np.maximum(own_size - 1, 1), 1)
    variance = ((whitened**2).sum(1) * apart).mean() / WIDTH
    assert mixture.gaussians_.temperature == pytest.approx(factor, rel=1e-9)
    scaled = whitener(residuals, KNOWN) / np.sqrt(variance)
    assert mixture.gaussians_.whitener.numpy() == pytest.approx(scaled, rel=1e-9)
    assert mixture.gaussians_.means.numpy() == pytest.approx(means @ scaled, rel=1e-9)
    assert mixture.gaussians_.sizes.tolist() == sizes


@pytest.mark.parametrize("seed", range(3))
def test_streams_are_discovered_and_known_categories_kept(labelled, seed: int) -> None:
    mixture = CalibratedMixture(random_state=seed).fit(*labelled)
    for stage in range(NEW):
        points, labels = drawn([4] * (KNOWN + stage) + [40], seed=10 * seed + stage, noise=1.2)
        mixture.partial_fit(points, num_categories=KNOWN + stage + 1)
        accuracy = clustering_accuracy(labels, mixture.predict(points), range(KNOWN))
        assert min(accuracy.all, accuracy.old, accuracy.new) > 85
    assert list(mixture.classes_) == list(range(KNOWN + NEW))


@pytest.mark.moderate
def test_the_number_of_categories_can_be_estimated() -> None:
    mixture = CalibratedMixture().fit(*drawn([40] * KNOWN, seed=2, noise=0.3))
    mixture.partial_fit(drawn([8] * KNOWN + [50] * NEW, seed=3, noise=0.3)[0])
    assert len(mixture.classes_) == KNOWN + NEW


def test_ids_follow_the_labels_and_a_stream_may_have_nothing_new(labelled, stream) -> None:
    points, labels = labelled
    mixture = CalibratedMixture().fit(points, labels * 10)
    known = stream[1] < KNOWN
    mixture.partial_fit(stream[0][known], num_categories=KNOWN)
    assert mixture.gaussians_.known_share == 1
    assert (mixture.predict(stream[0][known]) == stream[1][known] * 10).mean() > 0.9
    mixture.partial_fit(stream[0], num_categories=KNOWN + 1)
    assert list(mixture.classes_) == [0, 10, 20, 30, 40, 50, 51]


def test_a_fit_goes_on_from_what_a_checkpoint_stores(labelled, stream) -> None:
    """The whitener, means, shares and temperature are all that the next stream needs."""
    mixture = CalibratedMixture().fit(*labelled).partial_fit(stream[0], num_categories=KNOWN + 1)
    again = CalibratedMixture.of(mixture.gaussians_)
    assert (again.predict_proba(stream[0]) == mixture.predict_proba(stream[0])).all()
    for each in (mixture, again):
        each.partial_fit(stream[0][::-1].copy(), num_categories=KNOWN + NEW)
    assert (again.predict_proba(stream[0]) == mixture.predict_proba(stream[0])).all()
    assert list(again.classes_) == [*range(KNOWN + NEW)]


def test_what_cannot_be_fitted_is_refused(labelled, stream) -> None:
    points, labels = labelled
    for teach_nothing in (labels * 0, np.arange(len(labels)), labels * 0 - 1):
        with pytest.raises(ValueError, match=r".{20}"):
            CalibratedMixture().fit(points, teach_nothing)
    with pytest.raises(ValueError, match="known_loss"):
        CalibratedMixture(known_loss=2).fit(points, labels)
    for number in (KNOWN - 1, KNOWN + len(stream[0]) + 1):
        with pytest.raises(ValueError, match=f"got {number}"):
            CalibratedMixture().fit(points, labels).partial_fit(stream[0], num_categories=number)


def test_it_is_an_estimator_of_scikit_learn(stream) -> None:
    assert clone(CalibratedMixture(known_loss=0.3)).known_loss == 0.3
    failed = CalibratedMixture()
    with pytest.raises(ValueError, match=TEXT["label-for-every-point"]):
        failed.fit(stream[0], np.full(len(stream[0]), -1))
    for mixture in (CalibratedMixture(), failed):
        assert not hasattr(mixture, "classes_")
        with pytest.raises(NotFittedError):
            _ = mixture.classes_
        for use in (mixture.predict, mixture.predict_proba, mixture.partial_fit):
            with pytest.raises(NotFittedError):
                use(stream[0])
