"""Projection heads, and the similarities of their outputs."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import initialization as init

from promptccd.models.configuration import CategoryDiscoveryConfig


def draw_truncated_normal(module: nn.Module, generator: torch.Generator, std: float = 0.02) -> None:
    """Reset weights from a CPU generator, truncated normal; biases become zero, norms the identity."""
    for name, parameter in module.named_parameters():
        owner = module.get_submodule(name.rpartition(".")[0])
        if isinstance(owner, nn.LayerNorm):
            owner.reset_parameters()
        elif name.endswith("bias"):
            nn.init.zeros_(parameter)
        else:
            drawn = torch.empty_like(parameter, device="cpu")
            nn.init.trunc_normal_(drawn, std=std, generator=generator)
            parameter.data.copy_(drawn)


class UnitHead(nn.Module):
    """No head: losses read the unit features themselves."""

    def __init__(self, config: CategoryDiscoveryConfig):
        super().__init__()

    reset_parameters = draw_truncated_normal

    def forward(self, features: Tensor) -> Tensor:
        """Features ``(B, D)`` to the L2-normalised bottleneck ``(B, d)``."""
        return F.normalize(features, dim=-1)

    def similarities(self, bottleneck: Tensor) -> Tensor:
        """Cosine similarities of all pairs of embeddings, ``(B, d)`` to ``(B, B)``."""
        return bottleneck @ bottleneck.T


class BottleneckHead(UnitHead):
    """MLP D -> H -> H -> d with GELU, L2-normalised: 6,295,808 learnable parameters at the paper's sizes."""

    def __init__(self, config: CategoryDiscoveryConfig):
        super().__init__(config)
        hidden = config.projection_hidden_size
        self.mlp = nn.Sequential(
            nn.Linear(config.vision_config.hidden_size, hidden),
            nn.GELU(),
            nn.Linear(hidden, hidden),
            nn.GELU(),
            nn.Linear(hidden, config.projection_bottleneck_size),
        )

    def forward(self, features: Tensor) -> Tensor:
        """See the base class."""
        return F.normalize(self.mlp(features), dim=-1)


class ProjectionHead(BottleneckHead):
    """The same MLP, then a weight-normalised linear layer to O outputs.

    The gain of the last layer is fixed at 1, so its rows are unit vectors and it has ``O * d`` learnable
    parameters: 23,073,024 in all at the paper's sizes (768, 2048, 256, 65,536). Training only; features are
    clustered without it.
    """

    def __init__(self, config: CategoryDiscoveryConfig):
        super().__init__(config)
        sizes = config.projection_output_size, config.projection_bottleneck_size
        self.last_weight = nn.Parameter(torch.empty(sizes))

    def initialise(self, std: float) -> None:
        """As transformers initialises a module whose weights are not loaded."""
        init.trunc_normal_(self.last_weight, std=std)

    def outputs(self, bottleneck: Tensor) -> Tensor:
        """Embeddings ``(B, O)``: bottleneck rows times the normalised last layer, L2-normalised."""
        return F.normalize(bottleneck @ F.normalize(self.last_weight, dim=-1).T, dim=-1)

    def similarities(self, bottleneck: Tensor) -> Tensor:
        """Cosine similarities of the O-wide outputs, ``(B, d)`` to ``(B, B)``.

        With W the normalised last layer, u_i . u_j = h_i' (W'W) h_j: the d x d Gram matrix is enough, and the O-wide
        outputs are never formed. Both ways have the same value and gradient; the Gram matrix costs d*d*O, the outputs
        (d + B)*B*O, and the cheaper way is used.
        """
        rows, width = bottleneck.shape
        if rows * (rows + width) <= width * width:
            embeddings = self.outputs(bottleneck)
            return embeddings @ embeddings.T
        with torch.autocast(bottleneck.device.type, enabled=False):  # a 65,536-term sum: keep it in float32
            weight = F.normalize(self.last_weight.float(), dim=-1)
            hidden = bottleneck.float()
            products = hidden @ (weight.T @ weight) @ hidden.T
            norms = products.diagonal().clamp_min(1e-24).sqrt()
            return products / (norms[:, None] * norms[None, :])
