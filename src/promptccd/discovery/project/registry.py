"""The registry of categories: every id, name and correction over all stages, with undo and redo."""

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from promptccd.discovery.project.categories import CategoryState, check_name, mended_name
from promptccd.discovery.project.changes import GROUPING, LogEntry, StageChange, compare
from promptccd.discovery.project.observe import StageGroups, apply_grouping
from promptccd.discovery.project.rows import Rows
from promptccd.discovery.project.store import CATEGORIES, Store, stored_key
from promptccd.disk import plain_json
from promptccd.errors import RegistryError

_STATE = (  # rows that the hash of a state covers
    "select num_known, stage from state",
    "select * from category order by id",
    "select key, stage, category, confidence, pinned, reviewed, was, unseen from image order by key",
    "select key, forbidden.category from forbidden join image on image.id = forbidden.image order by 1, 2",
    "select min(one.key, two.key), max(one.key, two.key) from link join image one on one.id = a "
    "join image two on two.id = b order by 1, 2",
    "select * from vector where id in (select vector from category union select value from category, "
    "json_each(earlier)) order by id",
)


class NoFeatures:
    """Features where no image has any, see `promptccd.discovery.project.features.Features`."""

    def __init__(self, *, needed: bool = False):
        pass

    def of(self, keys: Iterable[str]) -> tuple[list[str], np.ndarray]:
        """None of the images."""
        return [], np.zeros((0, 0))

    def mean(self, keys: Iterable[str]) -> None:
        """No mean."""


class CategoryRegistry(Rows):
    """Categories with ids that are never reused, the images in them, and corrections of both.

    Start with nothing and `observe` a stage, or with `from_categories`. Every edit is one log entry and can be
    undone until the next stage arrives: the state before does not fit its features. Another
    grouping of a stage that was observed before is an entry as well, and is undone like an edit.

    Ids only count up: the id of a split that was undone is not given again, except to the same split when it is
    redone. Within a stage rows of prototypes are only appended; a new stage drops unused rows.

    Args:
        store: see `Rows`.

    Attributes:
        features: gives the features of images, for edits; see `Project.features`. By default there are none.
    """

    _noted: tuple[str | None, tuple[str, int] | None] = None, None

    def __init__(self, store: Store | None = None):
        super().__init__(store)
        self.features: Callable[..., Any] = NoFeatures

    @classmethod
    def open(cls, path: Path) -> "CategoryRegistry":
        """The registry in a file of a project: changes are on the disk when a method returns.

        Raises:
            RegistryError: it is missing or damaged, or a newer version wrote it.
        """
        registry = cls(Store.open(path))
        registry.require_whole(counted=False)  # counting takes long where there are millions of images
        return registry

    @property
    def next_number(self) -> int:
        """The number that the next log entry gets."""
        return int(self.store.one("select next_number from state"))

    @property
    def log(self) -> tuple[LogEntry, ...]:
        """Entries, oldest first, without undone ones."""
        return self._entries("where not undone order by number")

    @property
    def redo_stack(self) -> tuple[LogEntry, ...]:
        """Undone entries that can be redone, the next one last."""
        return self._entries("where undone order by number desc")

    def _entries(self, condition: str) -> tuple[LogEntry, ...]:
        rows = self.store.all(f"select number, kind, what, stage, time, final from log {condition}")
        return tuple(
            LogEntry(number, kind, json.loads(what), stage, time, bool(final))
            for number, kind, what, stage, time, final in rows
        )

    @property
    def newest(self) -> LogEntry | None:
        """The entry that `undo` would undo, or `None`."""
        found = self._entries("where not undone order by number desc limit 1")
        return found[0] if found and not found[0].final else None

    @property
    def next_redo(self) -> LogEntry | None:
        """The entry that `redo` would repeat, or `None`."""
        return next(iter(self._entries("where undone order by number limit 1")), None)

    @classmethod
    def from_categories(
        cls,
        ids: Sequence[int],
        names: Sequence[str],
        num_known: int,
        prototypes: np.ndarray,
        *,
        stage: int = 0,
        members: Mapping[str, int] | None = None,
    ) -> "CategoryRegistry":
        """A registry for a model without a registry, or for the labelled stage.

        Args:
            ids: category ids, each once.
            names: their names. One that is not allowed or occurs twice is mended, since it must be loadable.
            num_known: ids below it were labelled at stage 0.
            prototypes: one row per id, ``(C, D)``.
            stage: newest stage of the checkpoint.
            members: category by image key, where it is known; all of them came with `stage`.

        Raises:
            RegistryError: an id occurs twice, an image's category is not among the ids, or a prototype does not fit.
        """
        registry, taken = cls(), set[str]()
        run, run_each = registry.store.run, registry.store.run_each
        with registry.store.transaction():
            for identity, name, prototype in zip(map(int, ids), names, prototypes, strict=True):
                taken.add(kept := mended_name(name, identity, taken))
                state, born = (
                    (CategoryState.KNOWN, 0) if identity < num_known else (CategoryState.DISCOVERED, stage)
                )
                row = registry.append_prototype(prototype)
                run(
                    "insert into category values(?, ?, ?, ?, 0, ?, 0, null, '[]')",
                    identity, kept, state, born, row,
                )  # fmt: skip
            run_each(
                "insert into image(key, stage, category, pinned, unseen) values(?, ?, ?, 0, 0)",
                [
                    (stored_key(key), stage, int(identity))
                    for key, identity in sorted((members or {}).items())
                ],
            )
            registry.count_images()
            next_id = max([num_known, *(int(each) + 1 for each in ids)])
            run("update state set num_known = ?, stage = ?, next_id = ?", num_known, stage, next_id)
        return registry

    def copy(self) -> "CategoryRegistry":
        """Another registry in the same state, with the same log, in memory."""
        return CategoryRegistry(self.store.copy())

    def observe(self, stage: int, groups: StageGroups) -> StageChange:
        """Add a grouping of a stage's images: known ids stay, new clusters get new ids, edits stay in force.

        For a stage that was observed before, images, ids and names stay unchanged where the clusters are equal,
        and the entry can be undone. A new stage cannot be undone.

        Args:
            stage: the stage, counted from 0; one above the registry's `stage` is new.
            groups: the grouping.

        Returns:
            Changes; `StageChange.cluster_ids` gives the category of every cluster.

        Raises:
            RegistryError: the grouping does not fit; nothing changed.
        """
        is_new, before = stage > self.stage, self.snapshot()
        what = {"stage": int(stage), "images": len(groups.keys), "clusters": len(groups.prototypes)}
        with self.store.transaction():
            self.store.run("update state set stage = max(stage, ?)", int(stage))
            with self.entry(GROUPING, what, final=is_new):
                ids = apply_grouping(self, int(stage), groups, before)
        return replace(compare(before, self.snapshot(), int(stage)), cluster_ids=ids)

    def replace_prototypes(self, vectors: Mapping[int, np.ndarray]) -> None:
        """Give categories new prototypes because the model was trained and its features changed.

        As with a new stage, earlier entries can no longer be undone: their prototypes were of the old features.

        Args:
            vectors: ``(D,)`` by category id; retired categories keep their prototypes.

        Raises:
            RegistryError: an id is unknown or retired, or a vector does not fit; nothing changed.
        """
        with self.entry(GROUPING, {"stage": self.stage, "prototypes": len(vectors)}, final=True):
            self.set_prototypes(vectors)

    def changes_since(self, earlier: "CategoryRegistry") -> StageChange:
        """Changes since an earlier state, such as the last stage's checkpoint; edits count."""
        return compare(earlier.snapshot(), self.snapshot(), self.stage)

    def undo(self) -> LogEntry:
        """Take the newest entry back, and return it. The state is the one before it, hash for hash.

        Raises:
            RegistryError: no entry of this stage is left.
        """
        if (entry := self.newest) is None:
            if not self.log:
                raise RegistryError("There is nothing to undo: nothing was edited yet.")
            raise RegistryError(
                f"There is nothing to undo since stage {self.stage} was grouped. Earlier edits are final: "
                "rename, merge, split or move what should be different now."
            )
        return self._replayed(entry, undo=True)

    def redo(self) -> LogEntry:
        """Redo the entry that was undone last, with the same ids, and return it.

        Raises:
            RegistryError: nothing was undone since the last edit.
        """
        if (entry := self.next_redo) is None:
            raise RegistryError("There is nothing to redo: nothing was undone since the last edit.")
        return self._replayed(entry, undo=False)

    def _replayed(self, entry: LogEntry, *, undo: bool) -> LogEntry:
        with self.store.transaction():
            self.require_whole(self.store.replay(entry.number, undo=undo))
            self.store.run("update log set undone = ? where number = ?", undo, entry.number)
            self.store.count_revision(entry.number)
        return entry

    def state_hash(self) -> str:
        """SHA-256 of the state, the same wherever and however it was reached.

        It covers categories with the bytes of their prototypes, images, constraints and the stage, but not the log,
        the redo stack and the counters of ids and entries, which depend on undone edits.
        """
        digest = hashlib.sha256()
        for query in _STATE:
            for row in self.store.run(query):
                digest.update(repr(row).encode())
        return digest.hexdigest()

    def require_whole(self, ids: Collection[int] | None = None, *, counted: bool = True) -> None:
        """Refuse categories that contradict themselves, beyond the checks of the tables.

        Args:
            ids: of the categories; by default all.
            counted: whether their images are counted.

        Raises:
            RegistryError: the message names the first such category.
        """
        for each in self.categories.values():
            if not each.name.isprintable():
                check_name(each.name)
        those = "true" if ids is None else f"id in ({', '.join(map(str, ids))})"
        sizes = "size <> (select count(*) from image where image.category = each.id)" if counted else "false"
        found = self.store.one(
            f"select id from category as each, state where {those} and (id >= next_id "
            "or (each.state <> 'retired' and (each.state = 'known') <> (id < num_known)) "
            "or (each.state = 'retired' and size > 0) or merged_into >= id or vector not in (select id from vector) "
            "or exists(select 1 from json_each(earlier) where value not in (select id from vector)) "
            f"or {sizes}) limit 1"
        )
        if found is not None:
            raise RegistryError(
                f"Category {found} contradicts other rows: the file was altered. Copy it again."
            )

    @contextmanager
    def noted(
        self,
        time: str | None = None,
        drawn: tuple[str, int] | None = None,
        features: Callable[..., Any] | None = None,
    ) -> Iterator[None]:
        """Entries that are made within get a time.

        Args:
            time: in ISO 8601.
            drawn: an image that nobody chose, with ``left``, see `Review`.
            features: other `features` within; kept longer, those of a project would keep its file open.
        """
        before = self.features
        self._noted, self.features = (time, drawn), features or before
        try:
            yield
        finally:
            self._noted, self.features = (None, None), before

    @contextmanager
    def entry(self, kind: str, what: Mapping[str, Any], *, final: bool = False) -> Iterator[None]:
        """A change that the log names, whole or not at all.

        Args:
            kind: of the entry.
            what: its values.
            final: whether the change and all earlier changes are final.
        """
        store = self.store
        with store.transaction():
            number, (time, drawn) = self.next_number, self._noted
            is_new = drawn is not None and drawn[0] not in self.reviews
            store.record(None if final else number)
            yield
            if drawn is not None and is_new:
                store.run(
                    "update image set unseen = ? where key = ? and reviewed is not null",
                    drawn[1],
                    stored_key(drawn[0]),
                )
            store.record(None)
            has_changed = store.one("select 1 from change where entry = ? limit 1", number)
            if kind == GROUPING and not final and not has_changed:
                return  # the same groups again are nothing to undo
            store.run(
                "update state set next_number = next_number + 1, "
                "forgotten = max(forgotten, (select coalesce(max(revision), 0) from log where undone))"
            )
            store.run("delete from change where entry in (select number from log where undone)")
            store.run("delete from log where undone")
            store.run(
                "insert into log values(?, ?, ?, ?, ?, 0, 0, 0)",
                number, kind, plain_json(what).decode(), self.stage, time,
            )  # fmt: skip
            store.count_revision(number, final=final)
            if final:
                store.run("update log set final = 1")
                store.run("delete from change")
                self.drop_unused_prototypes()


def has_registry(folder: str | Path) -> bool:
    """Whether a folder contains categories; that of a bare backbone does not."""
    return (Path(folder) / CATEGORIES).is_file()


def save_registry(registry: CategoryRegistry, folder: str | Path) -> None:
    """Write categories into the folder of a model. Equal registries give byte-identical files.

    Raises:
        DiskError: they cannot be written.
    """
    registry.store.write_snapshot(Path(folder) / CATEGORIES)


def load_registry(folder: str | Path) -> CategoryRegistry:
    """Read the categories in the folder of a model, which anybody may have written, into memory.

    Raises:
        RegistryError: they are missing or damaged or contradict each other, or a newer version wrote them.
    """
    registry = CategoryRegistry(Store.open(Path(folder) / CATEGORIES, is_reader=True))
    registry.require_whole()
    return registry
