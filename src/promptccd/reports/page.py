"""Pages in one file each, from templates that escape all values, and the files next to them."""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from promptccd.disk import make_folder, remove_leftovers, write_file

if TYPE_CHECKING:
    import pandas as pd
    from jinja2 import Environment

JsonRecord = dict[str, Any]


@cache
def templates_of(package: str) -> "Environment":
    """Renders templates in ``templates/`` of a package; it escapes every value, and a missing value is an error."""
    from jinja2 import Environment, PackageLoader, StrictUndefined  # slow to import, and tables need no page

    return Environment(
        loader=PackageLoader(package),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def render_page(template: str, **values: Any) -> str:
    """A page from a template of this package."""
    return templates_of("promptccd.reports").get_template(template).render(**values)


def records(table: "pd.DataFrame") -> list[JsonRecord]:
    """The rows of a table as JSON types: numbers with ten decimals, null for missing numbers."""
    return json.loads(table.to_json(orient="records", double_precision=10))


def write_report_files(
    out: str | Path, page: str, title: str, facts: Mapping[str, str], sections: "Mapping[str, pd.DataFrame]"
) -> Path:
    """Write ``index.html``, ``report.json`` and ``report.csv`` into a folder; returns the path of the page.

    `facts` give the meaning of the numbers. The CSV has the rows of all sections, its first cell the section. A
    `DiskError` if a file cannot be written, a `RunError` if it is a link.
    """
    folder = make_folder(out)
    remove_leftovers(folder)
    values = {name: records(table) for name, table in sections.items()}
    rows = [{"section": name, **row} for name, many in values.items() for row in many]
    header = list(dict.fromkeys(name for row in rows for name in row)) or ["section"]
    content = {"title": title, "facts": dict(facts), "sections": values}
    write_file(folder / "report.json", json.dumps(content, indent=1, allow_nan=False) + "\n")
    write_file(folder / "report.csv", csv_text(header, rows))
    write_file(folder / "index.html", page)
    return folder / "index.html"


FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


def safe_cell(value: Any) -> Any:
    """A value for a cell: text that a spreadsheet would take for a formula gets an apostrophe before it."""
    if isinstance(value, str) and value.startswith(FORMULA_STARTS):
        return f"'{value}"
    return value


def csv_text(header: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as CSV, a column for every name in the header; missing values and `None` are empty cells."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow([safe_cell(name) for name in header])
    writer.writerows([[safe_cell(row.get(name)) for name in header] for row in rows])
    return stream.getvalue()
