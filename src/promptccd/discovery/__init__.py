"""Images of a person in; groups, names, corrections and results to take away out."""

from typing import TYPE_CHECKING

from promptccd.on_demand import give_names_on_demand

if TYPE_CHECKING:
    from promptccd.discovery.adapt import adapt as adapt
    from promptccd.discovery.checkpoint import save_checkpoint as save_checkpoint
    from promptccd.discovery.discover import DiscoveryResult as DiscoveryResult
    from promptccd.discovery.discover import discover as discover
    from promptccd.discovery.exports.export_folder import Export as Export
    from promptccd.discovery.exports.formats import FORMATS as FORMATS
    from promptccd.discovery.exports.formats import export_project as export_project
    from promptccd.discovery.exports.rows import AssignmentRow as AssignmentRow
    from promptccd.discovery.exports.rows import assignment_rows as assignment_rows
    from promptccd.discovery.exports.rows import assignments_csv as assignments_csv
    from promptccd.discovery.given_features import GivenFeatures as GivenFeatures
    from promptccd.discovery.intake.seen import SeenFiles as SeenFiles
    from promptccd.discovery.options import AdaptationOptions as AdaptationOptions
    from promptccd.discovery.project import Project as Project
    from promptccd.discovery.session import DiscoverySession as DiscoverySession
    from promptccd.discovery.session import SessionStage as SessionStage

give_names_on_demand(__name__)
