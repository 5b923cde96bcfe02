"""The folder ``.promptccd`` that `discover` keeps beside its results; it has one writer at a time.

``project.json`` records the model and the sources. ``categories.sqlite`` contains the categories and every correction,
``before.sqlite`` those from before the newest stage. The rest is made again if it is
lost, see `promptccd.discovery.cache` and `promptccd.discovery.seen_files`.
"""

from pathlib import Path

from promptccd.disk import PROJECT as PROJECT
from promptccd.disk import make_inside, refuse_links, remove_leftovers

RECORD, FEATURES = "project.json", "features"
CATEGORIES, BEFORE = "categories.sqlite", "before.sqlite"
FILES, COLUMNS = "files.jsonl", "files.safetensors"
THUMBS, MINIATURES = "thumbs", "miniatures"
CHUNKS = "chunks"  # what other processes or machines made of parts of the files, until it is taken over
PICTURES, PAGE = "pictures", "page"  # pictures of the page's grid; its address while it is open


def open_project(out: Path) -> Path:
    """The project folder, made if it is not there.

    Args:
        out: folder of the results; must exist.

    Raises:
        RunError: a link stands under a name that will be written.
        DiskError: it cannot be made.
    """
    project = make_inside(out, PROJECT)
    refuse_links(
        project,
        [
            RECORD,
            BEFORE,
            FEATURES,
            CHUNKS,
            FILES,
            COLUMNS,
            THUMBS,
            MINIATURES,
            PICTURES,
            PAGE,
            CATEGORIES,
        ],
    )
    return project


def clear_leftovers(project: Path) -> None:
    """Delete what a killed writer left; only the holder of the lock may."""
    for place in (
        project,
        project / THUMBS,
        project / MINIATURES,
        *project.glob(f"{FEATURES}/*"),
    ):
        if not place.is_symlink():
            remove_leftovers(place)
