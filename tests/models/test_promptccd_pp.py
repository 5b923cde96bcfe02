"""PromptCCD++: what part-level prompting must be identical to, who learns when, and from what."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from transformers import Dinov2Config

from promptccd import PromptCCDPlusPlusConfig, PromptCCDPlusPlusModel
from promptccd.data.randomness import torch_generator
from promptccd.methods.promptccd_pp import PartPools, PartPromptOutput, PartRouter, log_shares, modulate
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


def test_parameter_counts_of_the_paper() -> None:
    with torch.device("meta"):
        model = PromptCCDPlusPlusModel(PromptCCDPlusPlusConfig(vision_config=Dinov2Config(patch_size=14)))
    assert sum(parameter.numel() for parameter in model.pools.parameters()) == 8 * 168_960
    assert sum(parameter.numel() for parameter in model.router.parameters()) == 14_690_720
    counted = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    assert counted == 46_204_832  # stage 0; the paper says 46.3M from rounded parts
    model.config.stage = 0
    model.freeze()
    counted = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    assert counted == 31_514_112  # later stages


@pytest.mark.parametrize(("parts", "count"), [(6, 14_687_902), (10, 14_693_538)])
def test_router_size_depends_on_the_number_of_parts(parts: int, count: int) -> None:
    with torch.device("meta"):
        router = PartRouter(parts_config(768, 12, num_parts=parts))
    assert sum(parameter.numel() for parameter in router.parameters()) == count


def test_without_values_it_is_the_plain_vit_bit_for_bit(first: PromptCCDPlusPlusModel) -> None:
    with torch.no_grad():
        first.pools.values.zero_()
    pixels = torch.randn(PIXELS)
    assert torch.equal(first(pixels).features, first(pixels, prompted=False).features)
    expected = first.backbone(pixels).last_hidden_state[:, 0]
    torch.testing.assert_close(first(pixels).features, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("arbitrary", [False, True])
def test_retrieval_equals_a_loop_over_patches(arbitrary: bool) -> None:
    generator = torch_generator("pools")
    pools = PartPools(parts_config(8, num_parts=4, pool_size=6, prompt_length=3))
    pools.reset_parameters(generator)
    tokens = torch.randn(2, 10, 8, generator=generator)
    contextual = torch.randn(2, 9, 8, generator=generator)
    parts = torch.randint(4, (2, 9), generator=generator)
    selection = pools.select(contextual, parts, arbitrary)
    result = modulate(tokens, pools.bias(selection.indices))
    assert torch.equal(result[:, 0], tokens[:, 0])  # [CLS] is left alone
    for image in range(2):
        for patch in range(9):
            part = int(parts[image, patch])
            cosines = F.cosine_similarity(contextual[image, patch][None], pools.keys[part], dim=1)
            if arbitrary:
                best = selection.indices[image, patch] - 6 * part
                assert ((best >= 0) & (best < 6)).all()
            else:
                best = cosines.topk(2).indices
                assert torch.equal(selection.indices[image, patch], 6 * part + best)
            torch.testing.assert_close(selection.cosines[image, patch], cosines[best])
            bias = torch.stack([pools.values[part, m, s] for m in best.tolist() for s in range(3)]).mean(0)
            torch.testing.assert_close(result[image, patch + 1], tokens[image, patch + 1] * (1 + bias))


def test_arbitrary_prompts_are_the_same_for_the_same_view() -> None:
    """Whatever else stands in the batch, and in mixed precision as without."""
    pools = PartPools(parts_config(8, num_parts=2))
    pools.reset_parameters(torch_generator("pools"))
    contextual, parts = torch.randn(2, 50, 8), torch.zeros(2, 50, dtype=torch.int64)
    first = pools.select(contextual, parts, True).indices
    assert torch.equal(first[1:], pools.select(contextual[1:], parts[1:], True).indices)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(first, pools.select(contextual, parts, True).indices)
    assert first.unique().numel() == 20  # all are drawn somewhere


def test_mixed_precision_does_not_coarsen_the_choice() -> None:
    """Keys that grew alike, as the pull towards the queries makes them."""
    generator = torch_generator("alike")
    pools = PartPools(parts_config(64, num_parts=3))
    with torch.no_grad():
        pools.keys.copy_(1 + 0.02 * torch.randn(pools.keys.shape, generator=generator))
    contextual = 1 + 0.02 * torch.randn(2, 40, 64, generator=generator)
    parts = torch.randint(3, (2, 40), generator=generator)
    expected = pools.select(contextual, parts)
    exact = F.cosine_similarity(contextual[:, :, None].double(), pools.keys[parts].double(), dim=-1)
    own = expected.indices - 20 * parts[..., None]
    assert (own == exact.topk(2).indices).double().mean() > 0.95  # all but ties in float32
    with torch.autocast("cpu", dtype=torch.bfloat16):
        coarse = pools.select(contextual, parts)
    assert torch.equal(coarse.indices, expected.indices)
    assert torch.equal(coarse.cosines, expected.cosines)


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


def test_losses_of_stage_0(first: PromptCCDPlusPlusModel) -> None:
    output, losses = losses_of(first, torch.randn(PIXELS))
    assert set(losses) == {"cos", "route"}
    cos = torch.stack([(1 - output.scores[image]).sum(1).mean() for image in range(3)])
    torch.testing.assert_close(losses["cos"], cos)
    route = [F.cross_entropy(output.part_logits[image], output.part_labels[image]) for image in range(3)]
    torch.testing.assert_close(losses["route"], 0.1 * torch.stack(route))
    assert output.part_labels.unique().numel() > 1


def test_losses_of_later_stages(later: PromptCCDPlusPlusModel) -> None:
    output, losses = losses_of(later, torch.randn(PIXELS))
    assert set(losses) == {"cos", "distill", "anchor"}
    ours = later.head.outputs(output.bottleneck)
    theirs = later._teacher.head.outputs(output.teacher_bottleneck)
    torch.testing.assert_close(losses["distill"], 0.2 * (ours - theirs).square().sum(1))
    assert (losses["anchor"] > 0).all()
    output.teacher_log_shares = (
        torch.tensor([[0.7, 0.2, 0.1]]).log().expand(3, 3)
    )  # so far off that sides count
    shares = output.part_logits.softmax(-1).mean(1)
    divergence = F.kl_div(output.teacher_log_shares, shares, reduction="none").sum(1)
    torch.testing.assert_close(later.auxiliary_losses(output)["anchor"], 0.2 * divergence)
    assert float(divergence.min()) > 0.01
    assert (losses["distill"] > 0).all()


def test_the_feature_itself_is_held_on_request(later: PromptCCDPlusPlusModel) -> None:
    """And the head, which learns too, takes no part."""
    later.config.anchor_on = "cls"
    output, losses = losses_of(later, torch.randn(PIXELS))
    cosines = F.cosine_similarity(output.features, output.teacher_features)
    torch.testing.assert_close(losses["distill"], 0.2 * (2 - 2 * cosines), rtol=1e-4, atol=1e-6)
    assert (losses["distill"] > 1e-4).all()
    learns = reached(gradients(later, losses["distill"]))
    assert learns and not any(name.startswith("head.") for name in learns)
    later.config.anchor_on = "projection"
    assert not torch.allclose(later.auxiliary_losses(output)["distill"], losses["distill"])


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


def test_at_the_first_step_of_a_stage_student_and_teacher_agree(later: PromptCCDPlusPlusModel) -> None:
    later.backbone.encoder.layer[-1].load_state_dict(later._teacher.last_block.state_dict())
    _, losses = losses_of(later, torch.randn(PIXELS))
    assert losses["anchor"].abs().max() < 1e-6
    assert losses["distill"].abs().max() < 1e-6


def gradients(model: PromptCCDPlusPlusModel, loss: torch.Tensor) -> dict[str, torch.Tensor | None]:
    model.zero_grad(set_to_none=True)
    loss.sum().backward(retain_graph=True)
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def reached(found: dict[str, torch.Tensor | None]) -> set[str]:
    return {name for name, value in found.items() if value is not None and value.abs().sum() > 0}


def test_who_learns_from_what_at_stage_0(first: PromptCCDPlusPlusModel) -> None:
    output, losses = losses_of(first, torch.randn(PIXELS))
    assert reached(gradients(first, losses["cos"])) == {"pools.keys"}
    assert reached(gradients(first, losses["route"])) == {
        name for name, _ in first.named_parameters() if name.startswith("router.")
    }
    contrastive = reached(gradients(first, output.bottleneck.sum(1)))
    assert "pools.values" in contrastive
    assert any(name.startswith("backbone.encoder.layer.2.") for name in contrastive)
    assert not any(
        name.startswith(("router.", "backbone.encoder.layer.0.", "backbone.encoder.layer.1.", "pretrained"))
        for name in contrastive
    )


def test_who_learns_from_what_later(later: PromptCCDPlusPlusModel) -> None:
    output, losses = losses_of(later, torch.randn(PIXELS))
    anchor = reached(gradients(later, losses["anchor"]))
    assert anchor
    allowed = tuple(
        f"backbone.encoder.layer.2.{part}" for part in ("norm1", "attention.q_proj", "attention.k_proj")
    )
    assert all(name.startswith(allowed) for name in anchor), anchor  # through alpha and nothing else
    assert reached(gradients(later, losses["cos"])) == {"pools.keys"}
    total = sum(losses.values()) + output.bottleneck.sum(1)
    found = gradients(later, total)
    for name, value in found.items():
        if name.startswith(("router.", "pretrained_block.")) or "layer.0." in name or "layer.1." in name:
            assert value is None, name
    assert {"pools.keys", "pools.values"} <= reached(found)
    for part in (later._teacher.last_block, later._teacher.pools, later._teacher.head):
        assert all(parameter.grad is None for parameter in part.parameters())


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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_parts": 1}, "'num_parts': .* from 2 to 1024, got 1"),
        ({"prompts_per_patch": 6}, r"prompts_per_patch <= pool_size \(5\), got 6"),
        ({"prompt_length": 0}, "'prompt_length': .* from 1 to 4096, got 0"),
    ],
)
def test_impossible_sizes_are_refused(backbone_folder: Path, options: dict[str, int], message: str) -> None:
    with pytest.raises(Exception, match=message):
        build(backbone_folder, **options)
