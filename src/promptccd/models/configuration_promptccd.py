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
from .untrusted import bounded, bounds_of, json_object, read_json, require_bounds

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
        precision: in which features are computed, as in training: ``"float32"`` or ``"bfloat16"`` (mixed).
    """

    model_type = ""
    sub_configs_defaults = {"vision_config": SubConfigSpec(AutoConfig, model_type="dinov2")}  # noqa: RUF012

    vision_config: Any = None  # a dictionary on the way in, a configuration of the backbone afterwards
    projection_hidden_size: int = 2048
    projection_bottleneck_size: int = 256
    projection_output_size: int = 65536
    stage: int | None = None
    num_known: int = 0
    category_ids: list[int] = field(default_factory=list)
    category_names: list[str] = field(default_factory=list)
    count_estimate: dict[str, Any] | None = None
    confidence_temperature: float = bounded(0.1, 1e-6, 1e6)
    spread: dict[str, float] | None = None
    initializer_range: float = 0.02
    precision: Literal["float32", "bfloat16"] = "float32"

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


@strict
class GCDConfig(CategoryDiscoveryConfig):
    """Generalized category discovery: the same model without prompts."""

    model_type = "promptccd-gcd"


@strict
class PromptCCDConfig(CategoryDiscoveryConfig):
    """PromptCCD: components of a Gaussian mixture over features are class prototypes and prompts at once.

    Attributes:
        num_components: K, the number of mixture components; 0 until the first fit. Sizes the buffers.
        component_categories: category id of every component; -1 while a stage is in training.
        answer_categories: the same of the mixture that answers, whose buffers it sizes; empty before the first stage is
            finished, and in older checkpoints.
        covariance_type: ``"diag"`` (the paper's parameter count), ``"spherical"`` (the released default) or
            ``"full"``.
        count_scale: factor of the variance within categories that counted held-out labelled categories best;
            PromptCCD-U counts the components of later fits with it.
        prompts_per_image: how many of the likeliest components prompt an image (top-k, 5 in the paper).
        random_prompts: prompt with arbitrary components instead (an ablation of the paper).
        prompts_at_test: whether prompts also act at test: in the paper they do, in the released code they do not.
        prompt_place: where prompts enter: ``"first"``, before block 0, as in the paper, or ``"last"``, before the block
            that learns, which saves the second pass through the others.
        prompt_copies: how many copies of every chosen prompt an image gets.
        prompt_scale: length of the prompts: ``"raw"``, that of the means, or ``"tokens"``, that of the patches where
            they enter.
        prompt_centred: whether the mean of all components is taken off each, which leaves what tells them apart.
    """

    model_type = "promptccd"

    num_components: int = 0
    component_categories: list[int] = field(default_factory=list)
    answer_categories: list[int] = field(default_factory=list)
    covariance_type: Literal["diag", "spherical", "full"] = "diag"
    count_scale: float = bounded(1.0, 1e-6, 1e6)
    prompts_per_image: int = 5
    random_prompts: bool = False
    prompts_at_test: bool = False
    prompt_place: Literal["first", "last"] = "first"
    prompt_copies: int = 1
    prompt_scale: Literal["raw", "tokens"] = "raw"
    prompt_centred: bool = False

    def validate_components(self) -> None:
        """Refuse a finished stage with components that have no category, and answers that are none."""
        given = len(self.component_categories)
        if self.stage is not None and given != self.num_components:
            raise ValueError(
                f"Expected a category for each of {self.num_components} components, got {given} in "
                "component_categories."
            )
        if strange := set(self.answer_categories) - {*self.category_ids, -1}:
            raise ValueError(f"Expected ids of categories in answer_categories, got {min(strange)}.")


@strict
class PromptCCDBConfig(CategoryDiscoveryConfig):
    """PromptCCD-B: a fixed pool of learnt prompts, chosen per image by key.

    Attributes:
        pool: how prompts enter: ``"l2p"``, as tokens behind [CLS], or ``"dualprompt"``, as keys and values of the
            attention of the first blocks.
        pool_size: M, number of prompts that are chosen from.
        prompt_length: tokens of one prompt.
        prompts_per_image: how many prompts an image gets (top-k).
        random_prompts: take arbitrary prompts instead (an ablation).
        prompt_reach: first values of prompts are uniform in -prompt_reach..prompt_reach.
        key_reach: the same for keys.
        cos_weight: weight of the term that pulls chosen keys towards the query (0.1 in the released
            configurations; the paper's equation has 1).
    """

    model_type = "promptccd-b"

    pool: Literal["l2p", "dualprompt"] = "l2p"
    pool_size: int = 10
    prompt_length: int = 5
    prompts_per_image: int = 5
    random_prompts: bool = False
    prompt_reach: float = 1.0
    key_reach: float = 1.0
    cos_weight: float = bounded(0.1, 0, 1e6)

    def validate_pool(self) -> None:
        """Refuse more prompts per image than the pool has."""
        _require_pool(self.pool_size, self.prompts_per_image, "prompts_per_image")


@strict
class PromptCCDPlusPlusConfig(CategoryDiscoveryConfig):
    """PromptCCD++: one prompt pool per object part, and a router that sends every patch to its part.

    Attributes:
        num_parts: P, background included.
        pool_size: M, prompts per part.
        prompt_length: tokens of one prompt; a patch is modulated by their mean.
        prompts_per_patch: how many prompts of its part a patch gets (top-k).
        random_prompts: take arbitrary prompts of the part instead (an ablation of the paper).
        prompt_reach: first values of prompts are uniform in -prompt_reach..prompt_reach; the paper gives none.
        key_reach: the same for keys.
        router_hidden_size: width of the hidden layer of the router's MLP; `None` means five sixths of the
            backbone's, 640 for ViT-B, which gives the paper's 14.7 million parameters.
        router_fusion: whether the router sees [CLS] attention and contextualises patches (ablations c and d).
        router_queries: whether part queries add to its logits (ablations b and d).
        cos_weight: weight of the term that pulls chosen keys towards their patches.
        route_weight: lambda_route, weight of the part labels at stage 0.
        route_reaches_backbone: whether the part labels also train the backbone's last block, through the attention
            that the router reads; otherwise only the router.
        distill_weight: lambda_dist, weight of both distillation terms at later stages.
        anchor_on: what is held near the teacher's: ``"projection"``, as in the paper, or ``"cls"``, the unit feature.
    """

    model_type = "promptccd-pp"

    num_parts: int = 8
    pool_size: int = 20
    prompt_length: int = 10
    prompts_per_patch: int = 2
    random_prompts: bool = False
    prompt_reach: float = 1.0
    key_reach: float = 1.0
    router_hidden_size: int | None = None
    router_fusion: bool = True
    router_queries: bool = True
    cos_weight: float = bounded(1.0, 0, 1e6)
    route_weight: float = bounded(0.1, 0, 1e6)
    route_reaches_backbone: bool = False
    distill_weight: float = bounded(0.2, 0, 1e6)
    anchor_on: Literal["projection", "cls"] = "projection"

    def validate_parts(self) -> None:
        """Refuse more prompts per patch than the pool of a part has."""
        _require_pool(self.pool_size, self.prompts_per_patch, "prompts_per_patch")


def _require_pool(size: int, top_k: int, name: str) -> None:
    if not 1 <= top_k <= size:
        raise ValueError(f"Expected 1 <= {name} <= pool_size ({size}), got {top_k}.")
