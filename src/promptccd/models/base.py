"""The base of every model: a DINO backbone, a projection head, and prototypes of its categories; and all variants."""

import copy
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import MODEL_MAPPING, AutoConfig, AutoModel, PreTrainedConfig, PreTrainedModel
from transformers import initialization as init
from transformers.utils import ModelOutput

from promptccd.errors import CheckpointError, ConfigurationError, one_line, shown
from promptccd.models.assignment import (
    MEASURED,
    Assignment,
    CategoryGaussians,
    CategorySpread,
    assign,
    nearest,
)
from promptccd.models.backbone import (
    ProjectionHead,
    Rotation,
    UnitHead,
    blocks_of,
    class_attention,
    class_row,
    embed,
    open_attention,
    patch_features,
    run_prefix,
)
from promptccd.models.checkpoint import (
    BUNDLED,
    CONFIGURATION,
    HUB_OPTIONS,
    MAX_MODEL_BYTES,
    FoundModel,
    find_model,
    require_whole,
    stored_tensors,
    too_large,
    without_base_prefix,
    without_key_report,
)
from promptccd.models.configuration import BACKBONE_TYPES, CategoryDiscoveryConfig, backbone_config_of


@dataclass
class CategoryDiscoveryOutput(ModelOutput):
    """Output of a forward.

    Attributes:
        features: ``(B, D)``, [CLS] after the final norm, not normalised.
        bottleneck: ``(B, d)``, L2-normalised input of the head's last layer; only with ``project=True``.
        components: ``(B, P)``, which components or prompts acted on each image, best first (``(B, L, k)`` by patch
            in PromptCCD++); `None` unprompted.
        scores: how well each fits, in the same shape: cosine with the key of a learnt prompt, log of weight times
            density of a mixture component.
        entering: ``(B, T, D)``, tokens that enter the last block, of models whose objective feeds them to a second
            block; only with ``project=True``.
        rotation: with `entering`, the rotary position embedding of the patches, or `None`.
    """

    features: Tensor | None = None
    bottleneck: Tensor | None = None
    components: Tensor | None = None
    scores: Tensor | None = None
    entering: Tensor | None = None
    rotation: Rotation | None = None


@dataclass(frozen=True)
class Replay:
    """Features drawn from a model in place of images that are gone.

    Attributes:
        features: ``(M, D)``, on the CPU.
        categories: ``(M,)`` int64, the category id of each.
    """

    features: Tensor
    categories: Tensor


class CategoryDiscoveryModel(PreTrainedModel):
    """Base of the family; without a prompt of its own it is the GCD model.

    A variant overrides `compute_output` (how prompts enter), `auxiliary_losses` (their terms of the
    loss), `roles` (what learns in addition), `reset_prompts` (how prompts start), `num_prompts` (how
    many there are to choose from), `replay` (features in place of images that are gone) and `begin_discovery`
    (data of stage 0 for an unlabelled stage), or sets `mixture` or `part_labeller`, which training then
    fits. The training loop knows nothing else about variants. Its ``__init__`` ends with `post_init`.

    The backbone stays in eval mode. Only its last block learns; the final norm is frozen too.
    """

    config: CategoryDiscoveryConfig
    base_model_prefix = "backbone"  # transformers loads the keys of a bare backbone into `self.backbone`
    main_input_name = "pixel_values"
    input_modalities = ("image",)
    _supports_sdpa = True
    _supports_flash_attn = True

    # Role of the parameters whose names begin so, which learn: "prompt", "key", "router" or "classifier".
    roles: ClassVar[Mapping[str, str]] = {}
    head_class: ClassVar[type[UnitHead]] = ProjectionHead  # the losses read its output instead of features
    block_parts: ClassVar[Sequence[str]] = ("backbone",)  # children that are blocks
    compares_blocks: ClassVar[bool] = False  # the objective feeds tokens of a forward to a second last block
    predicts: ClassVar[bool] = False  # by a classifier or mixture of its own, so that no Gaussians are fitted

    prototypes: Tensor

    def __init__(self, config: CategoryDiscoveryConfig):
        super().__init__(config)
        vision = config.vision_config
        options = {"add_pooling_layer": False} if vision.model_type == "vit" else {}
        self.backbone: PreTrainedModel = MODEL_MAPPING[type(vision)](vision, **options)
        self.backbone.fast_blocks = None  # `promptccd.training.fast` sets it
        open_attention(blocks_of(self.backbone)[-1])  # which `attention_row` reads
        self.head = self.head_class(config)
        self.mixture: Any = None  # of a method that prompts with its components
        self.part_labeller: Any = None  # of a method with part labels
        self.source: FoundModel | None = None  # the checkpoint that it was loaded from
        count, width = len(config.category_ids), vision.hidden_size
        # Buffers of zeros, here and in methods, are filled by a checkpoint or by training.
        self.register_buffer("prototypes", torch.zeros(count, width))
        for name, measured in MEASURED.items():
            if (numbers := getattr(config, name)) is not None:
                sizes = {"C": count, "D": width, "K": len(numbers.get("ids", ()))}
                for part, axes in measured.shapes.items():
                    self.register_buffer(f"{name}_{part}", torch.zeros([sizes[axis] for axis in axes]))

    def post_init(self) -> None:
        """Finish the model once all its parts are there: initialise weights, and freeze untrained parts."""
        super().post_init()
        self.freeze()

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, CategoryDiscoveryModel):
            for buffer in module._buffers.values():
                init.zeros_(buffer)
        elif callable(start := getattr(module, "initialise", None)):  # our own parts know how they start
            start(self.config.initializer_range)
        elif type(module).__module__.startswith("transformers.models."):  # of a copied block
            self.backbone._init_weights(module)

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
        """Load a finished checkpoint, or start from a bare backbone; neither is trusted.

        A bare backbone (``"facebook/dinov2-base"``) fills `backbone` and leaves our own parts as initialised;
        keywords may set fields of the configuration. A finished checkpoint must have every key, in the right size.
        Only JSON and safetensors are read, and code that comes with a checkpoint is never run.

        Args:
            pretrained_model_name_or_path: a folder, or a name as of `find_model`.
            args: for the model's constructor.
            config: instead of the stored value.
            output_loading_info: also return what transformers reports about the keys.
            max_model_bytes: the most memory its weights may take; by default `MAX_MODEL_BYTES`.
            kwargs: `HUB_OPTIONS`, fields of the configuration, and options of transformers.

        Raises:
            OSError: there is no such model.
            CheckpointError: a `ValueError`: the checkpoint is of another type, takes too much memory, a weight is NaN
                or infinite, or a key of the configuration or of the weights is missing, unexpected, of another size or
                out of range.
            TypeError: an unknown keyword.
        """
        hub_options = {key: kwargs.pop(key) for key in HUB_OPTIONS if key in kwargs}
        found = find_model(pretrained_model_name_or_path, **hub_options)
        place, most_bytes = found.place, max_model_bytes or MAX_MODEL_BYTES
        if config is None:
            own = cls.config_class.__dataclass_fields__.keys() - PreTrainedConfig.__dataclass_fields__.keys()
            given = {key: kwargs.pop(key) for key in list(kwargs) if key in own}
            kind, values = found.values.get("model_type"), found.values
            if found.is_backbone:
                values = {"vision_config": values}
            elif kind != cls.config_class.model_type:
                raise CheckpointError(
                    f"{place} has a model of type {shown(kind)}; {cls.__name__} loads {cls.config_class.model_type!r} "
                    f"or a bare backbone of type {', '.join(BACKBONE_TYPES)}."
                )
            config = cls.config_class.from_dict({**values, **given})
        tensors = stored_tensors(found, most_bytes)
        try:  # without memory: a model that is too large, or that a hostile configuration breaks, is refused
            with torch.device("meta"), init.no_init_weights():
                needed = cls(copy.deepcopy(config)).get_memory_footprint()
        except Exception as error:  # it may fail anywhere
            raise CheckpointError(f"Nothing can be built from {place}: {one_line(error)}") from error
        if needed > most_bytes:
            raise CheckpointError(too_large(needed, most_bytes, place))
        kwargs["state_dict"] = without_base_prefix(tensors) if found.is_backbone else tensors
        # Keys and sizes that do not match are refused below, with their names. Weights that no key fills are drawn once
        # the model is loaded; drawing them as it is built on the meta device is lost time.
        with without_key_report(), init.no_init_weights():
            model, info = super().from_pretrained(
                None, *args, config=config, output_loading_info=True, ignore_mismatched_sizes=True, **kwargs
            )
        require_whole(model, info, found.is_backbone, place)
        if found.is_backbone:
            model.adopt_backbone()
        model.config.name_or_path = model.name_or_path = place
        model.source = found
        model.freeze()
        return (model, info) if output_loading_info else model

    def save_pretrained(self, save_directory: str | os.PathLike[str], *args: Any, **kwargs: Any) -> None:
        """As in transformers, with the names of `state_dict`, by which `Trainer` and accelerate read weights back.

        Raises:
            ValueError: adapters of peft have the weights, under names that no model has.
        """
        # Those that transformers itself added are saved as adapters.
        if hasattr(self, "peft_config") and not self._hf_peft_config_loaded:
            raise ValueError(
                "This model has adapters, and its checkpoint could not be loaded: merge them first "
                "(merge_and_unload of peft)."
            )
        super().save_pretrained(save_directory, *args, **{"save_original_format": False, **kwargs})

    def freeze(self) -> None:
        """Let only the last block, the projection head and the parameters of `roles` learn."""
        last = {*map(id, blocks_of(self.backbone)[-1].parameters())}
        for name, parameter in self.named_parameters():
            parameter.requires_grad_(id(parameter) in last or name.startswith(("head.", *self.roles)))

    @property
    def num_prompts(self) -> int:
        """How many prompts there are to choose from; 0 by default."""
        return 0

    def learning(self) -> dict[str, list[nn.Parameter]]:
        """Parameters that learn, by role: ``"model"``, or one of `roles`, each with its learning rate."""
        by_role: dict[str, list[nn.Parameter]] = {}
        for name, parameter in self.named_parameters():
            if not parameter.requires_grad:
                continue
            role = next((role for start, role in self.roles.items() if name.startswith(start)), "model")
            by_role.setdefault(role, []).append(parameter)
        return by_role

    def reset_prompts(self, generator: torch.Generator) -> None:
        """Reset learnt prompts from a CPU generator; does nothing by default."""

    def begin_discovery(self, first_stage: Callable[[], "CategoryDiscoveryModel"]) -> None:
        """Prepare for training on an unlabelled stage; does nothing by default.

        Args:
            first_stage: loads the model of stage 0.
        """

    def replay(self, per_component: int, generator: torch.Generator) -> Replay | None:
        """Features of known categories, for a stage that no longer has their images; `None` by default.

        Args:
            per_component: S, how many of every component of a mixture.
            generator: a CPU generator.
        """
        return None

    def last_block(self, prompted: bool | None = None) -> nn.Module:
        """The last block of a forward; the backbone's own, unless a method has further ones."""
        return blocks_of(self.backbone)[-1]

    def keep_pretrained_block(self) -> None:
        """Keep a copy of the pretrained last block, for queries and part labels."""
        self.pretrained_block = copy.deepcopy(blocks_of(self.backbone)[-1])

    def _entering(self, pixel_values: Tensor) -> tuple[Tensor, Rotation | None]:
        """Tokens of the plain forward that enter the last block, and their rotation."""
        tokens, rotation = embed(self.backbone, pixel_values)
        return run_prefix(self.backbone, tokens, rotation), rotation

    @torch.no_grad()
    def attention_row(self, pixel_values: Tensor) -> Tensor:
        """How [CLS] of the plain forward attends to the patches in the last block, ``(B, L, H)``."""
        entering, rotation = self._entering(pixel_values)
        return class_attention(self.backbone, entering, self.last_block(), rotation)

    @torch.no_grad()
    def pretrained_patch_features(self, pixel_values: Tensor) -> Tensor:
        """Patch features ``(B, L, D)`` of the pretrained backbone; only after `keep_pretrained_block`."""
        entering, rotation = self._entering(pixel_values)
        return patch_features(self.backbone, entering, self.pretrained_block, rotation)

    def adopt_backbone(self) -> None:
        """Copy the last block of a just loaded backbone into the pretrained block."""
        if hasattr(self, "pretrained_block"):
            self.pretrained_block.load_state_dict(blocks_of(self.backbone)[-1].state_dict())

    def train(self, mode: bool = True) -> "CategoryDiscoveryModel":
        """Set the mode of all parts but blocks, which stay in eval mode: their dropout would blur features."""
        super().train(mode)
        for name, child in self.named_children():
            if name in self.block_parts:
                child.eval()
        return self

    def forward(
        self,
        pixel_values: Tensor,
        prompted: bool | None = None,
        project: bool = False,
        *,
        return_dict: bool | None = None,
    ) -> Any:
        """Features of images, and on request the projection that the losses read.

        Args:
            pixel_values: normalised images ``(B, 3, H, W)``.
            prompted: whether prompts act; `None` means as at test. A model without prompts ignores it.
            project: whether to return `CategoryDiscoveryOutput.bottleneck`.
            return_dict: whether to return a `CategoryDiscoveryOutput` and not a tuple; `None` asks the configuration.
        """
        tokens, rotation = embed(self.backbone, pixel_values)
        output = self.compute_output(tokens, rotation, prompted, project)
        # A decorator would not last: Accelerate takes all of them off a model that it trained in bfloat16.
        as_dict = self.config.return_dict if return_dict is None else return_dict
        return output if as_dict else output.to_tuple()

    def compute_output(
        self, tokens: Tensor, rotation: Rotation | None, prompted: bool | None, project: bool
    ) -> CategoryDiscoveryOutput:
        """The features, and with `project` the projection, without prompts; `forward` says the last two arguments.

        Args:
            tokens: that enter block 0, ``(B, L, D)``: [CLS], registers if there are any, patches.
            rotation: rotary position embedding of the patches; `None` where tokens have positions.
            prompted: whether prompts act.
            project: whether the losses read the output.
        """
        entering = run_prefix(self.backbone, tokens, rotation)
        features = class_row(self.backbone, entering, self.last_block(prompted), rotation)
        more = {"entering": entering, "rotation": rotation} if project and self.compares_blocks else {}
        return self._output(features, project, **more)

    def features_of(self, pixel_values: Tensor, prompted: bool | None = None) -> Tensor:
        """Unit features ``(B, D)`` in float32, computed in the precision of training; `forward` says the arguments.

        Prototypes and mixture are computed of these. `forward` itself computes in the precision of its caller.
        """
        mixed = self.config.precision == "bfloat16"
        with torch.autocast(pixel_values.device.type, torch.bfloat16, enabled=mixed):
            features = self(pixel_values, prompted=prompted, return_dict=True).features
        return F.normalize(features.float())

    def _output(self, features: Tensor, project: bool, **others: Any) -> CategoryDiscoveryOutput:
        bottleneck = self.head(features) if project else None
        return CategoryDiscoveryOutput(features=features, bottleneck=bottleneck, **others)

    def auxiliary_losses(self, output: CategoryDiscoveryOutput) -> dict[str, Tensor]:
        """Weighted terms that prompts add to the contrastive loss, by name; nothing by default.

        Each has one value per view, ``(B,)``, of a training forward; the caller averages over all processes.
        """
        return {}

    @property
    def native_prompted(self) -> bool | None:
        """Whether prompts act on the features that `assign_natively` takes; `None` as at test."""
        return None

    def assign_natively(self, features: Tensor) -> Tensor | None:
        """The native prediction ``(N,)`` for features ``(N, D)``; `None` before it was learnt.

        It comes from the method's classifier or mixture, else it is the likeliest category of `gaussians`.
        """
        gaussians = self.gaussians
        return None if gaussians is None else gaussians.predict(F.normalize(features.float()))

    @property
    def gaussians(self) -> CategoryGaussians | None:
        """The calibrated mixture of the finished stages; `None` if not fitted."""
        return self._measured("gaussians")

    @property
    def spread(self) -> CategorySpread | None:
        """How far images of each category spread, in the order of the prototypes; `None` where it was not measured."""
        return self._measured("spread")

    def _measured(self, name: str) -> Any:
        if (numbers := getattr(self.config, name)) is None:
            return None
        kind = MEASURED[name]
        tensors = {each: getattr(self, f"{name}_{each}").float() for each in kind.shapes}
        return kind(**tensors, **numbers)

    def set_measured(self, name: str, found: CategorySpread | CategoryGaussians | None) -> None:
        """Store the ``"spread"`` of the categories or their ``"gaussians"``; `None` removes it."""
        numbers = {} if found is None else dict(vars(found))
        for part in MEASURED[name].shapes:
            self._buffers.pop(f"{name}_{part}", None)
            if found is not None:
                self.register_buffer(f"{name}_{part}", numbers.pop(part).to(self.prototypes))
        setattr(self.config, name, numbers or None)

    def set_categories(self, prototypes: Tensor, ids: list[int], names: list[str]) -> None:
        """Store one prototype per category, ``(C, D)`` means of unit features, with its id and name.

        Categories of before keep their spread. One that returns, as after an undone merge, gets the spread of a new
        category until a stage measures it again.
        """
        if (spread := self.spread_for(ids)) is not None:
            self.set_measured("spread", spread)
        self.prototypes = prototypes.detach().to(self.prototypes).clone()
        self.config.category_ids, self.config.category_names = list(ids), list(names)
        self.config.validate_stored()

    def spread_for(self, ids: Sequence[int]) -> CategorySpread | None:
        """As above for these categories, on the CPU; an unknown category gets the spread of a new category."""
        rows = {category: row for row, category in enumerate(self.config.category_ids)}
        return None if self.spread is None else self.spread.of([rows.get(each) for each in ids])

    @torch.no_grad()
    def assign(self, features: Tensor) -> Assignment:
        """Assign features to the nearest prototypes, measured in the spread of the categories where it is known.

        Args:
            features: ``(B, D)`` as `forward` returns them.

        Raises:
            ValueError: the model has no prototypes yet.
        """
        return assign(**self._nearest(features))

    @torch.no_grad()
    def nearest(self, features: Tensor, top_k: int) -> tuple[Tensor, Tensor]:
        """Ids of the `top_k` nearest categories and their confidences, ``(B, k)`` both; the first is `assign`'s.

        Args:
            features: ``(B, D)`` as `forward` returns them.
            top_k: k; with fewer categories, all of them.

        Raises:
            ValueError: the model has no prototypes yet.
        """
        return nearest(**self._nearest(features), top_k=top_k)

    def _nearest(self, features: Tensor) -> dict[str, Any]:
        """Arguments of `assign` and `nearest`."""
        if len(self.prototypes) == 0:
            raise ValueError("This model has no category prototypes: finish a stage before assigning images.")
        return {
            "features": F.normalize(features.float()),
            "prototypes": self.prototypes.float().to(features.device),  # features may be on the CPU already
            "ids": self.config.category_ids,
            "temperature": self.config.confidence_temperature,
            "spread": self.spread,
        }


# Every variant by its name in configurations, recipes and checkpoints.
VARIANTS: dict[str, type[CategoryDiscoveryModel]] = {}


def register_variant(model: type[CategoryDiscoveryModel]) -> None:
    """Make a variant known to this package and to transformers' auto classes.

    Raises:
        ConfigurationError: it has no configuration of its own.
    """
    config = model.config_class
    if not config.model_type or VARIANTS.setdefault(config.model_type, model) is not model:
        raise ConfigurationError(
            f"{model.__name__} has no configuration of its own: write `config: {model.__name__}Config` into the class, "
            "and `model_type = ` with a new name into that configuration."
        )
    script = sys.modules["__main__"]
    name = os.path.splitext(os.path.basename(getattr(script, "__file__", None) or ""))[0]
    # Classes of the running script get the module name of an import, which cards show.
    for part in (config, model):
        if part.__module__ == "__main__" and name and sys.modules.setdefault(name, script) is script:
            part.__module__ = name
    AutoConfig.register(config.model_type, config, exist_ok=True)
    AutoModel.register(config, model, exist_ok=True)


def load_model(name: str | os.PathLike[str], **options: Any) -> CategoryDiscoveryModel:
    """The model of a finished stage, whichever variant it is.

    Args:
        name: as of `find_model`.
        options: of `CategoryDiscoveryModel.from_pretrained`.

    Raises:
        OSError: there is no such model.
        CheckpointError: it is no model of this package, or refused.
    """
    found = find_model(name, **{key: options.pop(key) for key in HUB_OPTIONS if key in options})
    return _variant_of(found).from_pretrained(found, **options)


def load_configuration(name: str | os.PathLike[str]) -> CategoryDiscoveryConfig:
    """The configuration of a finished stage.

    Raises:
        OSError: there is no such model.
        CheckpointError: it is no model of this package, or refused.
    """
    found = find_model(name, (CONFIGURATION,))
    return _variant_of(found).config_class.from_dict(found.values)


def backbone_configuration(name: str | os.PathLike[str], **hub_options: Any) -> PreTrainedConfig:
    """The configuration of a bare backbone; options are `promptccd.models.checkpoint.HUB_OPTIONS`.

    Raises:
        OSError: there is no such model.
        CheckpointError: it is no backbone, or refused.
    """
    return backbone_config_of(find_model(name, (CONFIGURATION,), **hub_options).values)


def _variant_of(found: FoundModel) -> type[CategoryDiscoveryModel]:
    kind = found.values.get("model_type")
    if found.is_backbone:
        name = next((name for name, place in BUNDLED.items() if place == found.place), found.place)
        raise CheckpointError(
            f"{name} is a bare backbone, which knows no categories: give a stage that training finished, or "
            f"group images with it: promptccd discover {name} IMAGES --out groups/"
        )
    import_module("promptccd.methods")  # each of its files registers a model
    if not isinstance(kind, str) or kind not in VARIANTS:
        raise CheckpointError(
            f"{found.place} has a model of type {shown(kind)}: expected one of {', '.join(VARIANTS)}. Code that comes "
            "with a model is never run: give the file of its method as --plugin FILE."
        )
    return VARIANTS[kind]
