"""Every method on a pretend GPU: nothing lies on the wrong device, the bytes are those of the CPU, no step waits.

About 4 s per method.
"""

import logging
import pickle
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from torch.utils._pytree import tree_leaves

from promptccd import systems
from promptccd.data.loaders import workers_for
from promptccd.errors import ConfigurationError
from promptccd.methods import METHODS, Rows, processes
from promptccd.methods.promptccd import MixtureObjective
from promptccd.runs import train_run
from promptccd.training.devices import accelerator_for, log_device, reproducible, require_plain
from promptccd.training.options import TrainingArguments
from promptccd.training.recipe import Recipe
from promptccd.training.stage_trainer import StageTrainer
from tests.conftest import resumable_recipe
from tests.messages import TEXT
from tests.pretend_device import GpuTensor, pretend_gpu, teachable
from tests.test_own_method import OPTIONS
from tests.test_own_method import TRAINING as USUAL

TRAINING = USUAL | {"pa-cgcd": {"optimizer": "adamw", "learning_rate": 1e-3}}
pytestmark = pytest.mark.skipif(bool(teachable()), reason=f"no pretended GPU: {teachable()}")
ONE_AT_A_TIME = {"metagcd"}  # how many neighbours there are decides what it computes


def trained(name: str, images: Path, backbone: Path, out: Path, **options: object) -> dict[str, bytes]:
    AcceleratorState._reset_state(reset_partial_state=True)
    values = resumable_recipe(images, backbone, out)
    values["model"] |= {"variant": name, **OPTIONS.get(name, {})}
    exact = {"mixed_precision": "no", "num_workers": 0}
    values["training"] |= {"epochs": 2, "learning_rate": 1e-3, **exact, **TRAINING.get(name, {}), **options}
    train_run(Recipe.from_dict(values))
    files = sorted(out.glob("stage*/*.safetensors"))
    return {f"{path.parent.name}/{path.name}": path.read_bytes() for path in files}


# Frozen blocks are run by one piece of code for all methods, whose prompts enter them in three ways.
FROZEN = {"frozen_precision": "bf16"}
COUNTED = {"split_merge": "calibrated", "stream": "paper", "kmeans": "paper"}
CASES: list[tuple[str, dict[str, str]]] = [
    *((name, {}) for name in METHODS),
    *((name, FROZEN) for name in ("promptccd", "promptccd-pp", "promptccd-b")),
    *(("promptccd", {"category_count": how, "count_prior": prior}) for how, prior in COUNTED.items()),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options"), CASES, ids=lambda each: each if isinstance(each, str) else " ".join(each.values())
)
def test_a_gpu_gives_the_bytes_of_the_cpu_and_no_step_waits(
    name: str,
    options: dict,
    image_folder: Path,
    tiny_backbone: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps: Counter[tuple[str, str]] = Counter()
    with pretend_gpu() as log:
        rows_of, backward = StageTrainer._rows, Accelerator.backward
        before = Counter(log.waits)

        def begun(*args: object, **options: object) -> Rows:
            before.clear()
            before.update(log.waits)
            return rows_of(*args, **options)

        def computed(*args: object) -> None:
            waits = (log.waits - before).items()
            steps.update({(why, lines[0] if lines else ""): count for (why, lines), count in waits})
            backward(*args)

        monkeypatch.setattr(StageTrainer, "_rows", begun)
        monkeypatch.setattr(Accelerator, "backward", computed)
        on_gpu = trained(name, image_folder, tiny_backbone, tmp_path / "gpu", **options)
        assert not log.hazards
    monkeypatch.undo()
    assert on_gpu == trained(name, image_folder, tiny_backbone, tmp_path / "cpu", **options)
    # Constants are copied for the first batch.
    often = {key: count for key, count in steps.items() if count > 2}
    assert not often or name in ONE_AT_A_TIME


@pytest.mark.slow
@pytest.mark.parametrize("name", ["promptccd", "grow-merge"])
def test_a_gpu_without_float64_trains_and_hands_features_over_where_groups_are_found(
    name: str, image_folder: Path, tiny_backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Apple's: the pretended one loses float64."""
    monkeypatch.setattr(processes, "EXACT", ("cpu",))

    def refuse(func: object, kind: str, args: object, kwargs: dict[str, object]) -> None:
        leaves = tree_leaves((args, kwargs))
        if any(isinstance(each, GpuTensor) and each.dtype == torch.float64 for each in leaves):
            raise TypeError("Cannot convert a MPS Tensor to float64")

    with pretend_gpu() as log:
        log.before = refuse
        on_gpu = trained(name, image_folder, tiny_backbone, tmp_path / "gpu")
        assert log.waits
    assert on_gpu == trained(name, image_folder, tiny_backbone, tmp_path / "cpu")


def test_a_gpu_is_used_as_it_is_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    def used(precision: str = "auto", device: str | None = None) -> Accelerator:
        AcceleratorState._reset_state(reset_partial_state=True)
        place = None if device is None else torch.device(device)
        return accelerator_for(TrainingArguments(mixed_precision=precision), place)

    monkeypatch.setattr(systems, "available_cores", lambda: 24)
    assert (used().mixed_precision, workers_for(None)) == ("no", 0)
    with pretend_gpu():
        assert workers_for(None) == 8
        monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
        assert (workers_for(None), workers_for(2), workers_for(0)) == (6, 2, 0)
        for launcher, recipe, precision in (
            (None, "auto", "bf16"), ("no", "auto", "bf16"), ("no", "no", "no"), (None, "bf16", "bf16"),
        ):  # fmt: skip
            monkeypatch.delenv("ACCELERATE_MIXED_PRECISION", raising=False)
            if launcher:
                monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", launcher)
            assert used(recipe).mixed_precision == precision
        assert used(device="cuda").device.type == "cuda"  # whichever it is
        assert used(device="cpu").mixed_precision == "no"
        emulated = lambda including_emulation=True: including_emulation  # noqa: E731
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", emulated)
        assert used().mixed_precision == "no"


def test_what_processes_send_each_other_leaves_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pickled tensor would be unpacked on the GPU of the process that it comes from."""
    sent: list[bytes] = []
    monkeypatch.setattr(processes, "place_among_processes", lambda: (0, 2))
    monkeypatch.setattr(
        processes.dist, "broadcast_object_list", lambda box, source: sent.append(pickle.dumps(box))
    )
    with pretend_gpu() as log:
        there = torch.randn(3).cuda()
        found = processes.same_on_all([there, (there, 2), "words"])
        assert not log.hazards
        assert [found[0].device.type, found[1][0].device.type, *found[2:]] == ["cpu", "cpu", "words"]
    ((again, pair, _),) = pickle.loads(sent[0])
    assert torch.equal(again, pair[0]) and pair[1] == 2


def test_a_launcher_that_shards_a_model_is_refused_and_devices_are_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    for kind in ("FSDP", "DEEPSPEED", "MEGATRON_LM", "MULTI_GPU"):
        launched = SimpleNamespace(distributed_type=SimpleNamespace(value=kind), mixed_precision="no")
        if kind != "MULTI_GPU":
            with pytest.raises(ConfigurationError, match=f"asks for {kind}"):
                require_plain(launched)
    require_plain(launched)
    for device in ("cpu", "mps"):
        launched.device = torch.device(device)
        log_device(launched, 0)
    assert caplog.messages == [
        TEXT["training-on-the-cpu"], TEXT["training-on-mps-in-float32-images"],
    ]  # fmt: skip


def test_deterministic_algorithms_are_asked_for_inside_alone_and_stay_as_strict_as_they_were() -> None:
    for wanted in (False, True):
        with reproducible(wanted):
            assert torch.are_deterministic_algorithms_enabled() == wanted
            assert torch.is_deterministic_algorithms_warn_only_enabled() == wanted
            assert torch.backends.cuda.mem_efficient_sdp_enabled() != wanted
        assert not torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        with reproducible(True):
            assert not torch.is_deterministic_algorithms_warn_only_enabled()
        assert torch.are_deterministic_algorithms_enabled()
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.slow
def test_a_run_is_asked_for_the_same_bytes_by_its_recipe(
    image_folder: Path, tiny_backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    loss = MixtureObjective.losses

    def watched(*args: object) -> dict[str, torch.Tensor]:
        attention = torch.backends.cuda.mem_efficient_sdp_enabled(), torch.backends.cuda.flash_sdp_enabled()
        seen.append((torch.are_deterministic_algorithms_enabled(), attention))
        return loss(*args)

    monkeypatch.setattr(MixtureObjective, "losses", watched)
    values = resumable_recipe(image_folder, tiny_backbone, tmp_path / "run")
    values["training"] |= {"epochs": 1, "discovery_epochs": 1, "deterministic": True}
    train_run(Recipe.from_dict(values))
    assert set(seen) == {(True, (False, True))}
