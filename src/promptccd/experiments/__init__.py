"""Many runs: sweeps, comparisons, the paper's tables, and report pages."""

from typing import TYPE_CHECKING

from promptccd.on_demand import give_names_on_demand

if TYPE_CHECKING:
    from promptccd.experiments.cell_commands import cell_commands as cell_commands
    from promptccd.experiments.comparison import BACKBONES as BACKBONES
    from promptccd.experiments.comparison import GridFigure as GridFigure
    from promptccd.experiments.comparison import average_records as average_records
    from promptccd.experiments.comparison import rounded as rounded
    from promptccd.experiments.comparison import with_own_answers as with_own_answers
    from promptccd.experiments.comparison import write_comparison as write_comparison
    from promptccd.experiments.engines.local import LocalEngine as LocalEngine
    from promptccd.experiments.engines.local import PoolOfDevices as PoolOfDevices
    from promptccd.experiments.engines.local import visible_devices as visible_devices
    from promptccd.experiments.engines.ray import RayEngine as RayEngine
    from promptccd.experiments.engines.slurm import SlurmEngine as SlurmEngine
    from promptccd.experiments.map_figure import StageMaps as StageMaps
    from promptccd.experiments.map_figure import stage_maps as stage_maps
    from promptccd.experiments.measures import ABSENT as ABSENT
    from promptccd.experiments.measures import Spread as Spread
    from promptccd.experiments.measures import StageCost as StageCost
    from promptccd.experiments.measures import average_spreads as average_spreads
    from promptccd.experiments.measures import count_text as count_text
    from promptccd.experiments.measures import stage_costs as stage_costs
    from promptccd.experiments.pages import csv_text as csv_text
    from promptccd.experiments.pages import render_page as render_page
    from promptccd.experiments.pages import safe_cell as safe_cell
    from promptccd.experiments.pages import write_report_files as write_report_files
    from promptccd.experiments.paper_tables import TablePlan as TablePlan
    from promptccd.experiments.paper_tables import layout as layout
    from promptccd.experiments.paper_tables import remarks as remarks
    from promptccd.experiments.paper_tables import table_records as table_records
    from promptccd.experiments.paper_tables import write_table_page as write_table_page
    from promptccd.experiments.run_report import ReportOptions as ReportOptions
    from promptccd.experiments.run_report import write_report as write_report
    from promptccd.experiments.run_report import write_run_comparison as write_run_comparison
    from promptccd.experiments.stream_report import stream_rows as stream_rows
    from promptccd.experiments.sweep import SweepResult as SweepResult
    from promptccd.experiments.sweep import collect_sweep as collect_sweep
    from promptccd.experiments.sweep import run_sweep as run_sweep
    from promptccd.experiments.sweep import tables_held as tables_held
    from promptccd.experiments.sweep_cells import ProtocolScoring as ProtocolScoring
    from promptccd.experiments.sweep_cells import SweepCell as SweepCell
    from promptccd.experiments.sweep_cells import devices_of as devices_of
    from promptccd.experiments.sweep_cells import grid_keys as grid_keys
    from promptccd.experiments.sweep_cells import plan_cells as plan_cells
    from promptccd.experiments.sweep_cells import states_of as states_of

give_names_on_demand(__name__)
