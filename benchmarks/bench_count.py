"""How near is the estimated number of categories, and how often does its range hold the truth?

Settings are drawn: 10 to 100 known categories and 0 to 30 new ones, sizes that differ by up to 10 times. Features are
simulated ones with a falling spectrum, 96 or 768 wide, or [CLS] of a backbone over the images of a data set.

    python -m benchmarks.bench_count --settings 200
    python -m benchmarks.bench_count --settings 30 --data cifar100/ --backbone facebook/dinov2-small
"""

import argparse
import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from promptccd.clustering import PRIORS, CountEstimate, estimate_as_taught

SPREAD = 0.2  # how much more or less than the others a simulated category spreads, at most


@dataclass(frozen=True)
class Setting:
    """What is counted.

    Attributes:
        known: labelled categories.
        new: categories to be found.
        images: of a category, in the mean of the logarithm.
        imbalance: how many times larger the largest may be than the smallest.
        seed: of all that is drawn.
        width: of simulated features.
        power: of their spectrum: direction i has a share of i ** -power of the variance.
        within: spread within simulated categories, against that between them.
    """

    known: int
    new: int
    images: int
    imbalance: float
    seed: int
    width: int
    power: float
    within: float

    def sizes(self, categories: int, numbers: np.random.Generator) -> list[int]:
        """Images of so many categories, 8 at least."""
        drawn = self.images * self.imbalance ** (numbers.random(categories) - 0.5)
        return np.maximum(8, drawn).astype(int).tolist()


@dataclass(frozen=True)
class Features:
    """Labelled features, and unlabelled ones of which a few are of labelled categories."""

    labelled: Tensor
    labels: Tensor
    unlabelled: Tensor


def drawn_setting(seed: int, most_categories: int) -> Setting:
    """A setting of at most so many categories."""
    numbers = np.random.default_rng([7, seed])
    known = int(
        np.exp(numbers.uniform(np.log(min(10, most_categories - 1)), np.log(min(100, most_categories))))
    )
    return Setting(
        known,
        int(numbers.integers(0, min(30, most_categories - known) + 1)),
        int(np.exp(numbers.uniform(np.log(20), np.log(80)))),
        float(numbers.choice([1, 3, 10])),
        seed,
        int(numbers.choice([96, 768])),
        float(numbers.choice([0, 0.4, 0.7, 1])),
        float(numbers.uniform(0.4, 1)),
    )


def simulated(setting: Setting) -> Features:
    """Unit features around random directions."""
    numbers, generator = np.random.default_rng(setting.seed), torch.Generator().manual_seed(setting.seed)
    scale = torch.arange(1, setting.width + 1).float() ** -setting.power
    scale = (scale / scale.sum()).sqrt()
    total = setting.known + setting.new
    centres = torch.randn(total, setting.width, generator=generator) * scale
    spread = setting.within * (1 + SPREAD * (2 * torch.rand(total, 1, generator=generator) - 1))

    def draw(category: int, images: int) -> Tensor:
        noise = torch.randn(images, setting.width, generator=generator) * scale
        return F.normalize(centres[category] + spread[category] * noise, dim=-1)

    return _split(setting, draw, setting.sizes(total, numbers))


def of_data(setting: Setting, features: Tensor, labels: Tensor) -> Features:
    """Features of some categories of a data set."""
    numbers = np.random.default_rng(setting.seed)
    categories = numbers.permutation(labels.unique().numpy())[: setting.known + setting.new]
    rows = [iter(numbers.permutation(np.flatnonzero(labels.numpy() == each)).tolist()) for each in categories]

    def draw(category: int, images: int) -> Tensor:
        taken = [row for _, row in zip(range(images), rows[category], strict=False)]
        return features[taken]

    available = np.bincount(labels)[categories]
    sizes = np.minimum(setting.sizes(len(categories), numbers), available * 2 // 3)
    return _split(setting, draw, sizes.tolist())


def _split(setting: Setting, draw: Callable[[int, int], Tensor], sizes: Sequence[int]) -> Features:
    known = [draw(category, sizes[category]) for category in range(setting.known)]
    more = [draw(category, max(3, sizes[category] // 4)) for category in range(setting.known)]
    new = [draw(category, sizes[category]) for category in range(setting.known, setting.known + setting.new)]
    labels = torch.arange(setting.known).repeat_interleave(torch.tensor([len(each) for each in known]))
    return Features(torch.cat(known), labels, torch.cat([*more, *new]))


def count(prior: str, features: Features, known: int, seed: int) -> CountEstimate:
    """The estimate as a run makes it, from labelled and unlabelled features."""
    fixed = torch.cat([torch.full((len(features.unlabelled),), -1), features.labels])
    return estimate_as_taught(
        torch.cat([features.unlabelled, features.labelled]),
        known,
        fixed=fixed,
        labelled=features.labelled,
        labels=features.labels,
        seed=seed,
        prior=prior,
    )


def embedded(data: str, split: str, backbone: str) -> tuple[Tensor, Tensor]:
    """Unit [CLS] of a bare backbone over a data set, and the labels of its images."""
    from promptccd.data.tables import load_images
    from promptccd.data.views import normalise
    from promptccd.discovery.embedding import load_embedder

    images = load_images(data, split)
    column = "image"
    model, view = load_embedder(backbone)
    found = []
    with torch.inference_mode():
        for start in range(0, len(images), 256):
            pictures = [each.convert("RGB") for each in images[start : start + 256][column]]
            pixels = normalise(torch.stack([view(each) for each in pictures]), view.mean, view.std)
            found.append(model.features_of(pixels))
    return torch.cat(found), torch.tensor(images["label"][:])


def main(argv: Sequence[str] | None = None) -> None:
    """Print every setting, then what each prior came to."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_count")
    parser.add_argument("--settings", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1, help="of the first setting")
    parser.add_argument("--priors", nargs="+", choices=PRIORS, default=list(PRIORS))
    parser.add_argument("--data", help="a data set instead of simulated features")
    parser.add_argument("--split", default="train")
    parser.add_argument("--backbone", help="what embeds its images")
    for name in ("known", "new", "width"):
        parser.add_argument(f"--{name}", type=int, help="instead of what is drawn")
    for name in ("imbalance", "power", "within"):
        parser.add_argument(f"--{name}", type=float, help="instead of what is drawn")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(argv)
    fixed = {
        name: value
        for name in ("known", "new", "width", "imbalance", "power", "within")
        if (value := getattr(options, name)) is not None
    }
    real = embedded(options.data, options.split, options.backbone) if options.data else None
    most = 130 if real is None else len(real[1].unique())
    outcomes: dict[str, list[tuple[float, bool, float]]] = {prior: [] for prior in options.priors}
    for seed in range(options.seed, options.seed + options.settings):
        setting = replace(drawn_setting(seed, most), **fixed)
        given = simulated(setting) if real is None else of_data(setting, *real)
        truth = setting.known + setting.new
        for prior in options.priors:
            started = time.perf_counter()
            found = count(prior, given, setting.known, seed)
            seconds = time.perf_counter() - started
            outcomes[prior].append(
                (
                    abs(found.count - truth) / truth,
                    found.low <= truth <= found.high,
                    (found.high - found.low) / truth,
                )
            )
            if not options.json:
                print(
                    f"{setting} truth {truth}, {prior}: {found.count} ({found.low} to {found.high}), "
                    f"{seconds:.1f} s",
                    flush=True,
                )
    table = {prior: _summary(rows) for prior, rows in outcomes.items()}
    print(json.dumps(table) if options.json else "\n".join(f"{name}: {row}" for name, row in table.items()))


def _summary(rows: Sequence[tuple[float, bool, float]]) -> dict[str, float]:
    errors, held, widths = (np.array(each, dtype=float) for each in zip(*rows, strict=True))
    return {
        "median_error": round(float(np.median(errors)), 4),
        "mean_error": round(float(errors.mean()), 4),
        "exact": round(float((errors == 0).mean()), 4),
        "range_holds_truth": round(float(held.mean()), 4),
        "range_width": round(float(widths.mean()), 4),
    }


if __name__ == "__main__":
    main()
