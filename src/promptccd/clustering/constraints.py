"""Constraints by people: which images belong together, which apart, and which are fixed.

Images are named by a key that survives renaming and copying, such as the hash of their content.
"""

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

from promptccd.errors import DataError

Pair = tuple[str, str]
Key = TypeVar("Key", str, int)


@dataclass(frozen=True)
class GroupingConstraints:
    """Hard constraints on a grouping, without contradictions.

    Pairs are sorted, the smaller key first, each once: constraints with the same meaning are equal. Keys of images that
    are not grouped are allowed, and `group_images` lets them link other images: two must-links with one absent image
    join two images.

    Attributes:
        must_link: pairs of images of one category.
        cannot_link: pairs of images of two categories.
        pinned: category of images whose category is fixed.
        forbidden: categories that an image must not get, by image.

    Raises:
        DataError: no grouping can satisfy all of them; the message names the keys.
    """

    must_link: tuple[Pair, ...] = ()
    cannot_link: tuple[Pair, ...] = ()
    pinned: Mapping[str, int] = field(default_factory=dict)
    forbidden: Mapping[str, frozenset[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        must, cannot = ({_sorted_pair(*pair) for pair in each} for each in (self.must_link, self.cannot_link))
        values = {
            "must_link": tuple(sorted(pair for pair in must if pair[0] != pair[1])),
            "cannot_link": tuple(sorted(cannot)),
            "pinned": dict(sorted(self.pinned.items())),
            "forbidden": {key: frozenset(each) for key, each in sorted(self.forbidden.items()) if each},
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)
        self._refuse_contradictions()

    @property
    def keys(self) -> frozenset[str]:
        """Every image that a constraint names."""
        linked = itertools.chain.from_iterable((*self.must_link, *self.cannot_link))
        return frozenset((*linked, *self.pinned, *self.forbidden))

    def component_of(self, key: str) -> str:
        """The representative of an image's component: the least key of all images that must be with it."""
        return self._representatives.get(key, key)

    def component_pins(self) -> dict[str, int]:
        """Category of each component with a pinned image, by representative."""
        return {self.component_of(key): category for key, category in self.pinned.items()}

    def component_bans(self) -> dict[str, frozenset[int]]:
        """Categories that each component must not get, by representative."""
        bans: dict[str, frozenset[int]] = {}
        for key, categories in self.forbidden.items():
            component = self.component_of(key)
            bans[component] = bans.get(component, frozenset()) | categories
        return bans

    def component_rivals(self) -> frozenset[Pair]:
        """Pairs of components that must be apart, by representative, the smaller first."""
        return frozenset(_sorted_pair(*map(self.component_of, pair)) for pair in self.cannot_link)

    @cached_property
    def _representatives(self) -> dict[str, str]:
        return linked_components(self.must_link)

    def _refuse_contradictions(self) -> None:
        holders: dict[str, str] = {}  # a pinned image of each component
        for key, category in self.pinned.items():
            other = holders.setdefault(self.component_of(key), key)
            if self.pinned[other] != category:
                raise DataError(
                    f"Images {other} and {key} must be together but are pinned to categories {self.pinned[other]} and "
                    f"{category}: undo a link between them or a pin."
                )
        pins = self.component_pins()
        for key, categories in self.forbidden.items():
            component = self.component_of(key)
            if pins.get(component) in categories:
                raise DataError(
                    f"Image {key} may not be in category {pins[component]}, but must be with image "
                    f"{holders[component]}, which is pinned there: undo one of these corrections."
                )
        for first, second in self.cannot_link:
            one, two = self.component_of(first), self.component_of(second)
            if one == two or (one in pins and pins[one] == pins.get(two)):
                because = (
                    "they must be together" if one == two else f"both are pinned to category {pins[one]}"
                )
                raise DataError(
                    f"Images {first} and {second} cannot be together, but {because}: undo either."
                )


def linked_components(links: Iterable[tuple[Key, Key]]) -> dict[Key, Key]:
    """The least member of every linked one's component."""
    parents: dict[Key, Key] = {}

    def root(key: Key) -> Key:
        while parents.setdefault(key, key) != key:
            parents[key] = parents[parents[key]]
            key = parents[key]
        return key

    for one, two in links:
        low, high = sorted((root(one), root(two)))
        parents[high] = low
    return {key: root(key) for key in parents}


def _sorted_pair(one: str, two: str) -> Pair:
    return (one, two) if one <= two else (two, one)
