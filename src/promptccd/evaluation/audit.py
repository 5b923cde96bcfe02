"""Can an accuracy come from its declared split? The share of Old images that it implies tells.

With one matching over all images, All = w Old + (1 - w) New, where w is the share of Old images. Three printed
numbers therefore imply a share, up to rounding, and each of them is a whole number of images out of a known one:

    row = next(row for row in published_rows("cifar100", "promptccd") if row.stage == 1)
    implied_old_share(row.all, row.old, row.new)   # Interval(low=0.41155..., high=0.41255...)
    audit_row(row, declared_split(row))            # Verdict(outcome="consistent", declared=0.4118, ...)
    audit_rows(published_rows("cifar100"))         # all rows, averages judged by their stages
    audit_row(score, split.counts[1].old_share)    # stage 1 of one's own run

A verdict is about the numbers only: "impossible" says that they do not fit this split. It does not say whether they
come from another split or a misprint.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

from promptccd.data.benchmarks import BENCHMARKS
from promptccd.data.splits import PAPER_CUTS, cut_sizes
from promptccd.errors import DataError
from promptccd.evaluation.protocol_terms import PARTS
from promptccd.evaluation.published import PublishedRow


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
    counts = DECLARED_SPLITS.get((kind, row.benchmark))
    return counts[row.stage - 1] if counts and row.stage and row.protocol != "part_routing" else None


def _cut(class_blocks: Sequence[int], images_per_class: int) -> tuple[SplitCounts, ...]:
    """Stages that the paper's fractions cut from a data set with equally many images of every category."""
    taken = [cut_sizes(images_per_class, ratios) for ratios in PAPER_CUTS]
    return tuple(
        SplitCounts(
            old=class_blocks[0] * taken[0][stage],
            new=sum(class_blocks[block] * taken[block][stage - block] for block in range(1, stage + 1)),
        )
        for stage in range(1, len(class_blocks))
    )


_OWN_SPLIT = ("metagcd", "pa_cgcd")
_CIFAR, _IMAGENET, _TINY = (
    BENCHMARKS[name].class_blocks for name in ("cifar100", "imagenet100", "tinyimagenet")
)

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
    ("transductive", "cifar100"): _cut(_CIFAR, 500),
    # The paper's statistics count all images of the classes.
    ("transductive", "imagenet100"): _cut(_IMAGENET, 500),
    ("transductive", "tinyimagenet"): _cut(_TINY, 500),
    ("inductive", "cifar100"): _cut(_CIFAR, 100),
    ("inductive", "imagenet100"): _cut(_IMAGENET, 50),
    ("inductive", "tinyimagenet"): _cut(_TINY, 50),
    ("class_split=4:2:2:2", "cifar100"): _cut((40, 20, 20, 20), 500),
    ("class_split=4:3:2:1", "cifar100"): _cut((40, 30, 20, 10), 500),
    ("class_split=1:2:3:4", "cifar100"): _cut((10, 20, 30, 40), 500),
    # 80 known categories and 5 more a session, all of their 100 test images.
    ("metagcd", "cifar100"): tuple(SplitCounts(8000, 500 * session) for session in (1, 2, 3, 4)),
    **{
        key: tuple(SplitCounts(old, new, inferred=True) for old, new in counts)
        for key, counts in _INFERRED.items()
    },
}


Outcome = Literal["consistent", "impossible", "undecided"]
WIDEST = 0.05  # a wider interval fits almost any split: Old and New are less than 0.4 points apart
# mutant: a few roundings more or less; nothing is ever exactly there
_SLACK = 1e-9  # of sums of decimal fractions in binary


class Accuracies(Protocol):
    """Anything with All, Old and New in percent."""

    @property
    def all(self) -> float: ...  # noqa: D102 - see above

    @property
    def old(self) -> float: ...  # noqa: D102

    @property
    def new(self) -> float: ...  # noqa: D102


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


def implied_old_share(all: float, old: float, new: float, decimals: int = 2) -> Interval | None:
    """The shares of Old images, in 0..1, under which All can be the weighted mean of Old and New; `None` if none can.

    Accuracies are in percent and rounded to `decimals`. With two, each stands for any value within 0.005 of it, so
    |All - w Old - (1 - w) New| <= 0.01 for every possible share w. If Old equals New, all shares are possible or none.
    """
    room = 10.0**-decimals + _SLACK
    gap, rise = old - new, all - new
    if abs(gap) < _SLACK:  # mutant < to <=: a few roundings more or less; nothing is ever exactly there
        # mutant <= to <: a few roundings more or less; nothing is ever exactly there
        return Interval(0.0, 1.0) if abs(rise) <= room else None
    low, high = sorted(((rise - room) / gap, (rise + room) / gap))
    low, high = max(low, 0.0), min(high, 1.0)
    # mutant <= to <: a few roundings more or less; nothing is ever exactly there
    return Interval(low, high) if low <= high else None


def audit_row(row: Accuracies, declared: SplitCounts | float | None, decimals: int = 2) -> Verdict:
    """Whether the accuracies of one stage can come from a split.

    Args:
        row: All, Old and New in percent.
        declared: numbers of images of the split, or only its share of Old images in 0..1; `None` if unknown.
        decimals: of the rounded accuracies.

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
    implied = implied_old_share(row.all, row.old, row.new, decimals)
    if implied is None:
        return Verdict("impossible", None, share, "All is not between Old and New, so no split gives it.")
    if share is None:
        return Verdict("undecided", implied, None, "The split of this row is not known.")
    if share not in implied:
        return Verdict("impossible", implied, share, f"Old is {implied} of the images, not {share:.4f}.")
    # mutant > to >=: a width is never exactly there, as it is of decimal fractions in binary
    if implied.high - implied.low > WIDEST:
        return Verdict("undecided", implied, share, "Old and New are too close to tell splits apart.")
    if isinstance(declared, SplitCounts) and not _whole_numbers(values, declared, decimals):
        images = f"{declared.old} Old and {declared.new} New images"
        if declared.inferred:
            return Verdict("undecided", implied, share, f"No whole numbers of {images}, which are inferred.")
        return Verdict("impossible", implied, share, f"The accuracies are no whole numbers of {images}.")
    return Verdict("consistent", implied, share, "The share of Old images fits.")


def audit_average(
    average: Accuracies, stages: Sequence[tuple[Accuracies, Verdict]], decimals: int = 2
) -> Verdict:
    """Whether an average can come from a split, judged by its stages.

    All of an average is no weighted mean of its Old and New, because every stage has weights of its own. `average` is
    the unweighted mean over `stages`, which come with their verdicts and are empty where they are not known.
    """
    if not stages:
        return Verdict("undecided", None, None, "An average alone implies no share: every stage has its own.")
    for part in PARTS:
        mean = sum(getattr(row, part) for row, _ in stages) / len(stages)
        # mutant > to >=: a few roundings more or less; nothing is ever exactly there
        if abs(getattr(average, part) - mean) > 10.0**-decimals + _SLACK:
            said = f"{part.capitalize()} {getattr(average, part):.{decimals}f}"
            return Verdict(
                "impossible", None, None, f"{said} is not the mean {mean:.{decimals}f} of its stages."
            )
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
    rows = list(rows)
    verdicts = {row: audit_row(row, declared_split(row)) for row in rows if row.stage is not None}
    stages: dict[tuple[str, ...], list[tuple[Accuracies, Verdict]]] = defaultdict(list)
    for row, verdict in verdicts.items():
        stages[row.run].append((row, verdict))
    return [
        AuditedRow(row, verdicts[row] if row in verdicts else audit_average(row, stages[row.run]))
        for row in rows
    ]


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
    wrong = [
        audited.row
        for stage, audited in figures.items()
        if stage is not None and audited.verdict.outcome == "impossible"
    ]
    if not wrong:
        return ""
    cut_alike = wrong[0].protocol not in (*_OWN_SPLIT, "class_split")
    unseen = DECLARED_SPLITS.get(("inductive", wrong[0].benchmark), ()) if cut_alike else ()
    at_unseen = [audit_row(row, unseen[row.stage - 1].share).outcome for row in wrong if row.stage and unseen]
    if len(wrong) > 1 and at_unseen.count("consistent") > len(wrong) / 2:
        return "i"
    return "!" if len(wrong) > 1 else "?"


def _whole_numbers(values: Sequence[float], split: SplitCounts, decimals: int) -> bool:
    """Whether some numbers of right Old and New images give all three accuracies."""
    total, old, new = values
    sums = set(_right(total, split.old + split.new, decimals))
    return any(
        one + other in sums
        for one in _right(old, split.old, decimals)
        for other in _right(new, split.new, decimals)
    )


def _right(percent: float, num_images: int, decimals: int) -> range:
    """Numbers of right images whose accuracy rounds to the percentage."""
    room = 0.5 * 10.0**-decimals + _SLACK
    low, high = (num_images * (percent + sign * room) / 100 for sign in (-1, 1))
    return range(max(math.ceil(low), 0), min(math.floor(high), num_images) + 1)
