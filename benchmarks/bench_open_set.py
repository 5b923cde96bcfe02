"""Does what is known stay known, and is what is new found? Finished runs on digits, stage by stage.

Batches of 1 to 1,797 images go through the grouping of ``promptccd discover``: images of categories that a stage knows
alone, and such with others among them.

    promptccd sweep --config hub_configs/promptccd-digits.yaml --seeds 1 7 10 --out runs/known
    python -m benchmarks.bench_open_set runs/known/promptccd-digits-seed*
"""

import argparse
import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from promptccd.data.loading import digits_dataset
from promptccd.data.views import normalise
from promptccd.discovery.grouping import KnownCategories, group_images
from promptccd.models import CategoryDiscoveryModel
from promptccd.runs import RunDirectory, load_model, load_view

SIZES = (1, 5, 60, 180, 300, 600, 1000, 1797)
REPEATS = 3


def batches(rows: np.ndarray, seed: int) -> Iterator[np.ndarray]:
    """Images drawn at random, 180 that follow each other, and those of a few categories."""
    numbers = np.random.default_rng(seed)
    for size in SIZES:
        for _ in range(REPEATS):
            yield numbers.permutation(rows)[:size]
    for start in (0, 500, 900):
        yield rows[start : start + 180]


def digit_of_category(run: Path, stage: int, labels: np.ndarray) -> dict[int, int]:
    """Which digit each category of a stage is: that of most of its images."""
    ids, digits = [], []
    for earlier in range(stage + 1):
        given = RunDirectory(run).assignments(earlier)
        ids += given["category_ids"]
        digits += labels[given["sample_ids"]].tolist()
    of_category = {each: np.bincount(np.array(digits)[np.array(ids) == each]) for each in set(ids)}
    return {category: int(counts.argmax()) for category, counts in of_category.items()}


def features_of(model: CategoryDiscoveryModel, folder: Path) -> Tensor:
    """Unit features of all digits."""
    view, images = load_view(folder), digits_dataset()["image"]
    pixels = torch.stack([view(each.convert("RGB")) for each in images])
    with torch.inference_mode():
        return torch.cat(
            [model.features_of(normalise(part, view.mean, view.std)) for part in pixels.split(256)]
        )


def measured(run: Path, stage: int, seed: int) -> Iterator[tuple[str, float]]:
    """Figures of every batch, by what they say."""
    labels = np.array(digits_dataset()["label"])
    model = load_model(run / f"stage{stage}").eval()
    digit, ids = digit_of_category(run, stage, labels), tuple(model.config.category_ids)
    features, unknown = features_of(model, run / f"stage{stage}"), ~np.isin(labels, list(digit.values()))
    nearest = torch.cdist(features, model.prototypes.float()).argmin(1).numpy()
    plain = np.array([digit.get(ids[row], -1) for row in nearest]) == labels
    known = KnownCategories(ids, model.prototypes.float(), model.spread)
    for kind, rows in (("known alone", np.flatnonzero(~unknown)), ("with new ones", np.arange(len(labels)))):
        if kind == "with new ones" and not unknown.any():
            continue
        for chosen in batches(rows, seed):
            if kind == "with new ones" and len(chosen) < 180:
                continue
            found, estimate = group_images(
                features[chosen], [str(row) for row in chosen], known, next_id=max(ids) + 1
            )
            category, new = found.category_ids.numpy(), unknown[chosen]
            named = np.array([digit.get(int(each), -1) for each in category]) == labels[chosen]
            opened, missing = np.unique(category[category > max(ids)]), np.unique(labels[chosen][new])
            truth = len(ids) + len(missing)
            yield f"{kind}: named right", named[~new].mean()
            yield f"{kind}: by the nearest prototype", plain[chosen][~new].mean()
            yield f"{kind}: range holds the number", estimate.low <= truth <= estimate.high
            if kind == "known alone":
                yield f"{kind}: a group opened", len(opened) > 0
                continue
            said = category > max(ids)
            table = [
                [((category == one) & (labels[chosen] == other)).sum() for other in missing] for one in opened
            ]
            right = np.array(table).reshape(len(opened), len(missing))
            yield f"{kind}: F1 of new", 2 * (said & new).sum() / max(1, said.sum() + new.sum())
            yield f"{kind}: new in their group", right[linear_sum_assignment(-right)].sum() / new.sum()
            yield f"{kind}: number off by one at most", abs(len(opened) - len(missing)) <= 1


def main(argv: Sequence[str] | None = None) -> None:
    """Print means over runs and batches, stage by stage."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_open_set")
    parser.add_argument("runs", nargs="+", type=Path, help="finished runs on digits")
    parser.add_argument("--seed", type=int, default=1, help="of the batches")
    options = parser.parse_args(argv)
    for stage in range(4):
        figures: dict[str, list[float]] = defaultdict(list)
        for run in options.runs:
            for name, value in measured(run, stage, options.seed):
                figures[name].append(float(value))
        for name, values in figures.items():
            print(
                f"stage {stage}, {name}: {100 * np.mean(values):.1f} % (worst {100 * min(values):.1f})",
                flush=True,
            )


if __name__ == "__main__":
    main()
