"""Clustering against scikit-learn, both timed in one run on the same features: compare ratios, not seconds.

Memory is the peak resident size (VmHWM of Linux, reset before the fit) above what was resident before it,
features included. The allocator is the default one on both sides.

    python -m benchmarks.bench_clustering --size cifar100
"""

import argparse
import warnings
from dataclasses import dataclass
from typing import Literal

import torch
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture
from torch import Tensor

from benchmarks.measuring import extra_megabytes, timed
from promptccd.clustering import AnchoredKMeans, mixture_fit

REGULARISATION = 1e-3


@dataclass(frozen=True)
class Size:
    """One benchmark problem: a labelled stage 0, a discovery stage, and a mixture over part of both."""

    old: int  # labelled categories
    new: int
    labelled_per_old: int
    unlabelled_per_old: int
    unlabelled_per_new: int
    width: int
    restarts: int
    mixture_points: int


SIZES = {
    "small": Size(14, 6, 60, 20, 60, 64, 20, 1_000),
    "cifar100": Size(70, 10, 435, 35, 350, 768, 100, 30_000),
}


@dataclass(frozen=True)
class Figure:
    """One row of the table; cost and quality of both sides."""

    name: str
    ours_seconds: float
    theirs_seconds: float
    ours_quality: float
    theirs_quality: float
    quality: str
    extra_megabytes: float | None = None

    @property
    def ratio(self) -> float:
        """Our time over theirs."""
        return self.ours_seconds / self.theirs_seconds


def clustered_features(size: Size, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Unit vectors in overlapping groups whose spectrum decays: unlabelled, labelled `(., D)`, and labels."""
    generator = torch.Generator().manual_seed(seed)
    spectrum = torch.arange(1, size.width + 1).pow(-0.7)
    centres = torch.randn(size.old + size.new, size.width, generator=generator)
    labels = torch.arange(size.old).repeat_interleave(size.labelled_per_old)
    old = torch.arange(size.old).repeat_interleave(size.unlabelled_per_old)
    new = torch.arange(size.old, size.old + size.new).repeat_interleave(size.unlabelled_per_new)
    hidden = torch.cat([old, new])
    hidden = hidden[torch.randperm(len(hidden), generator=generator)]

    def draw(groups: Tensor) -> Tensor:
        noise = torch.randn(len(groups), size.width, generator=generator)
        return torch.nn.functional.normalize((centres[groups] + noise) * spectrum, dim=1)

    return draw(hidden), draw(labels), labels


def semi_supervised_kmeans(size: Size) -> Figure:
    """All our restarts against one of scikit-learn's on the same points, which it sees without labels."""
    unlabelled, labelled, labels = clustered_features(size)
    points = torch.cat([labelled, unlabelled]).numpy()
    num_clusters = size.old + size.new
    ours = AnchoredKMeans(num_clusters, size.restarts, random_state=0)
    memory = extra_megabytes(lambda: ours.fit(unlabelled, labelled, labels))
    ours_seconds, _ = timed(lambda: ours.fit(unlabelled, labelled, labels))
    theirs_seconds, theirs = timed(lambda: KMeans(num_clusters, n_init=1, random_state=0).fit(points))
    name = f"semi-supervised k-means x {size.restarts}, KMeans x 1"
    return Figure(name, ours_seconds, theirs_seconds, ours.inertia_, theirs.inertia_, "inertia", memory)


def expectation_maximisation(
    size: Size, covariance_type: Literal["diag", "spherical"], iterations: int = 10
) -> Figure:
    """EM alone, from one start that both sides are given, in float32."""
    unlabelled, labelled, _ = clustered_features(size)
    points = torch.cat([unlabelled, labelled])[: size.mixture_points]
    points -= points.mean(0)
    free = torch.full((len(points),), -1)
    groups = mixture_fit.initial_groups(
        points, torch.zeros(points.shape[1]), free, size.old + size.new, seed=0
    )
    steps = mixture_fit.MixtureSteps(points, free, REGULARISATION, covariance_type == "spherical")
    start = steps.initialize(*groups)
    ours_seconds, ours = timed(lambda: steps.run(start, iterations, 0.0))
    precisions = (1 / start.variances).float().numpy()
    theirs = GaussianMixture(
        len(start.means),
        covariance_type=covariance_type,
        reg_covar=REGULARISATION,
        max_iter=iterations,
        tol=0.0,
        weights_init=start.log_weights.softmax(0).float().numpy(),
        means_init=start.means.float().numpy(),
        precisions_init=precisions if covariance_type == "diag" else precisions[:, 0],
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        theirs_seconds, _ = timed(lambda: theirs.fit(points.numpy()))
    score = float(theirs.score(points.numpy()))
    name = f"EM {covariance_type}, {len(points)} x {len(start.means)}, {ours.num_iterations} iterations"
    return Figure(name, ours_seconds, theirs_seconds, ours.log_likelihood, score, "log lik.")


def run(size: Size) -> list[Figure]:
    """All figures of one size."""
    return [
        semi_supervised_kmeans(size),
        expectation_maximisation(size, "diag"),
        expectation_maximisation(size, "spherical"),
    ]


def main(argv: list[str] | None = None) -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", choices=SIZES, default="small")
    figures = run(SIZES[parser.parse_args(argv).size])
    print(f"{torch.get_num_threads()} threads; ours, then scikit-learn")
    print(f"{'':52}{'s':>8}{'s':>8}{'ratio':>7}{'':>10}{'quality':>12}{'':>12}{'+MB':>6}")
    for row in figures:
        memory = "" if row.extra_megabytes is None else f"{row.extra_megabytes:.0f}"
        print(
            f"{row.name:52}{row.ours_seconds:8.3f}{row.theirs_seconds:8.3f}{row.ratio:7.2f}"
            f"{row.quality:>10}{row.ours_quality:12.3f}{row.theirs_quality:12.3f}{memory:>6}"
        )


if __name__ == "__main__":
    main()
