"""A model that a caller has in memory, as a recipe tells of it."""

import dataclasses
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedConfig

from promptccd.errors import ConfigurationError, RunError
from promptccd.models import CategoryDiscoveryModel
from promptccd.models.loading import BACKBONES, find_model
from promptccd.models.stored_files import BACKBONE_TYPES
from promptccd.models.weights import MAX_MODEL_BYTES
from promptccd.runs.run_directory import RunDirectory
from promptccd.storage import trusted, write_directory
from promptccd.training.arguments import ModelArguments
from promptccd.training.objectives import method_named

_NOT_CHOSEN = {"vision_config", "precision"}  # they follow from the backbone and the training


def model_arguments(model: CategoryDiscoveryModel, run: RunDirectory, method: str | None) -> ModelArguments:
    """What a recipe says of a model that is about to be trained.

    Args:
        model: over a pretrained backbone; its head and prompts do not count, a run draws them for its seed.
        run: which keeps the backbone, where that is not the one the model was loaded from.
        method: its name in `METHODS`; none means the one that is called as the model's type.

    Raises:
        ConfigurationError: the model has finished a stage, or is not of the method.
    """
    kind, config = type(model), model.config
    variant = method or config.model_type
    if method_named(variant).model is not kind:
        raise ConfigurationError(
            f"Method {variant!r} trains a {method_named(variant).model.__name__}, got a {kind.__name__}: give one of "
            "those, or name its method."
        )
    if config.stage is not None:
        raise ConfigurationError(
            f"This {kind.__name__} has finished stage {config.stage}, and a training begins with a bare backbone: give "
            f"{kind.__name__}.from_pretrained(<backbone>). A run that was begun goes on by itself in its output_dir."
        )
    chosen = _chosen(model)
    own = {each.name for each in dataclasses.fields(ModelArguments)}
    options = {name: value for name, value in chosen.items() if name not in own}
    memory = 2 * model.get_memory_footprint()
    return ModelArguments(
        variant=variant,
        backbone=_source(model) or str(run.backbone),
        options=options or None,
        max_model_bytes=memory if memory > MAX_MODEL_BYTES else None,
        **{name: value for name, value in chosen.items() if name in own},
    )


def keep_backbone(model: CategoryDiscoveryModel, run: RunDirectory) -> None:
    """Write the backbone of a model into its run, unless it lies there.

    Raises:
        RunError: another one lies there.
    """
    if not trusted(run.backbone):
        write_directory(
            run.backbone,
            lambda folder: model.backbone.save_pretrained(folder),
            needed=model.backbone.get_memory_footprint(),
        )
    elif not _lies_in(model, run.backbone):
        raise RunError(
            f"The run in {run.path} was begun with another backbone than this model has: load the model from "
            f"{run.backbone}, or give another output_dir."
        )


def _chosen(model: CategoryDiscoveryModel) -> dict[str, Any]:
    """Fields of the model's configuration that are not at their defaults."""
    known = {*PreTrainedConfig.__dataclass_fields__, *_NOT_CHOSEN}
    fields = [each for each in dataclasses.fields(type(model.config)) if each.name not in known]
    usual = {
        each.name: each.default if each.default_factory is dataclasses.MISSING else each.default_factory()
        for each in fields
    }
    found = {name: getattr(model.config, name) for name in usual}
    return {name: value for name, value in found.items() if value != usual[name]}


def _source(model: CategoryDiscoveryModel) -> str | None:
    """Where the model's backbone was loaded from, if that is a bare backbone and nothing of it was changed since."""
    place: str = model.config.name_or_path
    try:
        is_bare = bool(place) and find_model(place)[1].get("model_type") in BACKBONE_TYPES
        found = is_bare and _lies_in(model, place)
    except (OSError, ValueError):  # a folder that is gone, or a Hub that cannot be asked
        found = False
    names = {path: name for name, path in BACKBONES.items()}
    return names.get(place, place) if found else None


def _lies_in(model: CategoryDiscoveryModel, place: str | Path) -> bool:
    """Whether the bare backbone that lies there is the model's, value by value."""
    memory = 2 * model.get_memory_footprint()
    stored = type(model).from_pretrained(
        place, dtype=torch.float32, max_model_bytes=max(memory, MAX_MODEL_BYTES), **_chosen(model)
    )
    own, there = model.backbone.state_dict(), stored.backbone.state_dict()
    return own.keys() == there.keys() and all(
        value.shape == there[name].shape and torch.equal(value.cpu(), there[name].to(value.dtype))
        for name, value in own.items()
    )
