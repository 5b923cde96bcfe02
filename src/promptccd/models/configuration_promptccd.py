"""Configurations: typed fields, with the backbone's own configuration embedded as data."""

from dataclasses import field
from typing import Any, Literal

from huggingface_hub.dataclasses import strict
from transformers import AutoConfig, PreTrainedConfig
from transformers.configuration_utils import SubConfigSpec

# A configuration may come from anywhere; only these architectures are ever built from one.
BACKBONE_TYPES = ("dinov2", "dinov2_with_registers", "vit")


@strict
class CategoryDiscoveryConfig(PreTrainedConfig):
    """What every model of the family stores, whatever its prompts are.

    Attributes:
        vision_config: configuration of the backbone: DINOv2, DINOv2 with registers, or the ViT of DINO.
        projection_hidden_size: width of the two hidden layers of the projection head.
        projection_bottleneck_size: width of the L2-normalised layer before the last.
        projection_output_size: number of outputs the contrastive losses compare (65,536 in the paper).
        stage: the stage this model finished; `None` before stage 0 is done.
        num_known: number of categories that were labelled at stage 0.
        category_ids: id of every prototype, in row order; ids are never reused.
        category_names: a name for every prototype, in row order.
        confidence_temperature: scale, in squared distance between unit features, of the soft-max over
            prototypes that `assign` reports as confidence.
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
    confidence_temperature: float = 0.1
    initializer_range: float = 0.02

    def validate_backbone_type(self) -> None:
        """Refuse a backbone that is not of the DINO family, before anything is built from it."""
        kind = getattr(self.vision_config, "model_type", None)
        if kind is None and isinstance(self.vision_config, dict):
            kind = self.vision_config.get("model_type")
        if kind not in (*BACKBONE_TYPES, None):
            raise ValueError(f"Expected a backbone of type {', '.join(BACKBONE_TYPES)}, got {kind!r}.")

    def validate_categories(self) -> None:
        """Ids and names describe the same prototype rows, and no id occurs twice."""
        if len(self.category_ids) != len(self.category_names):
            raise ValueError(
                f"Expected as many category names as ids, got {len(self.category_names)} names "
                f"for {len(self.category_ids)} ids."
            )
        if len(set(self.category_ids)) != len(self.category_ids):
            raise ValueError("Expected every category id once, got a repeated one in category_ids.")


@strict
class GCDConfig(CategoryDiscoveryConfig):
    """The same model without prompts: generalized category discovery, the row every table compares with."""

    model_type = "promptccd-gcd"


@strict
class PromptCCDConfig(CategoryDiscoveryConfig):
    """PromptCCD: components of a Gaussian mixture over features are class prototypes and prompts at once.

    Attributes:
        num_components: K, the number of mixture components; 0 until the first fit. Sizes the buffers.
        covariance_type: ``"diag"`` (the paper's parameter count) or ``"spherical"`` (the released default).
        prompts_per_image: how many of the likeliest components prompt an image (top-k, 5 in the paper).
        prompts_at_test: whether prompts also act on the features that are clustered and predicted from.
            Paper and released code differ on it (the code uses none), so it is a switch.
    """

    model_type = "promptccd"

    num_components: int = 0
    covariance_type: Literal["diag", "spherical"] = "diag"
    prompts_per_image: int = 5
    prompts_at_test: bool = False

    def validate_mixture(self) -> None:
        """Sizes that a mixture can have."""
        if self.num_components < 0 or self.prompts_per_image < 1:
            raise ValueError(
                f"Expected num_components >= 0 and prompts_per_image >= 1, got {self.num_components} "
                f"and {self.prompts_per_image}."
            )


__all__ = ["BACKBONE_TYPES", "CategoryDiscoveryConfig", "GCDConfig", "PromptCCDConfig"]
