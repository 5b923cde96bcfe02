"""The model a run starts with: its backbone, its view of images, its part labels and how much of it learns."""

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import Dinov2Config, PreTrainedConfig

from promptccd.clustering import fit_part_labels, sample_for_part_labels
from promptccd.data.loaders import Progress
from promptccd.data.randomness import torch_generator
from promptccd.data.readable import StageImages
from promptccd.data.views import EvaluationView, build_image_processor, normalise
from promptccd.disk import trusted, write_directory
from promptccd.errors import ConfigurationError, DataError, one_line
from promptccd.methods import COMMON_PARTS, method_named
from promptccd.methods.processes import exact_device, same_on_all
from promptccd.models import CategoryDiscoveryModel, backbone_configuration
from promptccd.models.checkpoint import load_processor
from promptccd.runs.folder import NORMALISATION, RunDirectory
from promptccd.training.pretraining import pretrain_backbone
from promptccd.training.recipe import Recipe

logger = logging.getLogger(__name__)


def evaluation_view(recipe: Recipe, run: RunDirectory | None = None) -> EvaluationView:
    """The deterministic view of a recipe, for use before a checkpoint exists.

    Colours are normalised by the values that the run recorded, else by those of the backbone's processor, else by
    ImageNet's.
    """
    recorded = (run.manifest if run is not None and run.begun else {}).get(NORMALISATION)
    if recorded is not None:
        return EvaluationView(build_image_processor(recipe.views, recorded["mean"], recorded["std"]))
    published = None if recipe.model.backbone is None else published_processor(recipe.model.backbone)
    if published is None:
        return EvaluationView(build_image_processor(recipe.views))
    return EvaluationView(build_image_processor(recipe.views, published.image_mean, published.image_std))


def published_processor(backbone: str | Path, **hub_options: Any) -> Any:
    """The image processor of a backbone; `None` if there is none, or it cannot be reached.

    Options are `promptccd.models.checkpoint.HUB_OPTIONS`.

    Raises:
        ConfigurationError: it is no processor of a DINO.
    """
    try:
        return load_processor(backbone, **hub_options)
    except OSError:  # no such backbone, or no network and never fetched: loading it says why
        return None
    except ValueError as error:
        raise ConfigurationError(
            f"{error} Correct that file, or remove it to use ImageNet's values."
        ) from error


def rim_not_seen(sides: Sequence[int], patch_size: int) -> str:
    """A message on the rim of a view that no whole patch covers, and sides that fit; empty if there is no rim.

    Args:
        sides: of the view, in pixels.
        patch_size: of the backbone, in pixels.
    """
    side = next((each for each in sides if each % patch_size), 0)
    if not side:
        return ""
    below = side - side % patch_size
    fitting = " or ".join(str(each) for each in (below, below + patch_size) if each)
    return (
        f"{side} is no multiple of the backbone's patch of {patch_size} pixels, which does not see the last "
        f"{side - below} of each row and column: {fitting} would do"
    )


def require_whole_patches(recipe: Recipe, **hub_options: Any) -> None:
    """Refuse a backbone that cannot be read, and an image size that its patches do not divide.

    Args:
        recipe: the backbone and the views.
        hub_options: `promptccd.models.checkpoint.HUB_OPTIONS`; with ``local_files_only``, a backbone that is not on
            this machine is not refused.

    Raises:
        ConfigurationError: naming the backbone, or both sizes and those that fit.
    """
    try:
        patch_size = _vision_config(recipe, **hub_options).patch_size
    except ConfigurationError:
        if hub_options.get("local_files_only"):
            return
        raise
    if rim := rim_not_seen([recipe.views.image_size], patch_size):
        raise ConfigurationError(
            f"image_size {rim}. Give such an --image_size, and a --resize_size no smaller."
        )


def model_options(recipe: Recipe) -> dict[str, Any]:
    """Fields of the method's configuration that a recipe or its benchmark sets; the others keep their defaults."""
    options = dict(recipe.model.options)
    if "num_parts" in method_named(recipe.model.variant).model.config_class.__dataclass_fields__:
        wanted = options.pop("num_parts", recipe.data.resolved.num_parts)
        if wanted not in ("auto", None):  # auto: chosen from the images of stage 0
            options["num_parts"] = wanted
    return options


def initial_model(recipe: Recipe, backbone: str | Path) -> CategoryDiscoveryModel:
    """A model with a pretrained backbone, and a head and prompts drawn for the seed of the run.

    Raises:
        ConfigurationError: there is no such backbone, or the variant's sizes do not fit together.
    """
    with _backbone_errors("load the", backbone):
        model = method_named(recipe.model.variant).model.from_pretrained(
            backbone,
            dtype=torch.float32,
            max_model_bytes=recipe.model.max_model_bytes,
            **model_options(recipe),
        )
    model.config.precision = "bfloat16" if recipe.training.mixed_precision == "bf16" else "float32"
    model.head.reset_parameters(torch_generator("head", recipe.training.seed))
    model.reset_prompts(torch_generator("prompts", recipe.training.seed))
    return model


def stage_zero_model(
    recipe: Recipe, backbone: str | Path, images: StageImages, category_ids: np.ndarray, device: torch.device
) -> CategoryDiscoveryModel:
    """The model stage 0 starts with; the part labels of a model with parts are fitted on stage 0's readable images.

    Raises:
        PromptCCDError: as `initial_model`, or no parts can be separated.
    """
    model = initial_model(recipe, backbone).to(device)
    if model.part_labeller is None:
        return model
    side = recipe.views.image_size // model.config.vision_config.patch_size
    wanted: Any = "auto" if recipe.model.options.get("num_parts") == "auto" else model.config.num_parts
    sample = sample_for_part_labels(category_ids.tolist(), side * side, seed=recipe.training.seed)
    view = evaluation_view(recipe)
    pixels = torch.stack([images.seen_in(view, index) for index in sample])
    features = torch.cat(
        [
            model.pretrained_patch_features(normalise(batch.to(device), view.mean, view.std))
            for batch in pixels.split(recipe.training.feature_batch_size)
        ]
    ).to(exact_device(device))
    # Processes may differ in the last bit, and must not choose different numbers of parts in a tie.
    labels = same_on_all(fit_part_labels(features, (side, side), wanted, seed=recipe.training.seed))
    if labels.num_parts != model.config.num_parts:
        options = {**recipe.model.options, "num_parts": labels.num_parts}
        sized = replace(recipe, model=replace(recipe.model, options=options))
        model = initial_model(sized, backbone).to(device)
        logger.info("%d parts, background included, separate best.", labels.num_parts)
    assert model.part_labeller is not None
    model.part_labeller.load(labels)
    return model


def backbone_of(recipe: Recipe, run: RunDirectory) -> str | Path:
    """Hub id or folder of the backbone a run starts from."""
    return recipe.model.backbone or run.backbone


def described_backbone(recipe: Recipe) -> Dinov2Config:
    """The configuration of the backbone that a recipe without a pretrained one describes.

    Raises:
        ConfigurationError: an unknown field, or values that make no DINOv2.
    """
    fields = recipe.model.backbone_config
    unknown = sorted(fields.keys() - Dinov2Config.__dataclass_fields__.keys())
    if unknown:
        raise ConfigurationError(f"model.backbone_config has no {', '.join(unknown)}: see Dinov2Config.")
    try:
        return Dinov2Config(**fields)
    except Exception as error:
        raise ConfigurationError(
            f"model.backbone_config {fields} makes no Dinov2Config: {' '.join(str(error).split())}"
        ) from error


def ensure_backbone(
    recipe: Recipe, run: RunDirectory, images: StageImages, device: torch.device, progress: Progress
) -> None:
    """Pretrain the backbone a recipe describes, without labels on stage-0 images, unless that is done already.

    Raises:
        ConfigurationError: the recipe neither names nor describes a backbone.
        DataError: stage 0 has only one image.
    """
    if recipe.model.backbone is not None or trusted(run.backbone):
        return
    config = described_backbone(recipe)
    if len(images) < 2:
        raise DataError(
            f"Stage 0 has {len(images)} image to pretrain a backbone on, and two are needed: label more "
            "images, or give a pretrained one with --backbone."
        )
    logger.info("Pretraining a small backbone without labels on the %d images of stage 0.", len(images))
    view = evaluation_view(recipe)
    pixels = torch.stack([images.seen_in(view, index) for index in range(len(images))])
    backbone = pretrain_backbone(
        pixels.to(device), config, recipe.pretraining, seed=recipe.training.seed, progress=progress
    )
    write_directory(run.backbone, backbone.save_pretrained, needed=backbone.get_memory_footprint())


# Configurations that are not requested from the Hub.
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
    """Numbers of learnt values at the first and at the last stage; nothing is allocated or loaded.

    A mixture grows with the categories; a router learns only at stage 0. If the number of parts is chosen on the
    images (`num_parts` auto), the variant's default is counted.

    Raises:
        ConfigurationError: the backbone's configuration cannot be found, or sizes do not fit together.
    """
    first, last = Counter[str](), Counter[str]()
    for stage, counts in ((0, first), (len(recipe.data.resolved.class_blocks) - 1, last)):
        model = model_on_meta(recipe, stage)
        for name, value in model.named_parameters():
            counts[name.partition(".")[0]] += value.numel() * value.requires_grad
        if model.mixture is not None:
            counts["mixture"] = model.mixture.num_parameters
    titles = {**COMMON_PARTS, **method_named(recipe.model.variant).parts}
    undeclared = {name: name for name in [*first, *last] if name not in titles}
    return [
        ParameterCount(title, first[name], last[name])
        for name, title in {**titles, **undeclared}.items()
        if first[name] or last[name]
    ]


def model_on_meta(recipe: Recipe, stage: int) -> CategoryDiscoveryModel:
    """A model as it learns at a stage, on the meta device; errors are those of `count_parameters`."""
    variant = method_named(recipe.model.variant).model
    options = model_options(recipe)
    blocks = recipe.data.resolved.class_blocks
    sizes = dict.fromkeys(("num_components", "num_classes", "num_means"), sum(blocks[: stage + 1]))
    sizes |= {"num_branches": stage, "num_clusters": blocks[stage] if stage else 0}
    own = variant.config_class.__dataclass_fields__
    options |= {name: size for name, size in sizes.items() if name in own}
    if "native_categories" in own:
        options["native_categories"] = [-1] * sizes["num_components"]
    with torch.device("meta"):
        model = variant(variant.config_class(vision_config=_vision_config(recipe), **options))
    model.config.stage = None if stage == 0 else stage - 1
    model.freeze()
    return model


def _vision_config(recipe: Recipe, **hub_options: Any) -> PreTrainedConfig:
    name = recipe.model.backbone
    if name is None:
        return described_backbone(recipe)
    if name in PUBLISHED:
        return PUBLISHED[name]
    with _backbone_errors("read the configuration of", name):
        return backbone_configuration(name, **hub_options)


@contextmanager
def _backbone_errors(action: str, backbone: str | Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"Cannot {action} backbone {str(backbone)!r}: {one_line(error)} Give --backbone a folder or a Hub id that "
            "can be reached, or photographs, a small bundled one."
        ) from error
