"""The registry that came with a model, and the categories that a registry has images in."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from promptccd.discovery.project.registry import CategoryRegistry, has_registry, load_registry
from promptccd.errors import RegistryError
from promptccd.models import Assignment, CategorySpread
from promptccd.models.assignment import assign

if TYPE_CHECKING:
    from promptccd.models import CategoryDiscoveryModel


def registry_of(model: "CategoryDiscoveryModel", place: str | Path) -> CategoryRegistry:
    """Categories and corrections that came with a model.

    Args:
        model: loaded.
        place: where it was loaded from, a folder or a name on the Hub. A bare backbone and a model that was saved in
            Python have no registry; a new one gets the categories in the configuration.

    Raises:
        RegistryError: it is damaged, or belongs to features of another width.
    """
    folder, config = Path(place), model.config
    if not folder.is_dir() and model.source is not None:
        folder = Path(model.source.root, model.source.inner)
    if has_registry(folder):
        registry = load_registry(folder)
        width = config.vision_config.hidden_size
        if registry.active and registry.prototypes.shape[1] != width:
            raise RegistryError(
                f"The registry of {str(place)!r} has prototypes of {registry.prototypes.shape[1]} values, its model "
                f"features of {width}: the two are of different checkpoints. Copy the checkpoint again."
            )
        return registry
    if not config.category_ids:
        return CategoryRegistry()
    ids, names, prototypes = (
        config.category_ids,
        config.category_names,
        model.prototypes.float().cpu().numpy(),
    )
    return CategoryRegistry.from_categories(ids, names, config.num_known, prototypes, stage=config.stage or 0)


def assignment_in(
    registry: CategoryRegistry,
    keys: Sequence[str],
    features: Tensor,
    *,
    stage: int | None = None,
    temperature: float = 1.0,
    spread_for: Callable[[Sequence[int]], CategorySpread | None] = lambda ids: None,
) -> Assignment:
    """Images in their categories of a registry; unassigned and ignored images are left out.

    Distances are to the prototypes of the registry.

    Args:
        registry: of these images.
        keys: of all images, also of unassigned images.
        features: unit features ``(N, D)``.
        stage: of the images, by default the newest; older categories count as known.
        temperature: of the confidences, in squared distance.
        spread_for: how far categories of these ids spread; `None` where that was not measured.
    """
    first = {each.id for each in registry.active if each.is_fixed(registry.stage if stage is None else stage)}
    members, pinned = registry.members, registry.pinned
    found = registry.active_prototypes()
    order = sorted(range(len(found.ids)), key=lambda row: (found.ids[row] not in first, found.ids[row]))
    ids = [found.ids[row] for row in order]
    position = {identity: row for row, identity in enumerate(ids)}
    placed = [row for row, key in enumerate(keys) if members.get(key) in position]
    kept = [keys[row] for row in placed]
    return assign(
        features[placed],
        torch.from_numpy(found.matrix[order]).double(),
        ids,
        temperature=temperature,
        spread=spread_for(ids),
        rows=torch.tensor([position[members[key]] for key in kept], dtype=torch.int64),
        decided=torch.tensor([key in pinned for key in kept], dtype=torch.bool),
        num_known=len(first.intersection(ids)),
        keys=kept,
    )
