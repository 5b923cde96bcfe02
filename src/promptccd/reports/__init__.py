"""Many runs: sweeps, comparisons, the paper's tables, and report pages."""

from typing import TYPE_CHECKING

from promptccd.on_demand import give_names_on_demand

if TYPE_CHECKING:
    from promptccd.reports.engines import RayEngine as RayEngine
    from promptccd.reports.engines import SlurmEngine as SlurmEngine
    from promptccd.reports.report import write_comparison as write_comparison
    from promptccd.reports.report import write_report as write_report
    from promptccd.reports.report import write_run_comparison as write_run_comparison
    from promptccd.reports.sweep import OwnImages as OwnImages
    from promptccd.reports.sweep import SweepCell as SweepCell
    from promptccd.reports.sweep import SweepResult as SweepResult
    from promptccd.reports.sweep import cell_commands as cell_commands
    from promptccd.reports.sweep import collect_sweep as collect_sweep
    from promptccd.reports.sweep import plan_cells as plan_cells
    from promptccd.reports.sweep import run_sweep as run_sweep
    from promptccd.reports.sweep import states_of as states_of

give_names_on_demand(__name__)
