"""Everything that a folder of seen files contains, whatever the order in which it was written."""

import csv
import json
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Sequence
from contextlib import closing, nullcontext
from pathlib import Path

import numpy as np

from promptccd.discovery import Project
from promptccd.discovery.intake.seen import SEEN, SeenFiles
from promptccd.discovery.project import CategoryRegistry
from promptccd.discovery.project.record import BEFORE, CATEGORIES, PROJECT
from tests.discovery.project.streams import Edit, do


def rows_in(path: Path) -> dict[str, list[tuple[object, ...]]]:
    """Rows of a database by table."""
    with closing(sqlite3.connect(path)) as database:
        names = [name for (name,) in database.execute("select name from sqlite_master where type = 'table'")]
        return {name: sorted(database.execute(f"select * from {name}"), key=repr) for name in names}


def stored_in(folder: Path) -> dict[str, list[tuple[object, ...]]]:
    """Rows by table, without the times and links of files, which a new name changes."""
    if not (folder / SEEN).is_file():
        return {}
    found = rows_in(folder / SEEN)
    return found | {"file": [(path, json.loads(stamp)[:2], key) for path, stamp, key in found["file"]]}


def contents(folder: Path) -> dict[str, bytes]:
    """Every file that is read by a person or a command, of categories the state; not what is only remembered."""
    found = dict[str, bytes]()
    for path in folder.rglob("*"):
        name = str(path.relative_to(folder))
        if path.name in (CATEGORIES, BEFORE):
            found[name] = CategoryRegistry.open(path).state_hash().encode()
        elif path.is_file() and not path.name.startswith((SEEN, ".lock")):
            found[name] = path.read_bytes()
    return found


def alter(folder: Path, statement: str) -> None:
    """Change what a folder has seen, such as ``delete from feature``."""
    with closing(sqlite3.connect(folder / SEEN)) as database:
        database.executescript(statement)


def relocate(folder: Path, old: str, new: str) -> None:
    """Replace what the paths of seen files begin with."""
    with closing(SeenFiles(folder)) as seen:
        seen.relocate(old, new)


def copied(place: Path, to: Path) -> Path:
    """A copy of a project with its photographs, to be changed at will: it is of the copied photographs."""
    shutil.copytree(place, to)
    relocate(to / "found/.promptccd", str(place), str(to))
    record = to / "found/.promptccd/project.json"
    record.write_text(record.read_text().replace(str(place), str(to)))
    return to


def table_of(out: Path, name: str = "assignments.csv") -> list[dict[str, str]]:
    """The rows of the table of a discovery."""
    with (out / name).open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


# Corrections as tests make them: anything done to a registry on disk


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


def content_of(folder: Path, name: str = f"{PROJECT}/{CATEGORIES}") -> bytes:
    """The bytes of the categories of a project, without traces of how they came about."""
    with tempfile.TemporaryDirectory() as place:
        CategoryRegistry.open(folder / name).write_snapshot(Path(place, CATEGORIES))
        return Path(place, CATEGORIES).read_bytes()


def drawn_together(project: Path) -> tuple[int, int]:
    """Make two groups of a project look alike, far more than groups do otherwise; their ids."""
    first, second = (each.id for each in registry_in(project).active[:2])

    def draw(registry: CategoryRegistry) -> None:
        look = registry.active_prototypes().matrix[0]
        registry.replace_prototypes({second: look + 0.001 * np.roll(look, 1)})

    correct(project, draw)
    return first, second
