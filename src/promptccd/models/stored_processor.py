"""The image processor beside a checkpoint: one of two classes, made of values that were checked."""

import math
from collections.abc import Mapping
from typing import Any

from transformers.models.bit.image_processing_pil_bit import BitImageProcessorPil
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

from .bounds import require_side
from .loading import file_of
from .untrusted import CheckpointError, read_json, shown

PREPROCESSOR = "preprocessor_config.json"
MOST_PIXELS_A_SIDE = 2_048
_CLASSES = {
    f"{kind}{role}{backend}": processor
    for kind, processor in (("Bit", BitImageProcessorPil), ("ViT", ViTImageProcessorPil))
    for role in ("ImageProcessor", "FeatureExtractor")
    for backend in ("", "Fast", "Pil")
}
_TYPES = ("image_processor_type", "feature_extractor_type")  # today's name, and the one before version 4.26
_SIDES = ({"shortest_edge"}, {"height", "width"})
_ALWAYS = ("do_resize", "do_rescale", "do_normalize")  # an evaluation view does all three
_NEVER = ("do_pad",)
_FLAGS = ("do_center_crop", "default_to_square")
# Saved by one version of transformers or another; images are RGB here and tensors come out with channels first.
_IDLE = {
    "_processor_class", "_valid_processor_keys", "data_format", "device", "disable_grouping", "do_convert_rgb",
    "input_data_format", "pad_size", "processor_class", "return_tensors",
}  # fmt: skip


def stored_processor(place: str, patch_size: int, **look: Any) -> Any:
    """The processor on the Pillow backend, whatever else is installed; none if the model has none.

    Args:
        place: a folder, or a full repository name.
        patch_size: of the backbone, which must fit into what comes out.
        look: how to look, of `promptccd.models.loading.WHERE_TO_LOOK`.

    Raises:
        OSError: the Hub cannot be reached.
        CheckpointError: a key, a value or a class that no processor of a DINO has.
    """
    path = file_of(place, PREPROCESSOR, **look)
    if path is None:
        return None
    name = f"{PREPROCESSOR} of {place}"
    values = read_json(path, name)
    try:
        return _built(values, patch_size)
    except CheckpointError:
        raise
    except ValueError as error:
        raise CheckpointError(f"{name} is refused. {error}") from error


def _built(values: Mapping[str, Any], patch_size: int) -> Any:
    kinds = [values[key] for key in _TYPES if values.get(key) is not None]
    if not kinds or any(not isinstance(kind, str) or kind not in _CLASSES for kind in kinds):
        raise ValueError(
            f"Expected image_processor_type BitImageProcessor or ViTImageProcessor, got {shown(kinds)}."
        )
    options = {
        key: _value(key, value)
        for key, value in values.items()
        if key not in (*_IDLE, *_TYPES) and value is not None
    }
    processor = _CLASSES[kinds[0]](**{key: value for key, value in options.items() if value is not None})
    for side in _sides_of(processor):
        require_side(side, patch_size, "the side of a view")
    return processor


def _value(key: str, value: Any) -> Any:
    """A value as the processor takes it; none where it is the only one there is."""
    if key in ("size", "crop_size"):
        return _size(key, value)
    if key in ("image_mean", "image_std"):
        return _channels(key, value)
    if key in _FLAGS and isinstance(value, bool):
        return value
    if key == "resample" and type(value) is int and 0 <= value <= 5:
        return value
    if key == "rescale_factor" and isinstance(value, float) and math.isclose(value, 1 / 255, rel_tol=1e-3):
        return None
    if (key in _ALWAYS and value is True) or (key in _NEVER and value is False):
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
        if isinstance(number, bool) or not isinstance(number, int | float) or not low <= number <= high:
            raise ValueError(f"Expected {key} to be numbers of {low:g} to {high:g}, got {shown(number)}.")
    return [float(number) for number in value]


def _sides_of(processor: Any) -> tuple[int, int]:
    """Height and width of what comes out, which must not depend on the image."""
    size = processor.crop_size if processor.do_center_crop else processor.size
    if size is None or size.get("height") is None or size.get("width") is None:
        raise ValueError(
            f"Expected a crop, or a size of height and width, got size {shown(dict(processor.size))}."
        )
    return size["height"], size["width"]


__all__ = ["MOST_PIXELS_A_SIDE", "PREPROCESSOR", "stored_processor"]
