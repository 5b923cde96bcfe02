"""The two contrastive losses, from one matrix of similarities.

Rows are views: ``[view 1 of all images; view 2 of all images]``, so row i and row i + B are one image. Forming
the ``(2B, 2B)`` similarities is what costs; both losses read the same matrix.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor


def info_nce_loss(similarities: Tensor, temperature: float = 1.0) -> Tensor:
    """Unsupervised contrastive loss: find the other view of the same image among all other rows.

    Args:
        similarities: cosine similarities ``(2B, 2B)``.
        temperature: tau_u, 1.0 in the released configurations.

    Returns:
        Scalar mean over the 2B rows.
    """
    rows = len(similarities)
    logits = _without_self(similarities) / temperature
    partner = torch.arange(rows, device=similarities.device).roll(rows // 2)
    return F.cross_entropy(logits, partner)


def collapsed_info_nce(num_images: int) -> float:
    """What `info_nce_loss` is at any temperature where all embeddings are one: nothing tells the partner apart."""
    return math.log(2 * num_images - 1)


def supervised_contrastive_loss(similarities: Tensor, labels: Tensor, temperature: float = 0.07) -> Tensor:
    """Supervised contrastive loss: every other row of the same category is a positive.

    Args:
        similarities: cosine similarities ``(2B, 2B)``.
        labels: category ids ``(B,)`` of the images.
        temperature: tau_s.

    Returns:
        Scalar mean over the 2B anchors; each averages over its own positives (its other view at least).
    """
    log_probabilities = F.log_softmax(_without_self(similarities) / temperature, dim=1)
    both = labels.repeat(2)
    positive = (both[:, None] == both[None, :]).fill_diagonal_(False)
    # The diagonal holds log 0: it must not be multiplied by its weight 0, but masked out.
    return -(log_probabilities.masked_fill(~positive, 0.0).sum(1) / positive.sum(1)).mean()


def _without_self(similarities: Tensor) -> Tensor:
    eye = torch.eye(len(similarities), dtype=torch.bool, device=similarities.device)
    return similarities.masked_fill(eye, float("-inf"))
