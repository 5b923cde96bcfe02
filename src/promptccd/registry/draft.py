"""The statements that corrections and groupings consist of. They run in a transaction, and `finish` ends them."""

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from promptccd.clustering.constraints import GroupingConstraints
from promptccd.disk import plain_json
from promptccd.errors import DataError, RegistryError
from promptccd.registry.categories import Category, CategoryState, default_name, free_name
from promptccd.registry.store import Store, text_key

_AT_ONCE = 500  # values in a statement
_CATEGORY = "id, name, state, born, size, vector, dormant, merged_into, earlier"


class Draft:
    """A change of a store that is being made.

    Args:
        store: within a transaction.
        drawn: ``left`` and ``quarter`` by key, see `Look`, of images that were drawn at random.
    """

    def __init__(self, store: Store, drawn: Mapping[str, tuple[int, int]] | None = None):
        self.store, self._drawn = store, drawn or {}
        self._looked = dict[int, tuple[int, int, int]]()  # unseen, quarter and order by row

    # Reading

    def category(self, identity: int) -> Category:
        """A category that is not retired.

        Raises:
            RegistryError: there is none of that id; for a merged one the message names its survivor.
        """
        return living(self.store, identity)

    def not_retired(self) -> list[Category]:
        """Categories that are not retired, by id."""
        return categories_in(self.store, "where state <> 'retired'")

    def members_of(self, identity: int) -> list[int]:
        """Rows of a category's images."""
        return [
            row for (row,) in self.store.all("select id from image where category = ? order by id", identity)
        ]

    def images(self, keys: Iterable[str]) -> dict[str, int]:
        """The row of each of some images, by key, each once.

        Raises:
            RegistryError: there are none, or one was never seen.
        """
        listed = [keys] if isinstance(keys, str) else list(keys)
        if odd := [key for key in listed if not isinstance(key, str)]:
            raise RegistryError(f"Expected keys of images to be text, got {odd[0]!r}.")
        unique = list(dict.fromkeys(listed))
        if not unique:
            raise RegistryError("Expected at least one image, got none: select images first.")
        found = {
            text_key(key): row
            for key, row in self.store.of_keys("select key, id from image where true", unique)
        }
        if unknown := [key for key in unique if key not in found]:
            raise RegistryError(
                f"{len(unknown)} of {len(unique)} images were never seen, the first is {unknown[0]!r}: "
                "name an image by its picture, as assignments.csv has it, or row:NUMBER of a training run."
            )
        return {key: found[key] for key in unique}

    def values_of(self, column: str, rows: Collection[int]) -> dict[int, Any]:
        """A value of each of some images, by row."""
        listed, found = list(rows), dict[int, Any]()
        for start in range(0, len(listed), _AT_ONCE):
            part = listed[start : start + _AT_ONCE]
            marks = ", ".join("?" * len(part))
            found |= dict(self.store.all(f"select id, {column} from image where id in ({marks})", *part))
        return found

    def vectors(self, categories: Sequence[Category]) -> np.ndarray:
        """Prototypes ``(C, D)`` of categories."""
        return vectors_of(self.store, [each.prototype_row for each in categories])

    # Images

    def place(self, rows: Iterable[int], category: int | None, *, pin: bool = False) -> None:
        """Put images into a category, or into none; a pin is what a person said, and lifts a ban."""
        listed = list(rows)
        looked = [row for row in listed if row in self._looked]
        self.store.run_each(
            "update image set category = ?, pinned = ?, was = iif(reviewed is null, category, was), "
            "unseen = iif(reviewed is null, ?, unseen), quarter = iif(reviewed is null, ?, quarter), "
            "reviewed = ifnull(reviewed, ?) where id = ?",
            [(category, pin, *self._looked[row], row) for row in looked],
        )
        self.store.run_each(
            "update image set category = ?, pinned = ? where id = ?",
            [(category, pin, row) for row in listed if row not in self._looked],
        )
        if pin and self.store.one("select 1 from forbidden limit 1"):
            self.store.run_each(
                "delete from forbidden where image = ? and category = ?", [(row, category) for row in listed]
            )

    def forbid(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Keep images out of categories: rows of images, each with an id."""
        self.store.run_each("insert or ignore into forbidden values(?, ?)", pairs)

    def look(self, images: Mapping[str, int]) -> None:
        """Note that a person reviews images that are placed next; the first review of an image counts."""
        count, last = self.store.all(
            "select count(*), coalesce(max(reviewed), -1) from image indexed by reviews where reviewed is not null"
        )[0]
        order = max(count, last + 1)  # reviews may have been dropped, so their number alone is no order
        for key, row in images.items():
            self._looked.setdefault(row, (*self._drawn.get(key, (0, 0)), order))

    def drop_looks(self, rows: Iterable[int]) -> None:
        """Forget that a person has reviewed images."""
        self.store.run_each(
            "update image set reviewed = null, was = null, unseen = 0, quarter = 0 where id = ?",
            [(row,) for row in rows],
        )

    def grouped_again(self, keys: Iterable[str]) -> None:
        """Let random draws, and reviews of images that moved, say nothing of places that no person changed."""
        moved = {row for (row,) in self.store.all(_MOVED.format(columns="moved.image"))}
        if not moved:
            return
        reviewed = {
            text_key(key): row
            for key, row in self.store.all("select key, id from image where reviewed is not null")
        }
        rows = {reviewed[key] for key in keys if key in reviewed}
        self.drop_looks(rows & moved)
        self.store.run_each("update image set unseen = 0 where id = ?", [(row,) for row in rows - moved])

    # Categories

    def change(self, identity: int, **values: Any) -> None:
        """Change columns of a category."""
        sets = ", ".join(f"{name} = ?" for name in values)
        self.store.run(f"update category set {sets} where id = ?", *values.values(), identity)

    def new_category(self, born: int) -> int:
        """Add a discovered category without images or a prototype, and return its id."""
        identity = int(self.store.one("select next_id from state"))
        self.store.run("update state set next_id = next_id + 1")
        name = free_name(default_name(identity), self.names().values())
        self.store.run(
            "insert into category values(?, ?, ?, ?, 0, 0, 0, null, '[]')",
            identity, name, CategoryState.DISCOVERED, born,
        )  # fmt: skip
        return identity

    def free_name(self, name: str) -> str:
        """The name itself, or with the first number behind it that no category has."""
        return free_name(name, self.names().values())

    def names(self) -> dict[int, str]:
        """Names of the categories that are not retired, by id."""
        return dict(self.store.all("select id, name from category where state <> 'retired' order by id"))

    def set_prototype(self, identity: int, vector: ArrayLike) -> None:
        """Give a category another prototype.

        Raises:
            RegistryError: there is no such category, it was retired, or the vector does not fit.
        """
        self.change(self.category(identity).id, vector=self.append_prototype(vector))

    def set_prototypes(self, vectors: Mapping[int, ArrayLike] | None) -> None:
        """Give categories other prototypes, by id; errors are those of `set_prototype`."""
        for identity, vector in sorted((vectors or {}).items()):
            self.set_prototype(identity, vector)

    def append_prototype(self, vector: ArrayLike) -> int:
        """Append a prototype, and return its row.

        Raises:
            RegistryError: it is not a vector of finite numbers as long as the others.
        """
        row, last = np.asarray(vector, dtype=np.float32), self.store.one("select max(id) from vector")
        width = (
            (row.shape[0] if row.ndim == 1 else 0)
            if last is None
            else self.store.one("select length(value) from vector where id = ?", last) // 4
        )
        if row.shape != (width,) or not width or not np.isfinite(row).all():
            raise RegistryError(
                f"Expected a prototype of {width or 'some'} finite numbers, got shape {row.shape}"
                f"{'' if np.isfinite(row).all() else ' with NaN or infinity'}."
            )
        place = 0 if last is None else last + 1
        self.store.run("insert into vector values(?, ?)", place, row.astype("<f4").tobytes())
        return int(place)

    def drop_unused_prototypes(self) -> None:
        """Delete the prototypes that no category refers to, and number the others from 0 on."""
        found = categories_in(self.store)
        used = sorted({row for each in found for row in each.rows})
        position, vectors = (
            {row: place for place, row in enumerate(used)},
            dict(self.store.all("select * from vector")),
        )
        self.store.run("delete from vector")
        self.store.run_each(
            "insert into vector values(?, ?)", [(position[row], vectors[row]) for row in used]
        )
        self.store.run_each(
            "update category set vector = ?, earlier = ? where id = ?",
            [
                (
                    position[each.prototype_row],
                    plain_json([position[row] for row in each.earlier_rows]).decode(),
                    each.id,
                )
                for each in found
            ],
        )

    # Answers

    def answer(self, first: int, second: int, same: bool | None) -> None:
        """Answer whether two images, the smaller key first, show one category; `None` removes an answer."""
        self.store.run("delete from link where a = ? and b = ?", first, second)
        if same is not None:
            self.store.run("insert into link values(?, ?, ?)", first, second, bool(same))

    def drop_answers(self, rows: Iterable[int]) -> None:
        """Remove all answers about images."""
        self.store.run_each("delete from link where a = ? or b = ?", [(row, row) for row in rows])

    def settle_links(self, placed: Iterable[int]) -> None:
        """Remove answers about images that a person has just placed, if they contradict the new places."""
        if self.store.one("select 1 from link limit 1"):
            try:
                constraints_in(self.store, only_linked=True)
            except RegistryError:
                self.drop_answers(placed)

    def finish(self) -> None:
        """Let reviews follow images that went along with others, and update the sizes of categories."""
        rows = self.store.all(
            _MOVED.format(columns="moved.image, moved.before, image.category, image.reviewed, image.was")
        )
        self.store.run_each(
            "update image set was = ? where id = ?",
            [
                (after, row)
                for row, before, after, reviewed, was in rows
                if reviewed is not None and was == before and row not in self._looked
            ],
        )
        change: Counter[int] = Counter()
        for _, before, after, _, _ in rows:
            change.update({each: step for each, step in ((before, -1), (after, 1)) if each is not None})
        self.store.run_each(
            "update category set size = size + ?1, dormant = size + ?1 = 0 and state = 'discovered' where id = ?2",
            [(step, identity) for identity, step in sorted(change.items())],
        )


# Images that are in another category than before the change, those that left the store included.
_MOVED = (
    "select {columns} from moved left join image on image.id = moved.image "
    "where moved.before is not image.category"
)


def categories_in(store: Store, condition: str = "", *values: Any) -> list[Category]:
    """Categories of a store, by id.

    Raises:
        RegistryError: one is damaged.
    """
    rows = store.all(f"select {_CATEGORY} from category {condition} order by id", *values)
    return [_category(*row) for row in rows]


def _category(
    identity: int, name: str, state: str, born: int, size: int, vector: int, *others: Any
) -> Category:
    dormant, merged_into, earlier = others
    try:
        rows = tuple(json.loads(earlier))
        return Category(
            identity, name, CategoryState(state), born, size, vector, bool(dormant), merged_into, rows
        )
    except (ValueError, TypeError) as error:
        raise RegistryError(f"Category {identity!r} is damaged ({str(error)[:100]}).") from error


def living(store: Store, identity: int) -> Category:
    """A category that is not retired; errors are those of `Draft.category`."""
    is_number = isinstance(identity, int | np.integer) and not isinstance(identity, bool)
    found = categories_in(store, "where id = ?", int(identity)) if is_number else []
    if not found:
        ids = [
            str(each) for (each,) in store.all("select id from category where state <> 'retired' order by id")
        ]
        listed = ", ".join(ids[:20] + ["..."] * (len(ids) > 20)) or "none yet"
        raise RegistryError(f"There is no category {identity!r}. There are: {listed}.")
    if found[0].merged_into is not None:
        raise RegistryError(
            f"Category {identity} was merged into category {resolved(store, identity)}: use that, or undo the merge."
        )
    if found[0].retired:
        raise RegistryError(f"Category {identity} was said to be no category: undo that, or use another.")
    return found[0]


def resolved(store: Store, identity: int) -> int | None:
    """The category that holds what `identity` held: itself, what it was merged into, or none."""
    while True:
        [(state, into)] = store.all("select state, merged_into from category where id = ?", identity)
        if into is None:
            return None if state == CategoryState.RETIRED else identity
        identity = into


def vectors_of(store: Store, rows: Sequence[int]) -> np.ndarray:
    """Prototypes ``(R, D)`` float32 of some rows."""
    return prototypes_in(store)[list(rows)]


def prototypes_in(store: Store) -> np.ndarray:
    """All prototypes ``(R, D)`` float32, by row."""
    rows = store.all("select value from vector order by id")
    return np.stack([np.frombuffer(row, "<f4") for (row,) in rows]) if rows else np.zeros((0, 0), np.float32)


def constraints_in(store: Store, *, only_linked: bool = False) -> GroupingConstraints:
    """What people have said about images.

    Args:
        store: the images.
        only_linked: leave out images without a link, which is enough to find a contradiction.

    Raises:
        RegistryError: they contradict each other.
    """
    among = "and image.id in (select a from link union select b from link)" if only_linked else ""
    pairs = store.all(
        "select one.key, two.key, same from link join image one on one.id = a join image two on two.id = b"
    )
    links = sorted((*sorted(map(text_key, pair)), same) for *pair, same in pairs)
    bans = dict[str, set[int]]()
    for key, category in store.all(
        f"select image.key, forbidden.category from forbidden join image on image.id = forbidden.image {among}"
    ):
        bans.setdefault(text_key(key), set()).add(category)
    pinned = store.all(f"select key, category from image where pinned {among}")
    try:
        return GroupingConstraints(
            tuple((first, second) for first, second, same in links if same),
            tuple((first, second) for first, second, same in links if not same),
            {text_key(key): category for key, category in pinned},
            {key: frozenset(each) for key, each in bans.items()},
        )
    except DataError as error:
        raise RegistryError(str(error)) from error
