"""Labels that came after their images had been grouped: corrections like any other, many at once."""

from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from promptccd.discovery.project import edits
from promptccd.discovery.project.registry import CategoryRegistry


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


def apply_labels(registry: CategoryRegistry, labels: Mapping[str, str]) -> Labelled:
    """Put images into the categories of their labels, and pin them there; the same labels again change nothing.

    A label that no category bears becomes the name of a found one without a name, if most labelled images there have
    it, or else a category of its own.

    Args:
        registry: is changed.
        labels: label by key of an image; keys that the registry does not have are left out.

    Raises:
        RegistryError: a label cannot be the name of a category; nothing of that label changed.
    """
    images: dict[str, list[str]] = defaultdict(list)
    for key in sorted(labels.keys() & registry.images.keys()):
        images[labels[key]].append(key)
    counts = {label: Counter(registry.members.get(key) for key in keys) for label, keys in images.items()}
    named, new, moved = [], [], 0
    for label in sorted(images):
        keys, bearing = (
            images[label],
            {each.name: each.id for each in registry.categories.values() if not each.retired},
        )
        if label not in bearing and (found := _unnamed(registry, counts, label)) is not None:
            edits.rename(registry, found, label)
            bearing[label] = found
            named.append(label)
        category = bearing.get(label)
        moved += sum(registry.members.get(key) != category for key in keys)
        if category is None:
            edits.gather(registry, keys, label, _between(registry, keys))
            new.append(label)
        elif away := [key for key in keys if not _is_labelled(registry, key, category)]:
            edits.move(registry, away, category)
    return Labelled(sum(map(len, images.values())), moved, tuple(named), tuple(new))


def _is_labelled(registry: CategoryRegistry, key: str, category: int) -> bool:
    """Whether an image is where it belongs for good: pinned there, or labelled from the first."""
    return registry.members.get(key) == category and (key in registry.pinned or not registry.images[key])


def _unnamed(registry: CategoryRegistry, counts: Mapping[str, Counter[int | None]], label: str) -> int | None:
    """The found category without a name with most images of a label, if most labelled images there have it."""
    for category, count in counts[label].most_common(1):
        if category is None or registry.categories[category].named:
            return None
        return category if 2 * count > sum(each[category] for each in counts.values()) else None
    return None


def _between(registry: CategoryRegistry, keys: list[str]) -> np.ndarray:
    """The start of a new category: between the earlier categories of its images; the next grouping refines it."""
    rows = [
        registry.categories[registry.members[key]].prototype_row for key in keys if key in registry.members
    ]
    vectors = registry.prototypes[rows] if rows else registry.active_prototypes().matrix
    return vectors.mean(axis=0, dtype=np.float64)
