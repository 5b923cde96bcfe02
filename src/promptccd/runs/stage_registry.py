"""The registry of a run: what its stages discovered, and what people corrected in between."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from promptccd.evaluation import Discovery
from promptccd.registry import CategoryRegistry, StageGroups, has_registry, load_registry
from promptccd.runs.run_directory import RunDirectory

NO_CATEGORY = -1


@dataclass(frozen=True, eq=False)
class SettledImages:
    """Images of earlier stages, with the category that each has by now.

    Attributes:
        registry: as the last stage left it, edits since included; `None` before the first stage, and after a stage
            from before there were registries.
        ids: per earlier stage the category ids ``(N,)``, -1 for an image that an edit took out of all.
    """

    registry: CategoryRegistry | None
    ids: Sequence[np.ndarray]

    @property
    def assigned(self) -> list[np.ndarray]:
        """Per earlier stage the ids of those images that have a category."""
        return [ids[ids != NO_CATEGORY] for ids in self.ids]

    def of_placed(self, features: Sequence[Tensor]) -> list[Tensor]:
        """The features of these images alone, and those of later stages whole."""
        masks = [torch.from_numpy(ids != NO_CATEGORY) for ids in self.ids]
        return [
            each if stage >= len(masks) or bool(masks[stage].all()) else each[masks[stage].to(each.device)]
            for stage, each in enumerate(features)
        ]


def key_of(sample_id: int) -> str:
    """What a registry calls an image of a data set."""
    return f"row:{sample_id}"


def settled_images(
    run: RunDirectory, known_ids: np.ndarray, sample_ids: Sequence[np.ndarray]
) -> SettledImages:
    """What stands before a stage.

    Args:
        run: its earlier stages are finished.
        known_ids: labels of the images of stage 0.
        sample_ids: per earlier stage its readable images; none of them for stage 0.

    Raises:
        RegistryError: the last stage's registry is damaged.
    """
    stage = len(sample_ids)
    if stage == 0:
        return SettledImages(None, [])
    if not has_registry(run.stage(stage - 1)):
        found = [np.asarray(run.assignments(earlier)["category_ids"]) for earlier in range(1, stage)]
        return SettledImages(None, [known_ids, *found])
    registry = load_registry(run.stage(stage - 1))
    members = registry.members
    ids = [
        np.array([members.get(key_of(each), NO_CATEGORY) for each in of_stage.tolist()], dtype=np.int64)
        for of_stage in sample_ids
    ]
    return SettledImages(registry, ids)


def observe_stage(
    settled: SettledImages,
    found: Discovery,
    sample_ids: np.ndarray,
    names: Sequence[str],
) -> tuple[CategoryRegistry, Discovery]:
    """Take what a stage found into the registry.

    Args:
        settled: what stood before the stage.
        found: its grouping; ids of new categories are provisional.
        sample_ids: its readable images ``(N,)``.
        names: of the known categories; position is category id.

    Returns:
        The registry after the stage, and the grouping under the ids that the registry gave.
    """
    stage, keys = len(settled.ids), [key_of(each) for each in sample_ids.tolist()]
    prototypes = found.prototypes.float().cpu().numpy()
    if settled.registry is None:
        members = dict(zip(keys, found.category_ids.tolist(), strict=True))
        shown = [names[each] if each < len(names) else f"discovered {each}" for each in found.prototype_ids]
        registry = CategoryRegistry.from_categories(
            found.prototype_ids, shown, len(names), prototypes, stage=stage, members=members
        )
        return registry, found
    row_of = {identity: row for row, identity in enumerate(found.prototype_ids)}
    before = {int(each) for ids in settled.assigned for each in np.unique(ids)}
    registry = settled.registry.copy()
    registry.observe(
        stage,
        StageGroups(
            keys,
            np.array([row_of[each] for each in found.category_ids.tolist()], dtype=np.int64),
            prototypes,
            ids=[identity if identity in before else None for identity in found.prototype_ids],
        ),
    )
    active = registry.active_prototypes()
    ids = np.array([registry.members.get(key, NO_CATEGORY) for key in keys], dtype=np.int64)
    return registry, Discovery(ids, torch.from_numpy(active.matrix).to(found.prototypes), active.ids)
