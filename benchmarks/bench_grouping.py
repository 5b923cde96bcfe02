"""Groups beside others' over the same features, and what grouping costs as images and categories get more.

Where nothing is known, the number of groups and the groups themselves are held against k-means with the best
silhouette of many counts, HDBSCAN, and k-means with the best BIC, on subsets of a data set that differ in their
categories, images and balance; features are [CLS] of a bare backbone, or those of simulated categories.

    python -m benchmarks.bench_grouping --settings 20 --data caltech101/ --backbone facebook/dinov2-small
    python -m benchmarks.bench_grouping --cost --categories 30 200 --images 1000 4000 16000 64000
"""

import argparse
import json
import math
import os
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.cluster import HDBSCAN
from sklearn.decomposition import PCA
from sklearn.metrics import adjusted_rand_score, silhouette_score
from torch import Tensor

from benchmarks.bench_count import embedded
from benchmarks.measuring import extra_megabytes
from promptccd.clustering import AnchoredKMeans
from promptccd.discovery.grouping.open_grouping import KnownCategories, group_images

COUNTS = 18  # numbers of groups that are tried for those who cannot say one
WIDTH, POWER, WITHIN = 384, 0.5, 0.5  # of simulated features: direction i varies by i ** -POWER


def simulated(images: int, categories: int, seed: int) -> tuple[Tensor, Tensor]:
    """Unit features ``(N, D)`` around random directions, and their categories."""
    generator = torch.Generator().manual_seed(seed)
    scale = torch.arange(1, WIDTH + 1).pow(-POWER)
    centres = torch.randn(categories, WIDTH, generator=generator) * scale
    labels = torch.arange(images)[torch.randperm(images, generator=generator)] % categories
    features = torch.empty(images, WIDTH)
    for rows in torch.arange(images).split(10_000):
        noise = torch.randn(len(rows), WIDTH, generator=generator) * scale
        features[rows] = F.normalize(centres[labels[rows]] + WITHIN * noise, dim=1)
    return features, labels


def subset(features: Tensor, labels: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """5 to 100 categories with 15 to 60 images each, of about the same number or of very different ones."""
    numbers = np.random.default_rng([11, seed])
    every = labels.unique().numpy()
    chosen = numbers.permutation(every)[: round(math.exp(numbers.uniform(math.log(5), math.log(100))))]
    images, uneven = numbers.integers(15, 61), numbers.random() < 0.5
    rows = []
    for category in chosen:
        mine = numbers.permutation(np.flatnonzero(labels.numpy() == category))
        rows.append(mine[: max(4, int(images * numbers.choice([0.3, 1, 2])) if uneven else images)])
    taken = torch.from_numpy(np.concatenate(rows))
    return features[taken], labels[taken]


def ours(features: Tensor) -> np.ndarray:
    """Groups as `promptccd discover` makes them with a bare backbone."""
    keys = [f"{row:08d}" for row in range(len(features))]
    found, _ = group_images(features, keys, KnownCategories.none(features.shape[1]), next_id=0)
    return found.category_ids.numpy()


def by_score(points: np.ndarray, score: Callable[[np.ndarray, np.ndarray], float]) -> np.ndarray:
    """The k-means of the number of groups with the best score, of numbers that grow by the same factor."""
    most = max(4, min(len(points) // 4, 300))
    tried = []
    for count in np.unique(np.geomspace(2, most, COUNTS).round().astype(int)).tolist():
        labels = AnchoredKMeans(count, 4, random_state=0).fit(torch.from_numpy(points)).labels_.numpy()
        tried.append((score(points, labels), labels))
    return max(tried, key=lambda each: each[0])[1]


def bic(points: np.ndarray, labels: np.ndarray) -> float:
    """Of a mixture of round groups of one variance, in which images are where k-means has put them."""
    groups, labels, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    (images, width), number = points.shape, len(groups)
    means = np.stack([points[labels == group].mean(0) for group in range(number)])
    variance = max(((points - means[labels]) ** 2).sum() / (width * max(1, images - number)), 1e-12)
    likelihood = (sizes * np.log(sizes / images)).sum() - images * width / 2 * (
        math.log(2 * math.pi * variance) + 1
    )
    return float(likelihood - number * (width + 1) / 2 * math.log(images))


def others(features: Tensor) -> dict[str, np.ndarray]:
    """Groups of other ways, in the directions of greatest spread: there they do better than in all."""
    points = F.normalize(features, dim=1).numpy()
    points = PCA(min(48, *points.shape), random_state=0).fit_transform(points)
    return {
        "silhouette": by_score(points, lambda *found: float(silhouette_score(*found, random_state=0))),
        "BIC": by_score(points, bic),
        "HDBSCAN": HDBSCAN(min_cluster_size=5, copy=True).fit_predict(points),
    }


def compare(features: Tensor, labels: Tensor, settings: range) -> dict[str, dict[str, float]]:
    """Median of |log2(groups / categories)| and mean adjusted Rand index of every way."""
    rows: dict[str, list[tuple[float, float]]] = {}
    for seed in settings:
        points, truth = subset(features, labels, seed)
        categories = len(truth.unique())
        for name, found in {"ours": ours(points), **others(points)}.items():
            number = max(1, len(set(found.tolist()) - {-1}))
            rows.setdefault(name, []).append(
                (abs(math.log2(number / categories)), adjusted_rand_score(truth, found))
            )
            print(f"setting {seed}: {categories} categories, {len(truth)} images, {name} {number} "
                  f"groups, index {rows[name][-1][1]:.3f}", flush=True)  # fmt: skip
    return {
        name: {
            "count_error": round(float(np.median(errors)), 3),
            "rand_index": round(float(np.mean(index)), 3),
        }
        for name, (errors, index) in ((name, zip(*each, strict=True)) for name, each in rows.items())
    }


def cost(images: Sequence[int], categories: Sequence[int], known_share: float) -> None:
    """Print seconds of this process, memory and index; then how the seconds grow with the images."""
    for number in categories:
        spent = []
        for size in (size for size in images if size >= 8 * number):
            features, labels = simulated(size, number, seed=0)
            ids = range(int(known_share * number))
            means = [features[labels == each].mean(0) for each in ids]
            known = KnownCategories(tuple(ids), torch.stack(means)) if means else KnownCategories.none(WIDTH)
            keys = [f"{row:08d}" for row in range(size)]
            results = []
            started = time.process_time()
            memory = extra_megabytes(
                lambda: results.append(group_images(features, keys, known, next_id=len(ids)))  # noqa: B023
            )
            [(found, estimate)] = results
            spent.append((size, time.process_time() - started))
            print(
                f"{size} images, {number} categories, {len(ids)} known: {spent[-1][1]:.1f} s, {memory or 0:.0f} MB "
                f"beyond the features, {estimate}, index {adjusted_rand_score(labels, found.category_ids):.4f}",
                flush=True,
            )
            if size == 8_000:
                started = time.process_time()
                AnchoredKMeans(number, 10, random_state=0).fit(features)
                ratio = spent[-1][1] / (time.process_time() - started)
                print(f"    {ratio:.1f} times ten restarts of k-means that is told the number", flush=True)
        if len(spent) > 1:
            sizes, seconds = np.log(np.array(spent)).T
            exponent = np.polyfit(sizes, seconds, 1)[0]
            print(f"    {number} categories: seconds grow as N^{exponent:.2f}", flush=True)


def main(argv: Sequence[str] | None = None) -> None:
    """Print every setting, then the table; or the costs."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_grouping")
    parser.add_argument("--settings", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1, help="of the first setting")
    parser.add_argument("--data", help="a data set instead of simulated features")
    parser.add_argument("--split", default="train")
    parser.add_argument("--backbone", help="what embeds its images")
    parser.add_argument("--features", type=Path, help="a .npz file with features X and categories y instead")
    parser.add_argument("--cost", action="store_true", help="what grouping costs, instead of how good it is")
    parser.add_argument("--images", type=int, nargs="+", default=[1_000, 2_000, 4_000, 8_000, 16_000])
    parser.add_argument("--categories", type=int, nargs="+", default=[30])
    parser.add_argument("--known", type=float, default=0.0, help="share of the categories that are known")
    options = parser.parse_args(argv)
    warnings.filterwarnings("ignore", category=FutureWarning)
    if options.cost:
        cost(options.images, options.categories, options.known)
        return
    if options.features:
        with np.load(options.features) as stored:
            features, labels = torch.from_numpy(stored["X"]), torch.from_numpy(stored["y"])
    elif options.data:
        features, labels = embedded(options.data, options.split, options.backbone)
    else:
        features, labels = simulated(10_000, 120, options.seed)
    print(json.dumps(compare(features, labels, range(options.seed, options.seed + options.settings))))


if __name__ == "__main__":
    main()
