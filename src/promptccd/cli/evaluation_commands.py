"""``promptccd evaluate``, ``report`` and ``audit``; the last reads a table and loads no model."""

import argparse
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from promptccd import evaluation, reports, runs
from promptccd.cli.options import (
    DEVICE,
    PLUGIN,
    WORKERS,
    Arguments,
    Parser,
    advanced,
    command,
    show,
    to_json,
    whole_number,
)
from promptccd.cli.tables import score_table, stream_table, table
from promptccd.errors import ConfigurationError, DataError
from promptccd.evaluation.protocol_terms import ESTIMATORS, OUTCOMES, PROTOCOLS, options_by_protocol

if TYPE_CHECKING:
    import pandas as pd

    from promptccd.evaluation import ContinualScore

Scores = dict[str, list["ContinualScore"]]

_DATA: Arguments = {
    "--dataset": dict(help="place of the data, if it was moved (default: as recorded)"),
    **WORKERS,
    "--image_cache": dict(metavar="FOLDER",
        help="place of the copies of images: auto, off, or the folder that the training was given (default: auto)"),
}  # fmt: skip
_EVALUATE: Arguments = {
    "runs": dict(metavar="RUN", nargs="+", help="output_dir of a training; several runs are averaged"),
    "--protocol": dict(choices=list(PROTOCOLS), action="append", metavar="NAME",
        help="protocol of the scores, see below; may be repeated (default: cacc)"),
    "--test_split": dict(metavar="NAME",
        help="split with the test images (default: the images left out by --held_out, else the benchmark's)"),
    "--estimator": dict(choices=ESTIMATORS, help="estimator of unknown numbers of categories (default: split_merge)"),
    "--baselines": dict(action="store_true", help="scores of raw pixels and the frozen backbone too"),
}  # fmt: skip
_REPORT: Arguments = {
    "runs": dict(metavar="RUN", nargs="+", help="output_dir of a training; runs named NAME-seedN are averaged"),
    "--out": dict(metavar="DIR", required=True, help="folder of the page and its numbers"),
    "--compare": dict(action="store_true", help="comparison of runs of different names"),
    "--baselines": dict(action="store_true", help="comparison with the frozen backbone of the start"),
    "--samples": dict(type=whole_number(0, 1_000), default=8,
        help="images shown per discovered category (default: 8)"),
}  # fmt: skip
_AUDIT: Arguments = {
    "--benchmark": dict(help="data set, by its name in recipes (default: all)"),
    "--protocol": dict(default="transductive_cacc", help="protocol, or all (default: transductive_cacc)"),
    "--method": dict(help="method (default: all)"),
    "--backbone": dict(choices=["dino", "dinov2", "other"], help="backbone (default: all)"),
    "--verdict": dict(choices=OUTCOMES, help="verdict of the rows (default: all)"),
}  # fmt: skip


def _list_protocols(evaluate: Parser) -> None:
    """Add the protocols to the help."""
    lines = ["protocols (--protocol NAME):"]
    for name, protocol in PROTOCOLS.items():
        lines += [f"  {name}", f"      {protocol.text}"]
    evaluate.epilog = "\n".join(lines)


def _protocols(options: argparse.Namespace) -> dict[str, dict[str, str]]:
    """The chosen protocols, each with the options that it reads."""
    chosen = options_by_protocol(options.protocol or ["cacc"], options.test_split, options.estimator)
    if options.baselines and not any(PROTOCOLS[name].has_baselines for name in chosen):
        raise ConfigurationError(
            f"No baseline can be scored by {', '.join(chosen)}: leave --baselines out, or add --protocol cacc."
        )
    return chosen


@command(
    ("promptccd.reports.report",), _EVALUATE, advanced(_DATA, DEVICE, PLUGIN), _list_protocols,
    check=_protocols,
)  # fmt: skip
def evaluate_command(options: argparse.Namespace) -> None:
    """``promptccd evaluate``: one run's table; with several runs or baselines, a comparison of averages too."""
    groups, chosen = reports.run_groups, _protocols(options)
    rows = groups.row_names(options.runs)
    scores: dict[str, Scores] = {name: {} for name in chosen}
    baselines: dict[str, Scores] = {name: {} for name in chosen}
    suffixes = groups.baseline_rows(options.runs, rows) if options.baselines else [None for _ in rows]
    for path, row, suffix in zip(options.runs, rows, suffixes, strict=True):
        evaluation = runs.RunEvaluation(
            path, options.dataset, options.num_workers, options.device, keep_features=len(chosen) > 1,
            image_cache=options.image_cache,
        )  # fmt: skip
        if not (evaluation.stages.is_scored or options.protocol):
            _print_streams(options, path, evaluation)
            continue
        for name, own in chosen.items():
            score = evaluation.evaluate(name, **own)
            scores[name].setdefault(row, []).append(score)
            if suffix is not None and PROTOCOLS[name].has_baselines:
                for title, baseline in groups.baselines_of(evaluation).items():
                    baselines[name].setdefault(f"{title}{suffix}", []).append(baseline(name, **own))
            if not options.json:
                shown = score_table(score, PROTOCOLS[name].counted)
                print(f"{path} ({name})\n{shown}\n", flush=True)
    if any(scores.values()):
        _print_together(options, {name: scores[name] | baselines[name] for name in chosen})


def _print_streams(options: argparse.Namespace, path: str, evaluation: "runs.RunEvaluation") -> None:
    """Print the streams of a run without labels, and the accuracy on held-out images."""
    streams, held_out = runs.stream_rows(evaluation.run), evaluation.held_out_accuracy()

    def text() -> str:
        rows = [[f"stage {stage}", value] for stage, value in held_out.items()]
        known = "percent of held-out labelled images that are right"
        return "\n".join([path, stream_table(streams), *([table([known, ""], rows)] if rows else [])])

    show(options, {"streams": streams, "held_out": held_out}, text)


def _print_together(options: argparse.Namespace, scores: Mapping[str, Scores]) -> None:
    """JSON of everything, or the averages of several runs and baselines side by side.

    JSON has by protocol the scores of every row, or of a single run just its score; a single protocol gives no title.
    """
    compared = len(options.runs) > 1 or options.baselines
    if options.json:
        plain: dict[str, Any] = {
            name: {row: [score.to_dict() for score in of_row] for row, of_row in by_row.items()}
            for name, by_row in scores.items()
        }
        if not compared:
            plain = {name: only for name, by_row in plain.items() for (only,) in by_row.values()}
        print(to_json(plain if len(plain) > 1 else next(iter(plain.values()))))
    elif compared:
        for name, by_row in scores.items():
            averages = table(*evaluation.tables.average_grid(by_row))
            print(f"{name}\n{averages}" if len(scores) > 1 else averages)


@command(("promptccd.reports.report",), _REPORT, _DATA, PLUGIN)
def report_command(options: argparse.Namespace) -> None:
    """``promptccd report``: prints the path of the page."""
    if options.compare:
        page = reports.write_run_comparison(options.runs, options.out)
    else:
        page = reports.write_report(
            options.runs, options.out, options.samples, options.baselines, dataset=options.dataset,
            num_workers=options.num_workers, image_cache=options.image_cache,
        )  # fmt: skip
    show(
        options, {"page": str(page), "files": ["index.html", "report.csv", "report.json"]}, lambda: str(page)
    )


@command((), _AUDIT)
def audit_command(options: argparse.Namespace) -> None:
    """``promptccd audit``: every row with the share of Old images it implies, and whether it can be."""
    wanted = {name: getattr(options, name) for name in ("benchmark", "method", "protocol", "backbone")}
    if wanted["protocol"] == "all":
        wanted["protocol"] = None
    rows = evaluation.published_rows(**wanted)
    if not len(rows):
        raise DataError(_nothing_published(wanted))
    audited = evaluation.audit(rows)
    if options.verdict:
        audited = audited[audited["outcome"] == options.verdict]
    show(options, reports.page.records(audited), lambda: _audit_text(audited))


def _nothing_published(wanted: Mapping[str, str | None]) -> str:
    """Names without a row in the paper, and the paper's names."""
    for name, value in wanted.items():
        known = sorted(evaluation.published()[name].unique())
        if value is not None and value not in known:
            return f"The paper has no {name} {value!r}: it has {', '.join(known)}."
    given = ", ".join(f"{name} {value}" for name, value in wanted.items() if value is not None)
    return f"The paper prints no row of {given}: leave out all but one."


def _audit_text(audited: "pd.DataFrame") -> str:
    names = ["data, method, backbone, setting", "stage", "All", "Old", "New"]
    header = [*names, "implied", "declared", "verdict"]
    cells = [
        [
            " ".join(filter(None, (row.benchmark, row.method, row.backbone, row.setting))),
            row.stage, row.all, row.old, row.new,
            "" if math.isnan(row.implied_low) else f"{row.implied_low:.4f}-{row.implied_high:.4f}",
            "" if math.isnan(row.declared) else f"{row.declared:.4f}",
            row.outcome,
        ]
        for row in audited.assign(stage=audited["stage"].astype(object).fillna("avg")).itertuples()
    ]  # fmt: skip
    lines = table(header, cells, places=2).split("\n")
    for line, row in enumerate(audited.itertuples(), start=2):  # after the header and its rule
        if row.outcome != "consistent":
            lines[line] += f"  {row.reason}"
    summary = ", ".join(f"{(audited['outcome'] == outcome).sum()} {outcome}" for outcome in OUTCOMES)
    return "\n".join([*lines, "", f"{len(audited)} rows: {summary}"])
