"""The registry of categories: every id, name and correction, kept over stages, and every edit taken back on request."""

import hashlib
from collections import Counter
from collections.abc import Iterator, KeysView, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import asdict, replace
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from promptccd.clustering.constraints import GroupingConstraints
from promptccd.disk import plain_json
from promptccd.errors import RegistryError
from promptccd.registry.changes import GROUPING, LONGEST_TIME, History, LogEntry, StageChange, Step, compare
from promptccd.registry.edits import Edit
from promptccd.registry.grouping import StageGroups, apply_grouping
from promptccd.registry.tables import (
    TABLE_NAMES,
    Category,
    CategoryState,
    Draft,
    Look,
    Patch,
    Tables,
    check_name,
    mended_name,
)

NOTHING_YET = -1  # stage of a registry that observed none


class ActivePrototypes(NamedTuple):
    """What a model needs to assign images: ids ``C`` long, their names, and prototypes ``(C, D)`` float32."""

    ids: list[int]
    names: list[str]
    matrix: np.ndarray


class CategoryRegistry:
    """Categories with ids that are never reused, the images in them, and what people said about both.

    Start with nothing and `observe` a stage, or with `from_categories`. Every edit is one log entry and can be
    undone until the next stage arrives: its features are others, which the state before does not fit. Another
    grouping of a stage that was observed before is an entry as well, and is undone like an edit.

    Ids only count up: the id of a split that was undone is not given again, except to the same split when it is
    redone. Within a stage rows of prototypes are only appended; a new stage drops those that no category refers to.

    Args:
        tables: the state; empty by default.
        prototypes: ``(R, D)`` float32, the rows that categories refer to.
        num_known: ids below it were labelled at stage 0.
        stage: newest stage that was observed, -1 before the first.
        next_id: first id that was never given; by default the first above all others.
        history: log and redo stack.

    Attributes:
        categories: every category there ever was, by id.
        images: the stage that every image came with.
        members: category of every image that has one.
        confidences: how sure the last grouping was of each image, in 0..1, where it said so.
        pinned: category of every image that a person has put there.
        looks: of every image that a person has looked at.
        num_known: ids below it were labelled at stage 0.
        stage: newest stage that was observed, -1 before the first.
        next_id: the id that the next new category gets.
        steps: what happened since a journal set it to an empty list; `None` before that, and after a new stage, which
            no step can say.

    Raises:
        RegistryError: the state contradicts itself.
    """

    def __init__(
        self,
        tables: Tables | None = None,
        prototypes: np.ndarray | None = None,
        *,
        num_known: int = 0,
        stage: int = NOTHING_YET,
        next_id: int | None = None,
        history: History | None = None,
    ):
        self._tables = tables or Tables()
        self.categories: Mapping[int, Category] = MappingProxyType(self._tables.categories)
        self.images: Mapping[str, int] = MappingProxyType(self._tables.images)
        self.members: Mapping[str, int] = MappingProxyType(self._tables.members)
        self.confidences: Mapping[str, float] = MappingProxyType(self._tables.confidences)
        self.pinned: Mapping[str, int] = MappingProxyType(self._tables.pinned)
        self.looks: Mapping[str, Look] = MappingProxyType(self._tables.looks)
        rows = np.zeros((0, 0), np.float32) if prototypes is None else prototypes
        self._prototypes = np.array(rows, dtype=np.float32)
        is_odd = self._prototypes.ndim != 2 or (not self._prototypes.size and len(self._prototypes))
        if is_odd or not np.isfinite(self._prototypes).all():
            raise RegistryError(f"Expected finite prototypes (R, D), got shape {self._prototypes.shape}.")
        self.num_known, self.stage = num_known, stage
        free = max([num_known, *(each + 1 for each in self._tables.categories)])
        self.next_id = free if next_id is None else next_id
        self._history = history or History()
        self.steps: list[Step] | None = None
        self._check()

    @property
    def active(self) -> list[Category]:
        """Categories that are neither retired, set aside nor dormant, by id: known ones first."""
        return [each for each in self._tables.not_retired() if each.active]

    @property
    def aside(self) -> list[Category]:
        """Categories that were set aside, by id."""
        return [each for each in self._tables.not_retired() if each.aside]

    @property
    def put_aside(self) -> set[str]:
        """Keys of images that a person set aside; others are in such a category because they are like its images."""
        found = {each.id for each in self.aside}
        return {key for key, home in self._tables.pinned.items() if home in found}

    def is_aside(self, key: str) -> bool:
        """Whether an image is in a category that was set aside."""
        home = self.members.get(key)
        return home is not None and self.categories[home].aside

    @property
    def unassigned(self) -> list[str]:
        """Keys of images without a category, sorted."""
        return sorted(self._tables.images.keys() - self._tables.members.keys())

    @property
    def prototypes(self) -> np.ndarray:
        """All rows of prototypes ``(R, D)``, read-only; `Category.prototype_row` points into them."""
        view = self._prototypes.view()
        view.flags.writeable = False
        return view

    @property
    def tables(self) -> Tables:
        """A copy of the state."""
        return self._tables.copy()

    @property
    def next_number(self) -> int:
        """The number that the next log entry gets."""
        return self._history.next_number

    @property
    def log(self) -> tuple[LogEntry, ...]:
        """What happened, oldest first, without what was undone."""
        return tuple(self._history.log)

    @property
    def redo_stack(self) -> tuple[LogEntry, ...]:
        """What was undone and can be redone, the next one last."""
        return tuple(self._history.redo)

    def category(self, identity: int) -> Category:
        """A category that is not retired.

        Raises:
            RegistryError: there is none of that id; for a merged one the message names its survivor.
        """
        return self._tables.category(identity)

    def members_of(self, identity: int) -> list[str]:
        """Keys of a category's images, sorted."""
        return self._tables.members_of(identity)

    def resolve(self, identity: int) -> int | None:
        """The category that holds what `identity` held: itself, what it was merged into, or none.

        Raises:
            RegistryError: the id was never given.
        """
        if identity not in self._tables.categories:
            raise RegistryError(f"There never was a category {identity!r}: ids go up to {self.next_id - 1}.")
        return self._tables.resolve(identity)

    def constraints(self) -> GroupingConstraints:
        """What people said about images, for the next grouping."""
        return self._tables.constraints()

    def active_prototypes(self) -> ActivePrototypes:
        """Ids, names and prototypes of the active categories, as ``model.set_categories`` takes them."""
        return self.prototypes_of(self.active)

    def prototypes_of(self, categories: Sequence[Category]) -> ActivePrototypes:
        """The same of any categories, in their order."""
        rows = [each.prototype_row for each in categories]
        return ActivePrototypes(
            [each.id for each in categories], [each.name for each in categories], self._prototypes[rows]
        )

    def state_hash(self) -> str:
        """SHA-256 of the state, the same wherever and however it was reached.

        It covers categories with the bytes of their prototypes, images, constraints and the stage, but not the log,
        the redo stack and the counters of ids and entries, which remember what was undone.
        """
        tables = self._tables
        rows = [row for each in sorted(tables.categories) for row in tables.categories[each].rows]
        vectors = np.ascontiguousarray(self._prototypes[rows], dtype="<f4")
        state = {
            **{name: getattr(tables, name) for name in TABLE_NAMES},
            "num_known": self.num_known,
            "stage": self.stage,
            "categories": {str(key): asdict(each) for key, each in tables.categories.items()},
            "links": sorted([*pair, answer] for pair, answer in tables.links.items()),
            "prototypes": hashlib.sha256(vectors.tobytes()).hexdigest(),
        }
        return hashlib.sha256(plain_json(state)).hexdigest()

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
        tables = Tables(members={key: int(identity) for key, identity in (members or {}).items()})
        tables.images = dict.fromkeys(tables.members, stage)
        sizes = dict.fromkeys(map(int, ids), 0)
        for key, identity in tables.members.items():
            if identity not in sizes:
                raise RegistryError(f"Image {key!r} is in category {identity}, which has no prototype.")
            sizes[identity] += 1
        taken = set[str]()
        for row, (identity, name) in enumerate(zip(map(int, ids), names, strict=True)):
            known = identity < num_known
            state, born = (CategoryState.KNOWN, 0) if known else (CategoryState.DISCOVERED, stage)
            kept = mended_name(name, identity, taken)
            taken.add(kept)
            tables.categories[identity] = Category(identity, kept, state, born, sizes[identity], row)
        return cls(tables, prototypes, num_known=num_known, stage=stage)

    def copy(self) -> "CategoryRegistry":
        """Another registry in the same state, with the same log."""
        return CategoryRegistry(
            self._tables.copy(),
            self._prototypes,
            num_known=self.num_known,
            stage=self.stage,
            next_id=self.next_id,
            history=replace(self._history, log=[*self._history.log], redo=[*self._history.redo]),
        )

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
        if time is not None and not 0 < len(time) <= LONGEST_TIME:
            raise RegistryError(
                f"Expected an ISO time of at most {LONGEST_TIME} characters, got {time[:60]!r}."
            )
        with self._draft() as draft:
            draft.drawn |= drawn or {}
            edit.apply(draft)
            patch = draft.finish()
        return self._commit(draft, patch, edit.kind, edit.to_dict(), time=time)

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
        is_new, before = stage > self.stage, self._tables.copy()
        with self._draft() as draft:
            ids = apply_grouping(draft, stage, groups)
            draft.grouped_again(groups.keys)
            patch = draft.finish()
        what = {"stage": stage, "images": len(groups.keys), "clusters": len(groups.prototypes)}
        self.stage = max(self.stage, stage)
        if is_new or patch.changes:  # the same groups again are nothing to undo
            self._commit(draft, patch, GROUPING, what, settles=is_new)
        return replace(compare(before, self._tables, stage), cluster_ids=ids)

    def replace_prototypes(self, vectors: Mapping[int, np.ndarray]) -> None:
        """Give categories new prototypes because the model was trained and its features changed.

        As with a new stage, earlier entries can no longer be undone: their prototypes were of the old features.

        Args:
            vectors: ``(D,)`` by category id; retired categories keep what they had.

        Raises:
            RegistryError: an id is unknown or retired, or a vector does not fit; nothing changed.
        """
        with self._draft() as draft:
            draft.set_prototypes(vectors)
            patch = draft.finish()
        what = {"stage": self.stage, "prototypes": len(vectors)}
        self._commit(draft, patch, GROUPING, what, settles=True)

    def changes_since(self, earlier: "CategoryRegistry") -> StageChange:
        """What changed since an earlier state, such as that of the last stage's checkpoint; edits count."""
        return compare(earlier._tables, self._tables, self.stage)

    def undo(self) -> LogEntry:
        """Take the newest entry back, and return it. The state is the one before it, hash for hash.

        Raises:
            RegistryError: no entry of this stage is left.
        """
        if not self._history.log:
            raise RegistryError("There is nothing to undo: nothing was edited yet.")
        entry = self._history.log[-1]
        if entry.patch is None:
            raise RegistryError(
                f"There is nothing to undo since stage {self.stage} was grouped. Earlier edits are settled: "
                "rename, merge, split or move what should be different now."
            )
        patch = entry.patch.inverse()
        self._apply(patch)
        self._history.redo.append(self._history.log.pop())
        self._note(Step("undo", entry.number, patch=patch))
        return entry

    def redo(self) -> LogEntry:
        """Redo the entry that was undone last, with the same ids, and return it.

        Raises:
            RegistryError: nothing was undone since the last edit.
        """
        if not self._history.redo:
            raise RegistryError("There is nothing to redo: nothing was undone since the last edit.")
        entry = self._history.redo[-1]
        assert entry.patch is not None
        self._apply(entry.patch)
        self._history.log.append(self._history.redo.pop())
        self._note(Step("redo", entry.number, patch=entry.patch))
        return entry

    def take(self, step: Step) -> Patch:
        """Repeat a step that another registry noted in this very state; returns what it changed.

        Raises:
            RegistryError: it does not fit this state.
        """
        if step.action != "do":
            came = self.undo() if step.action == "undo" else self.redo()
            if came.number != step.number:
                raise RegistryError(f"It is entry {came.number} whose turn it is, not {step.number}.")
            assert came.patch is not None
            return came.patch.inverse() if step.action == "undo" else came.patch
        entry, rows = step.entry, step.prototypes
        if entry is None or entry.patch is None or entry.number != self._history.next_number:
            raise RegistryError(f"Expected what entry {self._history.next_number} changes.")
        if step.next_id < self.next_id or entry.stage != self.stage:
            raise RegistryError(
                f"Entry {entry.number} is of stage {entry.stage}, the next id {step.next_id}."
            )
        draft = Draft(self._tables, self._prototypes, step.next_id)
        for row in () if rows is None else rows:
            draft.append_prototype(row)
        before = self._prototypes, self.next_id
        self._extend(draft)
        try:
            self._apply(entry.patch)
        except RegistryError:
            self._prototypes, self.next_id = before
            raise
        self._enter(entry)
        return entry.patch

    def _note(self, step: Step) -> None:
        if self.steps is not None:
            self.steps.append(step)

    @contextmanager
    def _draft(self) -> Iterator[Draft]:
        """New values for this registry; an error leaves it as it was."""
        draft = Draft(self._tables, self._prototypes, self.next_id)
        try:
            yield draft
        except BaseException:
            draft.discard()
            raise

    def _commit(
        self,
        draft: Draft,
        patch: Patch,
        kind: str,
        what: Mapping[str, Any],
        *,
        time: str | None = None,
        settles: bool = False,
    ) -> LogEntry:
        """Put a draft in force; one that settles leaves nothing that could be undone."""
        self._extend(draft)
        entry = LogEntry(self._history.next_number, kind, what, self.stage, time, patch)
        self._enter(entry)
        if settles:
            self._history.log = [replace(each, patch=None) for each in self._history.log]
            self._drop_unused_rows()
            self.steps = None
        else:
            rows = np.stack(draft.rows) if draft.rows else None
            self._note(Step("do", entry.number, entry, rows, self.next_id, patch))
        return entry

    def _extend(self, draft: Draft) -> None:
        """Take in the prototypes and ids of a draft."""
        if draft.rows:
            rows = np.stack(draft.rows)
            self._prototypes = np.concatenate([self._prototypes, rows]) if len(self._prototypes) else rows
        self.next_id = draft.next_id

    def _enter(self, entry: LogEntry) -> None:
        self._history.next_number = entry.number + 1
        self._history.log.append(entry)
        self._history.redo.clear()

    def _check(self, patch: Patch | None = None) -> None:
        """Refuse a state that contradicts itself.

        Args:
            patch: what has changed, and alone is looked at; by default everything.

        Raises:
            RegistryError: the message names the category or image and what is wrong.
        """
        tables = self._tables
        identities = tables.categories.keys() | tables.homes.keys() if patch is None else patch.categories
        for identity in sorted(identities):
            if (category := tables.categories.get(identity)) is not None:
                for problem in self._category_problems(identity, category):
                    raise RegistryError(f"Category {identity} {problem}.")
            elif tables.homes.get(identity):
                raise RegistryError(f"Images are in category {identity}, which does not exist.")
        names = Counter(each.name for each in tables.not_retired())
        if repeated := [name for name, count in names.items() if count > 1]:
            raise RegistryError(f"Two categories are called {repeated[0]!r}.")
        for problem in _image_problems(tables, None if patch is None else patch.images):
            raise RegistryError(problem)
        tables.constraints(only_linked=True)

    def _category_problems(self, identity: int, category: Category) -> Iterator[str]:
        num_known, num_rows = self.num_known, len(self._prototypes)
        if category.id != identity or not 0 <= identity < self.next_id:
            yield f"has the id {category.id}, and the next free id is {self.next_id}"
        if not category.retired and category.known != (identity < num_known):
            yield f"is {category.state}, but ids below {num_known} are known and the others are not"
        if outside := [row for row in category.rows if not 0 <= row < num_rows]:
            yield f"has prototype row {outside[0]} of {num_rows}"
        yield from _state_problems(category)
        yield from _merge_problems(self._tables, category)
        if (count := len(self._tables.homes.get(identity, ()))) != category.size:
            yield f"says that it has {category.size} images, but {count} are in it"

    def _apply(self, patch: Patch) -> None:
        patch.apply(self._tables)
        try:
            self._check(patch)
        except RegistryError:  # only a file that was written by hand gets here
            patch.inverse().apply(self._tables)
            raise

    def _drop_unused_rows(self) -> None:
        categories = self._tables.categories
        used = sorted({row for each in categories.values() for row in each.rows})
        position = {row: index for index, row in enumerate(used)}
        self._prototypes = self._prototypes[used]
        for identity, category in categories.items():
            first, *others = (position[row] for row in category.rows)
            categories[identity] = replace(category, prototype_row=first, earlier_rows=tuple(others))


def _state_problems(category: Category) -> Iterator[str]:
    if category.born < 0:
        yield f"was born at stage {category.born}"
    if category.dormant and (category.size or category.state is not CategoryState.DISCOVERED):
        yield f"is dormant, but {category.state} with {category.size} images"
    if category.retired and category.size:
        yield f"is retired, but has {category.size} images"
    if category.name != check_name(category.name):
        yield "has blanks around its name"


def _merge_problems(tables: Tables, category: Category) -> Iterator[str]:
    if category.merged_into is not None and not category.retired:
        yield f"was merged into {category.merged_into}, but is not retired"
    passed = {category.id}
    target = category.merged_into
    while target is not None:
        if target in passed or target not in tables.categories:
            yield f"was merged into {target}, which leads nowhere"
            return
        passed.add(target)
        target = tables.categories[target].merged_into


def _image_problems(tables: Tables, changed: set[str] | None) -> Iterator[str]:
    """What is wrong with images: with all of them, or with those that changed."""

    def among(name: str) -> Set[str]:
        keys: KeysView[str] = getattr(tables, name).keys()
        return keys if changed is None else changed & keys

    for name in ("members", "confidences", "pinned", "forbidden", "looks"):
        if strangers := [key for key in among(name) if key not in tables.images]:
            yield f"Image {min(strangers)!r} is in {name} but not among the images."
    for key in among("pinned"):
        if tables.members.get(key) != tables.pinned[key]:
            yield f"Image {key!r} is pinned to category {tables.pinned[key]} but is not in it."
    for key in among("forbidden"):
        if tables.members.get(key) in tables.forbidden[key]:
            yield f"Image {key!r} is in category {tables.members[key]}, which is forbidden to it."
        if unknown := [each for each in tables.forbidden[key] if each not in tables.categories]:
            yield f"Image {key!r} was taken out of category {unknown[0]}, which does not exist."
    yield from _link_problems(tables)


def _link_problems(tables: Tables) -> Iterator[str]:
    for pair in tables.links:
        if not all(key in tables.images for key in pair) or pair[0] >= pair[1]:
            yield f"The answer about {pair[0]!r} and {pair[1]!r} is not about two images, the smaller key first."
