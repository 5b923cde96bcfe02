"""Parts of the trainer that a whole run would not show to be wrong."""

import math

import pytest
import torch

from promptccd import PromptCCDModel
from promptccd.training.trainer import cosine_rate, restore, snapshot


def test_learning_rate_is_the_papers_cosine() -> None:
    rates = [cosine_rate(epoch, 200, 0.1, 1e-3) for epoch in range(201)]
    assert rates[0] == pytest.approx(0.1)
    assert rates[200] == pytest.approx(1e-4)
    assert rates[100] == pytest.approx((0.1 + 1e-4) / 2)
    assert rates == sorted(rates, reverse=True)


def test_a_snapshot_brings_back_weights_momentum_and_a_mixture_of_another_size(model: PromptCCDModel) -> None:
    learning = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.SGD(learning, lr=0.1, momentum=0.9)
    model.load_mixture(torch.randn(5, 32), torch.rand(5, 32), torch.randn(5))
    model(torch.randn(2, 3, 16, 16), project=True).bottleneck.sum().backward()
    for parameter in learning:  # the last layer is read by `similarities` alone
        parameter.grad = torch.ones_like(parameter) if parameter.grad is None else parameter.grad
    optimizer.step()
    saved = snapshot(model, optimizer)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    assert not any(name.startswith("model.backbone.embeddings") for name in saved), (
        "frozen weights are not saved"
    )

    optimizer.step()
    model.load_mixture(torch.randn(3, 32), torch.rand(3, 32), torch.randn(3))
    fresh = torch.optim.SGD(learning, lr=0.1, momentum=0.9)
    restore(model, fresh, saved)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert model.config.num_components == 5
    for parameter in learning:
        assert torch.equal(fresh.state[parameter]["momentum_buffer"].isfinite(), parameter.isfinite())
        assert math.isfinite(float(fresh.state[parameter]["momentum_buffer"].sum()))
