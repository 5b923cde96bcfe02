"""Grow & Merge (Zhang et al., NeurIPS 2022) on a ViT, as the paper's supplement sketches it; the rest is our design.

Its code is not public. The supplement says: features trained with GCD's loss, the last block is the static branch, a
further block for every discovery stage its dynamic branch, which distillation ties to the static one. Ours: branches
stand side by side and each starts as a copy of the one before, what looks known, all weights, and that nothing merges.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from promptccd.models.backbones import blocks_of
from promptccd.models.modeling_grow_merge import GrowMergeModel
from promptccd.training.devices import same_on_all
from promptccd.training.methods import Method
from promptccd.training.objectives.contrastive import (
    ContrastiveObjective,
    info_nce_loss,
    supervised_contrastive_loss,
)
from promptccd.training.objectives.objective import Rows
from promptccd.training.objectives.rank_statistics import PairWatch, pair_loss, same_top_ranks
from promptccd.training.objectives.self_distillation import ComparingObjective, drawn_rows


class GrowMergeObjective(ComparingObjective, ContrastiveObjective):
    """At stage 0 GCD's loss; later a new branch learns, tied to the static one by the images that look known.

    Images look known, or not, once a stage and to the static branch, which has seen the labelled classes alone: those
    that earlier stages discovered look new again. The others are paired by their largest feature dimensions.
    """

    model: GrowMergeModel
    needs_count = True

    def begin_stage(self) -> None:
        """At an unlabelled stage, tell known images from others, and grow."""
        if self.stage.labels is not None:
            return
        assert self.stage.num_categories is not None  # needs_count
        config = self.model.config
        new = max(0, self.stage.num_categories - len(config.category_ids))
        static = self.plain_features("features of the static branch")
        self.known: Tensor = same_on_all(self.model.looks_known(static).cpu())
        self.model.grow(drawn_rows(new, static.shape[1], self.generator()))
        self.previous = blocks_of(self.model.backbone)[-1]
        # A head of one output is pushed nowhere.
        self.watch = PairWatch(config.top_ranks, new > 1 and self.accelerator.is_main_process)

    def begin_epoch(self, epoch: int) -> None:
        """Judge the epochs before."""
        if self.stage.labels is None:
            self.watch.judge()

    def losses(self, rows: Rows) -> dict[str, Tensor]:
        """GCD's at stage 0; later ``info_nce``, ``drift`` of known images, ``pairs`` of others, ``supervised``.

        InfoNCE is of all images, drift and pairs of the stage's own, and the supervised term of exemplars with a label.
        Beside them ``known_images`` and ``positive_pairs``, shares.
        """
        if self.stage.labels is not None:
            return super().losses(rows)
        similarities = self.model.head.similarities(rows.bottleneck.flatten(0, 1))
        streamed = rows.positions >= 0
        known = streamed & self.known[rows.positions]
        drift = self.moved(rows)[:, known]
        parts = {
            "info_nce": info_nce_loss(similarities, self.arguments.temperature_unsupervised),
            # Not the mean: without a known image it would be none.
            "drift": self.model.config.distill_weight * drift.sum() / max(1, drift.numel()),
        }
        if self.model.config.num_clusters:
            others = rows.features[:, streamed & ~known]
            positive = same_top_ranks(others[0].detach(), self.model.config.top_ranks)
            answers = self.model.clusters(others)
            # Of no image it is a sum over nothing, so that every process has a gradient, of zeros.
            parts["pairs"] = pair_loss(answers, positive) if len(positive) else answers.sum()
        if rows.labelled is not None:
            which, labels = rows.labelled
            parts["supervised"] = supervised_contrastive_loss(
                rows.among(similarities, which), labels, self.arguments.temperature_supervised
            )
        loss = torch.stack(list(parts.values())).sum()
        if self.model.config.num_clusters:
            parts["positive_pairs"] = self.watch.share(positive).float()
        parts["known_images"] = known.sum() / max(1, int(streamed.sum()))
        return {"loss": loss, **parts}

    @torch.no_grad()
    def end_stage(self) -> None:
        """After stage 0, keep where labelled classes lie, and how near to a mean of theirs most images do."""
        if self.stage.labels is None:
            self.watch.judge()
            return
        features = self.plain_features("features for the means of classes")
        labels = self.stage.labels.to(features.device)
        means = torch.stack([features[labels == each].mean(0) for each in labels.unique()])
        self.model.remember(same_on_all(F.normalize(means, dim=-1).cpu()))
        nearest = (features @ self.model.class_means.T).amax(-1)
        least = torch.quantile(nearest, self.model.config.known_quantile).clamp(-1, 1)
        self.model.config.known_similarity = float(same_on_all(least.cpu()))


METHOD = Method(
    name="grow-merge",
    model=GrowMergeModel,
    objective=GrowMergeObjective,
    title="Grow & Merge",
    summary="a static branch and a further one for every stage; our design, for no code of the method is public",
    parts={"branches": "newest dynamic branch", "clusters": "cluster head"},
    losses={
        "drift": "distance to the static branch, weighted",
        "pairs": "cross-entropy of pairs",
        "positive_pairs": "share of pairs that are positive",
        "known_images": "share of images that look known",
    },
    takes_exemplars=True,
)
