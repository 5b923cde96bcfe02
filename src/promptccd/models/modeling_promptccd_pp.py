"""PromptCCD++: part-level prompt pools that modulate patches, and a router that knows the parts."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .backbones import (
    Rotation,
    blocks_of,
    class_attention,
    class_row,
    class_token,
    patch_count,
    patch_features,
    run_prefix,
)
from .configuration_promptccd import PromptCCDPlusPlusConfig
from .modeling_base import CategoryDiscoveryModel, CategoryDiscoveryOutput
from .part_labeller import PartLabeller
from .part_prompts import PartPools, PartRouter, Routing, log_shares, modulate
from .projection_head import ProjectionHead
from .prompt_pools import Selection


@dataclass
class PartPromptOutput(CategoryDiscoveryOutput):
    """What a prompted forward of PromptCCD++ returns.

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


def projections(features: Tensor, bottleneck: Tensor, head: ProjectionHead) -> Tensor:
    """The wide outputs of a head: what the paper compares."""
    return head.outputs(bottleneck)


def unit_features(features: Tensor, bottleneck: Tensor, head: ProjectionHead) -> Tensor:
    """[CLS] itself: a head that learns too takes no part of the distance."""
    return F.normalize(features.float(), dim=-1)  # mutant without dim=, without -: features are (B, D)


HELD = {"projection": projections, "cls": unit_features}


@dataclass(frozen=True)
class Teacher:
    """What the frozen model of stage 0 does not share with later ones; prefix and router are frozen and shared."""

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
    roles: ClassVar = {"pools.keys": "key", "router": "router"}
    shares_prefix: ClassVar = True
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

    def prompt_parameters(self) -> list[nn.Parameter]:
        """The pools, and at stage 0 the router."""
        learning: list[nn.Module] = [self.pools] if self._router_is_done else [self.pools, self.router]
        return [parameter for module in learning for parameter in module.parameters()]

    def reset_prompts(self, generator: torch.Generator) -> None:
        """Draw pools and router anew."""
        self.pools.reset_parameters(generator)
        self.router.reset_parameters(generator, self.config.initializer_range)

    def begin_discovery(self, first_stage: Callable[[], CategoryDiscoveryModel]) -> None:
        """Make the model of stage 0 the teacher of an unlabelled stage."""
        if self.config.distill_weight == 0:
            return
        first = first_stage()
        assert isinstance(first, PromptCCDPlusPlusModel)
        self._teacher = Teacher(
            blocks_of(first.backbone)[-1].to(self.device),
            first.pools.to(self.device),
            first.head.to(self.device),
        )

    def forward(
        self, pixel_values: Tensor, prompted: bool | None = None, project: bool = False
    ) -> CategoryDiscoveryOutput:
        """Features of images; see the base class. `prompted=None` means prompted, as in the paper.

        With `project` the output also holds what only the losses read.
        """
        tokens, rotation = self.embed(pixel_values), self.rotation(pixel_values)
        if prompted is False:
            return self._output(class_token(self.backbone, tokens, rotation), project)
        with torch.no_grad():
            entering = run_prefix(self.backbone, tokens, rotation)  # shared by attention, labels and teacher
        routing = self._route(tokens, entering, project, rotation)
        prompted_tokens, selection = self._prompted(tokens, routing, self.pools)
        features = class_token(self.backbone, prompted_tokens, rotation)
        output = PartPromptOutput(
            features=features,
            bottleneck=self.head(features) if project else None,
            components=selection.indices,
            scores=selection.cosines,
            part_logits=routing.logits,
        )
        if project:
            self._add_targets(output, tokens, entering, rotation)
        return output

    def auxiliary_losses(self, output: CategoryDiscoveryOutput) -> dict[str, Tensor]:
        """What part prompts add to the loss of every view (paper, Eqs. 8 and 14 to 16).

        ``cos``: sum over a patch's prompts of 1 - cosine, mean over patches. ``route``: cross-entropy with the part
        labels, at stage 0. ``distill`` and ``anchor``: squared distance to the teacher's projection, or to its [CLS],
        and divergence from its shares of parts, at later stages.
        """
        if not isinstance(output, PartPromptOutput):
            return {}
        assert output.scores is not None
        assert output.part_logits is not None
        losses = {"cos": self.config.cos_weight * (1 - output.scores).sum(dim=-1).mean(dim=-1)}
        if output.part_labels is not None:
            route = F.cross_entropy(output.part_logits.transpose(1, 2), output.part_labels, reduction="none")
            losses["route"] = self.config.route_weight * route.mean(dim=-1)
        if output.teacher_bottleneck is not None:
            assert self._teacher is not None
            assert output.features is not None
            assert output.bottleneck is not None
            assert output.teacher_features is not None
            assert output.teacher_log_shares is not None
            held = HELD[self.config.anchor_on]
            ours = held(output.features, output.bottleneck, self.head)
            with torch.no_grad():
                theirs = held(output.teacher_features, output.teacher_bottleneck, self._teacher.head)
            shares = log_shares(output.part_logits)
            divergence = (shares.exp() * (shares - output.teacher_log_shares)).sum(dim=-1)
            # mutant without -: logits of the head are (B, d): their last dimension is 1
            losses["distill"] = self.config.distill_weight * (ours - theirs).square().sum(dim=-1)
            losses["anchor"] = self.config.distill_weight * divergence
        return losses

    @property
    def _router_is_done(self) -> bool:
        return self.config.stage is not None

    def _route(self, tokens: Tensor, entering: Tensor, training: bool, rotation: Rotation | None) -> Routing:
        """Route by the attention of the last block that learns.

        At later stages the anchor, the only loss that reads the logits there, sends a gradient through the attention.
        At stage 0 the part labels do so only with `route_reaches_backbone`.
        """
        attached = training and (self._teacher is not None or self.config.route_reaches_backbone)
        patches = patch_count(self.backbone, tokens)
        with torch.set_grad_enabled(torch.is_grad_enabled() and attached):
            attention = class_attention(blocks_of(self.backbone)[-1], entering, patches, rotation)
        return self.router(tokens[:, -patches:], attention)

    def _prompted(self, tokens: Tensor, routing: Routing, pools: PartPools) -> tuple[Tensor, Selection]:
        """Tokens whose patches are scaled by prompts of these pools, and the prompts."""
        bias, selection = pools(routing.contextual, routing.parts, self.config.random_prompts)
        return modulate(tokens, bias), selection

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
            teacher, patches = self._teacher, patch_count(self.backbone, tokens)
            attention = class_attention(teacher.last_block, entering, patches, rotation)
            routing = self.router(tokens[:, -patches:], attention)
            prompted, _ = self._prompted(tokens, routing, teacher.pools)
            entering = run_prefix(self.backbone, prompted, rotation)
            output.teacher_features = class_row(self.backbone, entering, teacher.last_block, rotation)
            output.teacher_bottleneck = teacher.head(output.teacher_features)
            output.teacher_log_shares = log_shares(routing.logits)
        elif self.training and self.config.distill_weight > 0:
            raise ValueError(
                f"This model finished stage {self.config.stage} and has no teacher to train on with: call "
                "begin_discovery with a loader of the model of stage 0, or set distill_weight to 0."
            )
