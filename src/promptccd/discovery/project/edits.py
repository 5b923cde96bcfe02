"""Corrections of categories: each edit is a function with its checks, and is written once."""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Concatenate, ParamSpec
from unicodedata import normalize

import numpy as np
from numpy.typing import ArrayLike

from promptccd.discovery.project.categories import CategoryState, check_name, free_name
from promptccd.discovery.project.changes import LogEntry
from promptccd.discovery.project.observe import unit, weighted_mean
from promptccd.discovery.project.registry import CategoryRegistry
from promptccd.disk import plain_json
from promptccd.errors import RegistryError

ASIDE = "set aside"  # name of the category of single images
_NOBODY: Mapping[str, int] = {}
Arguments = ParamSpec("Arguments")


def edit(
    function: Callable[Concatenate[CategoryRegistry, Arguments], None],
) -> Callable[..., LogEntry]:
    """Make a function an entry of the log, whole or not at all; earlier undone edits can no longer be redone.

    It raises a `RegistryError` where the edit is not possible; nothing changed then.
    """
    signature = inspect.signature(function)

    @functools.wraps(function)
    def logged(registry: CategoryRegistry, *arguments: Any, **named: Any) -> LogEntry:
        bound = signature.bind(registry, *arguments, **named)
        bound.apply_defaults()
        _, *values = bound.arguments.items()
        what = {
            name: value for name, value in values if "prototype" not in name
        }  # the registry has the vectors
        with registry.entry(function.__name__, {"kind": function.__name__} | what):
            function(*bound.args, **bound.kwargs)
        newest = registry.newest
        assert newest is not None
        return newest

    return logged


@edit
def rename(rows: CategoryRegistry, category: int, name: str) -> None:
    """Give a category a name, see `check_name`.

    Names are unique, also without regard to composed accents.
    """
    _rename(rows, category, name)


def _rename(rows: CategoryRegistry, category: int, name: str | None) -> None:
    if name is None:
        return
    name, renamed = check_name(name), rows.category(category)
    for other, called in rows.names().items():
        if other != renamed.id and normalize("NFC", called) == normalize("NFC", name):
            raise RegistryError(
                f"Category {other} is called {name!r} already: choose another name, or merge the two."
            )
    rows.change(renamed.id, name=name)


@edit
def merge(rows: CategoryRegistry, categories: Sequence[int], name: str | None = None) -> None:
    """Join two categories or more.

    The smallest id survives, and so do known categories. The other categories are retired and remember the survivor,
    whose prototype becomes the mean of all, weighted by their numbers of images. Without a chosen name, a name that a
    person gave wins over a default name. An image that was removed from a merged category stays out of the survivor,
    except images that are in a merged category now: the merge overrides the earlier ban.
    """
    merged = [rows.category(each) for each in sorted(set(categories))]
    if len(merged) < 2:
        raise RegistryError(f"Expected at least two categories to merge, got {list(categories)}.")
    if len({each.aside for each in merged}) > 1:
        raise RegistryError(
            f"Of the categories {[each.id for each in merged]} only some are ignored: ignore all of them, or "
            "restore the ignored ones."
        )
    (survivor, *others), run = merged, rows.store.run
    ids, gone = (", ".join(str(each.id) for each in some) for some in (merged, others))
    run(  # answers "different" between the categories; answers within a category stay
        "delete from link where (select count(distinct category) from image where id in (a, b) and "
        f"category in ({ids})) = 2"
    )
    rows.choose_members([each.id for each in others])
    rows.place(survivor.id, pin=None)
    run(
        f"insert or ignore into forbidden select image, ? from forbidden where category in ({gone})",
        survivor.id,
    )
    run(f"delete from forbidden where category in ({gone})")
    run(
        "delete from forbidden where category = ?1 and image in (select id from image where category = ?1)",
        survivor.id,
    )
    matrix, sizes = rows.prototypes_of(merged).matrix, np.array([each.size for each in merged])
    for each in others:
        rows.change(each.id, state=CategoryState.RETIRED, merged_into=survivor.id, dormant=False)
    has_name = survivor.known or survivor.named
    rows.change(
        survivor.id,
        name=survivor.name if has_name else next((each.name for each in others if each.named), survivor.name),
        vector=rows.append_prototype(weighted_mean(matrix, sizes)),
        earlier=plain_json([*survivor.earlier_rows, survivor.prototype_row]).decode(),
    )
    _rename(rows, survivor.id, name)


@edit
def split(
    rows: CategoryRegistry,
    category: int,
    images: Sequence[str],
    part_prototype: ArrayLike,
    rest_prototype: ArrayLike,
    name: str | None = None,
) -> None:
    """Make some of a category's images a category of their own, with a new id; they are pinned to it.

    At least one image stays. The prototypes are the means ``(D,)`` of the unit features of both parts; without a name,
    the part gets the default name.
    """
    whole, keys = rows.category(category), rows.choose(images)
    categories_of = rows.categories_of(keys)
    if strangers := [key for key in keys if categories_of.get(key) != whole.id]:
        raise RegistryError(
            f"{len(strangers)} of the {len(keys)} images are not in category {whole.id}, the first is "
            f"{strangers[0]!r}: select images of that category only."
        )
    if len(keys) == whole.size:
        raise RegistryError(
            f"All {whole.size} images of category {whole.id} were selected: leave at least one image, or rename it."
        )
    _gather(rows, part_prototype, {whole.id: rest_prototype}, name)


@edit
def gather(
    rows: CategoryRegistry,
    images: Sequence[str],
    prototype: ArrayLike,
    prototypes: Mapping[int, ArrayLike] | None = None,
    name: str | None = None,
) -> None:
    """Make images of any categories a category of their own, with a new id; they are pinned to it.

    `prototype` is the mean ``(D,)`` of their unit features, and `prototypes` are new means of categories that
    lost images, by id; other categories keep their prototypes.
    """
    rows.choose(images)
    _gather(rows, prototype, prototypes, name, rows.next_review())


def _gather(
    rows: CategoryRegistry,
    prototype: ArrayLike,
    prototypes: Mapping[int, ArrayLike] | None,
    name: str | None,
    review: int | None = None,
) -> None:
    """Make the chosen images a category."""
    identity = rows.new_category(born=rows.chosen_born())
    rows.set_prototypes({identity: prototype})
    rows.set_prototypes(prototypes)
    _rename(rows, identity, name)
    rows.place(identity, pin=True, review=review)
    rows.drop_contradicted_answers()


@edit
def not_a_category(
    rows: CategoryRegistry,
    category: int,
    assignment: Mapping[str, int] = _NOBODY,
    rest_to_nearest: bool = False,
) -> None:
    """Retire a discovered category that is wrong; later groupings do not bring it back.

    Its images go to the categories of `assignment`, by key, and are not pinned, because no person reviewed each. With
    `rest_to_nearest` the remaining images go to the category with the nearest prototype, also if a person removed them
    from their assigned category; otherwise they become unassigned.
    """
    found = rows.category(category)
    if found.known:
        raise RegistryError(
            f"Category {found.id} was labelled at stage 0: rename it, merge it or move its images."
        )
    members = rows.members_of(found.id)
    if strangers := sorted(assignment.keys() - set(members)):
        raise RegistryError(f"Image {strangers[0]!r} is not in category {found.id}: leave it out.")
    given = {each: rows.category(each).id for each in set(assignment.values())}
    if found.id in given.values():
        raise RegistryError(f"Category {found.id} is being retired: give its images another category.")
    nearest, banned = _nearest_first(rows, found.id) if rest_to_nearest else [], rows.forbidden
    rows.choose_members([found.id])
    rows.drop_looks()  # they are unreviewed in the new category
    rows.store.run("insert or ignore into forbidden select image, ? from chosen", found.id)
    targets = dict[int | None, list[str]]()
    for key in members:
        wanted = [*([given[assignment[key]]] if key in assignment else []), *nearest]
        target = next((each for each in wanted if each not in banned.get(key, ())), None)
        targets.setdefault(target, []).append(key)
    for target, images in targets.items():
        rows.choose(images)
        rows.place(target)
    rows.change(found.id, state=CategoryState.RETIRED, dormant=False)


def _nearest_first(rows: CategoryRegistry, category: int) -> list[int]:
    """Ids of the other active categories, by the cosine of their prototype and this one's."""
    others = [each for each in rows.active if each.id != category]
    own, *rest = unit(rows.prototypes_of([rows.category(category), *others]).matrix)
    cosines = {each.id: float(vector @ own) for each, vector in zip(others, rest, strict=True)}
    return sorted(cosines, key=lambda each: -cosines[each])


@edit
def move(
    rows: CategoryRegistry,
    images: Sequence[str],
    to: int | None,
    prototypes: Mapping[int, ArrayLike] | None = None,
) -> None:
    """Put images into a category, to which they are pinned, or with `None` out of theirs, which they are kept out of.

    `prototypes` are new means ``(D,)`` of categories whose images changed, by id; other categories keep their
    prototypes.
    """
    _put(rows, dict.fromkeys(images, to))
    rows.set_prototypes(prototypes)


def _put(rows: CategoryRegistry, categories_of: Mapping[str, int | None]) -> None:
    """Put each image into its category, or out of its category; a person reviewed each."""
    review = rows.next_review()
    for category in dict.fromkeys(categories_of.values()):
        rows.choose([key for key, each in categories_of.items() if each == category])
        if category is None:
            rows.store.run(
                "insert or ignore into forbidden select id, category from image where id in chosen and category >= 0"
            )
        rows.place(
            None if category is None else rows.category(category).id, pin=category is not None, review=review
        )
    rows.choose(categories_of)
    rows.drop_contradicted_answers()


@edit
def sort(
    rows: CategoryRegistry,
    images: Sequence[str],
    to: Sequence[int | None],
    prototypes: Mapping[int, ArrayLike] | None = None,
) -> None:
    """Put each image into the category at its place in `to`, as `move` does, all in one step."""
    if not len(rows.choose(images)) == len(images) == len(to):
        raise RegistryError(f"Expected a category for each of {len(images)} images, each once.")
    _put(rows, dict(zip(images, to, strict=True)))
    rows.set_prototypes(prototypes)


@edit
def set_aside(rows: CategoryRegistry, category: int) -> None:
    """Take a discovered category out of the result, since it is nothing to find; its images are pinned to it.

    Later images that are like it come to it by themselves.
    """
    found = rows.category(category)
    if found.known or found.aside:
        why = "was labelled at stage 0: set its images aside" if found.known else "is set aside already"
        raise RegistryError(f"Category {found.id} {why}.")
    rows.change(found.id, state=CategoryState.ASIDE, dormant=False)
    rows.choose_members([found.id])
    rows.place(found.id, pin=True)
    rows.drop_contradicted_answers()


@edit
def set_images_aside(
    rows: CategoryRegistry,
    images: Sequence[str],
    prototype: ArrayLike | None = None,
    prototypes: Mapping[int, ArrayLike] | None = None,
) -> None:
    """Take images out of the result, whatever category they are in.

    They go to one category, called "set aside", that contains all such images. These need not be alike, so its
    prototype is that of the first one alone, `prototype` ``(D,)``, and hardly anything else comes to it by itself.
    `prototypes` are new means of categories that lost some of the images, by id.
    """
    keys, aside = rows.choose(images), {each.id: each.name for each in rows.aside}
    place = next((each for each, name in aside.items() if name == ASIDE), None)
    if place is None:
        if prototype is None:
            raise RegistryError("None of these images has features here: discover them again first.")
        place = rows.new_category(born=rows.chosen_born())
        rows.set_prototypes({place: prototype})
        name = free_name(ASIDE, rows.names().values())
        rows.change(place, name=name, state=CategoryState.ASIDE)
    rows.set_prototypes(prototypes)
    categories_of = rows.categories_of(keys)
    _put(rows, {key: categories_of[key] if categories_of.get(key) in aside else place for key in keys})


@edit
def restore(rows: CategoryRegistry, category: int) -> None:
    """Restore an ignored category; its pinned images stay pinned."""
    found = rows.category(category)
    if not found.aside:
        raise RegistryError(f"Category {found.id} is not set aside, so there is nothing to take back.")
    rows.change(found.id, state=CategoryState.DISCOVERED, dormant=found.size == 0)


@edit
def answer(rows: CategoryRegistry, first: str, second: str) -> None:
    """Say that two images are of two categories; later groupings keep them apart."""
    if len(rows.choose([first, second])) != 2:
        raise RegistryError(f"Expected two images, got {first!r} twice.")
    if rows.store.one(
        "select 1 from image where id in chosen and pinned group by category having count(*) = 2"
    ):
        raise RegistryError("A person put both images into one category: move an image first.")
    rows.store.run("insert or ignore into link select min(image), max(image) from chosen")


@edit
def confirm(rows: CategoryRegistry, images: Sequence[str]) -> None:
    """Pin images where they are: a person reviewed each."""
    keys = rows.choose(images)
    categories_of = rows.categories_of(keys)
    if homeless := [key for key in keys if key not in categories_of]:
        raise RegistryError(f"Image {homeless[0]!r} is in no category: move it into one first.")
    _put(rows, categories_of)


@edit
def forget(rows: CategoryRegistry, images: Sequence[str]) -> None:
    """Delete missing images, with all corrections of them; prototypes stay."""
    rows.choose(images)
    rows.place(None)
    rows.store.run("delete from link where a in chosen or b in chosen")
    rows.store.run("delete from forbidden where image in chosen")
    rows.store.run("delete from image where id in chosen")
