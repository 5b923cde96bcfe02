"""What can be read of a registry: categories, images, constraints, history, and the hash of it all."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from promptccd.errors import RegistryError
from promptccd.registry.changes import History, LogEntry
from promptccd.registry.invariants import check_tables
from promptccd.registry.tables import Category, Tables

if TYPE_CHECKING:
    from promptccd.clustering.constraints import GroupingConstraints

NOTHING_YET = -1


class ActivePrototypes(NamedTuple):
    """What a model needs to assign images: ids ``C`` long, their names, and prototypes ``(C, D)`` float32."""

    ids: list[int]
    names: list[str]
    matrix: np.ndarray


class RegistryView:
    """The state of a registry and everything that is read off it; `CategoryRegistry` adds what changes it.

    Args:
        tables: the state; empty by default.
        prototypes: ``(R, D)`` float32, the rows that categories refer to.
        num_known: ids below it were labelled at stage 0.
        stage: newest stage that was observed, -1 before the first.
        next_id: first id that was never given.
        history: log and redo stack.

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
        rows = np.zeros((0, 0), np.float32) if prototypes is None else prototypes
        self._prototypes = np.array(rows, dtype=np.float32)
        if self._prototypes.ndim != 2 or not np.isfinite(self._prototypes).all():
            raise RegistryError(f"Expected finite prototypes (R, D), got shape {self._prototypes.shape}.")
        self.num_known, self._stage = num_known, stage
        free = max(self._tables.categories, default=-1) + 1
        self._next_id = max(free, num_known) if next_id is None else next_id
        self._history = history or History()
        self._check()

    @property
    def categories(self) -> Mapping[int, Category]:
        """Every category there ever was, by id."""
        return MappingProxyType(self._tables.categories)

    @property
    def active(self) -> list[Category]:
        """Categories that are neither retired nor dormant, by id: known ones first."""
        return [each for each in self._tables.living() if not each.dormant]

    @property
    def members(self) -> Mapping[str, int]:
        """Category of every image that has one."""
        return MappingProxyType(self._tables.members)

    @property
    def images(self) -> Mapping[str, int]:
        """Every image that was ever seen, and the stage it came with."""
        return MappingProxyType(self._tables.images)

    @property
    def confidences(self) -> Mapping[str, float]:
        """How sure the last grouping was of each image, where it said so."""
        return MappingProxyType(self._tables.confidences)

    @property
    def unassigned(self) -> list[str]:
        """Keys of images without a category, sorted."""
        return sorted(self._tables.images.keys() - self._tables.members.keys())

    @property
    def stage(self) -> int:
        """Newest stage that was observed, -1 before the first."""
        return self._stage

    @property
    def next_id(self) -> int:
        """The id that the next new category gets."""
        return self._next_id

    @property
    def prototypes(self) -> np.ndarray:
        """All rows of prototypes ``(R, D)``, read-only; `Category.prototype_row` points into them."""
        view = self._prototypes.view()
        view.flags.writeable = False
        return view

    @property
    def tables(self) -> Tables:
        """A copy of the state, to be written down."""
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

    @property
    def can_undo(self) -> bool:
        """Whether there is an entry of this stage to take back."""
        return bool(self._history.log) and self._history.log[-1].patch is not None

    @property
    def can_redo(self) -> bool:
        """Whether something was undone since the last edit."""
        return bool(self._history.redo)

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
            raise RegistryError(f"There never was a category {identity!r}: ids go up to {self._next_id - 1}.")
        return self._tables.resolve(identity)

    def constraints(self) -> "GroupingConstraints":
        """What people said, for the next grouping."""
        return self._tables.constraints()

    def active_prototypes(self) -> ActivePrototypes:
        """Ids, names and prototypes of the active categories, as ``model.set_categories`` takes them."""
        rows = [each.prototype_row for each in self.active]
        return ActivePrototypes(
            [each.id for each in self.active],
            [each.name for each in self.active],
            self._prototypes[np.array(rows, dtype=np.int64)].copy(),
        )

    def state_hash(self) -> str:
        """SHA-256 of the state, the same wherever and however it was reached.

        Of categories with the bytes of their prototypes, images, constraints and stage. Not of the log, the redo
        stack, and the counters of ids and entries: those remember what was undone.
        """
        tables = self._tables
        rows = [row for each in sorted(tables.categories) for row in tables.categories[each].rows]
        vectors = np.ascontiguousarray(self._prototypes[np.array(rows, dtype=np.int64)], dtype="<f4")
        state = {
            "num_known": self.num_known,
            "stage": self._stage,
            "categories": {str(key): asdict(each) for key, each in tables.categories.items()},
            "images": tables.images,
            "members": tables.members,
            "confidences": tables.confidences,
            "pinned": tables.pinned,
            "forbidden": tables.forbidden,
            "links": sorted([*pair, answer] for pair, answer in tables.links.items()),
            "prototypes": hashlib.sha256(vectors.tobytes()).hexdigest(),
        }
        text = json.dumps(state, sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()

    def _check(self) -> None:
        check_tables(
            self._tables,
            num_known=self.num_known,
            num_rows=len(self._prototypes),
            next_id=self._next_id,
        )
