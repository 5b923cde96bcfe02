"""Corrections as tests make them: anything done to a registry on disk."""

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch

from promptccd.discovery import DiscoverySession, Project
from promptccd.discovery.project import CategoryRegistry, Command, edits
from promptccd.discovery.project.features import Features
from promptccd.discovery.project.record import CATEGORIES, PROJECT
from promptccd.discovery.project.store import Store
from tests.discovery.project.streams import Edit, do


def correct(
    folder: Path,
    act: Callable[[CategoryRegistry], object] | Edit,
    *,
    command: Sequence[str] = (),
    tell: Callable[[CategoryRegistry], object] = lambda registry: None,
) -> CategoryRegistry:
    """Do something to the registry of a folder, or make an edit; returns it."""
    project = Project(folder, Command(command, tell) if command else None)
    project.correct(lambda: do(project.registry, act) if isinstance(act, tuple) else act(project.registry))
    return project.registry


def registry_in(folder: Path) -> CategoryRegistry:
    """The registry of a folder."""
    return Project(folder).registry.copy()


def content_of(folder: Path) -> bytes:
    """The bytes of the categories of a project, without traces of how they came about."""
    with tempfile.TemporaryDirectory() as place:
        CategoryRegistry.open(folder / PROJECT / CATEGORIES).store.run(f"vacuum into '{place}/copy'")
        return Path(place, "copy").read_bytes()


def rows_of(path: Path) -> str:
    """All rows of a file of categories, without the numbers that count how often it was written."""
    store = Store.open(path)
    tables = {
        "state": "num_known, stage, next_id, next_number",
        "log": "number, kind, what, stage, time, undone, final",
        **dict.fromkeys(("vector", "category", "image", "forbidden", "link", "change"), "*"),
    }
    return repr({name: store.all(f"select {columns} from {name}") for name, columns in tables.items()})


def features_of(session: DiscoverySession) -> Features:
    """The features of a session that nobody has written down yet."""
    found = session.grouping.features([*session.registry.images])
    return Features([*found], torch.stack([*found.values()]))


def moved_to(session: DiscoverySession, images: Sequence[str], to: int | None) -> None:
    """Put images of such a session into a category."""
    session.registry.features = lambda needed=False: features_of(session)
    edits.move(session.registry, images, to)


def drawn_together(project: Path) -> tuple[int, int]:
    """Make two groups of a project look alike, far more than groups do otherwise; their ids."""
    first, second = (each.id for each in registry_in(project).active[:2])

    def draw(registry: CategoryRegistry) -> None:
        look = registry.active_prototypes().matrix[0]
        registry.replace_prototypes({second: look + 0.001 * np.roll(look, 1)})

    correct(project, draw)
    return first, second
