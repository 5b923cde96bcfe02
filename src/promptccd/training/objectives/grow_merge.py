"""Grow & Merge (Zhang et al., NeurIPS 2022) on a ViT, as the paper's supplement sketches it; the rest is our design.

Its code is not public. The supplement says: GCD's loss trains the features; the last block is the static branch; every
discovery stage adds a block, its dynamic branch; distillation ties it to the static one. Our decisions: branches run
in parallel, each starts as a copy of the one before, which images look known, all weights, and that nothing merges.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from promptccd.models.backbones import blocks_of
from promptccd.models.modeling_grow_merge import GrowMergeModel
from promptccd.training.devices import same_on_all
from promptccd.training.methods import Method
from promptccd.training.objectives.contrastive import ContrastiveObjective
from promptccd.training.objectives.objective import Rows
from promptccd.training.objectives.rank_statistics import PairWatch, pair_loss, same_top_ranks
from promptccd.training.objectives.self_distillation import ComparingObjective, drawn_rows


class GrowMergeObjective(ComparingObjective, ContrastiveObjective):
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
        config = self.model.config
        new = max(0, self.stage.count - len(config.category_ids))
        static = self.plain_features("features of the static branch")
        self.known: Tensor = same_on_all(self.model.looks_known(static).cpu())
        self.model.grow(drawn_rows(new, static.shape[1], self.generator()))
        self.previous = blocks_of(self.model.backbone)[-1]
        # A head of one output cannot push images apart: there is nothing to warn of.
        self.watch = PairWatch(config.top_ranks, new > 1 and self.accelerator.is_main_process)

    def begin_epoch(self, epoch: int) -> None:
        """Check the pairs of the epoch before."""
        if self.stage.labels is None:
            self.watch.check()

    def losses(self, rows: Rows) -> dict[str, Tensor]:
        """GCD's at stage 0; later ``info_nce``, ``drift`` of known images, ``pairs`` of others, ``supervised``.

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
            # mutant 1 to 2: of distances there are none, whose sum is 0, or at least two: one for each view
            "drift": self.model.config.distill_weight * drift.sum() / max(1, drift.numel()),
        }
        if self.model.config.num_clusters:
            others = rows.features[:, rows.places(streamed & ~known)]
            positive = same_top_ranks(others[0], self.model.config.top_ranks)
            answers = self.model.clusters(others)
            # Without an image the sum over nothing still gives every process a gradient, of zeros.
            parts["pairs"] = pair_loss(answers, positive) if len(positive) else answers.sum()
        parts |= contrast  # the supervised term comes last
        loss = torch.stack(list(parts.values())).sum()
        if self.model.config.num_clusters:
            parts["positive_pairs"] = self.watch.share(positive).float()
        parts["known_images"] = known.sum() / max(1, int(streamed.sum()))
        return {"loss": loss, **parts}

    @torch.no_grad()
    def end_stage(self) -> None:
        """After stage 0, keep the means of labelled classes, and how near most images lie to one of them."""
        if self.stage.labels is None:
            self.watch.check()
            return
        features = self.plain_features("features for the means of classes")
        labels = self.stage.labels.to(features.device)
        means = torch.stack([features[labels == each].mean(0) for each in labels.unique()])
        self.model.remember(same_on_all(F.normalize(means)))
        nearest = (features @ self.model.class_means.T).amax(1)
        least = torch.quantile(nearest, self.model.config.known_quantile)
        # Rounding may leave it above 1.
        self.model.config.known_similarity = float(same_on_all(least.clamp(max=1)))


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
