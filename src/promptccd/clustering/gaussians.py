"""Gaussians with a covariance of their own: ``(K, d, 1 + d)``, the mean in the first column."""

import torch
from torch import Tensor
from torch.distributions import MultivariateNormal


def log_densities(points: Tensor, gaussians: Tensor) -> Tensor:
    """Log densities ``(N, K)`` of points ``(N, d)``, class by class, which saves memory."""
    classes = [MultivariateNormal(each[:, 0], each[:, 1:], validate_args=False) for each in gaussians]
    return torch.stack([each.log_prob(points) for each in classes], dim=1)


def shrunk_estimate(points: Tensor, groups: Tensor, count: int, shared: Tensor, weight: float) -> Tensor:
    """Mean, and ``(Q + nu S) / (n + nu)`` of squared deviations Q of n points and the shared covariance S.

    A group without points gets no image: its mean is far away.
    """
    found = torch.cat([torch.full_like(shared[:, :1], 1e3), shared], dim=1).repeat(count, 1, 1)
    for group in range(count):
        members = points[groups == group]
        if len(members):
            rest = members - members.mean(0)
            found[group, :, 0] = members.mean(0)
            found[group, :, 1:] = (rest.T @ rest + weight * shared) / (len(members) + weight)
    return found
