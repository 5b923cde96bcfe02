"""Where the categories of a folder are stored: in the file of a project, or in a finished stage next to its model."""

import logging
import shutil
from pathlib import Path

from promptccd.discovery.project.folder import CATEGORIES, PROJECT
from promptccd.discovery.project.registry import CategoryRegistry, has_registry, load_registry, save_registry
from promptccd.discovery.project.store import Changes
from promptccd.disk import CHECKSUMS, REPLACED, remove_leftovers, require_no_links, write_directory
from promptccd.errors import RegistryError, nothing_at

logger = logging.getLogger(__name__)


class ProjectFile:
    """The categories in the file of a project, which others may correct at the same time.

    Attributes:
        folder: of the file; whoever writes locks it.
        registry: what is done to it is on the disk when its transaction ends.
    """

    is_stage = False

    def __init__(self, path: Path):
        self.folder, self.registry = path.parent, CategoryRegistry.open(path)
        self._seen = self.registry.store.revision

    @property
    def mark(self) -> str:
        """The name of this state."""
        return str(self.registry.store.revision)

    def refresh(self) -> Changes | None:
        """The changes of all processes since the last call; `None` if the log does not tell."""
        before, self._seen = self._seen, self.registry.store.revision
        return self.registry.store.changes_since(before) if before != self._seen else Changes()

    def save(self) -> None:
        """Do nothing: the transaction writes everything."""


class Checkpoint:
    """A model with its registry, both of which are written again for every correction.

    Its prototypes are those that were trained. They stay as they are where images move, since the features of a run are
    not stored with them; a split needs features and computes them.

    Attributes:
        folder: of the model's folder; whoever writes locks it.
        registry: in memory.
    """

    is_stage = True

    def __init__(self, place: Path, found: Path):
        self._place, self.folder = place, place.parent
        self.registry = _registry_of_model(found)

    @property
    def mark(self) -> str:
        """A name of this state that no other state of it has."""
        registry = self.registry
        return (
            f"{registry.state_hash()} {(registry.next_number, len(registry.log), len(registry.redo_stack))}"
        )

    def refresh(self) -> None:
        """Read all of it again: what changed is not known."""
        remove_leftovers(self.folder)
        self.registry = _registry_of_model(self._place)

    def save(self) -> None:
        """Write the model with what was done to its categories."""
        import torch

        from promptccd.runs.predict import load_model
        from promptccd.runs.stage import FROZEN, WEIGHTS, save_shards

        place, registry = self._place, self.registry
        require_no_links(place)
        model = load_model(place)
        found = registry.active_prototypes()
        model.set_categories(torch.from_numpy(found.matrix), found.ids, found.names)

        def fill(staging: Path) -> None:
            shutil.copytree(
                place, staging, dirs_exist_ok=True, ignore=shutil.ignore_patterns(CHECKSUMS, WEIGHTS)
            )
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


def opened(folder: Path) -> ProjectFile | Checkpoint:
    """What stores the categories of a folder.

    Raises:
        RegistryError: there are none, or they are damaged.
    """
    aside = folder.with_name(f"{REPLACED}{folder.name}")  # where a process that was killed may have left it
    found = aside if aside.exists() and not folder.exists() else folder
    if (found / "config.json").exists():
        return Checkpoint(folder, found)
    for place in (folder / PROJECT, folder):
        if (place / CATEGORIES).is_file():
            return ProjectFile(place / CATEGORIES)
    none = f"{str(folder)!r} holds no registry of categories." if folder.exists() else nothing_at(folder)
    stages = sorted(each for each in folder.glob("stage*") if has_registry(each))
    if stages:
        raise RegistryError(
            f"{none} It is a run, and its stages have one each: give {str(stages[-1])!r}, the last."
        )
    raise RegistryError(
        f"{none} Give the folder of a finished stage, or the --out of a discovery, which is made by: promptccd "
        "discover photographs IMAGES --out groups/"
    )


def _registry_of_model(folder: Path) -> CategoryRegistry:
    """The registry beside a model, or a new one with the categories that it was saved with."""
    if has_registry(folder):
        return load_registry(folder)
    from promptccd.discovery.categories import registry_of
    from promptccd.runs.predict import load_model

    return registry_of(load_model(folder), folder)
