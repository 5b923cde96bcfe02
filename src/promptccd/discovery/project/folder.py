"""The folder ``.promptccd`` that `discover` keeps beside its results; it has one writer at a time.

``project.json`` records the model and the sources. ``registry.json``, ``registry.safetensors`` and ``journal.jsonl``
hold the categories and every correction, ``before`` those from before the newest stage. The rest is made again if it is
lost, see `promptccd.discovery.cache` and `promptccd.discovery.seen_files`.
"""

import os
from pathlib import Path

from promptccd.errors import ConfigurationError
from promptccd.registry import JOURNAL, PROTOTYPES, REGISTRY
from promptccd.runs.run_directory import RunDirectory
from promptccd.storage import CHECKSUMS, make_folder, make_inside, refuse_links, remove_leftovers
from promptccd.storage import PROJECT as PROJECT

RECORD, BEFORE, FEATURES = "project.json", "before", "features"
FILES, COLUMNS = "files.jsonl", "files.safetensors"
THUMBS, MINIATURES = "thumbs", "miniatures"
CHUNKS = "chunks"  # what other processes or machines made of parts of the files, until it is taken over
PICTURES, PAGE = "pictures", "page"  # pictures of the page's grid; its address while it is open


def results_folder(source: str | Path, out: str | Path) -> Path:
    """The folder for the results, made if need be.

    Raises:
        ConfigurationError: it is a checkpoint, or lies inside the folder of images.
        DiskError: it cannot be made.
    """
    folder, images = Path(os.path.expanduser(out)), Path(os.path.expanduser(source))
    if (folder / "config.json").exists() or (folder / CHECKSUMS).exists():
        raise ConfigurationError(f"{str(out)!r} is a model: give another --out for the results.")
    if RunDirectory(folder).begun:
        raise ConfigurationError(
            f"{str(out)!r} is a run of promptccd train: give another --out for the results."
        )
    if images.is_dir() and folder.resolve().is_relative_to(images.resolve()):
        raise ConfigurationError(
            f"{str(out)!r} lies in the folder of images, where the next run would take results for images: give an "
            "--out outside of it."
        )
    return make_folder(folder)


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
            REGISTRY,
            PROTOTYPES,
            JOURNAL,
        ],
    )
    return project


def clear_leftovers(project: Path) -> None:
    """Delete what a killed writer left; only the holder of the lock may."""
    for place in (
        project,
        project / BEFORE,
        project / THUMBS,
        project / MINIATURES,
        *project.glob(f"{FEATURES}/*"),
    ):
        if not place.is_symlink():
            remove_leftovers(place)
