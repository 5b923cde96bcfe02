"""Many runs: sweeps, what they are compared with, and the pages that show it."""

from typing import TYPE_CHECKING

from promptccd.on_demand import give_names_on_demand

if TYPE_CHECKING:
    from promptccd.experiments.comparison import (
        BACKBONES,
        GridFigure,
        average_records,
        with_own_answers,
        write_comparison,
    )
    from promptccd.experiments.map_figure import StageMaps, stage_maps
    from promptccd.experiments.measures import Spread, StageCost, count_range, stage_costs
    from promptccd.experiments.pages import csv_text, render_page, safe_cell, write_report_files
    from promptccd.experiments.paper_tables import TablePlan, layout, remarks, table_records, write_table_page
    from promptccd.experiments.run_report import ReportOptions, write_report, write_run_comparison
    from promptccd.experiments.sweep import SweepResult, run_sweep
    from promptccd.experiments.sweep_cells import ProtocolScoring, SweepCell, grid_keys, plan_cells

__all__ = [
    "BACKBONES",
    "GridFigure",
    "ProtocolScoring",
    "ReportOptions",
    "Spread",
    "StageCost",
    "StageMaps",
    "SweepCell",
    "SweepResult",
    "TablePlan",
    "average_records",
    "count_range",
    "csv_text",
    "grid_keys",
    "layout",
    "plan_cells",
    "remarks",
    "render_page",
    "run_sweep",
    "safe_cell",
    "stage_costs",
    "stage_maps",
    "table_records",
    "with_own_answers",
    "write_comparison",
    "write_report",
    "write_report_files",
    "write_run_comparison",
    "write_table_page",
]

give_names_on_demand(__name__)
