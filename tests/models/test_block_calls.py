"""What stands around a module or in for it acts: adapters, offload, quantised weights, hooks, shards, wrappers."""

import copy
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import accelerate
import pytest
import torch
import torch.distributed as dist
from accelerate.hooks import AlignDevicesHook, CpuOffload, add_hook_to_module
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModel

from promptccd.models import CategoryDiscoveryModel, CheckpointError
from promptccd.models.backbones import blocks_of, class_position, run_block
from promptccd.models.block_calls import at_hand, is_watched, product_of
from tests.models.finished import BACKBONES, METHODS, model_of, some_methods, write_backbone
from tests.pretend_device import pretend_gpu

FAST = ("promptccd-gcd", "promptccd", "promptccd-pp", "promptccd-b", "promptccd-b-dualprompt")
of_methods = some_methods(*FAST)
LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "fc1", "fc2", "gate_proj", "up_proj", "down_proj")


@pytest.fixture(scope="module")
def stage_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Folder of a finished stage of a method over a kind of backbone, written once."""
    written: dict[tuple[str, str], Path] = {}

    def folder(method: str, kind: str = "dinov2") -> Path:
        if (method, kind) not in written:
            bare = write_backbone(kind, tmp_path_factory.mktemp("bare"))
            model = model_of(method, bare)
            rows = model.prototypes.clone()
            if hasattr(model, "remember"):
                model.remember(rows[:1])
            if hasattr(model, "grow"):  # classes, or a branch and its clusters
                model.grow(rows)
            written[method, kind] = tmp_path_factory.mktemp(method)
            model.save_pretrained(written[method, kind])
        return written[method, kind]

    return folder


@pytest.fixture
def pixels() -> Tensor:
    return torch.randn(3, 3, 16, 24, generator=torch.Generator().manual_seed(5))


@torch.no_grad()
def answers(model: CategoryDiscoveryModel, pixels: Tensor) -> list[Tensor]:
    """Prompted, plain and projected features, attentions, and the category."""
    output = model(pixels, prompted=True, project=True, output_attentions=True)
    plain = model(pixels, prompted=False).features
    ids = model.assign(output.features).category_ids
    found = [output.features, plain, output.bottleneck, *output.attentions, ids]
    native = model.assign_natively(output.features)
    return found if native is None else [*found, native]


class Adapted(nn.Module):
    """A low-rank adapter beside a linear layer, whose weight it shows as its own, as adapters do."""

    def __init__(self, base: nn.Linear, rank: int = 4):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, base.in_features) * 0.1)
        self.up = nn.Parameter(torch.randn(base.out_features, rank) * 0.1)

    @property
    def weight(self) -> Tensor:
        return self.base.weight

    @property
    def bias(self) -> Tensor:
        return self.base.bias

    def forward(self, rows: Tensor) -> Tensor:
        return self.base(rows) + rows @ self.down.T @ self.up.T

    def merged(self) -> nn.Linear:
        self.base.weight.data += self.up.data @ self.down.data
        return self.base


def replaced(model: CategoryDiscoveryModel, function: Callable[[Any], nn.Module], kind: type) -> int:
    """Replace the projections of all blocks that act, and say how many there were."""
    number = 0
    for block in (*blocks_of(model.backbone)[:-1], model.acting_block):
        named = [
            (name, module)
            for name, module in block.named_modules()
            if isinstance(module, kind) and name.rpartition(".")[2] in LINEAR
        ]
        number += len(named)
        for name, module in named:
            block.set_submodule(name, function(module))
    return number


@pytest.mark.moderate
@pytest.mark.parametrize(
    ("method", "kind"),
    [
        *((name, "dinov2") for name in FAST),
        ("promptccd", "dinov3"),
        ("promptccd-b-dualprompt", "dino"),
        *(
            pytest.param(name, kind, marks=pytest.mark.slow)
            for name, kind in zip(METHODS, itertools.cycle(BACKBONES))
            if kind != "dinov2" or name not in FAST
        ),
    ],
)
def test_every_adapter_acts_and_learns(stage_of, method: str, kind: str, pixels: Tensor) -> None:
    model = AutoModel.from_pretrained(stage_of(method, kind)).requires_grad_(False)
    before = answers(model, pixels)
    torch.manual_seed(3)
    number = replaced(model, Adapted, nn.Linear)
    assert number >= 18
    found = answers(model, pixels)
    model(pixels, prompted=True).features.square().sum().backward()
    learnt = {name for name, value in model.named_parameters() if value.requires_grad and value.grad.any()}
    assert len(learnt) == 2 * number
    replaced(model, Adapted.merged, Adapted)
    merged = answers(model, pixels)
    assert (found[0] - before[0]).abs().max() > 0.01
    for one, other in zip(found, merged, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("part", ["k_proj", "v_proj"])
def test_one_adapter_of_the_last_block_acts(stage_of, part: str, pixels: Tensor) -> None:
    for method in ("promptccd-gcd", "promptccd-b-dualprompt"):
        model = AutoModel.from_pretrained(stage_of(method))
        before = model(pixels, prompted=True).features
        attention = blocks_of(model.backbone)[-1].attention
        setattr(attention, part, Adapted(getattr(attention, part)))
        found = model(pixels, prompted=True).features
        setattr(attention, part, getattr(attention, part).merged())
        assert (found - before).abs().max() > 1e-3
        torch.testing.assert_close(found, model(pixels, prompted=True).features, rtol=1e-4, atol=1e-5)


@pytest.mark.moderate
def test_blocks_that_learn_get_their_graph_and_others_none(stage_of, pixels: Tensor) -> None:
    for method in ("promptccd-gcd", "promptccd", "promptccd-pp", "promptccd-b"):
        model = AutoModel.from_pretrained(stage_of(method))
        assert not model.embed(pixels).requires_grad
        model.requires_grad_(True)
        model(pixels, prompted=True).features.sum().backward()
        learnt = [parameter.grad is not None for parameter in blocks_of(model.backbone).parameters()]
        assert all(learnt)
        assert model.backbone.embeddings.patch_embeddings.projection.weight.grad.any()


# Offload


@pytest.mark.slow
@of_methods
@pytest.mark.parametrize("with_buffers", [False, True])
def test_weights_may_lie_elsewhere(
    stage_of, method: str, with_buffers: bool, pixels: Tensor, tmp_path: Path
) -> None:
    wanted = AutoModel.from_pretrained(stage_of(method))
    expected = wanted(pixels, prompted=True, project=True).to_tuple()
    for offload in (
        lambda model: accelerate.cpu_offload(model, "cpu", offload_buffers=with_buffers),
        lambda model: accelerate.disk_offload(model, tmp_path, "cpu", offload_buffers=with_buffers),
    ):
        model = AutoModel.from_pretrained(stage_of(method))
        offload(model)
        assert blocks_of(model.backbone)[-1].attention.k_proj.weight.is_meta
        for _ in range(2):
            found = model(pixels, prompted=True, project=True).to_tuple()
            assert all(map(torch.equal, found, expected))


@pytest.mark.slow
@of_methods
def test_a_model_is_loaded_into_half_the_memory(
    stage_of, method: str, pixels: Tensor, tmp_path: Path
) -> None:
    wanted = AutoModel.from_pretrained(stage_of(method))
    size = sum(each.numel() * each.element_size() for each in wanted.state_dict().values())
    expected = answers(wanted, pixels)
    for options in (
        {"device_map": "auto", "max_memory": {"cpu": size // 2}},
        {"device_map": "auto", "max_memory": {"cpu": 3 * size // 4}},
        {"device_map": {"": "disk"}},
    ):
        model = AutoModel.from_pretrained(stage_of(method), offload_folder=tmp_path, **options)
        assert any(each.is_meta for each in model.parameters())
        assert all(map(torch.equal, answers(model, pixels), expected))


@pytest.mark.moderate
def test_an_offloaded_value_that_is_no_number_is_refused(stage_of, tmp_path: Path) -> None:
    model = AutoModel.from_pretrained(stage_of("promptccd"))
    model.backbone.encoder.layer[1].mlp.fc1.weight.data[3, 2] = torch.nan
    model.save_pretrained(tmp_path / "damaged")
    for options in ({}, {"device_map": {"": "disk"}, "offload_folder": tmp_path / "off"}):
        with pytest.raises(CheckpointError, match=r"layer\.1\.mlp\.fc1\.weight of \S+ holds NaN"):
            AutoModel.from_pretrained(tmp_path / "damaged", **options)


@pytest.mark.moderate
@of_methods
def test_a_model_may_be_spread_over_devices(stage_of, method: str, pixels: Tensor) -> None:
    """The hooks of accelerate's dispatch, by hand: it makes parameters as no pretended device can."""
    expected = answers(AutoModel.from_pretrained(stage_of(method)), pixels)
    with pretend_gpu(2):
        model = AutoModel.from_pretrained(stage_of(method)).to("cuda:0")
        for block in (*blocks_of(model.backbone)[-2:], model.acting_block):
            block.to("cuda:1")
        for name, module in model.named_modules():
            if name and (first := next(module.parameters(), None)) is not None:
                add_hook_to_module(module, AlignDevicesHook(execution_device=first.device))
        found = [each.cpu() for each in answers(model, pixels.cuda())]
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("kind", BACKBONES)
def test_an_offloaded_position_is_the_same(stage_of, kind: str) -> None:
    backbone = AutoModel.from_pretrained(stage_of("promptccd", kind)).backbone
    expected = class_position(backbone)
    accelerate.cpu_offload(backbone, "cpu")
    assert torch.equal(class_position(backbone), expected)
    assert backbone.embeddings.cls_token.is_meta


# What stands in for a projection


@of_methods
def test_quantised_weights_answer_alike(stage_of, method: str, pixels: Tensor) -> None:
    model = AutoModel.from_pretrained(stage_of(method))
    small = torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)
    one, other = (each(pixels, prompted=True).features for each in (model, small))
    assert torch.cosine_similarity(one, other).min() > 0.99


@of_methods
@pytest.mark.parametrize("kind", ["Int8WeightOnlyConfig", "Int8DynamicActivationInt8WeightConfig"])
def test_weights_of_torchao_answer_alike(stage_of, method: str, kind: str, pixels: Tensor) -> None:
    quantization = pytest.importorskip("torchao.quantization", reason="torchao is not installed")
    model, small = (AutoModel.from_pretrained(stage_of(method)) for _ in range(2))
    quantization.quantize_(small, getattr(quantization, kind)())
    one, other = (each(pixels, prompted=True).features for each in (model, small))
    assert torch.cosine_similarity(one, other).min() > 0.99


@of_methods
def test_adapters_of_peft_are_trained_merged_and_kept(
    stage_of, method: str, pixels: Tensor, tmp_path: Path
) -> None:
    peft = pytest.importorskip("peft", reason="peft is not installed")
    options = peft.LoraConfig(
        target_modules=r"(backbone|branches)\..*(q_proj|k_proj|v_proj|o_proj|fc1|fc2)",
        init_lora_weights=False,
    )
    model = peft.get_peft_model(AutoModel.from_pretrained(stage_of(method)), options)
    model(pixels, prompted=True).features.square().sum().backward()
    adapters = {name: value.grad for name, value in model.named_parameters() if "lora_" in name}
    still = [name for name, grad in adapters.items() if grad is None or not grad.any()]
    assert len(adapters) - len(still) == 2 * 6 * 3
    assert not still or "branches" in dict(model.get_base_model().named_children())  # the static one rests
    found = model(pixels, prompted=True).features
    model.save_pretrained(tmp_path)
    again = peft.PeftModel.from_pretrained(AutoModel.from_pretrained(stage_of(method)), tmp_path)
    assert torch.equal(again(pixels, prompted=True).features, found)
    merged = model.merge_and_unload()(pixels, prompted=True).features
    torch.testing.assert_close(found, merged, rtol=1e-4, atol=1e-5)


class Wrapped(nn.Module):
    """A block in a wrapper that knows nothing but tokens."""

    def __init__(self, block: nn.Module):
        super().__init__()
        self.block = block

    def forward(self, hidden_states: Tensor) -> Tensor:
        return self.block(hidden_states)


class Scaled(Tensor):
    """Values with an arithmetic of their own, as those of torchao say that they have."""

    def __tensor_flatten__(self) -> Any:
        raise NotImplementedError


def test_only_a_plain_product_is_read(stage_of, pixels: Tensor) -> None:
    model = AutoModel.from_pretrained(stage_of("promptccd-gcd"))
    plain = blocks_of(model.backbone)[-1].attention.k_proj
    assert product_of(plain) == (plain.weight, plain.bias)
    assert product_of(Adapted(plain)) is None
    hooked, patched, weighed = (copy.deepcopy(plain) for _ in range(3))
    hooked.register_forward_hook(lambda module, given, found: found + 1)
    patched.forward = lambda rows: rows
    torch.nn.utils.parametrizations.weight_norm(weighed)
    assert [product_of(each) for each in (hooked, patched, weighed)] == [None] * 3
    for register in (
        nn.Module.register_forward_pre_hook,
        nn.Module.register_full_backward_hook,
        nn.Module.register_full_backward_pre_hook,
    ):
        register(watched := copy.deepcopy(plain), lambda *given: None)
        assert product_of(watched) is None and is_watched(nn.Sequential(nn.ReLU(), watched))
    scaled = copy.deepcopy(plain)
    scaled.weight = nn.Parameter(scaled.weight.detach().as_subclass(Scaled))
    assert product_of(scaled) is None
    other = add_hook_to_module(copy.deepcopy(plain), CpuOffload())
    assert product_of(other) is None
    accelerate.cpu_offload(nn.Sequential(kept := copy.deepcopy(plain)), "cpu")
    weight, bias = product_of(kept)
    assert torch.equal(weight, plain.weight) and torch.equal(bias, plain.bias) and kept.weight.is_meta
    assert at_hand(plain, "bias")[0] is plain.bias


# Hooks and wrappers


@pytest.mark.parametrize("method", ["promptccd-gcd", "promptccd-pp", "promptccd-b"])
def test_hooks_see_what_transformers_gives(stage_of, method: str, pixels: Tensor) -> None:
    model = AutoModel.from_pretrained(stage_of(method))
    last = blocks_of(model.backbone)[-1]
    expected = answers(model, pixels)
    seen: dict[str, list[Tensor]] = {}
    for name in ("", "attention", "attention.k_proj", "mlp", "norm1"):

        def hook(module: nn.Module, given: Any, found: Any, name: str = name) -> None:
            seen.setdefault(name, []).append(found[0] if isinstance(found, tuple) else found)

        last.get_submodule(name).register_forward_hook(hook)
    assert is_watched(last)
    for one, other in zip(answers(model, pixels), expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    assert set(seen) == {"", "attention", "attention.k_proj", "mlp", "norm1"}
    whole = model.backbone(pixels, output_hidden_states=True).hidden_states[-1]
    assert all(each.shape[2] == 32 and each.shape[1] >= whole.shape[1] for each in seen[""])
    seen.clear()
    model(pixels, prompted=False)
    assert torch.equal(seen[""][0], whole)


@pytest.mark.filterwarnings("ignore:For backward hooks", "ignore:Full backward hook")
def test_a_hook_changes_what_comes_out(stage_of, pixels: Tensor) -> None:
    model = AutoModel.from_pretrained(stage_of("promptccd-gcd"))
    before = model(pixels).features
    handle = blocks_of(model.backbone)[-1].register_forward_hook(lambda module, given, found: found.flip(-1))
    assert (model(pixels).features - before).abs().max() > 1e-3
    handle.remove()
    assert torch.equal(model(pixels).features, before)
    seen = []
    handle = nn.modules.module.register_module_forward_hook(lambda module, *rest: seen.append(module))
    torch.testing.assert_close(model(pixels).features, before, rtol=1e-4, atol=1e-5)
    handle.remove()
    assert blocks_of(model.backbone)[-1].attention in seen
    for register in (
        nn.modules.module.register_module_full_backward_hook,
        nn.modules.module.register_module_full_backward_pre_hook,
    ):
        seen.clear()
        handle = register(lambda module, *rest: seen.append(module))
        model(pixels).features.sum().backward()
        handle.remove()
        assert blocks_of(model.backbone)[-1].attention.v_proj in seen
    assert not is_watched(model.backbone)


def test_counted_work_is_what_is_done(stage_of, pixels: Tensor) -> None:
    """The counter hangs hooks on all modules, which do not make the last block whole."""
    model = AutoModel.from_pretrained(stage_of("promptccd-gcd"))
    last = blocks_of(model.backbone)[-1]
    with FlopCounterMode(display=False) as row:
        model(pixels)
    with FlopCounterMode(display=False) as whole:
        model.backbone(pixels)
    with FlopCounterMode(display=False) as block:
        last(torch.zeros(3, 7, 32))  # six patches and [CLS]
    assert row.get_total_flops() < whole.get_total_flops() - block.get_total_flops() / 2


def test_a_hook_without_a_module_acts(stage_of, pixels: Tensor) -> None:
    def hook(module: nn.Module, given: Any, found: Tensor) -> Tensor:
        return found + torch.arange(32)

    hook.__module__ = None  # as one that was made by exec
    model = AutoModel.from_pretrained(stage_of("promptccd-gcd"))
    before = model(pixels).features
    blocks_of(model.backbone)[-1].attention.v_proj.register_forward_hook(hook)
    assert (model(pixels).features - before).abs().max() > 1e-3


@pytest.mark.parametrize("method", ["promptccd-gcd", "promptccd"])
def test_a_wrapped_block_runs_whole(stage_of, method: str, pixels: Tensor) -> None:
    model = AutoModel.from_pretrained(stage_of(method))
    before = model(pixels, prompted=True).features
    blocks = blocks_of(model.backbone)
    blocks[-1] = Wrapped(blocks[-1])
    torch.testing.assert_close(model(pixels, prompted=True).features, before, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("method", FAST)
def test_blocks_may_be_left_out(stage_of, method: str, pixels: Tensor) -> None:
    model, shorter = (AutoModel.from_pretrained(stage_of(method)) for _ in range(2))
    blocks = blocks_of(model.backbone)
    blocks[-2] = nn.Identity()
    if "dualprompt" in method:  # its prefixes enter the attention of every block
        with pytest.raises(TypeError, match="A Identity stands in for a block whose attention is needed"):
            model(pixels, prompted=True)
        return
    del blocks_of(shorter.backbone)[-2]
    found, expected = (each(pixels, prompted=True).features for each in (model, shorter))
    assert torch.equal(found, expected)
    blocks[-1] = nn.Identity()
    if method == "promptccd-pp":
        with pytest.raises(TypeError, match="derive from that of the block"):
            model(pixels, prompted=True)
    else:
        model(pixels, prompted=True)


def test_a_functional_call_gives_other_weights(stage_of, pixels: Tensor) -> None:
    model = AutoModel.from_pretrained(stage_of("promptccd-gcd"))
    name = "backbone.encoder.layer.2.attention.k_proj.weight"
    other = {name: model.get_parameter(name).detach() * 3}

    def loss(values: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(model, values, (pixels,)).features.square().sum()

    slope = torch.func.grad(loss)(other)[name]
    model.get_parameter(name).data.mul_(3)
    model(pixels).features.square().sum().backward()
    torch.testing.assert_close(slope, model.get_parameter(name).grad)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("method", FAST)
def test_images_are_mapped_one_by_one(stage_of, method: str, pixels: Tensor) -> None:
    model = AutoModel.from_pretrained(stage_of(method))

    def feature(image: Tensor) -> Tensor:
        return model(image[None], prompted=True).features[0]

    with torch.no_grad():
        expected = model(pixels, prompted=True).features
        torch.testing.assert_close(torch.func.vmap(feature)(pixels), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("method", FAST)
def test_an_exported_model_takes_any_number_of_images(stage_of, method: str, pixels: Tensor) -> None:
    model = AutoModel.from_pretrained(stage_of(method))
    options = {"prompted": True, "return_dict": False}
    shapes = {"pixel_values": {0: torch.export.Dim("images", min=1, max=64)}, **dict.fromkeys(options)}
    exported = torch.export.export(model, (pixels,), options, dynamic_shapes=shapes).module()
    more = torch.cat([pixels, pixels.flip(-1)])
    with torch.no_grad():
        expected = model(more, prompted=True).features
        torch.testing.assert_close(exported(more, **options)[0], expected, rtol=1e-5, atol=1e-6)


def test_a_prefix_is_seen_by_a_block_that_is_watched(stage_of) -> None:
    model = AutoModel.from_pretrained(stage_of("promptccd-b-dualprompt"))
    block, tokens = blocks_of(model.backbone)[-1], torch.randn(2, 5, 32)
    prefix = torch.randn(2, 3, 32), torch.randn(2, 3, 32)
    with torch.no_grad():
        expected, without = run_block(block, tokens, prefix), run_block(block, tokens)
        block.register_forward_hook(lambda *rest: None)
        assert torch.equal(run_block(block, tokens, prefix), expected)
        torch.testing.assert_close(run_block(block, tokens), without, rtol=1e-5, atol=1e-5)
    assert (expected - without).abs().max() > 1e-3


# Shards


def _sharded(rank: int, method: str, place: str, rendezvous: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=2)
    pixels = torch.randn(3, 3, 16, 24, generator=torch.Generator().manual_seed(5))
    model, whole = AutoModel.from_pretrained(place), AutoModel.from_pretrained(place)
    mesh = init_device_mesh("cpu", (2,))
    for block in blocks_of(model.backbone):
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    found, expected = (each(pixels, prompted=True, project=True) for each in (model, whole))
    torch.testing.assert_close(found.features, expected.features, rtol=1e-4, atol=1e-5)
    found.bottleneck[:, 0].sum().backward()
    expected.bottleneck[:, 0].sum().backward()
    slopes = {name: value.grad for name, value in model.named_parameters() if value.requires_grad}
    for name, value in whole.named_parameters():
        if value.requires_grad and value.grad is not None:
            torch.testing.assert_close(slopes[name].full_tensor(), value.grad, rtol=1e-3, atol=1e-5)
    gathered = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    if rank == 0:
        whole.save_pretrained(f"{place}-saved", state_dict=gathered)
        again = AutoModel.from_pretrained(f"{place}-saved")
        assert torch.equal(again(pixels, prompted=True).features, whole(pixels, prompted=True).features)
    dist.destroy_process_group()


@some_methods()
def test_shards_of_two_processes_answer_and_learn_as_one(stage_of, method: str, tmp_path: Path) -> None:
    import torch.multiprocessing as mp

    mp.spawn(_sharded, (method, str(stage_of(method)), str(tmp_path / "meet")), 2)
