"""What people correct about categories: each edit is a value that can be stored, applied and undone."""

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar
from unicodedata import normalize

import numpy as np
from numpy.typing import ArrayLike

from promptccd.errors import RegistryError
from promptccd.registry.categories import Category, CategoryState, check_name
from promptccd.registry.draft import Draft, constraints_in
from promptccd.registry.observe import unit, weighted_mean


class Edit(ABC):
    """How an edit changes a registry, and how it is written down.

    Attributes:
        kind: its name in the log.
    """

    kind: ClassVar[str]

    @abstractmethod
    def apply(self, draft: Draft) -> None:
        """Write the new values into a draft of the registry.

        Raises:
            RegistryError: the registry does not allow it; the message says why.
        """

    def to_dict(self) -> dict[str, Any]:
        """Plain values, without vectors: the registry's prototypes hold those."""
        values = {item.name: getattr(self, item.name) for item in fields(self) if not item.metadata}  # type: ignore[arg-type]
        return {"kind": self.kind, **{name: _plain(value) for name, value in values.items()}}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset | np.ndarray):
        return [_plain(item) for item in value]
    return value.item() if isinstance(value, np.generic) else value


@dataclass(frozen=True)
class Rename(Edit):
    """Give a category a name.

    Attributes:
        category: its id.
        name: the new name; see `check_name`. No two categories share one, nor differ only in whether an accent is a
            character of its own.
    """

    kind: ClassVar[str] = "rename"
    category: int
    name: str

    def apply(self, draft: Draft) -> None:
        """See `Edit.apply`."""
        name = check_name(self.name)
        renamed = draft.category(self.category)
        for other, called in draft.names().items():
            if other != renamed.id and normalize("NFC", called) == normalize("NFC", name):
                raise RegistryError(
                    f"Category {other} is called {name!r} already: choose another name, or merge the two."
                )
        draft.change(renamed.id, name=name)


@dataclass(frozen=True)
class Merge(Edit):
    """Say that several categories are one.

    The one with the least id survives, so a known one does. The others are retired and remember the survivor, whose
    prototype becomes the mean of all, weighted by their numbers of images. Without a chosen name, a name that a person
    gave wins over a default one. An image that was taken out of one of them stays out of the survivor, unless it is in
    one of them now: then the merge is the later word.

    Attributes:
        categories: two ids or more.
        name: of the survivor; it may be the name of any of them.
    """

    kind: ClassVar[str] = "merge"
    categories: Sequence[int]
    name: str | None = None

    def apply(self, draft: Draft) -> None:
        """See `Edit.apply`."""
        merged = [draft.category(each) for each in sorted(set(self.categories))]
        if len(merged) < 2:
            raise RegistryError(f"Expected at least two categories to merge, got {list(self.categories)}.")
        if len({each.aside for each in merged}) > 1:
            raise RegistryError(
                f"Of the categories {[each.id for each in merged]} only some are set aside: set the others aside too, "
                "or take those back."
            )
        (survivor, *others), ids = merged, {each.id for each in merged}
        members = [row for each in others for row in draft.members_of(each.id)]
        self._unlink(draft, ids)
        pinned = draft.values_of("pinned", members)
        for is_pinned in (0, 1):
            draft.place(
                [row for row in members if pinned[row] == is_pinned], survivor.id, pin=bool(is_pinned)
            )
        kept_out = self._carry_bans(draft, survivor.id, ids)
        sizes = np.array([each.size for each in merged])
        mean = draft.append_prototype(weighted_mean(draft.vectors(merged), sizes))
        for each in others:
            draft.change(each.id, state=CategoryState.RETIRED, merged_into=survivor.id, dormant=False, size=0)
        draft.change(
            survivor.id,
            name=_merged_name(survivor, others),
            vector=mean,
            earlier=json.dumps([*survivor.earlier_rows, survivor.prototype_row]),
        )
        if self.name is not None:
            Rename(survivor.id, self.name).apply(draft)
        draft.settle_links([*members, *kept_out])

    @staticmethod
    def _carry_bans(draft: Draft, survivor: int, merged: set[int]) -> list[int]:
        """Let bans from any of the categories hold for the survivor; returns the images that it bans now."""
        marks = ", ".join(map(str, merged))
        rows = draft.store.all(
            "select distinct image, image.category from forbidden join image on image.id = forbidden.image "
            f"where forbidden.category in ({marks})"
        )
        draft.store.run_each(
            f"delete from forbidden where image = ? and category in ({marks})", [(row,) for row, _ in rows]
        )
        kept_out = [row for row, home in rows if home != survivor]
        draft.forbid((row, survivor) for row in kept_out)
        return kept_out

    @staticmethod
    def _unlink(draft: Draft, merged: set[int]) -> None:
        """Drop answers "different" between the categories; those inside one of them stay."""
        marks = ", ".join(map(str, merged))
        draft.store.run(
            "delete from link where not same and (select count(distinct category) from image where id in (a, b) and "
            f"category in ({marks})) = 2"
        )


@dataclass(frozen=True, eq=False)
class Split(Edit):
    """Make some of a category's images a category of their own, with a new id; they are pinned to it.

    Attributes:
        category: the id that is cut.
        images: keys of the part, which leaves at least one image.
        part_prototype: mean of the part's unit features, ``(D,)``.
        rest_prototype: mean of the other unit features, ``(D,)``.
        name: of the part; `None` gives the default one.
    """

    kind: ClassVar[str] = "split"
    category: int
    images: Sequence[str]
    part_prototype: ArrayLike = field(metadata={"vector": True})
    rest_prototype: ArrayLike = field(metadata={"vector": True})
    name: str | None = None

    def apply(self, draft: Draft) -> None:
        """See `Edit.apply`."""
        whole = draft.category(self.category)
        part = draft.images(self.images)
        homes = draft.values_of("category", part.values())
        if strangers := [key for key, row in part.items() if homes[row] != whole.id]:
            raise RegistryError(
                f"{len(strangers)} of the {len(part)} images are not in category {whole.id}, the first is "
                f"{strangers[0]!r}: select images of that category only."
            )
        if len(part) == whole.size:
            raise RegistryError(
                f"All {whole.size} images of category {whole.id} were selected: leave at least one, or rename it."
            )
        _gather(draft, Gather(tuple(part), self.part_prototype, {whole.id: self.rest_prototype}, self.name))


@dataclass(frozen=True, eq=False)
class Gather(Edit):
    """Make images of any categories a category of their own, with a new id; they are pinned to it.

    A later grouping does not put pinned images back.

    Attributes:
        images: their keys.
        prototype: mean of their unit features, ``(D,)``.
        prototypes: new means of categories that lost some of them, by id; the others keep theirs.
        name: of the new category; `None` gives the default one.
    """

    kind: ClassVar[str] = "gather"
    images: Sequence[str]
    prototype: ArrayLike = field(metadata={"vector": True})
    prototypes: Mapping[int, ArrayLike] = field(default_factory=dict, metadata={"vector": True})
    name: str | None = None

    def apply(self, draft: Draft) -> None:
        """See `Edit.apply`."""
        draft.look(draft.images(self.images))
        _gather(draft, self)


def _gather(draft: Draft, what: Gather) -> None:
    rows = draft.images(what.images).values()
    identity = draft.new_category(born=min(draft.values_of("stage", rows).values()))
    draft.set_prototype(identity, what.prototype)
    draft.set_prototypes(what.prototypes)
    if what.name is not None:
        Rename(identity, what.name).apply(draft)
    draft.place(rows, identity, pin=True)
    draft.settle_links(rows)


@dataclass(frozen=True)
class NotACategory(Edit):
    """Say that a discovered category is none: it is retired, and later groupings do not bring it back.

    Attributes:
        category: its id.
        assignment: category that images go to, by key. Nothing is pinned, because nobody looked at each image.
        rest_to_nearest: whether other images go to the category with the nearest prototype, as do those that a person
            took out of the category they are given; else they become unassigned.
    """

    kind: ClassVar[str] = "not_a_category"
    category: int
    assignment: Mapping[str, int] = field(default_factory=dict)
    rest_to_nearest: bool = False

    def apply(self, draft: Draft) -> None:
        """See `Edit.apply`."""
        category = draft.category(self.category)
        if category.known:
            raise RegistryError(
                f"Category {category.id} was labelled at stage 0, it is one: rename it, merge it or move its images."
            )
        rows = draft.members_of(category.id)
        given = self._given(draft, category, rows)
        nearest = _nearest_first(draft, category) if self.rest_to_nearest else []
        banned = dict[int, set[int]]()
        for row, other in draft.store.all(
            "select image, category from forbidden where image in (select id from image where category = ?)",
            category.id,
        ):
            banned.setdefault(row, set()).add(other)
        targets = dict[int | None, list[int]]()
        for row in rows:
            wanted = [*([given[row]] if row in given else []), *nearest]
            target = next((each for each in wanted if each not in banned.get(row, ())), None)
            targets.setdefault(target, []).append(row)
        for target, images in targets.items():
            draft.place(images, target)
        draft.forbid((row, category.id) for row in rows)
        draft.drop_looks(rows)  # nobody has reviewed them where they are now
        draft.change(category.id, state=CategoryState.RETIRED, dormant=False, size=0)

    def _given(self, draft: Draft, category: Category, members: Sequence[int]) -> dict[int, int]:
        """The category that images are given, by row."""
        images = draft.images(self.assignment) if self.assignment else {}
        if strangers := sorted(key for key, row in images.items() if row not in set(members)):
            raise RegistryError(f"Image {strangers[0]!r} is not in category {category.id}: leave it out.")
        targets = {each: draft.category(each).id for each in set(self.assignment.values())}
        if category.id in targets.values():
            raise RegistryError(f"Category {category.id} is being retired: give its images another one.")
        return {row: targets[self.assignment[key]] for key, row in images.items()}


def _nearest_first(draft: Draft, category: Category) -> list[int]:
    """Ids of the other active categories, by the cosine of their prototype and this one's."""
    others = [each for each in draft.not_retired() if each.active and each.id != category.id]
    own, *rest = unit(draft.vectors([category, *others]))
    cosines = {each.id: float(vector @ own) for each, vector in zip(others, rest, strict=True)}
    return sorted(cosines, key=lambda each: -cosines[each])


def _merged_name(survivor: Category, others: list[Category]) -> str:
    if survivor.known or survivor.named:
        return survivor.name
    return next((each.name for each in others if each.named), survivor.name)


@dataclass(frozen=True, eq=False)
class Move(Edit):
    """Put images into another category or into none.

    Attributes:
        images: their keys.
        to: the category, to which they are pinned; `None` takes them out of theirs and keeps them out of it.
        prototypes: new means ``(D,)`` of categories whose images changed, by id; the others keep theirs.
    """

    kind: ClassVar[str] = "move"
    images: Sequence[str]
    to: int | None
    prototypes: Mapping[int, ArrayLike] = field(default_factory=dict, metadata={"vector": True})

    def apply(self, draft: Draft) -> None:
        """See `Edit.apply`."""
        images = draft.images(self.images)
        to = None if self.to is None else draft.category(self.to).id
        draft.look(images)
        left = draft.values_of("category", images.values())
        draft.place(images.values(), to, pin=to is not None)
        if to is None:
            draft.forbid((row, home) for row, home in left.items() if home is not None)
        draft.set_prototypes(self.prototypes)
        draft.settle_links(images.values())


@dataclass(frozen=True, eq=False)
class Sort(Edit):
    """Put images into several categories in one step, or leave them there.

    Attributes:
        images: their keys.
        to: the category of each, as in `Move`.
        prototypes: the same.
    """

    kind: ClassVar[str] = "sort"
    images: Sequence[str]
    to: Sequence[int | None]
    prototypes: Mapping[int, ArrayLike] = field(default_factory=dict, metadata={"vector": True})

    def apply(self, draft: Draft) -> None:
        """See `Edit.apply`."""
        if len(draft.images(self.images)) != len(self.to):
            raise RegistryError(f"Expected a category for each of {len(self.images)} images, each once.")
        for target in dict.fromkeys(self.to):
            mine = [key for key, each in zip(self.images, self.to, strict=True) if each == target]
            Move(mine, target).apply(draft)
        draft.set_prototypes(self.prototypes)


ASIDE = "set aside"  # name of the category of single images


@dataclass(frozen=True)
class SetAside(Edit):
    """Say that the images of a discovered category are nothing to find; they are pinned to it.

    It is no category of the result any more. Later images that are like it come to it by themselves.

    Attributes:
        category: its id.
    """

    kind: ClassVar[str] = "set_aside"
    category: int

    def apply(self, draft: Draft) -> None:
        """See `Edit.apply`."""
        category = draft.category(self.category)
        if category.known or category.aside:
            why = (
                "was labelled at stage 0: set its images aside" if category.known else "is set aside already"
            )
            raise RegistryError(f"Category {category.id} {why}.")
        draft.change(category.id, state=CategoryState.ASIDE, dormant=False)
        members = draft.members_of(category.id)
        draft.place(members, category.id, pin=True)
        draft.settle_links(members)


@dataclass(frozen=True, eq=False)
class SetImagesAside(Edit):
    """Say that images are nothing to find, whatever category they are in.

    They go to one category, called "set aside", that holds all such images. These need not be alike, so its prototype
    is that of the first one alone, and hardly anything else comes to it by itself.

    Attributes:
        images: their keys.
        prototype: unit feature of one of them ``(D,)``, for the category if it has to be made.
        prototypes: new means of categories that lost some of them, by id; the others keep theirs.
    """

    kind: ClassVar[str] = "set_images_aside"
    images: Sequence[str]
    prototype: ArrayLike | None = field(default=None, metadata={"vector": True})
    prototypes: Mapping[int, ArrayLike] = field(default_factory=dict, metadata={"vector": True})

    def apply(self, draft: Draft) -> None:
        """See `Edit.apply`."""
        images = draft.images(self.images)
        aside = {each.id: each.name for each in draft.not_retired() if each.aside}
        place = next((each for each, name in aside.items() if name == ASIDE), None)
        if place is None:
            if self.prototype is None:
                raise RegistryError("None of these images has features here: discover them again first.")
            place = draft.new_category(born=min(draft.values_of("stage", images.values()).values()))
            draft.set_prototype(place, self.prototype)
            draft.change(place, name=draft.free_name(ASIDE), state=CategoryState.ASIDE)
        draft.set_prototypes(self.prototypes)
        draft.look(images)
        homes = draft.values_of("category", images.values())
        for target in {*aside, place}:
            draft.place(
                [row for row, home in homes.items() if (home if home in aside else place) == target],
                target,
                pin=True,
            )
        draft.settle_links(images.values())


@dataclass(frozen=True)
class TakeBack(Edit):
    """Say that a category that was set aside is one after all; what is pinned to it stays so.

    Attributes:
        category: its id.
    """

    kind: ClassVar[str] = "take_back"
    category: int

    def apply(self, draft: Draft) -> None:
        """See `Edit.apply`."""
        category = draft.category(self.category)
        if not category.aside:
            raise RegistryError(f"Category {category.id} is not set aside, so there is nothing to take back.")
        draft.change(category.id, state=CategoryState.DISCOVERED, dormant=category.size == 0)


@dataclass(frozen=True)
class Answer(Edit):
    """Answer "same or different?" about two images, for the next grouping.

    Attributes:
        first: key of an image.
        second: key of another.
        same: whether they show one category; `None` takes an earlier answer back.
    """

    kind: ClassVar[str] = "answer"
    first: str
    second: str
    same: bool | None

    def apply(self, draft: Draft) -> None:
        """See `Edit.apply`."""
        images = draft.images([self.first, self.second])
        if len(images) != 2:
            raise RegistryError(f"Expected two images, got {self.first!r} twice.")
        draft.answer(images[min(images)], images[max(images)], self.same)
        constraints_in(draft.store, only_linked=True)


@dataclass(frozen=True)
class Confirm(Edit):
    """Say that images are where they belong, which pins them.

    Attributes:
        images: their keys; each must have a category.
        seen: those of them that the person has looked at, where that is not all: pages that a search for the first
            wrong one has left out.
    """

    kind: ClassVar[str] = "confirm"
    images: Sequence[str]
    seen: Sequence[str] | None = None

    def apply(self, draft: Draft) -> None:
        """See `Edit.apply`."""
        images = draft.images(self.images)
        homes = draft.values_of("category", images.values())
        if homeless := [key for key, row in images.items() if homes[row] is None]:
            raise RegistryError(f"Image {homeless[0]!r} is in no category: move it into one first.")
        seen = images.keys() if self.seen is None else set(self.seen)
        draft.look({key: row for key, row in images.items() if key in seen})
        for home in set(homes.values()):
            draft.place([row for row, each in homes.items() if each == home], home, pin=True)
        draft.settle_links(images.values())


@dataclass(frozen=True)
class Forget(Edit):
    """Forget images that are there no more, with all that was said of them; prototypes stay.

    Attributes:
        images: their keys.
    """

    kind: ClassVar[str] = "forget"
    images: Sequence[str]

    def apply(self, draft: Draft) -> None:
        """See `Edit.apply`."""
        rows = [(row,) for row in draft.images(self.images).values()]
        draft.drop_answers(row for (row,) in rows)
        draft.store.run_each("delete from forbidden where image = ?", rows)
        draft.store.run_each("delete from image where id = ?", rows)
