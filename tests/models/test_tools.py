"""Tools around a model act: hooks, adapters, offload, devices, quantised weights, shards, wrappers, trainers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import accelerate
import numpy as np
import pytest
import torch
import torch.distributed as dist
from datasets import Dataset
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from transformers import AutoModel

from promptccd import GCDModel
from promptccd.models import CategoryDiscoveryModel
from promptccd.models.backbone import blocks_of
from promptccd.pipeline import CategoryDiscoveryPipeline
from tests.conftest import TINY_HEAD, fresh
from tests.docs.pages import blocks, section
from tests.messages import TEXT
from tests.models.finished import some_methods, write_backbone, write_stage

of_methods = some_methods("promptccd", "promptccd-pp", "promptccd-b-dualprompt")
of_pages = some_methods("promptccd")


@torch.no_grad()
def answers(model: Any, pixels: Tensor) -> list[Tensor]:
    """Prompted, plain and projected features, and the attention of the last block."""
    output = model(pixels, prompted=True, project=True)
    return [
        output.features,
        output.bottleneck,
        model(pixels, prompted=False).features,
        model.attention_row(pixels),
    ]


# Tools that must not change what a model computes: each returns the model, perhaps another one.


def half_in_memory(model: nn.Module, folder: Path, place: Path) -> nn.Module:
    size = sum(each.numel() * each.element_size() for each in model.state_dict().values())
    options = {"device_map": "auto", "max_memory": {"cpu": size // 2}}
    return AutoModel.from_pretrained(place, offload_folder=folder, **options)


def in_wrappers(model: Any, folder: Path, place: Path) -> nn.Module:
    class Wrapped(nn.Module):
        def __init__(self, block: Any):
            super().__init__()
            self.block, self.attention = block, block.attention

        def forward(self, hidden_states: Tensor, **options: Any) -> Tensor:
            return self.block(hidden_states, **options)

    blocks = blocks_of(model.backbone)
    for number, block in enumerate(blocks):
        blocks[number] = Wrapped(block)
    return model


TOOLS: dict[str, Callable[[Any, Path, Path], nn.Module]] = {
    "cpu_offload": lambda model, *_: accelerate.cpu_offload(model, "cpu", offload_buffers=True),
    "loaded_to_disk": lambda model, folder, place: AutoModel.from_pretrained(
        place, offload_folder=folder, device_map={"": "disk"}
    ),
    "half_in_memory": half_in_memory,
    "watched": lambda model, *_: model.apply(
        lambda module: module.register_forward_hook(lambda module, given, found: None)
    ),
    "in_wrappers": in_wrappers,
}


@of_methods
@pytest.mark.parametrize("tool", TOOLS)
def test_values_stay_equal(stage_of, method: str, tool: str, pixels: Tensor, tmp_path: Path) -> None:
    place = stage_of(method)
    plain = fresh(AutoModel, place)
    expected = answers(plain, pixels)
    model = TOOLS[tool](plain, tmp_path, place)
    elsewhere = tool not in ("watched", "in_wrappers")
    assert any(each.is_meta for each in model.parameters()) == elsewhere
    for _ in range(2):
        assert all(map(torch.equal, answers(model, pixels), expected))


# Hooks


@of_methods
def test_hooks_see_and_change_every_block(stage_of, method: str, pixels: Tensor) -> None:
    model = fresh(AutoModel, stage_of(method))
    before = answers(model, pixels)
    whole = model.backbone(pixels, output_hidden_states=True).hidden_states
    for number, block in enumerate(blocks_of(model.backbone)):
        for name in ("", "attention", "attention.k_proj", "mlp", "norm1"):
            seen: list[Tensor] = []

            def see(module: nn.Module, given: Any, found: Any, seen: list[Tensor] = seen) -> None:
                seen.append(found[0] if isinstance(found, tuple) else found)

            handle = block.get_submodule(name).register_forward_hook(see)
            model(pixels, prompted=False)
            handle.remove()
            assert len(seen) == 1 or hasattr(model, "branches"), (number, name)
            if not name:
                assert torch.equal(seen[0], whole[number + 1])
        acting = [*blocks_of(model.backbone)[:-1], model.last_block()][number]
        handle = acting.register_forward_hook(lambda module, given, found: found.flip(-1))
        assert (answers(model, pixels)[0] - before[0]).abs().max() > 1e-3
        handle.remove()
    assert torch.equal(answers(model, pixels)[0], before[0])


# Adapters and quantised weights


@of_methods
def test_adapters_of_peft_are_trained_merged_and_loaded(
    stage_of, method: str, pixels: Tensor, tmp_path: Path
) -> None:
    peft = pytest.importorskip("peft", reason="peft is not installed")
    options = peft.LoraConfig(
        target_modules=r"(backbone|branches)\..*(q_proj|k_proj|v_proj|o_proj|fc1|fc2)",
        init_lora_weights=False,
    )
    plain = fresh(AutoModel, stage_of(method))(pixels, prompted=True).features
    model = peft.get_peft_model(fresh(AutoModel, stage_of(method)), options)
    model(pixels, prompted=True).features.square().sum().backward()
    adapters = {name: value.grad for name, value in model.named_parameters() if "lora_" in name}
    unchanged = [name for name, grad in adapters.items() if grad is None or not grad.any()]
    assert len(adapters) - len(unchanged) == 2 * 6 * 3
    # The static branch rests.
    assert not unchanged or "branches" in dict(model.get_base_model().named_children())
    found = model(pixels, prompted=True).features
    assert (found - plain).abs().max() > 0.01
    model.save_pretrained(tmp_path)
    again = peft.PeftModel.from_pretrained(fresh(AutoModel, stage_of(method)), tmp_path)
    assert torch.equal(again(pixels, prompted=True).features, found)
    merged = model.merge_and_unload()(pixels, prompted=True).features
    torch.testing.assert_close(found, merged, rtol=1e-4, atol=1e-5)


@of_methods
def test_quantised_weights_answer_alike(stage_of, method: str, pixels: Tensor) -> None:
    model = fresh(AutoModel, stage_of(method))
    small = torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)
    one, other = (each(pixels, prompted=True).features for each in (model, small))
    assert not torch.equal(one, other)
    assert torch.cosine_similarity(one, other).min() > 0.99


# What learns, other blocks, and functions of torch


@of_methods
def test_blocks_that_learn_get_their_graph_and_others_none(stage_of, method: str, pixels: Tensor) -> None:
    model = fresh(AutoModel, stage_of(method))
    model.requires_grad_(False)
    assert not model(pixels, prompted=True).features.requires_grad
    first = blocks_of(model.backbone)[0]
    first.requires_grad_(True)
    model(pixels, prompted=True).features.square().sum().backward()
    assert all(each.grad.any() for each in first.parameters())


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


@pytest.mark.moderate
@of_methods
def test_shards_of_two_processes_answer_and_learn_as_one(stage_of, method: str, tmp_path: Path) -> None:
    import torch.multiprocessing as mp

    mp.spawn(_sharded, (method, str(stage_of(method)), str(tmp_path / "meet")), 2)


# transformers' Trainer and peft, by the blocks of docs/how_to/transformers.md, over finished stages


STAGE = "runs/promptccd-digits/stage0"


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], dict[str, Any]]:
    """What the first block leaves, over a stage of a method."""

    def run(method: str) -> dict[str, Any]:
        monkeypatch.chdir(tmp_path)
        write_stage(method, tmp_path / STAGE)
        labels = np.arange(16) % 4
        drawn = np.random.default_rng(0).normal(size=(16, 3, 16, 16)) * 0.3 + labels[:, None, None, None]
        values = {"pixel_values": drawn.astype("float32").tolist(), "labels": labels.tolist()}
        names: dict[str, Any] = {"images": Dataset.from_dict(values).with_format("torch")}
        torch.manual_seed(0)
        exec(written()[0], names)
        return names

    return run


def written() -> list[str]:
    """The two blocks; a run of a test is said nowhere and stays on the CPU."""
    found = blocks(section("Trainer and adapters", "docs/how_to/transformers.md"), "python")
    assert len(found) == 2
    return [each.replace('"out",', '"out", report_to=[], use_cpu=True, disable_tqdm=True,') for each in found]


def learnt(model: CategoryDiscoveryModel, before: CategoryDiscoveryModel) -> set[str]:
    """Parts whose values changed."""
    other = dict(before.named_parameters())
    return {name for name, value in model.named_parameters() if not torch.equal(value, other[name])}


@pytest.mark.slow
@of_pages
def test_a_trainer_trains_saves_and_resumes(page, method: str) -> None:
    names = page(method)
    before, tuned = AutoModel.from_pretrained(STAGE), names["tuned"]
    changed = learnt(tuned, before)
    assert changed and all(dict(before.named_parameters())[name].requires_grad for name in changed)
    pixels = torch.ones(2, 3, 16, 16)
    trained = names["trainer"].model.eval()
    checkpoint = "out/checkpoint-2"
    for place in ("tuned", checkpoint):
        for load in (AutoModel.from_pretrained, type(before).from_pretrained):
            assert torch.equal(load(place)(pixels).features, trained(pixels).features)
        CategoryDiscoveryPipeline.from_pretrained(place)
    anew = AutoModel.from_pretrained(STAGE)
    again = names["Contrastive"](anew, names["arguments"], train_dataset=names["images"])
    again.args.num_train_epochs = 2
    assert again.train(resume_from_checkpoint=checkpoint).global_step == 4


@pytest.mark.slow
@of_pages
def test_adapters_are_trained_kept_and_merged(page, method: str) -> None:
    pytest.importorskip("peft", reason="peft is not installed")
    names = page(method)
    exec(written()[1], names)
    CategoryDiscoveryPipeline.from_pretrained("merged")
    before, merged = AutoModel.from_pretrained(STAGE), AutoModel.from_pretrained("merged")
    changed = learnt(merged, before)
    assert any("layer.0.attention" in name for name in changed)
    assert any("head" in name for name in changed) or not [*before.head.parameters()]
    assert all("_proj.weight" in name or name.startswith("head.") for name in changed)
    pixels = torch.ones(2, 3, 16, 16)
    with torch.no_grad():
        one, other = (
            each(pixels, prompted=True).features for each in (names["adapted"].eval(), merged.eval())
        )
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_a_model_whose_weights_adapters_hold_is_not_saved_as_one(tmp_path: Path) -> None:
    """Those that transformers itself added are saved beside the model, as it does."""
    peft = pytest.importorskip("peft", reason="peft is not installed")
    bare, options = write_backbone("dinov2", tmp_path / "bare"), peft.LoraConfig(target_modules=["q_proj"])
    adapted = GCDModel.from_pretrained(bare, **TINY_HEAD)
    peft.get_peft_model(adapted, options)
    with pytest.raises(ValueError, match=TEXT["has-adapters-and-its-checkpoint-could"]):
        adapted.save_pretrained(tmp_path / "saved")
    assert not (tmp_path / "saved").exists()
    own = GCDModel.from_pretrained(bare, **TINY_HEAD)
    own.add_adapter(options)
    own.save_pretrained(tmp_path / "saved")
    assert {each.name for each in (tmp_path / "saved").glob("adapter_*")} == {
        "adapter_config.json", "adapter_model.safetensors",
    }  # fmt: skip
