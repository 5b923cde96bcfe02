"""Where the categories of a project are kept: beside the results of a discovery, or in a model's checkpoint.

Both are read and written without torch as far as can be, which takes longer to import than a correction takes.
"""

import logging
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from promptccd.discovery.project.folder import PROJECT
from promptccd.errors import RegistryError
from promptccd.registry import (
    JOURNAL,
    REGISTRY,
    CategoryRegistry,
    Journal,
    has_registry,
    load_registry,
    save_registry,
)
from promptccd.registry.changes import Step
from promptccd.storage import CHECKSUMS, REPLACED, require_no_links, write_directory

if TYPE_CHECKING:
    from promptccd.discovery.project.features import Features

logger = logging.getLogger(__name__)


class Store(Protocol):
    """Keeps a registry.

    Attributes:
        registry: as it was read last, with what was done to it since.
        mark: a name of this state that no other state of the folder has.
        guarded: the folder whose lock a writer holds.
        rest_to_nearest: whether images of a dissolved category go to the nearest one, though nobody can see them.
        lines: corrections that are written beside the registry.
    """

    guarded: Path
    rest_to_nearest: bool

    @property
    def registry(self) -> CategoryRegistry:
        """See the class."""

    @property
    def mark(self) -> str:
        """See the class."""

    @property
    def lines(self) -> int:
        """See the class."""

    def refresh(self) -> list[Step] | None:
        """Read what others have done since; returns that, or `None` if the registry is another object now."""

    def write(self) -> None:
        """Write down what was done."""

    def write_whole(self, most: int) -> None:
        """Write the registry itself if it has more than so many lines of corrections beside it."""

    def features(self, keys: Sequence[str], *, needed: bool) -> "Features":
        """Features of images; those that cost much only if they are needed."""


def store_of(folder: Path) -> Store:
    """What keeps the categories of a folder.

    Raises:
        RegistryError: there are none, or they are damaged.
    """
    aside = folder.with_name(f"{REPLACED}{folder.name}")  # where a process that was killed may have left it
    found = aside if aside.exists() and not folder.exists() else folder
    if (found / "config.json").exists():
        return Checkpoint(folder, found)
    for kept in (folder / PROJECT, folder):
        if has_registry(kept):
            return Discovery(folder, kept)
    raise RegistryError(
        f"{str(folder)!r} holds no registry of categories: give the folder of a finished stage, or the --out of "
        "promptccd discover."
    )


class Discovery:
    """The registry of a discovery: every correction is a line of its journal."""

    rest_to_nearest = True

    def __init__(self, out: Path, kept: Path):
        self._out, self.guarded = out, kept
        self._stamp, self._journal = self._stamped(), Journal(kept)

    @property
    def registry(self) -> CategoryRegistry:
        """See `Store`."""
        return self._journal.registry

    @property
    def mark(self) -> str:
        """See `Store`."""
        return self._journal.mark

    @property
    def lines(self) -> int:
        """See `Store`."""
        return self._journal.lines

    def refresh(self) -> list[Step] | None:
        """See `Store`; costs a look at two files if nothing happened."""
        if (stamp := self._stamped()) == self._stamp and self.registry.steps == []:
            return []
        try:
            if stamp[0] != self._stamp[0] or self.registry.steps != []:
                raise RegistryError("The registry was written whole, or a correction was not.")
            steps = self._journal.follow()
            self._stamp = stamp
            return steps
        except RegistryError:
            self._stamp, self._journal = self._stamped(), Journal(self.guarded)
            return None

    def write(self) -> None:
        """See `Store`."""
        self._journal.write()
        self._stamp = self._stamped()

    def write_whole(self, most: int) -> None:
        """See `Store`."""
        if self._journal.lines >= most:
            self._journal.write_whole()
            self._stamp = self._stamped()

    def features(self, keys: Sequence[str], *, needed: bool) -> "Features":
        """See `Store`."""
        from promptccd.discovery.project.features import Features

        return Features.of_discovery(self._out, keys)

    def _stamped(self) -> tuple[Any, ...]:
        found = [self.guarded / name for name in (REGISTRY, JOURNAL)]
        stats = [path.stat() if path.exists() else None for path in found]
        return tuple(each and (each.st_ino, each.st_mtime_ns, each.st_size) for each in stats)


class Checkpoint:
    """A model with its registry, both of which are written anew for every correction.

    Its prototypes are those that were trained. They stay as they are where images move, since the features of a run are
    not kept beside them; a split, which cannot do without, computes them.
    """

    rest_to_nearest = False  # the next stage would learn from places that nobody chose
    lines = 0

    def __init__(self, place: Path, found: Path):
        self._place, self.guarded = place, place.parent
        self.registry = _registry_of_model(found)

    @property
    def mark(self) -> str:
        """See `Store`."""
        registry = self.registry
        return (
            f"{registry.state_hash()} {(registry.next_number, len(registry.log), len(registry.redo_stack))}"
        )

    def refresh(self) -> list[Step] | None:
        """See `Store`."""
        self.registry = _registry_of_model(self._place)
        return None

    def write(self) -> None:
        """See `Store`."""
        import torch

        from promptccd.runs.prediction import load_model

        place, registry = self._place, self.registry
        require_no_links(place)
        model = load_model(place)
        found = registry.active_prototypes()
        model.set_categories(torch.from_numpy(found.matrix), found.ids, found.names)

        def fill(staging: Path) -> None:
            shutil.copytree(place, staging, dirs_exist_ok=True, ignore=shutil.ignore_patterns(CHECKSUMS))
            model.save_pretrained(staging)
            save_registry(registry, staging)

        write_directory(place, fill, replace=True, needed=model.get_memory_footprint())
        later = place.with_name(f"stage{registry.stage + 1}")
        if place.name == f"stage{registry.stage}" and later.exists():
            logger.warning(
                "%s was made before this correction and does not know it: edit the newest stage.", later
            )

    def write_whole(self, most: int) -> None:
        """See `Store`: it always is."""

    def features(self, keys: Sequence[str], *, needed: bool) -> "Features":
        """See `Store`; they are those of the run that the stage lies in."""
        from promptccd.discovery.project.features import Features

        return Features(*_features_of_run(self._place)) if needed else Features(keys)


def _registry_of_model(folder: Path) -> CategoryRegistry:
    """The registry beside a model, or a new one with the categories that it was saved with."""
    if has_registry(folder):
        return load_registry(folder)
    from promptccd.discovery.categories import registry_of
    from promptccd.runs.prediction import load_model

    return registry_of(load_model(folder), folder)


def _features_of_run(folder: Path) -> tuple[list[str], list[tuple[str, Any]]]:
    """Keys, and keys with features, of a run's images up to the stage in a folder; none if it is in no run."""
    import torch

    from promptccd.runs.evaluate_run import RunEvaluation
    from promptccd.runs.run_directory import RunDirectory
    from promptccd.runs.stage_checkpoint import key_of

    run, name = RunDirectory(folder.parent), folder.name
    if not run.begun or not name.removeprefix("stage").isdecimal():
        return [], []
    evaluation, stage = RunEvaluation(str(run.path)), int(name.removeprefix("stage"))
    keys = [key_of(each) for images in evaluation.images[: stage + 1] for each in images.sample_ids.tolist()]
    return keys, list(zip(keys, torch.cat(evaluation.features_of_stage(stage)).cpu(), strict=True))
