"""A project: images of a person in categories that anybody who has it may correct.

The command line, the windows of `open`, a visitor of the Space and Python all call the methods of one class, and equal
corrections give byte-identical files.
"""

import functools
import inspect
import json
import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, cast

from promptccd.discovery.intake.locations import present
from promptccd.discovery.intake.seen import pictures_in
from promptccd.discovery.project import edits
from promptccd.discovery.project.changes import LogEntry, StageChange
from promptccd.discovery.project.opened import place_of, registry_of_model, save_model
from promptccd.discovery.project.registry import CategoryRegistry
from promptccd.discovery.project.right import Right, draw, how_right, in_groups
from promptccd.discovery.project.store import Changes
from promptccd.disk import parsed_json, remove_leftovers, write_file
from promptccd.errors import RegistryError
from promptccd.locks import FolderLock

if TYPE_CHECKING:
    from promptccd.discovery.project.features import Features

logger = logging.getLogger(__name__)
Method = TypeVar("Method", bound=Callable[..., Any])
Arguments = ParamSpec("Arguments")

PENDING = ".edit.json"  # names a correction that its command has not reported yet
OTHERS_TAKE_S = 2.0  # for a correction, such as one of a page that is open; a discovery takes longer


class GoneError(RegistryError):
    """The requested object is gone; the message explains the next step."""


@dataclass(frozen=True)
class Command:
    """A command that must not act twice, even if it was killed at an unknown moment.

    It stays written down until `tell` has returned, and until then the same words act once, however often they come.

    Attributes:
        words: of the command.
        tell: reports the corrected categories.
    """

    words: Sequence[str]
    tell: Callable[[CategoryRegistry], object]


class Kind(StrEnum):
    """The kinds of arguments of corrections."""

    CATEGORY = "category"  # an id
    CATEGORY_OR_NONE = "category or none"  # an id, or `None` for no category
    CATEGORIES = "categories"  # a list of ids
    TARGETS = "targets"  # for each of the images an id, or `None`
    IMAGE = "image"  # a key
    IMAGES = "images"  # a list of keys
    NAME = "name"  # text
    FLAG = "flag"  # true or false
    ENTRY = "entry"  # the number of an entry of the log


@dataclass(frozen=True)
class Correction:
    """A correction that anybody who has a project can make.

    Attributes:
        name: of the correction, and of the method of `Project`.
        arguments: kind of every argument, by its name, in the order of the method.
        required: names of the arguments without a default.
        function: the method of `Project`, which takes a project first.
    """

    name: str
    arguments: Mapping[str, Kind]
    required: frozenset[str]
    function: Callable[..., Any]


CORRECTIONS: dict[str, Correction] = {}  # by name, in the order of the declarations


def correction(*kinds: Kind) -> Callable[[Method], Method]:
    """Let a method of `Project` make a correction, under the lock and with an entry in the log.

    It is listed in `CORRECTIONS`; `kinds` are those of its arguments, in their order.
    """

    def declare(method: Method) -> Method:
        @functools.wraps(method)
        def made(project: "Project", *given: Any, **named: Any) -> LogEntry:
            entry: LogEntry = project.correct(lambda: project.note(lambda: method(project, *given, **named)))
            return entry

        _, *own = list(inspect.signature(method).parameters.values())[: len(kinds) + 1]
        arguments = dict(zip((each.name for each in own), kinds, strict=True))
        required = frozenset(each.name for each in own if each.default is each.empty)
        CORRECTIONS[method.__name__] = Correction(method.__name__, arguments, required, made)
        return cast(Method, made)

    return declare


def _edit(
    edit: Callable[Concatenate[CategoryRegistry, Arguments], LogEntry], *kinds: Kind
) -> Callable[Concatenate["Project", Arguments], LogEntry]:
    """A method of `Project` that makes an edit of its registry."""

    @functools.wraps(edit)
    def method(project: "Project", *given: Arguments.args, **named: Arguments.kwargs) -> LogEntry:
        return edit(project.registry, *given, **named)

    return correction(*kinds)(method)


class Project:
    """The categories of images in a folder, which other processes may correct at the same time.

    A correction is made under the folder's lock, in the state that the last one left, and is on the disk when its
    method returns; the newest can be undone. Images are named by their content: the ``picture`` that
    ``assignments.csv`` gives, or ``row:NUMBER`` in a stage of a run.

        >>> project = Project("groups")  # doctest: +SKIP
        >>> project.rename(3, "night heron")  # doctest: +SKIP
        >>> project.move([key], to=3)  # doctest: +SKIP

    Args:
        folder: the ``--out`` of a discovery, or a finished stage: its model then follows its categories, and
            its records of training (``assignments.json``, its card) stays.
        command: a command that must not act twice; by default every call acts.

    Attributes:
        folder: absolute.
        lock: locked while the categories are read or changed.

    Raises:
        RegistryError: its categories are missing or damaged.
    """

    def __init__(self, folder: str | Path, command: Command | None = None):
        self.folder = Path(folder).absolute()  # "." has no name to put a new folder under
        self._command = command
        self.lock, self._loading = threading.RLock(), threading.Lock()
        self._place = place_of(self.folder)
        self._is_stage = self._place == self.folder
        self.registry = (
            registry_of_model(self._place) if self._is_stage else CategoryRegistry.open(self._place)
        )
        self._seen = self.registry.store.revision
        self._features: Features | None = None
        self._shown: Sequence[str] = ()
        self._draw: Callable[[], tuple[str, int] | None] | None = None

    def refresh(self) -> str:
        """Apply the corrections of other processes; returns the name of the state, which no other state has."""
        with self.lock:
            if self._is_stage:
                remove_leftovers(self._place.parent)
                self.registry = registry_of_model(self._place)
                self._on_change(None)
            else:
                before, self._seen = self._seen, self.registry.store.revision
                if before != self._seen:
                    self._on_change(self.registry.store.changes_since(before))
            return self._mark()

    def _mark(self) -> str:
        registry = self.registry
        if not self._is_stage:
            return str(registry.store.revision)
        counts = registry.next_number, len(registry.log), len(registry.redo_stack)
        return f"{registry.state_hash()} {counts}"

    # Corrections; each raises an error if it is not possible, and then nothing changed

    rename = _edit(edits.rename, Kind.CATEGORY, Kind.NAME)
    merge = _edit(edits.merge, Kind.CATEGORIES, Kind.NAME)
    move = _edit(edits.move, Kind.IMAGES, Kind.CATEGORY_OR_NONE)
    sort = _edit(edits.sort, Kind.IMAGES, Kind.TARGETS)
    gather = _edit(edits.gather, Kind.IMAGES, Kind.NAME)
    split = _edit(edits.split, Kind.CATEGORY, Kind.IMAGES, Kind.NAME)
    dissolve = _edit(edits.dissolve, Kind.CATEGORY, Kind.FLAG)
    set_aside = _edit(edits.set_aside, Kind.CATEGORY)
    set_images_aside = _edit(edits.set_images_aside, Kind.IMAGES)
    restore = _edit(edits.restore, Kind.CATEGORY)
    confirm = _edit(edits.confirm, Kind.IMAGES)
    answer = _edit(edits.answer, Kind.IMAGE, Kind.IMAGE, Kind.FLAG)

    def regroup(self, num_categories: int) -> StageChange:
        """Make the newest images of a discovery fewer or more categories; names and corrections of a person stay.

        It takes a while, and blocks no other correction meanwhile.

        Returns:
            The changes.

        Raises:
            DataError: there cannot be so many.
            GoneError: something was corrected while groups were looked for.
        """
        from promptccd.discovery.stage_grouping import find_again

        with self.lock:
            mark, registry = self.refresh(), self.registry.copy()
        found = find_again(registry, self.folder, num_categories)

        def act() -> StageChange:
            if self.refresh() != mark:
                raise GoneError(
                    "A correction was made while images were grouped, so nothing was changed. Group them again."
                )
            return self.registry.observe(found.stage, found.groups)

        return self.correct(act)

    @correction(Kind.IMAGES)
    def forget(self, images: Sequence[str] | None = None) -> LogEntry:
        """Forget images with all corrections of them; by default missing images.

        Raises:
            RegistryError: by default also if all images or no images are missing.
        """
        return edits.forget(self.registry, self._away() if images is None else images)

    @correction(Kind.ENTRY)
    def undo(self, number: int | None = None) -> LogEntry:
        """Take the newest correction back.

        Args:
            number: of the log entry that it has to be; any by default.

        Raises:
            GoneError: something else was corrected meanwhile.
        """
        _require_latest(self.registry.newest, number)
        return self.registry.undo()

    @correction(Kind.ENTRY)
    def redo(self, number: int | None = None) -> LogEntry:
        """Redo the last undone edit; arguments and errors as in `undo`."""
        _require_latest(self.registry.next_redo, number)
        return self.registry.redo()

    def note(self, act: Callable[[], LogEntry]) -> LogEntry:
        """Make an edit, at this time; within `blind` that of the image that was drawn."""
        drawn = self._draw and self._draw()
        with self.registry.noted(now(), drawn, self.features):
            entry = act()
        if self._draw and (drawn is None or list(entry.what.get("images", ())) != [drawn[0]]):
            raise GoneError("It is another photograph's turn: this photograph was reviewed meanwhile.")
        return entry

    def correct(self, act: Callable[[], Any]) -> Any:
        """Change the registry by `act`, all of it or nothing; returns what that returns, `None` if it was done already.

        Raises:
            RegistryError: it is not possible; nothing changed.
            RunError: another process writes there and does not end soon, or a link is in the way.
            DiskError: it cannot be written; nothing changed.
        """
        command, place, result = self._command, self._place.parent, None
        record = place / PENDING
        with self.lock, FolderLock(place, wait_s=OTHERS_TAKE_S):
            if command is not None:
                remove_leftovers(place)
            mark, words = self.refresh(), [self.folder.name, *(command.words if command else ())]
            if command is not None and _read(record) == [words, mark]:
                logger.info(
                    "%s was done already, by a process that ended before it could say so, and is not done twice. Give "
                    "the command again to do it once more.",
                    command.words[0],
                )
            else:
                try:
                    with self.registry.store.transaction():
                        result = act()
                        if command is not None:
                            write_file(record, json.dumps([words, self._mark()]))
                    if self._is_stage:
                        save_model(self._place, self.registry)
                finally:
                    self.refresh()
            if command is not None:
                command.tell(self.registry)
            record.unlink(missing_ok=True)
        return result

    def find(self, image: str) -> str:
        """The key of an image from a path or hash.

        Args:
            image: its key, the SHA-256 of its file, the first six digits or more of either, or its file: a path, or the
                end of one.

        Raises:
            RegistryError: no image, or several images, match.
        """
        if image in self.registry.images:
            return image
        seen, path = pictures_in(self._place.parent), os.path.abspath(os.path.expanduser(image))
        found = [key for key in self.registry.images if key in seen and seen[key].is_called(key, image, path)]
        if len(found) != 1:
            raise RegistryError(
                f"{len(found) or 'No'} images are called {image!r}: give its path, or its picture or sha256 as "
                "in assignments.csv; images of a training run are row:NUMBER."
            )
        return found[0]

    def away(self) -> list[str]:
        """Images whose files are not where they were: deleted, moved away, or on a disk that is not plugged in."""
        images, seen = self.registry.images, pictures_in(self._place.parent)
        there = present(seen.values())
        return sorted(key for key, each in seen.items() if key in images and not each.is_here(there))

    def _away(self) -> list[str]:
        found, count = self.away(), len(self.registry.images)
        if not found:
            raise RegistryError("No image is missing. To forget other images, name them.")
        if len(found) == count:
            raise RegistryError(
                f"None of the {count} images is where it was: plug their disk in, or move their folder back. To forget "
                "them all, delete this folder."
            )
        return found

    # How much is right

    def how_right(self) -> Right:
        """How many images in groups are right, by randomly sampled photographs; see `drawn`."""
        with self.lock:
            return how_right(self.registry, self._in_groups())

    def drawn(self) -> str | None:
        """The randomly sampled image to review, from all unreviewed images in groups; or `None`.

        A correction within `blind` answers it:

            >>> image = project.drawn()  # doctest: +SKIP
            >>> with project.blind():  # doctest: +SKIP
            ...     project.confirm([image])  # or move, gather, set_images_aside
            >>> print(project.how_right().line())  # doctest: +SKIP
        """
        with self.lock:
            found = draw(self.registry, self._in_groups())
        return None if found is None else found[0]

    @contextmanager
    def blind(self) -> Iterator[None]:
        """A correction within is an answer to `drawn`.

        Raises:
            GoneError: at a correction of other images.
        """
        with self.lock:
            self._draw = lambda: draw(self.registry, self._in_groups())
            try:
                yield
            finally:
                self._draw = None

    def _in_groups(self) -> list[str]:
        return in_groups(self.registry, self._here())

    def _here(self) -> Iterable[str]:
        """Images whose files are where they were."""
        away = set(self.away())
        return [key for key in self.registry.images if key not in away]

    # Edits that need features

    def features(self, *, needed: bool = False) -> "Features":
        """Features of all images that have some; stored features stay in memory from the first call on.

        Args:
            needed: also where they have to be computed. They serve this call alone: a correction without
                them must not depend on an earlier correction.
        """
        from promptccd.discovery.project.features import features_of

        with self._loading:
            if self._features is None:
                shown = set(self._shown)
                rest = sorted(key for key in self.registry.images if key not in shown)
                self._features = features_of(self.folder, [*self._shown, *rest])
            if needed and not self._features.row_of:
                return features_of(self.folder, self._features.keys, needed=True)
            return self._features

    def _show(self, images: Sequence[str]) -> None:
        """Let the rows of features begin with these images, as a page shows them."""
        self._shown, self._features = images, None

    def _on_change(self, changes: Changes | None) -> None:
        """Bring what follows from the categories up to date; `None` if it is not known what changed."""
        if changes is None or changes.forgotten:
            self._features = None


def _require_latest(entry: LogEntry | None, number: int | None) -> None:
    if number is not None and (entry is None or entry.number != number):
        raise GoneError(
            "Another correction was made meanwhile, so nothing was undone. Load the page again, and try again."
        )


def now() -> str:
    """The time for the log of a registry: UTC, in ISO 8601, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _read(record: Path) -> object:
    try:
        return parsed_json(record.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
