"""Numbers of runs in, pages that stand alone out."""

from promptccd.reports.comparison import GridFigure, write_comparison
from promptccd.reports.costs import StageCost, stage_costs
from promptccd.reports.map_layout import StageMaps, stage_maps
from promptccd.reports.pages import render_page, write_report_files
from promptccd.reports.run_report import ReportOptions, write_report, write_run_comparison
from promptccd.reports.spreadsheet import csv_text, safe_cell

__all__ = [
    "GridFigure",
    "ReportOptions",
    "StageCost",
    "StageMaps",
    "csv_text",
    "render_page",
    "safe_cell",
    "stage_costs",
    "stage_maps",
    "write_comparison",
    "write_report",
    "write_report_files",
    "write_run_comparison",
]
