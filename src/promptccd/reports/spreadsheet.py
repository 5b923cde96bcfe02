"""CSV files that a spreadsheet opens without executing what stands in them."""

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


def safe_cell(value: Any) -> Any:
    """A value for a cell: text that a spreadsheet would take for a formula gets an apostrophe before it.

    Numbers stay numbers, negative ones too; `None` is an empty cell.
    """
    if isinstance(value, str) and value.startswith(FORMULA_STARTS):
        return f"'{value}"
    return value


def csv_text(header: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as CSV, a column for every name in the header; what a row does not have is an empty cell."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow([safe_cell(name) for name in header])
    writer.writerows([[safe_cell(row.get(name)) for name in header] for row in rows])
    return stream.getvalue()
