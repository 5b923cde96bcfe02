"""``promptccd report``."""

import argparse
from typing import Any

from promptccd.cli.command import command, show
from promptccd.cli.parsing import MOST_WORKERS, whole_number
from promptccd.reports import ReportOptions, write_report, write_run_comparison


def add_commands(commands: Any) -> None:
    """Declare them."""
    report = command(
        commands,
        "report",
        report_command,
        "write a page about runs: an HTML file that stands alone, CSV and JSON",
    )
    report.add_argument(
        "runs",
        metavar="RUN",
        nargs="+",
        help="output_dir of a training; runs named <name>-seed<n> are averaged",
    )
    report.add_argument("--out", metavar="DIR", required=True, help="folder for the page and its numbers")
    report.add_argument("--compare", action="store_true", help="put runs of different names side by side")
    report.add_argument(
        "--map", choices=["tsne", "pca"], default="tsne", help="how features are laid out in 2-D"
    )
    report.add_argument("--no-map", action="store_true", help="no map of the features")
    report.add_argument(
        "--points", type=whole_number(2), default=1500, help="about how many images the map shows"
    )
    report.add_argument(
        "--samples",
        type=whole_number(0, 1_000),
        default=8,
        help="pictures per discovered category, 0 for none",
    )
    report.add_argument("--dataset", help="where the data lies now, if it has moved")
    report.add_argument(
        "--num_workers", type=whole_number(0, MOST_WORKERS), default=0, help="loader processes"
    )


def report_command(options: argparse.Namespace) -> None:
    """``promptccd report``: prints the path of the page."""
    wanted = ReportOptions(
        map_method=None if options.no_map else options.map,
        max_points=options.points,
        samples=options.samples,
        dataset=options.dataset,
        num_workers=options.num_workers,
    )
    page = (write_run_comparison if options.compare else write_report)(options.runs, options.out, wanted)
    show(
        options, {"page": str(page), "files": ["index.html", "report.csv", "report.json"]}, lambda: str(page)
    )
