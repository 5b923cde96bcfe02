"""Grow & Merge (Zhang et al., NeurIPS 2022) on a ViT, as the paper's supplement sketches it; details are ours.

Its code is not public. The supplement says: GCD's loss trains the features; the last block is the static branch; every
discovery stage adds a block, its dynamic branch; distillation ties it to the static branch. Our decisions: branches run
in parallel, each starts as a copy of the one before, which images look known, all weights, and that nothing merges.
"""

import copy
from typing import ClassVar

import torch
import torch.nn.functional as F
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn

from promptccd.methods.base import Method, Objective
from promptccd.methods.classifier import (
    LinearClassifier,
    RememberingModel,
    pair_loss,
    same_top_ranks,
    sampled_rows,
    share_of_pairs,
)
from promptccd.methods.processes import Rows, same_on_all
from promptccd.models.backbone import blocks_of
from promptccd.models.configuration import CategoryDiscoveryConfig, bounded


@strict
class GrowMergeConfig(CategoryDiscoveryConfig):
    """Grow & Merge.

    Attributes:
        known_similarity: an image looks known if its cosine with the nearest mean of a labelled class is at least this.
        num_means: labelled classes, whose means are kept; sizes the buffer.
        num_branches: dynamic branches, for every unlabelled stage.
        num_clusters: outputs of the cluster head: categories that were new at the last stage.
    """

    model_type = "grow-merge"

    known_similarity: float = bounded(0.0, -1, 1, stored=True)
    num_means: int = bounded(0, 0, 1_000_000, stored=True)
    num_branches: int = bounded(0, 0, 1_000, stored=True)
    num_clusters: int = bounded(0, 0, 1_000_000, stored=True)

    def validate_branches(self) -> None:
        """A model with branches has means of labelled classes."""
        if self.num_branches and not self.num_means:
            raise ValueError(f"Expected num_means >= 1 with {self.num_branches} branches, got 0.")


UNKNOWN_SHARE = 0.05  # of the images of stage 0 that do not look known (ours); it sets `known_similarity`


class GrowMergeModel(RememberingModel):
    """The backbone's own last block is the static branch; the newest of `branches` learns and gives the features.

    All branches read the tokens of the frozen prefix. `class_means` are features of the static branch.
    """

    config: GrowMergeConfig
    roles: ClassVar = {"clusters": "classifier"}
    block_parts: ClassVar = ("backbone", "branches")
    compares_blocks: ClassVar = True

    def __init__(self, config: GrowMergeConfig):
        super().__init__(config)
        static = blocks_of(self.backbone)[-1]
        self.branches = nn.ModuleList(copy.deepcopy(static) for _ in range(config.num_branches))
        self.clusters = LinearClassifier(config.num_clusters, config.vision_config.hidden_size)
        self.post_init()

    def last_block(self, prompted: bool | None = None) -> nn.Module:
        """See the base class: the newest branch; the static one without prompts, or before there is a branch."""
        return super().last_block() if prompted is False or not len(self.branches) else self.branches[-1]

    def grow(self, rows: Tensor) -> None:
        """Add a branch, a copy of the newest branch, and replace the cluster head by one of these rows ``(n, D)``."""
        self.branches.append(copy.deepcopy(self.last_block()))
        self.clusters = LinearClassifier(0, rows.shape[1]).to(self.device)
        self.clusters.grow(rows)
        self.config.num_branches, self.config.num_clusters = len(self.branches), len(rows)
        self.freeze()

    def freeze(self) -> None:
        """Let the head, the newest branch and its cluster head learn; without branches the static branch."""
        super().freeze()
        blocks_of(self.backbone)[-1].requires_grad_(False)
        self.last_block().requires_grad_(True)
        self.clusters.requires_grad_(self.clusters.num_classes > 0)

    def looks_known(self, features: Tensor) -> Tensor:
        """Which unit features ``(N, D)`` of the static branch lie near the mean of a labelled class, ``(N,)``."""
        return (features @ self.class_means.to(features).T).amax(1) >= self.config.known_similarity


class GrowMergeObjective(Objective):
    """GCD's loss at stage 0; later a new branch learns, and images that look known tie it to the static branch.

    The static branch decides once a stage which images look known. It has seen the labelled classes alone, so classes
    that earlier stages discovered look new again. Images that look new are paired by their largest feature dimensions.
    """

    model: GrowMergeModel
    needs_count = True

    def begin_stage(self) -> None:
        """At an unlabelled stage, find the images that look known, and add a branch."""
        if self.stage.labels is not None:
            return
        config = self.config
        new = max(0, self.stage.count - len(config.category_ids))
        static = self.plain_features("features of the static branch")
        self.known: Tensor = same_on_all(self.model.looks_known(static).cpu())
        self.model.grow(sampled_rows(new, static.shape[1], self.generator()))
        self.previous = blocks_of(self.model.backbone)[-1]

    def losses(self, rows: Rows) -> dict[str, Tensor]:
        """GCD's at stage 0; later ``info_nce``, ``drift`` of known images, ``pairs`` of other images, ``supervised``.

        Drift and pairs read the images of the stage, the supervised term exemplars with a label. The shares
        ``known_images`` and ``positive_pairs`` are only reported.
        """
        if self.stage.labels is not None:
            return super().losses(rows)
        contrast = self.contrast(rows)
        streamed = rows.positions >= 0
        known = streamed & self.known[rows.positions]
        drift = self.moved(rows)[:, rows.places(known)]
        parts = {
            "info_nce": contrast["info_nce"],
            # Not `mean`, which is NaN without a known image.
            "drift": drift.sum() / max(1, drift.numel()),
        }
        if self.config.num_clusters:
            others = rows.features[:, rows.places(streamed & ~known)]
            positive = same_top_ranks(others[0])
            answers = self.model.clusters(others)
            # Without an image the sum over nothing still gives every process a gradient, of zeros.
            parts["pairs"] = pair_loss(answers, positive) if len(positive) else answers.sum()
        parts |= contrast  # the supervised term comes last
        loss = torch.stack(list(parts.values())).sum()
        if self.config.num_clusters:
            parts["positive_pairs"] = share_of_pairs(positive).float()
        parts["known_images"] = known.sum() / max(1, int(streamed.sum()))
        return {"loss": loss, **parts}

    @torch.no_grad()
    def end_stage(self) -> None:
        """After stage 0, keep the means of labelled classes, and the usual distance of images to the nearest mean."""
        if self.stage.labels is None:
            return
        features = self.plain_features("features for the means of classes")
        labels = self.stage.labels.to(features.device)
        means = torch.stack([features[labels == each].mean(0) for each in labels.unique()])
        self.model.remember(same_on_all(F.normalize(means)))
        nearest = (features @ self.model.class_means.T).amax(1)
        least = torch.quantile(nearest, UNKNOWN_SHARE)
        # Rounding may leave it above 1.
        self.config.known_similarity = float(same_on_all(least.clamp(max=1)))


METHOD = Method(
    name="grow-merge",
    model=GrowMergeModel,
    objective=GrowMergeObjective,
    title="Grow & Merge",
    summary="a static branch and a further branch for every stage; our design, for no code of the method is public",
    parts={"branches": "newest dynamic branch", "clusters": "cluster head"},
    losses={
        "drift": "distance to the static branch",
        "pairs": "cross-entropy of pairs",
        "positive_pairs": "share of pairs that are positive",
        "known_images": "share of images that look known",
    },
    uses_exemplars=True,
)
