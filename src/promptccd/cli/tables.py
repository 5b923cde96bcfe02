"""What the command line prints: plain tables that fit a terminal and can be copied into a text."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from promptccd import reports
from promptccd.evaluation.protocol_terms import OWN_ANSWER

if TYPE_CHECKING:
    from promptccd.data import StageCount
    from promptccd.evaluation import ContinualScore
    from promptccd.runs import ParameterCount, StreamRecord

MOST_PROMPTS = 10  # shown of an explanation


def table(header: Sequence[str], rows: Sequence[Sequence[Any]], places: int = 1) -> str:
    """Left-aligned first column, right-aligned others; floats with so many places, NaN as a dash."""
    cells = [[_cell(value, places) for value in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(header, *cells, strict=True)]
    lines = []
    for first, *others in [header, *cells]:
        numbers = [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        lines.append("  ".join([first.ljust(widths[0]), *numbers]))
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


def _cell(value: Any, places: int) -> str:
    if not isinstance(value, float):
        return str(value)
    return reports.ABSENT if math.isnan(value) else f"{value:.{places}f}"


def score_table(score: "ContinualScore", counted: str = "categories") -> str:
    """All/Old/New per stage and their average, in percent; an estimated count with its range.

    The protocol's other figures per stage have their own columns; those of the whole run stand below.
    """
    columns = score.columns
    rows = [
        [
            f"stage {row.stage}",
            row.num_images,
            reports.count_text([row]),
            row.all,
            row.old,
            row.new,
            *more,
        ]
        for row, *more in zip(score.stages, *columns.values(), strict=True)
    ]
    average = score.average
    means = [reports.Spread.of(values).mean for values in columns.values()]
    rows.append(["average", "", "", average["all"], average["old"], average["new"], *means])
    names = [name.replace("native", OWN_ANSWER).replace("_", " ") for name in columns]
    below = ", ".join(f"{name} {_cell(value, 1)}" for name, value in score.summary.items())
    return "\n".join([table(["", "images", counted, "All", "Old", "New", *names], rows), below]).rstrip()


def stream_table(records: "Sequence[StreamRecord]") -> str:
    """What was found in streams without labels, of which no accuracy is known."""
    return (
        f"{table(*reports.stream_rows(records))}\nThe streams have no labels, so that no accuracy is known."
    )


def comparison_table(scores: "Mapping[str, Sequence[ContinualScore]]") -> str:
    """Average All/Old/New by name; over several runs their mean and standard deviation (n - 1).

    The methods' own answers have rows of their own.
    """
    scores = reports.with_own_answers(scores)
    counts = {len(each) for each in scores.values()}
    runs, upto = max(counts), "up to " if len(counts) > 1 else ""
    rows = [[name, *reports.average_spreads(each).values()] for name, each in scores.items()]
    several = f", mean ± std of {upto}{runs} runs" if runs > 1 else ""
    return table(["average over stages" + several, "All", "Old", "New"], rows)


def parameter_table(counts: "Sequence[ParameterCount]") -> str:
    """What learns at the first and at the last stage, and the sums."""
    rows = [[count.part, f"{count.labelled:,}", f"{count.unlabelled:,}"] for count in counts]
    sums = [sum(getattr(count, name) for count in counts) for name in ("labelled", "unlabelled")]
    rows.append(["together", *(f"{value:,} ({value / 1e6:.1f}M)" for value in sums)])
    return table(["learnt values", "stage 0", "last stage"], rows)


def explanation_table(explanation: Mapping[str, Any]) -> str:
    """The category and the prompts that acted most."""
    lines = [f"{explanation['name']}, confidence {explanation['confidence']:.3f}"]
    if "patches_per_part" in explanation:
        parts = explanation["patches_per_part"].items()
        lines.append("patches per part: " + ", ".join(f"{part}: {size}" for part, size in parts))
    if "prompts" in explanation:
        rows = [
            [row["prompt"], row["times"], row["best_score"]] for row in explanation["prompts"][:MOST_PROMPTS]
        ]
        lines.append(table(["prompt", "times", "best score"], rows, places=2))
    return "\n".join(lines)


def count_table(counts: "Sequence[StageCount]") -> str:
    """Images, categories and Old share per stage."""
    rows = [
        [
            f"stage {row.stage}",
            row.images,
            reports.ABSENT if row.classes is None else row.classes,
            reports.ABSENT if row.old_share is None else f"{row.old_share:.4f}",
        ]
        for row in counts
    ]
    return table(["", "images", "categories", "Old share"], rows)
