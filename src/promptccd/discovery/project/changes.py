"""Changes between two states of a registry: new, larger, moved and unsure now."""

from collections.abc import Mapping
from dataclasses import dataclass

from promptccd.discovery.project.rows import Snapshot

SURE = 0.5  # least confidence of an image that the model is sure of


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


def compare(before: Snapshot, after: Snapshot, stage: int) -> StageChange:
    """Changes between two states of a registry, of which the later is at `stage`."""
    # A category that came and was emptied or set aside again is no change: neither state shows it.
    new = [each for each in after.not_retired() if each.id not in before.categories and each.active]
    common = [
        (before.categories[each.id], each)
        for each in after.not_retired()
        if each.id in before.categories and not each.aside
    ]
    moved = {
        key: (before.members.get(key), after.members.get(key))
        for key in sorted(before.images)
        if before.members.get(key) != after.members.get(key)
    }
    return StageChange(
        stage=stage,
        new=tuple(each.id for each in sorted(new, key=lambda each: (-each.size, each.id))),
        grown={new.id: (old.size, new.size) for old, new in common if new.size > old.size},
        shrunk={new.id: (old.size, new.size) for old, new in common if new.size < old.size},
        renamed={new.id: (old.name, new.name) for old, new in common if new.name != old.name},
        retired=tuple(
            each.id
            for each in after.categories.values()
            if each.retired and each.id in before.categories and not before.categories[each.id].retired
        ),
        emptied=tuple(new.id for old, new in common if new.dormant and not old.dormant),
        moved=moved,
        unsure=tuple(
            key
            for key, confidence in sorted(before.confidences.items())
            if confidence >= SURE > after.confidences.get(key, SURE)
        ),
        unassigned=len(after.images) - len(after.members),
    )
