"""All variants by name, as methods register them. The class of a checkpoint is never looked up anywhere else."""

import os
import sys
from importlib import import_module
from typing import Any

from transformers import AutoConfig, AutoModel, PreTrainedConfig

from promptccd.errors import CheckpointError, ConfigurationError, shown
from promptccd.models.base import CategoryDiscoveryModel
from promptccd.models.checkpoint import BUNDLED, CONFIGURATION, HUB_OPTIONS, FoundModel, find_model
from promptccd.models.configuration import CategoryDiscoveryConfig
from promptccd.models.configuration import backbone_config_of as _backbone_configuration

# Every variant by its name in configurations, recipes and checkpoints.
VARIANTS: dict[str, type[CategoryDiscoveryModel]] = {}


def register_variant(model: type[CategoryDiscoveryModel]) -> None:
    """Make a variant known to this package and to transformers' auto classes.

    Raises:
        ConfigurationError: it has no configuration of its own.
    """
    config = model.config_class
    if not config.model_type or VARIANTS.setdefault(config.model_type, model) is not model:
        raise ConfigurationError(
            f"{model.__name__} has no configuration of its own: write `config: {model.__name__}Config` into the class, "
            "and `model_type = ` with a new name into that configuration."
        )
    for part in (config, model):
        _name_after_its_file(part)
    AutoConfig.register(config.model_type, config, exist_ok=True)
    AutoModel.register(config, model, exist_ok=True)


def _name_after_its_file(part: type) -> None:
    """Give a class of the running script the module name of an import, which cards show."""
    script = sys.modules["__main__"]
    name = os.path.splitext(os.path.basename(getattr(script, "__file__", None) or ""))[0]
    if part.__module__ == "__main__" and name and sys.modules.setdefault(name, script) is script:
        part.__module__ = name


def load_model(name: str | os.PathLike[str], **options: Any) -> CategoryDiscoveryModel:
    """The model of a finished stage, whichever variant it is.

    Args:
        name: as of `find_model`.
        options: of `CategoryDiscoveryModel.from_pretrained`.

    Raises:
        OSError: there is no such model.
        CheckpointError: it is no model of this package, or refused.
    """
    found = find_model(name, **{key: options.pop(key) for key in HUB_OPTIONS if key in options})
    return _variant_of(found).from_pretrained(found, **options)


def load_configuration(name: str | os.PathLike[str]) -> CategoryDiscoveryConfig:
    """The configuration of a finished stage.

    Raises:
        OSError: there is no such model.
        CheckpointError: it is no model of this package, or refused.
    """
    found = find_model(name, (CONFIGURATION,))
    return _variant_of(found).config_class.from_dict(found.values)


def backbone_configuration(name: str | os.PathLike[str], **hub_options: Any) -> PreTrainedConfig:
    """The configuration of a bare backbone; options are `promptccd.models.checkpoint.HUB_OPTIONS`.

    Raises:
        OSError: there is no such model.
        CheckpointError: it is no backbone, or refused.
    """
    return _backbone_configuration(find_model(name, (CONFIGURATION,), **hub_options).values)


def _variant_of(found: FoundModel) -> type[CategoryDiscoveryModel]:
    kind = found.values.get("model_type")
    if found.is_backbone:
        name = next((name for name, place in BUNDLED.items() if place == found.place), found.place)
        raise CheckpointError(
            f"{name} is a bare backbone, which knows no categories: give a stage that training finished, or "
            f"group images with it: promptccd discover {name} IMAGES --out groups/"
        )
    import_module("promptccd.methods")  # each of its files registers a model
    if not isinstance(kind, str) or kind not in VARIANTS:
        raise CheckpointError(
            f"{found.place} has a model of type {shown(kind)}: expected one of {', '.join(VARIANTS)}. Code that comes "
            "with a model is never run."
        )
    return VARIANTS[kind]
