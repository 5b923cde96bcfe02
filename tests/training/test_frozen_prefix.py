"""Frozen blocks in a precision of their own: what they compute, when they step aside, and that nothing keeps them."""

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from accelerate.state import AcceleratorState
from torch import Tensor, nn

from promptccd import GCDModel, PromptCCDModel
from promptccd.errors import InterruptedRunError
from promptccd.methods.promptccd import MixtureObjective
from promptccd.models.backbones import blocks_of, embed, rotation_of, run_prefix, whole_block
from promptccd.runs import train_run
from promptccd.runs.folder import RunDirectory
from promptccd.training import trainer
from promptccd.training.callbacks import CategoryDiscoveryCallback
from promptccd.training.frozen_prefix import (
    FrozenBlock,
    FrozenPrefix,
    frozen_prefix,
    kinds_built_by,
    tell_of_emulation,
    why_not_copied,
)
from promptccd.training.recipe import Recipe
from tests.conftest import TINY_HEAD, quick_recipe, resumable_recipe
from tests.models.finished import BACKBONES, write_backbone


def draw_weights(module: nn.Module) -> None:
    """Weights, biases, norms and layer scales that all matter."""
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.uniform_(-0.5, 0.5).add_(1.0 if parameter.ndim == 1 else 0.0)


def embedded(kind: str, folder: Path) -> tuple[GCDModel, Tensor, tuple[Tensor, Tensor] | None]:
    model = GCDModel.from_pretrained(write_backbone(kind, folder), **TINY_HEAD)
    draw_weights(model.backbone)
    pixels = torch.randn(3, 3, 16, 24)
    return model, model.embed(pixels), model.rotation(pixels)


def cosine(one: Tensor, other: Tensor) -> float:
    return float(torch.cosine_similarity(one.double().flatten(1), other.double().flatten(1)).min())


@pytest.mark.parametrize("kind", BACKBONES)
def test_a_copy_computes_what_its_block_does(kind: str, tmp_path: Path) -> None:
    model, tokens, rotation = embedded(kind, tmp_path)
    block = blocks_of(model.backbone)[0]
    expected = whole_block(block, rotation)(tokens)
    copied = FrozenBlock(block, torch.float32)
    torch.testing.assert_close(copied(tokens, rotation), expected, rtol=1e-4, atol=1e-4)
    assert not any(each.requires_grad for each in copied.parameters())
    with torch.autocast("cpu", torch.bfloat16):  # which does not reach into it
        torch.testing.assert_close(copied(tokens, rotation), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("dinov2", {"use_swiglu_ffn": True}),
        ("dinov3", {"query_bias": False, "value_bias": False, "proj_bias": False, "mlp_bias": False}),
        ("dinov3", {"key_bias": True, "use_gated_mlp": True}),
        ("dino", {"qkv_bias": False}),
    ],
)
def test_a_copy_of_a_block_with_other_parts_computes_the_same(kind: str, options: dict[str, bool]) -> None:
    model_class, config = BACKBONES[kind]
    backbone = model_class(type(config())(**{**config().to_dict(), **options})).eval().requires_grad_(False)
    draw_weights(backbone)
    block = blocks_of(backbone)[0]
    assert why_not_copied(block, kinds_built_by(block)) == ""
    pixels = torch.randn(2, 3, 16, 24)
    tokens, rotation = embed(backbone, pixels), rotation_of(backbone, pixels)
    expected = whole_block(block, rotation)(tokens)
    found = FrozenBlock(block, torch.float32)(tokens, rotation)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", BACKBONES)
def test_in_bfloat16_tokens_and_gradients_are_those_of_float32_up_to_rounding(
    kind: str, tmp_path: Path
) -> None:
    model, tokens, rotation = embedded(kind, tmp_path)
    found, slopes = [], []
    for precision in ("same", "bf16"):
        own = tokens.clone().requires_grad_()
        with frozen_prefix(model, precision):
            passed = run_prefix(model.backbone, own, rotation)
        passed.square().mean().backward()
        found.append(passed.detach())
        slopes.append(own.grad)
    assert [each.dtype for each in found] == [torch.float32] * 2
    assert 0.9999 < cosine(*found) < 1 - 1e-9
    assert cosine(*slopes) > 0.995


def test_in_the_same_precision_blocks_run_as_they_are(tmp_path: Path) -> None:
    model, _, _ = embedded("dinov2", tmp_path)
    with frozen_prefix(model, "same"):
        assert not hasattr(model.backbone, "frozen_prefix")  # copies would take memory for nothing
    with frozen_prefix(model, "bf16"):
        assert isinstance(model.backbone.frozen_prefix, FrozenPrefix)
    assert not hasattr(model.backbone, "frozen_prefix")


def test_without_gradients_no_graph_is_built(tmp_path: Path) -> None:
    model, tokens, rotation = embedded("dinov2", tmp_path)
    with frozen_prefix(model, "bf16"):
        assert not run_prefix(model.backbone, tokens, rotation).requires_grad


def test_activations_are_recomputed_where_that_is_on(tmp_path: Path) -> None:
    model, tokens, rotation = embedded("dinov3", tmp_path)
    slopes, saved = [], []
    for recomputes in (False, True):
        if recomputes:
            model.gradient_checkpointing_enable()
        own, kept = tokens.clone().requires_grad_(), set()

        def keep(value: Tensor, kept: set[int] = kept) -> Tensor:
            kept.add(value.untyped_storage().data_ptr())
            return value

        with (
            frozen_prefix(model, "bf16"),
            torch.autograd.graph.saved_tensors_hooks(keep, lambda value: value),
        ):
            passed = run_prefix(model.backbone, own, rotation)
            saved.append(len(kept))
            passed.square().mean().backward()
        slopes.append(own.grad)
    assert torch.equal(*slopes)
    assert saved[1] < saved[0] / 4


class Adapted(nn.Module):
    def __init__(self, inner: nn.Module):
        super().__init__()
        self.inner = inner

    def forward(self, rows: Tensor) -> Tensor:
        return 2 * self.inner(rows)


class OtherLinear(nn.Linear):
    def forward(self, rows: Tensor) -> Tensor:
        return 2 * super().forward(rows)


def with_adapter(block: nn.Module) -> None:
    block.attention.v_proj = Adapted(block.attention.v_proj)


def with_adapter_in_the_mlp(block: nn.Module) -> None:
    block.mlp.fc1 = Adapted(block.mlp.fc1)


def with_another_mlp(block: nn.Module) -> None:
    block.mlp = Adapted(block.mlp)


def with_a_subclass(block: nn.Module) -> None:
    block.mlp.fc2.__class__ = OtherLinear


def with_parametrization(block: nn.Module) -> None:
    torch.nn.utils.parametrizations.weight_norm(block.mlp.fc1)
    block.requires_grad_(False)


def with_hook(block: nn.Module) -> None:
    block.norm2.register_forward_hook(lambda module, given, out: 2 * out)


def with_hook_before(block: nn.Module) -> None:
    block.mlp.register_forward_pre_hook(lambda module, given: (2 * given[0],))


def with_hook_backward(block: nn.Module) -> None:
    block.attention.register_full_backward_hook(lambda module, given, out: None)


def with_hook_before_backward(block: nn.Module) -> None:
    block.register_full_backward_pre_hook(lambda module, out: None)


def with_another_forward(block: nn.Module) -> None:
    """As Accelerate's offloading does."""
    plain = block.attention.o_proj.forward
    block.attention.o_proj.forward = lambda rows: 2 * plain(rows)


def with_another_scale(block: nn.Module) -> None:
    block.layer_scale1 = nn.Linear(32, 32).eval().requires_grad_(False)


def with_another_activation(block: nn.Module) -> None:
    block.mlp.activation_fn = nn.ReLU().eval()


def with_more(block: nn.Module) -> None:
    block.attention.memory = nn.Linear(2, 2).eval().requires_grad_(False)


def with_less(block: nn.Module) -> None:
    block.norm2 = nn.Identity().eval()


def of_ones_own(block: nn.Module) -> None:
    class Own(type(block)):
        def forward(self, tokens: Tensor) -> Tensor:
            return 2 * super().forward(tokens)

    block.__class__ = Own


def that_learns(block: nn.Module) -> None:
    block.norm1.bias.requires_grad_(True)


def in_training_mode(block: nn.Module) -> None:
    block.mlp.train()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (with_adapter, "attention.v_proj is Adapted and not Linear"),
        (with_adapter_in_the_mlp, "mlp.fc1 is Adapted and not Linear"),
        (with_another_mlp, "mlp is Adapted and not Dinov2MLP"),
        (with_a_subclass, "mlp.fc2 is OtherLinear and not Linear"),
        (with_parametrization, "mlp.fc1 is ParametrizedLinear and not Linear"),
        (with_hook, "norm2 has a hook"),
        (with_hook_before, "mlp has a hook"),
        (with_hook_backward, "attention has a hook"),
        (with_hook_before_backward, "it has a hook"),
        (with_another_forward, "attention.o_proj has a hook"),
        (with_another_scale, "layer_scale1 is Linear and not Dinov2LayerScale"),
        (with_another_activation, "mlp.activation_fn is ReLU and not GELUActivation"),
        (with_more, "attention.memory is Linear and not nothing"),
        (with_less, "norm2 is Identity and not LayerNorm"),
        (of_ones_own, "Own is a block of one's own"),
        (that_learns, "norm1 learns"),
        (in_training_mode, "mlp is in training mode"),
    ],
)
def test_a_block_that_is_more_than_its_weights_runs_itself_which_is_said_once(
    change: Callable[[nn.Module], None], said: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model, tokens, _ = embedded("dinov2", tmp_path)
    block, prefix = blocks_of(model.backbone)[0], FrozenPrefix(torch.bfloat16)
    assert not torch.equal(prefix([block], tokens, None), block(tokens))  # it was copied
    change(block)
    for _ in range(2):
        assert torch.equal(prefix([block], tokens, None), block(tokens))
    assert caplog.messages == [f"Frozen block 0 runs as it is, in spite of frozen_precision: {said}."]


@pytest.mark.moderate
def test_a_block_between_copies_runs_itself(tmp_path: Path) -> None:
    model, tokens, _ = embedded("dinov2", tmp_path)
    one, other = blocks_of(model.backbone)[0], copy.deepcopy(blocks_of(model.backbone)[0])
    draw = torch.Generator().manual_seed(3)
    other.mlp.fc1.weight.data.normal_(generator=draw)
    with_hook(other)
    found = FrozenPrefix(torch.bfloat16)([one, other, one], tokens, None)
    copied = FrozenBlock(one, torch.bfloat16)
    expected = copied(other(copied(tokens.bfloat16(), None).float()).bfloat16(), None).float()
    assert torch.equal(found, expected)


@pytest.mark.moderate
def test_copies_follow_their_weights_and_are_made_once(tmp_path: Path) -> None:
    model, tokens, _ = embedded("dinov2", tmp_path)
    block, prefix = blocks_of(model.backbone)[0], FrozenPrefix(torch.bfloat16)
    first = prefix([block], tokens, None)
    made = prefix._copies[0]
    prefix([block], tokens, None)
    assert prefix._copies[0] is made

    def follows(what: str) -> None:
        found = prefix([block], tokens, None)
        assert cosine(found, block(tokens)) > 0.999, what
        assert not torch.equal(found, first), what

    with torch.no_grad():
        block.mlp.fc2.weight.mul_(2)
    follows("changed in place")
    block.attention.q_proj.weight.data = block.attention.q_proj.weight.data * 3
    follows("other data")
    block.norm1 = copy.deepcopy(block.norm1)
    with torch.no_grad():
        block.norm1.weight.mul_(2)
    follows("another module")
    block.load_state_dict({name: 0.5 * value for name, value in block.state_dict().items()})
    follows("loaded")
    made = prefix._copies[0]
    block.to(torch.float64).to(torch.float32)
    follows("moved")
    assert prefix._copies[0] is not made


@pytest.mark.moderate
def test_nothing_that_is_saved_knows_of_copies(tmp_path: Path) -> None:
    model, tokens, rotation = embedded("dinov2", tmp_path)
    names, plain = list(model.state_dict()), run_prefix(model.backbone, tokens, rotation)
    with pytest.raises(RuntimeError, match="ends"), frozen_prefix(model, "bf16"):
        run_prefix(model.backbone, tokens, rotation)
        assert list(model.state_dict()) == names
        assert {each.dtype for each in model.parameters()} == {torch.float32}
        model.save_pretrained(tmp_path / "saved")
        raise RuntimeError("ends")
    again = GCDModel.from_pretrained(tmp_path / "saved")
    assert torch.equal(run_prefix(again.backbone, tokens, rotation), plain)
    assert torch.equal(run_prefix(model.backbone, tokens, rotation), plain)


def test_a_machine_that_emulates_bfloat16_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    found: dict[str, bool] = {}
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: found)
    for capabilities, precision, said in (
        ({"avx512_f": True, "avx512_bf16": False}, "bf16", 1),
        ({"avx512_f": True, "amx_bf16": True}, "bf16", 0),
        ({}, "same", 0),
    ):
        found.clear()
        found.update(capabilities)
        caplog.clear()
        tell_of_emulation(precision, torch.device("cpu"))
        assert caplog.text.count("has no bfloat16 in hardware") == said
    monkeypatch.delattr(torch.cpu, "get_capabilities")  # of torch before 2.11
    caplog.clear()
    tell_of_emulation("bf16", torch.device("cpu"))
    assert not caplog.text


class Stopped(CategoryDiscoveryCallback):
    """Ends a run in the middle of its second stage, as a signal does."""

    def on_step_end(self, args: object, state: object, control: object, **more: object) -> None:
        if (state.stage, state.epoch, state.step) == (1, 0, 2):
            raise InterruptedRunError("stopped", 130)


def weights_of(run: Path) -> dict[str, bytes]:
    return {
        f"{path.parent.name}/{path.name}": path.read_bytes()
        for path in sorted(run.glob("stage*/*.safetensors"))
    }


@pytest.mark.slow
def test_a_run_with_frozen_blocks_in_bfloat16(
    image_folder: Path,
    tiny_backbone: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Steps are computed so, and what ends a stage is not; a kill changes no byte, and the manifest knows."""
    inside: list[bool] = []
    at_the_end: list[bool] = []
    loss, end = trainer.training_loss, MixtureObjective.end_stage

    def noted(*args: object) -> dict[str, Tensor]:
        inside.append(hasattr(args[1].model.backbone, "frozen_prefix"))
        return loss(*args)

    def noted_end(objective: MixtureObjective) -> None:
        at_the_end.append(hasattr(objective.model.backbone, "frozen_prefix"))
        end(objective)

    monkeypatch.setattr(trainer, "training_loss", noted)
    monkeypatch.setattr(MixtureObjective, "end_stage", noted_end)
    monkeypatch.setattr(torch.cpu, "get_capabilities", dict)
    for name, callbacks in (("whole", []), ("killed", [Stopped()]), ("killed", [])):
        AcceleratorState._reset_state(reset_partial_state=True)
        values = resumable_recipe(image_folder, tiny_backbone, tmp_path / name)
        values["training"] |= {"frozen_precision": "bf16", "epochs": 2, "save_minutes": 0.0}
        recipe = Recipe.from_dict(values)
        if callbacks:
            with pytest.raises(InterruptedRunError):
                train_run(recipe, callbacks=callbacks)
        else:
            train_run(recipe)
    assert inside
    assert all(inside)
    assert at_the_end == [False] * 8
    assert caplog.text.count("cpu has no bfloat16 in hardware") == 3  # of each start
    assert weights_of(tmp_path / "whole") == weights_of(tmp_path / "killed")
    assert RunDirectory(tmp_path / "whole").recipe.training.frozen_precision == "bf16"
    bare, trained = (
        dict(blocks_of(PromptCCDModel.from_pretrained(place).backbone)[:-1].named_parameters())
        for place in (tiny_backbone, tmp_path / "whole" / "stage3")
    )
    assert len(bare) == 18
    assert all(torch.equal(value, trained[name]) for name, value in bare.items())


@pytest.mark.slow
def test_by_default_nothing_is_copied(
    image_folder: Path, tiny_backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*args: object) -> None:
        raise AssertionError("copied")

    monkeypatch.setattr(FrozenPrefix, "__call__", never)
    values = quick_recipe(image_folder, tiny_backbone, tmp_path / "run")
    values["training"]["epochs"] = 1
    train_run(Recipe.from_dict(values))
