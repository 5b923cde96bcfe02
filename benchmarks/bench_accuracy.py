"""Clustering accuracy against the loop over samples it replaces, and through `evaluate`, all in one run.

The loop fills the count matrix sample by sample and matches it by the same Hungarian assignment. Every figure is
the median of the rounds; compare the ratios, not the seconds.

    python -m benchmarks.bench_accuracy
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import evaluate
import numpy as np
from scipy.optimize import linear_sum_assignment

from benchmarks.measuring import median_seconds
from promptccd.evaluation import ClusteringAccuracy, clustering_accuracy

SPACE = Path(__file__).parents[1] / "spaces" / "cacc"


def assigned(
    num_samples: int, num_categories: int, seed: int = 0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Predictions of which seven in ten are right, categories, and three stages."""
    generator = np.random.default_rng(seed)
    references = generator.integers(0, num_categories, num_samples)
    wrong = generator.integers(0, num_categories, num_samples)
    predictions = np.where(generator.random(num_samples) < 0.7, references, wrong)
    return predictions, references, generator.integers(1, 4, num_samples)


def accuracy_by_loop(true: np.ndarray, predicted: np.ndarray, num_known: int) -> tuple[float, float, float]:
    """All, Old and New as they are usually computed."""
    side = max(predicted.max(), true.max()) + 1
    counts = np.zeros((side, side), dtype=np.int64)
    for index in range(len(true)):
        counts[predicted[index], true[index]] += 1
    rows, columns = linear_sum_assignment(counts.max() - counts)
    right, sizes = np.zeros(side), counts.sum(axis=0)
    for row, column in zip(rows, columns, strict=True):
        right[column] = counts[row, column]
    old = 100 * right[:num_known].sum() / sizes[:num_known].sum()
    new = 100 * right[num_known:].sum() / sizes[num_known:].sum()
    return 100 * right.sum() / len(true), old, new


def report(metric: evaluate.Metric, num_samples: int, num_categories: int, rounds: int) -> None:
    """Print one size's lines."""
    predictions, references, stages = assigned(num_samples, num_categories)
    known = num_categories // 2

    def ours() -> ClusteringAccuracy:
        return clustering_accuracy(references, predictions, range(known))

    def through_evaluate(*columns: Sequence | np.ndarray) -> object:
        return metric.compute(
            **dict(zip(("predictions", "references", "stages"), columns, strict=True)), num_known=known
        )

    assert np.allclose(ours(), accuracy_by_loop(references, predictions, known))
    columns = predictions, references, stages
    space = sys.modules[type(metric).__module__]
    lists = tuple(column.tolist() for column in columns)
    base = median_seconds(ours, rounds)
    print(f"{num_samples:,} samples x {num_categories:,} categories")
    print(f"  clustering_accuracy              {base:8.3f} s")
    for name, work, times in (
        ("loop over samples", lambda: accuracy_by_loop(references, predictions, known), 1),
        ("metric's function, three stages", lambda: space.continual_accuracy(*columns, known), rounds),
        ("evaluate, three stages, arrays", lambda: through_evaluate(*columns), rounds),
        ("evaluate, three stages, lists", lambda: through_evaluate(*lists), rounds),
    ):
        seconds = median_seconds(work, times)
        print(f"  {name:31s}  {seconds:8.3f} s   {seconds / base:6.1f} x", flush=True)


def main(argv: Sequence[str] | None = None) -> None:
    """Time both sizes that the README quotes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=10**6)
    parser.add_argument("--categories", type=int, nargs="+", default=[200, 1_000])
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args(argv)
    with TemporaryDirectory() as cache:
        metric = evaluate.load(str(SPACE), cache_dir=cache)
        for num_categories in arguments.categories:
            report(metric, arguments.samples, num_categories, arguments.rounds)


if __name__ == "__main__":
    main()
