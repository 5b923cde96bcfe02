"""Many runs: sweeps, comparisons, the paper's tables, and report pages."""

from typing import TYPE_CHECKING

from promptccd.on_demand import give_names_on_demand

if TYPE_CHECKING:
    from promptccd.reports.compare import write_comparison as write_comparison
    from promptccd.reports.costs import costs_of as costs_of
    from promptccd.reports.costs import sizes_on_hub as sizes_on_hub
    from promptccd.reports.engines import RayEngine as RayEngine
    from promptccd.reports.engines import SlurmEngine as SlurmEngine
    from promptccd.reports.engines import visible_devices as visible_devices
    from promptccd.reports.map import choose_points as choose_points
    from promptccd.reports.map import layout_of as layout_of
    from promptccd.reports.page import csv_text as csv_text
    from promptccd.reports.page import records as records
    from promptccd.reports.page import render_page as render_page
    from promptccd.reports.page import safe_cell as safe_cell
    from promptccd.reports.paper_tables import BACKBONES as BACKBONES
    from promptccd.reports.paper_tables import TablePlan as TablePlan
    from promptccd.reports.paper_tables import layout as layout
    from promptccd.reports.paper_tables import remarks as remarks
    from promptccd.reports.paper_tables import table_records as table_records
    from promptccd.reports.paper_tables import write_table_page as write_table_page
    from promptccd.reports.report import stream_grid as stream_grid
    from promptccd.reports.report import write_report as write_report
    from promptccd.reports.report import write_run_comparison as write_run_comparison
    from promptccd.reports.run_groups import PIXELS as PIXELS
    from promptccd.reports.run_groups import baseline_rows as baseline_rows
    from promptccd.reports.run_groups import frozen_name as frozen_name
    from promptccd.reports.run_groups import row_names as row_names
    from promptccd.reports.sweep import OwnImages as OwnImages
    from promptccd.reports.sweep import ProtocolScoring as ProtocolScoring
    from promptccd.reports.sweep import SweepCell as SweepCell
    from promptccd.reports.sweep import SweepResult as SweepResult
    from promptccd.reports.sweep import cell_commands as cell_commands
    from promptccd.reports.sweep import collect_sweep as collect_sweep
    from promptccd.reports.sweep import locked_tables as locked_tables
    from promptccd.reports.sweep import plan_cells as plan_cells
    from promptccd.reports.sweep import run_sweep as run_sweep
    from promptccd.reports.sweep import states_of as states_of
    from promptccd.reports.tables import stage_costs as stage_costs

give_names_on_demand(__name__)
