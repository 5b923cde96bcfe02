"""The categories of a project as they are now, whoever corrected them, and what the page corrects."""

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from promptccd.discovery.checkpoint import load_features, read_record
from promptccd.discovery.feature_edits import (
    assigned,
    dissolve_category,
    gather_images,
    move_images,
    split_category,
)
from promptccd.discovery.page import FEWEST_ON_MAP
from promptccd.discovery.project import PROJECT, open_project
from promptccd.discovery.registry_edits import OTHERS_TAKE_S, correct
from promptccd.discovery.workbench.layout import keep_layout, kept_layout, lay_out
from promptccd.discovery.workbench.photos import Photos
from promptccd.errors import RegistryError
from promptccd.models import Assignment
from promptccd.registry import (
    JOURNAL,
    LONGEST_JOURNAL,
    REGISTRY,
    CategoryRegistry,
    Confirm,
    Edit,
    Gather,
    Journal,
    LogEntry,
    Merge,
    Move,
    NotACategory,
    Rename,
    has_registry,
)
from promptccd.registry.changes import SURE
from promptccd.registry.tables import default_name
from promptccd.storage import lock_folder

NOWHERE = -1  # the category of images in none
PINNED, NEWEST = 1, 2  # bits of a photograph: a person put it there; it came with the newest stage
COVERS, NEAR = 4, 6  # pictures of a group in the list; other groups that it resembles


class GoneError(RegistryError):
    """What was asked for is not there any more; it names what to do."""


@dataclass(frozen=True)
class Columns:
    """Where every photograph is, by row.

    Attributes:
        group: category ``(N,)`` int32, or `NOWHERE`.
        sure: how sure the last grouping was, in 0..255, ``(N,)`` uint8.
        flags: `PINNED` and `NEWEST` ``(N,)`` uint8.
    """

    group: np.ndarray
    sure: np.ndarray
    flags: np.ndarray

    @property
    def unsure(self) -> np.ndarray:
        """Rows that the last grouping was not sure of, and nobody has looked at since."""
        return (self.sure < SURE * 255) & (self.flags & PINNED == 0) & (self.group != NOWHERE)


class Workbench:
    """A project that others may correct, too: the command line, other windows, another page.

    A correction is made under the project's lock, in the state that the last one left, and is a line on the disk when
    `edit` returns. What is asked for between corrections costs a look at two files.

    Args:
        out: folder of the results of a discovery.

    Raises:
        RegistryError: it holds none, or it is damaged.
        RunError: it is not said what it was made of.

    Attributes:
        closing: whether nobody need wait for what is new any more.
    """

    def __init__(self, out: Path):
        self.closing = False
        if not has_registry(out / PROJECT):
            raise RegistryError(
                f"{str(out)!r} holds no project: give a folder of photographs, or the --out of discover."
            )
        self.out, self._project = out, open_project(out)
        self._guard, self._laying = threading.RLock(), threading.Lock()
        self._features: tuple[dict[str, int], Tensor] | None = None
        self._columns: Columns | None = None
        self._stamp, self.journal = self._stamped(), Journal(self._project)
        self.photos = self._photos()

    def _photos(self) -> Photos:
        return Photos(self.out, self.registry.images, read_record(self.out)["sources"])

    def _load(self) -> None:
        self._stamp, self.journal, self._columns = self._stamped(), Journal(self._project), None
        if self.photos.rows.keys() != self.registry.images.keys():
            self.photos.close()
            self.photos, self._features = self._photos(), None

    def _stamped(self) -> tuple[Any, ...]:
        found = [self._project / name for name in (REGISTRY, JOURNAL)]
        stats = [path.stat() if path.exists() else None for path in found]
        return tuple(each and (each.st_ino, each.st_mtime_ns, each.st_size) for each in stats)

    @property
    def registry(self) -> CategoryRegistry:
        """The categories, as `refresh` left them."""
        return self.journal.registry

    def refresh(self) -> str:
        """Take in what others have corrected; returns what names this state and no other."""
        with self._guard:
            if (stamp := self._stamped()) != self._stamp:
                try:
                    if stamp[0] != self._stamp[0]:
                        raise RegistryError("The registry was written whole.")
                    self.journal.follow()
                    self._stamp, self._columns = stamp, None
                except RegistryError:
                    self._load()
            return self.journal.mark

    @contextmanager
    def _writing(self) -> Iterator[None]:
        with self._guard:
            lock = lock_folder(self._project, wait_s=OTHERS_TAKE_S)
            try:
                self.refresh()
                if self.journal.lines >= LONGEST_JOURNAL:
                    self.journal.write_whole()
                yield
            finally:
                os.close(lock)

    def edit(self, act: Callable[[CategoryRegistry], object]) -> None:
        """Let something happen to the categories, on the disk when this returns.

        Raises:
            RegistryError: it is not possible; nothing changed.
            RunError: somebody else writes there, and does not end.
            DiskError: it cannot be written; nothing changed.
        """
        with self._writing():
            try:
                act(self.registry)
                self.journal.write()
            except BaseException:
                self._load()  # as it is on the disk
                raise
            self._stamp, self._columns = self._stamped(), None

    def columns(self) -> Columns:
        """Where every photograph is."""
        with self._guard:
            if self._columns is None:
                self._columns = _columns_of(self.registry, self.photos.keys)
            return self._columns

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

    def features_of(self, keys: Sequence[str]) -> tuple[list[str], Tensor]:
        """Those of photographs that have some; all of them stay in memory from the first call on."""
        with self._guard:
            if self._features is None:
                kept, matrix = load_features(self.out, self.photos.keys)
                self._features = {key: row for row, key in enumerate(kept)}, matrix
            index, matrix = self._features
        known = [key for key in keys if key in index]
        return known, matrix[[index[key] for key in known]]

    def _placed(self, categories: Sequence[int | None], keys: Sequence[str] = ()) -> Assignment | None:
        """Photographs of some categories, and where they are; `None` if none has features."""
        members = [key for each in categories if each is not None for key in self.registry.members_of(each)]
        kept, features = self.features_of(list(dict.fromkeys([*members, *keys])))
        return assigned(self.registry, kept, features) if kept else None

    # Corrections

    def move(self, images: Sequence[str], to: int | None) -> Edit:
        """Put photographs into a category or into none."""
        found = self._placed([*self._homes(images), to])
        return Move(images, to) if found is None else move_images(found, images, to)

    def gather(self, images: Sequence[str], name: str | None) -> Gather:
        """Make photographs a category of their own.

        Raises:
            RegistryError: none of them has features, without which nobody knows what the category looks like.
        """
        found, (_, features) = self._placed(self._homes(images)), self.features_of(images)
        if not len(features):
            raise RegistryError(
                "None of these photographs has features here: run promptccd discover on them again."
            )
        empty = assigned(self.registry, [], features[:0])
        return gather_images(empty if found is None else found, features, images, name)

    def split(self, category: int) -> Edit:
        """Cut a category in two where its features suggest it.

        Raises:
            RegistryError: it has no features.
        """
        found = self._placed([self.registry.category(category).id])
        if found is None:
            raise RegistryError(
                f"Category {category} has no features here: run promptccd discover on it again."
            )
        return split_category(found, category)

    def dissolve(self, category: int) -> Edit:
        """Say that a category is none; its photographs go to the nearest other ones."""
        found = self._placed([self.registry.category(category).id])
        return (
            NotACategory(category, rest_to_nearest=True)
            if found is None
            else dissolve_category(found, category)
        )

    def _homes(self, images: Sequence[str]) -> list[int | None]:
        return list({self.registry.members.get(key) for key in images})

    # What is shown

    def alike(self, row: int, most: int = 200) -> list[int]:
        """Rows of the photographs most like one, itself first."""
        keys, features = self.features_of(self.photos.keys)
        own, one = self.features_of([self.photos.keys[row]])
        if not own:
            return [row]
        order = (features @ one[0]).argsort(descending=True, stable=True)[:most]
        return [self.photos.rows[keys[each]] for each in order.tolist()]

    def why(self, row: int) -> dict[str, Any]:
        """Why a photograph is where it is, and where else it could be, as far as the project tells."""
        key, registry = self.photos.keys[row], self.registry
        home, columns = registry.members.get(key), self.columns()
        own, feature = self.features_of([key])
        told: dict[str, Any] = {
            "group": home,
            "set": bool(columns.flags[row] & PINNED),
            "sure": registry.confidences.get(key),
            "like": [],
            "others": [],
        }
        if not own:
            return told
        if home is not None:
            near = [each for each in self.alike(row, 400)[1:] if columns.group[each] == home]
            told["like"] = near[:3]
        found = registry.active_prototypes()
        if found.ids:
            matrix = torch.nn.functional.normalize(torch.from_numpy(found.matrix), dim=1)
            likeness = matrix @ feature[0]
            order = likeness.argsort(descending=True, stable=True)[:9].tolist()
            told["others"] = [
                {"id": found.ids[each], "like": round(float(likeness[each]), 3)} for each in order
            ]
        return told

    def layout(self) -> np.ndarray:
        """Where every photograph lies on the map ``(N, 2)`` float32; not a number where it has no features."""
        photos = self.photos
        with self._laying:  # once, however many windows ask
            kept = kept_layout(self._project, photos.generation, len(photos.keys))
            if kept is not None:
                return kept
            keys, features = self.features_of(photos.keys)
            places = np.full((len(photos.keys), 2), np.nan, dtype=np.float32)
            if len(keys) >= FEWEST_ON_MAP:
                places[[photos.rows[key] for key in keys]] = lay_out(features)
            keep_layout(self._project, photos.generation, places)
            return places

    def summary(self) -> dict[str, Any]:
        """The groups and what can be taken back: all that a window shows besides single photographs."""
        with self._guard:
            revision, registry, columns = self.refresh(), self.registry, self.columns()
            near, unsure = _near(registry), columns.unsure
            covers = _covers(columns)
            groups = [
                {
                    "id": each.id,
                    "name": each.name,
                    "named": each.name != default_name(each.id),
                    "standing": "known" if each.known else "settled" if each.born < registry.stage else "new",
                    "size": each.size,
                    "unsure": int(unsure[columns.group == each.id].sum()),
                    "cover": covers.get(each.id, []),
                    "near": near.get(each.id, []),
                }
                for each in registry.active
            ]
            log, redo = registry.log, registry.redo_stack
            return {
                "revision": revision,
                "generation": self.photos.generation,
                "title": self.out.absolute().name,
                "photos": len(self.photos.keys),
                "stage": registry.stage,
                "groups": groups,
                "undo": _told(log[-1]) if log and log[-1].patch is not None else None,
                "redo": _told(redo[-1]) if redo else None,
            }


def _columns_of(registry: CategoryRegistry, keys: Sequence[str]) -> Columns:
    members, confidences = registry.members, registry.confidences
    pinned, stage = registry.constraints().pinned, registry.stage
    group = np.fromiter((members.get(key, NOWHERE) for key in keys), dtype=np.int32, count=len(keys))
    sure = np.fromiter((confidences.get(key, 1.0) for key in keys), dtype=np.float64, count=len(keys))
    flags = np.fromiter(
        (PINNED * (key in pinned) + NEWEST * (registry.images[key] == stage) for key in keys),
        dtype=np.uint8,
        count=len(keys),
    )
    return Columns(group, (sure * 255).astype(np.uint8), flags)


def _covers(columns: Columns) -> dict[int, list[int]]:
    """Rows of the surest photographs of every category."""
    order = np.lexsort((np.arange(len(columns.group)), -columns.sure.astype(int), columns.group))
    ids, starts = np.unique(columns.group[order], return_index=True)
    ends = [*starts[1:], len(order)]
    return {
        int(each): order[start : min(start + COVERS, end)].tolist()
        for each, start, end in zip(ids, starts, ends, strict=True)
    }


def _near(registry: CategoryRegistry) -> dict[int, list[int]]:
    """Of every category the ids of those that it resembles, most alike first."""
    found = registry.active_prototypes()
    if len(found.ids) < 2:
        return {}
    matrix = found.matrix / np.maximum(np.linalg.norm(found.matrix, axis=1, keepdims=True), 1e-12)
    likeness = matrix @ matrix.T
    np.fill_diagonal(likeness, -np.inf)
    order = np.argsort(-likeness, axis=1, kind="stable")[:, : min(NEAR, len(found.ids) - 1)]
    return {each: [found.ids[col] for col in order[row]] for row, each in enumerate(found.ids)}


def _told(entry: LogEntry) -> dict[str, Any]:
    """What happened, in values that a window puts into words."""
    what = entry.what
    name = what.get("name") if isinstance(what.get("name"), str) else None
    return {
        "number": entry.number,
        "kind": entry.kind,
        "count": len(what.get("images", ()) or ()),
        "name": name,
    }


def act_of(bench: Workbench, asked: Mapping[str, Any]) -> Callable[[CategoryRegistry], object]:
    """What a window asked for, as something to do with the categories.

    Raises:
        RegistryError: it is nothing that can be done, or is not said in full.
    """
    try:
        make = ACTS[asked["do"]]
        return lambda registry: make(bench, registry, asked)
    except (KeyError, TypeError) as error:
        raise RegistryError(f"Expected one of {', '.join(ACTS)}, got {str(asked)[:80]}.") from error


def _images(bench: Workbench, asked: Mapping[str, Any]) -> list[str]:
    rows = asked.get("rows")
    if not isinstance(rows, list) or not all(type(row) is int for row in rows):
        raise RegistryError("Expected rows, a list of numbers of photographs.")
    return bench.keys_of(rows, str(asked.get("generation")))


def _number(asked: Mapping[str, Any], name: str) -> int:
    if type(asked.get(name)) is not int:
        raise RegistryError(f"Expected {name}, the number of a group, got {str(asked.get(name))[:40]!r}.")
    return int(asked[name])


def _text(asked: Mapping[str, Any]) -> str | None:
    name = asked.get("name")
    if name is not None and not isinstance(name, str):
        raise RegistryError("Expected name to be a text.")
    return name


def _ids(asked: Mapping[str, Any]) -> list[int]:
    groups = asked.get("groups")
    if not isinstance(groups, list):
        raise RegistryError("Expected groups, a list of their numbers.")
    return [_number({"group": each}, "group") for each in groups]


def _back(registry: CategoryRegistry, asked: Mapping[str, Any], forward: bool) -> None:
    """Take back, or do again, the very thing that a window has shown.

    Raises:
        GoneError: something else happened meanwhile.
    """
    entries = registry.redo_stack if forward else registry.log
    if not entries or entries[-1].number != asked.get("number"):
        raise GoneError(
            "Something else was corrected meanwhile, so nothing was taken back: look, and try again."
        )
    if forward:
        registry.redo()
    else:
        registry.undo()


Act = Callable[[Workbench, CategoryRegistry, Mapping[str, Any]], object]
ACTS: dict[str, Act] = {
    "rename": lambda bench, registry, asked: correct(registry, Rename(_number(asked, "group"), _text(asked) or "")),
    "merge": lambda bench, registry, asked: correct(registry, Merge(_ids(asked), _text(asked))),
    "move": lambda bench, registry, asked: correct(
        registry,
        bench.move(_images(bench, asked), None if asked.get("group") is None else _number(asked, "group")),
    ),
    "gather": lambda bench, registry, asked: correct(registry, bench.gather(_images(bench, asked), _text(asked))),
    "confirm": lambda bench, registry, asked: correct(registry, Confirm(_images(bench, asked))),
    "split": lambda bench, registry, asked: correct(registry, bench.split(_number(asked, "group"))),
    "dissolve": lambda bench, registry, asked: correct(registry, bench.dissolve(_number(asked, "group"))),
    "undo": lambda bench, registry, asked: _back(registry, asked, forward=False),
    "redo": lambda bench, registry, asked: _back(registry, asked, forward=True),
}  # fmt: skip
