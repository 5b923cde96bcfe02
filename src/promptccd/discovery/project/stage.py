"""The categories of a finished stage, whose model follows them."""

import logging
import shutil
from pathlib import Path

from promptccd.disk import CHECKSUMS, remove_leftovers, require_no_links, write_directory
from promptccd.registry import CategoryRegistry, has_registry, load_registry, save_registry

logger = logging.getLogger(__name__)


class Checkpoint:
    """A model with its registry, both of which are written anew for every correction.

    Its prototypes are those that were trained. They stay as they are where images move, since the features of a run are
    not kept beside them; a split, which cannot do without, computes them.
    """

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
        """Read it again, all of it."""
        remove_leftovers(self.folder)
        self.registry = _registry_of_model(self._place)

    def write(self) -> None:
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

        write_directory(place, fill, replace=True, needed=model.get_memory_footprint())
        later = place.with_name(f"stage{registry.stage + 1}")
        if place.name == f"stage{registry.stage}" and later.exists():
            logger.warning(
                "%s was made before this correction and does not know it: edit the newest stage.", later
            )


def _registry_of_model(folder: Path) -> CategoryRegistry:
    """The registry beside a model, or a new one with the categories that it was saved with."""
    if has_registry(folder):
        return load_registry(folder)
    from promptccd.discovery.categories import registry_of
    from promptccd.runs.predict import load_model

    return registry_of(load_model(folder), folder)
