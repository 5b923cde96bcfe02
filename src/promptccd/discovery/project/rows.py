"""Categories and images of a store: queries, and the statements that corrections and groupings consist of."""

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from promptccd.clustering.constraints import GroupingConstraints
from promptccd.discovery.project.categories import Category, CategoryState, Review, default_name, free_name
from promptccd.discovery.project.store import CATEGORY, GROUPING, Store, plain_json, stored_key, text_key
from promptccd.errors import RegistryError

ALIKE = 0.6  # of the squared distance that a category usually has to the one nearest to it
MOST_ALIKE = 6  # pairs, few enough to review
SURE = 0.5  # least confidence of an image that the model is sure of
# A correction of many, such as a split, pins unreviewed images.
STATE = "case when not pinned then 'found' when reviewed is null then 'pinned' else 'reviewed' end"
_LINKS = "select one.key, two.key from link join image one on one.id = a join image two on two.id = b"
_BANS = "select key, forbidden.category from forbidden join image on image.id = forbidden.image"
ACTIVE = "state in ('known', 'discovered') and not dormant"  # condition of `Rows.active`
NAMED = "category.name <> 'discovered ' || category.id"  # whether a person gave it its name
FREE = "state = 'discovered' and born >= (select stage from state)"  # of `Category.is_fixed` the opposite
ORIGIN = (  # see `Rows.origins`
    "case when state = 'known' then 'known' when state = 'aside' or born < (select stage from state) then 'earlier' "
    "else 'new' end"
)


class ActivePrototypes(NamedTuple):
    """Input of a model that assigns images: ids ``C`` long, their names, and prototypes ``(C, D)`` float32."""

    ids: list[int]
    names: list[str]
    matrix: np.ndarray


class Snapshot(NamedTuple):
    """Categories and images in one state; the fields as in `Rows`."""

    categories: Mapping[int, Category]
    images: Mapping[str, int]
    members: Mapping[str, int]
    confidences: Mapping[str, float]
    pinned: Mapping[str, int]


@dataclass(frozen=True)
class StageChange:
    """Changes between two states of a registry.

    Attributes:
        stage: stage of the later state.
        new: ids of new categories, largest first.
        grown: numbers of images before and after, by id, of categories that became larger.
        shrunk: the same of categories that became smaller.
        renamed: name before and after, by id.
        retired: ids of categories that an edit retired.
        emptied: ids of discovered categories left without images; they keep id and name.
        moved: category before and after of images that had been seen before; `None` is unassigned.
        unsure: images that the model was sure of and is no longer.
        unassigned: number of images without a category now.
        cluster_ids: category of every cluster of the grouping, `None` for a rejected cluster.
    """

    stage: int
    new: tuple[int, ...]
    grown: Mapping[int, tuple[int, int]]
    shrunk: Mapping[int, tuple[int, int]]
    renamed: Mapping[int, tuple[str, str]]
    retired: tuple[int, ...]
    emptied: tuple[int, ...]
    moved: Mapping[str, tuple[int | None, int | None]]
    unsure: tuple[str, ...]
    unassigned: int
    cluster_ids: tuple[int | None, ...] = ()


def compare(before: Snapshot, after: Snapshot, stage: int, uncounted: Collection[str] = ()) -> StageChange:
    """Changes between two states of a registry, of which the later is at `stage`; sizes are without `uncounted`."""
    pairs = [(before.categories.get(each.id), each) for each in after.categories.values()]
    # A category that came and was emptied or set aside again is no change: neither state shows it.
    new = [each for old, each in pairs if old is None and each.active]
    common = [(old, each) for old, each in pairs if old and not (each.retired or each.aside)]
    gone, missing = (Counter(map(state.members.get, uncounted)) for state in (before, after))
    sizes = {new.id: (old.size - gone[new.id], new.size - missing[new.id]) for old, new in common}
    moved = {
        key: (before.members.get(key), after.members.get(key))
        for key in sorted(before.images)
        if before.members.get(key) != after.members.get(key)
    }
    return StageChange(
        stage=stage,
        new=tuple(each.id for each in sorted(new, key=lambda each: (-each.size, each.id))),
        grown={each: (was, now) for each, (was, now) in sizes.items() if now > was},
        shrunk={each: (was, now) for each, (was, now) in sizes.items() if now < was},
        renamed={new.id: (old.name, new.name) for old, new in common if new.name != old.name},
        retired=tuple(each.id for old, each in pairs if old and each.retired and not old.retired),
        emptied=tuple(new.id for old, new in common if new.dormant and not old.dormant),
        moved=moved,
        unsure=tuple(
            key
            for key, confidence in sorted(before.confidences.items())
            if confidence >= SURE > after.confidences.get(key, SURE)
        ),
        unassigned=len(after.images) - len(after.members),
    )


class Rows(Store):
    """Categories and images of a store."""

    sampled: tuple[str, int] | None = None  # an image that nobody chose, with `Review.left`
    _known: tuple[Any, dict[str, Mapping[Any, Any]]] = None, {}  # read values, since the last change
    _placed: tuple[Any, Any, np.ndarray] = None, None, np.empty(0)  # see `rows_by_id`

    def _read(self, name: str, read: Callable[[], Mapping[Any, Any]]) -> Mapping[Any, Any]:
        """A mapping that is read again once any row has changed."""
        if self._known[0] != (token := self.token):
            self._known = token, {}
        if name not in self._known[1]:
            self._known[1][name] = MappingProxyType(read())
        return self._known[1][name]

    def _by_image(self, columns: str, condition: str, make: Callable[..., Any]) -> Mapping[str, Any]:
        rows = f"select key, {columns} from image where {condition} order by id"
        return self._read(columns, lambda: {text_key(key): make(*each) for key, *each in self.each(rows)})

    @property
    def images(self) -> Mapping[str, int]:
        """The stage that every image came with, by key."""
        return self._by_image("stage", "true", int)

    @property
    def members(self) -> Mapping[str, int]:
        """Category of every assigned image."""
        return self._by_image("category", "category is not null", int)

    @property
    def confidences(self) -> Mapping[str, float]:
        """How sure the last grouping was of each image, in 0..1, where it said so."""
        return self._by_image("confidence", "confidence is not null", float)

    @property
    def pinned(self) -> Mapping[str, int]:
        """Category of every image that a person has put there."""
        return self._by_image("category, pinned", "pinned", lambda category, _: category)

    @property
    def reviews(self) -> Mapping[str, Review]:
        """The review of every image that a person has reviewed."""
        return self._by_image("reviewed, was, unseen", "reviewed is not null", Review)

    @property
    def states(self) -> Mapping[str, tuple[int, int | None, float | None, str]]:
        """Stage, category, confidence, and whether it is ``found``, ``pinned`` or ``reviewed``, of every image."""
        return self._by_image(f"stage, category, confidence, {STATE}", "true", lambda *values: values)

    # Categories

    @property
    def categories(self) -> Mapping[int, Category]:
        """Every category there ever was, by id.

        Raises:
            RegistryError: a row is damaged.
        """
        rows = f"select {CATEGORY} from category order by id"
        return self._read("categories", lambda: {row[0]: _category(*row) for row in self.run(rows)})

    @property
    def num_known(self) -> int:
        """Ids below it were labelled at stage 0."""
        return int(self.one("select num_known from state"))

    @property
    def stage(self) -> int:
        """Newest stage that was observed, -1 before the first."""
        return int(self.one("select stage from state"))

    @property
    def next_id(self) -> int:
        """The id that the next new category gets."""
        return int(self.one("select next_id from state"))

    @property
    def active(self) -> list[Category]:
        """Categories that are neither retired, set aside nor dormant, by id: known ones first."""
        return [each for each in self.categories.values() if each.active]

    @property
    def aside(self) -> list[Category]:
        """Categories that were set aside, by id."""
        return [each for each in self.categories.values() if each.aside]

    def category(self, identity: int) -> Category:
        """A category that is not retired.

        Raises:
            RegistryError: the id is unknown; for a merged category the message names its survivor.
        """
        rows = self.run(f"select {CATEGORY} from category where id = ?", int(identity))
        if not rows:
            ids = [str(each) for each in self.names()]
            listed = ", ".join(ids[:20] + ["..."] * (len(ids) > 20)) or "none yet"
            raise RegistryError(f"There is no category {identity!r}. There are: {listed}.")
        found = _category(*rows[0])
        if found.merged_into is not None:
            raise RegistryError(
                f"Category {identity} was merged into category {self.resolve(identity)}: use that, or undo the merge."
            )
        if found.state is CategoryState.RETIRED:
            raise RegistryError(f"Category {identity} was rejected as a category: undo that, or use another.")
        return found

    def origins(self) -> dict[int, str]:
        """``known`` if it was labelled, ``earlier`` if an earlier stage discovered it, else ``new``; by id."""
        return dict(self.run(f"select id, {ORIGIN} from category"))

    def names(self) -> dict[int, str]:
        """Names of the categories that are not retired, by id."""
        return dict(self.run("select id, name from category where state <> 'retired' order by id"))

    def resolve(self, identity: int) -> int | None:
        """The category that contains the images of this one: itself, its merge target, or `None`.

        Raises:
            RegistryError: the id was never given.
        """
        if identity not in self.categories:
            raise RegistryError(f"There never was a category {identity!r}: ids go up to {self.next_id - 1}.")
        return resolved(self.categories, identity)

    @property
    def prototypes(self) -> np.ndarray:
        """All rows of prototypes ``(R, D)`` float32; `Category.prototype_row` points into them."""
        rows = [np.frombuffer(row, "<f4") for (row,) in self.run("select value from vector order by id")]
        return np.stack(rows) if rows else np.zeros((0, 0), np.float32)

    def active_prototypes(self) -> ActivePrototypes:
        """Ids, names and prototypes of the active categories, as ``model.set_categories`` takes them."""
        return self.prototypes_of(self.active)

    def prototypes_of(self, categories: Sequence[Category]) -> ActivePrototypes:
        """The same of any categories, in their order."""
        rows = dict(self.run("select id, value from vector where id in (select vector from category)"))
        found = [np.frombuffer(rows[each.prototype_row], "<f4") for each in categories]
        matrix = np.stack(found) if found else self.prototypes[:0]
        return ActivePrototypes([each.id for each in categories], [each.name for each in categories], matrix)

    # Images

    @property
    def put_aside(self) -> set[str]:
        """Keys of images that a person ignored; further images are in such a category because of their likeness."""
        return self._keys("pinned and category in (select id from category where state = 'aside')")

    @property
    def unassigned(self) -> list[str]:
        """Keys of images without a category, sorted."""
        return sorted(self._keys("category is null"))

    def members_of(self, identity: int) -> list[str]:
        """Keys of a category's images, sorted."""
        return sorted(self._keys("category = ?", identity))

    def away(self) -> list[str]:
        """Keys of images whose files are not where they were; a registry by itself knows no files."""
        return []

    def here(self) -> list[str]:
        """Keys of images that are counted."""
        return [*self.images]

    def _keys(self, condition: str, *values: Any) -> set[str]:
        rows = self.run(f"select key from image where {condition}", *values)
        return {text_key(key) for (key,) in rows}

    def snapshot(self) -> Snapshot:
        """All categories and images as they are."""
        return Snapshot(self.categories, self.images, self.members, self.confidences, self.pinned)

    @property
    def forbidden(self) -> dict[str, set[int]]:
        """The categories that a person has taken an image out of, by key."""
        found = dict[str, set[int]]()
        for key, category in self.run(_BANS):
            found.setdefault(text_key(key), set()).add(category)
        return found

    def constraints(self) -> GroupingConstraints:
        """Constraints of people on images, for the next grouping.

        Raises:
            DataError: it contradicts itself.
        """
        return GroupingConstraints(
            cannot_link=tuple((text_key(a), text_key(b)) for a, b in self.run(_LINKS)),
            pinned=dict(self.pinned),
            forbidden={key: frozenset(each) for key, each in self.forbidden.items()},
        )

    def rows_by_id(self, row_of: Mapping[str, int]) -> np.ndarray:
        """Row of every image, by its id in this store; -1 where it has none."""
        state = self.run("select number, undone from log where kind in (?, 'forget')", GROUPING)
        if self._placed[0] is not row_of or self._placed[1] != state:
            found = self.each("select id, key from image")  # one query: others may forget images meanwhile
            pairs = ((image, row_of.get(text_key(key), -1)) for image, key in found)
            ids, places = np.fromiter(chain.from_iterable(pairs), int).reshape(-1, 2).T
            rows = np.full(ids.max(initial=-1) + 1, -1)
            rows[ids] = places
            self._placed = row_of, state, rows
        return self._placed[-1]

    # Statements of categories, within a transaction

    def change(self, identity: int, **values: Any) -> None:
        """Change columns of a category."""
        sets = ", ".join(f"{name} = ?" for name in values)
        self.run(f"update category set {sets} where id = ?", *values.values(), identity)

    def new_category(self, born: int) -> int:
        """Add a discovered category without images or a prototype, and return its id."""
        identity = self.next_id
        name = free_name(default_name(identity), self.names().values())
        self.run("update state set next_id = next_id + 1")
        added = "insert into category values(?, ?, 'discovered', ?, 0, 0, 0, null, '[]')"
        self.run(added, identity, name, born)
        return identity

    def set_prototypes(self, vectors: Mapping[int, ArrayLike] | None) -> None:
        """Give categories other prototypes, by id.

        Raises:
            RegistryError: there is no such category, it was retired, or a vector does not fit.
        """
        for identity, vector in sorted((vectors or {}).items()):
            self.change(self.category(identity).id, vector=self.append_prototype(vector))

    def append_prototype(self, vector: ArrayLike) -> int:
        """Append a prototype, and return its row.

        Raises:
            RegistryError: it is not a vector of finite numbers of the common length.
        """
        row = np.asarray(vector, dtype=np.float32)
        query = "select ifnull(max(id) + 1, 0), ifnull(length(value) / 4, ?) from vector"
        ((place, width),) = self.run(query, row.size)
        if row.shape != (width,) or not width or not np.isfinite(row).all():
            raise RegistryError(
                f"Expected a prototype of {width or 'some'} finite numbers, got shape {row.shape}"
                f"{'' if np.isfinite(row).all() else ' with NaN or infinity'}."
            )
        self.run("insert into vector values(?, ?)", place, row.astype("<f4").tobytes())
        return int(place)

    def drop_unused_prototypes(self) -> None:
        """Delete the prototypes that no category refers to, and renumber the remaining ones from 0."""
        categories, vectors = self.categories.values(), dict(self.run("select * from vector"))
        used = sorted({row for each in categories for row in each.rows})
        position = {row: place for place, row in enumerate(used)}
        self.run("delete from vector")
        self.run_each("insert into vector values(?, ?)", [(position[row], vectors[row]) for row in used])
        for each in categories:
            earlier = plain_json([position[row] for row in each.earlier_rows]).decode()
            self.change(each.id, vector=position[each.prototype_row], earlier=earlier)

    def count_images(self) -> None:
        """Update the sizes of all categories."""
        sizes = dict(self.run("select category, count(*) from image where category >= 0 group by category"))
        steps = [(each.id, sizes.get(each.id, 0) - each.size) for each in self.categories.values()]
        self._resize([step for step in steps if step[1]])

    def _resize(self, steps: Sequence[tuple[Any, ...]]) -> None:
        """Add to the sizes of categories: ids, each with a number."""
        self.run(
            "update category set size = size + step, dormant = size + step = 0 and state = 'discovered' from (select "
            "json_extract(value, '$[0]') as resized, json_extract(value, '$[1]') as step from json_each(?)) "
            "where category.id = resized",
            json.dumps(steps),
        )

    # Statements of the chosen images, within a transaction

    def choose(self, keys: Iterable[str]) -> dict[str, int | None]:
        """Choose the images of the next statements; returns the category of each, in their order.

        Raises:
            RegistryError: the list is empty, or an image is unknown.
        """
        unique = list(dict.fromkeys([keys] if isinstance(keys, str) else keys))
        if not unique:
            raise RegistryError("Expected at least one image, got 0: select images first.")
        self.run("delete from chosen")
        stored = [(stored_key(key),) for key in unique]
        self.run_each("insert into chosen select id from image where key = ?", stored)
        rows = self.run("select key, category from image where id in chosen")
        found = {text_key(key): category for key, category in rows}
        if unknown := [key for key in unique if key not in found]:
            raise RegistryError(
                f"{len(unknown)} of {len(unique)} images were never seen, the first is {unknown[0]!r}: "
                "name an image by its picture, as assignments.csv has it, or row:NUMBER of a training run."
            )
        return {key: found[key] for key in unique}

    def choose_members(self, categories: Collection[int]) -> None:
        """Choose all images of some categories."""
        self.run("delete from chosen")
        members = "insert into chosen select id from image where category = ?"
        self.run_each(members, [(each,) for each in categories])

    def chosen_born(self) -> int:
        """The first stage of the chosen images."""
        return int(self.one("select min(stage) from image where id in chosen"))

    def next_review(self) -> int:
        """The order of the next review. Reviews may have been dropped, so their number alone is no order."""
        newest = "select max(count(*), coalesce(max(reviewed), -1) + 1) from image indexed by reviews"
        return int(self.one(f"{newest} where reviewed is not null"))

    def place(self, category: int | None, *, pin: bool | None = False, review: int | None = None) -> None:
        """Put the chosen images into a category, or unassign them.

        Args:
            category: its id.
            pin: whether a person put them there, which lifts a ban; `None` keeps the pins that there are.
            review: the order of the review, if a person reviewed each image. The first review of an image counts;
                without a review, the reviews of images follow them.
        """
        those = "from image where id in chosen and category is not ? group by category"
        left = self.run(f"select category, count(*) {those}", category)
        sampled = self.sampled or ("", 0)
        if review is None:
            reviews = "was = iif(reviewed is not null and was is category, ?1, was)"
        else:
            reviews = (
                f"was = iif(reviewed is null, category, was), reviewed = ifnull(reviewed, {review}), "
                "unseen = iif(reviewed is null and key = ?3, ?4, unseen)"
            )
        self.run(
            f"update image set category = ?1, pinned = ifnull(?2, pinned), {reviews} where id in chosen",
            category, pin, *((stored_key(sampled[0]), sampled[1]) if review is not None else ()),
        )  # fmt: skip
        if pin:
            self.run("delete from forbidden where category = ? and image in chosen", category)
        if left:
            left.append((category, -sum(count for _, count in left)))
        self._resize([(identity, -count) for identity, count in left])

    def drop_looks(self) -> None:
        """Forget that a person has reviewed the chosen images."""
        self.run("update image set reviewed = null, was = null, unseen = 0 where id in chosen")

    def drop_contradicted_answers(self) -> None:
        """Remove answers about the chosen images, which a person has just placed, if they contradict the places."""
        self.run(
            "delete from link where (a in chosen or b in chosen) and exists(select 1 from image one join image two "
            "using (category) where one.id = a and two.id = b and one.pinned and two.pinned)"
        )


def alike_pairs(rows: Rows) -> list[tuple[int, int]]:
    """Pairs of ids of active categories that lie unusually close, closest first, at most `MOST_ALIKE`.

    Two categories with labels or given names are distinct already, and a category whose images a person mostly
    chose is final.
    """
    found = rows.run(
        f"select category.id, state = 'known' or {NAMED}, 2 * ifnull(chosen, 0) > size, "
        "value from category join vector on vector.id = vector left join (select category as owner, count(*) as chosen "
        "from image where pinned group by category) "
        f"on owner = category.id where {ACTIVE} order by category.id"
    )
    if len(found) < 3:  # nothing is unusual about the only distance
        return []
    ids, named, made, values = zip(*found, strict=True)
    is_named, is_made = np.array(named, dtype=bool), np.array(made, dtype=bool)
    points = np.stack([np.frombuffer(each, "<f4") for each in values]).astype(np.float64)
    points /= np.linalg.norm(points, axis=1, keepdims=True).clip(min=1e-12)
    squared = 2 - 2 * points @ points.T
    np.fill_diagonal(squared, np.inf)
    limit = ALIKE * np.median(squared.min(1))
    decided = (is_named[:, None] & is_named) | is_made[:, None] | is_made
    first, second = np.nonzero(np.triu(squared < limit) & ~decided)
    closest = np.argsort(squared[first, second], kind="stable")[:MOST_ALIKE].tolist()
    return [(ids[first[each]], ids[second[each]]) for each in closest]


def resolved(categories: Mapping[int, Category], identity: int) -> int | None:
    """See `Rows.resolve`."""
    while (into := categories[identity].merged_into) is not None:
        identity = into
    return None if categories[identity].retired else identity


def _category(identity: int, name: str, state: str, *values: Any) -> Category:
    born, size, row, dormant, into, earlier = values
    try:
        rows = tuple(json.loads(earlier))
        return Category(identity, name, CategoryState(state), born, size, row, bool(dormant), into, rows)
    except (ValueError, TypeError) as error:
        raise RegistryError(f"Category {identity!r} is damaged ({str(error)[:100]}).") from error
