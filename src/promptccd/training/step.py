"""One step of any method: from a batch of views to the rows that its objective reads."""

from dataclasses import dataclass

from torch import Tensor, nn

from promptccd.models import CategoryDiscoveryOutput
from promptccd.training.devices import gather_rows
from promptccd.training.objectives import Objective, Rows


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


def training_loss(model: nn.Module, objective: Objective, batch: Batch, epoch: int) -> dict[str, Tensor]:
    """The losses of one step.

    Args:
        model: the objective's model as Accelerate wrapped it; its forward is what synchronises gradients.
        objective: of the stage.
        batch: this process's share of the global batch.
        epoch: of the step.

    Returns:
        Scalars by name; ``"loss"`` is what is minimised, the same on every process.
    """
    views = batch.pixel_values.transpose(0, 1)  # (V, b, 3, H, W): view-major, as the losses expect
    output: CategoryDiscoveryOutput = model(
        views.flatten(0, 1), prompted=objective.prompted(epoch), project=True
    )
    assert output.bottleneck is not None  # asked for by project=True
    bottleneck = gather_rows(output.bottleneck.float().unflatten(0, views.shape[:2]), batch.num_rows)
    return objective.losses(Rows(output, bottleneck, batch.labels))
