"""Many runs: sweeps, what they are compared with, and the pages that show it."""

from promptccd.experiments.comparison import GridFigure, write_comparison
from promptccd.experiments.map_figure import StageMaps, stage_maps
from promptccd.experiments.measures import StageCost, stage_costs
from promptccd.experiments.pages import csv_text, render_page, safe_cell, write_report_files
from promptccd.experiments.run_report import ReportOptions, write_report, write_run_comparison
from promptccd.experiments.sweep import SweepResult, run_sweep
from promptccd.experiments.sweep_cells import SweepCell, grid_keys, plan_cells

__all__ = [
    "GridFigure",
    "ReportOptions",
    "StageCost",
    "StageMaps",
    "SweepCell",
    "SweepResult",
    "csv_text",
    "grid_keys",
    "plan_cells",
    "render_page",
    "run_sweep",
    "safe_cell",
    "stage_costs",
    "stage_maps",
    "write_comparison",
    "write_report",
    "write_report_files",
    "write_run_comparison",
]
