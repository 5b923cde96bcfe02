"""The mixture's own answer against the k-means it is scored by, over floors and covariances, on real features.

A frozen backbone embeds the images once; nothing is trained. Stage by stage, with the paper's cuts, a mixture is fitted
to the images and to replay, as training does, and another answers: the likeliest of its components, matched once. Both
answer on the same images as semi-supervised k-means of the protocol, so that differences are paired.

    python -m benchmarks.bench_answer digits --backbone runs/promptccd-digits-seed1/backbone --side 16 --out answers
    python -m benchmarks.bench_answer caltech101/train.parquet --backbone photographs --categories 20 40 --images 5 20
"""

import argparse
import io
import json
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Literal, cast

import numpy as np
import pyarrow.parquet  # type: ignore[import-untyped]
import torch
from PIL import Image
from sklearn.datasets import load_digits
from torch import Tensor

from promptccd.clustering import mixture
from promptccd.data.splits import split_by_category
from promptccd.data.view_options import ViewOptions
from promptccd.data.views import EvaluationView, build_image_processor, normalise
from promptccd.evaluation import ContinualAccuracy, clustering_accuracy
from promptccd.models import GCDModel
from promptccd.models.gaussian_mixture import GaussianMixture
from promptccd.models.loading import find_model

STAGES = 4
REPLAY = 100
BATCH = 256
FLOORS = (0.01, 0.1, 0.3, 1.0, 3.0)
TRAINING_FLOOR = 0.01
KMEANS = "k-means"
PARTS = ("all", "old", "new")


@dataclass(frozen=True)
class Features:
    """Unit features of labelled images.

    Attributes:
        values: ``(N, D)``.
        labels: ``(N,)``, the order of ids as in the data.
    """

    values: Tensor
    labels: np.ndarray

    def drawn(self, categories: int, images: int, seed: int) -> tuple[Tensor, np.ndarray] | None:
        """So many images of so many arbitrary categories that have them; `None` if too few have."""
        rng = np.random.default_rng([seed, categories, images])
        ids, sizes = np.unique(self.labels, return_counts=True)
        if len(fitting := ids[sizes >= images]) < categories:
            return None
        chosen = rng.permutation(fitting)[:categories]
        rows = [rng.permutation(np.flatnonzero(self.labels == each))[:images] for each in chosen]
        return self.values[np.concatenate(rows)], np.repeat(np.arange(categories), images)


def pictures_of(place: str) -> Iterator[tuple[Image.Image, int]]:
    """Images and labels of scikit-learn's digits or of a Parquet file."""
    if place == "digits":
        digits = load_digits()
        for values, label in zip(digits.images, digits.target, strict=True):
            yield Image.fromarray((values / 16 * 255).astype(np.uint8)).convert("RGB"), int(label)
        return
    table = pyarrow.parquet.read_table(place)
    image = next(name for name in table.column_names if name in ("image", "img"))
    label = next(name for name in table.column_names if name in ("label", "fine_label"))
    for each, number in zip(table[image], table[label], strict=True):
        yield Image.open(io.BytesIO(each.as_py()["bytes"])).convert("RGB"), number.as_py()


@torch.no_grad()
def embedded(place: str, backbone: str, side: int, kept: Path, first: int, at_most: int) -> Features:
    """Features of the images, computed once and kept in a file: so many of each of the first categories."""
    if not kept.exists():
        model = GCDModel.from_pretrained(find_model(backbone).place).eval()
        view = EvaluationView(build_image_processor(ViewOptions(image_size=side, resize_size=side * 9 // 8)))
        pixels, labels, parts, seen = list[Tensor](), list[int](), list[Tensor](), dict[int, int]()

        def flush() -> None:
            if pixels:
                parts.append(model.features_of(normalise(torch.stack(pixels), view.mean, view.std)))
                pixels.clear()

        for image, label in pictures_of(place):
            seen[label] = seen.get(label, 0) + 1
            if label < first and seen[label] <= at_most:
                pixels.append(view(image))
                labels.append(label)
            if len(pixels) == BATCH:
                flush()
        flush()
        torch.save({"values": torch.cat(parts), "labels": torch.tensor(labels)}, kept)
    stored = torch.load(kept)
    return Features(stored["values"], stored["labels"].numpy())


def fitted_over_floors(
    features: Tensor, settled: Tensor, count: int, covariance: str, seed: int
) -> dict[float, GaussianMixture]:
    """What `fit_gaussian_mixture` gives at every floor; they share the k-means that EM starts from.

    A floor is added to variances, so that the start at another floor differs by the difference alone.
    """
    origin = features.mean(0)
    data = mixture.COVARIANCES[covariance](features - origin)
    scale = float(data.points.double().square().mean())
    groups = mixture.start_groups(features, origin, settled, count, seed)
    first = mixture.start(data, *groups, FLOORS[0] * scale)
    found = {}
    for floor in FLOORS:
        more = (floor - FLOORS[0]) * scale
        raised = more * torch.eye(features.shape[1]) if covariance == "full" else more
        state = replace(first, variances=first.variances + raised)
        fit = mixture.iterate(data, state, settled, 100, 1e-7, floor * scale)
        found[floor] = GaussianMixture(
            count, features.shape[1], cast(Literal["diag", "spherical", "full"], covariance)
        )
        found[floor].load(fit.means + origin, fit.variances, fit.log_weights, fit.floor)
    return found


def answers(
    features: Tensor,
    labels: np.ndarray,
    blocks: Sequence[int],
    covariances: Sequence[str],
    restarts: int,
    seed: int,
) -> dict[str, list[float]]:
    """All, Old and New of every answer in percent, mean of the unlabelled stages."""
    split = split_by_category(labels, [str(each) for each in range(sum(blocks))], blocks, None, seed, "")
    known, counts = blocks[0], np.cumsum(blocks).tolist()
    stages = [features[ids] for ids in split.sample_ids]
    true = [labels[ids] for ids in split.sample_ids]
    protocol = ContinualAccuracy(true[0], known, restarts=restarts, seed=seed)
    found: dict[str, list[Sequence[float]]] = {}
    training = fitted_over_floors(stages[0], torch.from_numpy(true[0]), known, "diag", seed)[TRAINING_FLOOR]
    for stage in range(1, len(blocks)):
        groups = protocol.discover(stages[: stage + 1], counts[stage]).category_ids
        found.setdefault(KMEANS, []).append(clustering_accuracy(true[stage], groups, range(known)))
        replay = training.sample(REPLAY, torch.Generator().manual_seed(stage))
        owners = torch.arange(training.num_components).repeat_interleave(REPLAY)
        rows = torch.cat([stages[stage], replay])
        settled = torch.cat([torch.full((len(stages[stage]),), -1), owners])
        for covariance in dict.fromkeys(("diag", *covariances)):  # replay is always of the diagonal one
            fits = fitted_over_floors(rows, settled, counts[stage], covariance, stage)
            for floor, fit in fits.items():
                own = fit.log_joint(stages[stage]).argmax(1).numpy()
                score = clustering_accuracy(true[stage], own, range(known))
                found.setdefault(f"{covariance} {floor:g}", []).append(score)
            if covariance == "diag":
                training = fits[TRAINING_FLOOR]
    return {name: np.nanmean(np.array(rows), axis=0).tolist() for name, rows in found.items()}


def table(rows: Sequence[dict[str, object]]) -> list[str]:
    """A line per setting and answer: All, Old, New, and paired differences to k-means with their standard error."""
    lines = []
    for setting in dict.fromkeys((row["data"], row["categories"], row["images"]) for row in rows):
        chosen = [row for row in rows if (row["data"], row["categories"], row["images"]) == setting]
        for name in chosen[0]["found"]:  # type: ignore[attr-defined]
            values = np.array([row["found"][name] for row in chosen])  # type: ignore[index]
            beyond = values - np.array([row["found"][KMEANS] for row in chosen])  # type: ignore[index]
            cells = " ".join(f"{each:5.1f}" for each in values.mean(0))
            errors = [
                statistics.stdev(each) / len(each) ** 0.5 if len(each) > 1 else 0.0 for each in beyond.T
            ]
            ahead = " ".join(
                f"{mean:+5.1f}±{error:.1f}" for mean, error in zip(beyond.mean(0), errors, strict=True)
            )
            lines.append(f"{setting[0]:>10} {setting[1]:3} x {setting[2]:3}  {name:15} {cells}   {ahead}")
    return lines


def main(argv: Sequence[str] | None = None) -> None:
    """Embed, answer and print the table of all that the output folder holds."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_answer")
    parser.add_argument("data", help="digits, or a Parquet file of images and labels")
    parser.add_argument("--backbone", default="photographs")
    parser.add_argument("--side", type=int, default=64, help="pixels")
    parser.add_argument("--categories", type=int, nargs="+", default=[10, 20, 50, 100])
    parser.add_argument("--images", type=int, nargs="+", default=[5, 20, 100], help="of each category")
    parser.add_argument("--first", type=int, default=1000, help="categories of the data that are embedded")
    parser.add_argument("--most", type=int, default=100, help="images of each category that are embedded")
    parser.add_argument("--covariances", nargs="*", default=[], help="beside diag: spherical, full")
    parser.add_argument("--seeds", type=int, nargs="+", default=[21, 22, 23, 24, 25])
    parser.add_argument("--restarts", type=int, default=100, help="of k-means")
    parser.add_argument("--out", type=Path, default=Path("answers"))
    given = parser.parse_args(argv)
    given.out.mkdir(parents=True, exist_ok=True)
    path = Path(given.data)
    name = given.data if given.data == "digits" else f"{path.parent.name}-{path.stem}"
    kept = given.out / f"{name}-{given.first}-{given.most}.pt"
    features = embedded(given.data, given.backbone, given.side, kept, given.first, given.most)
    rows = []
    for categories, images in product(given.categories, given.images):
        for seed in given.seeds:
            if (drawn := features.drawn(categories, images, seed)) is None:
                break
            later = max(1, round(0.1 * categories))
            blocks = [categories - (STAGES - 1) * later, *[later] * (STAGES - 1)]
            found = answers(*drawn, blocks, given.covariances, given.restarts, seed)
            rows.append(
                {"data": name, "categories": categories, "images": images, "seed": seed, "found": found}
            )
            with (given.out / f"{name}.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps(rows[-1]) + "\n")
        mine = [row for row in rows if (row["categories"], row["images"]) == (categories, images)]
        print(*table(mine), sep="\n", flush=True)


if __name__ == "__main__":
    main()
