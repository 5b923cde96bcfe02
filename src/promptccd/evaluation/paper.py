"""The paper's accuracies, and whether they can come from the split that the paper declares.

``published.csv`` has every accuracy of the paper's result tables as printed, under our names of data sets and methods:
without corrections, averages over data sets and figures that are no accuracies. Rows of protocol ``c-gcd`` are of other
papers: Happy, VB-CGCD, DYDM and GOAL. ``splits.csv`` has the numbers of images that they are scored on.

With one matching over all images, All = w Old + (1 - w) New, where w is the share of Old images. Three printed numbers
therefore imply a share, up to rounding, and each of them is a whole number of images out of a known number:

    implied_old_share(76.55, 81.63, 73.00)                 # the shares of Old images that give this All
    audit_row((76.55, 81.63, 73.00), (2450, 3500))         # Verdict(outcome=..., reason=..., declared=0.4118, ...)
    audit(published_rows(benchmark="cifar100"))            # all rows with their verdicts

A verdict is about the numbers only: "impossible" means that they do not fit this split. The audit cannot distinguish
another split from a misprint.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from itertools import product
from operator import attrgetter
from statistics import fmean
from typing import NamedTuple

import pandas as pd

from promptccd.errors import DataError
from promptccd.evaluation.protocol_terms import PARTS

RUN = ["benchmark", "method", "protocol", "backbone", "setting"]  # columns that rows of one run share
WIDEST = 0.05  # a wider interval fits almost any split: Old and New are less than 0.4 points apart
_SLACK = 1e-9  # of sums of decimal fractions in binary


@cache
def published() -> pd.DataFrame:
    """Every printed row in the paper's order, accuracies in percent with two places.

    ============================  =================================================================================
    column                        value
    ============================  =================================================================================
    ``benchmark``                 data set, as recipes call it
    ``method``                    as recipes call it; baselines by the paper's name in lower case
    ``protocol``                  of the paper; ``c-gcd`` for rows of other papers
    ``backbone``                  ``dino``, ``dinov2`` or ``other``
    ``setting``                   ``key=value`` joined by ``;``, empty for the paper's default: one run with seed 1.
                                  In ``c-gcd`` it begins with the stages: ``b50t5`` labels 50 % and has 5 streams.
                                  ``by=`` names the paper that re-ran a method, ``M_f=`` its definition of M_f.
    ``stage``                     missing for the average over stages
    ``all``, ``old``, ``new``     M_all, M_o and M_d in PA-CGCD's setting; in ``c-gcd`` Old are all earlier categories;
                                  missing where not printed
    ``forgetting``                M_f, where it is printed
    ``std_all`` and so on         deviations over five seeds, where they are printed
    ``split``, ``table``          kind of split, as in ``splits.csv``, and label of the paper's table
    ``old_images, new_images``    that the row is scored on; missing for averages and unknown splits
    ``inferred``                  whether these come from published accuracies instead of the data
    ``unseen``                    share of Old images in the inductive split of the same stage, where one is known
    ============================  =================================================================================
    """
    rows, splits = (_read(name).astype({"stage": "Int64"}) for name in ("published.csv", "splits.csv"))
    keys = ["split", "benchmark", "stage"]
    inductive = splits[splits["split"] == "inductive"].assign(split="transductive")
    inductive["unseen"] = inductive["old_images"] / (inductive["old_images"] + inductive["new_images"])
    rows = rows.merge(splits, "left", keys).merge(inductive[[*keys, "unseen"]], "left", keys)
    return rows.fillna({"setting": "", "split": ""})


def _read(name: str) -> pd.DataFrame:
    with files("promptccd.evaluation").joinpath(name).open(encoding="utf-8") as stream:
        return pd.read_csv(stream, comment="#")


def published_rows(**wanted: str | None) -> pd.DataFrame:
    """The rows of `published` with these values, by column; `None` allows any value."""
    rows = published()
    for name, value in wanted.items():
        rows = rows if value is None else rows[rows[name] == value]
    return rows


class Verdict(NamedTuple):
    """The result of an audit.

    Attributes:
        outcome: one of `promptccd.evaluation.protocol_terms.OUTCOMES`.
        reason: one sentence for a person.
        declared: share of Old images of the split; NaN if unknown.
        implied_low: least share of Old images that the accuracies allow; NaN if none was derived.
        implied_high: greatest one.
    """

    outcome: str
    reason: str
    declared: float = math.nan
    implied_low: float = math.nan
    implied_high: float = math.nan


def implied_old_share(all: float, old: float, new: float) -> tuple[float, float] | None:
    """Least and greatest share of Old images, in 0..1, for which All can be the weighted mean; `None` if none can.

    Accuracies are in percent with two decimals. Each represents any value within 0.005 of it, so
    |All - w Old - (1 - w) New| <= 0.01 for every possible share w. If Old equals New, all shares or no shares are
    possible.
    """
    room = 0.01 + _SLACK
    gap, rise = old - new, all - new
    if abs(gap) < _SLACK:
        return (0.0, 1.0) if abs(rise) <= room else None
    low, high = sorted(((rise - room) / gap, (rise + room) / gap))
    low, high = max(low, 0.0), min(high, 1.0)
    return (low, high) if low <= high else None


def audit_row(
    accuracies: Sequence[float], images: tuple[float, float] | None, *, inferred: bool = False
) -> Verdict:
    """Whether the accuracies of one stage can come from a split.

    Args:
        accuracies: All, Old and New in percent, rounded to two decimals.
        images: numbers of Old and New images; `None` if unknown.
        inferred: whether these come from published accuracies; others that are no whole numbers of them then prove
            nothing.

    Raises:
        DataError: an accuracy is outside 0..100.
    """
    share = images[0] / sum(images) if images else math.nan
    if wrong := [value for value in accuracies if not (math.isnan(value) or 0 <= value <= 100)]:
        raise DataError(f"Expected accuracies in percent, 0 to 100, got {wrong[0]}.")
    if any(map(math.isnan, accuracies)):
        return Verdict("undecided", "All, Old or New does not exist.", share)
    if (implied := implied_old_share(*accuracies)) is None:
        return Verdict("impossible", "All is not between Old and New, so no split gives it.", share)
    low, high = implied
    outcome, reason = "consistent", "The share of Old images fits."
    if images is None:
        outcome, reason = "undecided", "The split of this row is not known."
    elif not low <= share <= high:
        outcome, reason = "impossible", f"Old is {low:.4f} to {high:.4f} of the images, not {share:.4f}."
    elif high - low > WIDEST:
        outcome, reason = "undecided", "Old and New are too close to tell splits apart."
    elif not _whole_numbers(accuracies, *images):
        outcome = "undecided" if inferred else "impossible"
        reason = f"The accuracies are no whole numbers of {images[0]:.0f} Old and {images[1]:.0f} New images"
        reason += ", which are inferred." if inferred else "."
    return Verdict(outcome, reason, share, low, high)


def _whole_numbers(accuracies: Sequence[float], old_images: float, new_images: float) -> bool:
    """Whether some numbers of right Old and New images give all three accuracies."""
    total, old, new = accuracies
    sums = set(_right_counts(total, old_images + new_images))
    pairs = product(_right_counts(old, old_images), _right_counts(new, new_images))
    return any(sum(pair) in sums for pair in pairs)


def _right_counts(percent: float, num_images: float) -> range:
    """Numbers of right images whose accuracy rounds to the percentage."""
    room = 0.005 + _SLACK
    low, high = (num_images * (percent + sign * room) / 100 for sign in (-1, 1))
    return range(max(math.ceil(low), 0), min(math.floor(high), int(num_images)) + 1)


def audit(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows of `published` with the columns of their `Verdict`.

    Averages are judged by their stages among the rows: their All is no weighted mean of Old and New, because every
    stage has weights of its own.
    """
    accuracies, run_of = attrgetter(*PARTS), attrgetter(*RUN)
    verdicts, stages, outcomes = dict[int, Verdict](), defaultdict(list), defaultdict(list)
    for row in rows[rows["stage"].notna()].itertuples():
        images = None if pd.isna(row.old_images) else (row.old_images, row.new_images)
        verdicts[row.Index] = audit_row(accuracies(row), images, inferred=row.inferred == 1)
        stages[run_of(row)].append(accuracies(row))
        outcomes[run_of(row)].append(verdicts[row.Index].outcome)
    for row in rows[rows["stage"].isna()].itertuples():
        own = run_of(row)
        verdicts[row.Index] = _audit_average(accuracies(row), stages[own], outcomes[own])
    table = pd.DataFrame(verdicts.values(), index=list(verdicts), columns=Verdict._fields)
    return rows.join(table)


def _audit_average(
    average: Sequence[float], stages: Sequence[Sequence[float]], outcomes: Sequence[str]
) -> Verdict:
    if not outcomes:
        return Verdict("undecided", "An average alone implies no share: every stage has its own.")
    for part, value, own in zip(PARTS, average, zip(*stages, strict=True), strict=True):
        if abs(value - fmean(own)) > 0.01 + _SLACK:
            text = f"{part.capitalize()} {value:.2f} is not the mean {fmean(own):.2f} of its stages."
            return Verdict("impossible", text)
    for outcome in ("impossible", "undecided"):
        if count := outcomes.count(outcome):
            return Verdict(outcome, f"{count} of its {len(outcomes)} stages: {outcome}.")
    return Verdict("consistent", "All of its stages are consistent.")


# How a table marks a printed row with stages that cannot come from their split.
MARKS = {
    "!": "at two stages or more the share of Old images that All, Old and New imply is not that of the split",
    "?": "at one stage it is not, a misprint most likely",
    "i": "it is that of the inductive split",
}


def mark_of(audited: pd.DataFrame) -> str:
    """The key of `MARKS` for the audited rows of one run, if stages cannot come from their split; empty if all can."""
    wrong = audited[audited["stage"].notna() & (audited["outcome"] == "impossible")]
    if len(wrong) < 2:
        return "?" * len(wrong)
    fitting = wrong["unseen"].between(wrong["implied_low"], wrong["implied_high"])
    fitting &= wrong["implied_high"] - wrong["implied_low"] <= WIDEST
    return "i" if fitting.sum() > len(wrong) / 2 else "!"
