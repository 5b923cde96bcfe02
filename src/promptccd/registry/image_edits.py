"""What a person can say about single images, or selections of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from promptccd.errors import RegistryError
from promptccd.registry.draft import Draft
from promptccd.registry.edit import Edit
from promptccd.registry.tables import DIFFERENT, SAME


@dataclass(frozen=True, eq=False)
class Move(Edit):
    """Put the selected images, and only those, into another category or into none.

    Attributes:
        images: their keys.
        to: the category, where they are pinned; `None` takes them out of theirs, and they are not put back there.
        prototypes: new means ``(D,)`` of categories whose images changed, by id; the others keep theirs.
    """

    kind: ClassVar[str] = "move"
    images: Sequence[str]
    to: int | None
    prototypes: Mapping[int, ArrayLike] = field(default_factory=dict, metadata={"vector": True})

    def apply(self, draft: Draft, prototypes: np.ndarray) -> None:
        """See `Edit.apply`."""
        keys = draft.check_images(self.images)
        to = None if self.to is None else draft.tables.category(self.to).id
        for key in keys:
            left = draft.tables.members.get(key)
            draft.place(key, to, pin=to is not None)
            if to is None and left is not None:
                draft.forbid(key, left)
        for identity, vector in self.prototypes.items():
            changed = draft.tables.category(identity)
            draft.change(changed.id, prototype_row=draft.append_prototype(vector))
        draft.settle_links(keys)


@dataclass(frozen=True)
class Answer(Edit):
    """Answer "same or different?" about two images. It acts when images are grouped the next time.

    Attributes:
        first: key of an image.
        second: key of another.
        same: whether they show one category; `None` takes an earlier answer back.
    """

    kind: ClassVar[str] = "answer"
    first: str
    second: str
    same: bool | None

    def apply(self, draft: Draft, prototypes: np.ndarray) -> None:
        """See `Edit.apply`."""
        if len(draft.check_images([self.first, self.second])) != 2:
            raise RegistryError(f"Expected two images, got {self.first!r} twice.")
        pair = (min(self.first, self.second), max(self.first, self.second))
        draft.put("links", pair, None if self.same is None else SAME if self.same else DIFFERENT)
        draft.tables.constraints(only_linked=True)


@dataclass(frozen=True)
class Confirm(Edit):
    """Say that images are where they belong: they are pinned there.

    Attributes:
        images: their keys; each must have a category.
    """

    kind: ClassVar[str] = "confirm"
    images: Sequence[str]

    def apply(self, draft: Draft, prototypes: np.ndarray) -> None:
        """See `Edit.apply`."""
        keys = draft.check_images(self.images)
        if homeless := [key for key in keys if key not in draft.tables.members]:
            raise RegistryError(f"Image {homeless[0]!r} is in no category: move it into one first.")
        for key in keys:
            draft.place(key, draft.tables.members[key], pin=True)
        draft.settle_links(keys)
