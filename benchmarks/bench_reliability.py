"""Do the probabilities of `predict` mean what they say? Finished runs, on images that came after a stage.

Images of later stages, which no stage so far has used, weighted so that a fifth are of categories nobody knows, as was
assumed when the probabilities were fitted. The expected calibration error has 15 bins; "by chance" is what it would be,
with so many images, of probabilities that are right. Pooled: the error of the images of all runs together, which chance
inflates less.

    promptccd sweep --config hub_configs/promptccd-digits.yaml --seeds 1 7 10 --out runs/known
    python -m benchmarks.bench_reliability runs/known/promptccd-digits-seed*
"""

import argparse
import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import torch

from benchmarks.bench_open_set import true_categories
from promptccd.models import CategorySpread
from promptccd.models.assignment import assign
from promptccd.runs.evaluate import RunEvaluation

BINS, NEW, DRAWS = 15, 0.2, 20


def calibration_error(said: np.ndarray, right: np.ndarray, weights: np.ndarray) -> float:
    """Mean over the images of how far a bin's probability is from the share that is right."""
    bins = np.minimum((said * BINS).astype(int), BINS - 1)
    gaps = np.bincount(bins, weights * (said - right), BINS)
    return float(np.abs(gaps).sum() / weights.sum())


def by_chance(said: np.ndarray, weights: np.ndarray) -> float:
    """The error of probabilities that are right, of so many images."""
    numbers = np.random.default_rng(0)
    draws = [calibration_error(said, numbers.random(len(said)) < said, weights) for _ in range(DRAWS)]
    return float(np.mean(draws))


@dataclass(frozen=True)
class Said:
    """Probabilities ``(N,)``, whether what they are of is so, and the weights of the images, which add up to 1."""

    probabilities: np.ndarray
    is_so: np.ndarray
    weights: np.ndarray

    @classmethod
    def together(cls, parts: Sequence["Said"]) -> "Said":
        """Those of several runs, each with the same weight."""
        return cls(*(np.concatenate([getattr(part, field.name) for part in parts]) for field in fields(cls)))

    def errors(self) -> tuple[float, float]:
        """The calibration error, and what it would be by chance."""
        return (
            calibration_error(self.probabilities, self.is_so, self.weights),
            by_chance(self.probabilities, self.weights),
        )


def measured(evaluation: RunEvaluation, stage: int) -> Iterator[tuple[str, Said]]:
    """What a stage says of the images after it."""
    labels = [evaluation.true_ids(images) for images in evaluation.images]
    model, later = evaluation.load_stage(stage), slice(stage + 1, None)
    if (spread := model.spread) is None:
        return
    features = torch.cat(evaluation.features(stage, evaluation.images[later])).cpu()
    truth, ids = np.concatenate(labels[later]), model.config.category_ids
    known = np.isin(truth, np.concatenate(labels[: stage + 1]))
    prototypes = model.prototypes.float()
    found = assign(features, prototypes, ids, temperature=1, spread=spread)
    of_category = true_categories(evaluation, stage)
    right = np.array([of_category.get(each, -1) for each in found.category_ids.tolist()]) == truth
    said, explained = found.confidences.double().numpy(), explained_by(spread, features, prototypes)
    mixed = np.where(known, (1 - NEW) / known.mean(), NEW / max(1e-9, 1 - known.mean()))
    for name, says, is_so, weights in (
        ("of known categories alone", said, right, known.astype(float)),
        ("a fifth new", said, right, mixed),
        ("- which known category", (said / explained).clip(0, 1), right, known.astype(float)),
        ("- known or not", explained, known, mixed),
    ):
        yield name, Said(says, is_so, weights / weights.sum())


def explained_by(spread: CategorySpread, features: torch.Tensor, prototypes: torch.Tensor) -> np.ndarray:
    """How likely images are of any known category ``(N,)``."""
    squared = spread.squared(features, prototypes)
    return spread.known_probability(squared).double().clamp(min=1e-12).numpy()


def main(argv: Sequence[str] | None = None) -> None:
    """Print means over runs, stage by stage; nothing comes after the last."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_reliability")
    parser.add_argument("runs", nargs="+", help="finished runs")
    options = parser.parse_args(argv)
    figures: dict[tuple[int, str], list[Said]] = defaultdict(list)
    for run in options.runs:
        evaluation = RunEvaluation(run)
        for stage in range(evaluation.num_stages - 1):
            for name, said in measured(evaluation, stage):
                figures[stage, name].append(said)
    for (stage, name), runs in sorted(figures.items()):
        error, chance = np.mean([each.errors() for each in runs], axis=0)
        pooled, by_luck = Said.together(runs).errors()
        print(
            f"stage {stage}, {name}: {error:.3f}, by chance {chance:.3f}, in the mean of {len(runs)} runs; "
            f"pooled {pooled:.3f}, by chance {by_luck:.3f}"
        )


if __name__ == "__main__":
    main()
