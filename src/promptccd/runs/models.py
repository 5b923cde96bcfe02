"""From a recipe to the model that stage 0 starts with."""

import dataclasses
import logging
from pathlib import Path

import torch
from transformers import Dinov2Config

from promptccd.data.randomness import torch_generator
from promptccd.data.stage_images import Progress, StageImages
from promptccd.data.views import EvaluationView, build_image_processor
from promptccd.errors import ConfigurationError
from promptccd.models import CategoryDiscoveryModel, GCDModel, PromptCCDModel
from promptccd.runs.run_directory import RunDirectory
from promptccd.training.arguments import Recipe
from promptccd.training.checkpoints import trusted, write_directory
from promptccd.training.pretraining import pretrain_backbone

logger = logging.getLogger(__name__)

VARIANTS: dict[str, type[CategoryDiscoveryModel]] = {
    model.config_class.model_type: model for model in (PromptCCDModel, GCDModel)
}


def evaluation_view(recipe: Recipe) -> EvaluationView:
    """The deterministic view of a recipe, before there is a checkpoint to read it from."""
    return EvaluationView(build_image_processor(recipe.views))


def initial_model(recipe: Recipe, backbone: str | Path) -> CategoryDiscoveryModel:
    """A model with a pretrained backbone and a head drawn for the seed of the run.

    Args:
        recipe: names the variant, its sizes and the seed.
        backbone: Hub id or folder of a bare backbone.

    Raises:
        ConfigurationError: there is no such backbone.
    """
    variant = VARIANTS[recipe.model.variant]
    known = variant.config_class.__dataclass_fields__
    options = {key: value for key, value in dataclasses.asdict(recipe.model).items() if key in known}
    try:
        model = variant.from_pretrained(backbone, dtype=torch.float32, **options)
    except OSError as error:
        raise ConfigurationError(
            f"Cannot load the backbone {str(backbone)!r}: {str(error).splitlines()[0]} Give --backbone a folder or a "
            "Hub id you can reach, such as facebook/dinov2-base."
        ) from error
    model.head.reset_parameters(torch_generator("head", recipe.training.seed))
    return model


def backbone_of(recipe: Recipe, run: RunDirectory) -> str | Path:
    """Hub id or folder of the frozen backbone a run starts from."""
    return recipe.model.backbone or run.backbone


def ensure_backbone(
    recipe: Recipe, run: RunDirectory, images: StageImages, device: torch.device, progress: Progress
) -> None:
    """Pretrain the backbone a recipe describes without labels on stage-0 images, unless that was done.

    Raises:
        ConfigurationError: the recipe names no backbone and describes none.
    """
    if recipe.model.backbone is not None or trusted(run.backbone):
        return
    try:
        config = Dinov2Config(**recipe.model.backbone_config)
    except Exception as error:
        raise ConfigurationError(
            f"model.backbone_config {recipe.model.backbone_config} makes no Dinov2Config: "
            f"{' '.join(str(error).split())}"
        ) from error
    logger.info("Pretraining a small backbone without labels on the %d images of stage 0.", len(images))
    view = evaluation_view(recipe)
    pixels = torch.stack([view(images[index]) for index in range(len(images))])
    backbone = pretrain_backbone(
        pixels.to(device), config, recipe.pretraining, seed=recipe.training.seed, progress=progress
    )
    write_directory(run.backbone, lambda folder: backbone.save_pretrained(folder))
