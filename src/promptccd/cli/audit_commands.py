"""``promptccd audit``, which reads a table and loads no model."""

import argparse
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, get_args

from promptccd.cli.parsing import show
from promptccd.cli.tables import table
from promptccd.errors import DataError
from promptccd.evaluation.audit import AuditedRow, Outcome, audit_rows
from promptccd.evaluation.published import published_rows


def _declare_audit(audit: argparse.ArgumentParser) -> None:
    audit.add_argument("--benchmark", help="one data set, as a recipe names it; all of them otherwise")
    audit.add_argument("--protocol", default="transductive_cacc", help="protocol of the rows, or all")
    audit.add_argument("--method", help="one method; all of them otherwise")
    audit.add_argument("--backbone", choices=["dino", "dinov2", "other"], help="all of them otherwise")
    audit.add_argument("--verdict", choices=get_args(Outcome), help="show rows with this verdict only")
    audit.set_defaults(run=audit_command)


def audit_command(options: argparse.Namespace) -> None:
    """``promptccd audit``: every row with the share of Old images it implies, and whether it can be."""
    wanted = {name: getattr(options, name) for name in ("benchmark", "method", "protocol", "backbone")}
    if wanted["protocol"] == "all":
        wanted["protocol"] = None
    rows = published_rows(**wanted, setting=None)
    if not rows:
        raise DataError(_nothing(wanted))
    audited = audit_rows(rows)
    if options.verdict:
        audited = [each for each in audited if each.verdict.outcome == options.verdict]
    show(options, [_plain_row(each) for each in audited], lambda: _text(audited))


def _nothing(wanted: dict[str, str | None]) -> str:
    """Which of the names the paper has no row of, and those it has."""
    rows = published_rows(protocol=None, backbone=None, setting=None)
    for name, value in wanted.items():
        known = sorted({getattr(row, name) for row in rows})
        if value is not None and value not in known:
            return f"The paper has no {name} {value!r}: it has {', '.join(known)}."
    said = ", ".join(f"{name} {value}" for name, value in wanted.items() if value is not None)
    return f"The paper prints no row of {said}: leave one of them out."


def _plain_row(each: AuditedRow) -> dict[str, Any]:
    verdict = asdict(each.verdict)
    implied = each.verdict.implied
    return {**asdict(each.row), **verdict, "implied": list(implied) if implied else None}


def _text(audited: Sequence[AuditedRow]) -> str:
    header = [
        "data, method, backbone, setting",
        "stage",
        "All",
        "Old",
        "New",
        "implied",
        "declared",
        "verdict",
    ]
    lines = table(header, [_cells(each) for each in audited], places=2).split("\n")
    for line, (_, verdict) in enumerate(audited, start=2):  # after the header and its rule
        if verdict.outcome != "consistent":
            lines[line] += f"  {verdict.reason}"
    counts = Counter(verdict.outcome for _, verdict in audited)
    summary = ", ".join(f"{counts[outcome]} {outcome}" for outcome in get_args(Outcome))
    return "\n".join([*lines, "", f"{len(audited)} rows: {summary}"])


def _cells(each: AuditedRow) -> list[Any]:
    row, verdict = each
    name = " ".join(part for part in (row.benchmark, row.method, row.backbone, row.setting) if part)
    implied = f"{verdict.implied.low:.4f}-{verdict.implied.high:.4f}" if verdict.implied else ""
    declared = "" if verdict.declared is None else f"{verdict.declared:.4f}"
    return [name, row.stage or "avg", row.all, row.old, row.new, implied, declared, verdict.outcome]


COMMANDS = {"audit": _declare_audit}
