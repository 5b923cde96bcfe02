"""Corrections as tests make them: anything done to a registry on disk."""

import tempfile
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path

import numpy as np

from promptccd.discovery import Project
from promptccd.discovery.project import CategoryRegistry
from promptccd.discovery.project.record import CATEGORIES, PROJECT
from tests.discovery.project.streams import Edit, do


def correct(
    folder: Path,
    act: Callable[[CategoryRegistry], object] | Edit,
    *,
    command: Sequence[str] = (),
    report: Callable[[CategoryRegistry], object] = lambda registry: None,
) -> CategoryRegistry:
    """Do something to the registry of a folder, or make an edit; returns it."""
    project = Project(folder)
    with project.command(command) if command else nullcontext(False) as is_done:
        if not is_done:
            with project.transaction():
                do(project, act) if isinstance(act, tuple) else act(project)
        report(project)
    return project


def registry_in(folder: Path) -> CategoryRegistry:
    """The registry of a folder."""
    return Project(folder).copy()


def content_of(folder: Path) -> bytes:
    """The bytes of the categories of a project, without traces of how they came about."""
    with tempfile.TemporaryDirectory() as place:
        CategoryRegistry.open(folder / PROJECT / CATEGORIES).run(f"vacuum into '{place}/copy'")
        return Path(place, "copy").read_bytes()


def rows_of(path: Path) -> str:
    """All rows of a file of categories, without the numbers that count how often it was written."""
    store = CategoryRegistry.open(path)
    tables = {
        "state": "num_known, stage, next_id, next_number",
        "log": "number, kind, what, stage, time, undone, final",
        **dict.fromkeys(("vector", "category", "image", "forbidden", "link", "change"), "*"),
    }
    return repr({name: store.run(f"select {columns} from {name}") for name, columns in tables.items()})


def drawn_together(project: Path) -> tuple[int, int]:
    """Make two groups of a project look alike, far more than groups do otherwise; their ids."""
    first, second = (each.id for each in registry_in(project).active[:2])

    def draw(registry: CategoryRegistry) -> None:
        look = registry.active_prototypes().matrix[0]
        registry.replace_prototypes({second: look + 0.001 * np.roll(look, 1)})

    correct(project, draw)
    return first, second
