"""Where the categories of a folder are stored: in the file of a project, or in a finished stage next to its model."""

import logging
import shutil
from pathlib import Path

from promptccd.discovery.project.registry import CategoryRegistry, has_registry, load_registry, save_registry
from promptccd.discovery.project.store import CATEGORIES
from promptccd.disk import CHECKSUMS, PROJECT, REPLACED, require_no_links, write_directory
from promptccd.errors import RegistryError, nothing_at

logger = logging.getLogger(__name__)


def place_of(folder: Path) -> Path:
    """The file with the categories of a project, or the folder itself if it is one of a model.

    Raises:
        RegistryError: there are none.
    """
    if (_found(folder) / "config.json").exists():
        return folder
    for place in (folder / PROJECT, folder):
        if (place / CATEGORIES).is_file():
            return place / CATEGORIES
    none = f"{str(folder)!r} holds no registry of categories." if folder.exists() else nothing_at(folder)
    stages = sorted(each for each in folder.glob("stage*") if has_registry(each))
    if stages:
        raise RegistryError(
            f"{none} This folder is a run, and each of its stages has one. Give the last stage, {str(stages[-1])!r}."
        )
    raise RegistryError(
        f"{none} Give the folder of a finished stage, or the --out of a discovery, which is made by: promptccd "
        "discover photographs IMAGES --out groups/"
    )


def _found(folder: Path) -> Path:
    """A folder, or where a process that was killed while it replaced the folder has left it."""
    replaced = folder.with_name(f"{REPLACED}{folder.name}")
    return replaced if replaced.exists() and not folder.exists() else folder


def registry_of_model(folder: Path) -> CategoryRegistry:
    """The registry beside a model, in memory, or a new one with the categories that it was saved with."""
    folder = _found(folder)
    if has_registry(folder):
        return load_registry(folder)
    from promptccd.discovery.categories import registry_of
    from promptccd.runs.predict import load_model

    return registry_of(load_model(folder), folder)


def save_model(place: Path, registry: CategoryRegistry) -> None:
    """Write a model again with what was done to its categories.

    Its prototypes are trained. They stay as they are where images move, since the features of a run are
    not stored with them; a split needs features and computes them.
    """
    import torch

    from promptccd.runs.predict import load_model
    from promptccd.runs.stage import FROZEN, WEIGHTS, save_shards

    require_no_links(place)
    model = load_model(place)
    found = registry.active_prototypes()
    model.set_categories(torch.from_numpy(found.matrix), found.ids, found.names)

    def fill(staging: Path) -> None:
        shutil.copytree(place, staging, dirs_exist_ok=True, ignore=shutil.ignore_patterns(CHECKSUMS, WEIGHTS))
        if (place / FROZEN).exists():
            save_shards(model, staging, [place])
        else:
            model.save_pretrained(staging)
        save_registry(registry, staging)

    write_directory(place, fill, replace=True)
    later = place.with_name(f"stage{registry.stage + 1}")
    if place.name == f"stage{registry.stage}" and later.exists():
        logger.warning(
            "%s was made before this correction and does not know it: edit the newest stage.", later
        )
