"""A project: images of a person in categories that anybody who has it may correct.

The command line, the windows of `open`, a visitor of the Space and Python all call the methods of one class, and equal
corrections give byte-identical files.
"""

import json
import logging
import os
import shutil
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from datetime import UTC, datetime
from pathlib import Path

from promptccd.discovery.intake.seen import SeenFiles, pictures_in, present
from promptccd.discovery.project import edits
from promptccd.discovery.project.features import Features
from promptccd.discovery.project.record import read_record
from promptccd.discovery.project.registry import CategoryRegistry, has_registry, load_registry, save_registry
from promptccd.discovery.project.right import Right, draw, how_right
from promptccd.discovery.project.rows import StageChange
from promptccd.discovery.project.store import CATEGORIES, connect
from promptccd.disk import (
    CHECKSUMS,
    PROJECT,
    REPLACED,
    parsed_json,
    remove_leftovers,
    require_no_links,
    write_directory,
    write_file,
)
from promptccd.errors import RegistryError, nothing_at
from promptccd.locks import FolderLock

logger = logging.getLogger(__name__)

PENDING = ".edit.json"  # names a correction that its command has not reported yet
OTHERS_TAKE_S = 2.0  # for a correction, such as one of a page that is open; a discovery takes longer


class Project(CategoryRegistry):
    """The categories of images in a folder, which other processes may correct at the same time.

    Every transaction is made under the folder's lock, in the state that the last one left, and is on the disk when its
    method returns; the newest correction can be undone. Images are named by their content: the ``picture`` that
    ``assignments.csv`` gives, or ``row:NUMBER`` in a stage of a run.

        >>> project = Project("groups")  # doctest: +SKIP
        >>> project.rename(3, "night heron")  # doctest: +SKIP
        >>> project.move([key], to=3)  # doctest: +SKIP

    Args:
        folder: the ``--out`` of a discovery, or a finished stage: its model then follows its categories, and
            its records of training (``assignments.json``, its card) stays.

    Attributes:
        folder: absolute.
        lock: locked while the categories are read or changed.

    Raises:
        RegistryError: its categories are missing or damaged.
    """

    def __init__(self, folder: str | Path):
        self.folder = Path(folder).absolute()  # "." has no name to put a new folder under
        self.lock, self._loading = threading.RLock(), threading.Lock()
        self._place = _file_of(self.folder)
        self._is_stage = self._place == self.folder
        self._record = self._place.parent / PENDING
        self._command: list[str] | None = None
        self._features: Features | None = None
        self._shown: Sequence[str] = ()
        if self._is_stage:
            super().__init__()
            self.read_from(_registry_of_model(self._place))
        else:
            super().__init__(connect(self._place), self._place)
            self.require_whole(counted=False)  # counting takes long where there are millions of images
        self._seen = self.revision

    def now(self) -> str:
        """UTC, in ISO 8601, to the second."""
        return datetime.now(UTC).isoformat(timespec="seconds")

    def refresh(self) -> str:
        """Apply the corrections of other processes; returns the name of the state, which no other state has."""
        with self.lock:
            if not self._database.in_transaction:
                if self._is_stage:
                    remove_leftovers(self._place.parent)
                    self.read_from(_registry_of_model(self._place))
                    self._features = None
                elif self._seen != (revision := self.revision):
                    changed = self.changes_after(self._seen)
                    if changed is None:
                        self._features = None
                    self._on_change(changed, self._seen)
                    self._seen = revision
            if not self._is_stage:
                return str(self.revision)
            return f"{self.state_hash()} {(self.next_number, len(self.log), len(self.redo_stack))}"

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Change the categories, all or nothing, under the lock of the folder; nested ones belong to the outer one.

        Raises:
            RegistryError: it is not possible; nothing changed.
            RunError: another process writes there and does not end soon, or a link is in the way.
            DiskError: it cannot be written; nothing changed.
        """
        with self.lock:
            if self._database.in_transaction:
                with super().transaction():
                    yield
                return
            is_locked = self._command is not None
            with nullcontext() if is_locked else FolderLock(self._place.parent, wait_s=OTHERS_TAKE_S):
                try:
                    self.refresh()
                    with super().transaction():
                        yield
                        if self._command:
                            write_file(self._record, json.dumps([self._command, self.refresh()]))
                    if self._is_stage:
                        _save_model(self._place, self)
                finally:
                    self.refresh()

    @contextmanager
    def command(self, words: Sequence[str]) -> Iterator[bool]:
        """A command that must not act twice, even if it was killed at an unknown moment.

        Its correction stays written down until the command has reported it; until then the same words act once.

        Args:
            words: of the command.

        Yields:
            Whether it was done already, by a process that ended before it could report it.
        """
        with self.lock, FolderLock(self._place.parent, wait_s=OTHERS_TAKE_S):
            remove_leftovers(self._record.parent)
            is_done, version, self._command = False, self.refresh(), [self.folder.name, *words]
            with suppress(OSError, ValueError):
                is_done = parsed_json(self._record.read_text(encoding="utf-8")) == [self._command, version]
            if is_done:
                logger.info(
                    "%s was done already, by a process that ended before it could say so, and is not done twice. Give "
                    "the command again to do it once more.",
                    words[0],
                )
            try:
                yield is_done
            finally:
                self._command = None
            self._record.unlink(missing_ok=True)

    # Corrections; each raises an error if it is not possible, and then nothing changed

    rename, merge, move, sort = edits.rename, edits.merge, edits.move, edits.sort
    gather, split, dissolve = edits.gather, edits.split, edits.dissolve
    set_aside, set_images_aside, restore = edits.set_aside, edits.set_images_aside, edits.restore
    confirm, answer, forget = edits.confirm, edits.answer, edits.forget

    def regroup(self, num_categories: int) -> StageChange:
        """Make the newest images of a discovery fewer or more categories; names and corrections of a person stay.

        It takes a while, and blocks no other correction meanwhile.

        Returns:
            The changes.

        Raises:
            DataError: there cannot be so many.
            RegistryError: something was corrected while groups were looked for.
        """
        from promptccd.discovery.stage_grouping import find_again

        with self.lock:
            version, registry = self.refresh(), self.copy()
        found = find_again(registry, self.folder, num_categories)
        with self.transaction():
            if self.refresh() != version:
                raise RegistryError(
                    "A correction was made while images were grouped, so nothing was changed. Group them again."
                )
            return self.observe(self.stage, found)

    def find(self, image: str) -> str:
        """The key of an image from a path or hash.

        Args:
            image: its key, the SHA-256 of its file, the first six digits or more of either, or its file: a path, or the
                end of one.

        Raises:
            RegistryError: no image, or several images, match.
        """
        if image in self.images:
            return image
        seen, path = pictures_in(self._place.parent), os.path.abspath(os.path.expanduser(image))
        found = [key for key in self.images if key in seen and seen[key].is_called(key, image, path)]
        if len(found) != 1:
            raise RegistryError(
                f"{len(found) or 'No'} images are called {image!r}: give its path, or its picture or sha256 as "
                "in assignments.csv; images of a training run are row:NUMBER."
            )
        return found[0]

    def away(self) -> list[str]:
        """Images whose files are not where they were: deleted, moved away, or on a disk that is not plugged in."""
        images, seen = self.images, pictures_in(self._place.parent)
        there = present(seen.values())
        return sorted(key for key, each in seen.items() if key in images and not each.is_here(there))

    def here(self) -> list[str]:
        """Images that are counted: photographs that are where they were; in the folder of a stage, its images."""
        seen = pictures_in(self._place.parent)
        there = present(seen.values())
        return [key for key in self.images if (seen[key].is_here(there) if key in seen else not seen)]

    # How much is right

    def how_right(self) -> Right:
        """How many images in groups are right, by randomly sampled photographs; see `drawn`."""
        with self.lock:
            return how_right(self, self._in_groups())

    def drawn(self) -> str | None:
        """The randomly sampled image to review, from all unreviewed images in groups; or `None`.

        A correction within `blind` answers it:

            >>> image = project.drawn()  # doctest: +SKIP
            >>> with project.blind():  # doctest: +SKIP
            ...     project.confirm([image])  # or move, gather, set_images_aside
            >>> print(project.how_right().line())  # doctest: +SKIP
        """
        with self.lock:
            found = draw(self, self._in_groups())
        return None if found is None else found[0]

    @contextmanager
    def blind(self) -> Iterator[None]:
        """A correction within is an answer to `drawn`.

        Raises:
            RegistryError: it was a correction of other images; nothing changed.
        """
        with self.transaction():
            number, self.sampled = self.next_number, draw(self, self._in_groups())
            try:
                yield
                images = self.newest.what.get("images", ()) if self.newest else ()
                if self.next_number > number and list(images) != [self.sampled and self.sampled[0]]:
                    raise RegistryError(
                        "It is another photograph's turn: this photograph was reviewed meanwhile."
                    )
            finally:
                self.sampled = None

    def _in_groups(self) -> list[str]:
        """Images of `here` in a category of the result."""
        active, members = {each.id for each in self.active}, self.members
        return [key for key in self.here() if members.get(key) in active]

    # Edits that need features

    def features(self, *, needed: bool = False) -> Features:
        """Features of all images that have some; stored features stay in memory from the first call on.

        Args:
            needed: also where they have to be computed. They serve this call alone: a correction without
                them must not depend on an earlier correction.
        """
        with self._loading:
            if self._features is None:
                shown = set(self._shown)
                others = sorted(key for key in self.images if key not in shown)
                self._features = features_of(self.folder, [*self._shown, *others])
            if needed and not self._features.row_of:
                return features_of(self.folder, self._features.keys, needed=True)
            return self._features

    def _on_change(self, changed: set[int] | None, since: int) -> None:
        """Follow the images that changed since a revision; see `changes_after`."""


def features_of(folder: Path, keys: Sequence[str], *, needed: bool = False) -> Features:
    """Features of images: from a discovery, or, if needed, from the run of a stage.

    Raises:
        RunError: the model that computed them is unknown.
    """
    if (folder / PROJECT).is_dir():
        record = read_record(folder)
        with closing(SeenFiles(folder / PROJECT, is_reader=True)) as seen:
            return Features(keys, *seen.vectors(record["features"], keys))
    if not needed:
        return Features(keys)
    import torch

    from promptccd.runs.evaluate import RunEvaluation
    from promptccd.runs.folder import RunDirectory
    from promptccd.runs.stage import key_of

    run, name = RunDirectory(folder.parent), folder.name
    if not run.begun or not name.removeprefix("stage").isdecimal():  # the folder is in no run
        return Features([])
    evaluation, stage = RunEvaluation(str(run.path)), int(name.removeprefix("stage"))
    keys = [key_of(each) for images in evaluation.images[: stage + 1] for each in images.sample_ids.tolist()]
    return Features(keys, torch.cat(evaluation.features(stage, evaluation.images[: stage + 1])).cpu())


def _file_of(folder: Path) -> Path:
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
    advice = (
        "Give the folder of a finished stage, or the --out of a discovery, which is made by: promptccd discover "
        "photographs IMAGES --out groups/"
    )
    if stages := sorted(each for each in folder.glob("stage*") if has_registry(each)):
        last = str(stages[-1])
        advice = f"This folder is a run, and each of its stages has one. Give the last stage, {last!r}."
    raise RegistryError(f"{none} {advice}")


def _found(folder: Path) -> Path:
    """A folder, or where a process that was killed while it replaced the folder has left it."""
    replaced = folder.with_name(f"{REPLACED}{folder.name}")
    return replaced if replaced.exists() and not folder.exists() else folder


def _registry_of_model(folder: Path) -> CategoryRegistry:
    """The registry beside a model, in memory, or a new one with the categories that it was saved with."""
    folder = _found(folder)
    if has_registry(folder):
        return load_registry(folder)
    from promptccd.discovery.embedding import registry_of
    from promptccd.runs.predict import load_model

    return registry_of(load_model(folder), folder)


def _save_model(place: Path, registry: CategoryRegistry) -> None:
    """Write a model again with what was done to its categories.

    Its prototypes are trained. They stay as they are where images move, since the features of a run are
    not stored with them; a split needs features and computes them.
    """
    import torch

    from promptccd.runs.predict import load_model
    from promptccd.runs.stage import WEIGHTS, save_shards

    require_no_links(place)
    model = load_model(place)
    found = registry.active_prototypes()
    model.set_categories(torch.from_numpy(found.matrix), found.ids, found.names)

    def fill(staging: Path) -> None:
        shutil.copytree(place, staging, dirs_exist_ok=True, ignore=shutil.ignore_patterns(CHECKSUMS, WEIGHTS))
        save_shards(model, staging, [place])
        save_registry(registry, staging)

    write_directory(place, fill, replace=True)
    later = place.with_name(f"stage{registry.stage + 1}")
    if place.name == f"stage{registry.stage}" and later.exists():
        logger.warning(
            "%s was made before this correction and does not know it: edit the newest stage.", later
        )
