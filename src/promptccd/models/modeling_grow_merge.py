"""Grow & Merge on a ViT: the last block of stage 0, frozen afterwards, and one more for every later stage."""

import copy
from typing import ClassVar

import torch
import torch.nn.functional as F
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn

from .backbones import blocks_of, class_row, run_prefix
from .classifiers import LinearClassifier
from .configuration_promptccd import CategoryDiscoveryConfig
from .modeling_base import CategoryDiscoveryOutput
from .modeling_classifier import RememberingModel
from .untrusted import bounded


@strict
class GrowMergeConfig(CategoryDiscoveryConfig):
    """Grow & Merge.

    Attributes:
        top_ranks: k; two images whose k largest feature dimensions are the same count as a pair.
        distill_weight: of the squared distance between branches, over images that look known.
        known_quantile: share of the images of stage 0 that do not look known; it sets `known_similarity`.
        static_for_known: whether images that look known get the features of the static branch.
        known_similarity: an image looks known if its cosine with the nearest mean of a labelled class is at least this.
        num_means: labelled classes, whose means are kept; sizes the buffer.
        num_branches: dynamic branches, one for every unlabelled stage.
        num_clusters: outputs of the cluster head: categories that were new at the last stage.
    """

    model_type = "grow-merge"

    top_ranks: int = bounded(5, 1, 8_192)
    distill_weight: float = bounded(1.0, 0, 1e6)
    known_quantile: float = bounded(0.05, 0, 1)
    static_for_known: bool = False
    known_similarity: float = bounded(0.0, -1, 1)
    num_means: int = bounded(0, 0, 1_000_000)
    num_branches: int = bounded(0, 0, 1_000)
    num_clusters: int = bounded(0, 0, 1_000_000)

    def validate_branches(self) -> None:
        """A model with branches has means of labelled classes."""
        if self.num_branches and not self.num_means:
            raise ValueError(f"Expected num_means >= 1 beside {self.num_branches} branches, got 0.")


class GrowMergeModel(RememberingModel):
    """The backbone's own last block is the static branch; the newest of `branches` learns and gives the features.

    All branches read the tokens of the frozen prefix. `class_means` are features of the static branch.
    """

    config: GrowMergeConfig
    roles: ClassVar = {"clusters": "classifier"}
    shares_prefix: ClassVar = True

    def __init__(self, config: GrowMergeConfig):
        super().__init__(config)
        static = blocks_of(self.backbone)[-1]  # mutant: all blocks have one form, and a checkpoint fills them
        self.branches = nn.ModuleList(copy.deepcopy(static) for _ in range(config.num_branches))
        self.clusters = LinearClassifier(config.num_clusters, config.vision_config.hidden_size)
        self.post_init()

    @property
    def acting_block(self) -> nn.Module:
        """See the base class: the newest branch, or else the static one."""
        return self.branches[-1] if len(self.branches) else blocks_of(self.backbone)[-1]

    def grow(self, rows: Tensor) -> None:
        """Add a branch, a copy of the newest one, and replace the cluster head by one of these rows ``(n, D)``."""
        self.branches.append(copy.deepcopy(self.acting_block))
        self.clusters = LinearClassifier(0, rows.shape[1]).to(self.device)
        self.clusters.grow(rows)
        self.config.num_branches, self.config.num_clusters = len(self.branches), len(rows)
        self.freeze()

    def freeze(self) -> None:
        """Let the head, the newest branch and its cluster head learn; without branches the static one."""
        super().freeze()
        blocks_of(self.backbone)[-1].requires_grad_(False)
        self.acting_block.requires_grad_(True)
        self.clusters.requires_grad_(self.clusters.num_classes > 0)

    def train(self, mode: bool = True) -> "GrowMergeModel":
        """See the base class: branches count as backbone."""
        super().train(mode)
        self.branches.eval()
        return self

    def looks_known(self, features: Tensor) -> Tensor:
        """Which unit features ``(N, D)`` of the static branch lie near the mean of a labelled class, ``(N,)``."""
        return (features @ self.class_means.to(features).T).amax(1) >= self.config.known_similarity

    def forward(
        self, pixel_values: Tensor, prompted: bool | None = None, project: bool = False
    ) -> CategoryDiscoveryOutput:
        """Features of the newest branch, and with the projection also the tokens that enter all branches.

        With ``prompted=False`` all features are those of the static branch; at test (`None`), with
        ``static_for_known``, those of images that look known.
        """
        rotation = self.rotation(pixel_values)
        entering = run_prefix(self.backbone, self.embed(pixel_values), rotation)
        block = None if prompted is False else self.acting_block
        features = class_row(self.backbone, entering, block, rotation)
        if prompted is None and self.config.static_for_known and len(self.branches):
            static = class_row(self.backbone, entering, rotation=rotation)
            # mutant without dim=, without -: features are (B, D)
            known = self.looks_known(F.normalize(static.float(), dim=-1))
            features = torch.where(known[:, None], static, features)
        tokens = {"entering": entering, "rotation": rotation} if project else {}
        return self._output(features, project, **tokens)
