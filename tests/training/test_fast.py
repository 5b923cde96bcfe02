"""Cheaper ways to run plain blocks: the [CLS] row, copies of frozen blocks, and compiled steps."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from promptccd import GCDModel, PromptCCDModel
from promptccd.data.readable import StageImages
from promptccd.methods import Objective, Rows
from promptccd.models.backbone import blocks_of, embed, run_block, run_prefix
from promptccd.training.fast import FrozenBlock, fast, is_plain
from promptccd.training.options import TrainingArguments
from tests.messages import TEXT
from tests.models.finished import BACKBONES, model_of, some_methods
from tests.training.test_stage_trainer import trainer_of


def draw_weights(module: nn.Module) -> None:
    """Weights, biases, norms and layer scales that all matter."""
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.uniform_(-0.5, 0.5).add_(1.0 if parameter.ndim == 1 else 0.0)


def embedded(kind: str) -> tuple[GCDModel, Tensor, tuple[Tensor, Tensor] | None]:
    model = model_of("promptccd-gcd", kind)
    draw_weights(model.backbone)
    pixels = torch.randn(3, 3, 16, 24)
    return model, *embed(model.backbone, pixels)


def cosine(one: Tensor, other: Tensor) -> float:
    return float(torch.cosine_similarity(one.double().flatten(1), other.double().flatten(1)).min())


# The [CLS] row


@some_methods("promptccd-gcd", "promptccd", "promptccd-pp", "promptccd-b", "promptccd-b-dualprompt")
@pytest.mark.parametrize("kind", ["dinov2", "dino", "dinov3"])
def test_values_and_gradients_are_those_of_whole_blocks(method: str, kind: str) -> None:
    model = model_of(method, kind).train()
    pixels = torch.randn(3, 3, 16, 24, generator=torch.Generator().manual_seed(5))

    def step() -> list[Tensor]:
        model.zero_grad()
        output = model(pixels, prompted=True, project=True)
        losses = model.auxiliary_losses(output)
        (output.features.square().sum() + sum(value.sum() for value in losses.values())).backward()
        slopes = [each.grad for each in model.parameters() if each.grad is not None]
        return [output.features, output.bottleneck, model.attention_row(pixels), *slopes]

    expected = step()
    with fast(model):
        found = step()
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_the_last_block_costs_one_row_and_only_inside() -> None:
    model, pixels = embedded("dinov2")[0], torch.randn(3, 3, 16, 24)
    with FlopCounterMode(display=False) as whole:
        model(pixels)
    with FlopCounterMode(display=False) as block:
        run_block(blocks_of(model.backbone)[-1], torch.zeros(3, 7, 32))  # six patches and [CLS]
    with fast(model), FlopCounterMode(display=False) as row:
        model(pixels)
    assert row.get_total_flops() < whole.get_total_flops() - block.get_total_flops() / 2
    assert model.backbone.fast_blocks is None


def test_a_block_with_another_projection_is_not_plain() -> None:
    block = blocks_of(embedded("dinov2")[0].backbone)[-1]
    assert is_plain(block) and not is_plain(nn.Identity())
    for name in ("k_proj", "v_proj"):
        plain = getattr(block.attention, name)
        setattr(block.attention, name, type("Adapted", (nn.Linear,), {})(32, 32))
        assert not is_plain(block)
        setattr(block.attention, name, plain)
    block.mlp.fc1.forward = lambda rows: rows  # in place of its own
    assert not is_plain(block)


@pytest.mark.parametrize("place", ["", "attention", "attention.k_proj", "mlp"])
def test_a_block_with_a_hook_runs_whole(place: str) -> None:
    """Such as that of a callback: its values are those that transformers gives."""
    model, pixels = embedded("dinov2")[0], torch.randn(3, 3, 16, 24)
    seen: list[tuple[int, ...]] = []
    part = blocks_of(model.backbone)[-1].get_submodule(place)
    part.register_forward_hook(
        lambda module, given, found: seen.append((found[0] if isinstance(found, tuple) else found).shape)
    )
    with torch.no_grad(), fast(model):
        found = model(pixels).features
    assert [each[:2] for each in seen] == [(3, 7)]
    assert torch.equal(found, model(pixels).features)


# Copies of frozen blocks


PARTS: list[tuple[str, dict[str, bool]]] = [
    *((kind, {}) for kind in BACKBONES),
    ("dinov2", {"use_swiglu_ffn": True}),
    ("dinov3", {"query_bias": False, "value_bias": False, "proj_bias": False, "mlp_bias": False}),
    ("dinov3", {"key_bias": True, "use_gated_mlp": True}),
    ("dino", {"qkv_bias": False}),
]


@pytest.mark.parametrize(("kind", "options"), PARTS)
def test_a_copy_computes_what_its_block_does(kind: str, options: dict[str, bool]) -> None:
    model_class, config = BACKBONES[kind]
    backbone = model_class(type(config())(**{**config().to_dict(), **options})).eval().requires_grad_(False)
    draw_weights(backbone)
    block, pixels = blocks_of(backbone)[0], torch.randn(2, 3, 16, 24)
    tokens, rotation = embed(backbone, pixels)
    expected, copied = run_block(block, tokens, rotation), FrozenBlock(block, torch.float32)
    torch.testing.assert_close(copied(tokens, rotation), expected, rtol=1e-4, atol=1e-4)
    assert not any(each.requires_grad for each in copied.parameters())
    with torch.autocast("cpu", torch.bfloat16):  # which does not reach into it
        torch.testing.assert_close(copied(tokens, rotation), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", BACKBONES)
def test_in_bfloat16_tokens_and_gradients_are_those_of_float32_up_to_rounding(kind: str) -> None:
    model, tokens, rotation = embedded(kind)
    found, slopes = [], []
    for precision in ("same", "bf16"):
        own = tokens.clone().requires_grad_()
        with fast(model, precision), fast(model):  # features that are computed inside are computed alike
            passed = run_prefix(model.backbone, own, rotation)
            assert not run_prefix(model.backbone, tokens, rotation).requires_grad
        passed.square().mean().backward()
        found.append(passed.detach())
        slopes.append(own.grad)
    assert [each.dtype for each in found] == [torch.float32] * 2
    assert 0.9999 < cosine(*found) < 1 - 1e-9
    assert cosine(*slopes) > 0.995


def test_a_block_that_learns_or_has_a_hook_has_no_copy(caplog) -> None:
    model, tokens, rotation = embedded("dinov2")
    blocks, plain = blocks_of(model.backbone), run_prefix(model.backbone, tokens, rotation)
    blocks[0].mlp.fc1.weight.requires_grad_()
    blocks[1].attention.register_forward_hook(lambda *given: None)
    with fast(model, "bf16"):
        assert torch.equal(run_prefix(model.backbone, tokens, rotation), plain)
    said = [TEXT["block-learns-or-has-hooks"].format(each) in caplog.text for each in (0, 1, 2)]
    assert said == [True, True, False]


def test_nothing_that_is_saved_knows_of_copies(tmp_path: Path) -> None:
    model, tokens, rotation = embedded("dinov2")
    names, plain = list(model.state_dict()), run_prefix(model.backbone, tokens, rotation)
    with pytest.raises(RuntimeError, match="ends"), fast(model, "bf16"):
        run_prefix(model.backbone, tokens, rotation)
        assert list(model.state_dict()) == names
        assert {each.dtype for each in model.parameters()} == {torch.float32}
        model.save_pretrained(tmp_path / "saved")
        raise RuntimeError("ends")
    again = GCDModel.from_pretrained(tmp_path / "saved")
    assert torch.equal(run_prefix(again.backbone, tokens, rotation), plain)
    assert torch.equal(run_prefix(model.backbone, tokens, rotation), plain)


def test_steps_use_copies_and_what_ends_a_stage_does_not(
    model: PromptCCDModel, unlabelled: StageImages
) -> None:
    class Watched(Objective):
        def losses(self, rows: Rows) -> dict[str, Tensor]:
            seen.append(self.model.backbone.fast_blocks.copies.keys())
            return super().losses(rows)

        def end_stage(self) -> None:
            seen.append(self.model.backbone.fast_blocks)

    seen: list[Any] = []
    arguments = TrainingArguments(epochs=1, batch_size=len(unlabelled), frozen_precision="bf16")
    trainer_of(model, unlabelled, Watched, arguments).train()
    assert seen == [{0}, None]
