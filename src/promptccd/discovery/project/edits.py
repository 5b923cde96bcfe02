"""Corrections of categories: each edit is a function with its checks, and is written once.

`CategoryRegistry.features` gives the features of images: categories that gain or lose images get the mean of their
images as a prototype. A category of an earlier stage, without features, or that gains images of a dissolved category
keeps its prototype.
"""

import functools
import inspect
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from types import NoneType
from typing import Any, Concatenate, NamedTuple, ParamSpec
from unicodedata import normalize

import numpy as np
from numpy.typing import ArrayLike

from promptccd.discovery.project.categories import CategoryState, check_name, free_name
from promptccd.discovery.project.observe import weighted_mean
from promptccd.discovery.project.registry import CategoryRegistry
from promptccd.discovery.project.rows import FREE
from promptccd.discovery.project.store import LogEntry, plain_json
from promptccd.errors import RegistryError

IGNORED_NAME = "set aside"  # name of the category of single images
Arguments = ParamSpec("Arguments")


class Kind(Enum):
    """The kinds of arguments of corrections: how a page calls each, whether it is a list, and types in JSON."""

    CATEGORY = "the number of a group", False, (int,)
    CATEGORY_OR_NONE = "the number of a group, or null", False, (int, NoneType)
    CATEGORIES = "a list of numbers of groups", True, (int,)
    TARGETS = "a list of numbers of groups, or null", True, (int, NoneType)  # one for each of the images
    IMAGE = "the number of a photograph", False, (int,)  # a key here, a row on a page
    IMAGES = "a list of numbers of photographs", True, (int,)
    NAME = "a text", False, (str,)
    FLAG = "true or false", False, (bool,)
    ENTRY = "a whole number", False, (int,)  # of the log


# The corrections that anybody who has a project can make, methods of `Project`: by name, in the order of the
# declarations, the kind of every argument, and whether it is required.
CORRECTIONS: dict[str, dict[str, tuple[Kind, bool]]] = {}


def edit(
    *kinds: Kind,
) -> Callable[
    [Callable[Concatenate[CategoryRegistry, Arguments], Mapping[str, Any] | None]],
    Callable[Concatenate[CategoryRegistry, Arguments], LogEntry],
]:
    """Make a function a correction, and an entry of the log, whole or not at all; undone edits can no longer be redone.

    It raises a `RegistryError` where the edit is not possible; nothing changed then. The log contains the arguments,
    and the values that the function returns, if any. `kinds` are those of the arguments.
    """

    def declare(
        function: Callable[Concatenate[CategoryRegistry, Arguments], Mapping[str, Any] | None],
    ) -> Callable[Concatenate[CategoryRegistry, Arguments], LogEntry]:
        signature = inspect.signature(function)

        @functools.wraps(function)
        def logged(rows: CategoryRegistry, *arguments: Arguments.args, **named: Arguments.kwargs) -> LogEntry:
            bound = signature.bind(rows, *arguments, **named)
            bound.apply_defaults()
            _, *values = bound.arguments.items()
            what = {"kind": function.__name__} | dict(values)
            what.pop("prototype", None)  # the registry has it
            made = rows.record(function.__name__, what, lambda: function(rows, *arguments, **named))
            assert made is not None
            return made

        _, *own = list(signature.parameters.values())[: len(kinds) + 1]
        CORRECTIONS[function.__name__] = {
            each.name: (kind, each.default is each.empty) for each, kind in zip(own, kinds, strict=True)
        }
        return logged

    return declare


def _refit(rows: CategoryRegistry, categories: Iterable[int | None], features: Any = None) -> None:
    """Give categories whose images changed the means of their images."""
    those = f"category where {FREE} and id in (select value from json_each(?))"
    (ids,) = rows.numbers(["id"], those, plain_json(list(categories)).decode())
    if len(ids):
        rows.set_prototypes((features or rows.features()).means_of(rows, ids.tolist()))


@edit(Kind.CATEGORY, Kind.NAME)
def rename(rows: CategoryRegistry, category: int, name: str) -> None:
    """Give a category a name, see `check_name`.

    Names are unique, also without regard to composed accents.
    """
    _rename(rows, category, name)


def _rename(rows: CategoryRegistry, category: int, name: str | None) -> None:
    if name is None:
        return
    name, identity = check_name(name), rows.category(category).id
    for other, called in rows.names().items():
        if other != identity and normalize("NFC", called) == normalize("NFC", name):
            raise RegistryError(
                f"Category {other} is called {name!r} already: choose another name, or merge the two."
            )
    rows.run("update category set name = ? where id = ?", name, identity)


@edit(Kind.CATEGORIES, Kind.NAME)
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
            f"Only some of the categories {[each.id for each in merged]} are ignored. Ignore all of them, or restore "
            "the ignored categories."
        )
    (survivor, *others), run = merged, rows.run
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


@edit(Kind.CATEGORY, Kind.IMAGES, Kind.NAME)
def split(
    rows: CategoryRegistry, category: int, images: Sequence[str] | None = None, name: str | None = None
) -> Mapping[str, Any]:
    """Make images of a category a new category, to which they are pinned; by default those that the features suggest.

    At least one image stays. Images without features, such as training images, stay by default. A category of an
    earlier stage keeps its prototype. Without a name, the new category gets the default name.
    """
    whole, kept = rows.category(category), rows.prototypes_of([rows.category(category)]).matrix[0]
    features = rows.features(needed=True)
    members, _ = features.of(rows.members_of(whole.id))
    if not members:
        raise RegistryError(
            f"A split needs features, and there are none of the images of category {category} here. Run promptccd "
            "discover on these images again, or edit its --out folder. Split a stage of a run inside the run."
        )
    if len(members) < 2:
        raise RegistryError(f"Category {category} has {len(members)} images here; it takes two to split it.")
    keys = rows.choose(images or features.smaller_part(members))
    if strangers := [key for key, category_of in keys.items() if category_of != whole.id]:
        raise RegistryError(
            f"{len(strangers)} of the {len(keys)} images are not in category {whole.id}, the first is "
            f"{strangers[0]!r}: select images of that category only."
        )
    if len(keys) == whole.size:
        raise RegistryError(
            f"All {whole.size} images of category {whole.id} were selected: leave at least one image, or rename it."
        )
    part = features.mean(keys)
    _gather(rows, kept if part is None else part, name)
    _refit(rows, [whole.id], features)
    return {"images": list(keys)}


@edit(Kind.IMAGES, Kind.NAME)
def gather(
    rows: CategoryRegistry, images: Sequence[str], name: str | None = None, prototype: ArrayLike | None = None
) -> None:
    """Make images of any categories a category of their own, with a new id; they are pinned to it.

    `prototype` ``(D,)`` is by default the mean of their features; a `RegistryError` reports images without any.
    """
    categories_of = rows.choose(images)
    if prototype is None and (prototype := rows.features().mean(categories_of)) is None:
        raise RegistryError(
            "None of these photographs has features here: run promptccd discover on them again."
        )
    _gather(rows, prototype, name, rows.next_review())
    _refit(rows, categories_of.values())


def _gather(
    rows: CategoryRegistry, prototype: ArrayLike, name: str | None, review: int | None = None
) -> None:
    """Make the chosen images a category."""
    identity = rows.new_category(born=rows.chosen_born())
    rows.set_prototypes({identity: prototype})
    _rename(rows, identity, name)
    rows.place(identity, pin=True, review=review)
    rows.drop_contradicted_answers()


@edit(Kind.CATEGORY, Kind.FLAG)
def dissolve(rows: CategoryRegistry, category: int, *, to_nearest: bool = True) -> None:
    """Retire a discovered category that is wrong; later groupings do not bring it back.

    Each image goes to the nearest other category, if `to_nearest`, that no person took it out of, or becomes
    unassigned; so do images without features. They are not pinned, because no person reviewed each.
    """
    found = rows.category(category)
    if found.known:
        raise RegistryError(
            f"Category {found.id} was labelled at stage 0: rename it, merge it or move its images."
        )
    members, banned = rows.members_of(found.id), rows.forbidden
    others = rows.prototypes_of([each for each in rows.active if each.id != found.id] if to_nearest else [])
    targets: dict[str, int | None] = dict.fromkeys(members)
    kept, points = rows.features().of(members)
    if others.ids and kept:
        # The distances of unit features to prototypes, without what is the same for all prototypes.
        costs = (others.matrix.astype(float) ** 2).sum(1) - 2 * points.astype(float) @ others.matrix.T
        for key, cost in zip(kept, costs, strict=True):
            near = (others.ids[row] for row in cost.argsort(kind="stable").tolist())
            targets[key] = next((each for each in near if each not in banned.get(key, ())), None)
    rows.choose_members([found.id])
    rows.drop_looks()  # they are unreviewed in the new category
    rows.run("insert or ignore into forbidden select image, ? from chosen", found.id)
    for target in dict.fromkeys(targets.values()):
        rows.choose([key for key, each in targets.items() if each == target])
        rows.place(target)
    rows.change(found.id, state=CategoryState.RETIRED, dormant=False)


@edit(Kind.IMAGES, Kind.CATEGORY_OR_NONE)
def move(rows: CategoryRegistry, images: Sequence[str], to: int | None) -> None:
    """Put images into a category and pin them there, or with `None` take them out of theirs, which is then banned."""
    _put(rows, dict.fromkeys(images, to))


def _put(rows: CategoryRegistry, categories_of: Mapping[str, int | None]) -> None:
    """Put each image into its category, or out of its category; a person reviewed each."""
    review, before = rows.next_review(), rows.choose(categories_of)
    categories = dict.fromkeys(categories_of.values())
    for category in categories:
        if len(categories) > 1:
            rows.choose([key for key, each in categories_of.items() if each == category])
        if category is None:
            rows.run(
                "insert or ignore into forbidden select id, category from image where id in chosen and category >= 0"
            )
        home = None if category is None else rows.category(category).id
        rows.place(home, pin=category is not None, review=review)
    if len(categories) > 1:
        rows.choose(categories_of)
    rows.drop_contradicted_answers()
    moved = [(before[key], to) for key, to in categories_of.items() if before[key] != to]
    _refit(rows, (place for places in moved for place in places))


@edit(Kind.IMAGES, Kind.TARGETS)
def sort(rows: CategoryRegistry, images: Sequence[str], to: Sequence[int | None]) -> None:
    """Put each image into the category at its place in `to`, as `move` does, all in one step."""
    if not len(rows.choose(images)) == len(images) == len(to):
        raise RegistryError(f"Expected a category for each of {len(images)} images, each once.")
    _put(rows, dict(zip(images, to, strict=True)))


@edit(Kind.CATEGORY)
def set_aside(rows: CategoryRegistry, category: int) -> None:
    """Take a discovered category out of the result, since it is nothing to find; its images are pinned to it.

    Later images that are like it come to it by themselves.
    """
    found = rows.category(category)
    if found.known or found.aside:
        why = "was labelled at stage 0: set its images aside" if found.known else "is set aside already"
        raise RegistryError(f"Category {found.id} {why}.")
    rows.change(found.id, state=CategoryState.IGNORED, dormant=False)
    rows.choose_members([found.id])
    rows.place(found.id, pin=True)
    rows.drop_contradicted_answers()


@edit(Kind.IMAGES)
def set_images_aside(rows: CategoryRegistry, images: Sequence[str]) -> None:
    """Take images out of the result, whatever category they are in.

    They go to one category, called "set aside", that contains all such images. These need not be alike, so its
    prototype is the feature of the first one alone, and hardly anything else comes to it by itself.
    """
    categories_of, aside = rows.choose(images), {each.id: each.name for each in rows.aside}
    place = next((each for each, name in aside.items() if name == IGNORED_NAME), None)
    if place is None:
        kept, features = rows.features().of(categories_of)
        if not kept:
            raise RegistryError("None of these images has features here: discover them again first.")
        place = rows.new_category(born=rows.chosen_born())
        rows.set_prototypes({place: features[0]})
        name = free_name(IGNORED_NAME, rows.names().values())
        rows.change(place, name=name, state=CategoryState.IGNORED)
    _put(rows, {key: home if home in aside else place for key, home in categories_of.items()})


@edit(Kind.CATEGORY)
def restore(rows: CategoryRegistry, category: int) -> None:
    """Restore an ignored category; its pinned images stay pinned."""
    found = rows.category(category)
    if not found.aside:
        raise RegistryError(f"Category {found.id} is not ignored, so there is nothing to restore.")
    rows.change(found.id, state=CategoryState.DISCOVERED, dormant=found.size == 0)


@edit(Kind.IMAGE, Kind.IMAGE, Kind.FLAG)
def answer(rows: CategoryRegistry, first: str, second: str, *, same: bool) -> None:
    """Say whether an image is of the category of another: it is put there, or kept out of there.

    Images of two categories that are different are kept apart by later groupings.
    """
    if len(categories_of := rows.choose([first, second])) != 2:
        raise RegistryError(f"Expected two images, got {first!r} twice.")
    own, other = categories_of.values()
    if other is None:
        raise RegistryError("The photograph it is compared with is in no group any more: skip this question.")
    if same or own == other:
        _put(rows, {first: other if same else None})
    else:
        rows.run("insert or ignore into link select min(image), max(image) from chosen")


@edit(Kind.IMAGES)
def confirm(rows: CategoryRegistry, images: Sequence[str]) -> None:
    """Pin images where they are: a person reviewed each."""
    categories_of = rows.choose(images)
    if homeless := [key for key, home in categories_of.items() if home is None]:
        raise RegistryError(f"Image {homeless[0]!r} is in no category: move it into one first.")
    _put(rows, categories_of)


@edit(Kind.IMAGES)
def forget(rows: CategoryRegistry, images: Sequence[str] | None = None) -> Mapping[str, Any]:
    """Delete images, by default missing images, with all corrections of them; prototypes stay.

    By default it is also refused if all images or no images are missing.
    """
    missing = rows.away() if images is None else images
    if images is None and not missing:
        raise RegistryError("No image is missing. To forget other images, name them.")
    keys, count = list(rows.choose(missing)), rows.one("select count(*) from image")
    if images is None and len(keys) == count:
        raise RegistryError(
            f"None of the {count} images is where it was: plug their disk in, or move their folder back. To forget "
            "them all, delete this folder."
        )
    rows.place(None)
    rows.run("delete from link where a in chosen or b in chosen")
    rows.run("delete from forbidden where image in chosen")
    rows.run("delete from image where id in chosen")
    return {"images": keys}


for each in (CategoryRegistry.undo, CategoryRegistry.redo):  # a page names the entry that it shows
    CORRECTIONS[each.__name__] = {"number": (Kind.ENTRY, True)}


class Labelled(NamedTuple):
    """Effects of labels.

    Attributes:
        images: how many images in the registry have a label now, including images that were right already.
        moved: how many of them changed their category.
        named: categories that were found before and got their name.
        new: categories that were not found before.
    """

    images: int = 0
    moved: int = 0
    named: tuple[str, ...] = ()
    new: tuple[str, ...] = ()


def apply_labels(rows: CategoryRegistry, labels: Mapping[str, str]) -> Labelled:
    """Put images into the categories of their labels, and pin them there; the same labels again change nothing.

    A label that no category bears becomes the name of a found one without a name, if most labelled images there have
    it, or else a category of its own. Each change is a correction like any other.

    Args:
        rows: are changed.
        labels: label by key of an image; keys that the registry does not have are left out.

    Raises:
        RegistryError: a label cannot be the name of a category; nothing of that label changed.
    """
    images: dict[str, list[str]] = defaultdict(list)
    for key in sorted(labels.keys() & rows.images.keys()):
        images[labels[key]].append(key)
    counts = {label: Counter(map(rows.members.get, keys)) for label, keys in images.items()}
    named, new, moved = [], [], 0
    for label, keys in sorted(images.items()):
        category = {name: each for each, name in rows.names().items()}.get(label)
        [(found, count)] = counts[label].most_common(1)
        is_most = 2 * count > sum(each[found] for each in counts.values())
        if category is None and found is not None and is_most and not rows.categories[found].named:
            category = found
            rename(rows, found, label)
            named.append(label)
        homes = {key: rows.members[key] for key in keys if key in rows.members}
        moved += sum(homes.get(key) != category for key in keys)
        if category is None:  # it starts between the earlier categories of its images
            earlier = [rows.categories[each].prototype_row for each in homes.values()]
            vectors = rows.prototypes[earlier] if earlier else rows.active_prototypes().matrix
            gather(rows, keys, label, vectors.mean(axis=0, dtype=np.float64))
            new.append(label)
            continue
        pinned, stages = rows.pinned, rows.images  # those labelled from the first need no pin
        if away := [key for key in keys if homes.get(key) != category or (stages[key] and key not in pinned)]:
            move(rows, away, category)
    return Labelled(sum(map(len, images.values())), moved, tuple(named), tuple(new))
