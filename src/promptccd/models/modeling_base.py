"""What every model of the family is: a DINO backbone, a projection head, and prototypes of its categories."""

import copy
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers import initialization as init
from transformers.utils import ModelOutput, is_accelerate_available

from .answers import answering
from .assignment import Assignment, CategorySpread, assign, nearest, spread_of
from .backbones import (
    Rotation,
    blocks_of,
    build_backbone,
    class_attention,
    class_token,
    embed,
    patch_count,
    patch_features,
    rotation_of,
    run_prefix,
)
from .configuration_promptccd import CategoryDiscoveryConfig
from .gaussian_mixture import GaussianMixture
from .loading import (
    WHERE_TO_LOOK,
    find_model,
    pinned,
    refuse_pickles,
    require_whole,
    without_key_report,
    without_progress,
)
from .part_labeller import PartLabeller
from .projection_head import ProjectionHead, UnitHead
from .stored_files import BACKBONE_TYPES
from .untrusted import CheckpointError, one_line, shown
from .weights import (
    MAX_MODEL_BYTES,
    StoredWeights,
    memory_in_one_line,
    require_affordable,
    require_finite,
    stored_weights,
)

# Of any configuration, given when a model is loaded; labels are refused with the reason.
_OF_ALL_MODELS = (
    "output_hidden_states", "output_attentions", "return_dict", "num_labels", "id2label", "label2id",
)  # fmt: skip
_FARTHEST = 1e3  # prototypes are means of unit features; beyond this their squares stop being numbers


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
        entering: ``(B, T, D)``, tokens that enter the last block, of models whose objective lets another block read
            them; only if `bottleneck` was asked for.
        rotation: with `entering`, what turns them in a block; none where the backbone turns no tokens.
        hidden_states: of the plain backbone, if asked for: what enters each block and leaves the last, ``(B, T, D)``.
        attentions: of the plain backbone, if asked for: ``(B, H, T, T)`` in each block.
    """

    features: Tensor | None = None
    bottleneck: Tensor | None = None
    components: Tensor | None = None
    scores: Tensor | None = None
    entering: Tensor | None = None
    rotation: Rotation | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None


@dataclass(frozen=True)
class Replay:
    """Features drawn from a model in place of images that are gone.

    Attributes:
        features: ``(M, D)``, on the CPU.
        categories: ``(M,)`` int64, id of each one's category.
    """

    features: Tensor
    categories: Tensor


class CategoryDiscoveryModel(PreTrainedModel):
    """Base of the family; without a prompt of its own it is the GCD model.

    A variant overrides `forward` (how prompts enter), `auxiliary_losses` (what they add to the loss),
    `prompt_parameters` (what of them learns by gradient), `reset_prompts` (how they start), `num_prompts` (how
    many there are to choose from), `replay` (features in place of images that are gone) and `begin_discovery`
    (what an unlabelled stage needs of the labelled one), or sets `mixture` or `part_labeller`, which training then
    fits. The training loop knows nothing else about variants.

    Every `forward` also takes what `promptccd.models.answers` lists: ``output_hidden_states``, ``output_attentions``
    and ``return_dict``.

    The backbone stays in eval mode and frozen but for its last block; the final norm is frozen too.
    """

    config: CategoryDiscoveryConfig
    base_model_prefix = "backbone"  # so that a bare backbone's keys are found in `self.backbone`
    main_input_name = "pixel_values"
    input_modalities = ("image",)
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _supports_flash_attn = True

    # What parameters are whose names begin so: "key", "router" or "classifier".
    roles: ClassVar[Mapping[str, str]] = {}

    prototypes: Tensor
    whitener: Tensor
    spreads: Tensor
    looked: dict[str, Any]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "forward" in vars(cls):
            cls.forward = answering(cls.forward)  # type: ignore[method-assign]

    def __init__(self, config: CategoryDiscoveryConfig):
        super().__init__(config)
        vision = config.vision_config
        self.backbone = build_backbone(vision)
        self.head = self.build_head(config)
        self.mixture: GaussianMixture | None = None
        self.part_labeller: PartLabeller | None = None
        self.looked = {}  # how the checkpoint was looked for; its image processor lies there too
        self.register_buffer("prototypes", torch.zeros(len(config.category_ids), vision.hidden_size))
        if config.spread is not None:
            self.register_buffer("whitener", torch.zeros(vision.hidden_size, vision.hidden_size))
            self.register_buffer("spreads", torch.ones(len(config.category_ids)))

    @staticmethod
    def build_head(config: CategoryDiscoveryConfig) -> UnitHead:
        """What the losses read instead of features."""
        return ProjectionHead(
            config.vision_config.hidden_size,
            config.projection_hidden_size,
            config.projection_bottleneck_size,
            config.projection_output_size,
        )

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, CategoryDiscoveryModel):
            init.zeros_(module.prototypes)
            if module.config.spread is not None:
                init.zeros_(module.whitener)
                init.ones_(module.spreads)
        elif callable(start := getattr(module, "initialise", None)):  # parts of ours know how they start
            start(self.config.initializer_range)

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: Any,
        *args: Any,
        config: CategoryDiscoveryConfig | None = None,
        output_loading_info: bool = False,
        max_model_bytes: int | None = None,
        **kwargs: Any,
    ) -> Any:
        """Load a finished checkpoint whole, or start from a bare backbone; either may come from anywhere.

        A bare backbone (``"facebook/dinov2-base"``) fills `backbone` and leaves our own parts as initialised;
        configuration fields may be given as keywords. Of a finished checkpoint every key must be there and
        fit. Safetensors only. A bare name is looked for as `find_model` says. The checkpoint's own code is never run
        and no memory is asked for before configuration and headers were found to be in order.

        Args:
            pretrained_model_name_or_path: a folder, ``namespace/name`` or a bare name.
            args: for the model's constructor.
            config: instead of the one that lies there.
            output_loading_info: also return what transformers says of the keys.
            max_model_bytes: the most its weights may take in memory; by default `MAX_MODEL_BYTES`.
            kwargs: where to look, fields of the configuration, ``variant``, and what transformers takes.

        Raises:
            OSError: there is no such model.
            CheckpointError: a `ValueError`: the checkpoint is of another kind, holds a pickle, a key of the
                configuration or of the weights is missing, unexpected, of another size or out of range, it takes too
                much memory, or a weight is no number.
        """
        look = {key: kwargs.pop(key) for key in WHERE_TO_LOOK if key in kwargs}
        place, raw = find_model(pretrained_model_name_or_path, **look)
        if not os.path.isdir(place):
            look = pinned(place, **look)
            raw = find_model(place, **look)[1]
        kind = raw.get("model_type")
        is_bare = kind in BACKBONE_TYPES
        if not is_bare and kind != cls.config_class.model_type:
            raise CheckpointError(
                f"{place} holds a model of type {shown(kind)}; {cls.__name__} loads "
                f"{cls.config_class.model_type!r} or a bare backbone of type {', '.join(BACKBONE_TYPES)}."
            )
        if not is_bare:
            refuse_pickles(place, **look)
        if config is None:
            config = cls._configuration(raw, is_bare, kwargs)
        given = kwargs.pop("dtype", None) or kwargs.pop("torch_dtype", None)
        with (
            memory_in_one_line(place),
            without_key_report(),
            stored_weights(place, kwargs.pop("variant", None), **look) as stored,
        ):
            kwargs |= {"config": config, "ignore_mismatched_sizes": True, "output_loading_info": True}
            kwargs["dtype"] = given if given not in (None, "auto") else config.dtype or stored.dtype
            cls._require_fitting(stored, kwargs, place, is_bare, max_model_bytes or MAX_MODEL_BYTES)
            model, info = super().from_pretrained(None, *args, state_dict=dict(stored.slices), **kwargs)
            require_whole(info, is_bare, place)
            if is_bare:
                model.adopt_backbone()  # before a look at numbers: what is derived holds whatever memory held
            model.require_numbers(place)
        model.config.name_or_path = model.name_or_path = place
        model.looked = look
        model.freeze()
        return (model, info) if output_loading_info else model

    @classmethod
    def _configuration(
        cls, raw: dict[str, Any], is_bare: bool, kwargs: dict[str, Any]
    ) -> CategoryDiscoveryConfig:
        """The stored configuration, with the fields among the keywords laid over it; they are taken out."""
        own = cls.config_class.__dataclass_fields__.keys() - PreTrainedConfig.__dataclass_fields__.keys()
        fields = {key: kwargs.pop(key) for key in list(kwargs) if key in own}
        common = {key: kwargs.pop(key) for key in _OF_ALL_MODELS if key in kwargs}
        config: CategoryDiscoveryConfig = cls.config_class.from_dict(
            {"vision_config": raw, **fields} if is_bare else {**raw, **fields}, **common
        )
        return config

    @classmethod
    def _require_fitting(
        cls, stored: StoredWeights, options: dict[str, Any], place: str, is_bare: bool, most_bytes: int
    ) -> None:
        """Load descriptions instead of values: transformers names the keys, and nothing takes memory.

        It needs accelerate, which those may lack who run our code from the Hub without this package; they have
        trusted the checkpoint already.
        """
        if not is_accelerate_available():
            return
        plain = {key: value for key, value in options.items() if key not in ("device_map", "max_memory")}
        with without_progress():
            try:
                model, info = super().from_pretrained(
                    None, state_dict=stored.described(), device_map={"": "meta"}, **plain
                )
            except Exception as error:  # of a configuration and keys that nobody has foreseen
                raise CheckpointError(f"Nothing can be built from {place}: {one_line(error)}") from error
        require_affordable(model, most_bytes, place)
        require_whole(info, is_bare, place)

    def require_numbers(self, place: str) -> None:
        """Refuse weights, prototypes and a mixture that nothing can be computed with.

        Args:
            place: what to call the checkpoint in messages.

        Raises:
            CheckpointError: naming the tensor.
        """
        require_finite(self, place)
        if len(self.prototypes) and self.prototypes.float().norm(dim=1).max() > _FARTHEST:
            raise CheckpointError(f"prototypes of {place} are no means of unit features: download it again.")
        if self.config.spread is not None and not (self.spreads > 0).all():
            raise CheckpointError(f"spreads of {place} are not positive: download it again.")
        if self.mixture is not None and not self.mixture.is_valid():
            raise CheckpointError(f"mixture.variances of {place} are not positive: download it again.")

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

    @property
    def num_prompts(self) -> int:
        """How many prompts there are to choose from; none here."""
        return 0

    def learning(self) -> dict[str, list[nn.Parameter]]:
        """What learns, by role; each may have its own rate: ``"model"``, ``"prompt"``, or one of `roles`."""
        prompts = {id(parameter) for parameter in self.prompt_parameters()}
        by_role: dict[str, list[nn.Parameter]] = {}
        for name, parameter in self.named_parameters():
            if not parameter.requires_grad:
                continue
            usual = "prompt" if id(parameter) in prompts else "model"
            role = next((role for start, role in self.roles.items() if name.startswith(start)), usual)
            by_role.setdefault(role, []).append(parameter)
        return by_role

    def reset_prompts(self, generator: torch.Generator) -> None:
        """Draw learnt prompts anew from a CPU generator; none here."""

    def begin_discovery(self, first_stage: Callable[[], "CategoryDiscoveryModel"]) -> None:
        """Prepare for training on an unlabelled stage; nothing to do here.

        Args:
            first_stage: loads the model as stage 0 left it.
        """

    def replay(self, per_component: int, generator: torch.Generator) -> Replay | None:
        """Features of the categories so far, for a stage that has their images no more; none here.

        Args:
            per_component: S, how many of every component of a mixture.
            generator: a CPU generator.
        """
        return None

    @property
    def acting_block(self) -> nn.Module:
        """The last block whose [CLS] makes features."""
        return blocks_of(self.backbone)[-1]

    def keep_pretrained_block(self) -> None:
        """Keep the last block a second time, as it was pretrained, for queries and part labels."""
        self.pretrained_block = copy.deepcopy(blocks_of(self.backbone)[-1])

    @torch.no_grad()
    def attention_row(self, pixel_values: Tensor) -> Tensor:
        """How [CLS] of the plain forward attends to the patches in the last block, ``(B, L, H)``."""
        tokens, rotation = self.embed(pixel_values), self.rotation(pixel_values)
        entering = run_prefix(self.backbone, tokens, rotation)
        return class_attention(self.acting_block, entering, patch_count(self.backbone, tokens), rotation)

    @torch.no_grad()
    def pretrained_patch_features(self, pixel_values: Tensor) -> Tensor:
        """Patch features ``(B, L, D)`` of the frozen pretrained backbone; only where its last block is kept."""
        rotation = self.rotation(pixel_values)
        entering = run_prefix(self.backbone, self.embed(pixel_values), rotation)
        return patch_features(self.backbone, entering, self.pretrained_block, rotation)

    def adopt_backbone(self) -> None:
        """Take over a backbone that was just loaded or drawn into what is derived from it."""
        if hasattr(self, "pretrained_block"):
            self.pretrained_block.load_state_dict(blocks_of(self.backbone)[-1].state_dict())

    def train(self, mode: bool = True) -> "CategoryDiscoveryModel":
        """Set the mode of everything but the backbone, whose dropout would only blur the features."""
        super().train(mode)
        self.backbone.eval()
        return self

    @answering
    def forward(
        self, pixel_values: Tensor, prompted: bool | None = None, project: bool = False
    ) -> CategoryDiscoveryOutput:
        """Features of images, and on request the projection the losses are taken of.

        Args:
            pixel_values: normalised images ``(B, 3, H, W)``.
            prompted: whether prompts act; `None` means as at test. A model without prompts ignores it.
            project: whether to return `CategoryDiscoveryOutput.bottleneck`.
        """
        tokens, rotation = self.embed(pixel_values), self.rotation(pixel_values)
        return self._output(class_token(self.backbone, tokens, rotation), project)

    def features_of(self, pixel_values: Tensor, prompted: bool | None = None) -> Tensor:
        """Unit features ``(B, D)`` in float32, computed in the precision that the model was trained in.

        Prototypes and mixture are of such features. A bare `forward` computes in the precision it is called in.

        Args:
            pixel_values: normalised images ``(B, 3, H, W)``.
            prompted: as `forward` has it.
        """
        mixed = self.config.precision == "bfloat16"
        with torch.autocast(pixel_values.device.type, torch.bfloat16, enabled=mixed):
            features = self(pixel_values, prompted=prompted, return_dict=True).features
        return F.normalize(features.float(), dim=-1)

    def embed(self, pixel_values: Tensor) -> Tensor:
        """Tokens entering block 0, ``(B, L, D)``, without a graph: all of it is frozen."""
        with torch.no_grad():
            return embed(self.backbone, pixel_values)

    def rotation(self, pixel_values: Tensor) -> Rotation | None:
        """What turns tokens of these images in every block; none where positions are added to them."""
        return rotation_of(self.backbone, pixel_values)

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

    def _output_with_tokens(
        self, features: Tensor, project: bool, entering: Tensor, rotation: Rotation | None
    ) -> CategoryDiscoveryOutput:
        """What a method returns whose objective lets another block read the tokens."""
        output = self._output(features, project)
        if project:
            output.entering, output.rotation = entering, rotation
        return output

    def auxiliary_losses(self, output: CategoryDiscoveryOutput) -> dict[str, Tensor]:
        """Weighted terms that prompts add to the contrastive loss, by name; none here.

        One value per view, ``(B,)``, from the output of a training forward: the caller takes the mean over all
        processes.
        """
        return {}

    def assign_natively(self, features: Tensor) -> Tensor | None:
        """Which of its own classes a parametric method puts features ``(N, D)`` into, ``(N,)``; none if it has none."""
        return None

    def set_categories(self, prototypes: Tensor, ids: list[int], names: list[str]) -> None:
        """Store one prototype per category, ``(C, D)`` means of unit features, with its id and name.

        Categories that were there keep their spread; one that comes back, as after an undone merge, spreads as
        newcomers do until a stage measures it again.
        """
        if (spread := self.spread_for(ids)) is not None:
            self.spreads = spread.spreads.to(self.spreads)
        self.prototypes = prototypes.detach().to(self.prototypes).clone()
        self.config.category_ids, self.config.category_names = list(ids), list(names)
        self.config.validate_categories()

    def set_spread(self, spread: CategorySpread | None) -> None:
        """Store how far the images of the categories spread, row by row of the prototypes; none forgets it."""
        if spread is None:
            self.config.spread = None
            for name in ("whitener", "spreads"):
                self._buffers.pop(name, None)
            return
        self.config.spread = spread.scalars
        self.register_buffer("whitener", spread.whitener.to(self.prototypes))
        self.register_buffer("spreads", spread.spreads.to(self.prototypes))

    @property
    def spread(self) -> CategorySpread | None:
        """How far images of the categories spread, row by row of the prototypes; none where nobody has measured it."""
        if self.config.spread is None:
            return None
        return spread_of(self.whitener, self.spreads, self.config.spread)

    def spread_for(self, ids: Sequence[int]) -> CategorySpread | None:
        """The same for these categories; one that the model does not know spreads as newcomers do."""
        rows = {category: row for row, category in enumerate(self.config.category_ids)}
        return None if self.spread is None else self.spread.of([rows.get(each) for each in ids])

    @torch.no_grad()
    def assign(self, features: Tensor) -> Assignment:
        """Assign features to the nearest prototypes, measured in the spread of each category where it is known.

        Args:
            features: ``(B, D)`` as `forward` returns them.

        Raises:
            ValueError: the model has no prototypes yet.
        """
        self._require_categories()
        return assign(
            F.normalize(features.float(), dim=-1),
            self.prototypes.float(),
            self.config.category_ids,
            temperature=self.config.confidence_temperature,
            spread=self.spread,
        )

    @torch.no_grad()
    def nearest(self, features: Tensor, top_k: int) -> tuple[Tensor, Tensor]:
        """Ids of the best categories and how sure each is, best first, ``(B, k)`` both; the first is `assign`'s.

        Args:
            features: ``(B, D)`` as `forward` returns them.
            top_k: k; of fewer categories there are all.

        Raises:
            ValueError: the model has no prototypes yet.
        """
        self._require_categories()
        return nearest(
            F.normalize(features.float(), dim=-1),
            self.prototypes.float(),
            self.config.category_ids,
            top_k,
            temperature=self.config.confidence_temperature,
            spread=self.spread,
        )

    def _require_categories(self) -> None:
        if len(self.prototypes) == 0:
            raise ValueError("This model has no category prototypes: finish a stage before assigning images.")
