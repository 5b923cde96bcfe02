"""Which keys a stored configuration may have: ours, those of three backbones, and what transformers adds."""

import unicodedata
from collections.abc import Collection, Mapping
from dataclasses import fields
from typing import Any

from transformers import Dinov2Config, Dinov2WithRegistersConfig, PreTrainedConfig, ViTConfig

from .bounds import MOST_CATEGORIES, require_bounds
from .untrusted import CheckpointError, shown

BACKBONE_CONFIGS: dict[str, type[PreTrainedConfig]] = {
    "dinov2": Dinov2Config,
    "dinov2_with_registers": Dinov2WithRegistersConfig,
    "vit": ViTConfig,
}
# A configuration may come from anywhere; only these architectures are ever built from one.
BACKBONE_TYPES = tuple(BACKBONE_CONFIGS)

# Where our own code lies in a checkpoint, for machines without this package. Nothing else may be named there.
CODE = {
    "promptccd": ("PromptCCDConfig", "modeling_promptccd.PromptCCDModel"),
    "promptccd-gcd": ("GCDConfig", "modeling_gcd.GCDModel"),
    "promptccd-b": ("PromptCCDBConfig", "modeling_promptccd_b.PromptCCDBModel"),
    "promptccd-pp": ("PromptCCDPlusPlusConfig", "modeling_promptccd_pp.PromptCCDPlusPlusModel"),
}

# Written by one version of transformers or another, and without a meaning for these models: passed over.
_IDLE = {
    "_attn_implementation_autoset", "_name_or_path", "apply_layernorm", "architectures", "chunk_size_feed_forward",
    "encoder_stride", "finetuning_task", "id2label", "interpolate_antialias", "interpolate_offset",
    "is_encoder_decoder", "label2id", "num_labels", "out_features", "out_indices", "output_attentions",
    "output_hidden_states", "pooler_act", "pooler_output_size", "problem_type", "pruned_heads",
    "reshape_hidden_states", "return_dict", "stage_names", "tie_word_embeddings", "torchscript",
    "transformers_version", "use_bfloat16",
}  # fmt: skip
_ESTIMATE = {"count", "low", "high", "method", "margin"}
_LONGEST_NAME = 1_000
_UNPRINTABLE = ("Cc", "Cs", "Zl", "Zp")
_COMMON = {field.name for field in fields(PreTrainedConfig)}


def own_values(values: Mapping[str, Any], config_class: type[PreTrainedConfig]) -> dict[str, Any]:
    """What a configuration of the family says, after everything in it was checked; nothing is built.

    Args:
        values: of ``config.json``.
        config_class: a configuration of the family.

    Raises:
        CheckpointError: a key that it does not have, or a value out of its range.
    """
    if values.get("auto_map") not in (None, _code_of(config_class.model_type)):
        raise CheckpointError(
            f"The key 'auto_map' of its configuration names {shown(values['auto_map'])}, code that is not ours. "
            "Nothing of it was run: do not use this checkpoint, or delete the key."
        )
    kept = _kept(values, config_class, {"vision_config", "auto_map"})
    vision = kept.get("vision_config")
    if vision is not None:
        if not isinstance(vision, dict):
            raise CheckpointError(f"Expected vision_config to be an object, got {shown(vision)}.")
        kept["vision_config"] = backbone_values(vision)
    _require_categories(kept.get("category_ids", []), kept.get("category_names", []))
    _require_estimate(kept.get("count_estimate"))
    return kept


def backbone_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """The same of a backbone; without a ``model_type`` it is a DINOv2.

    Raises:
        CheckpointError: likewise.
    """
    kind = values.get("model_type", "dinov2")
    if not isinstance(kind, str) or kind not in BACKBONE_CONFIGS:
        raise CheckpointError(
            f"Expected a backbone of type {', '.join(BACKBONE_TYPES)}, got {shown(kind)}: use one of those."
        )
    return _kept(values, BACKBONE_CONFIGS[kind], set())


def patch_size_of(values: Mapping[str, Any]) -> int:
    """Side of a patch in pixels, of the values of any ``config.json`` that is loaded here.

    Raises:
        CheckpointError: likewise.
    """
    is_bare = values.get("model_type") in BACKBONE_TYPES
    vision = values if is_bare else values.get("vision_config") or {}
    if not isinstance(vision, dict):
        raise CheckpointError(f"Expected vision_config to be an object, got {shown(vision)}.")
    kept = backbone_values(vision)
    side: int = kept.get("patch_size", BACKBONE_CONFIGS[kept.get("model_type", "dinov2")].patch_size)
    return side


def _kept(
    values: Mapping[str, Any], config_class: type[PreTrainedConfig], more: Collection[str]
) -> dict[str, Any]:
    own = {field.name for field in fields(config_class) if not field.name.startswith("_")} - _COMMON
    known = {"model_type", "dtype", *more, *own} - _IDLE
    kept = {key: value for key, value in values.items() if key not in _IDLE}
    if "torch_dtype" in kept:  # as it was called before version 5
        kept["dtype"] = kept.pop("torch_dtype")
    for key in kept:
        if key not in known:
            raise CheckpointError(
                f"Its configuration has the key {shown(key)}, which no {config_class.model_type} has: do not use this "
                "checkpoint, or delete the key."
            )
    try:
        require_bounds(kept)
    except ValueError as error:
        raise CheckpointError(f"Its configuration cannot be true. {error}") from error
    return kept


def _code_of(model_type: str) -> dict[str, str] | None:
    if model_type not in CODE:
        return None
    config, model = CODE[model_type]
    return {"AutoConfig": f"configuration_promptccd.{config}", "AutoModel": model}


def _require_categories(ids: Any, names: Any) -> None:
    for what, values in (("category_ids", ids), ("category_names", names)):
        if not isinstance(values, list) or len(values) > MOST_CATEGORIES:
            raise CheckpointError(
                f"Expected {what} to be a list of at most {MOST_CATEGORIES}, got {shown(values)}."
            )
    for identity in ids:
        if isinstance(identity, bool) or not isinstance(identity, int) or not 0 <= identity < 2**53:
            raise CheckpointError(f"Expected category_ids to be whole numbers >= 0, got {shown(identity)}.")
    for name in names:
        if not isinstance(name, str) or len(name) > _LONGEST_NAME or _is_unprintable(name):
            raise CheckpointError(
                f"Expected category_names to be lines of at most {_LONGEST_NAME} characters, got {shown(name)}."
            )


def _is_unprintable(name: str) -> bool:
    return not name.isprintable() and any(unicodedata.category(letter) in _UNPRINTABLE for letter in name)


def _require_estimate(estimate: Any) -> None:
    if estimate is None:
        return
    if not isinstance(estimate, dict) or set(estimate) != _ESTIMATE:
        raise CheckpointError(f"Expected count_estimate to hold {sorted(_ESTIMATE)}, got {shown(estimate)}.")
    numbers, words = (
        [estimate[key] for key in keys] for keys in (("low", "count", "high"), ("method", "margin"))
    )
    are_numbers = all(isinstance(value, int) and not isinstance(value, bool) for value in numbers)
    if not are_numbers or not 1 <= numbers[0] <= numbers[1] <= numbers[2] <= MOST_CATEGORIES:
        raise CheckpointError(f"Expected 1 <= low <= count <= high in count_estimate, got {shown(numbers)}.")
    if not all(
        isinstance(word, str) and len(word) <= _LONGEST_NAME and not _is_unprintable(word) for word in words
    ):
        raise CheckpointError(f"Expected method and margin of count_estimate to be text, got {shown(words)}.")


__all__ = ["BACKBONE_CONFIGS", "BACKBONE_TYPES", "CODE", "backbone_values", "own_values", "patch_size_of"]
