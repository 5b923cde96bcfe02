"""A project: who has it corrects it by the same methods, from the command line, on a page or in Python."""

from typing import TYPE_CHECKING

from promptccd.on_demand import give_names_on_demand

if TYPE_CHECKING:
    from promptccd.discovery.project.project import Command as Command
    from promptccd.discovery.project.project import GoneError as GoneError
    from promptccd.discovery.project.project import Project as Project
    from promptccd.discovery.project.view import ProjectView as ProjectView

give_names_on_demand(__name__)
