"""A project: categories that keep number, name and corrections over stages, and the methods that correct them."""

from typing import TYPE_CHECKING

from promptccd.on_demand import give_names_on_demand

if TYPE_CHECKING:
    from promptccd.discovery.project.categories import Category as Category
    from promptccd.discovery.project.categories import CategoryState as CategoryState
    from promptccd.discovery.project.categories import Review as Review
    from promptccd.discovery.project.edits import apply_labels as apply_labels
    from promptccd.discovery.project.observe import StageGroups as StageGroups
    from promptccd.discovery.project.project import Project as Project
    from promptccd.discovery.project.registry import CategoryRegistry as CategoryRegistry
    from promptccd.discovery.project.registry import has_registry as has_registry
    from promptccd.discovery.project.registry import load_registry as load_registry
    from promptccd.discovery.project.registry import save_registry as save_registry
    from promptccd.discovery.project.rows import ActivePrototypes as ActivePrototypes
    from promptccd.discovery.project.rows import StageChange as StageChange
    from promptccd.discovery.project.rows import alike_pairs as alike_pairs
    from promptccd.discovery.project.store import GROUPING as GROUPING
    from promptccd.discovery.project.store import LogEntry as LogEntry
    from promptccd.discovery.project.view import ProjectView as ProjectView

give_names_on_demand(__name__)
