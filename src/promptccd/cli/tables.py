"""What the command line prints: plain tables that fit a terminal and a copy into a text."""

from collections.abc import Mapping, Sequence
from typing import Any

from promptccd.data.splits import StageCount
from promptccd.evaluation import ContinualScore


def score_table(score: ContinualScore) -> str:
    """All/Old/New per stage and their average, in percent."""
    rows = [
        [f"stage {row.stage}", row.num_images, row.num_categories, row.all, row.old, row.new]
        for row in score.stages
    ]
    average = score.average
    rows.append(["average", "", "", average["all"], average["old"], average["new"]])
    return table(["", "images", "categories", "All", "Old", "New"], rows)


def comparison_table(scores: Mapping[str, Sequence[ContinualScore]]) -> str:
    """Average All/Old/New by name, the mean over runs where there are several."""
    runs = max(len(each) for each in scores.values())
    rows = [
        [name, *(sum(score.average[part] for score in each) / len(each) for part in ("all", "old", "new"))]
        for name, each in scores.items()
    ]
    return table(
        ["average over stages" + (f", mean of {runs} runs" if runs > 1 else ""), "All", "Old", "New"], rows
    )


def count_table(counts: Sequence[StageCount]) -> str:
    """Images, categories and Old share per stage."""
    rows = [[f"stage {row.stage}", row.images, row.classes, f"{row.old_share:.4f}"] for row in counts]
    return table(["", "images", "categories", "Old share"], rows)


def table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Left-aligned first column, right-aligned others; floats with one place."""
    cells = [[f"{cell:.1f}" if isinstance(cell, float) else str(cell) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in [list(header), *cells]) for column in range(len(header))]
    lines = [
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in [list(header), *cells]
    ]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])
