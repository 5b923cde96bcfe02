"""The registry of categories: every id, name and correction over all stages, with undo and redo."""

import hashlib
import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from promptccd.clustering.constraints import GroupingConstraints
from promptccd.disk import plain_json
from promptccd.errors import RegistryError
from promptccd.registry.categories import Category, CategoryState, Look, check_name, mended_name
from promptccd.registry.changes import GROUPING, LogEntry, StageChange, compare
from promptccd.registry.draft import (
    Draft,
    categories_in,
    constraints_in,
    living,
    prototypes_in,
    resolved,
    vectors_of,
)
from promptccd.registry.edits import Edit
from promptccd.registry.observe import Snapshot, StageGroups, apply_grouping
from promptccd.registry.store import Store, stored_key, text_key

NOTHING_YET = -1  # stage of a registry that observed none
# A correction of many, such as a split, pins images that nobody has looked at.
STATE = "case when not pinned then 'found' when reviewed is null then 'pinned' else 'reviewed' end"

Value = TypeVar("Value")


class ActivePrototypes(NamedTuple):
    """What a model needs to assign images: ids ``C`` long, their names, and prototypes ``(C, D)`` float32."""

    ids: list[int]
    names: list[str]
    matrix: np.ndarray


class ByImage(Mapping[str, Value], Generic[Value]):
    """A value of each image that has one, by key. Reading one is a query; reading all is one query too.

    Args:
        store: the images.
        columns: SQL of the values.
        condition: SQL of whether an image has one.
        read: makes the value of the columns.
    """

    def __init__(self, store: Store, columns: str, condition: str, read: Any = None):
        self._store, self._columns, self._condition, self._read = store, columns, condition, read

    def __getitem__(self, key: str) -> Value:
        rows = isinstance(key, str) and self._store.all(
            f"select {self._columns} from image where key = ? and {self._condition}", stored_key(key)
        )
        if not rows:
            raise KeyError(key)
        return rows[0][0] if self._read is None else self._read(*rows[0])

    def __iter__(self) -> Iterator[str]:
        return iter(self.read())

    def __len__(self) -> int:
        return int(self._store.one(f"select count(*) from image where {self._condition}"))

    def read(self, keys: Iterable[str] | None = None) -> dict[str, Value]:
        """The values of some images, or of all, for many uses."""
        query = f"select key, {self._columns} from image where {self._condition}"
        rows = self._store.all(f"{query} order by id") if keys is None else self._store.of_keys(query, keys)
        if self._read is None:
            return {text_key(key): value for key, value in rows}
        return {text_key(key): self._read(*values) for key, *values in rows}

    def keys(self) -> Any:
        """See `Mapping.keys`."""
        return self.read().keys()

    def values(self) -> Any:
        """See `Mapping.values`."""
        return self.read().values()

    def items(self) -> Any:
        """See `Mapping.items`."""
        return self.read().items()


class CategoryRegistry:
    """Categories with ids that are never reused, the images in them, and what people said about both.

    Start with nothing and `observe` a stage, or with `from_categories`. Every edit is one log entry and can be
    undone until the next stage arrives: its features are others, which the state before does not fit. Another
    grouping of a stage that was observed before is an entry as well, and is undone like an edit.

    Ids only count up: the id of a split that was undone is not given again, except to the same split when it is
    redone. Within a stage rows of prototypes are only appended; a new stage drops those that no category refers to.

    Args:
        store: its rows; by default none, in memory.

    Attributes:
        store: its rows.
        images: the stage that every image came with.
        members: category of every image that has one.
        confidences: how sure the last grouping was of each image, in 0..1, where it said so.
        pinned: category of every image that a person has put there.
        looks: of every image that a person has looked at.
        states: stage, category, confidence, and whether it is ``found``, ``pinned`` or ``reviewed``, of every image.
    """

    def __init__(self, store: Store | None = None):
        self.store = Store.in_memory() if store is None else store
        self.images: ByImage[int] = ByImage(self.store, "stage", "true")
        self.members: ByImage[int] = ByImage(self.store, "category", "category is not null")
        self.confidences: ByImage[float] = ByImage(self.store, "confidence", "confidence is not null")
        self.pinned: ByImage[int] = ByImage(self.store, "category", "pinned")
        self.looks: ByImage[Look] = ByImage(
            self.store, "reviewed, was, unseen, quarter", "reviewed is not null", Look
        )
        self.states: ByImage[tuple[int, int | None, float | None, str]] = ByImage(
            self.store, f"stage, category, confidence, {STATE}", "true", lambda *values: values
        )
        self._categories: tuple[Any, dict[int, Category]] = (None, {})

    @classmethod
    def open(cls, path: Path) -> "CategoryRegistry":
        """The registry in a file of a project: what is done to it is on the disk when a method returns.

        Raises:
            RegistryError: there is none, it is damaged, or a newer version wrote it.
        """
        registry = cls(Store.open(path))
        registry.require_whole(counted=False)  # of images, which takes long where there are millions
        return registry

    @property
    def categories(self) -> Mapping[int, Category]:
        """Every category there ever was, by id."""
        token = self.store.token
        if self._categories[0] != token:
            self._categories = token, {each.id: each for each in categories_in(self.store)}
        return MappingProxyType(self._categories[1])

    @property
    def num_known(self) -> int:
        """Ids below it were labelled at stage 0."""
        return int(self.store.one("select num_known from state"))

    @property
    def stage(self) -> int:
        """Newest stage that was observed, -1 before the first."""
        return int(self.store.one("select stage from state"))

    @property
    def next_id(self) -> int:
        """The id that the next new category gets."""
        return int(self.store.one("select next_id from state"))

    @property
    def next_number(self) -> int:
        """The number that the next log entry gets."""
        return int(self.store.one("select next_number from state"))

    @property
    def active(self) -> list[Category]:
        """Categories that are neither retired, set aside nor dormant, by id: known ones first."""
        return [each for each in self.categories.values() if each.active]

    @property
    def aside(self) -> list[Category]:
        """Categories that were set aside, by id."""
        return [each for each in self.categories.values() if each.aside]

    @property
    def put_aside(self) -> set[str]:
        """Keys of images that a person set aside; others are in such a category because they are like its images."""
        return self._keys("where pinned and category in (select id from category where state = 'aside')")

    def is_aside(self, key: str) -> bool:
        """Whether an image is in a category that was set aside."""
        home = self.members.get(key)
        return home is not None and self.categories[home].aside

    @property
    def unassigned(self) -> list[str]:
        """Keys of images without a category, sorted."""
        return sorted(self._keys("where category is null"))

    def _keys(self, condition: str, *values: Any) -> set[str]:
        return {text_key(key) for (key,) in self.store.all(f"select key from image {condition}", *values)}

    def columns(self, keys: Iterable[str] | None = None) -> tuple[list[str], *tuple[np.ndarray, ...]]:
        """Images, of all or of some, as columns: keys, stages, categories or -1, confidences or 1, pinned or not."""
        values = "stage", "ifnull(category, -1)", "ifnull(confidence, 1.0)", "pinned"
        kinds: tuple[Any, ...] = np.int32, np.int32, np.float64, np.uint8
        if keys is not None:
            rows = self.store.of_keys(f"select key, {', '.join(values)} from image where true", keys)
            stored, *found = zip(*rows, strict=True) if rows else ((),) * 5
            columns = [np.array(each, kind) for each, kind in zip(found, kinds, strict=True)]
            return [text_key(key) for key in stored], *columns
        # One text of each column is read ten times as fast as a million rows.
        key = "case typeof(key) when 'blob' then lower(hex(key)) else json_quote(key) end"
        joined = ", ".join(
            [f"group_concat({key}, char(10))", *(f"group_concat({each}, ' ')" for each in values)]
        )
        [(names, *texts)] = self.store.all(f"select {joined} from (select * from image order by id)")
        named = [name if name[0] != '"' else json.loads(name) for name in (names or "").split("\n") if name]
        return named, *(
            np.fromstring(text or "", kind, sep=" ") for text, kind in zip(texts, kinds, strict=True)
        )

    @property
    def prototypes(self) -> np.ndarray:
        """All rows of prototypes ``(R, D)``; `Category.prototype_row` points into them."""
        return prototypes_in(self.store)

    @property
    def log(self) -> tuple[LogEntry, ...]:
        """What happened, oldest first, without what was undone."""
        return self._entries("where not undone order by number")

    @property
    def redo_stack(self) -> tuple[LogEntry, ...]:
        """What was undone and can be redone, the next one last."""
        return self._entries("where undone order by number desc")

    def _entries(self, condition: str) -> tuple[LogEntry, ...]:
        rows = self.store.all(f"select number, kind, what, stage, time, final from log {condition}")
        return tuple(
            LogEntry(number, kind, json.loads(what), stage, time, bool(final))
            for number, kind, what, stage, time, final in rows
        )

    @property
    def newest(self) -> LogEntry | None:
        """The entry that `undo` takes back; `None` if it can take back none."""
        found = self._entries("where not undone order by number desc limit 1")
        return found[0] if found and not found[0].final else None

    @property
    def next_redo(self) -> LogEntry | None:
        """The entry that `redo` makes again; `None` if there is none."""
        return next(iter(self._entries("where undone order by number limit 1")), None)

    def category(self, identity: int) -> Category:
        """A category that is not retired.

        Raises:
            RegistryError: there is none of that id; for a merged one the message names its survivor.
        """
        return living(self.store, identity)

    def members_of(self, identity: int) -> list[str]:
        """Keys of a category's images, sorted."""
        return sorted(self._keys("where category = ?", int(identity)))

    def resolve(self, identity: int) -> int | None:
        """The category that holds what `identity` held: itself, what it was merged into, or none.

        Raises:
            RegistryError: the id was never given.
        """
        if identity not in self.categories:
            raise RegistryError(f"There never was a category {identity!r}: ids go up to {self.next_id - 1}.")
        return resolved(self.store, identity)

    def constraints(self) -> GroupingConstraints:
        """What people said about images, for the next grouping."""
        return constraints_in(self.store)

    def active_prototypes(self) -> ActivePrototypes:
        """Ids, names and prototypes of the active categories, as ``model.set_categories`` takes them."""
        return self.prototypes_of(self.active)

    def prototypes_of(self, categories: Sequence[Category]) -> ActivePrototypes:
        """The same of any categories, in their order."""
        matrix = vectors_of(self.store, [each.prototype_row for each in categories])
        return ActivePrototypes([each.id for each in categories], [each.name for each in categories], matrix)

    def state_hash(self) -> str:
        """SHA-256 of the state, the same wherever and however it was reached.

        It covers categories with the bytes of their prototypes, images, constraints and the stage, but not the log,
        the redo stack and the counters of ids and entries, which remember what was undone.
        """
        categories, prototypes = self.categories, self.prototypes
        rows = [row for each in sorted(categories) for row in categories[each].rows]
        vectors = np.ascontiguousarray(prototypes[rows], dtype="<f4")
        state = {
            "num_known": self.num_known,
            "stage": self.stage,
            "categories": {str(key): asdict(each) for key, each in categories.items()},
            "images": self.images.read(),
            "members": self.members.read(),
            "confidences": self.confidences.read(),
            "pinned": self.pinned.read(),
            "forbidden": self.forbidden,
            "looks": self.looks.read(),
            "links": sorted([*pair, answer] for pair, answer in self.links.items()),
            "prototypes": hashlib.sha256(vectors.tobytes()).hexdigest(),
        }
        return hashlib.sha256(plain_json(state)).hexdigest()

    @property
    def forbidden(self) -> dict[str, tuple[int, ...]]:
        """The categories that a person has taken an image out of, by key."""
        found = dict[str, tuple[int, ...]]()
        for key, category in self.store.all(
            "select key, forbidden.category from forbidden join image on image.id = image order by image, 2"
        ):
            found[text_key(key)] = (*found.get(text_key(key), ()), category)
        return found

    @property
    def links(self) -> dict[tuple[str, str], str]:
        """Answers about two images, the smaller key first: ``"same"`` or ``"different"``."""
        rows = self.store.all(
            "select one.key, two.key, same from link join image one on one.id = a join image two on two.id = b"
        )
        return {(text_key(a), text_key(b)): "same" if same else "different" for a, b, same in rows}

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
        """A registry for a model that has none, or for the labelled stage.

        Args:
            ids: category ids, each once.
            names: their names. One that is not allowed or occurs twice is mended, since it must be loadable.
            num_known: ids below it were labelled at stage 0.
            prototypes: one row per id, ``(C, D)``.
            stage: newest stage of the checkpoint.
            members: category by image key, where it is known; all of them came with `stage`.

        Raises:
            RegistryError: lengths differ, an id occurs twice, or an image's category is not among the ids.
        """
        if not len(ids) == len(names) == len(prototypes) or len(set(ids)) != len(ids):
            raise RegistryError(
                f"Expected one name and one prototype for each of {len(ids)} different ids, got {len(names)} names "
                f"and {len(prototypes)} prototypes for {len(set(ids))} ids."
            )
        placed = {key: int(identity) for key, identity in (members or {}).items()}
        if strangers := [key for key, identity in placed.items() if identity not in set(map(int, ids))]:
            raise RegistryError(
                f"Image {strangers[0]!r} is in category {placed[strangers[0]]}, which has no prototype."
            )
        registry, taken = cls(), set[str]()
        with registry._draft() as draft:
            rows = [draft.append_prototype(each) for each in prototypes]
            for row, identity, name in zip(rows, map(int, ids), names, strict=True):
                known = identity < num_known
                taken.add(kept := mended_name(name, identity, taken))
                state, born = (CategoryState.KNOWN, 0) if known else (CategoryState.DISCOVERED, stage)
                draft.store.run(
                    "insert into category values(?, ?, ?, ?, 0, ?, 0, null, '[]')",
                    identity, kept, state, born, row,
                )  # fmt: skip
            draft.store.run_each(
                "insert into image(key, stage, category, pinned, unseen, quarter) values(?, ?, ?, 0, 0, 0)",
                [(stored_key(key), stage, placed[key]) for key in sorted(placed)],
            )
            draft.store.run(
                "update category set size = (select count(*) from image where image.category = category.id)"
            )
            next_id = max([num_known, *(int(each) + 1 for each in ids)])
            draft.store.run(
                "update state set num_known = ?, stage = ?, next_id = ?", num_known, stage, next_id
            )
        return registry

    def copy(self) -> "CategoryRegistry":
        """Another registry in the same state, with the same log, in memory."""
        return CategoryRegistry(self.store.copy())

    def edit(
        self, edit: Edit, time: str | None = None, drawn: Mapping[str, tuple[int, int]] | None = None
    ) -> LogEntry:
        """Make an edit; what was undone before can no longer be redone.

        Args:
            edit: one of those in `promptccd.registry.edits`.
            time: when, in ISO 8601, for the log.
            drawn: ``left`` and ``quarter``, see `Look`, of an image that nobody chose.

        Raises:
            RegistryError: it is not possible; nothing changed.
        """
        with self._draft((edit.kind, edit.to_dict(), time), drawn) as draft:
            edit.apply(draft)
        found = self.newest
        assert found is not None
        return found

    def observe(self, stage: int, groups: StageGroups) -> StageChange:
        """Take in how a stage's images were grouped: known ids stay, new clusters get new ids, edits hold.

        For a stage that was observed before, images, ids and names stay as they are where the clusters are the same,
        and the entry can be undone. A new stage cannot be undone.

        Args:
            stage: the stage, counted from 0; one above the registry's `stage` is new.
            groups: the grouping.

        Returns:
            What changed; `StageChange.cluster_ids` names the category of every cluster.

        Raises:
            RegistryError: the grouping is malformed or does not fit; nothing changed.
        """
        if stage < 0:
            raise RegistryError(f"Expected a stage >= 0, got {stage}.")
        stage = int(stage)
        is_new, before = stage > self.stage, Snapshot.of(self.store)
        what = {"stage": stage, "images": len(groups.keys), "clusters": len(groups.prototypes)}
        with self.store.transaction():
            self.store.run("update state set stage = max(stage, ?)", stage)
            with self._draft((GROUPING, what, None), final=is_new) as draft:
                ids = apply_grouping(draft, stage, groups, before)
                draft.grouped_again(groups.keys)
        return replace(compare(before, Snapshot.of(self.store), stage), cluster_ids=ids)

    def replace_prototypes(self, vectors: Mapping[int, np.ndarray]) -> None:
        """Give categories new prototypes because the model was trained and its features changed.

        As with a new stage, earlier entries can no longer be undone: their prototypes were of the old features.

        Args:
            vectors: ``(D,)`` by category id; retired categories keep what they had.

        Raises:
            RegistryError: an id is unknown or retired, or a vector does not fit; nothing changed.
        """
        what = {"stage": self.stage, "prototypes": len(vectors)}
        with self._draft((GROUPING, what, None), final=True) as draft:
            draft.set_prototypes(vectors)

    def changes_since(self, earlier: "CategoryRegistry") -> StageChange:
        """What changed since an earlier state, such as that of the last stage's checkpoint; edits count."""
        return compare(Snapshot.of(earlier.store), Snapshot.of(self.store), self.stage)

    def undo(self) -> LogEntry:
        """Take the newest entry back, and return it. The state is the one before it, hash for hash.

        Raises:
            RegistryError: no entry of this stage is left.
        """
        with self.store.transaction():
            if (entry := self.newest) is None:
                if not self.log:
                    raise RegistryError("There is nothing to undo: nothing was edited yet.")
                raise RegistryError(
                    f"There is nothing to undo since stage {self.stage} was grouped. Earlier edits are settled: "
                    "rename, merge, split or move what should be different now."
                )
            self.require_whole(self.store.replay(entry.number, undo=True), counted=False)
            self.store.run("update log set undone = 1 where number = ?", entry.number)
            self.store.count_revision(entry.number)
        return entry

    def redo(self) -> LogEntry:
        """Redo the entry that was undone last, with the same ids, and return it.

        Raises:
            RegistryError: nothing was undone since the last edit.
        """
        with self.store.transaction():
            if (entry := self.next_redo) is None:
                raise RegistryError("There is nothing to redo: nothing was undone since the last edit.")
            self.require_whole(self.store.replay(entry.number, undo=False), counted=False)
            self.store.run("update log set undone = 0 where number = ?", entry.number)
            self.store.count_revision(entry.number)
        return entry

    def require_whole(self, ids: Collection[int] | None = None, *, counted: bool = True) -> None:
        """Refuse categories that contradict themselves, beyond what the tables check.

        Args:
            ids: of the categories; by default all.
            counted: whether their images are counted.

        Raises:
            RegistryError: the message names the category and the contradiction.
        """
        store, num_known, next_id = self.store, self.num_known, self.next_id
        rows = store.one("select count(*) from vector")
        found = [each for each in self.categories.values() if ids is None or each.id in ids]
        count = "select category, count(*) from image where category is not null group by category"
        sizes = Counter(dict(store.all(count))) if counted else {}
        for each in found:
            if each.id >= next_id:
                problem = f"is there, and the next free id is {next_id}"
            elif not each.retired and each.known != (each.id < num_known):
                problem = f"is {each.state}, but ids below {num_known} are known and the others are not"
            elif each.retired and each.size:
                problem = f"is retired, but has {each.size} images"
            elif each.merged_into is not None and not (each.retired and each.merged_into < each.id):
                problem = f"was merged into {each.merged_into}, which leads nowhere"
            elif outside := [row for row in each.rows if type(row) is not int or not 0 <= row < rows]:
                problem = f"has prototype row {outside[0]} of {rows}"
            elif each.name != (each.name.strip() if each.name.isprintable() else check_name(each.name)):
                problem = "has blanks around its name"
            elif counted and sizes[each.id] != each.size:
                problem = f"says that it has {each.size} images, but {sizes[each.id]} are in it"
            else:
                continue
            raise RegistryError(f"Category {each.id} {problem}.")

    @contextmanager
    def _draft(
        self,
        entry: tuple[str, Mapping[str, Any], str | None] | None = None,
        drawn: Mapping[str, tuple[int, int]] | None = None,
        *,
        final: bool = False,
    ) -> Iterator[Draft]:
        """A change of this registry, whole or not at all.

        Args:
            entry: kind, values and time for the log; without one the log stays as it is.
            drawn: see `edit`.
            final: whether neither the change nor earlier ones can be undone.
        """
        store = self.store
        with self.store.transaction():
            number = store.one("select next_number from state")
            if entry is not None:
                store.watch(None if final else number)
            draft = Draft(store, drawn)
            yield draft
            if entry is None:
                return
            draft.finish()
            store.stop_watching()
            kind, what, time = entry
            is_repeated = kind == GROUPING and not final
            if is_repeated and not store.one("select 1 from change where entry = ? limit 1", number):
                return  # the same groups again are nothing to undo
            store.run(
                "update state set forgotten = max(forgotten, (select coalesce(max(revision), 0) from log where undone))"
            )
            store.run("delete from change where entry in (select number from log where undone)")
            store.run("delete from log where undone")
            store.run(
                "insert into log values(?, ?, ?, ?, ?, 0, 0, 0)",
                number,
                kind,
                plain_json(what).decode(),
                self.stage,
                time,
            )
            store.run("update state set next_number = next_number + 1")
            store.count_revision(number, final=final)
            if final:
                store.run("update log set final = 1")
                store.run("delete from change")
                draft.drop_unused_prototypes()
