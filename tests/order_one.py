"""Networks in which every term shows: no bias is zero, no norm or layer scale is one, nothing is tiny.

Weights as they are initialised hide what they multiply: with zero biases, unit norms and prompts of 0.02 a term that
is forgotten changes a result by less than rounding does.
"""

import torch
from torch import Tensor, nn
from transformers import Dinov2Config, Dinov2Model

from promptccd.data.randomness import torch_generator
from tests.conftest import TINY_BACKBONE

# Prefix tuning reaches three blocks; dropout acts only where somebody forgot that the backbone stays in eval mode.
LIVELY_BACKBONE = {
    **TINY_BACKBONE,
    "num_hidden_layers": 3,
    "mlp_ratio": 2,
    "hidden_dropout_prob": 0.2,
    "attention_probs_dropout_prob": 0.2,
}


def drawn(name: str, shape: torch.Size, key: str = "reference") -> Tensor:
    """Values for a parameter of that name, which keep what flows through a network of order 1."""
    values = torch.randn(shape, generator=torch_generator(key, name))
    if name.endswith("bias"):
        return 0.5 * values
    if name.endswith("weight") and len(shape) > 1 and "last_weight" not in name:
        return values / shape[1:].numel() ** 0.5
    if name.endswith(("weight", "lambda1")) and len(shape) == 1:  # of norms, and layer scales
        return 1 + 0.3 * values
    return 0.3 * values if "embeddings" in name else values


@torch.no_grad()
def fill(module: nn.Module, key: str = "reference", only_learning: bool = False) -> None:
    """Give the parameters of a module such values; those that learn alone, or all."""
    for name, parameter in module.named_parameters():
        if parameter.requires_grad or not only_learning:
            parameter.copy_(drawn(name, parameter.shape, key))


def lively_backbone() -> Dinov2Model:
    """A backbone of three blocks, 32 wide, in pictures of 8-pixel patches."""
    backbone = Dinov2Model(Dinov2Config(**LIVELY_BACKBONE))
    fill(backbone)
    return backbone.eval()
