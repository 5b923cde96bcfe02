"""Configurations: typed fields, among them the configuration of the backbone."""

import os
from dataclasses import field
from typing import Any, Literal

from huggingface_hub.dataclasses import strict
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig, PreTrainedConfig
from transformers.configuration_utils import SubConfigSpec

from promptccd.errors import CheckpointError, one_line, shown

from .assignment import SPREAD_SCALARS
from .loading import HUB_OPTIONS, find_model
from .stored_files import BACKBONE_TYPES, own_values
from .untrusted import STORED, bounded, bounds_of, json_object, read_json, require_bounds

_NO_LABELS = (
    "Expected no {}, got {}: labels are the categories, which category_ids and category_names list. Rename one with "
    "`promptccd categories FOLDER rename ID NAME`; training on a new stage finds more."
)


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
            buffers ``whitener`` and ``spreads`` belong to it.
        initializer_range: standard deviation of weights that no checkpoint fills.
        precision: in which features are computed, as in training: ``"float32"`` or ``"bfloat16"`` (mixed).
    """

    model_type = ""
    sub_configs_defaults = {"vision_config": SubConfigSpec(AutoConfig, model_type="dinov2")}  # noqa: RUF012

    vision_config: Any = field(
        default=None, metadata=STORED
    )  # a dictionary on the way in, a configuration of the backbone afterwards
    projection_hidden_size: int = 2048
    projection_bottleneck_size: int = 256
    projection_output_size: int = 65536
    stage: int | None = field(default=None, metadata=STORED)
    num_known: int = field(default=0, metadata=STORED)
    category_ids: list[int] = field(default_factory=list, metadata=STORED)
    category_names: list[str] = field(default_factory=list, metadata=STORED)
    count_estimate: dict[str, Any] | None = field(default=None, metadata=STORED)
    confidence_temperature: float = bounded(0.1, 1e-6, 1e6)
    spread: dict[str, float] | None = field(default=None, metadata=STORED)
    initializer_range: float = 0.02
    precision: Literal["float32", "bfloat16"] = field(default="float32", metadata=STORED)

    @property
    def names_by_id(self) -> dict[int, str]:
        """Name of every category."""
        # transformers reads this before `validate_categories` has compared the lengths
        return dict(zip(self.category_ids, self.category_names, strict=False))

    @property
    def id2label(self) -> dict[int, str]:
        """The same under the name of transformers; it follows the categories and is not stored."""
        return self.names_by_id

    @id2label.setter
    def id2label(self, names: dict[int, str] | None) -> None:
        # transformers sets placeholders, even before our own fields are set, and what it has read here
        placeholders = {number: f"LABEL_{number}" for number in range(len(names or ()))}
        own = self.names_by_id if "category_names" in vars(self) else {}
        if names and names != placeholders and names != own:
            raise ValueError(_NO_LABELS.format("id2label", shown(names)))

    @property
    def label2id(self) -> dict[str, int]:
        """Id of every name; of two categories with the same name the first."""
        return {name: number for number, name in reversed(self.names_by_id.items())}

    @label2id.setter
    def label2id(self, ids: dict[str, int] | None) -> None:
        """Ignore the placeholders of transformers; names are set by `category_names`."""

    @classmethod
    def get_config_dict(
        cls, pretrained_model_name_or_path: str | os.PathLike[str], **kwargs: Any
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Values of ``config.json``, read by `read_json`, and the keywords that are left over.

        Raises:
            OSError: there is none.
            CheckpointError: it is no plain JSON.
        """
        hub_options = {key: kwargs.pop(key) for key in HUB_OPTIONS if key in kwargs}
        name = os.fspath(pretrained_model_name_or_path)
        values = read_json(name, name) if os.path.isfile(name) else find_model(name, **hub_options).values
        return values, kwargs

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """Build a configuration of the untrusted values of a ``config.json``.

        Raises:
            CheckpointError: it has a key that no model of this type has, or a value out of its range.
        """
        for key in ("num_labels", "id2label", "label2id"):
            if kwargs.get(key) is not None:
                raise CheckpointError(_NO_LABELS.format(key, shown(kwargs[key])))
        values = own_values(config_dict, cls)
        try:
            return super().from_dict(values, **kwargs)
        except (StrictDataclassError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"Its configuration makes no {cls.__name__}: {one_line(error.__cause__ or error)}"
            ) from error

    def save_pretrained(self, save_directory: str | os.PathLike[str], *args: Any, **kwargs: Any) -> None:
        """Write ``config.json`` as transformers does, if `from_pretrained` would take it.

        Raises:
            CheckpointError: it would not; neither it nor weights are written.
        """
        try:
            own_values(json_object(self.to_json_string().encode(), "Its config.json"), type(self))
        except CheckpointError as error:
            raise CheckpointError(
                f"This configuration is not saved, since it could not be loaded. {error} "
                "(`del model.config.KEY` deletes a key.)"
            ) from error
        super().save_pretrained(save_directory, *args, **kwargs)

    def __post_init__(self, **kwargs: Any) -> None:
        """Check the backbone's sizes before its configuration is built, which lists its layers one by one."""
        if isinstance(self.vision_config, dict):
            require_bounds(self.vision_config, PreTrainedConfig)
        super().__post_init__(**kwargs)

    def validate_backbone_type(self) -> None:
        """Refuse a backbone that is not of the DINO family, before anything is built from it."""
        kind = getattr(self.vision_config, "model_type", None)
        if kind not in (*BACKBONE_TYPES, None):
            raise ValueError(f"Expected a backbone of type {', '.join(BACKBONE_TYPES)}, got {kind!r}.")

    def validate_magnitude(self) -> None:
        """Refuse sizes that no model of the family has, before memory is allocated."""
        for part in (self, self.vision_config):
            names = (name for name in bounds_of(type(part)) if hasattr(part, name))
            require_bounds({name: getattr(part, name) for name in names}, type(part))

    def validate_spread(self) -> None:
        """Refuse scalars that no spread of categories has."""
        if self.spread is None:
            return
        if set(self.spread) != set(SPREAD_SCALARS):
            raise ValueError(
                f"Expected the keys {', '.join(SPREAD_SCALARS)} of spread, got {shown(self.spread)}."
            )
        if not all(isinstance(value, int | float) and 1e-6 <= value <= 1e6 for value in self.spread.values()):
            raise ValueError(f"Expected numbers from 1e-6 to 1e6 in spread, got {shown(self.spread)}.")

    def validate_categories(self) -> None:
        """Refuse ids and names of different number, and ids that occur twice."""
        if len(self.category_ids) != len(self.category_names):
            raise ValueError(
                f"Expected as many category names as ids, got {len(self.category_names)} names "
                f"for {len(self.category_ids)} ids."
            )
        if len(set(self.category_ids)) != len(self.category_ids):
            raise ValueError("Expected every category id once, got a repeated one in category_ids.")
