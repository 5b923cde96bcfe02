"""Columns of text: what every table of the command line is made of."""

from collections.abc import Sequence
from typing import Any


def table(header: Sequence[str], rows: Sequence[Sequence[Any]], places: int = 1) -> str:
    """Left-aligned first column, right-aligned others; floats with so many places."""
    cells = [[f"{cell:.{places}f}" if isinstance(cell, float) else str(cell) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in [list(header), *cells]) for column in range(len(header))]
    lines = [
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in [list(header), *cells]
    ]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])
