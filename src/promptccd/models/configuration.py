"""The configuration of a model: typed fields with bounds, among them the configuration of the backbone."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import field, fields
from functools import partial
from typing import Any, Literal

from huggingface_hub.dataclasses import strict, validated_field
from huggingface_hub.errors import StrictDataclassError
from transformers import CONFIG_MAPPING, AutoConfig, PreTrainedConfig
from transformers.configuration_utils import SubConfigSpec

from promptccd.errors import CheckpointError, one_line, shown

# No other architecture is ever built.
BACKBONE_TYPES = ("dinov2", "dinov2_with_registers", "dinov3_vit", "vit")
MOST_CATEGORIES = 100_000
MOST_PATCHES = 128  # a side of an image: 1,792 pixels in patches of 14

# The largest published DINO is 1,536 wide and 40 deep; these bounds allow a few times that.
_BACKBONE_BOUNDS: dict[str, tuple[float, float]] = {
    "hidden_size": (1, 8_192),
    "num_hidden_layers": (1, 128),
    "num_attention_heads": (1, 256),
    "intermediate_size": (1, 65_536),
    "mlp_ratio": (1, 64),
    "num_channels": (3, 3),
    "image_size": (1, 4_096),
    "patch_size": (1, 256),
    "num_register_tokens": (0, 1_024),
    "hidden_dropout_prob": (0, 1),
    "attention_probs_dropout_prob": (0, 1),
    "attention_dropout": (0, 1),
    "drop_path_rate": (0, 1),
    "layer_norm_eps": (1e-15, 1),
    "initializer_range": (0, 10),
    "layerscale_value": (-1e3, 1e3),
    "rope_theta": (1e-3, 1e9),
    "pos_embed_shift": (0, 1e3),
    "pos_embed_jitter": (1e-3, 1e3),
    "pos_embed_rescale": (1e-3, 1e3),
}
_COMMON = PreTrainedConfig.__dataclass_fields__.keys()
# Fields of a backbone that only transformers' own `...Backbone` classes read.
_OF_OUTPUTS = {"apply_layernorm", "out_features", "out_indices", "reshape_hidden_states", "stage_names"}
_BOUNDS = "promptccd.bounds"  # in the metadata of a field
_DTYPE_NAMES = (None, "float32", "bfloat16", "float16", "float64")
# Numbers that training measures, with their lowest and highest value; `assignment` and `CountEstimate` explain them.
_MEASURED: dict[str, dict[str, tuple[float, float]]] = {
    "count_estimate": dict.fromkeys(("low", "count", "high"), (1, 2**53)),
    "spread": dict.fromkeys(
        ("typical", "reach", "border", "slope", "temperature", "separation"), (1e-6, 1e6)
    ),
    "gaussians": {
        "num_known": (1, MOST_CATEGORIES), "known_share": (1e-15, 1), "temperature": (1e-15, 1e15),
        "sharpness": (1e-15, 1e15), "balance": (0, 1),
    },
}  # fmt: skip
_NOT_NUMBERS = {"count_estimate": {"method", "margin"}, "gaussians": {"ids"}}
_LONGEST_NAME = 1_000
# No control characters, surrogates, or separators of lines and paragraphs.
_LINE = re.compile(rf"[^\x00-\x1f\x7f-\x9f\ud800-\udfff\u2028\u2029]{{0,{_LONGEST_NAME}}}")

STORED = {"promptccd.stored": True}  # metadata of a field that training writes: not an option


def bounded(default: float | None, low: float, high: float, *, stored: bool = False) -> Any:
    """A field of a configuration whose number is at least `low` and at most `high`, or `None` if that is its default.

    Training writes a `stored` field: it is not an option. `bounds_of` lists the bounds of all fields.
    """
    check = partial(require_between, low=low, high=high, optional=default is None)
    metadata = {_BOUNDS: (low, high), **(STORED if stored else {})}
    return validated_field(check, default=default, metadata=metadata)


def bounds_of(config_class: type) -> dict[str, tuple[float, float]]:
    """Lowest and highest value of every `bounded` field."""
    return {each.name: each.metadata[_BOUNDS] for each in fields(config_class) if _BOUNDS in each.metadata}


def _refused(expected: str, found: Any) -> ValueError:
    return ValueError(f"Expected {expected}, got {shown(found)}.")


def require_between(value: Any, low: float, high: float, optional: bool = False, name: str = "") -> None:
    """Refuse, with a `ValueError`, anything but a number in these bounds, or `None` where it is optional."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not ((value is None and optional) or (is_number and low <= value <= high)):
        raise _refused(f"{name}a number from {low} to {high}", value)


def backbone_config_of(values: Any) -> PreTrainedConfig:
    """The configuration of a bare backbone, of the values of its ``config.json``; without a type it is a DINOv2.

    Sizes that no backbone of the DINO family has are refused before its configuration lists its layers.

    Raises:
        CheckpointError: naming the field, its value and its bounds.
    """
    kind = values.get("model_type", "dinov2") if isinstance(values, Mapping) else values
    if kind not in BACKBONE_TYPES:
        raise CheckpointError(f"Expected a backbone of type {', '.join(BACKBONE_TYPES)}, got {shown(kind)}.")
    config_class: type[PreTrainedConfig] = CONFIG_MAPPING[kind]
    try:
        for name, (low, high) in _BACKBONE_BOUNDS.items():
            require_between(values.get(name), low, high, optional=True, name=f"{name} to be ")
        side, patch, width, heads = (
            values.get(name, getattr(config_class, name))
            for name in ("image_size", "patch_size", "hidden_size", "num_attention_heads")
        )
        require_between(side, patch, patch * MOST_PATCHES, name="image_size to be ")
        if width % heads or (kind == "dinov3_vit" and width // heads % 4):
            raise ValueError(
                f"Expected a hidden_size that num_attention_heads divides, got {width} and {heads}. In DINOv3 the "
                "width of a head is a multiple of 4."
            )
        return config_class(**own_values(values, config_class))
    except (StrictDataclassError, TypeError, ValueError) as error:
        raise CheckpointError(f"No configuration of a backbone: {one_line(error)}") from error


def own_values(values: Mapping[str, Any], config_class: type[PreTrainedConfig]) -> dict[str, Any]:
    """The fields of a configuration in a ``config.json``; all other keys are ignored.

    Keys such as ``auto_map``, ``quantization_config`` or ``kernel_config`` would let transformers run code, read other
    files or build something else.

    Raises:
        ValueError: a foreign type of number.
    """
    dtype = values.get("dtype") or values.get("torch_dtype")  # the second before version 5 of transformers
    if dtype not in _DTYPE_NAMES:
        raise _refused(f"a dtype of {', '.join(map(str, _DTYPE_NAMES[1:]))}", dtype)
    names = config_class.__dataclass_fields__.keys() - _COMMON - _OF_OUTPUTS
    kept = {name: value for name, value in values.items() if name in names and not name.startswith("_")}
    return kept if dtype is None else {**kept, "dtype": dtype}


def _require_lines(texts: Iterable[Any], where: str) -> None:
    if wrong := [each for each in texts if not (isinstance(each, str) and _LINE.fullmatch(each))]:
        raise _refused(f"{where} to be lines of at most {_LONGEST_NAME} characters", wrong[0])


def _require_ascending(*numbers: Any) -> None:
    if not all(type(each) is int for each in numbers) or [*numbers] != sorted(numbers):
        raise _refused("whole numbers that do not fall", numbers)


def _require_ids(ids: Any, where: str) -> None:
    """Refuse anything but a list of distinct ids of categories."""
    if not isinstance(ids, list) or len(ids) > MOST_CATEGORIES:
        raise _refused(f"{where} to be a list of at most {MOST_CATEGORIES} ids", ids)
    if wrong := [each for each in ids if type(each) is not int or not 0 <= each < 2**53]:
        raise _refused(f"{where} to be whole numbers from 0", wrong)
    if repeated := [each for each, count in Counter(ids).items() if count > 1]:
        raise _refused(f"every id of {where} once", repeated)


@strict
class CategoryDiscoveryConfig(PreTrainedConfig):
    """Configuration of every model of the family.

    Attributes:
        vision_config: configuration of the backbone: DINOv2, with registers or without, DINOv3, or the ViT of DINO.
        projection_hidden_size: width of the two hidden layers of the projection head.
        projection_bottleneck_size: width of the L2-normalised layer before the last.
        projection_output_size: number of outputs that the contrastive losses compare (65,536 in the paper).
        stage: the last finished stage; `None` before stage 0 is finished.
        num_known: number of categories that were labelled at stage 0.
        category_ids: id of every prototype, in row order; ids are never reused.
        category_names: a name for every prototype, in row order.
        count_estimate: how the number of categories was estimated, with its range; `None` where it was known.
        confidence_temperature: of the soft-max over squared distances to prototypes that gives the confidences of
            `assign`, where `spread` is unknown.
        spread: numbers of `CategorySpread`, measured when a stage ends; `None` where they were not measured. The
            buffers ``spread_*`` belong to it.
        gaussians: ids and numbers of `CategoryGaussians`, the prediction of a model without its own;
            `None` if not fitted. The buffers ``gaussians_*`` belong to it.
        initializer_range: standard deviation of weights that no checkpoint fills.
        precision: in which features are computed, as in training: ``"float32"`` or ``"bfloat16"`` (mixed).
    """

    model_type = ""
    sub_configs_defaults = {"vision_config": SubConfigSpec(AutoConfig, model_type="dinov2")}  # noqa: RUF012

    # A dictionary on the way in, a configuration of the backbone afterwards
    vision_config: Any = field(default=None, metadata=STORED)
    projection_hidden_size: int = bounded(2048, 1, 65_536)
    projection_bottleneck_size: int = bounded(256, 1, 16_384)
    projection_output_size: int = bounded(65_536, 1, 1_048_576)
    stage: int | None = bounded(None, 0, 1_000_000, stored=True)
    num_known: int = bounded(0, 0, 1_000_000, stored=True)
    category_ids: list[int] = field(default_factory=list, metadata=STORED)
    category_names: list[str] = field(default_factory=list, metadata=STORED)
    count_estimate: dict[str, Any] | None = field(default=None, metadata=STORED)
    confidence_temperature: float = bounded(0.1, 1e-6, 1e6)
    spread: dict[str, float] | None = field(default=None, metadata=STORED)
    gaussians: dict[str, Any] | None = field(default=None, metadata=STORED)
    initializer_range: float = bounded(0.02, 0, 10)
    precision: Literal["float32", "bfloat16"] = field(default="float32", metadata=STORED)

    @property
    def id2label(self) -> dict[int, str]:
        """Name of every category by its id; it follows the categories and is not stored."""
        # transformers reads this before `validate_stored` has compared the lengths
        return dict(zip(self.category_ids, self.category_names, strict=False))

    @id2label.setter
    def id2label(self, names: dict[int, str] | None) -> None:
        """Ignore the placeholders of transformers; `category_names` sets names."""

    @property
    def label2id(self) -> dict[str, int]:
        """Id of every name; of two categories with the same name the first."""
        return {name: number for number, name in reversed(self.id2label.items())}

    @label2id.setter
    def label2id(self, ids: dict[str, int] | None) -> None:
        """See `id2label`."""

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """Build a configuration of the values of a ``config.json``, of which `own_values` keeps the known fields.

        Raises:
            CheckpointError: the type or a value is not of this family.
        """
        try:
            return super().from_dict(own_values(config_dict, cls), **kwargs)
        except CheckpointError:
            raise
        except (StrictDataclassError, TypeError, ValueError) as error:
            raise CheckpointError(f"No {cls.__name__}: {one_line(error)}") from error

    def __post_init__(self, **kwargs: Any) -> None:
        """Build the configuration of the backbone, of a type and of sizes that it may have."""
        if (
            self.vision_config is not None
            and getattr(self.vision_config, "model_type", None) not in BACKBONE_TYPES
        ):
            self.vision_config = backbone_config_of(self.vision_config)
        super().__post_init__(**kwargs)

    def validate_stored(self) -> None:
        """Refuse what no training stores.

        Ids and names differ in number, an id occurs twice, a name is no short line, or a number is not in `_MEASURED`.
        """
        ids, names = self.category_ids, self.category_names
        if len(ids) != len(names):
            raise _refused(f"as many category names as ids, {len(ids)}", len(names))
        _require_ids(ids, "category_ids")
        _require_lines(names, "category_names")
        for name, bounds in _MEASURED.items():
            if (found := getattr(self, name)) is None:
                continue
            keys = {*bounds, *_NOT_NUMBERS.get(name, ())}
            if set(found) != keys:
                raise _refused(f"{name} to have {sorted(keys)}", found)
            for key, (low, high) in bounds.items():
                require_between(found[key], low, high, name=f"{key} of {name} to be ")
        if (found := self.count_estimate) is not None:
            _require_lines((found["method"], found["margin"]), "words of count_estimate")
            _require_ascending(found["low"], found["count"], found["high"])
        if (found := self.gaussians) is not None:
            _require_ids(found["ids"], "ids of gaussians")
            _require_ascending(1, found["num_known"], len(found["ids"]))
