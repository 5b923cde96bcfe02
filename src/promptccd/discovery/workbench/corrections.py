"""The categories of a project as they are now, whoever corrected them, and what the page corrects."""

import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from promptccd.data.file_names import display_name
from promptccd.discovery.feature_edits import assigned, dissolve_category, split_category
from promptccd.discovery.project import PROJECT, open_project
from promptccd.discovery.record import load_before, read_record
from promptccd.discovery.registry_edits import OTHERS_TAKE_S
from promptccd.discovery.workbench.columns import NOWHERE, PINNED, Change, Columns
from promptccd.discovery.workbench.likeness import Features, Means, keep_layout, kept_layout, lay_out, likest
from promptccd.discovery.workbench.photos import Photos
from promptccd.errors import RegistryError
from promptccd.experiments.charts import FEWEST_ON_MAP
from promptccd.models import Assignment
from promptccd.registry import (
    JOURNAL,
    LONGEST_JOURNAL,
    REGISTRY,
    Answer,
    CategoryRegistry,
    Confirm,
    Edit,
    Gather,
    Journal,
    LogEntry,
    Move,
    NotACategory,
    has_registry,
)
from promptccd.registry.changes import Step
from promptccd.registry.tables import Category, Patch, default_name
from promptccd.storage import lock_folder

_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+", re.ASCII)  # of the Hub, by name
MOST_ASKED_OF = 5_000  # photographs that questions are chosen from
NEAR = 6  # other groups that one resembles
QUIET_S = 3.0  # after the last correction the registry may be written whole
LONGEST_WHILE_BUSY = 10 * LONGEST_JOURNAL  # lines


class GoneError(RegistryError):
    """What a window asked for is not there any more; the message says what to do."""


class Workbench:
    """A project that others may correct, too: the command line, other windows, another page.

    A correction is made under the project's lock, in the state that the last one left, and is a line on the disk when
    `edit` returns. Between corrections a request costs a look at two files.

    Args:
        out: folder of the results of a discovery.

    Raises:
        RegistryError: it holds none, or it is damaged.
        RunError: it is not said what it was made of.

    Attributes:
        still: held while the categories are read or changed.
        title: of the page.
        closing: whether the page is being closed: nobody need wait for what is new any more.
        can_write: whether groups may be written beside the photographs.
    """

    can_write = True

    def __init__(self, out: Path):
        self.closing = False
        if not has_registry(out / PROJECT):
            raise RegistryError(
                f"{str(out)!r} holds no project: give a folder of photographs, or the --out of discover."
            )
        self.out, self._project = out, open_project(out)
        self.title = self.out.absolute().name
        self.still = threading.RLock()
        self._laying, self._loading = threading.Lock(), threading.Lock()
        self._features: Features | None = None
        self._means: Means | None = None
        self._columns: Columns | None = None
        self._near: tuple[list[tuple[int, int]], dict[int, list[int]]] = ([], {})
        self._edited = time.monotonic()
        self._stamp, self.journal = self._stamped(), Journal(self._project)
        self.photos = self._photos()

    def _photos(self) -> Photos:
        self._images = self.registry.images
        return Photos(self.out, self.registry.images, read_record(self.out)["sources"])

    def _load(self) -> None:
        self._stamp, self.journal = self._stamped(), Journal(self._project)
        self._columns = self._means = None
        self._near = [], {}
        if self._images.keys() != self.registry.images.keys():
            self.photos.close()
            self.photos = self._photos()

    def _stamped(self) -> tuple[Any, ...]:
        found = [self._project / name for name in (REGISTRY, JOURNAL)]
        stats = [path.stat() if path.exists() else None for path in found]
        return tuple(each and (each.st_ino, each.st_mtime_ns, each.st_size) for each in stats)

    @property
    def registry(self) -> CategoryRegistry:
        """The categories, as `refresh` left them."""
        return self.journal.registry

    def refresh(self) -> str:
        """Take in what others have corrected; returns the name of the state."""
        with self.still:
            if (stamp := self._stamped()) != self._stamp:
                try:
                    if stamp[0] != self._stamp[0]:
                        raise RegistryError("The registry was written whole.")
                    self._take(self.journal.follow())
                    self._stamp = stamp
                except RegistryError:
                    self._load()
            return self.journal.mark

    @contextmanager
    def _writing(self, most: int) -> Iterator[None]:
        with self.still:
            lock = lock_folder(self._project, wait_s=OTHERS_TAKE_S)
            try:
                self.refresh()
                if self.journal.lines >= most:
                    self.journal.write_whole()
                    self._stamp = self._stamped()
                yield
            finally:
                os.close(lock)

    def edit(self, act: Callable[[CategoryRegistry], object]) -> tuple[str, Change | None]:
        """Change the categories; the change is on the disk when this returns, and costs what it changes.

        Returns:
            The state before, and what changed of photographs; `None` if that is not known.

        Raises:
            RegistryError: it is not possible; nothing changed.
            RunError: another process writes there and does not end.
            DiskError: it cannot be written; nothing changed.
        """
        with self._writing(LONGEST_WHILE_BUSY):
            before = self.journal.mark
            try:
                act(self.registry)
                steps = tuple(self.registry.steps or ())
                self.journal.write()
            except BaseException:
                if self.registry.steps != []:
                    self._load()  # as it is on the disk
                raise
            self._stamp, self._edited = self._stamped(), time.monotonic()
            return before, self._take(steps)

    def rest(self) -> None:
        """Write the registry whole if its journal has grown long and nobody corrects anything."""
        if self.journal.lines >= LONGEST_JOURNAL and time.monotonic() - self._edited > QUIET_S:
            with self._writing(LONGEST_JOURNAL):
                pass

    def _take(self, steps: Sequence[Step]) -> Change | None:
        """Bring columns and means up to date with the registry; `None` if they have to be made anew."""
        patches = [self._patch_of(step) for step in steps]
        known = [each for each in patches if each is not None]
        if self._columns is None or len(known) < len(patches):
            self._columns = self._means = None
            return None
        change = self._columns.take(
            self.registry,
            set[str]().union(*(each.images for each in known)) & self.photos.rows.keys(),
            self.photos.rows,
        )
        if self._means is not None:
            self._means.take(change)
        return change

    def _patch_of(self, step: Step) -> Patch | None:
        """What a step changed; `None` if a later step has dropped its entry."""
        if step.entry is not None:
            return step.entry.patch
        entries = [*self.registry.log[-1:], *self.registry.redo_stack]
        return next((each.patch for each in entries if each.number == step.number), None)

    def columns(self) -> Columns:
        """The group of every photograph, and how sure it is."""
        with self.still:
            if self._columns is None:
                self._columns = Columns(self.registry, self.photos.keys)
            return self._columns

    def standing(self, category: Category) -> str:
        """``known`` if the model came with it, ``settled`` if an earlier stage found it, ``new`` otherwise."""
        return "known" if category.known else "settled" if category.settled(self.registry.stage) else "new"

    def keys_of(self, rows: Sequence[int], generation: str) -> list[str]:
        """Content hashes of photographs that a window has chosen.

        Raises:
            GoneError: it does not know of photographs that came since.
        """
        if generation != self.photos.generation:
            raise GoneError("Other photographs came to this project meanwhile: load the page again.")
        keys = self.photos.keys
        if any(not 0 <= row < len(keys) for row in rows):
            raise GoneError(f"There are {len(keys)} photographs, and one that was chosen is none of them.")
        return [keys[row] for row in rows]

    # Features

    def features(self) -> Features:
        """Features of all photographs; they stay in memory from the first call on."""
        with self._loading:
            keys = self.photos.keys
            if self._features is None or self._features.keys is not keys:
                self._features = Features(self.out, keys)
            return self._features

    def means(self) -> Means:
        """The mean feature of every group."""
        self.features()  # outside of the guard: they may have to be read
        with self.still:
            if self._means is None:
                self._means = Means(self.features(), self.columns().group)
            return self._means

    def _placed(self, category: int) -> Assignment | None:
        """A category's photographs with features, assigned; `None` if there are none."""
        features, row_of = self.features(), self.photos.rows
        members = self.registry.members_of(self.registry.category(category).id)
        keys = [key for key in members if key in row_of and features.there[row_of[key]]]
        found = features.matrix[[row_of[key] for key in keys]]
        return assigned(self.registry, keys, found) if keys else None

    def _rows_of(self, images: Sequence[str]) -> np.ndarray:
        """Rows of photographs, each once."""
        return np.unique(np.array([self.photos.rows[key] for key in images], dtype=np.int64))

    def _means_after(self, images: Sequence[str], to: int | None) -> dict[int, np.ndarray]:
        """New prototypes of the categories that lose or get photographs; settled ones keep theirs."""
        rows = self._rows_of(images)
        found = self.means().after(rows, self.columns().group[rows], to)
        categories, stage = self.registry.categories, self.registry.stage
        return {
            each: mean
            for each, mean in found.items()
            if each in categories and not categories[each].settled(stage)
        }

    # Corrections

    def move(self, images: Sequence[str], to: int | None) -> Edit:
        """Put photographs into a category or into none."""
        return Move(images, to, self._means_after(images, to))

    def gather(self, images: Sequence[str], name: str | None) -> Gather:
        """Make photographs a category of their own.

        Raises:
            RegistryError: none of them has features, which the category's prototype is made of.
        """
        mean = self.features().mean(self._rows_of(images))
        if mean is None:
            raise RegistryError(
                "None of these photographs has features here: run promptccd discover on them again."
            )
        return Gather(images, mean, self._means_after(images, None), name)

    def answer_question(self, first: str, second: str, is_same: bool) -> Edit:
        """Put the first photograph into the category of the second, or keep it out of there.

        Raises:
            RegistryError: the second is in no category any more.
        """
        home, other = (self.registry.members.get(each) for each in (first, second))
        if other is None:
            raise RegistryError("The photograph it is compared with is in no group any more: skip this one.")
        if is_same:
            return Confirm([first]) if home == other else self.move([first], other)
        return self.move([first], None) if home == other else Answer(first, second, same=False)

    def split(self, category: int) -> Edit:
        """Cut a category in two where its features suggest it.

        Raises:
            RegistryError: it has no features.
        """
        found = self._placed(category)
        if found is None:
            raise RegistryError(
                f"Category {category} has no features here: run promptccd discover on it again."
            )
        return split_category(found, category)

    def dissolve(self, category: int) -> Edit:
        """Dissolve a category; its photographs go to the nearest other ones."""
        found = self._placed(category)
        return (
            NotACategory(category, rest_to_nearest=True)
            if found is None
            else dissolve_category(found, category)
        )

    # What is shown

    def alike(self, row: int, most: int = 200) -> list[int]:
        """Rows of the photographs most like one, itself first."""
        return likest(self.features(), row, most)

    def why(self, row: int) -> dict[str, Any]:
        """Why a photograph is in its category, and where else it could be."""
        key, registry = self.photos.keys[row], self.registry
        home, columns = registry.members.get(key), self.columns()
        features = self.features()
        why: dict[str, Any] = {
            "group": home,
            "set": bool(columns.flags[row] & PINNED),
            "sure": registry.confidences.get(key),
            "measured": read_record(self.out)["measured"],
            "like": [],
            "others": [],
        }
        if not features.there[row]:
            return why
        if home is not None:
            near = [each for each in self.alike(row, 400)[1:] if columns.group[each] == home]
            why["like"] = near[:3]
        found = registry.active_prototypes()
        if found.ids:
            matrix = torch.nn.functional.normalize(torch.from_numpy(found.matrix), dim=1)
            likeness = matrix @ features.matrix[row]
            order = likeness.argsort(descending=True, stable=True)[:9].tolist()
            why["others"] = [
                {"id": found.ids[each], "like": round(float(likeness[each]), 3)} for each in order
            ]
        return why

    def questions(self, skipped: Sequence[tuple[int, int]]) -> list[dict[str, int]]:
        """Pairs of photographs of which it helps most to know whether they are of one group, the best first.

        The first is one of the least sure that nobody has put anywhere, the second a typical one of a group.

        Args:
            skipped: rows of pairs that are not asked about again.

        Returns:
            Rows ``first`` and ``second``, and the ``group`` of the second.
        """
        # Here, because it takes a second that the first pictures need not wait.
        from promptccd.discovery.grouping import pair_questions

        keys, features = self.photos.keys, self.features()
        with self.still:
            registry, columns = self.registry.copy(), self.columns()
            open_rows = np.flatnonzero((columns.group != NOWHERE) & (columns.flags & PINNED == 0))
            covers = [row for each in registry.active for row in columns.shown(each.id).cover]
            unsure = open_rows[np.argsort(columns.sure[open_rows], kind="stable")[:MOST_ASKED_OF]]
        rows = [row for row in sorted({*unsure.tolist(), *covers}) if features.there[row]]
        if len(registry.active) < 2 or not rows:
            return []
        found = assigned(registry, [keys[row] for row in rows], features.matrix[rows])
        asked = [(keys[first], keys[second]) for first, second in skipped]
        return [
            {
                "first": self.photos.rows[each.first],
                "second": self.photos.rows[each.second],
                "group": each.second_category,
            }
            for each in pair_questions(found, asked, constraints=registry.constraints())
        ]

    def layout(self) -> np.ndarray:
        """Where every photograph lies on the map ``(N, 2)`` float32; not a number where it has no features."""
        photos = self.photos
        with self._laying:  # once, however many windows ask
            kept = kept_layout(self._project, photos.generation, len(photos.keys))
            if kept is not None:
                return kept
            features = self.features()
            places = np.full((len(photos.keys), 2), np.nan, dtype=np.float32)
            if features.there.sum() >= FEWEST_ON_MAP:
                places[features.there] = lay_out(features.matrix[features.there])
            keep_layout(self._project, photos.generation, places)
            return places

    def about(self) -> dict[str, Any]:
        """What found the groups, how many there may be, and where they are kept."""
        record = read_record(self.out)
        count = record["estimate"]
        model, method = (display_name(record["found_with"].get(name, "")) for name in ("model", "method"))
        is_repository = _REPOSITORY.fullmatch(model) is not None and not os.path.exists(model)
        return {
            "model": model,
            "method": method,
            "card": f"https://huggingface.co/{model}" if is_repository else "",
            "estimate": [count.count, count.low, count.high] if count.is_estimate else None,
            "place": str(self.out.absolute()),
        }

    def changed(self) -> dict[str, Any]:
        """What is different since before the newest stage: ids of groups with their sizes, rows of photographs."""
        before = load_before(self.out)
        if before is None:
            return {"new": [], "grown": [], "shrunk": [], "moved": [], "doubted": []}
        with self.still:
            change, row_of = self.registry.changes_since(before), self.photos.rows
        return {
            "new": list(change.new),
            "grown": [[each, *sizes] for each, sizes in change.grown.items()],
            "shrunk": [[each, *sizes] for each, sizes in change.shrunk.items()],
            "moved": sorted(row_of[key] for key in change.moved if key in row_of),
            "doubted": sorted(row_of[key] for key in change.unsure if key in row_of),
        }

    def _resembling(self) -> dict[int, list[int]]:
        """For every category those that it resembles, most alike first; kept until a prototype changes."""
        looks = [(each.id, each.prototype_row) for each in self.registry.active]
        if looks != self._near[0]:
            found = self.registry.active_prototypes()
            matrix = torch.nn.functional.normalize(torch.from_numpy(found.matrix), dim=1)
            likeness = (matrix @ matrix.T).fill_diagonal_(-torch.inf)
            order = likeness.argsort(dim=1, descending=True, stable=True)[:, : min(NEAR, len(looks) - 1)]
            near = [[found.ids[each] for each in row] for row in order.tolist()]
            self._near = looks, dict(zip(found.ids, near, strict=True))
        return self._near[1]

    def answer(self, act: Callable[[CategoryRegistry], object]) -> dict[str, Any]:
        """Make a correction; returns the `summary`, and the photographs that ``changed`` since the state ``base``."""
        with self.still:
            before, change = self.edit(act)
            answer = {**self._summary(self.journal.mark), "base": before, "changed": None}
            if change is not None:
                columns, rows = self.columns(), change.rows
                values = {
                    "rows": rows,
                    "group": change.after,
                    "sure": columns.sure[rows],
                    "flags": columns.flags[rows],
                }
                answer["changed"] = {name: each.tolist() for name, each in values.items()}
            return answer

    def summary(self) -> dict[str, Any]:
        """The groups and what can be undone: all that a window shows besides single photographs."""
        with self.still:
            return self._summary(self.refresh())

    def _summary(self, revision: str) -> dict[str, Any]:
        registry, columns = self.registry, self.columns()
        near, active = self._resembling(), registry.active
        shown = {each.id: columns.shown(each.id) for each in active}
        groups = [
            {
                "id": each.id,
                "name": each.name,
                "named": each.name != default_name(each.id),
                "standing": self.standing(each),
                "size": shown[each.id].size,
                "unsure": shown[each.id].unsure,
                "cover": shown[each.id].cover,
                "near": near.get(each.id, []),
            }
            for each in active
        ]
        log, redo = registry.log, registry.redo_stack
        return {
            "revision": revision,
            "generation": self.photos.generation,
            "title": self.title,
            "can_write": self.can_write,
            "photos": len(self.photos.keys),
            "stage": registry.stage,
            "groups": groups,
            "undo": _described(log[-1]) if log and log[-1].patch is not None else None,
            "redo": _described(redo[-1]) if redo else None,
        }


def _described(entry: LogEntry) -> dict[str, Any]:
    """A correction in values that a window puts into words."""
    what, images = entry.what, entry.what.get("images") or ()  # a grouping says how many, and not which
    name = what.get("name") if isinstance(what.get("name"), str) else None
    return {
        "number": entry.number,
        "kind": entry.kind,
        "count": images if isinstance(images, int) else len(images),
        "name": name,
    }
