from dataclasses import astuple

import numpy as np
import pytest
import torch
from sklearn.mixture import GaussianMixture

from benchmarks.bench_mixture_stages import stages
from promptccd.clustering import fit_gaussian_mixture
from promptccd.clustering import mixture_fit as module
from tests.messages import TEXT

COVARIANCES = ["diag", "spherical"]


def blobs(num_groups=5, per_group=80, width=6, spread=0.5, seed=0, dtype=torch.float64):
    """Gaussian groups with centres of unit variance: points `(N, D)` and their group `(N,)`."""
    generator = torch.Generator().manual_seed(seed)
    groups = torch.arange(num_groups).repeat_interleave(per_group)
    centres = torch.randn(num_groups, width, generator=generator, dtype=torch.float64)
    noise = torch.randn(len(groups), width, generator=generator, dtype=torch.float64)
    return (centres[groups] + spread * noise).to(dtype), groups


def log_joint(points, mixture):
    """log pi_k + log N(x | mu_k, Sigma_k) by the formula, `(N, K)` in float64."""
    means, variances, log_weights = (
        each.double() for each in (mixture.means, mixture.variances, mixture.log_weights)
    )
    normal = torch.distributions.MultivariateNormal(means, variances.expand_as(means).diag_embed())
    return log_weights + normal.log_prob(points.double()[:, None])


@pytest.mark.parametrize("sparse_share", [0.0, 1.0])
@pytest.mark.parametrize("covariance_type", COVARIANCES)
@pytest.mark.parametrize(("width", "dtype"), [(6, torch.float64), (256, torch.float32)])
def test_as_likely_as_scikit_learn_finds(sparse_share, covariance_type, width, dtype, monkeypatch):
    """By either sum over points; the likelihood is that of the parameters."""
    monkeypatch.setattr(module, "MAX_SPARSE_SHARE", sparse_share)
    points, _ = blobs(width=width, spread=0.6, dtype=dtype)
    ours = fit_gaussian_mixture(points, 5, covariance_type=covariance_type, seed=0)
    expected = log_joint(points, ours).logsumexp(1).mean()
    assert ours.log_likelihood == pytest.approx(float(expected), abs=1e-3)
    assert ours.means.dtype == ours.variances.dtype == ours.log_weights.dtype == dtype
    options = {"reg_covar": float(ours.floor), "tol": 1e-8, "max_iter": 500, "n_init": 3, "random_state": 0}
    theirs = GaussianMixture(5, covariance_type=covariance_type, **options).fit(points.double().numpy())
    assert ours.log_likelihood == pytest.approx(theirs.score(points.double().numpy()), abs=1e-3)


@pytest.mark.parametrize("covariance_type", COVARIANCES)
def test_a_share_of_the_mean_variance_is_added_once_to_each_variance(covariance_type):
    points, _ = blobs(width=32)
    mixture, bare = (
        fit_gaussian_mixture(points, 1, covariance_type=covariance_type, floor_share=share, seed=0)
        for share in (0.2, 0.0)
    )
    floor = 0.2 * points.var(0, correction=0).mean()
    torch.testing.assert_close(mixture.floor, floor)
    added = {"diag": floor.expand(32), "spherical": floor.expand(1)}
    torch.testing.assert_close(mixture.variances[0] - bare.variances[0], added[covariance_type])


@pytest.mark.parametrize("covariance_type", COVARIANCES)
def test_everything_settled_is_a_gaussian_of_each_category(covariance_type):
    """However much they overlap: nothing is left to find out."""
    points, groups = blobs(spread=1.5)
    fitted = fit_gaussian_mixture(points, 5, fixed=groups, covariance_type=covariance_type, seed=0)
    expected = torch.stack([points[groups == group].mean(0) for group in range(5)])
    torch.testing.assert_close(fitted.means, expected)
    likelihood = log_joint(points, fitted)[torch.arange(len(points)), groups].mean()
    assert fitted.log_likelihood == pytest.approx(float(likelihood))
    # The first step changes nothing, which is within any tolerance.
    exact = fit_gaussian_mixture(points, 5, fixed=groups, covariance_type=covariance_type, tol=0.0, seed=0)
    assert exact.num_iterations == 1


def test_free_points_start_in_the_component_of_the_settled_ones_they_lie_beside():
    """Also where the vacant component is not the last one."""
    noise = torch.randn(18, 3, generator=torch.Generator().manual_seed(0))
    points = torch.eye(3).repeat_interleave(6, 0) + 0.01 * noise
    for known in ([0, 1], [0, 2], [2, 1]):
        fixed = torch.full((3, 6), -1)
        fixed[:2, :3] = torch.tensor(known)[:, None]
        fitted = fit_gaussian_mixture(points, 3, fixed=fixed.flatten(), max_iter=0, seed=0)
        places = torch.tensor([*known, 3 - sum(known)])
        torch.testing.assert_close(fitted.means[places], points.view(3, 6, 3).mean(1), atol=1e-5, rtol=0)


def test_known_centres_stay_and_an_empty_component_is_where_its_centre_is():
    """Free points at 1.2, which join the known category at 0, must not pull its centre so that 2 joins it too."""
    free = [1.2] * 20 + [2.0] + [3.2] * 20
    points, fixed = torch.tensor([0.0, 0.0, *free])[:, None], torch.tensor([0, 0] + [-1] * 41)
    fitted = fit_gaussian_mixture(points, 2, fixed=fixed, max_iter=0, seed=0)
    assert float(fitted.means[1]) == pytest.approx((2 + 20 * 3.2) / 21)
    points, fixed = torch.tensor([0.0, 4, 4, 4])[:, None], torch.tensor([0, 1, -1, -1])
    fitted = fit_gaussian_mixture(points, 3, fixed=fixed, max_iter=0, seed=0)
    assert fitted.means.flatten().tolist() == pytest.approx([0, 4, 4])
    assert int(fitted.log_weights.argmin()) == 2  # it has no point


def test_errors_say_what_and_where():
    points = torch.ones(4, 3)
    with pytest.raises(ValueError, match=TEXT["num-components-number-of-samples-4"]):
        fit_gaussian_mixture(points, 9, seed=0)
    with pytest.raises(ValueError, match="got 0"):
        fit_gaussian_mixture(points, 0, seed=0)
    points[2, 0] = np.nan
    with pytest.raises(ValueError, match=TEXT["nan-or-infinity-in-row-2"]):
        fit_gaussian_mixture(points, 2, seed=0)


@pytest.mark.parametrize("sparse_share", [0.0, 1.0])
@pytest.mark.parametrize("covariance_type", COVARIANCES)
def test_a_component_without_points_has_the_variance_of_all_of_them(
    covariance_type, sparse_share, monkeypatch
):
    """Copies of two points that are settled, and three components: the last one is empty."""
    monkeypatch.setattr(module, "MAX_SPARSE_SHARE", sparse_share)
    points = torch.tensor([[0.0, 0.0], [2.0, 6.0]]).double().repeat(8, 1)
    fixed = torch.arange(2).repeat(8)
    mixture = fit_gaussian_mixture(
        points, 3, fixed=fixed, covariance_type=covariance_type, max_iter=0, floor_share=0.05, seed=0
    )
    empty = int(mixture.log_weights.argmin())
    assert empty == 2
    expected = {"diag": torch.tensor([1.25, 9.25]), "spherical": torch.tensor([5.25])}[covariance_type]
    torch.testing.assert_close(mixture.variances[empty], expected.double())


@pytest.mark.parametrize(
    ("width", "drift"),
    [(96, 0.2), *(pytest.param(768, drift, marks=pytest.mark.slow) for drift in (0.0, 0.2))],
)
def test_the_mixture_survives_its_own_replay(width: int, drift: float) -> None:
    outcomes = stages(width, power=0.8, within=0.7, known=12, new=3, seed=1, drift=drift)
    assert list(outcomes) == ["stage1", "stage2", "stage3"]
    for stage, outcome in outcomes.items():
        assert min(astuple(outcome)) >= 0.98, stage


@pytest.mark.moderate
@pytest.mark.parametrize("width", [96, pytest.param(384, marks=pytest.mark.slow)])
def test_categories_that_overlap_are_kept_too(width: int) -> None:
    """A free centre that found no new category must not leave one of them to a known category's component."""
    outcomes = [stages(width, power=0.8, within=1.2, known=30, new=5, seed=seed, drift=0) for seed in (1, 2)]
    for each in outcomes:
        assert min(astuple(each["stage3"])) >= 0.95
