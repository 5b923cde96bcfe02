"""PromptCCD++: part-level prompt pools that modulate patches, and a router that knows the parts."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from transformers import ViTConfig
from transformers import initialization as init
from transformers.models.vit.modeling_vit import ViTLayer

from promptccd.clustering.parts import PartLabeller
from promptccd.methods.base import Method
from promptccd.methods.prompts import Pool, Selection
from promptccd.models.backbone import (
    ProjectionHead,
    Rotation,
    blocks_of,
    class_attention,
    class_row,
    draw_truncated_normal,
    patch_count,
    patch_features,
    run_prefix,
)
from promptccd.models.base import CategoryDiscoveryModel, CategoryDiscoveryOutput
from promptccd.models.configuration import CategoryDiscoveryConfig, bounded


@strict
class PromptCCDPlusPlusConfig(CategoryDiscoveryConfig):
    """PromptCCD++: one prompt pool per object part, and a router that sends every patch to its part.

    Attributes:
        num_parts: P, background included.
        pool_size: M, prompts per part.
        prompt_length: tokens of one prompt; a patch is modulated by their mean.
        prompts_per_patch: how many prompts of its part a patch gets (top-k).
        random_prompts: take arbitrary prompts of the part instead (an ablation of the paper).
        prompt_reach: first values of prompts and keys are uniform in -prompt_reach..prompt_reach; the paper gives no
            value.
        distill_weight: lambda_dist, weight of both distillation terms at later stages.
        anchor_on: what distillation keeps near the teacher's: ``"projection"``, as in the paper, or ``"cls"``, the unit
            feature.
    """

    model_type = "promptccd-pp"

    num_parts: int = bounded(8, 2, 1_024)
    pool_size: int = bounded(20, 1, 65_536)
    prompt_length: int = bounded(10, 1, 4_096)
    prompts_per_patch: int = bounded(2, 1, 65_536)
    random_prompts: bool = False
    prompt_reach: float = bounded(1.0, 0, 1e3)
    distill_weight: float = bounded(0.2, 0, 1e6)
    anchor_on: Literal["projection", "cls"] = "projection"

    def validate_parts(self) -> None:
        """Refuse more prompts per patch than the pool of a part has."""
        if (given := self.prompts_per_patch) > self.pool_size:
            raise ValueError(f"Expected prompts_per_patch <= pool_size ({self.pool_size}), got {given}.")


ROUTE_WEIGHT = 0.1  # the paper's lambda_route, weight of the part labels at stage 0


class PartPools(Pool):
    """P pools of M prompts of S tokens each: 168,960 parameters per part at the paper's sizes."""

    def __init__(self, config: PromptCCDPlusPlusConfig):
        parts, size, width = config.num_parts, config.pool_size, config.vision_config.hidden_size
        super().__init__(config.prompt_reach, (parts, size, width), config.prompts_per_patch)
        self.values = nn.Parameter(torch.empty(parts, size, config.prompt_length, width))

    def forward(self, indices: Tensor) -> Tensor:
        """b, by which a patch is scaled: the mean over chosen prompts and their tokens, ``(B, L, k)`` to ``(B, L, D)``.

        A product with a matrix of weights, since P * M is small, and the gradient is then a product too.
        """
        means = self.values.mean(dim=2).flatten(0, 1)  # (P * M, D)
        weights = means.new_zeros(*indices.shape[:-1], len(means))
        return weights.scatter(-1, indices, 1 / indices.shape[-1]) @ means


def modulate(tokens: Tensor, bias: Tensor) -> Tensor:
    """Scale the patches, the last tokens of ``(B, T, D)``, by 1 + b ``(B, L, D)``; [CLS] and registers stay."""
    patches = bias.shape[1]
    modulated = tokens[:, -patches:] * (1 + bias.to(tokens))
    return torch.cat([tokens[:, :-patches], modulated], dim=1)


def log_shares(logits: Tensor) -> Tensor:
    """Log of the mean routing probability of every part in an image, ``(B, L, P)`` to ``(B, P)``.

    In logarithms, since the share of a part without patches would underflow to zero.
    """
    return logits.log_softmax(dim=-1).logsumexp(dim=1) - math.log(logits.shape[1])


class PartRouter(nn.Module):
    """Patch tokens and [CLS] attention to routing logits: 14,690,720 parameters for ViT-B and 8 parts.

    x_aug = x_e + AttnProj(alpha); x~ = TransEnc(LN(x_aug)); r = g(x~) + x~ Q' / sqrt(D). The paper gives no
    widths; its parameter count fits a feed-forward of 4 D and a hidden layer of five sixths of D, 640.
    """

    def __init__(self, config: PromptCCDPlusPlusConfig):
        super().__init__()
        width, num_heads = config.vision_config.hidden_size, config.vision_config.num_attention_heads
        hidden = round(width * 5 / 6)
        self.attention_projection = nn.Sequential(
            nn.LayerNorm(num_heads), nn.Linear(num_heads, width), nn.GELU()
        )
        # Not `nn.TransformerEncoderLayer`: its batched in-projection nearly doubles a step in bfloat16 on a CPU.
        layer = ViTConfig(
            hidden_size=width, num_attention_heads=num_heads, intermediate_size=4 * width, layer_norm_eps=1e-5,
            attn_implementation="sdpa",
        )  # fmt: skip
        self.encoder = nn.Sequential(ViTLayer(layer), ViTLayer(layer))
        self.norm = nn.LayerNorm(width)
        self.part_queries = nn.Parameter(torch.empty(config.num_parts, width))
        self.mlp = nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, config.num_parts))

    def forward(self, patches: Tensor, attention: Tensor) -> tuple[Tensor, Tensor]:
        """Route patches x_e that enter block 0 ``(B, L, D)``; alpha is the attention of [CLS] to them ``(B, L, H)``.

        Returns contextualised patches ``(B, L, D)``, which also choose prompts, and routing logits ``(B, L, P)``.
        """
        own = self.norm.weight.dtype  # attention is float32, even where the router is bfloat16
        contextual = self.encoder(self.norm(patches + self.attention_projection(attention.to(own))))
        logits = self.mlp(contextual)
        logits = logits + contextual @ self.part_queries.T / math.sqrt(contextual.shape[-1])
        return contextual, logits.float()

    def initialise(self, std: float) -> None:
        """As transformers initialises a module whose weights are not loaded."""
        init.trunc_normal_(self.part_queries, std=std)

    reset_parameters = draw_truncated_normal


@dataclass
class PartPromptOutput(CategoryDiscoveryOutput):
    """The output of a prompted forward of PromptCCD++.

    Attributes:
        part_logits: ``(B, L, P)``, routing logits of every patch.
        part_labels: ``(B, L)``, pseudo part labels of the same view; only while the router learns.
        teacher_features: ``(B, D)``, the teacher's; only at unlabelled stages of training.
        teacher_bottleneck: ``(B, d)``, likewise.
        teacher_log_shares: ``(B, P)``, log of the teacher's mean routing probabilities; likewise.
    """

    part_logits: Tensor | None = None
    part_labels: Tensor | None = None
    teacher_features: Tensor | None = None
    teacher_bottleneck: Tensor | None = None
    teacher_log_shares: Tensor | None = None


@dataclass(frozen=True)
class Teacher:
    """Parts of the model of stage 0 that change later; prefix and router are frozen and shared."""

    last_block: nn.Module
    pools: PartPools
    head: ProjectionHead


class PromptCCDPlusPlusModel(CategoryDiscoveryModel):
    """Category discovery with part-level prompting (PLP; paper, "PromptCCD++").

    A prompted forward first runs the frozen prefix without prompts and graph, for the [CLS] attention of the last
    block. By this attention the router sends every patch to a part, and the prompts of that part scale the patch.
    The router learns from pseudo part labels at stage 0 and is frozen afterwards.

    Example:
        >>> model = PromptCCDPlusPlusModel.from_pretrained("facebook/dinov2-base", num_parts=8)
    """

    config: PromptCCDPlusPlusConfig
    part_labeller: PartLabeller
    roles: ClassVar = {"pools.keys": "key", "pools": "prompt", "router": "router"}
    head: ProjectionHead

    def __init__(self, config: PromptCCDPlusPlusConfig):
        super().__init__(config)
        self.keep_pretrained_block()
        self.part_labeller = PartLabeller(config.num_parts, config.vision_config.hidden_size)
        self.router = PartRouter(config)
        self.pools = PartPools(config)
        self._teacher: Teacher | None = None
        self.post_init()

    @property
    def num_prompts(self) -> int:
        """P * M, of all parts."""
        return self.pools.keys.shape[0] * self.pools.keys.shape[1]

    def freeze(self) -> None:
        """See the base class; the router learns at stage 0 alone."""
        super().freeze()
        self.router.requires_grad_(not self._router_is_done)

    def reset_prompts(self, generator: torch.Generator) -> None:
        """Draw pools and router again."""
        self.pools.reset_parameters(generator)
        self.router.reset_parameters(generator, self.config.initializer_range)

    def begin_discovery(self, first_stage: Callable[[], CategoryDiscoveryModel]) -> None:
        """Make the model of stage 0 the teacher of an unlabelled stage."""
        if self.config.distill_weight == 0:
            return
        first, device = first_stage(), self.device
        assert isinstance(first, PromptCCDPlusPlusModel)
        last_block = blocks_of(first.backbone)[-1]
        self._teacher = Teacher(last_block.to(device), first.pools.to(device), first.head.to(device))

    def compute_output(
        self, tokens: Tensor, rotation: Rotation | None, prompted: bool | None, project: bool
    ) -> CategoryDiscoveryOutput:
        """Features of images; see the base class. `prompted=None` means prompted, as in the paper.

        With `project` the output also contains the inputs of the losses.
        """
        if prompted is False:
            return super().compute_output(tokens, rotation, prompted, project)
        with torch.no_grad():
            entering = run_prefix(self.backbone, tokens, rotation)  # shared by attention, labels and teacher
        # At later stages the anchor, the only loss that reads the logits there, sends a gradient through the attention.
        # At stage 0 the part labels train the router alone.
        attached = project and self._teacher is not None
        with torch.set_grad_enabled(torch.is_grad_enabled() and attached):
            attention = class_attention(self.backbone, entering, self.last_block(), rotation)
        prompted_tokens, selection, logits = self._prompted(tokens, attention, self.pools)
        passed = run_prefix(self.backbone, prompted_tokens, rotation)
        features = class_row(self.backbone, passed, rotation=rotation)
        output = PartPromptOutput(
            features=features,
            bottleneck=self.head(features) if project else None,
            components=selection.indices,
            scores=selection.cosines,
            part_logits=logits,
        )
        if project:
            self._add_targets(output, tokens, entering, rotation)
        return output

    def auxiliary_losses(self, output: CategoryDiscoveryOutput) -> dict[str, Tensor]:
        """The terms of part prompts in the loss of every view (paper, Eqs. 8 and 14 to 16).

        ``cos``: sum over a patch's prompts of 1 - cosine, mean over patches. ``route``: cross-entropy with the part
        labels, at stage 0. ``distill`` and ``anchor``: squared distance to the teacher's projection, or to its [CLS],
        and divergence from its shares of parts, at later stages.
        """
        if not isinstance(output, PartPromptOutput):
            return {}
        assert output.scores is not None and output.part_logits is not None
        losses = {"cos": (1 - output.scores).sum(2).mean(1)}
        if output.part_labels is not None:
            route = F.cross_entropy(output.part_logits.transpose(1, 2), output.part_labels, reduction="none")
            losses["route"] = ROUTE_WEIGHT * route.mean(1)
        if output.teacher_bottleneck is not None:
            assert self._teacher is not None and output.features is not None and output.bottleneck is not None
            assert output.teacher_features is not None and output.teacher_log_shares is not None
            if self.config.anchor_on == "cls":  # a head that learns too has no part in the distance
                both = output.features, output.teacher_features
                ours, theirs = (F.normalize(each.float()) for each in both)
            else:
                ours = self.head.outputs(output.bottleneck)
                with torch.no_grad():
                    theirs = self._teacher.head.outputs(output.teacher_bottleneck)
            shares = log_shares(output.part_logits)
            divergence = (shares.exp() * (shares - output.teacher_log_shares)).sum(1)
            losses["distill"] = self.config.distill_weight * (ours - theirs).square().sum(1)
            losses["anchor"] = self.config.distill_weight * divergence
        return losses

    @property
    def _router_is_done(self) -> bool:
        return self.config.stage is not None

    def _prompted(
        self, tokens: Tensor, attention: Tensor, pools: PartPools
    ) -> tuple[Tensor, Selection, Tensor]:
        """Tokens whose patches are scaled by prompts of these pools, the prompts, and the routing logits."""
        contextual, logits = self.router(tokens[:, -patch_count(self.backbone, tokens) :], attention)
        # Only keys learn from the cosines.
        selection = pools.select(contextual.detach(), self.config.random_prompts, logits.argmax(2))
        return modulate(tokens, pools(selection.indices)), selection, logits

    @torch.no_grad()
    def _add_targets(
        self, output: PartPromptOutput, tokens: Tensor, entering: Tensor, rotation: Rotation | None
    ) -> None:
        """Add part labels at stage 0, and the teacher's outputs afterwards."""
        if not self._router_is_done:
            output.part_labels = self.part_labeller(
                patch_features(self.backbone, entering, self.pretrained_block, rotation)
            )
        elif self._teacher is not None:
            teacher = self._teacher
            attention = class_attention(self.backbone, entering, teacher.last_block, rotation)
            prompted, _, logits = self._prompted(tokens, attention, teacher.pools)
            entering = run_prefix(self.backbone, prompted, rotation)
            output.teacher_features = class_row(self.backbone, entering, teacher.last_block, rotation)
            output.teacher_bottleneck = teacher.head(output.teacher_features)
            output.teacher_log_shares = log_shares(logits)
        elif self.training and self.config.distill_weight > 0:
            raise ValueError(
                f"This model finished stage {self.config.stage} and has no teacher to train on with: call "
                "begin_discovery with a loader of the model of stage 0, or set distill_weight to 0."
            )


METHOD = Method(
    name="promptccd-pp",
    model=PromptCCDPlusPlusModel,
    title="PromptCCD++",
    summary="prompted patch by patch, from a pool for every object part",
    parts={"pools": "part pools", "router": "part router"},
    losses={
        "cos": "distance of patches to chosen keys",
        "route": "cross-entropy of part labels",
        "distill": "distance to the teacher's embeddings",
        "anchor": "divergence from the teacher's shares of parts",
    },
)
