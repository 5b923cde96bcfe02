"""The registry that belongs to a model: the one that lies beside it, or one made of its categories."""

import os
from pathlib import Path

from transformers.utils import cached_file

from promptccd.errors import RegistryError
from promptccd.models import CategoryDiscoveryModel
from promptccd.models.loading import find_model
from promptccd.registry import PROTOTYPES, REGISTRY, CategoryRegistry, has_registry, load_registry


def registry_of(model: CategoryDiscoveryModel, place: str | Path) -> CategoryRegistry:
    """Categories and corrections that came with a model.

    Args:
        model: loaded.
        place: where from: a folder or a name on the Hub. A bare backbone and a model that was saved in Python have no
            registry; it is made of the categories in the configuration.

    Raises:
        RegistryError: it is damaged, or belongs to features of another width.
    """
    folder, config = _folder_of(place), model.config
    if folder is not None:
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
    return CategoryRegistry.from_categories(
        config.category_ids,
        config.category_names,
        config.num_known,
        model.prototypes.float().cpu().numpy(),
        stage=config.stage or 0,
    )


def _folder_of(place: str | Path) -> Path | None:
    if os.path.isdir(place):
        return Path(place) if has_registry(place) else None
    found = [
        cached_file(
            find_model(place)[0],
            name,
            _raise_exceptions_for_missing_entries=False,
            _raise_exceptions_for_connection_errors=False,
        )
        for name in (REGISTRY, PROTOTYPES)
    ]
    return None if None in found else Path(found[0]).parent
