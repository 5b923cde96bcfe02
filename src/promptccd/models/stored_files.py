"""The JSON files of an untrusted checkpoint: read by allow-list, within bounds, before anything is built."""

import logging
import math
import re
import unicodedata
from collections.abc import Collection, Mapping
from dataclasses import fields
from functools import partial
from typing import Any

from transformers import (
    Dinov2Config,
    Dinov2WithRegistersConfig,
    DINOv3ViTConfig,
    PreTrainedConfig,
    ViTConfig,
)
from transformers.image_utils import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from transformers.models.bit.image_processing_pil_bit import BitImageProcessorPil
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

from promptccd.data.views import sides_of
from promptccd.errors import CheckpointError, one_line, shown

from .loading import file_of
from .untrusted import MOST_CATEGORIES, read_json, require_bounds, require_side

logger = logging.getLogger(__name__)

BACKBONE_CONFIGS: dict[str, type[PreTrainedConfig]] = {
    "dinov2": Dinov2Config,
    "dinov2_with_registers": Dinov2WithRegistersConfig,
    "dinov3_vit": DINOv3ViTConfig,
    "vit": ViTConfig,
}
BACKBONE_TYPES = tuple(BACKBONE_CONFIGS)  # no other architecture is ever built

# Written by some version of transformers, and without a meaning for these models: ignored.
_IDLE = {
    "_attn_implementation_autoset", "_name_or_path", "apply_layernorm", "architectures", "chunk_size_feed_forward",
    "encoder_stride", "finetuning_task", "id2label", "interpolate_antialias", "interpolate_offset",
    "is_encoder_decoder", "label2id", "num_labels", "out_features", "out_indices", "output_attentions",
    "output_hidden_states", "pooler_act", "pooler_output_size", "problem_type", "pruned_heads",
    "reshape_hidden_states", "return_dict", "stage_names", "tie_word_embeddings", "torchscript",
    "transformers_version", "use_bfloat16", "use_cache",
}  # fmt: skip
# Parts of the names of keys by which transformers runs code, reads another file or builds something else.
_STEERING = re.compile(
    "^_|auto_map|class|code|config|files|implementation|kernel|module|pipeline|plan|processor|quant|timm|weights"
)
_ESTIMATE = {"count", "low", "high", "method", "margin"}
_LONGEST_NAME = 1_000
_UNPRINTABLE = ("Cc", "Cs", "Zl", "Zp")
_COMMON = {field.name for field in fields(PreTrainedConfig)}


def own_values(values: Mapping[str, Any], config_class: type[PreTrainedConfig]) -> dict[str, Any]:
    """The checked values of a configuration of the family; nothing is built.

    Args:
        values: of ``config.json``.
        config_class: a configuration of the family.

    Raises:
        CheckpointError: a key that it does not have, or a value out of its range.
    """
    if (named := values.get("auto_map")) is not None:
        raise CheckpointError(
            f"The key 'auto_map' of its configuration names {shown(named)}, code that is not ours. "
            "Nothing of it was run: do not use this checkpoint, or delete the key."
        )
    kept = _kept(values, config_class, {"vision_config"})
    if kept.get("vision_config") is not None:
        kept["vision_config"] = backbone_values(kept["vision_config"])
    _require_categories(kept.get("category_ids", []), kept.get("category_names", []))
    _require_estimate(kept.get("count_estimate"))
    return kept


def backbone_values(values: Any) -> dict[str, Any]:
    """The checked values of a configuration of a backbone, which without a ``model_type`` is a DINOv2.

    Raises:
        CheckpointError: as `own_values`.
    """
    if not isinstance(values, dict):
        raise CheckpointError(f"Expected vision_config to be an object, got {shown(values)}.")
    kind = values.get("model_type", "dinov2")
    if not isinstance(kind, str) or kind not in BACKBONE_CONFIGS:
        raise CheckpointError(
            f"Expected a backbone of type {', '.join(BACKBONE_TYPES)}, got {shown(kind)}: use one of those."
        )
    return _kept(values, BACKBONE_CONFIGS[kind], set())


def patch_size_of(values: Mapping[str, Any]) -> int:
    """Side of a patch in pixels, of the values of a ``config.json`` of the family or of a backbone.

    Raises:
        CheckpointError: as `own_values`.
    """
    is_bare = values.get("model_type") in BACKBONE_TYPES
    kept = backbone_values(values if is_bare else values.get("vision_config") or {})
    return kept.get("patch_size", BACKBONE_CONFIGS[kept.get("model_type", "dinov2")].patch_size)


def _kept(
    values: Mapping[str, Any], config_class: type[PreTrainedConfig], more: Collection[str]
) -> dict[str, Any]:
    own = {field.name for field in fields(config_class) if not field.name.startswith("_")} - _COMMON
    known = {"model_type", "dtype", *more, *own} - _IDLE
    kept = {key: value for key, value in values.items() if key not in _IDLE}
    if "torch_dtype" in kept:  # its name before version 5 of transformers
        kept["dtype"] = kept.pop("torch_dtype")
    strange = sorted(key for key in kept if key not in known)
    for key in strange:
        if _STEERING.search(key) or (key in dir(config_class) and key not in _COMMON):
            raise CheckpointError(
                f"Its configuration has the key {shown(key)}, which no {config_class.model_type} has: do not use this "
                "checkpoint, or delete the key."
            )
    if strange:
        logger.warning(
            "%d keys of the configuration are of no %s and are ignored: %s. Rename them if they were meant as others.",
            len(strange),
            config_class.model_type,
            one_line(", ".join(map(shown, strange))),
        )
    kept = {key: value for key, value in kept.items() if key in known}
    try:
        require_bounds(kept, config_class)
    except ValueError as error:
        raise CheckpointError(f"Its configuration cannot be true. {error}") from error
    return kept


def _require_categories(ids: Any, names: Any) -> None:
    for what, values in (("category_ids", ids), ("category_names", names)):
        if not isinstance(values, list) or len(values) > MOST_CATEGORIES:
            raise CheckpointError(
                f"Expected {what} to be a list of at most {MOST_CATEGORIES}, got {shown(values)}."
            )
    for identity in ids:
        if type(identity) is not int or not 0 <= identity < 2**53:
            raise CheckpointError(f"Expected category_ids to be whole numbers >= 0, got {shown(identity)}.")
    for name in names:
        if not _is_line(name):
            raise CheckpointError(
                f"Expected category_names to be lines of at most {_LONGEST_NAME} characters, got {shown(name)}."
            )


def _is_line(text: Any) -> bool:
    return (
        isinstance(text, str)
        and len(text) <= _LONGEST_NAME
        and (text.isprintable() or all(unicodedata.category(letter) not in _UNPRINTABLE for letter in text))
    )


def _require_estimate(estimate: Any) -> None:
    if estimate is None:
        return
    if not isinstance(estimate, dict) or set(estimate) != _ESTIMATE:
        raise CheckpointError(f"Expected count_estimate to hold {sorted(_ESTIMATE)}, got {shown(estimate)}.")
    numbers = [estimate[key] for key in ("low", "count", "high")]
    words = [estimate[key] for key in ("method", "margin")]
    are_whole = all(type(number) is int for number in numbers)
    if not are_whole or not 1 <= numbers[0] <= numbers[1] <= numbers[2] <= MOST_CATEGORIES:
        raise CheckpointError(f"Expected 1 <= low <= count <= high in count_estimate, got {shown(numbers)}.")
    if not all(map(_is_line, words)):
        raise CheckpointError(f"Expected method and margin of count_estimate to be text, got {shown(words)}.")


PREPROCESSOR = "preprocessor_config.json"
MOST_PIXELS_A_SIDE = 2_048
# DINOv3's own processor needs torchvision. It rescales before it resizes, so pixels differ by a rounding error.
_DINOV3 = {"image_mean": list(IMAGENET_DEFAULT_MEAN), "image_std": list(IMAGENET_DEFAULT_STD)}
_CLASSES = {
    f"{kind}{role}{backend}": processor
    for kind, processor in (
        ("Bit", BitImageProcessorPil),
        ("ViT", ViTImageProcessorPil),
        ("DINOv3ViT", partial(ViTImageProcessorPil, **_DINOV3)),
    )
    for role in ("ImageProcessor", "FeatureExtractor")
    for backend in ("", "Fast", "Pil")
}
_TYPES = ("image_processor_type", "feature_extractor_type")  # the second until version 4.26 of transformers
_SIDES = ({"shortest_edge"}, {"height", "width"})
# The only values that are accepted; a processor is built without them.
_FIXED = {"do_resize": True, "do_rescale": True, "do_normalize": True, "do_pad": False}
_FLAGS = ("do_center_crop", "default_to_square")
# Saved by some version of transformers and ignored: images here are RGB, and tensors have channels first.
_IDLE_OF_PROCESSORS = {
    "_processor_class", "_valid_processor_keys", "data_format", "device", "disable_grouping", "do_convert_rgb",
    "input_data_format", "pad_size", "processor_class", "return_tensors",
}  # fmt: skip


def stored_processor(place: str, patch_size: int, **hub_options: Any) -> Any:
    """The image processor of a model, on the Pillow backend; `None` if the model has none.

    Args:
        place: a folder, or a full repository name.
        patch_size: of the backbone; an image must hold a patch.
        hub_options: `promptccd.models.loading.HUB_OPTIONS`.

    Raises:
        OSError: the Hub cannot be reached.
        CheckpointError: it has a key, a value or a class that no processor of a DINO has.
    """
    path = file_of(place, PREPROCESSOR, **hub_options)
    if path is None:
        return None
    name = f"{PREPROCESSOR} of {place}"
    values = read_json(path, name)
    try:
        return _built(values, patch_size)
    except ValueError as error:
        raise CheckpointError(f"{name} is refused. {error}") from error


def _built(values: Mapping[str, Any], patch_size: int) -> Any:
    kinds = [values[key] for key in _TYPES if values.get(key) is not None]
    if not kinds or any(not isinstance(kind, str) or kind not in _CLASSES for kind in kinds):
        raise ValueError(
            "Expected image_processor_type BitImageProcessor, ViTImageProcessor or DINOv3ViTImageProcessor, got "
            f"{shown(kinds)}."
        )
    options = {
        key: _value(key, value)
        for key, value in values.items()
        if key not in (*_IDLE_OF_PROCESSORS, *_TYPES) and value is not None
    }
    processor = _CLASSES[kinds[0]](**{key: value for key, value in options.items() if value is not None})
    for side in sides_of(processor):
        require_side(side, patch_size, "the side of a view")
    return processor


def _value(key: str, value: Any) -> Any:
    """A value as the processor takes it; `None` where no other is accepted."""
    if key in ("size", "crop_size"):
        return _size(key, value)
    if key in ("image_mean", "image_std"):
        return _channels(key, value)
    if key in _FLAGS and isinstance(value, bool):
        return value
    if key == "resample" and type(value) is int and 0 <= value <= 5:
        return value
    # mutant arguments swapped #2: math.isclose measures against the greater of both, whichever comes first
    if key == "rescale_factor" and isinstance(value, float) and math.isclose(value, 1 / 255, rel_tol=1e-3):
        return None
    if key in _FIXED and value is _FIXED[key]:
        return None
    raise ValueError(f"No processor of a DINO has {shown(key)} {shown(value)}.")


def _size(key: str, value: Any) -> Any:
    sides = value if isinstance(value, dict) else {"": value}
    if isinstance(value, dict) and set(value) not in _SIDES:
        raise ValueError(f"Expected {key} to hold shortest_edge, or height and width, got {shown(value)}.")
    for side in sides.values():
        if type(side) is not int or not 1 <= side <= MOST_PIXELS_A_SIDE:
            raise ValueError(f"Expected {key} to be 1 to {MOST_PIXELS_A_SIDE} pixels, got {shown(side)}.")
    return value


def _channels(key: str, value: Any) -> list[float]:
    low, high = (1e-3, 1e3) if key == "image_std" else (-1e3, 1e3)
    if not isinstance(value, list) or len(value) != 3:
        raise ValueError(f"Expected {key} to be three numbers, got {shown(value)}.")
    for number in value:
        if type(number) not in (int, float) or not low <= number <= high:
            raise ValueError(f"Expected {key} to be numbers of {low:g} to {high:g}, got {shown(number)}.")
    return [float(number) for number in value]
