"""The folder ``.promptccd`` that `discover` keeps beside its results; it has one writer at a time.

``project.json`` records the model and the sources. ``categories.sqlite`` contains the categories and every correction,
``before.sqlite`` those from before the newest stage. The rest is made again if it is lost, see
`promptccd.discovery.intake.seen`.
"""

from pathlib import Path

from promptccd.discovery.project.store import CATEGORIES as CATEGORIES
from promptccd.disk import PROJECT as PROJECT
from promptccd.disk import make_inside, remove_leftovers

RECORD = "project.json"
BEFORE = "before.sqlite"
CHUNKS = "chunks"  # what other processes or machines made of parts of the files, until it is taken over
PAGE = "page"  # address of the page while it is open


def open_project(out: Path) -> Path:
    """The project folder, made if it is not there.

    Args:
        out: folder of the results; must exist.

    Raises:
        RunError: a link has its name.
        DiskError: it cannot be made.
    """
    return make_inside(out, PROJECT)


def clear_leftovers(project: Path) -> None:
    """Delete what a killed writer left; only the holder of the lock may."""
    if not project.is_symlink():
        remove_leftovers(project)
