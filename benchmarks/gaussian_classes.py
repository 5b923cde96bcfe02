"""VB-CGCD and others over frozen features in C-GCD: digits by their pixels, five classes labelled, five streams.

    python benchmarks/gaussian_classes.py --seeds 1 2 3 4 5
    python benchmarks/gaussian_classes.py --features photographs.npz --seeds 61 62 63 64 65

With `--features`, a file with `features` ``(N, D)`` and `labels` ``(N,)``, every seed draws 20 classes, of which ten
are labelled. Nothing is trained, so that the table compares predictions alone. A fifth of the images is unseen, and is
scored by `promptccd.evaluation.protocols.cgcd_score`. Means over the streams, and their standard error over seeds.
"""

import argparse
import itertools
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from accelerate import Accelerator
from sklearn.datasets import load_digits
from torch import Tensor

from promptccd.clustering import CalibratedMixture
from promptccd.data.splits import UNUSED, cut_by_rule, select_rows
from promptccd.evaluation.protocols import cgcd_score
from promptccd.methods import StageContext
from promptccd.methods.vb_cgcd import VBCGCDConfig, VBCGCDModel, VBCGCDObjective
from promptccd.training.options import TrainingArguments

DIGITS, DRAWN = [5, 1, 1, 1, 1, 1], [10, 2, 2, 2, 2, 2]  # classes of each stage
BACKBONE = {"num_hidden_layers": 1, "num_attention_heads": 1, "image_size": 8, "patch_size": 8}
# Stages, labels, unseen images, number of classes so far by stage, seed: predictions for unseen images by stage.
Predictor = Callable[[list[Tensor], Tensor, Tensor, list[int], int], list[np.ndarray]]


def _given(features: Tensor, what: str) -> Tensor:
    return features


def vb_cgcd(**options: Any) -> Predictor:
    """VB-CGCD with options, on given features."""

    def predict(
        stages: list[Tensor], labels: Tensor, unseen: Tensor, counts: list[int], seed: int
    ) -> list[np.ndarray]:
        size = unseen.shape[1]
        model = VBCGCDModel(VBCGCDConfig(vision_config={**BACKBONE, "hidden_size": size}, **options))
        found = []
        for index, features in enumerate(stages):
            images: Any = SimpleNamespace(stage=SimpleNamespace(index=index))
            stage = StageContext(images, None if index else labels, num_categories=counts[index])
            arguments = TrainingArguments(seed=seed, kmeans_restarts=20)
            accelerator = Accelerator(cpu=True)
            VBCGCDObjective(model, stage, arguments, accelerator, partial(_given, features)).end_stage()
            if index == 0:
                known = [*range(counts[0])]
                model.set_categories(torch.zeros(len(known), size), known, [str(each) for each in known])
                model.config.num_known = len(known)
            found.append(model.assign_natively(unseen).numpy())
        return found

    return predict


def calibrated(
    stages: list[Tensor], labels: Tensor, unseen: Tensor, counts: list[int], seed: int
) -> list[np.ndarray]:
    """The calibrated mixture, which is the native prediction of a frozen backbone."""
    mixture = CalibratedMixture(random_state=seed).fit(stages[0], labels.numpy())
    found = [mixture.predict(unseen)]
    for features, count in zip(stages[1:], counts[1:], strict=True):
        found.append(mixture.partial_fit(features, num_categories=count).predict(unseen))
    return found


ROWS: dict[str, Predictor] = {
    "calibrated mixture": calibrated,
    **{
        f"shrunk, {weight:g} images per direction": vb_cgcd(prior_weight=weight)
        for weight in (0.05, 1.0, 4.0, 16.0, 64.0, 1e6)
    },
    "shrunk, without relabelling": vb_cgcd(relabel=False),
    "svi": vb_cgcd(estimate="svi"),
    "svi, never stopped early": vb_cgcd(estimate="svi", early_stop=False),
}


def drawn(path: str, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Features and classes from 0 on of as many classes as `DRAWN` has, drawn by the seed."""
    with np.load(path) as file:
        features, labels = file["features"], file["labels"]
    order = np.random.default_rng([7, seed]).permutation(np.unique(labels))[: sum(DRAWN)].tolist()
    rows = np.flatnonzero(np.isin(labels, order))
    return features[rows], np.array([order.index(each) for each in labels[rows]])


def main() -> None:
    """Print a row of the table for every predictor."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--features")
    options = parser.parse_args()
    seeds, blocks = options.seeds, DRAWN if options.features else DIGITS
    counts, names = list(itertools.accumulate(blocks)), [str(each) for each in range(sum(blocks))]
    figures = ("CAA", "M_d", "M_f", "old", "last All")
    print("", "", *figures, sep=" | ", end=" |\n")
    for title, predict in ROWS.items():
        found = []
        for seed in seeds:
            points, classes = (
                drawn(options.features, seed) if options.features else load_digits(return_X_y=True)
            )
            features = F.normalize(torch.from_numpy(points)).float()
            test, _ = select_rows(classes, names, held_out=0.2, held_out_only=True)
            train, _ = select_rows(classes, names, held_out=0.2)
            labels, cut = cut_by_rule("redrawn", train, names, blocks, None, seed)
            order = [names.index(each) for each in cut.categories]
            unseen, ids = features[test != UNUSED], np.argsort(order)[test[test != UNUSED]]
            stages = [features[rows] for rows in cut.sample_ids]
            predicted = predict(stages, torch.from_numpy(labels[cut.sample_ids[0]]), unseen, counts, seed)
            seen = [ids < count for count in counts]
            parts = zip(predicted, seen, strict=True)
            score = cgcd_score([ids[each] for each in seen], [own[each] for own, each in parts], counts)
            summary = score.summary
            own = [summary[name] for name in figures[:3]]
            found.append([*own, score.average["old"], score.stages[-1].all])
        errors = (
            np.std(found, axis=0, ddof=1) / len(seeds) ** 0.5 if len(seeds) > 1 else np.zeros(len(figures))
        )
        cells = [
            f"{mean:.1f} ± {error:.1f}" for mean, error in zip(np.mean(found, axis=0), errors, strict=True)
        ]
        print("", title, *cells, sep=" | ", end=" |\n", flush=True)


if __name__ == "__main__":
    main()
