"""What people correct about categories: each edit is a function of statements with its checks, and is written once."""

import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Concatenate, Generic, ParamSpec
from unicodedata import normalize

import numpy as np
from numpy.typing import ArrayLike

from promptccd.disk import plain_json
from promptccd.errors import RegistryError
from promptccd.registry.categories import Category, CategoryState, check_name
from promptccd.registry.draft import Draft, constraints_in
from promptccd.registry.observe import unit, weighted_mean

ASIDE = "set aside"  # name of the category of single images
_NOBODY: Mapping[str, int] = {}
Arguments = ParamSpec("Arguments")


@dataclass(frozen=True, eq=False)
class Edit:
    """An edit that can be made.

    Attributes:
        kind: its name in the log.
        values: its arguments by name.
        function: writes it into a draft, or raises a `RegistryError` that says why the registry does not allow it.
    """

    kind: str
    values: Mapping[str, Any]
    function: Callable[..., None]

    def apply(self, draft: Draft) -> None:
        """Write the new values into a draft of the registry."""
        self.function(draft, **self.values)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, without vectors: the registry's prototypes are those."""
        values = {name: _plain(value) for name, value in self.values.items() if "prototype" not in name}
        return {"kind": self.kind, **values}


class EditKind(Generic[Arguments]):
    """A kind of edits; called with the arguments of its function, it gives an `Edit`.

    Attributes:
        kind: its name in the log.
    """

    def __init__(self, function: Callable[Concatenate[Draft, Arguments], None]):
        self.kind = re.sub(r"(?<=[a-zA-Z])(?=[A-Z])", "_", function.__name__).lower()
        self._function, self._signature = function, inspect.signature(function)
        self.__doc__ = function.__doc__

    def __call__(self, *arguments: Arguments.args, **named: Arguments.kwargs) -> Edit:
        """An edit of this kind."""
        bound = self._signature.bind(None, *arguments, **named)
        bound.apply_defaults()
        _, *names = self._signature.parameters
        return Edit(self.kind, {name: bound.arguments[name] for name in names}, self._function)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset | np.ndarray):
        return [_plain(item) for item in value]
    return value.item() if isinstance(value, np.generic) else value


@EditKind
def Rename(draft: Draft, category: int, name: str) -> None:
    """Give a category a name, see `check_name`.

    No two categories share one, nor differ only in whether an accent is a character of its own.
    """
    _rename(draft, category, name)


def _rename(draft: Draft, category: int, name: str) -> None:
    name, renamed = check_name(name), draft.category(category)
    for other, called in draft.names().items():
        if other != renamed.id and normalize("NFC", called) == normalize("NFC", name):
            raise RegistryError(
                f"Category {other} is called {name!r} already: choose another name, or merge the two."
            )
    draft.change(renamed.id, name=name)


@EditKind
def Merge(draft: Draft, categories: Sequence[int], name: str | None = None) -> None:
    """Join two categories or more.

    The one with the least id survives, so a known one does. The others are retired and remember the survivor, whose
    prototype becomes the mean of all, weighted by their numbers of images. Without a chosen name, a name that a person
    gave wins over a default one. An image that was taken out of one of them stays out of the survivor, except images
    that are in a merged category now: the merge overrides the earlier ban.
    """
    merged = [draft.category(each) for each in sorted(set(categories))]
    if len(merged) < 2:
        raise RegistryError(f"Expected at least two categories to merge, got {list(categories)}.")
    if len({each.aside for each in merged}) > 1:
        raise RegistryError(
            f"Of the categories {[each.id for each in merged]} only some are set aside: set the others aside too, "
            "or take those back."
        )
    (survivor, *others), ids = merged, ", ".join(str(each.id) for each in merged)
    draft.store.run(  # answers "different" between the categories; those inside one of them stay
        "delete from link where not same and (select count(distinct category) from image where id in (a, b) and "
        f"category in ({ids})) = 2"
    )
    members = [row for each in others for row in draft.members_of(each.id)]
    pinned = draft.values_of("pinned", members)
    for is_pinned in (0, 1):
        draft.place([row for row in members if pinned[row] == is_pinned], survivor.id, pin=bool(is_pinned))
    kept_out = _carry_bans(draft, survivor.id, ids)
    mean = weighted_mean(draft.vectors(merged), np.array([each.size for each in merged]))
    for each in others:
        draft.change(each.id, state=CategoryState.RETIRED, merged_into=survivor.id, dormant=False)
    named = survivor.name if survivor.known or survivor.named else None
    draft.change(
        survivor.id,
        name=named or next((each.name for each in others if each.named), survivor.name),
        vector=draft.append_prototype(mean),
        earlier=plain_json([*survivor.earlier_rows, survivor.prototype_row]).decode(),
    )
    if name is not None:
        _rename(draft, survivor.id, name)
    draft.settle_links([*members, *kept_out])


def _carry_bans(draft: Draft, survivor: int, merged: str) -> list[int]:
    """Let bans from any of the categories hold for the survivor; returns the images that it bans now."""
    rows = draft.store.all(
        "select distinct image, image.category from forbidden join image on image.id = forbidden.image "
        f"where forbidden.category in ({merged})"
    )
    draft.store.run(f"delete from forbidden where category in ({merged})")
    kept_out = [row for row, home in rows if home != survivor]
    draft.forbid((row, survivor) for row in kept_out)
    return kept_out


@EditKind
def Split(
    draft: Draft,
    category: int,
    images: Sequence[str],
    part_prototype: ArrayLike,
    rest_prototype: ArrayLike,
    name: str | None = None,
) -> None:
    """Make some of a category's images a category of their own, with a new id; they are pinned to it.

    At least one image stays. The prototypes are the means ``(D,)`` of the unit features of both parts; without a name,
    the part gets the default one.
    """
    whole, part = draft.category(category), draft.images(images)
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
    _gather(draft, part.values(), part_prototype, {whole.id: rest_prototype}, name)


@EditKind
def Gather(
    draft: Draft,
    images: Sequence[str],
    prototype: ArrayLike,
    prototypes: Mapping[int, ArrayLike] | None = None,
    name: str | None = None,
) -> None:
    """Make images of any categories a category of their own, with a new id; they are pinned to it.

    `prototype` is the mean ``(D,)`` of their unit features, and `prototypes` are new means of categories that lost
    some of them, by id; the others keep theirs.
    """
    rows = draft.images(images)
    draft.look(rows)
    _gather(draft, rows.values(), prototype, prototypes, name)


def _gather(
    draft: Draft,
    rows: Iterable[int],
    prototype: ArrayLike,
    prototypes: Mapping[int, ArrayLike] | None,
    name: str | None,
) -> None:
    rows = list(rows)
    identity = draft.new_category(born=min(draft.values_of("stage", rows).values()))
    draft.set_prototype(identity, prototype)
    draft.set_prototypes(prototypes)
    if name is not None:
        _rename(draft, identity, name)
    draft.place(rows, identity, pin=True)
    draft.settle_links(rows)


@EditKind
def NotACategory(
    draft: Draft, category: int, assignment: Mapping[str, int] = _NOBODY, rest_to_nearest: bool = False
) -> None:
    """Retire a discovered category that is none; later groupings do not bring it back.

    Its images go to the categories of `assignment`, by key, and are not pinned, because nobody reviewed each. With
    `rest_to_nearest` the others go to the category with the nearest prototype, as do those that a person took out of
    the category they are given; otherwise they become unassigned.
    """
    found = draft.category(category)
    if found.known:
        raise RegistryError(
            f"Category {found.id} was labelled at stage 0, it is one: rename it, merge it or move its images."
        )
    rows = draft.members_of(found.id)
    given = _given(draft, found, rows, assignment)
    nearest = _nearest_first(draft, found) if rest_to_nearest else []
    banned = dict[int, set[int]]()
    for row, other in draft.store.all(
        "select image, category from forbidden where image in (select id from image where category = ?)",
        found.id,
    ):
        banned.setdefault(row, set()).add(other)
    targets = dict[int | None, list[int]]()
    for row in rows:
        wanted = [*([given[row]] if row in given else []), *nearest]
        target = next((each for each in wanted if each not in banned.get(row, ())), None)
        targets.setdefault(target, []).append(row)
    for target, images in targets.items():
        draft.place(images, target)
    draft.forbid((row, found.id) for row in rows)
    draft.drop_looks(rows)  # nobody has reviewed them where they are now
    draft.change(found.id, state=CategoryState.RETIRED, dormant=False)


def _given(
    draft: Draft, category: Category, members: Sequence[int], assignment: Mapping[str, int]
) -> dict[int, int]:
    """The category that images are given, by row."""
    images = draft.images(assignment) if assignment else {}
    if strangers := sorted(key for key, row in images.items() if row not in set(members)):
        raise RegistryError(f"Image {strangers[0]!r} is not in category {category.id}: leave it out.")
    targets = {each: draft.category(each).id for each in set(assignment.values())}
    if category.id in targets.values():
        raise RegistryError(f"Category {category.id} is being retired: give its images another one.")
    return {row: targets[assignment[key]] for key, row in images.items()}


def _nearest_first(draft: Draft, category: Category) -> list[int]:
    """Ids of the other active categories, by the cosine of their prototype and this one's."""
    others = [each for each in draft.not_retired() if each.active and each.id != category.id]
    own, *rest = unit(draft.vectors([category, *others]))
    cosines = {each.id: float(vector @ own) for each, vector in zip(others, rest, strict=True)}
    return sorted(cosines, key=lambda each: -cosines[each])


@EditKind
def Move(
    draft: Draft,
    images: Sequence[str],
    to: int | None,
    prototypes: Mapping[int, ArrayLike] | None = None,
) -> None:
    """Put images into a category, to which they are pinned, or with `None` out of theirs, which they are kept out of.

    `prototypes` are new means ``(D,)`` of categories whose images changed, by id; the others keep theirs.
    """
    rows = _move(draft, images, to)
    draft.set_prototypes(prototypes)
    draft.settle_links(rows)


def _move(draft: Draft, keys: Sequence[str], to: int | None) -> list[int]:
    images = draft.images(keys)
    target = None if to is None else draft.category(to).id
    draft.look(images)
    left = draft.values_of("category", images.values())
    draft.place(images.values(), target, pin=target is not None)
    if target is None:
        draft.forbid((row, home) for row, home in left.items() if home is not None)
    return list(images.values())


@EditKind
def Sort(
    draft: Draft,
    images: Sequence[str],
    to: Sequence[int | None],
    prototypes: Mapping[int, ArrayLike] | None = None,
) -> None:
    """Put each image into the category at its place in `to`, as `Move` does, all in one step."""
    if len(draft.images(images)) != len(to):
        raise RegistryError(f"Expected a category for each of {len(images)} images, each once.")
    for target in dict.fromkeys(to):
        mine = [key for key, each in zip(images, to, strict=True) if each == target]
        draft.settle_links(_move(draft, mine, target))
    draft.set_prototypes(prototypes)


@EditKind
def SetAside(draft: Draft, category: int) -> None:
    """Take a discovered category out of the result, since it is nothing to find; its images are pinned to it.

    Later images that are like it come to it by themselves.
    """
    found = draft.category(category)
    if found.known or found.aside:
        why = "was labelled at stage 0: set its images aside" if found.known else "is set aside already"
        raise RegistryError(f"Category {found.id} {why}.")
    draft.change(found.id, state=CategoryState.ASIDE, dormant=False)
    members = draft.members_of(found.id)
    draft.place(members, found.id, pin=True)
    draft.settle_links(members)


@EditKind
def SetImagesAside(
    draft: Draft,
    images: Sequence[str],
    prototype: ArrayLike | None = None,
    prototypes: Mapping[int, ArrayLike] | None = None,
) -> None:
    """Take images out of the result, whatever category they are in.

    They go to one category, called "set aside", that contains all such images. These need not be alike, so its
    prototype is that of the first one alone, `prototype` ``(D,)``, and hardly anything else comes to it by itself.
    `prototypes` are new means of categories that lost some of the images, by id.
    """
    rows = draft.images(images)
    aside = {each.id: each.name for each in draft.not_retired() if each.aside}
    place = next((each for each, name in aside.items() if name == ASIDE), None)
    if place is None:
        if prototype is None:
            raise RegistryError("None of these images has features here: discover them again first.")
        place = draft.new_category(born=min(draft.values_of("stage", rows.values()).values()))
        draft.set_prototype(place, prototype)
        draft.change(place, name=draft.free_name(ASIDE), state=CategoryState.ASIDE)
    draft.set_prototypes(prototypes)
    draft.look(rows)
    homes = draft.values_of("category", rows.values())
    for target in {*aside, place}:
        mine = [row for row, home in homes.items() if (home if home in aside else place) == target]
        draft.place(mine, target, pin=True)
    draft.settle_links(rows.values())


@EditKind
def TakeBack(draft: Draft, category: int) -> None:
    """Let a category that was set aside be one again; what is pinned to it stays so."""
    found = draft.category(category)
    if not found.aside:
        raise RegistryError(f"Category {found.id} is not set aside, so there is nothing to take back.")
    draft.change(found.id, state=CategoryState.DISCOVERED, dormant=found.size == 0)


@EditKind
def Answer(draft: Draft, first: str, second: str, same: bool | None) -> None:
    """Answer whether two images are of one category, for the next grouping; `None` removes an earlier answer."""
    images = draft.images([first, second])
    if len(images) != 2:
        raise RegistryError(f"Expected two images, got {first!r} twice.")
    draft.answer(images[min(images)], images[max(images)], same)
    constraints_in(draft.store, only_linked=True)


@EditKind
def Confirm(draft: Draft, images: Sequence[str]) -> None:
    """Pin images where they are: a person reviewed each."""
    rows = draft.images(images)
    homes = draft.values_of("category", rows.values())
    if homeless := [key for key, row in rows.items() if homes[row] is None]:
        raise RegistryError(f"Image {homeless[0]!r} is in no category: move it into one first.")
    draft.look(rows)
    for home in set(homes.values()):
        draft.place([row for row, each in homes.items() if each == home], home, pin=True)
    draft.settle_links(rows.values())


@EditKind
def Forget(draft: Draft, images: Sequence[str]) -> None:
    """Delete images that are there no more, with all that was said of them; prototypes stay."""
    rows = [(row,) for row in draft.images(images).values()]
    draft.drop_answers(row for (row,) in rows)
    draft.store.run_each("delete from forbidden where image = ?", rows)
    draft.store.run_each("delete from image where id = ?", rows)
