"""Many runs: sweeps, comparisons, the paper's tables, and report pages."""

from typing import TYPE_CHECKING

from promptccd.on_demand import give_names_on_demand

if TYPE_CHECKING:
    from promptccd.reports.comparison import BACKBONES as BACKBONES
    from promptccd.reports.comparison import GridFigure as GridFigure
    from promptccd.reports.comparison import average_records as average_records
    from promptccd.reports.comparison import rounded as rounded
    from promptccd.reports.comparison import with_own_answers as with_own_answers
    from promptccd.reports.comparison import write_comparison as write_comparison
    from promptccd.reports.engines import PoolOfDevices as PoolOfDevices
    from promptccd.reports.engines import RayEngine as RayEngine
    from promptccd.reports.engines import SlurmEngine as SlurmEngine
    from promptccd.reports.engines import visible_devices as visible_devices
    from promptccd.reports.map_figure import StageMaps as StageMaps
    from promptccd.reports.map_figure import stage_maps as stage_maps
    from promptccd.reports.measures import ABSENT as ABSENT
    from promptccd.reports.measures import Spread as Spread
    from promptccd.reports.measures import StageCost as StageCost
    from promptccd.reports.measures import average_spreads as average_spreads
    from promptccd.reports.measures import count_text as count_text
    from promptccd.reports.measures import stage_costs as stage_costs
    from promptccd.reports.pages import csv_text as csv_text
    from promptccd.reports.pages import render_page as render_page
    from promptccd.reports.pages import safe_cell as safe_cell
    from promptccd.reports.pages import write_report_files as write_report_files
    from promptccd.reports.paper_tables import TablePlan as TablePlan
    from promptccd.reports.paper_tables import layout as layout
    from promptccd.reports.paper_tables import remarks as remarks
    from promptccd.reports.paper_tables import table_records as table_records
    from promptccd.reports.paper_tables import write_table_page as write_table_page
    from promptccd.reports.run_report import ReportOptions as ReportOptions
    from promptccd.reports.run_report import write_report as write_report
    from promptccd.reports.run_report import write_run_comparison as write_run_comparison
    from promptccd.reports.stream_report import stream_rows as stream_rows
    from promptccd.reports.sweep import OwnImages as OwnImages
    from promptccd.reports.sweep import ProtocolScoring as ProtocolScoring
    from promptccd.reports.sweep import SweepCell as SweepCell
    from promptccd.reports.sweep import SweepResult as SweepResult
    from promptccd.reports.sweep import cell_commands as cell_commands
    from promptccd.reports.sweep import collect_sweep as collect_sweep
    from promptccd.reports.sweep import devices_of as devices_of
    from promptccd.reports.sweep import grid_keys as grid_keys
    from promptccd.reports.sweep import plan_cells as plan_cells
    from promptccd.reports.sweep import run_sweep as run_sweep
    from promptccd.reports.sweep import states_of as states_of
    from promptccd.reports.sweep import tables_held as tables_held


give_names_on_demand(__name__)
