"""A training step of four methods on a GPU, at the sizes of the paper: images per second, and where the time goes.

A ViT-B/14 with random weights at 224 px, 128 images with two views each, at an unlabelled stage: the very objective
and losses that training runs, on views that lie on the device already. Beside them the bare backbone without a
gradient, and the fastest product of two matrices in bfloat16 that the card does: the share of it that a step gets says
what is left to gain.
"""

import copy
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from accelerate.state import AcceleratorState
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode
from transformers import Dinov2Config

from promptccd.methods import Rows, StageContext, method_named
from promptccd.models import CategoryDiscoveryModel
from promptccd.training.devices import accelerator_for
from promptccd.training.fast import FastBlocks
from promptccd.training.options import TrainingArguments

METHODS: dict[str, dict[str, Any]] = {
    "promptccd": {},
    "promptccd-pp": {},
    "promptccd-gcd": {},
    "promptccd-b": {"pool": "l2p"},
}
PRECISIONS = ("no", "bf16")
# How a step is computed: its precision, and that of the frozen blocks.
WAYS = {
    "bf16": ("bf16", "same"),
    "frozen": ("bf16", "bf16"),
    "no": ("no", "same"),
}
COMPONENTS = 100
# What the host waits in for the device, by its name in a profile.
WAITS = (
    "cudaStreamSynchronize",
    "cudaDeviceSynchronize",
    "cudaEventSynchronize",
    "aten::_local_scalar_dense",
)


@dataclass(frozen=True)
class Sizes:
    """Of a step; by default those of the paper."""

    images: int = 128
    side: int = 224
    width: int = 768
    depth: int = 12
    heads: int = 12
    outputs: int = 65536
    steps: int = 10
    square: int = 8192  # of the matrices that are multiplied


SMALL = Sizes(images=4, side=28, width=32, depth=2, heads=4, outputs=64, steps=2, square=64)


def vision_config(sizes: Sizes) -> Dinov2Config:
    """Of a backbone of these sizes."""
    return Dinov2Config(
        image_size=sizes.side, patch_size=14, hidden_size=sizes.width, num_hidden_layers=sizes.depth,
        num_attention_heads=sizes.heads,
    )  # fmt: skip


def model_of(name: str, sizes: Sizes, device: torch.device) -> CategoryDiscoveryModel:
    """A model on a device, before its first unlabelled stage, with what that stage needs of the labelled one."""
    torch.manual_seed(0)
    vision = vision_config(sizes)
    kind = method_named(name).model
    config = kind.config_class(vision_config=vision, projection_output_size=sizes.outputs, **METHODS[name])
    config.stage = 0
    model = kind(config)
    if model.mixture is not None:
        means = F.normalize(torch.randn(COMPONENTS, sizes.width), dim=1)
        cast(Any, model).load_mixture(means, torch.full_like(means, 1e-3), torch.zeros(COMPONENTS))
    model = model.to(device)
    first = copy.deepcopy(model)
    model.begin_discovery(lambda: first)
    return model


def step_of(name: str, way: str, sizes: Sizes, on_cpu: bool) -> tuple[Callable[[], None], Any]:
    """One step as `StageTrainer` takes it, and the model."""
    precision, frozen = WAYS[way]
    AcceleratorState._reset_state(reset_partial_state=True)  # one precision after the other
    arguments = TrainingArguments(mixed_precision=precision, prompt_warmup_epochs=0)  # type: ignore[arg-type]
    accelerator = accelerator_for(arguments, torch.device("cpu" if on_cpu else "cuda"))
    model = model_of(name, sizes, accelerator.device)
    context = StageContext(images=cast(Any, None))  # no objective of these reads images in a step
    objective = method_named(name).objective(model, context, arguments, accelerator, cast(Any, None))
    optimizer = torch.optim.SGD(
        [each for each in model.parameters() if each.requires_grad], 1e-3, momentum=0.9
    )
    wrapped, optimizer = accelerator.prepare(model, optimizer)
    model.train()
    model.backbone.fast_blocks = FastBlocks(model.backbone, frozen)
    pixels = torch.randn(sizes.images, 2, 3, sizes.side, sizes.side, device=accelerator.device)
    positions = torch.arange(sizes.images)
    total = torch.zeros((), device=accelerator.device)

    def step() -> None:
        losses = objective.losses(Rows.of(wrapped, pixels, None, positions, prompted=objective.prompted(0)))
        optimizer.zero_grad()
        accelerator.backward(losses["loss"])
        optimizer.step()
        total.add_(losses["loss"].detach())

    return step, model


def seconds_of(step: Callable[[], object], repeats: int, device: torch.device) -> float:
    """Median seconds of a call whose work is done when it ends; the first two are not counted."""
    found = []
    for number in range(2 + repeats):
        wait(device)
        started = time.perf_counter()
        step()
        wait(device)
        if number >= 2:
            found.append(time.perf_counter() - started)
    return statistics.median(found)


def wait(device: torch.device) -> None:
    """Let the device finish."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def measure_step(name: str, way: str, sizes: Sizes, on_cpu: bool) -> dict[str, float]:
    """Images per second, arithmetic, waits and memory of a step."""
    step, model = step_of(name, way, sizes, on_cpu)
    device = model.device
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    seconds = seconds_of(step, sizes.steps, device)
    with FlopCounterMode(display=False) as counted:
        step()
    waits = waits_of(step, device)
    found = {
        "images_per_s": sizes.images / seconds,
        "teraflops": counted.get_total_flops() / seconds / 1e12,
        "waits_per_step": sum(count for count, _ in waits.values()),
        "waited_ms_per_step": sum(milliseconds for _, milliseconds in waits.values()),
        **{name: count for name, (count, _) in waits.items() if count},
    }
    if device.type == "cuda":
        found["peak_gb"] = torch.cuda.max_memory_allocated(device) / 1e9
    return found


def waits_of(
    step: Callable[[], object], device: torch.device, steps: int = 3
) -> dict[str, tuple[float, float]]:
    """How often and for how many milliseconds the host waits for the device in a step, by what it waits in."""
    kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]

    def counted(times: int) -> dict[str, tuple[int, float]]:
        with profile(activities=kinds) as profiled:
            for _ in range(times):
                step()
        return {
            each.key: (each.count, each.cpu_time_total / 1000)
            for each in profiled.key_averages()
            if each.key in WAITS
        }

    own, found = counted(0), counted(steps)  # the profiler waits where it ends
    return {
        name: ((count - own.get(name, (0, 0.0))[0]) / steps, (spent - own.get(name, (0, 0.0))[1]) / steps)
        for name, (count, spent) in found.items()
        if count > own.get(name, (0, 0.0))[0]
    }


def measure_bare(precision: str, sizes: Sizes, on_cpu: bool) -> dict[str, float]:
    """The plain backbone on both views of as many images, without a gradient."""
    device = torch.device("cpu" if on_cpu else "cuda")
    backbone = model_of("promptccd-gcd", sizes, device).backbone.eval()
    pixels = torch.randn(2 * sizes.images, 3, sizes.side, sizes.side, device=device)

    @torch.no_grad()
    def forward() -> None:
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
            backbone(pixels)

    seconds = seconds_of(forward, sizes.steps, device)
    with FlopCounterMode(display=False) as counted:
        forward()
    return {
        "images_per_s": sizes.images / seconds,
        "teraflops": counted.get_total_flops() / seconds / 1e12,
    }


def measure_peak(sizes: Sizes, on_cpu: bool) -> float:
    """Teraflops of a product of two large matrices in bfloat16."""
    device = torch.device("cpu" if on_cpu else "cuda")
    one, other = (
        torch.randn(sizes.square, sizes.square, device=device, dtype=torch.bfloat16) for _ in range(2)
    )

    def product() -> Tensor:
        return one @ other

    return 2 * sizes.square**3 / seconds_of(product, 2 * sizes.steps, device) / 1e12


def cases() -> list[tuple[str, str]]:
    """Everything that is measured, by method and way; the bare backbone is called ``bare``."""
    return [(name, way) for way in WAYS for name in ("bare", *METHODS) if name != "bare" or way in PRECISIONS]


def measure(name: str, way: str, sizes: Sizes, on_cpu: bool) -> dict[str, float]:
    """The figures of a case."""
    if name == "bare":
        return measure_bare(way, sizes, on_cpu)
    return measure_step(name, way, sizes, on_cpu)


def with_shares(found: dict[str, dict[str, float]], peak: float) -> dict[str, dict[str, float]]:
    """The figures with their shares of the bare backbone of the same precision, and of the peak."""
    return {
        name: {
            **each,
            "share_of_peak": each["teraflops"] / peak,
            "share_of_bare": each["images_per_s"] / found[f"bare {WAYS[name.split()[1]][0]}"]["images_per_s"],
        }
        for name, each in found.items()
    }
