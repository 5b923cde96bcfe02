"""Does what is known stay known, and is what is new found? Finished runs, stage by stage.

Batches of one image to all go through the grouping of ``promptccd discover``: images of categories that a stage knows
alone, and such with others among them. They are those of all stages of the run or, with ``--unseen``, test images.

    promptccd sweep --config hub_configs/promptccd-digits.yaml --seeds 1 7 10 --out runs/known
    python -m benchmarks.bench_open_set runs/known/promptccd-digits-seed*
"""

import argparse
import os
from collections import defaultdict
from collections.abc import Iterator, Sequence

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment

from promptccd.discovery.grouping.open_grouping import KnownCategories, group_images
from promptccd.evaluation.protocols import ScoredImages
from promptccd.runs import RunEvaluation

SIZES = (1, 5, 60, 180, 300, 600, 1000, None)
REPEATS = 3
WIDTH = "width of the range"


def batches(rows: np.ndarray, seed: int) -> Iterator[np.ndarray]:
    """Images drawn at random, 180 that follow each other, and those of a few categories."""
    numbers = np.random.default_rng(seed)
    for size in SIZES:
        for _ in range(REPEATS):
            yield numbers.permutation(rows)[:size]
    for start in (0, len(rows) // 4, len(rows) // 2):
        yield rows[start : start + 180]


def true_categories(evaluation: RunEvaluation, stage: int) -> dict[int, int]:
    """Which true category each one of a stage is: that of most of its images."""
    ids, truth = [], []
    for images in evaluation.images[: stage + 1]:
        given = evaluation.run.assignments(images.stage.index)
        label_of = dict(
            zip(images.stage.sample_ids, evaluation.stages.evaluation_labels(images.stage), strict=True)
        )
        ids += given["category_ids"]
        truth += [label_of[sample] for sample in given["sample_ids"]]
    of_category = {each: np.bincount(np.array(truth)[np.array(ids) == each]) for each in set(ids)}
    return {category: int(counts.argmax()) for category, counts in of_category.items()}


def measured(
    evaluation: RunEvaluation, scored: ScoredImages, stage: int, seed: int
) -> Iterator[tuple[str, float]]:
    """Figures of every batch, by what they say."""
    in_order = np.argsort(np.concatenate([each.stage.sample_ids[each.positions] for each in scored.images]))
    features = torch.cat(evaluation.features(stage, scored.images))[in_order]
    labels = np.concatenate(scored.labels)[in_order]
    model, truth_of = evaluation.load_stage(stage), true_categories(evaluation, stage)
    ids, unknown = tuple(model.config.category_ids), ~np.isin(labels, list(truth_of.values()))
    nearest = torch.cdist(features, model.prototypes.float()).argmin(1).numpy()
    plain = np.array([truth_of.get(ids[row], -1) for row in nearest]) == labels
    known = KnownCategories(ids, model.prototypes.float(), model.spread)
    for kind, rows in (("known alone", np.flatnonzero(~unknown)), ("with new ones", np.arange(len(labels)))):
        if kind == "with new ones" and not unknown.any():
            continue
        for chosen in batches(rows, seed):
            if kind == "with new ones" and (len(chosen) < 180 or not unknown[chosen].any()):
                continue
            found, estimate = group_images(
                features[chosen], [str(row) for row in chosen], known, next_id=max(ids) + 1
            )
            category, new = found.category_ids.numpy(), unknown[chosen]
            named = np.array([truth_of.get(int(each), -1) for each in category]) == labels[chosen]
            opened, missing = np.unique(category[category > max(ids)]), np.unique(labels[chosen][new])
            truth = len(ids) + len(missing)
            yield f"{kind}: named right", named[~new].mean()
            yield f"{kind}: by the nearest prototype", plain[chosen][~new].mean()
            beyond = named[~new].mean() - plain[chosen][~new].mean()
            yield f"{kind}: better than that by", beyond
            yield f"{kind}: at most 2 points below it", beyond >= -0.02
            yield f"{kind}: range holds the number", estimate.low <= truth <= estimate.high
            yield f"{kind}: {WIDTH}", estimate.high - estimate.low
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
    parser.add_argument("runs", nargs="+", help="finished runs")
    parser.add_argument("--seed", type=int, default=1, help="of the batches")
    parser.add_argument("--unseen", action="store_true", help="test images: no stage has used them")
    parser.add_argument("--dataset", help="where the data lies now")
    options = parser.parse_args(argv)
    figures: dict[tuple[int, str], list[float]] = defaultdict(list)
    for run in options.runs:
        evaluation = RunEvaluation(run, options.dataset)
        scored = evaluation.test_images() if options.unseen else evaluation.training_stages
        for stage in range(evaluation.num_stages):
            for name, value in measured(evaluation, scored, stage, options.seed):
                figures[stage, name].append(float(value))
    for (stage, name), values in figures.items():
        if name.endswith(WIDTH):
            print(f"stage {stage}, {name}: {np.mean(values):.1f}")
        else:
            print(f"stage {stage}, {name}: {100 * np.mean(values):.1f} % (worst {100 * min(values):.1f})")


if __name__ == "__main__":
    main()
