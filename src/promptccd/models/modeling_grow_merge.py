"""Grow & Merge on a ViT: a last block that stage 0 leaves for good, and beside it one more for every later stage."""

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


@strict
class GrowMergeConfig(CategoryDiscoveryConfig):
    """Grow & Merge.

    Attributes:
        top_ranks: k; two images are taken for a pair whose k largest feature dimensions are the same.
        distill_weight: of the squared distance between branches, of images that look known.
        known_quantile: share of stage 0's images that would not look known.
        static_for_known: whether features of images that look known are the static branch's.
        known_similarity: cosine with the nearest mean of a labelled class from which on an image looks known.
        num_means: labelled classes, whose means are kept; sizes the buffer.
        num_branches: dynamic branches, one for every unlabelled stage.
        num_clusters: outputs of the cluster head: categories that were new at the last stage.
    """

    model_type = "grow-merge"

    top_ranks: int = 5
    distill_weight: float = 1.0
    known_quantile: float = 0.05
    static_for_known: bool = False
    known_similarity: float = 0.0
    num_means: int = 0
    num_branches: int = 0
    num_clusters: int = 0

    def validate_branches(self) -> None:
        """Who has branches knows labelled classes."""
        if self.num_branches and not self.num_means:
            raise ValueError(f"Expected num_means >= 1 beside {self.num_branches} branches, got 0.")


class GrowMergeModel(RememberingModel):
    """The backbone's own last block is the static branch; the newest of `branches` gives features and learns.

    All branches read what the frozen prefix gives. `class_means` are of the static branch.
    """

    config: GrowMergeConfig
    roles: ClassVar = {"clusters": "classifier"}

    def __init__(self, config: GrowMergeConfig):
        super().__init__(config)
        static = blocks_of(self.backbone)[-1]
        self.branches = nn.ModuleList(copy.deepcopy(static) for _ in range(config.num_branches))
        self.clusters = LinearClassifier(config.num_clusters, config.vision_config.hidden_size)
        self.post_init()
        self.freeze()

    @property
    def acting_block(self) -> nn.Module:
        """See the base class: the newest branch, or the static one while there is no other."""
        return self.branches[-1] if len(self.branches) else blocks_of(self.backbone)[-1]

    def grow(self, rows: Tensor) -> None:
        """A branch that begins as the newest one is, and a new cluster head of these rows ``(n, D)``."""
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
        self.clusters.requires_grad_(len(self.branches) > 0 and self.clusters.num_classes > 0)

    def train(self, mode: bool = True) -> "GrowMergeModel":
        """See the base class: branches are of the backbone."""
        super().train(mode)
        self.branches.eval()
        return self

    def looks_known(self, features: Tensor) -> Tensor:
        """Which unit features ``(N, D)`` of the static branch lie near the mean of a labelled class, ``(N,)``."""
        return (features @ self.class_means.T).amax(-1) >= self.config.known_similarity

    def forward(
        self, pixel_values: Tensor, prompted: bool | None = None, project: bool = False
    ) -> CategoryDiscoveryOutput:
        """Features of the newest branch, and with the projection also the tokens that enter all branches.

        Without prompts means without branches: with ``prompted=False`` features are the static branch's. At test they
        are so for images that look known, if ``static_for_known`` says so.
        """
        rotation = self.rotation(pixel_values)
        entering = run_prefix(self.backbone, self.embed(pixel_values), rotation)
        block = None if prompted is False else self.acting_block
        features = class_row(self.backbone, entering, block, rotation)
        if prompted is None and self.config.static_for_known and len(self.branches):
            static = class_row(self.backbone, entering, rotation=rotation)
            known = self.looks_known(F.normalize(static.float(), dim=-1))
            features = torch.where(known[:, None], static, features)
        return self._output_with_tokens(features, project, entering, rotation)
