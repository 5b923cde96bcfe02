"""The paper's accuracies, and whether they can come from the split that the paper declares.

``published.csv`` has every accuracy of the paper's result tables as printed, under our names of data sets and methods:
without corrections, averages over data sets and figures that are no accuracies. Rows of protocol ``c-gcd`` are of other
papers: Happy, VB-CGCD, DYDM and GOAL.

    for row in published_rows("cub", "promptccd-pp"):
        print(row.stage or "average", row.all, row.old, row.new)

With one matching over all images, All = w Old + (1 - w) New, where w is the share of Old images. Three printed numbers
therefore imply a share, up to rounding, and each of them is a whole number of images out of a known one:

    row = next(row for row in published_rows("cifar100", "promptccd") if row.stage == 1)
    implied_old_share(row.all, row.old, row.new)   # Interval(low=0.41155..., high=0.41255...)
    audit_row(row, declared_split(row))            # Verdict(outcome="consistent", declared=0.4118, ...)
    audit_rows(published_rows("cifar100"))         # all rows, averages judged by their stages
    audit_row(score, split.counts[1].old_share)    # stage 1 of one's own run

A verdict is about the numbers only: "impossible" means that they do not fit this split. The audit cannot distinguish
another split from a misprint.
"""

import csv
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from promptccd.data.benchmarks import BENCHMARKS
from promptccd.data.splits import PAPER_CUTS, cut_sizes
from promptccd.errors import DataError
from promptccd.evaluation.protocol_terms import PARTS

if TYPE_CHECKING:
    from promptccd.evaluation.accuracy import ClusteringAccuracy
    from promptccd.evaluation.continual import StageScore
    from promptccd.training.recipe import Recipe

# Numbers of categories after every unlabelled stage, which all rows of a table with unknown numbers share.
SHARED_COUNTS: Mapping[str, Mapping[str, tuple[int, ...]]] = {
    "unknown_c_gpc": {
        "cifar100": (85, 100, 115),
        "imagenet100": (83, 98, 113),
        "tinyimagenet": (155, 170, 185),
        "cub": (161, 180, 198),
    },
    "unknown_c_kmeans": {
        "cifar100": (84, 84, 84),
        "imagenet100": (90, 90, 91),
        "tinyimagenet": (169, 169, 172),
        "cub": (166, 192, 220),
    },
}


@dataclass(frozen=True)
class PublishedRow:
    """One printed row, accuracies in percent with two places.

    Attributes:
        benchmark: name of the data set, as a recipe calls it.
        method: ``promptccd``, ``promptccd-gcd``, ``promptccd-b-l2p``, ``promptccd-b-dp``, ``promptccd-pp``,
            ``promptccd-u``, or a baseline by the paper's name in lower case.
        protocol: ``transductive_cacc``, ``inductive_cacc``, ``gcd_acc``, ``unknown_c_gpc``, ``unknown_c_kmeans``,
            ``pa_cgcd``, ``metagcd``, ``class_split``, ``frozen``, ``gm_variants``, ``ablation``, ``part_routing`` or
            ``c-gcd``. There, a setting begins with the stages: ``b50t5`` labels 50 % and has 5 streams. ``by=`` names
            the paper that re-ran a method, and ``M_f=`` its definition of M_f.
        backbone: ``dino``, ``dinov2`` or ``other``.
        setting: ``key=value`` joined by ``;``, empty for the paper's default, which is one run with seed 1.
        stage: index of the stage; `None` for the average over stages.
        all: over all images; M_all in PA-CGCD's setting; NaN where only M_f and M_d are printed.
        old: over those of initially labelled categories, in C-GCD of all earlier ones; M_o in PA-CGCD's setting; NaN
            where it is not printed.
        new: over the others; M_d in PA-CGCD's setting and in rows of C-GCD with ``M_f=``; NaN where it is not printed.
        table: label of the paper's table.
        forgetting: M_f of PA-CGCD's setting or of C-GCD, lower is better, else `None`.
        std: standard deviations of All, Old and New over five seeds where the paper prints them, else `None`.
    """

    benchmark: str
    method: str
    protocol: str
    backbone: str
    setting: str
    stage: int | None
    all: float
    old: float
    new: float
    table: str
    forgetting: float | None = None
    std: tuple[float, float, float] | None = None

    @property
    def run(self) -> tuple[str, str, str, str, str]:
        """Values that rows of one run share: data set, method, protocol, backbone and setting."""
        return (self.benchmark, self.method, self.protocol, self.backbone, self.setting)


def published_rows(
    benchmark: str | None = None,
    method: str | None = None,
    protocol: str | None = "transductive_cacc",
    backbone: str | None = "dinov2",
    setting: str | None = "",
) -> list[PublishedRow]:
    """The printed rows with these values of `PublishedRow`, in the paper's order; `None` allows any value.

    A setting is what differs from the paper's default, for example ``seed=7``, ``seeds=5`` (averages with their
    deviation) or ``class_split=4:2:2:2``.
    """
    wanted = (benchmark, method, protocol, backbone, setting)
    return [
        row
        for row in _all_rows()
        if all(value in (None, own) for value, own in zip(wanted, row.run, strict=True))
    ]


@cache
def _all_rows() -> tuple[PublishedRow, ...]:
    text = files("promptccd.evaluation").joinpath("published.csv").read_text(encoding="utf-8")
    rows = []
    for cells in csv.DictReader(text.splitlines()):
        deviations = [float(std) for std in (cells.pop(f"std_{part}") for part in PARTS) if std]
        values: dict[str, Any] = {**cells, **{part: float(cells[part] or "nan") for part in PARTS}}
        values["stage"] = int(cells["stage"]) if cells["stage"] else None
        values["forgetting"] = float(cells["forgetting"]) if cells["forgetting"] else None
        rows.append(PublishedRow(**values, std=tuple(deviations) or None))  # type: ignore[arg-type]  # three or none
    return tuple(rows)


@dataclass(frozen=True)
class SplitCounts:
    """Numbers of images that one stage is scored on.

    Attributes:
        old: of initially labelled categories.
        new: of the others.
        inferred: whether the numbers come from published accuracies instead of the data; accuracies that are no whole
            numbers of them then prove nothing.
    """

    old: int
    new: int
    inferred: bool = False

    @property
    def share(self) -> float:
        """Share of Old images in 0..1."""
        return self.old / (self.old + self.new)


def declared_split(row: PublishedRow) -> SplitCounts | None:
    """Images that a row is scored on by the paper's account; `None` for averages and unknown splits."""
    kind = row.protocol if row.protocol in _OWN_SPLIT else "transductive"
    if row.protocol == "inductive_cacc" or row.setting == "evaluation=inductive":
        kind = "inductive"
    elif row.protocol == "class_split":
        kind = row.setting
    elif row.protocol == "c-gcd":
        kind = row.setting.partition(";")[0]
    counts = DECLARED_SPLITS.get((kind, row.benchmark))
    return counts[row.stage - 1] if counts and row.stage and row.protocol != "part_routing" else None


def _cut_counts(class_blocks: Sequence[int], images_per_class: int) -> tuple[SplitCounts, ...]:
    """Stages that the paper's fractions cut from a data set with equally many images of every category."""
    sizes = [cut_sizes(images_per_class, ratios) for ratios in PAPER_CUTS]
    return tuple(
        SplitCounts(
            old=class_blocks[0] * sizes[0][stage],
            new=sum(class_blocks[block] * sizes[block][stage - block] for block in range(1, stage + 1)),
        )
        for stage in range(1, len(class_blocks))
    )


_OWN_SPLIT = ("metagcd", "pa_cgcd")
# Shares of categories in percent that C-GCD's settings label, and numbers of streams that bring the others.
_CGCD = {"b50t5": (50, 5), "b50t10": (50, 10), "b10t9": (10, 9)}


def _cgcd_blocks(setting: str, num_categories: int) -> tuple[int, ...]:
    """Class blocks of a setting of C-GCD."""
    share, streams = _CGCD[setting]
    known = num_categories * share // 100
    return (known, *[(num_categories - known) // streams] * streams)


_CLASS_SPLITS = {"4:2:2:2": (40, 20, 20, 20), "4:3:2:1": (40, 30, 20, 10), "1:2:3:4": (10, 20, 30, 40)}
# Images of a category of the data sets with equally many; of imagenet100 the paper's statistics count all images.
_IMAGES_PER_CLASS = {
    "transductive": {"cifar100": 500, "imagenet100": 500, "tinyimagenet": 500},
    "inductive": {"cifar100": 100, "imagenet100": 50, "tinyimagenet": 50},
}
# Old and New images per stage, by kind of split and data set, where categories are unequal: the numbers that all clean
# rows of the paper agree on.
_INFERRED: Mapping[tuple[str, str], tuple[tuple[int, int], ...]] = {
    ("transductive", "cub"): ((280, 419), (140, 660), (140, 718)),
    ("transductive", "aircraft"): ((140, 230), (70, 356), (140, 414)),
    ("transductive", "cars"): ((369, 611), (133, 997), (259, 1125)),
    ("transductive", "caltech101"): ((363, 366), (171, 482), (210, 908)),
    ("inductive", "cub"): ((268, 408), (137, 650), (140, 708)),
    # A fifth of the training images of 160 known categories and all of 40 others: near these numbers, the only pair
    # that two of the four printed rows are whole numbers of.
    ("pa_cgcd", "cub"): ((960, 1198),),
}
# Per stage, by kind of split and data set.
DECLARED_SPLITS: Mapping[tuple[str, str], tuple[SplitCounts, ...]] = {
    **{
        (kind, name): _cut_counts(BENCHMARKS[name].class_blocks, images)
        for kind, by_name in _IMAGES_PER_CLASS.items()
        for name, images in by_name.items()
    },
    **{
        (f"class_split={name}", "cifar100"): _cut_counts(blocks, 500)
        for name, blocks in _CLASS_SPLITS.items()
    },
    # Test images of all categories so far, where Old are all of earlier stages.
    **{
        (setting, name): tuple(
            SplitCounts(images * sum(blocks[:stage]), images * blocks[stage], inferred=True)
            for blocks in [_cgcd_blocks(setting, sum(BENCHMARKS[name].class_blocks))]
            for stage in range(1, len(blocks))
        )
        for setting in _CGCD
        for name, images in _IMAGES_PER_CLASS["inductive"].items()
    },
    # 80 known categories and 5 more a session, all of their 100 test images.
    ("metagcd", "cifar100"): tuple(SplitCounts(8000, 500 * session) for session in (1, 2, 3, 4)),
    **{key: tuple(SplitCounts(*pair, inferred=True) for pair in pairs) for key, pairs in _INFERRED.items()},
}


Accuracies: TypeAlias = "PublishedRow | ClusteringAccuracy | StageScore"  # have All, Old and New in percent
Outcome = Literal["consistent", "impossible", "undecided"]
WIDEST = 0.05  # a wider interval fits almost any split: Old and New are less than 0.4 points apart
_SLACK = 1e-9  # of sums of decimal fractions in binary


class Interval(NamedTuple):
    """Shares in 0..1 between two bounds, both included."""

    low: float
    high: float

    def __contains__(self, share: object) -> bool:
        """Whether a share lies between them."""
        return isinstance(share, int | float) and self.low <= share <= self.high

    def __str__(self) -> str:
        return f"{self.low:.4f} to {self.high:.4f}"


@dataclass(frozen=True)
class Verdict:
    """The result of an audit.

    Attributes:
        outcome: ``consistent``, ``impossible`` or ``undecided``.
        implied: shares of Old images that the accuracies allow; `None` where they allow none, or none was derived.
        declared: share of Old images of the split, `None` if unknown.
        reason: one sentence for a person.
    """

    outcome: Outcome
    implied: Interval | None
    declared: float | None
    reason: str


class AuditedRow(NamedTuple):
    """A published row and the result of its audit."""

    row: PublishedRow
    verdict: Verdict


def implied_old_share(all: float, old: float, new: float) -> Interval | None:
    """The shares of Old images, in 0..1, under which All can be the weighted mean of Old and New; `None` if none can.

    Accuracies are in percent with two decimals. Each stands for any value within 0.005 of it, so
    |All - w Old - (1 - w) New| <= 0.01 for every possible share w. If Old equals New, all shares are possible or none.
    """
    room = 0.01 + _SLACK
    gap, rise = old - new, all - new
    if abs(gap) < _SLACK:
        return Interval(0.0, 1.0) if abs(rise) <= room else None
    low, high = sorted(((rise - room) / gap, (rise + room) / gap))
    low, high = max(low, 0.0), min(high, 1.0)
    return Interval(low, high) if low <= high else None


def audit_row(row: Accuracies, declared: SplitCounts | float | None) -> Verdict:
    """Whether the accuracies of one stage can come from a split.

    Args:
        row: All, Old and New in percent, rounded to two decimals.
        declared: numbers of images of the split, or only its share of Old images in 0..1; `None` if unknown.

    Raises:
        DataError: an accuracy is outside 0..100, or the share outside 0..1.
    """
    values = [getattr(row, part) for part in PARTS]
    share = declared.share if isinstance(declared, SplitCounts) else declared
    if share is not None and not 0 <= share <= 1:
        raise DataError(f"Expected a share of Old images in 0..1, got {share}: divide percent by 100.")
    if any(value is None or math.isnan(value) for value in values):
        return Verdict("undecided", None, share, "All, Old or New does not exist.")
    wrong = [value for value in values if not 0 <= value <= 100]
    if wrong:
        raise DataError(f"Expected accuracies in percent, 0 to 100, got {wrong[0]}.")
    implied = implied_old_share(row.all, row.old, row.new)
    if implied is None:
        return Verdict("impossible", None, share, "All is not between Old and New, so no split gives it.")
    if share is None:
        return Verdict("undecided", implied, None, "The split of this row is not known.")
    if share not in implied:
        return Verdict("impossible", implied, share, f"Old is {implied} of the images, not {share:.4f}.")
    if implied.high - implied.low > WIDEST:
        return Verdict("undecided", implied, share, "Old and New are too close to tell splits apart.")
    if isinstance(declared, SplitCounts) and not _whole_numbers(values, declared):
        images = f"{declared.old} Old and {declared.new} New images"
        if declared.inferred:
            return Verdict("undecided", implied, share, f"No whole numbers of {images}, which are inferred.")
        return Verdict("impossible", implied, share, f"The accuracies are no whole numbers of {images}.")
    return Verdict("consistent", implied, share, "The share of Old images fits.")


def audit_average(average: Accuracies, stages: Sequence[tuple[Accuracies, Verdict]]) -> Verdict:
    """Whether an average can come from a split, judged by its stages.

    All of an average is no weighted mean of its Old and New, because every stage has weights of its own. `average` is
    the unweighted mean over `stages`, which come with their verdicts and are empty where they are not known.
    """
    if not stages:
        return Verdict("undecided", None, None, "An average alone implies no share: every stage has its own.")
    for part in PARTS:
        mean = sum(getattr(row, part) for row, _ in stages) / len(stages)
        if abs(getattr(average, part) - mean) > 0.01 + _SLACK:
            text = f"{part.capitalize()} {getattr(average, part):.2f}"
            return Verdict("impossible", None, None, f"{text} is not the mean {mean:.2f} of its stages.")
    outcomes = [verdict.outcome for _, verdict in stages]
    for outcome in ("impossible", "undecided"):
        if outcome in outcomes:
            count = outcomes.count(outcome)
            return Verdict(outcome, None, None, f"{count} of its {len(stages)} stages: {outcome}.")
    return Verdict("consistent", None, None, "All of its stages are consistent.")


def audit_rows(rows: Iterable[PublishedRow]) -> list[AuditedRow]:
    """A verdict for every published row against the split that the paper declares for it, in the given order.

    Averages are judged by their stages among the rows.
    """
    rows, stages = list(rows), defaultdict[tuple[str, ...], list[tuple[Accuracies, Verdict]]](list)
    for row in rows:
        if row.stage is not None:
            stages[row.run].append((row, audit_row(row, declared_split(row))))
    verdicts = {row: verdict for pairs in stages.values() for row, verdict in pairs}
    return [AuditedRow(row, verdicts.get(row) or audit_average(row, stages[row.run])) for row in rows]


def audited_by_stage(rows: Iterable[PublishedRow]) -> dict[int | None, AuditedRow]:
    """Rows of one run with their verdicts by stage, `None` for the average; the first of those that tables repeat."""
    found: dict[int | None, AuditedRow] = {}
    for audited in audit_rows(rows):
        found.setdefault(audited.row.stage, audited)
    return found


# How a table marks a printed row with stages that cannot come from their split.
MARKS = {
    "!": "at two stages or more the share of Old images that All, Old and New imply is not that of the split",
    "?": "at one stage it is not, a misprint most likely",
    "i": "it is that of the inductive split",
}


def mark_of(figures: Mapping[int | None, AuditedRow]) -> str:
    """The key of `MARKS` for rows with stages that cannot come from their split; empty where all can."""
    wrong = [row for row, verdict in figures.values() if row.stage and verdict.outcome == "impossible"]
    if len(wrong) < 2:
        return "?" if wrong else ""
    cut_alike = wrong[0].protocol not in (*_OWN_SPLIT, "class_split")
    unseen = DECLARED_SPLITS.get(("inductive", wrong[0].benchmark), ()) if cut_alike else ()
    fitting = [
        row for row in wrong
        if unseen and row.stage and audit_row(row, unseen[row.stage - 1].share).outcome == "consistent"
    ]  # fmt: skip
    return "i" if len(fitting) > len(wrong) / 2 else "!"


def _whole_numbers(values: Sequence[float], split: SplitCounts) -> bool:
    """Whether some numbers of right Old and New images give all three accuracies."""
    total, old, new = values
    sums = set(_right_counts(total, split.old + split.new))
    return any(
        one + other in sums
        for one in _right_counts(old, split.old)
        for other in _right_counts(new, split.new)
    )


def _right_counts(percent: float, num_images: int) -> range:
    """Numbers of right images whose accuracy rounds to the percentage."""
    room = 0.005 + _SLACK
    low, high = (num_images * (percent + sign * room) / 100 for sign in (-1, 1))
    return range(max(math.ceil(low), 0), min(math.floor(high), num_images) + 1)


BACKBONES = {"facebook/dinov2-base": "dinov2", "facebook/dino-vitb16": "dino"}


def differences(recipe: "Recipe", num_scored: int, backbone: str) -> list[str]:
    """Differences between a run with some scored stages and the paper's setting with a backbone, a phrase each."""
    facts, own = BENCHMARKS[recipe.data.benchmark or ""], recipe.data.resolved
    num_stages = len(own.class_blocks) - 1
    found = []
    if BACKBONES.get(recipe.model.backbone or "") != backbone:
        name = next(name for name, short in BACKBONES.items() if short == backbone)
        found.append(f"the backbone is not {name}")
    if replace(own, class_blocks=facts.class_blocks, split_rule=facts.split_rule) != facts:
        found.append("the data or its part is not the paper's")
    if num_scored != num_stages:
        found.append(f"{num_scored} of {num_stages} stages are scored")
    return found
