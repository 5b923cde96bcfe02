"""How many values a recipe's model learns, part by part: the paper's table for any backbone."""

from dataclasses import dataclass

import torch
from transformers import Dinov2Config, PreTrainedConfig

from promptccd.errors import ConfigurationError
from promptccd.models import VARIANTS, CategoryDiscoveryModel, backbone_configuration
from promptccd.models.untrusted import one_line
from promptccd.runs.models import described_backbone, model_options
from promptccd.training.arguments import Recipe

PARTS = {  # children of a model, in the order of the paper's table
    "backbone": "last block of the backbone",
    "head": "projection head",
    "mixture": "Gaussian mixture, fitted",
    "pool": "prompt pool",
    "pools": "part pools",
    "router": "part router",
}
# What can be said without asking the Hub.
PUBLISHED = {"facebook/dinov2-base": Dinov2Config(image_size=518, patch_size=14)}


@dataclass(frozen=True)
class ParameterCount:
    """One row of the table.

    Attributes:
        part: what learns.
        labelled: values it learns at stage 0.
        unlabelled: values it learns at the last stage.
    """

    part: str
    labelled: int
    unlabelled: int


def count_parameters(recipe: Recipe) -> list[ParameterCount]:
    """What learns, at the first and at the last stage; nothing is allocated or loaded.

    A mixture grows with the categories, a router learns at stage 0 alone. Where the number of parts is chosen on
    the images (`num_parts` auto), the variant's default stands in for it.

    Raises:
        ConfigurationError: the backbone's configuration cannot be found, or sizes do not fit together.
    """
    blocks = recipe.data.resolved.class_blocks
    counts = [_learning(recipe, stage, sum(blocks[: stage + 1])) for stage in (0, len(blocks) - 1)]
    return [
        ParameterCount(title, counts[0].get(name, 0), counts[1].get(name, 0))
        for name, title in PARTS.items()
        if counts[0].get(name) or counts[1].get(name)
    ]


def model_on_meta(recipe: Recipe, stage: int, num_categories: int) -> CategoryDiscoveryModel:
    """A model as it learns at a stage, of shapes without values.

    Raises:
        ConfigurationError: the backbone's configuration cannot be found, or sizes do not fit together.
    """
    variant = VARIANTS[recipe.model.variant]
    options = model_options(recipe)
    if "num_components" in variant.config_class.__dataclass_fields__:
        options["num_components"] = num_categories
    with torch.device("meta"):
        model = variant(variant.config_class(vision_config=_vision_config(recipe), **options))
    model.config.stage = None if stage == 0 else stage - 1
    model.freeze()
    return model


def _learning(recipe: Recipe, stage: int, num_categories: int) -> dict[str, int]:
    model = model_on_meta(recipe, stage, num_categories)
    counts = {
        name: sum(value.numel() for value in child.parameters() if value.requires_grad)
        for name, child in model.named_children()
    }
    if model.mixture is not None:
        counts["mixture"] = sum(value.numel() for value in model.mixture.buffers())
    return counts


def _vision_config(recipe: Recipe) -> PreTrainedConfig:
    name = recipe.model.backbone
    if name is None:
        return described_backbone(recipe)
    if name in PUBLISHED:
        return PUBLISHED[name]
    try:
        config: PreTrainedConfig = backbone_configuration(name)
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"Cannot read the configuration of backbone {name!r}: {one_line(error)} Give --backbone a folder or a "
            "Hub id you can reach."
        ) from error
    return config
