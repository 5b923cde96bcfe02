"""The method on one screen: from a batch of views to the loss."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from promptccd.models import CategoryDiscoveryModel, CategoryDiscoveryOutput
from promptccd.training.devices import gather_rows
from promptccd.training.losses import info_nce_loss, supervised_contrastive_loss


@dataclass(frozen=True)
class Batch:
    """One process's share of a global batch.

    Attributes:
        pixel_values: normalised views ``(b, V, 3, H, W)``.
        labels: category ids ``(B,)`` of the whole global batch; `None` at unlabelled stages.
        num_rows: B, images in the global batch.
    """

    pixel_values: Tensor
    labels: Tensor | None
    num_rows: int


@dataclass(frozen=True)
class ContrastiveWeights:
    """Temperatures and mixing weight of the representation loss (methods of GCD, kept by PromptCCD).

    The paper prints one loss with one temperature; its code mixes two, and so do we.
    """

    temperature_unsupervised: float = 1.0
    temperature_supervised: float = 0.07
    supervised_weight: float = 0.35


def training_loss(
    model: nn.Module,
    unwrapped: CategoryDiscoveryModel,
    batch: Batch,
    weights: ContrastiveWeights,
    prompted: bool,
) -> dict[str, Tensor]:
    """Loss of one step: ``(1 - w) InfoNCE + w SupCon`` where labels are given, InfoNCE alone where not.

    Args:
        model: the model as Accelerate wrapped it; its forward is what synchronises gradients.
        unwrapped: the same model bare.
        batch: this process's share of the global batch.
        weights: temperatures and mixing weight.
        prompted: whether prompts act in this forward.

    Returns:
        Scalars by name; ``"loss"`` is their weighted sum, the same on every process.
    """
    views = batch.pixel_values.transpose(0, 1)  # (V, b, 3, H, W): view-major, as the losses expect
    output: CategoryDiscoveryOutput = model(views.flatten(0, 1), prompted=prompted, project=True)
    assert output.bottleneck is not None  # asked for by project=True
    local = output.bottleneck.float().unflatten(0, views.shape[:2])
    similarities = unwrapped.head.similarities(gather_rows(local, batch.num_rows).flatten(0, 1))

    parts = {"info_nce": info_nce_loss(similarities, weights.temperature_unsupervised)}
    loss = parts["info_nce"]
    if batch.labels is not None:
        parts["supervised"] = supervised_contrastive_loss(
            similarities, batch.labels, weights.temperature_supervised
        )
        loss = torch.lerp(loss, parts["supervised"], weights.supervised_weight)
    for name, values in unwrapped.auxiliary_losses(output).items():
        parts[name] = gather_rows(values.float().unflatten(0, views.shape[:2]), batch.num_rows).mean()
        loss = loss + parts[name]
    return {"loss": loss, **parts}
