"""The start of a run: its settings, its stages, its backbone and the model of stage 0."""

import json
import logging
import os
import platform
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from transformers import Dinov2Config, PreTrainedConfig, ViTConfig

from promptccd.clustering import fit_part_labels, sample_for_part_labels
from promptccd.data.hub import published_split
from promptccd.data.labels import BOTH
from promptccd.data.loaders import Progress
from promptccd.data.randomness import torch_generator
from promptccd.data.readable import StageImages
from promptccd.data.splits import CategorySplit
from promptccd.data.stages import StageStream
from promptccd.data.tables import BUILT_IN
from promptccd.data.views import EvaluationView, build_image_processor, normalise
from promptccd.disk import remove_leftovers, trusted, write_directory, write_file
from promptccd.errors import ConfigurationError, DataError, RunError, SplitMismatchError, one_line
from promptccd.images.rendering import Rendering
from promptccd.methods import COMMON_PARTS, method_named
from promptccd.methods.processes import exact_device, same_on_all
from promptccd.models import CategoryDiscoveryModel, backbone_configuration
from promptccd.models.checkpoint import FoundModel, load_processor
from promptccd.runs.folder import RESUME, RUN_FORMAT, RunDirectory, change_places, folder_name
from promptccd.training.options import DataArguments
from promptccd.training.pretraining import pretrain_backbone
from promptccd.training.recipe import Recipe, laid_over
from promptccd.version import __version__

logger = logging.getLogger(__name__)

# Fields that may change before a run is continued: they change no byte of its stages.
FREE_FIELDS = {
    # The same data in another place; the split's fingerprint decides. Streams and labels are added to earlier ones.
    "data": {"dataset", "unlabelled", "labels"},
    "model": {"max_model_bytes"},
    "training": {
        "output_dir", "num_workers", "image_cache", "save_minutes", "report_to", "push_to_hub", "hub_namespace",
        "hub_private", "resume_from",
    },
}  # fmt: skip
# Configurations that are not requested from the Hub.
PUBLISHED: dict[str, PreTrainedConfig] = {
    "facebook/dinov2-base": Dinov2Config(image_size=518, patch_size=14),
    "facebook/dino-vitb16": ViTConfig(),
}
# Fields of the data section that `StageStream.from_dataset` has too, and that a benchmark may set.
_CUT_BY = (
    "split", "class_blocks", "class_order", "num_classes", "images_per_class", "held_out", "split_rule",
)  # fmt: skip
_PACKAGES = ("torch", "transformers", "datasets", "accelerate", "safetensors", "numpy", "pillow")


# The records of a run


def require_own_folder(run: RunDirectory, data: DataArguments) -> None:
    """Refuse, with a `ConfigurationError`, a folder of images as the folder of a run."""
    for place in map(os.path.expanduser, (data.resolved.dataset, *(data.unlabelled or ()))):
        if run.path.exists() and os.path.exists(place) and run.path.samefile(place):
            raise ConfigurationError(
                f"output_dir {str(run.path)!r} is the folder of the images. Give the run another folder."
            )


def begin(run: RunDirectory, recipe: Recipe, stages: StageStream) -> None:
    """Record the inputs of a run; a begun run continues with the same inputs, or with further streams and labels.

    Raises:
        SplitMismatchError: images of a stage that was begun differ.
        RunError: another setting differs; the message names the settings.
    """
    remove_leftovers(run.path)
    remove_leftovers(run.path / RESUME)
    trained = (run.backbone, run.path / RESUME, *run.path.glob("stage*"))
    records: dict[str, Any] = {}
    if run.begun and any(each.exists() for each in trained):
        require_recipe(run, recipe)
        _require_begun_stages(run, stages)
    else:
        (run.path / "manifest.json").unlink(missing_ok=True)  # of a run that trained nothing
        records = {
            "format": RUN_FORMAT,
            "seed": recipe.training.seed,
            "versions": {"promptccd": __version__, **{name: version(name) for name in _PACKAGES}},
            "python": platform.python_version(),
            "machine": platform.machine(),
            "threads": torch.get_num_threads(),
            "seconds": {},
        }
    split = stages.split
    write_file(run.path / "split.json", json.dumps(split.to_dict()))
    fingerprints = {"split_fingerprint": split.fingerprint, "data_fingerprint": split.data_fingerprint}
    run.update_manifest({**records, **fingerprints, "recipe": record_of(recipe, run.path)})


def require_recipe(run: RunDirectory, recipe: Recipe) -> None:
    """Refuse a recipe that changes the results of a begun run; `begin` compares the images.

    Raises:
        RunError: fields differ from the record; the message names them.
    """
    if not run.begun:
        return
    was, now = (_fields(values, run) for values in (run.manifest["recipe"], record_of(recipe, run.path)))
    changed = [
        f"{name} was {was.get(name)!r}, is {now.get(name)!r}"
        for name in sorted(was.keys() | now.keys())
        if was.get(name) != now.get(name)
    ]
    if changed:
        raise RunError(
            f"The run in {run.path} was made with other settings: {'; '.join(changed)}. Use the earlier settings, or "
            f"give a new folder, such as --output_dir {run.path}-2"
        )


def deciding_fields(values: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The plain values of a recipe that decide its stages, by ``section.field``."""
    return {
        f"{section}.{name}": value
        for section, part in values.items()
        for name, value in part.items()
        if name not in FREE_FIELDS.get(section, ())
    }


def _fields(values: dict[str, dict[str, Any]], run: RunDirectory) -> dict[str, Any]:
    """The fields that decide the stages which a run has begun."""
    fields = deciding_fields(values)
    if fields.get("training.mixed_precision") == "auto":  # `train_run` replaces it by the recorded precision
        fields["training.mixed_precision"] = run.recipe.training.mixed_precision
    if values.get("data", {}).get("unlabelled") is not None:  # later streams may follow, with their numbers
        fields.pop("data.class_blocks", None)
        if isinstance(counts := fields.get("training.category_count"), list):
            fields["training.category_count"] = counts[: _num_begun(run) - 1]
    return fields


def _num_begun(run: RunDirectory) -> int:
    """How many stages are finished, or inside of which a state was saved; at least stage 0."""
    return max(1, run.num_finished + run.state_file(run.num_finished).exists())


def _require_begun_stages(run: RunDirectory, stages: StageStream) -> None:
    """Refuse other images in a stage that was begun; streams that were not begun may change."""
    before, split = CategorySplit.from_dict(run.read("split.json") or {}), stages.split
    if stages.is_scored or before.rule != split.rule:
        stages.require_fingerprint(before.fingerprint, f"The run in {run.path}")
        return
    begun = _num_begun(run)
    if before.first(begun).fingerprint != split.first(begun).fingerprint:
        kept = [was == now for was, now in zip(before.contents, split.contents, strict=False)]
        stage = [*kept[:begun], False].index(False)
        place = stages[stage].place if 0 < stage < len(stages) else "the labelled set"
        raise SplitMismatchError(
            f"Stage {stage} of {run.path} was made with other images than are given now ({place}). Give the images and "
            f"all {begun - 1} earlier streams in their order, and new streams after them; later labels as --labels; or "
            f"train again with --output_dir {run.path}-2"
        )


def record_of(recipe: Recipe, run: Path) -> dict[str, dict[str, Any]]:
    """The recipe as a run records it: folders are relative to the run, so that both may move together."""
    values = recipe.to_dict()

    def portable(value: str) -> str:
        place = os.path.expanduser(value)
        if value in BUILT_IN or not os.path.exists(place):
            return value
        try:
            return Path(os.path.relpath(place, run)).as_posix()
        except ValueError:  # Windows: a folder on another drive
            return Path(value).name

    change_places(values, portable)
    values["training"]["output_dir"] = folder_name(run) or "run"
    values["training"]["image_cache"] = "off" if recipe.training.image_cache == "off" else "auto"
    return values


def continued(run: RunDirectory, changes: Mapping[str, Mapping[str, Any]]) -> Recipe:
    """The recipe that continues a run: its own, with further streams and labels.

    Args:
        run: the run.
        changes: values by section and field. Streams and labels that the run has already are not added again, so
            that a command may be repeated.

    Raises:
        ConfigurationError: the run hides labels, and no stream can be added to it.
        RunError: its records are damaged.
    """
    recipe, data = run.recipe, dict(changes.get("data", {}))
    if recipe.data.unlabelled is not None:
        data["class_blocks"] = data.get("class_blocks")  # counted again
    for name in ("unlabelled", "labels"):
        before = getattr(recipe.data, name) or []
        known = {_real(each) for each in before}
        data[name] = [*before, *(each for each in data.get(name) or () if _real(each) not in known)] or None
    own = {"training": {"output_dir": str(run.path)}}
    return Recipe.from_dict(laid_over([recipe.to_dict(), own, {**changes, "data": data}]))


def _real(place: str) -> str:
    return os.path.realpath(os.path.expanduser(place))


# The stages of a run


def stage_stream(data: DataArguments, seed: int) -> StageStream:
    """The stages that the data section of a recipe describes, by the seed of their split."""
    facts = data.resolved
    if (published := published_split(facts.dataset)) is not None:
        other_blocks = data.unlabelled or facts.class_blocks not in (None, published.class_blocks)
        other_rule = facts.split_rule not in (None, published.rule)
        if other_blocks or other_rule or data.split not in (None, "train"):
            raise DataError(
                f"{facts.dataset!r} contains stages that are cut already (split_rule {published.rule}, class_blocks "
                f"{list(published.class_blocks)}). Give the data set that they were cut from."
            )
        return StageStream.from_hub(facts.dataset)
    optional = tuple(each for each in BOTH if getattr(data, f"{each}_column") is None)  # of a benchmark
    return StageStream.from_dataset(
        facts.dataset,
        cuts=data.resolved_cuts,
        unlabelled=data.unlabelled,
        labels=data.labels or (),
        seed=seed,
        layout=replace(data.layout, image=facts.image_column, label=facts.label_column, optional=optional),
        accept_new_labels=data.accept_new_labels,
        image_roots=data.image_roots or (),
        rendering=Rendering.from_dict({"given": data.window, "pages": data.pages, "fit": data.fit}),
        max_pixels=data.max_megapixels * 10**6,
        **{name: getattr(facts, name) for name in _CUT_BY},
    )


# The view and the model of stage 0


def evaluation_view(recipe: Recipe) -> EvaluationView:
    """The deterministic view of a recipe, for use before a checkpoint exists.

    Colours are normalised by the values of the backbone's processor, else by ImageNet's.
    """
    found = None if recipe.model.backbone is None else published_processor(recipe.model.backbone)
    colours = {} if found is None else {"mean": found.image_mean, "std": found.image_std}
    return EvaluationView(build_image_processor(recipe.views, **colours))


def published_processor(backbone: str | Path | FoundModel) -> Any:
    """The image processor of a backbone; `None` if missing or unreachable."""
    try:
        return load_processor(backbone)
    except OSError:  # no such backbone, or no network and never fetched: loading it says why
        return None
    except ValueError as error:
        raise ConfigurationError(
            f"{error} Correct that file, or remove it to use ImageNet's values."
        ) from error


def rim_not_seen(sides: Sequence[int], patch_size: int) -> str:
    """A message on the rim of a view that no whole patch covers, and sides in pixels that fit; empty without a rim."""
    side = next((each for each in sides if each % patch_size), 0)
    if not side:
        return ""
    below = side - side % patch_size
    fitting = " or ".join(str(each) for each in (below, below + patch_size) if each)
    return (
        f"{side} is no multiple of the backbone's patch of {patch_size} pixels, which does not see the last "
        f"{side - below} of each row and column: {fitting} would do"
    )


def require_whole_patches(recipe: Recipe, *, local_files_only: bool = False) -> None:
    """Refuse a backbone that cannot be read, and an image size that its patches do not divide.

    With `local_files_only`, a named backbone that is not on this machine is not refused.
    """
    try:
        patch_size = _vision_config(recipe, local_files_only=local_files_only).patch_size
    except ConfigurationError:
        if local_files_only and recipe.model.backbone is not None:
            return
        raise
    if rim := rim_not_seen([recipe.views.image_size], patch_size):
        raise ConfigurationError(
            f"image_size {rim}. Give such an --image_size, and a --resize_size no smaller."
        )


def model_options(recipe: Recipe) -> dict[str, Any]:
    """Fields of the method's configuration that a recipe or its benchmark sets; further fields keep defaults."""
    options = dict(recipe.model.options)
    if "num_parts" in method_named(recipe.model.variant).model.config_class.__dataclass_fields__:
        wanted = options.pop("num_parts", recipe.data.resolved.num_parts)
        if wanted not in ("auto", None):  # auto: chosen from the images of stage 0
            options["num_parts"] = wanted
    return options


def initial_model(recipe: Recipe, run: RunDirectory, **options: Any) -> CategoryDiscoveryModel:
    """A model with the pretrained backbone of a run, and a head and prompts drawn for its seed.

    Options replace fields of the recipe in the model's configuration. A `ConfigurationError` if there is no such
    backbone, or the variant's sizes do not fit together.
    """
    backbone, seed = recipe.model.backbone or run.backbone, recipe.training.seed
    with _backbone_errors("load the", backbone):
        model = method_named(recipe.model.variant).model.from_pretrained(
            backbone,
            dtype=torch.float32,
            max_model_bytes=recipe.model.max_model_bytes,
            **{**model_options(recipe), **options},
        )
    model.config.precision = "bfloat16" if recipe.training.mixed_precision == "bf16" else "float32"
    model.head.reset_parameters(torch_generator("head", seed))
    model.reset_prompts(torch_generator("prompts", seed))
    return model


def stage_zero_model(
    recipe: Recipe, run: RunDirectory, images: StageImages, category_ids: np.ndarray, device: torch.device
) -> CategoryDiscoveryModel:
    """The model stage 0 starts with; the part labels of a model with parts are fitted on stage 0's readable images."""
    model, seed = initial_model(recipe, run).to(device), recipe.training.seed
    if model.part_labeller is None:
        return model
    side = recipe.views.image_size // model.config.vision_config.patch_size
    wanted: Any = "auto" if recipe.model.options.get("num_parts") == "auto" else model.config.num_parts
    sample = sample_for_part_labels(category_ids.tolist(), side * side, seed=seed)
    view = evaluation_view(recipe)
    pixels = torch.stack([images.seen_in(view, index) for index in sample])
    features = torch.cat(
        [
            model.pretrained_patch_features(normalise(batch.to(device), view.mean, view.std))
            for batch in pixels.split(recipe.training.feature_batch_size)
        ]
    ).to(exact_device(device))
    # Processes may differ in the last bit, and must not choose different numbers of parts in a tie.
    labels = same_on_all(fit_part_labels(features, (side, side), wanted, seed=seed))
    if (found := len(labels["centres"])) != model.config.num_parts:
        model = initial_model(recipe, run, num_parts=found).to(device)
        logger.info("%d parts, background included, separate best.", found)
    assert model.part_labeller is not None
    model.part_labeller.load(labels)
    return model


def described_backbone(recipe: Recipe) -> Dinov2Config:
    """The configuration of the backbone that a recipe without a pretrained one describes."""
    fields = recipe.model.backbone_config
    if unknown := sorted(fields.keys() - Dinov2Config.__dataclass_fields__.keys()):
        raise ConfigurationError(f"model.backbone_config has no {', '.join(unknown)}: see Dinov2Config.")
    try:
        return Dinov2Config(**fields)
    except Exception as error:
        raise ConfigurationError(
            f"model.backbone_config {fields} makes no Dinov2Config: {one_line(error)}"
        ) from error


def ensure_backbone(
    recipe: Recipe, run: RunDirectory, images: StageImages, device: torch.device, progress: Progress
) -> None:
    """Pretrain the backbone a recipe describes, without labels on stage-0 images, unless that is done already."""
    if recipe.model.backbone is not None or trusted(run.backbone):
        return
    config, view = described_backbone(recipe), evaluation_view(recipe)
    if len(images) < 2:
        raise DataError(
            f"Stage 0 has {len(images)} image to pretrain a backbone on, and two are needed: label more "
            "images, or give a pretrained backbone with --backbone."
        )
    logger.info("Pretraining a small backbone without labels on the %d images of stage 0.", len(images))
    pixels = torch.stack([images.seen_in(view, index) for index in range(len(images))]).to(device)
    backbone = pretrain_backbone(
        pixels, config, recipe.pretraining, seed=recipe.training.seed, progress=progress
    )
    write_directory(run.backbone, backbone.save_pretrained)


class ParameterCount(NamedTuple):
    """What learns, and how many values of it at stage 0 and at the last stage."""

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
    counts = []
    for stage in (0, len(recipe.data.resolved.class_blocks) - 1):
        model, count = model_on_meta(recipe, stage), Counter[str]()
        for name, value in model.named_parameters():
            count[name.partition(".")[0]] += value.numel() * value.requires_grad
        if model.mixture is not None:
            count["mixture"] = model.mixture.num_parameters
        counts.append(count)
    titles = {**COMMON_PARTS, **method_named(recipe.model.variant).parts}
    names = dict.fromkeys([*titles, *counts[0], *counts[1]])
    rows = [ParameterCount(titles.get(name, name), *(count[name] for count in counts)) for name in names]
    return [row for row in rows if row.labelled or row.unlabelled]


def model_on_meta(recipe: Recipe, stage: int, **hub_options: Any) -> CategoryDiscoveryModel:
    """A model as it learns at a stage, on the meta device; errors as in `count_parameters`."""
    variant, blocks = method_named(recipe.model.variant).model, recipe.data.resolved.class_blocks
    own, total = variant.config_class.__dataclass_fields__, sum(blocks[: stage + 1])
    sizes: dict[str, Any] = dict.fromkeys(("num_components", "num_classes", "num_means"), total)
    sizes |= {"num_branches": stage, "num_clusters": blocks[stage] if stage else 0}
    sizes["native_categories"] = [-1] * total
    options = {**model_options(recipe), **{name: size for name, size in sizes.items() if name in own}}
    with torch.device("meta"):
        model = variant(variant.config_class(vision_config=_vision_config(recipe, **hub_options), **options))
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
            f"Cannot {action} backbone {str(backbone)!r}: {one_line(error).rstrip('.')}. Give --backbone a folder "
            "or a Hub id that can be reached, or photographs, a small bundled backbone."
        ) from error
