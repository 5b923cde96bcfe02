"""Continual clustering accuracy (cACC) as an `evaluate` metric. Stands alone: nothing here imports promptccd."""

import numbers
from collections.abc import Sequence
from typing import Any

import datasets
import evaluate
import numpy as np
from scipy.optimize import linear_sum_assignment

COLUMNS = ("predictions", "references", "stages")
PARTS = ("all", "old", "new")
MAX_PAIRS = 10**8  # cells of one stage's count matrix, 8 bytes each and as many again while it is matched

DESCRIPTION = """
Continual clustering accuracy (cACC) of continual category discovery. Images arrive in stages; at each stage every image
is put into a category, known or newly discovered, and the ids of discovered categories have no meaning of their own.
Accuracy of a stage is therefore the share of its images whose predicted id is matched to their category under the best
one-to-one matching. Old counts the images of initially labelled categories, New all others, both under that same
matching. cACC is the unweighted mean over stages.
"""

CITATION = """
@article{promptccd,
  title = {Effective Prompt Pool Learning for Continual Category Discovery},
  author = {Cendra, Fernando Julio and Li, Xinghui and Han, Kai}
}
"""

INPUTS = """
Args:
    predictions: id given to every image, integers >= 0; names do not matter, gaps are allowed.
    references: true category of every image, integers >= 0; the initially labelled ones are 0 to num_known - 1.
    stages: stage of every image, integers >= 0.
    num_known: number of initially labelled categories. A reference below it is Old at every stage.
    detail: also return, for every stage, the matching and the count matrix.
Returns:
    all, old, new: unweighted means over the stages, in percent.
    num_samples: images in all.
    stages: for every stage, ascending, its stage, all, old, new (percent), num_samples, num_old, num_new (images),
        num_categories and num_clusters (distinct references and predictions). With detail also categories and clusters
        (their ids, ascending), counts (one row for every cluster, one column for every category), and matching: pairs
        of cluster and category, leaving out clusters that share no image with what is left for them.
    A part without images is NaN, and its mean is over the stages that have such images.
Examples:
    >>> cacc = evaluate.load("./spaces/cacc")
    >>> result = cacc.compute(predictions=[5, 5, 9, 9], references=[0, 0, 1, 0], stages=[1, 1, 1, 1], num_known=1)
    >>> result["all"], round(result["old"], 1), result["new"]
    (75.0, 66.7, 100.0)
"""


@evaluate.utils.file_utils.add_start_docstrings(DESCRIPTION, INPUTS)
class CACC(evaluate.Metric):
    """All, Old and New of every stage and their means; see `continual_accuracy`."""

    _highest = -1  # of the references collected; -1 if there is none

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description=DESCRIPTION,
            citation=CITATION,
            inputs_description=INPUTS,
            features=datasets.Features({name: datasets.Value("int64") for name in COLUMNS}),
            format="numpy",
        )

    def compute(
        self, *, predictions=None, references=None, stages=None, num_known=None, detail=False
    ) -> dict[str, Any] | None:
        """Score what `add` and `add_batch` collected, and what is given here."""
        # All of it is checked before the collected samples are handed over and forgotten.
        _check_options(num_known, detail)
        inputs, highest = {}, self._highest
        if any(values is not None for values in (predictions, references, stages)):
            inputs = _checked_columns(predictions, references, stages)
            highest = self._highest_with(inputs)
        if highest >= 0 and self.num_process == 1:  # other processes may have collected higher ones
            _check_num_known(num_known, highest)
        try:
            return super().compute(**inputs, num_known=num_known, detail=detail)
        finally:
            self._highest = -1
            for lock in self.filelocks or ():  # evaluate keeps them when a computation fails
                lock.release()

    def add_batch(self, *, predictions=None, references=None, stages=None) -> None:
        """Collect samples to score later with `compute`."""
        batch = _checked_columns(predictions, references, stages)
        head = {name: values[:1] for name, values in batch.items()}
        # One sample opens the file; evaluate would go through the others one by one.
        super().add_batch(**head)
        self.writer.write_batch({name: values[1:] for name, values in batch.items()})
        self._highest = self._highest_with(batch)

    def add(self, *, prediction=None, reference=None, stages=None) -> None:
        """Collect one sample to score later with `compute`."""
        sample = _checked_columns([prediction], [reference], [stages])
        super().add(prediction=prediction, reference=reference, stages=stages)
        self._highest = self._highest_with(sample)

    def _highest_with(self, columns: dict[str, np.ndarray]) -> int:
        return max(self._highest, int(columns["references"].max(initial=-1)))

    def _compute(self, *, predictions, references, stages, num_known, detail=False) -> dict[str, Any]:
        return continual_accuracy(predictions, references, stages, num_known, detail=detail)


def continual_accuracy(
    predictions: Sequence[int],
    references: Sequence[int],
    stages: Sequence[int],
    num_known: int,
    *,
    detail: bool = False,
) -> dict[str, Any]:
    """All, Old and New of every stage in percent, and their unweighted means; what `CACC.compute` returns.

    Raises:
        ValueError: a value is no integer or negative, the lengths differ, there is no sample, or `num_known` is
            not between 1 and the highest reference + 1.
    """
    _check_options(num_known, detail)
    columns = _checked_columns(predictions, references, stages)
    predicted, true = columns["predictions"], columns["references"]
    if not len(true):
        raise ValueError(
            "Expected at least one sample to score, got none: give predictions, references and stages."
        )
    _check_num_known(num_known, int(true.max()))
    order = np.argsort(columns["stages"], kind="stable")
    stage_ids, starts = np.unique(columns["stages"][order], return_index=True)
    rows = [
        {
            "stage": int(stage),
            **_stage_accuracy(predicted[chosen], true[chosen], num_known, detail),
        }
        for stage, chosen in zip(stage_ids, np.split(order, starts[1:]), strict=True)
    ]
    average = {part: _mean([row[part] for row in rows]) for part in PARTS}
    return {**average, "num_samples": len(true), "stages": rows}


def _stage_accuracy(predicted: np.ndarray, true: np.ndarray, num_known: int, detail: bool) -> dict[str, Any]:
    """One row: a single Hungarian assignment over all samples of the stage ("v2" in the field's code)."""
    counts, clusters, categories = count_matrix(predicted, true)
    rows, columns = linear_sum_assignment(counts, maximize=True)
    correct = np.zeros(len(categories), dtype=np.int64)
    correct[columns] = counts[rows, columns]
    sizes, is_old = counts.sum(axis=0), categories < num_known
    scores = {
        "all": _percent(correct.sum(), sizes.sum()),
        "old": _percent(correct[is_old].sum(), sizes[is_old].sum()),
        "new": _percent(correct[~is_old].sum(), sizes[~is_old].sum()),
        "num_samples": len(true),
        "num_old": int(sizes[is_old].sum()),
        "num_new": int(sizes[~is_old].sum()),
        "num_categories": len(categories),
        "num_clusters": len(clusters),
    }
    if not detail:
        return scores
    meaningful = counts[rows, columns] > 0  # which of the empty pairs the solver picks says nothing
    pairs = np.stack([clusters[rows[meaningful]], categories[columns[meaningful]]], axis=1)
    return {
        **scores,
        "clusters": clusters.tolist(),
        "categories": categories.tolist(),
        "matching": [tuple(pair) for pair in pairs.tolist()],
        "counts": counts.tolist(),
    }


def count_matrix(predicted: np.ndarray, true: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Samples of every cluster (rows) and category (columns), with the ids of both, ascending."""
    clusters, cluster_codes = np.unique(predicted, return_inverse=True)
    categories, category_codes = np.unique(true, return_inverse=True)
    shape = len(clusters), len(categories)
    if shape[0] * shape[1] > MAX_PAIRS:
        raise ValueError(
            f"Expected at most {MAX_PAIRS:,} pairs of predicted ids and categories in a stage, got {shape[0]:,} x "
            f"{shape[1]:,}: check that predictions and references are category ids, not image indices."
        )
    pairs = np.bincount(cluster_codes * shape[1] + category_codes, minlength=shape[0] * shape[1])
    return pairs.reshape(shape), clusters, categories


def _check_options(num_known: Any, detail: Any) -> None:
    if not _is_integer(num_known) or num_known < 1:
        raise ValueError(
            f"Expected num_known >= 1, an integer, got {num_known!r}: "
            "give the number of initially labelled categories; references below it are Old."
        )
    if not isinstance(detail, bool | np.bool_):
        raise ValueError(f"Expected detail to be True or False, got {detail!r}.")


def _check_num_known(num_known: int, highest: int) -> None:
    """Refuse more labelled categories than the highest reference leaves room for."""
    if num_known > highest + 1:
        raise ValueError(
            f"Expected num_known between 1 and {highest + 1}, got {num_known}: the highest reference is {highest}, "
            "and num_known counts the labelled categories 0 to num_known - 1, not images."
        )


def _checked_columns(predictions: Any, references: Any, stages: Any) -> dict[str, np.ndarray]:
    """The three columns as int64 of one length; nothing is cast that was not an integer."""
    columns = {
        name: _integers(values, name)
        for name, values in zip(COLUMNS, (predictions, references, stages), strict=True)
    }
    lengths = {name: len(values) for name, values in columns.items()}
    if len(set(lengths.values())) > 1:
        described = ", ".join(f"{count} {name}" for name, count in lengths.items())
        raise ValueError(f"Expected columns of one length, got {described}: give all three for every sample.")
    return columns


def _integers(values: Any, name: str) -> np.ndarray:
    if values is None:
        raise ValueError(
            f"Expected {name} for every sample, got None: give predictions, references and stages."
        )
    try:
        array = np.asarray(values)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"Expected {name} to be a flat sequence of integers, got {type(values).__name__} that NumPy cannot "
            f"read ({error}): give a list, or an array or tensor in main memory."
        ) from error
    if array.ndim != 1:
        raise ValueError(
            f"Expected {name} to be flat, one integer for every sample, got shape {array.shape}: "
            "scores have to be turned into ids first, by argmax."
        )
    # [True, 2] and [1, 2] look the same to NumPy
    mixed = isinstance(values, list | tuple) and not {bool, np.bool_}.isdisjoint(map(type, values))
    if len(array) and (array.dtype.kind not in "iu" or mixed):
        _refuse(array if isinstance(values, np.ndarray) else list(values), name, array.dtype)
    if len(array) and array.min() < 0:
        position = int(np.argmax(array < 0))
        raise ValueError(
            f"Expected {name} >= 0, got {array[position]} at position {position}: leave such samples out, "
            "or give them an id of their own."
        )
    if len(array) and array.max() > np.iinfo(np.int64).max:
        raise ValueError(f"Expected {name} below 2**63, got {array.max()}: number the ids from 0.")
    return array.astype(np.int64)


def _refuse(values: Sequence, name: str, dtype: np.dtype) -> None:
    """Name the first value that is no integer; among floats the first NaN or fraction, if there is one."""
    wrong = [index for index, value in enumerate(values) if not _is_integer(value)]
    if not wrong:
        raise ValueError(f"Expected {name} below 2**63, got {max(values, key=abs)}: number the ids from 0.")
    fractions = (index for index in wrong if dtype.kind == "f" and not float(values[index]).is_integer())
    position = next(fractions, wrong[0])
    value = values[position]
    value = value.item() if isinstance(value, np.generic) else value
    raise ValueError(
        f"Expected {name} to be integers, got {value!r} ({type(value).__name__}) at position {position}: nothing is "
        "rounded or cast here; give category ids, with .astype(int) if they are stored as floats."
    )


def _is_integer(value: Any) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool | np.bool_)


def _percent(correct: int, total: int) -> float:
    return 100 * float(correct) / float(total) if total else float("nan")


def _mean(values: list[float]) -> float:
    there = [value for value in values if value == value]
    return sum(there) / len(there) if there else float("nan")
