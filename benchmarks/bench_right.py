"""Does the range of what is right hold the truth? Simulated people, who err, sort projects whose truth is known.

    promptccd discover photographs KINDS/ --out found/   # a folder for each kind
    python -m benchmarks.bench_right found/ [found/ ...]

A group is called by its majority. They look at the least sure first and every fifth time blind, or always blind; who
errs moves what is right, and leaves what is wrong or moves it elsewhere.
"""

import argparse
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from promptccd.discovery.project import ProjectView, right

RUNS, LOOKS, EVERY = 200, 60, 5
ERRS = (0.0, 0.02, 0.05)


def truth_of(found: Path, names: Sequence[str]) -> list[str]:
    """The kind of every photograph: of ``found_truth.json`` beside the project, or the folder that it lies in."""
    truth = found.with_name(f"{found.name}_truth.json")
    if truth.exists():
        kinds = json.loads(truth.read_text())
        return [kinds[Path(name).name] for name in names]
    return [Path(name).parent.name for name in names]


def wrong_in(found: Path) -> tuple[np.ndarray, np.ndarray]:
    """Which photographs are in a group of another majority, and how sure they are."""
    view = ProjectView(found)
    kinds, groups = np.array(truth_of(found, view.photos.names)), view.columns().group
    inside = groups >= 0
    kinds, groups = kinds[inside], groups[inside]
    called = {
        each: Counter(kinds[groups == each].tolist()).most_common(1)[0][0] for each in set(groups.tolist())
    }
    sure = np.array([view.confidences.get(key, 1.0) for key in view.photos.keys])[inside]
    return np.array([called[each] for each in groups.tolist()]) != kinds, sure


def one_day(
    wrong: np.ndarray, sure: np.ndarray, errs: float, looks: int, blind_each: int, rng: np.random.Generator
) -> tuple[float, float, float]:
    """The share that is right in the end, and the range that is said."""
    open_, now = np.ones(len(wrong), bool), wrong.copy()
    order, draws, answers = np.argsort(sure, kind="stable"), list[tuple[int, int]](), list[bool]()
    turn = 0
    while len(draws) < looks:
        turn += 1
        rest = order[open_[order]]
        if turn % blind_each == 0:
            row = int(rng.choice(rest))
            draws.append((len(answers), len(rest)))
        else:
            row = int(rest[0])
        err = rng.random() < errs
        answers.append(bool(wrong[row]) != (err and (not wrong[row] or rng.random() < 0.5)))
        now[row], open_[row] = err, False
    found = np.cumsum(answers[::-1])[::-1]
    table = np.array([(answers[at], left, found[at]) for at, left in draws], dtype=right._DRAWS)
    left, looked = int(open_.sum()), int((~open_).sum())
    _, low, high = right.share_right([(table, left)], looked)
    return 1 - float(now.mean()), low, high


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("found", nargs="+", type=Path)
    parser.add_argument("--runs", type=int, default=RUNS)
    options = parser.parse_args()
    for found in options.found:
        wrong, sure = wrong_in(found)
        for blind_each, errs in ((each, errs) for each in (1, EVERY) for errs in ERRS):
            rng, said = np.random.default_rng(7), []
            for _ in range(options.runs):
                truth, low, high = one_day(wrong, sure, errs, LOOKS, blind_each, rng)
                said.append((low <= truth <= high, (high - low) / 2, truth))
            held, width, truth = np.mean(said, axis=0)
            blind = "all blind" if blind_each == 1 else f"1 in {blind_each} blind"
            print(
                f"{found.name:10} {len(wrong)} photographs, {blind}, {100 * errs:.0f} % errors: "
                f"{100 * truth:.0f} % right in the end, held {100 * held:.1f} %, half width {100 * width:.1f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
