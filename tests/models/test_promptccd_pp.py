"""PromptCCD++: what part-level prompting must be identical to, who learns when, and from what."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from promptccd import PromptCCDPlusPlusModel
from promptccd.data.randomness import torch_generator
from promptccd.methods.promptccd_pp import PartPromptOutput, PartRouter, log_shares
from tests.conftest import TINY_HEAD, fresh
from tests.models.finished import parts_config
from tests.order_one import fill

PIXELS = (3, 3, 32, 32)  # 16 patches of the tiny backbone
SIZES = {"num_parts": 3, "pool_size": 5, "prompt_length": 2, "prompts_per_patch": 2}


def build(folder: Path, **options: object) -> PromptCCDPlusPlusModel:
    model = fresh(PromptCCDPlusPlusModel, folder, **{**SIZES, **TINY_HEAD, **options})
    model.head.reset_parameters(torch_generator("test"))
    model.reset_prompts(torch_generator("test prompts"))
    with torch.no_grad():  # far enough from nothing to be seen
        model.pools.values.mul_(20)
        for layer in (model.router.mlp[0], model.router.mlp[2]):
            layer.weight.mul_(20)
    labeller = model.part_labeller
    generator = torch_generator("labeller")
    labeller.object_direction.copy_(F.normalize(torch.randn(32, generator=generator), dim=0))
    labeller.object_range.copy_(torch.tensor([-3.0, 3.0]))
    labeller.projection.copy_(torch.randn(32, 3, generator=generator))
    labeller.centres.copy_(torch.randn(3, 3, generator=generator))
    return model.train()


@pytest.fixture
def first(backbone_folder: Path) -> PromptCCDPlusPlusModel:
    """The model at stage 0."""
    return build(backbone_folder)


@pytest.fixture
def later(backbone_folder: Path, first: PromptCCDPlusPlusModel, tmp_path: Path) -> PromptCCDPlusPlusModel:
    """The model at stage 1, its last block a step away from its teacher's."""
    first.config.stage = 0
    first.save_pretrained(tmp_path / "stage0")
    model = PromptCCDPlusPlusModel.from_pretrained(tmp_path / "stage0").train()
    model.begin_discovery(lambda: PromptCCDPlusPlusModel.from_pretrained(tmp_path / "stage0"))
    with torch.no_grad():
        for parameter in model.backbone.encoder.layer[-1].parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=torch_generator("step")))
    return model


def test_a_part_that_no_patch_goes_to_has_a_finite_anchor() -> None:
    logits = torch.zeros(1, 4, 3)
    logits[..., 2] = -500.0
    logits.requires_grad_()
    shares = log_shares(logits)
    (shares.exp() * (shares - log_shares(torch.zeros(1, 4, 3)))).sum().backward()
    assert shares.isfinite().all()
    assert logits.grad.isfinite().all()


def test_a_router_is_drawn_from_its_generator_alone() -> None:
    """Weights of the standard deviation that is asked for, biases of zero, norms that do nothing."""
    routers = [PartRouter(parts_config(32, num_parts=3)) for _ in range(2)]
    for number, router in enumerate(routers):
        fill(router)
        torch.manual_seed(number)
        router.reset_parameters(torch_generator("router"), std=0.1)
    for (name, value), (_, other) in zip(*(each.named_parameters() for each in routers), strict=True):
        assert torch.equal(value, other), name
        if "norm" in name or name == "attention_projection.0.weight":
            assert (value == (1 if name.endswith("weight") else 0)).all(), name
        elif name.endswith("bias"):
            assert (value == 0).all(), name
        else:
            assert 0.07 < float(value.std()) < 0.13, name


def test_training_on_without_a_teacher_says_what_to_do(first: PromptCCDPlusPlusModel) -> None:
    first.config.stage = 0
    with pytest.raises(ValueError, match="begin_discovery"):
        first(torch.randn(PIXELS), project=True)
    output = first.eval()(torch.randn(PIXELS), project=True)  # whoever only looks needs none
    assert (output.part_labels, output.teacher_bottleneck) == (None, None)


def losses_of(
    model: PromptCCDPlusPlusModel, pixels: torch.Tensor
) -> tuple[PartPromptOutput, dict[str, torch.Tensor]]:
    output = model(pixels, project=True)
    return output, model.auxiliary_losses(output)


def test_the_teacher_is_the_model_of_stage_0(
    first: PromptCCDPlusPlusModel, later: PromptCCDPlusPlusModel
) -> None:
    pixels = torch.randn(PIXELS)
    wanted = first.eval()(pixels, project=True)
    output, _ = losses_of(later, pixels)
    torch.testing.assert_close(output.teacher_features, wanted.features, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(output.teacher_bottleneck, wanted.bottleneck, rtol=1e-5, atol=1e-6)
    shares = wanted.part_logits.softmax(-1).mean(1)
    torch.testing.assert_close(output.teacher_log_shares.exp(), shares, rtol=1e-5, atol=1e-6)
    assert not any("teacher" in name for name in later.state_dict())


def test_without_distillation_there_is_no_teacher(backbone_folder: Path) -> None:
    model = build(backbone_folder, distill_weight=0.0)
    model.config.stage = 0
    model.freeze()
    model.begin_discovery(lambda: pytest.fail("the first stage is not needed"))
    _, losses = losses_of(model, torch.randn(PIXELS))
    assert set(losses) == {"cos"}


def test_prompts_act_at_test(first: PromptCCDPlusPlusModel) -> None:
    pixels = torch.randn(PIXELS)
    first.eval()
    assert torch.equal(first(pixels).features, first(pixels, prompted=True).features)
    assert not torch.allclose(first(pixels).features, first(pixels, prompted=False).features)
