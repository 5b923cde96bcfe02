"""A sweep of splits and merges against one D x D Cholesky factor per set, both timed in one run.

A sweep is the Hastings ratio of every split and of every merge of nearest clusters, halves and pairs given: the
clusters, their halves and the unions are each factored once. The direct form factors the same sets, in float64;
it is timed on a few of them, since its cost does not depend on their size, and scaled up.

    python -m benchmarks.bench_split_merge
"""

import argparse
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.measuring import extra_megabytes, median_seconds, timed
from promptccd.clustering.split_merge import (
    NormalInverseWishart,
    halve,
    log_hastings_merge,
    log_hastings_split,
    log_marginal_likelihood,
    nearest_pairs,
)

REPEATS = 3


@dataclass(frozen=True)
class Problem:
    """Clusters of unit vectors with the halves and pairs that a sweep proposes."""

    points: Tensor  # (N, D)
    labels: Tensor  # (N,)
    halves: Tensor  # (N,) bool
    pairs: Tensor  # (P, 2)
    num_clusters: int
    prior: NormalInverseWishart

    @property
    def num_sets(self) -> int:
        """Clusters, halves and unions."""
        return 3 * self.num_clusters + len(self.pairs)


def problem(num_clusters: int, size: int, width: int = 768, seed: int = 0) -> Problem:
    """Equal clusters around random directions."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(num_clusters).repeat_interleave(size)
    labels = labels[torch.randperm(len(labels), generator=generator)]
    centres = torch.randn(num_clusters, width, generator=generator)
    noise = torch.randn(len(labels), width, generator=generator)
    points = torch.nn.functional.normalize(centres[labels] + noise, dim=1)
    return Problem(
        points,
        labels,
        halve(points, labels, num_clusters, generator),
        nearest_pairs(
            points, labels, torch.arange(num_clusters), torch.zeros(num_clusters, dtype=torch.bool)
        ),
        num_clusters,
        NormalInverseWishart(),
    )


def sweep(given: Problem) -> tuple[Tensor, Tensor, Tensor]:
    """Log marginals of the clusters, log Hastings ratios of all splits, and of all nearest merges."""
    marginals = log_marginal_likelihood(given.points, given.labels, given.num_clusters, given.prior)
    splits = log_hastings_split(given.points, given.labels, given.halves, marginals, given.prior)
    merges = log_hastings_merge(given.points, given.labels, given.pairs, marginals, given.prior)
    return marginals, splits, merges


def direct(given: Problem, num_clusters: int) -> Tensor:
    """Log h of the first clusters, one D x D Cholesky factor each."""
    prior, width = given.prior, given.points.shape[1]
    mean = given.points.mean(0, dtype=torch.float64)
    nu = width + 1 if prior.nu is None else prior.nu
    results = []
    for cluster in range(num_clusters):
        points = given.points[given.labels == cluster].double()
        size, centre = len(points), points.mean(0)
        kappa, shift = prior.kappa + size, centre - mean
        scale = (points - centre).T @ (points - centre)
        scale += prior.kappa * size / kappa * torch.outer(shift, shift)
        scale.diagonal().add_(prior.psi)
        log_determinant = 2 * torch.linalg.cholesky(scale).diagonal().log().sum()
        gammas = [torch.mvlgamma(points.new_tensor(0.5 * each), width) for each in (nu + size, nu)]
        results.append(
            gammas[0]
            - gammas[1]
            - 0.5 * size * width * math.log(math.pi)
            + 0.5 * nu * width * math.log(prior.psi)
            - 0.5 * (nu + size) * log_determinant
            + 0.5 * width * math.log(prior.kappa / kappa)
        )
    return torch.stack(results)


def main(argv: list[str] | None = None) -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clusters", type=int, default=200)
    parser.add_argument("--size", type=int, default=30, help="points per cluster")
    parser.add_argument("--direct", type=int, default=20, help="clusters that the direct form is timed on")
    options = parser.parse_args(argv)
    given = problem(options.clusters, options.size)
    timed_directly = min(options.direct, options.clusters)

    memory = extra_megabytes(lambda: sweep(given))
    seconds = median_seconds(lambda: sweep(given), REPEATS)
    direct(given, 1)
    theirs, expected = timed(lambda: direct(given, timed_directly))
    theirs *= given.num_sets / timed_directly
    error = ((sweep(given)[0][:timed_directly] - expected) / expected).abs().max()

    print(f"{torch.get_num_threads()} threads; {given.num_sets} sets of {given.points.shape[1]} dimensions")
    print(f"{'':44}{'s':>8}{'direct s':>10}{'ratio':>7}{'error':>10}{'+MB':>6}")
    extra = "" if memory is None else f"{memory:.0f}"
    name = f"sweep, {options.clusters} clusters x {options.size} points"
    print(f"{name:44}{seconds:8.3f}{theirs:10.2f}{theirs / seconds:7.0f}{float(error):10.1e}{extra:>6}")


if __name__ == "__main__":
    main()
