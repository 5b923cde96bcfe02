"""The contrastive objective of GCD, which trains every prompt of the paper."""

import torch
import torch.nn.functional as F
from torch import Tensor

from promptccd.methods.base import Objective, Rows


class ContrastiveObjective(Objective):
    """``(1 - w) InfoNCE + w SupCon`` where labels are given, InfoNCE alone elsewhere, and the terms of prompts.

    The paper prints one loss with one temperature; its code mixes two, and so do we.
    """

    def losses(self, rows: Rows) -> dict[str, Tensor]:
        """The terms of `contrast`, and the model's `auxiliary_losses`, which are weighted already."""
        parts = self.contrast(rows)
        loss = parts["info_nce"]
        if "supervised" in parts:
            loss = torch.lerp(loss, parts["supervised"], self.arguments.supervised_weight)
        for name, values in self.model.auxiliary_losses(rows.output).items():
            parts[name] = rows.of_all(values).mean()
            loss = loss + parts[name]
        return {"loss": loss, **parts}

    def contrast(self, rows: Rows) -> dict[str, Tensor]:
        """``info_nce`` of all images, and ``supervised`` among labelled images, if any.

        Both read one matrix of similarities, whose rows are views: ``[view 1 of all images; view 2 of all images]``.
        """
        similarities = self.model.head.similarities(rows.bottleneck.flatten(0, 1))
        parts = {"info_nce": info_nce_loss(similarities, self.arguments.temperature_unsupervised)}
        if rows.labelled is not None:
            which, labels = rows.labelled
            parts["supervised"] = supervised_contrastive_loss(
                rows.among(similarities, which), labels, self.arguments.temperature_supervised
            )
        return parts


def info_nce_loss(similarities: Tensor, temperature: float = 1.0) -> Tensor:
    """Unsupervised contrastive loss: find the other view of the same image among all other rows.

    It is the mean over the rows of cosine similarities ``(2B, 2B)``; tau_u is 1.0 in the released configurations.
    """
    rows = len(similarities)
    logits = _without_self(similarities) / temperature
    partner = torch.arange(rows, device=similarities.device).roll(rows // 2)
    return F.cross_entropy(logits, partner)


def supervised_contrastive_loss(similarities: Tensor, labels: Tensor, temperature: float = 0.07) -> Tensor:
    """Supervised contrastive loss: every other row of the same category is a positive.

    It is the mean over the rows of cosine similarities ``(2B, 2B)``, and for each row over its positives, its other
    view at least. Labels ``(B,)`` belong to the images; the temperature is tau_s.
    """
    log_probabilities = F.log_softmax(_without_self(similarities) / temperature, dim=1)
    both = labels.repeat(2)
    positive = (both[:, None] == both[None, :]).fill_diagonal_(False)
    # The diagonal is log 0, which times a weight of 0 would be NaN: it is masked out.
    return -(log_probabilities.masked_fill(~positive, 0.0).sum(1) / positive.sum(1)).mean()


def _without_self(similarities: Tensor) -> Tensor:
    eye = torch.eye(len(similarities), dtype=torch.bool, device=similarities.device)
    return similarities.masked_fill(eye, float("-inf"))
