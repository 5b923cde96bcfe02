"""What every model of the family is: a DINO backbone, a projection head, and prototypes of its categories."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers import initialization as init
from transformers.utils import ModelOutput

from .backbones import (
    blocks_of,
    build_backbone,
    class_attention,
    class_token,
    embed,
    patch_count,
    patch_features,
    run_prefix,
)
from .configuration_promptccd import BACKBONE_TYPES, CategoryDiscoveryConfig
from .gaussian_mixture import GaussianMixture
from .loading import find_model, refuse_pickles, require_whole, without_key_report
from .part_labeller import PartLabeller
from .part_pools import PartPools
from .part_router import PartRouter
from .projection_head import ProjectionHead
from .prompt_pools import PromptPool

_WHERE_TO_LOOK = ("cache_dir", "force_download", "local_files_only", "token", "revision", "subfolder")


@dataclass
class CategoryDiscoveryOutput(ModelOutput):
    """What a forward returns.

    Attributes:
        features: ``(B, D)``, [CLS] after the final norm, as it comes; clustering normalises it.
        bottleneck: ``(B, d)``, L2-normalised input of the head's last layer; only if it was asked for.
        components: ``(B, P)``, which components or prompts acted on each image, best first (``(B, L, k)`` by patch
            in PromptCCD++); `None` unprompted.
        scores: how well each fits, shaped likewise: cosine with the key of a learnt prompt, log of weight times
            density of a mixture component.
    """

    features: Tensor | None = None
    bottleneck: Tensor | None = None
    components: Tensor | None = None
    scores: Tensor | None = None


@dataclass(frozen=True)
class Assignment:
    """Images assigned to categories.

    Attributes:
        category_ids: ``(B,)`` int64.
        confidences: ``(B,)`` in 0..1, soft-max over negative squared distances.
        distances: ``(B,)`` squared distance to the nearest prototype.
    """

    category_ids: Tensor
    confidences: Tensor
    distances: Tensor


class CategoryDiscoveryModel(PreTrainedModel):
    """Base of the family; without a prompt of its own it is the GCD model.

    A variant overrides `forward` (how prompts enter), `auxiliary_losses` (what they add to the loss),
    `prompt_parameters` (what of them learns by gradient), `reset_prompts` (how they start) and `begin_discovery`
    (what an unlabelled stage needs of the labelled one), or sets `mixture` or `part_labeller`, which training then
    fits. The training loop knows nothing else about variants.

    The backbone stays in eval mode and frozen but for its last block; the final norm is frozen too.
    """

    config: CategoryDiscoveryConfig
    base_model_prefix = "backbone"  # so that a bare backbone's keys are found in `self.backbone`
    main_input_name = "pixel_values"
    input_modalities = ("image",)
    _supports_sdpa = True
    _supports_flash_attn = True

    prototypes: Tensor

    def __init__(self, config: CategoryDiscoveryConfig):
        super().__init__(config)
        vision = config.vision_config
        self.backbone = build_backbone(vision)
        self.head = ProjectionHead(
            vision.hidden_size,
            config.projection_hidden_size,
            config.projection_bottleneck_size,
            config.projection_output_size,
        )
        self.mixture: GaussianMixture | None = None
        self.part_labeller: PartLabeller | None = None
        self.register_buffer("prototypes", torch.zeros(len(config.category_ids), vision.hidden_size))

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, ProjectionHead):
            init.trunc_normal_(module.last_weight, std=self.config.initializer_range)
        elif isinstance(module, PromptPool):
            for parameter in module.parameters():
                init.uniform_(parameter, -1, 1)
        elif isinstance(module, PartPools):
            init.uniform_(module.keys, -1, 1)
            init.uniform_(module.values, -0.02, 0.02)
        elif isinstance(module, PartRouter) and module.part_queries is not None:
            init.trunc_normal_(module.part_queries, std=self.config.initializer_range)
        elif isinstance(module, PartLabeller):
            for name, buffer in module.named_buffers():
                (init.ones_ if name == "projection_scale" else init.zeros_)(buffer)
        elif isinstance(module, GaussianMixture):
            init.zeros_(module.means)
            init.ones_(module.variances)
            init.zeros_(module.log_weights)
        elif isinstance(module, CategoryDiscoveryModel):
            init.zeros_(module.prototypes)

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: Any,
        *args: Any,
        config: CategoryDiscoveryConfig | None = None,
        output_loading_info: bool = False,
        **kwargs: Any,
    ) -> Any:
        """Load a finished checkpoint whole, or start from a bare backbone.

        A bare backbone (``"facebook/dinov2-base"``) fills `backbone` and leaves our own parts as initialised;
        configuration fields may be given as keywords. Of a finished checkpoint every key must be there and
        fit. Safetensors only. A bare name is looked for as `find_model` says.

        Raises:
            ValueError: the checkpoint is of another kind, holds a pickle, or a key is missing, unexpected or of
                another size.
        """
        look = {key: kwargs[key] for key in _WHERE_TO_LOOK if key in kwargs}
        place, raw = find_model(pretrained_model_name_or_path, **look)
        kind = raw.get("model_type")
        if kind not in (cls.config_class.model_type, *BACKBONE_TYPES):
            raise ValueError(
                f"{place} holds a model of type {kind!r}; {cls.__name__} loads "
                f"{cls.config_class.model_type!r} or a bare backbone of type {', '.join(BACKBONE_TYPES)}."
            )
        is_bare = kind in BACKBONE_TYPES
        if not is_bare:
            refuse_pickles(place)
        if is_bare and config is None:
            fields = cls.config_class.__dataclass_fields__
            config = cls.config_class(
                vision_config=raw, **{key: kwargs.pop(key) for key in list(kwargs) if key in fields}
            )
        if config is not None:
            kwargs["config"] = config
        kwargs.setdefault("use_safetensors", True)
        kwargs["ignore_mismatched_sizes"] = True  # so that it is we who refuse them, by name
        with without_key_report():
            model, info = super().from_pretrained(place, *args, output_loading_info=True, **kwargs)
        require_whole(info, is_bare, place)
        if is_bare:
            model.adopt_backbone()
        model.freeze()
        return (model, info) if output_loading_info else model

    def freeze(self) -> None:
        """Let only the last block, the projection head and `prompt_parameters` learn."""
        self.requires_grad_(False)
        blocks_of(self.backbone)[-1].requires_grad_(True)
        self.head.requires_grad_(True)
        for parameter in self.prompt_parameters():
            parameter.requires_grad_(True)

    def prompt_parameters(self) -> list[nn.Parameter]:
        """Parameters of the prompts that learn by gradient; none here."""
        return []

    def reset_prompts(self, generator: torch.Generator) -> None:
        """Draw learnt prompts anew from a CPU generator; none here."""

    def begin_discovery(self, first_stage: Callable[[], "CategoryDiscoveryModel"]) -> None:
        """Prepare for training on an unlabelled stage; nothing to do here.

        Args:
            first_stage: loads the model as stage 0 left it.
        """

    def keep_pretrained_block(self) -> None:
        """Keep the last block a second time, as it was pretrained, for queries and part labels."""
        self.pretrained_block = copy.deepcopy(blocks_of(self.backbone)[-1])

    @torch.no_grad()
    def attention_row(self, pixel_values: Tensor) -> Tensor:
        """How [CLS] of the plain forward attends to the patches in the last block, ``(B, L, H)``."""
        tokens = self.embed(pixel_values)
        entering = run_prefix(self.backbone, tokens)
        return class_attention(blocks_of(self.backbone)[-1], entering, patch_count(self.backbone, tokens))

    @torch.no_grad()
    def pretrained_patch_features(self, pixel_values: Tensor) -> Tensor:
        """Patch features ``(B, L, D)`` of the frozen pretrained backbone; only where its last block is kept."""
        entering = run_prefix(self.backbone, self.embed(pixel_values))
        return patch_features(self.backbone, entering, self.pretrained_block)

    def adopt_backbone(self) -> None:
        """Take over a backbone that was just loaded or drawn into what is derived from it."""
        if hasattr(self, "pretrained_block"):
            self.pretrained_block.load_state_dict(blocks_of(self.backbone)[-1].state_dict())

    def train(self, mode: bool = True) -> "CategoryDiscoveryModel":
        """Set the mode of everything but the backbone, whose dropout would only blur the features."""
        super().train(mode)
        self.backbone.eval()
        return self

    def forward(
        self, pixel_values: Tensor, prompted: bool | None = None, project: bool = False
    ) -> CategoryDiscoveryOutput:
        """Features of images, and on request the projection the losses are taken of.

        Args:
            pixel_values: normalised images ``(B, 3, H, W)``.
            prompted: whether prompts act; `None` means as at test. A model without prompts ignores it.
            project: whether to return `CategoryDiscoveryOutput.bottleneck`.
        """
        return self._output(class_token(self.backbone, self.embed(pixel_values)), project)

    def embed(self, pixel_values: Tensor) -> Tensor:
        """Tokens entering block 0, ``(B, L, D)``, without a graph: all of it is frozen."""
        with torch.no_grad():
            return embed(self.backbone, pixel_values)

    def _output(
        self,
        features: Tensor,
        project: bool,
        components: Tensor | None = None,
        scores: Tensor | None = None,
    ) -> CategoryDiscoveryOutput:
        bottleneck = self.head(features) if project else None
        return CategoryDiscoveryOutput(
            features=features, bottleneck=bottleneck, components=components, scores=scores
        )

    def auxiliary_losses(self, output: CategoryDiscoveryOutput) -> dict[str, Tensor]:
        """Weighted terms that prompts add to the contrastive loss, by name; none here.

        One value per view, ``(B,)``, from the output of a training forward: the caller takes the mean over all
        processes.
        """
        return {}

    def set_categories(self, prototypes: Tensor, ids: list[int], names: list[str]) -> None:
        """Store one prototype per category, ``(C, D)`` means of unit features, with its id and name."""
        self.prototypes = prototypes.detach().to(self.prototypes).clone()
        self.config.category_ids, self.config.category_names = list(ids), list(names)
        self.config.validate_categories()

    @torch.no_grad()
    def assign(self, features: Tensor) -> Assignment:
        """Assign features to the nearest prototypes: the rule that k-means ended training with.

        Args:
            features: ``(B, D)`` as `forward` returns them.

        Raises:
            ValueError: the model has no prototypes yet.
        """
        if len(self.prototypes) == 0:
            raise ValueError("This model has no category prototypes: finish a stage before assigning images.")
        unit = F.normalize(features.float(), dim=-1)
        prototypes = self.prototypes.float()
        distances = (
            unit.square().sum(1, keepdim=True) - 2 * unit @ prototypes.T + prototypes.square().sum(1)
        ).clamp_min(0)
        nearest, rows = distances.min(dim=1)
        confidences = torch.softmax(-distances / self.config.confidence_temperature, dim=1)
        ids = torch.tensor(self.config.category_ids, device=rows.device)
        return Assignment(ids[rows], confidences.gather(1, rows[:, None])[:, 0], nearest)


__all__ = ["Assignment", "CategoryDiscoveryModel", "CategoryDiscoveryOutput"]
