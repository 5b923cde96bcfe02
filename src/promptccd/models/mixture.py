"""A Gaussian mixture as part of a model, which ranks components and draws features."""

import math
from typing import Literal

import torch
from torch import Tensor, nn
from transformers import initialization as init


class GaussianMixture(nn.Module):
    """Mixture over L2-normalised features; its means are the prompts.

    It is fitted by EM (`promptccd.clustering.fit_gaussian_mixture`), never by gradient, so everything is a
    buffer. The number of components sizes the buffers and must be in the model's configuration.

    Args:
        num_components: K; 0 before the first fit.
        width: D.
        covariance_type: ``"diag"`` or ``"spherical"``.

    Attributes:
        means: ``(K, D)``.
        variances: ``(K, D)`` for diagonal, ``(K, 1)`` for spherical covariance.
        log_weights: ``(K,)``, log of the mixing weights.
        floor: ``()``, which the fit added to every variance and `sample` subtracts again.
    """

    means: Tensor
    variances: Tensor
    log_weights: Tensor
    floor: Tensor

    def __init__(self, num_components: int, width: int, covariance_type: Literal["diag", "spherical"]):
        super().__init__()
        self.covariance_type = covariance_type
        self.register_buffer("means", torch.zeros(num_components, width))
        self.register_buffer(
            "variances", torch.ones(num_components, width if covariance_type == "diag" else 1)
        )
        self.register_buffer("log_weights", torch.zeros(num_components))
        self.register_buffer("floor", torch.zeros(()))

    def initialise(self, std: float) -> None:
        """As transformers initialises a module whose weights are not loaded."""
        init.zeros_(self.means)
        init.ones_(self.variances)
        init.zeros_(self.log_weights)
        init.zeros_(self.floor)

    @property
    def num_parameters(self) -> int:
        """Number of values that a fit estimates."""
        return sum(values.numel() for values in (self.means, self.variances, self.log_weights))

    @property
    def num_components(self) -> int:
        """K."""
        return len(self.means)

    def load(
        self, means: Tensor, variances: Tensor, log_weights: Tensor, floor: Tensor | None = None
    ) -> None:
        """Take the parameters of a fit; the number of components may change. The floor is 0 by default."""
        like = self.means
        floor = like.new_zeros(()) if floor is None else floor
        self.means, self.variances, self.log_weights, self.floor = (
            value.to(device=like.device, dtype=like.dtype).clone()
            for value in (means, variances, log_weights, floor)
        )

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """`log_joint` of unit features ``(N, D)``, and the means ``(K, D)``, which prompt."""
        # Not in bfloat16, since large terms are subtracted.
        with torch.autocast(features.device.type, enabled=False):
            return self._log_joint(features.float()), self.means

    def log_joint(self, features: Tensor) -> Tensor:
        """Log pi_c + log N(z | mu_c, Sigma_c) of unit features ``(N, D)`` under every component, ``(N, K)``."""
        return self(features)[0]

    def _log_joint(self, features: Tensor) -> Tensor:
        """Two matrix products instead of an ``(N, K, D)`` difference."""
        width = features.shape[1]
        means, variances = self.means.float(), self.variances.float().expand(-1, width)
        precisions = 1 / variances
        quadratic = (
            features.square() @ precisions.T
            - 2 * features @ (means * precisions).T
            + (means.square() * precisions).sum(1)
        )
        log_det = variances.log().sum(1)
        return self.log_weights.float() - 0.5 * (quadratic + log_det + width * math.log(2 * math.pi))

    def sample(self, per_component: int, generator: torch.Generator) -> Tensor:
        """Draw S features per component with a CPU generator: ``(K * S, D)``, by component, on the CPU.

        S per component as in the paper (the released code draws S in total), not re-normalised. Variances go without
        the floor: drawn with it and raised by it again at every fit, they would grow from stage to stage.
        """
        means, variances, floor = (
            self.means.float().cpu(),
            self.variances.float().cpu(),
            self.floor.float().cpu(),
        )
        noise = torch.randn(self.num_components, per_component, means.shape[1], generator=generator)
        noise = (variances - floor).clamp_min(0)[:, None].sqrt() * noise
        return (means[:, None] + noise).flatten(0, 1)
