"""Output of the command line: plain tables that fit a terminal and can be copied into a text."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from promptccd import evaluation, reports

if TYPE_CHECKING:
    from promptccd.data import StageCount
    from promptccd.evaluation import ContinualScore
    from promptccd.runs import ParameterCount

MOST_PROMPTS = 10  # shown of an explanation


def table(header: Sequence[str], rows: Sequence[Sequence[Any]], places: int = 1) -> str:
    """Left-aligned first column, right-aligned other columns; floats with so many places, NaN as a dash."""
    cells = [[_cell(value, places) for value in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(header, *cells, strict=True)]
    lines = []
    for first, *others in [header, *cells]:
        numbers = [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        lines.append("  ".join([first.ljust(widths[0]), *numbers]).rstrip())
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


def _cell(value: Any, places: int) -> str:
    if not isinstance(value, float):
        return str(value)
    return evaluation.tables.ABSENT if math.isnan(value) else f"{value:.{places}f}"


def score_table(score: "ContinualScore", counted: str = "categories") -> str:
    """The table of a run's scores per stage, in percent, and below it the protocol's figures of the whole run."""
    below = ", ".join(f"{name} {_cell(value, 1)}" for name, value in score.summary.items())
    grid = evaluation.tables.text_grid(evaluation.tables.score_table(score), counted)
    return f"{table(*grid)}\n{below}".rstrip()


def stream_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The table of streams without labels, which have no accuracy."""
    return f"{table(*reports.report.stream_grid(rows))}\nThe streams have no labels, so that no accuracy is known."


def parameter_table(counts: "Sequence[ParameterCount]") -> str:
    """Trained parameters at the first and at the last stage, and the sums."""
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
    rows = []
    for row in counts:
        share = math.nan if row.old_share is None else row.old_share
        classes = math.nan if row.classes is None else row.classes
        rows.append([f"stage {row.stage}", row.images, classes, share])
    return table(["", "images", "categories", "Old share"], rows, places=4)
