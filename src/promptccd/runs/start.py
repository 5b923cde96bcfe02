"""From a recipe to the model that stage 0 starts with."""

import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from huggingface_hub.errors import StrictDataclassError
from torch import Tensor
from transformers import Dinov2Config, PreTrainedConfig

from promptccd.clustering import fit_part_labels, sample_for_part_labels
from promptccd.data.loaders import Progress
from promptccd.data.randomness import torch_generator
from promptccd.data.ranges import with_floats
from promptccd.data.stage_images import StageImages
from promptccd.data.views import EvaluationView, build_image_processor, normalise
from promptccd.errors import ConfigurationError, DataError, PromptCCDError, one_line
from promptccd.methods import PARTS, method_named
from promptccd.models import CategoryDiscoveryModel, backbone_configuration
from promptccd.models.checkpoint import load_processor
from promptccd.runs.folder import KEPT_STATES, NORMALISATION, RunDirectory
from promptccd.runs.stage import frozen_names
from promptccd.storage import has_links, trusted, write_directory
from promptccd.training.devices import exact_device, same_on_all
from promptccd.training.pretraining import pretrain_backbone
from promptccd.training.recipe import Recipe

logger = logging.getLogger(__name__)


def evaluation_view(recipe: Recipe, run: RunDirectory | None = None) -> EvaluationView:
    """The deterministic view of a recipe, before a checkpoint exists that holds it.

    Colours are normalised as a run that was begun records it, whatever became of its backbone since; otherwise as the
    backbone's own processor says, or else as ImageNet's.
    """
    recorded = (run.manifest if run is not None and run.begun else {}).get(NORMALISATION)
    if recorded is not None:
        return EvaluationView(build_image_processor(recipe.views, recorded["mean"], recorded["std"]))
    published = None if recipe.model.backbone is None else published_processor(recipe.model.backbone)
    if published is None:
        return EvaluationView(build_image_processor(recipe.views))
    return EvaluationView(build_image_processor(recipe.views, published.image_mean, published.image_std))


def published_processor(backbone: str | Path, **hub_options: Any) -> Any:
    """The image processor beside a backbone; `None` if there is none, or it cannot be reached.

    Options are `promptccd.models.checkpoint.HUB_OPTIONS`.

    Raises:
        ConfigurationError: there is one that no DINO has.
    """
    try:
        return load_processor(backbone, **hub_options)
    except OSError:  # no such backbone, or no network and never fetched: loading it says why
        return None
    except ValueError as error:
        raise ConfigurationError(
            f"{error} Mend that file, or take it away: ImageNet's values are used then."
        ) from error


def rim_not_seen(sides: Sequence[int], patch_size: int) -> str:
    """What of a view lies in no whole patch, and which sides lose nothing, in a line; empty if all of it is seen.

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
    """Refuse an image size that the backbone's patches do not divide, if there is such a backbone.

    Args:
        recipe: the backbone and the views.
        hub_options: `promptccd.models.checkpoint.HUB_OPTIONS`.

    Raises:
        ConfigurationError: naming both, and what would do.
    """
    try:
        patch_size = _vision_config(recipe, **hub_options).patch_size
    except ConfigurationError:
        return  # whoever loads the backbone says why
    if rim := rim_not_seen([recipe.views.image_size], patch_size):
        raise ConfigurationError(
            f"image_size {rim}. Give such an --image_size, and a --resize_size no smaller."
        )


_NOT_THE_MODELS = {"variant", "backbone", "backbone_config", "max_model_bytes"}


def model_options(recipe: Recipe) -> dict[str, Any]:
    """Fields of the variant's configuration that a recipe sets; the others keep the variant's default.

    Raises:
        ConfigurationError: a field is set that the variant does not have, or sizes do not fit together.
    """
    kind = method_named(recipe.model.variant).model.config_class
    own = kind.__dataclass_fields__
    given = {key: value for key, value in asdict(recipe.model).items() if value is not None}
    given |= given.pop("options", {})
    foreign = sorted(given.keys() - own.keys() - _NOT_THE_MODELS)
    if foreign:
        raise ConfigurationError(
            f"{recipe.model.variant} has no {', '.join(foreign)}: leave it out, or choose another --variant."
        )
    if "num_parts" in own:
        wanted = given.pop("num_parts", recipe.data.resolved.num_parts)
        if wanted not in ("auto", None):  # auto: chosen when stage 0 has been seen
            given["num_parts"] = wanted
    options = {key: with_floats(value, own[key].type) for key, value in given.items() if key in own}
    try:
        kind(**options)  # sizes are checked before anything is loaded
    except StrictDataclassError as error:
        raise ConfigurationError(f"{recipe.model.variant}: {error.__cause__ or error}") from error
    return options


def initial_model(recipe: Recipe, backbone: str | Path) -> CategoryDiscoveryModel:
    """A model with a pretrained backbone, and a head and prompts drawn for the seed of the run.

    Raises:
        ConfigurationError: there is no such backbone, or the variant's sizes do not fit together.
    """
    options = model_options(recipe)
    try:
        model = method_named(recipe.model.variant).model.from_pretrained(
            backbone, dtype=torch.float32, max_model_bytes=recipe.model.max_model_bytes, **options
        )
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"Cannot load the backbone {str(backbone)!r}: {one_line(error)} Give --backbone a folder or a Hub id that "
            "can be reached, or photographs, a small one that comes along and needs no network."
        ) from error
    model.config.precision = "bfloat16" if recipe.training.mixed_precision == "bf16" else "float32"
    model.head.reset_parameters(torch_generator("head", recipe.training.seed))
    model.reset_prompts(torch_generator("prompts", recipe.training.seed))
    return model


def stage_zero_model(
    recipe: Recipe, backbone: str | Path, images: StageImages, category_ids: np.ndarray, device: torch.device
) -> CategoryDiscoveryModel:
    """The model stage 0 starts with; the part labels of a model with parts are fitted on stage 0's readable images.

    Raises:
        PromptCCDError: as `initial_model`, or no parts can be told apart.
    """
    model = initial_model(recipe, backbone).to(device)
    if model.part_labeller is None:
        return model
    side = recipe.views.image_size // model.config.vision_config.patch_size
    wanted: Any = "auto" if recipe.model.num_parts == "auto" else model.config.num_parts
    sample = sample_for_part_labels(category_ids.tolist(), side * side, seed=recipe.training.seed)
    view = evaluation_view(recipe)
    pixels = torch.stack([images.seen_in(view, index) for index in sample])
    features = [
        model.pretrained_patch_features(normalise(batch.to(device), view.mean, view.std))
        for batch in pixels.split(recipe.training.feature_batch_size)
    ]
    # Processes may differ in the last bit, and must not choose different numbers of parts in a tie.
    labels = same_on_all(
        fit_part_labels(
            torch.cat(features).to(exact_device(device)), (side, side), wanted, seed=recipe.training.seed
        )
    )
    if labels.num_parts != model.config.num_parts:
        sized = replace(recipe, model=replace(recipe.model, num_parts=labels.num_parts))
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
            f"Stage 0 has {len(images)} image to pretrain a backbone on, and that takes two at least: label more "
            "images, or give a pretrained one with --backbone."
        )
    logger.info("Pretraining a small backbone without labels on the %d images of stage 0.", len(images))
    view = evaluation_view(recipe)
    pixels = torch.stack([images.seen_in(view, index) for index in range(len(images))])
    backbone = pretrain_backbone(
        pixels.to(device), config, recipe.pretraining, seed=recipe.training.seed, progress=progress
    )
    write_directory(run.backbone, backbone.save_pretrained, needed=backbone.get_memory_footprint())


# Configurations that need not be asked from the Hub.
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
    """What learns at the first and at the last stage; nothing is allocated or loaded.

    A mixture grows with the categories; a router learns only at stage 0. If the number of parts is chosen on the
    images (`num_parts` auto), the variant's default is counted.

    Raises:
        ConfigurationError: the backbone's configuration cannot be found, or sizes do not fit together.
    """
    first, last = _learning(recipe, 0), _learning(recipe, len(recipe.data.resolved.class_blocks) - 1)
    titles = {**PARTS, **method_named(recipe.model.variant).parts}
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
    if "answer_categories" in own:
        options["answer_categories"] = [-1] * sizes["num_components"]
    with torch.device("meta"):
        model = variant(variant.config_class(vision_config=_vision_config(recipe), **options))
    model.config.stage = None if stage == 0 else stage - 1
    model.freeze()
    return model


def _learning(recipe: Recipe, stage: int) -> Counter[str]:
    model = model_on_meta(recipe, stage)
    counts = Counter[str]()
    for name, value in model.named_parameters():
        if value.requires_grad:
            counts[name.partition(".")[0]] += value.numel()
    if model.mixture is not None:
        counts["mixture"] = model.mixture.num_parameters
    return counts


def _vision_config(recipe: Recipe, **hub_options: Any) -> PreTrainedConfig:
    name = recipe.model.backbone
    if name is None:
        return described_backbone(recipe)
    if name in PUBLISHED:
        return PUBLISHED[name]
    try:
        return backbone_configuration(name, **hub_options)
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"Cannot read the configuration of backbone {name!r}: {one_line(error)} Give --backbone a folder or a "
            "Hub id that can be reached, or photographs, which comes along."
        ) from error


@dataclass(frozen=True)
class TrainingSpace:
    """Bytes that a training writes, without the little that JSON, cards and logs take.

    Attributes:
        backbone: of a backbone that the run pretrains, else 0.
        frozen: of the weights that all stages share, which a disk keeps once.
        stage: of the rest of a stage's checkpoint.
        state: of a state inside a stage.
    """

    backbone: int
    frozen: int
    stage: int
    state: int

    @classmethod
    def of(cls, recipe: Recipe) -> "TrainingSpace":
        """Counted on meta models of the first stage, which learns most, and of the last; see `count_parameters`."""
        blocks = recipe.data.resolved.class_blocks
        models = [model_on_meta(recipe, stage) for stage in (0, len(blocks) - 1)]
        made_here = 0 if recipe.model.backbone is not None else _bytes_of(models[0].backbone.parameters())
        states = [_state_bytes(model, _KEPT[recipe.training.optimizer]) for model in models]
        weights = dict(models[0].named_parameters())
        frozen = _bytes_of(weights[name] for name in frozen_names(models[0]))
        return cls(made_here, frozen, max(map(checkpoint_bytes, models)) - frozen, max(states))

    def left(self, run: RunDirectory, num_stages: int) -> int:
        """What is still to be written of a run.

        Stages are never replaced; of states, one more than `KEPT_STATES` exists until the oldest is deleted. A disk
        without hard links keeps what stages share with each of them.
        """
        stages = sum(not run.stage(index).exists() for index in range(num_stages))
        frozen = self.frozen * (stages if not has_links(run.path) else stages == num_stages)
        states = max(0, KEPT_STATES + 1 - sum(1 for _ in run.path.glob("resume/stage*"))) if stages else 0
        backbone = 0 if run.backbone.exists() else self.backbone
        return backbone + frozen + stages * self.stage + states * self.state


def checkpoint_bytes(model: CategoryDiscoveryModel) -> int:
    """Bytes of a checkpoint's weights."""
    return _bytes_of(model.state_dict().values())


def space_of_all(recipes: Iterable[Recipe]) -> int:
    """What trainings in different folders still write; 0 for one with an error, which is raised when it is trained."""
    needed, shared = 0, dict[str, int]()
    for recipe in recipes:
        run, backbone = RunDirectory(Path(recipe.training.output_dir)), recipe.model.backbone
        try:
            space = TrainingSpace.of(recipe)
        except PromptCCDError:
            continue
        if backbone is not None and has_links(run.path.parent):  # runs share it too
            shared[backbone] = max(space.frozen, shared.get(backbone, 0))
            space = replace(space, frozen=0)
        needed += space.left(run, len(recipe.data.resolved.class_blocks))
    return needed + sum(shared.values())


_KEPT = {"sgd": 1, "adamw": 2}  # values that an optimiser keeps per learnt value


def _state_bytes(model: CategoryDiscoveryModel, kept: int) -> int:
    """Bytes of the learnt values, of those the optimiser keeps, and of fitted buffers."""
    learnt = _bytes_of(value for value in model.parameters() if value.requires_grad)
    return checkpoint_bytes(model) - _bytes_of(model.parameters()) + (1 + kept) * learnt


def _bytes_of(values: Iterable[Tensor]) -> int:
    return sum(value.nbytes for value in values)
