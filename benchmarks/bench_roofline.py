"""What a training step costs on a GPU, counted and not timed: kernels, arithmetic and bytes at the sizes of the paper.

A step at an unlabelled stage, a ViT-B/14 at 224 px, 128 images with two views each, bf16, runs on the meta device under
CUDA's rules of autocast (`tests.pretend_device`); nothing is computed. The roofline gives every kernel the longer of
its arithmetic at the peak of an H100 and its bytes at the bandwidth. No step is faster than their sum, and its share
of peak is a bound.

    python -m benchmarks.bench_roofline
"""

import argparse
import functools
import json
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, cast
from unittest import mock

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry
from transformers import Dinov2Config

from promptccd.data.views import normalise
from promptccd.methods import Rows, StageContext, method_named
from promptccd.models import CategoryDiscoveryModel
from promptccd.training.fast import fast
from promptccd.training.options import TrainingArguments

pretended: Any = import_module("tests.pretend_device")
GpuTensor = pretended.GpuTensor
PEAK = {torch.bfloat16: 990e12, torch.float32: 67e12, torch.float64: 34e12}  # H100 SXM, without TF32
BANDWIDTH = 3.35e12
METHODS: dict[str, dict[str, Any]] = {
    "promptccd": {"num_components": 100},
    "promptccd-pp": {},
    "promptccd-gcd": {},
    "promptccd-b": {"pool": "l2p"},
}
NO_KERNEL = {
    "detach", "_local_scalar_dense", "empty", "empty_like", "empty_strided", "new_empty", "alias", "_unsafe_view",
}  # fmt: skip
# What autocast does on CUDA (ATen/autocast_mode.h); torch's own kernels ask for the real device.
LOWER = (
    "_convolution conv1d conv2d conv3d addmm addmv matmul einsum mm mv linear addbmm baddbmm bmm chain_matmul "
    "linalg_multi_dot scaled_dot_product_attention prelu linalg_vecdot"
)
FULL = (
    "exp expm1 log log10 log2 log1p reciprocal rsqrt pow.Tensor_Scalar pow.Tensor_Tensor pow.Scalar softplus "
    "layer_norm native_layer_norm group_norm rms_norm cosine_similarity nll_loss kl_div l1_loss smooth_l1_loss "
    "mse_loss dist pdist cdist binary_cross_entropy_with_logits renorm logsumexp upsample_bicubic2d "
    "_upsample_bicubic2d_aa upsample_bilinear2d prod prod.dim_int softmax.int log_softmax.int cumprod cumsum "
    "linalg_vector_norm linalg_matrix_norm sum sum.dim_IntList norm.Scalar norm.ScalarOpt_dim acos asin tan"
)
WIDEST = "addcdiv addcmul atan2 bilinear cross dot grid_sampler index_put tensordot scatter_add cat stack"
PRECISIONS = {"as usual": "same", "frozen_precision bf16": "bf16"}


@dataclass
class Kernel:
    """One launch: what it reads and writes, by storage, in bytes.

    Attributes:
        kind: the operator.
        flops: of products and attention; 0 for the rest.
        dtype: that decides the peak.
        reads: bytes by storage.
        writes: likewise.
    """

    kind: str
    flops: float
    dtype: torch.dtype
    reads: dict[int, int]
    writes: dict[int, int]

    @property
    def seconds(self) -> float:
        """At least."""
        moved = sum(self.reads.values()) + sum(self.writes.values())
        return max(self.flops / PEAK.get(self.dtype, PEAK[torch.float32]), moved / BANDWIDTH)


@dataclass
class Count(TorchDispatchMode):
    """The kernels of what runs inside, in order."""

    kernels: list[Kernel] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self._alive: list[Tensor] = []  # so that no storage is named like one of before

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        kind = func._schema.name.partition("::")[2]
        is_view = any(each.alias_info and not each.alias_info.is_write for each in func._schema.returns)
        if not is_view and kind not in NO_KERNEL:
            self._note(func, kind, args, kwargs or {}, out)
        return out

    def _note(self, func: Any, kind: str, args: Any, kwargs: Any, out: Any) -> None:
        read, written = _tensors((args, kwargs)), _tensors(out)
        if not written:
            return
        self._alive += [*read, *written]
        dtype = next((each.dtype for each in read if each.is_floating_point()), torch.float32)
        flops = _flops(func, kind, args, kwargs, out)
        made = Kernel(kind, flops, dtype, _sizes(read), _sizes(written))
        if kind in ("zeros", "new_zeros", "zeros_like", "copy_", "fill_"):
            made.reads = {key: size for key, size in made.reads.items() if key not in made.writes}
        self.kernels.append(made)


def _tensors(values: Any) -> list[Tensor]:
    return [each.inner for each in pytree.tree_leaves(values) if isinstance(each, GpuTensor)]


def _sizes(tensors: Sequence[Tensor]) -> dict[int, int]:
    sizes: dict[int, int] = {}
    for each in tensors:
        key = each.untyped_storage()._cdata
        sizes[key] = max(sizes.get(key, 0), each.numel() * each.element_size())
    return sizes


def _flops(func: Any, kind: str, args: Any, kwargs: Any, out: Any) -> float:
    if kind.startswith("_scaled_dot_product"):
        backward = "backward" in kind
        query, key = args[1:3] if backward else args[:2]
        return 4.0 * query.numel() * key.shape[-2] * (2.5 if backward else 1)
    if func._overloadpacket not in flop_registry:
        return 0.0
    plain = pytree.tree_map(lambda each: each.inner if isinstance(each, GpuTensor) else each, (args, out))
    return float(flop_registry[func._overloadpacket](*plain[0], **kwargs, out_val=plain[1]))


def _attention(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    """What CUDA takes for bfloat16."""
    query, key, value = (each.to(torch.bfloat16) for each in (query, key, value))
    flash = torch.ops.aten._scaled_dot_product_flash_attention.default
    return cast(Tensor, flash(query, key, value, 0.0, False, False, scale=options.get("scale"))[0])


def build(name: str, sizes: dict[str, int]) -> CategoryDiscoveryModel:
    """A model without values on the pretended GPU, at an unlabelled stage."""
    kind = method_named(name).model
    vision = {"model_type": "dinov2", **Dinov2Config(patch_size=14, **sizes).to_dict()}
    with torch.device("meta"):
        model = kind(kind.config_class(vision_config=vision, **METHODS[name]))
    for module in model.modules():
        for key, value in module._parameters.items():
            if value is not None:
                module._parameters[key] = nn.Parameter(GpuTensor(value.data), value.requires_grad)
        for key, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[key] = GpuTensor(buffer)
    return model


def _cast(func: Any, policy: str) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        def counts(value: Any) -> bool:
            return isinstance(value, Tensor) and value.is_floating_point() and value.dtype != torch.float64

        dtypes = [each.dtype for each in pytree.tree_leaves((args, kwargs)) if counts(each)]
        widest = functools.reduce(torch.promote_types, dtypes or [torch.float32])
        dtype = {"lower": torch.get_autocast_dtype("cuda"), "full": torch.float32, "widest": widest}[policy]
        to = lambda value: value.to(dtype) if counts(value) and isinstance(value, GpuTensor) else value  # noqa: E731
        with torch._C._ExcludeDispatchKeyGuard(pretended.AUTOCAST):
            return func(*pytree.tree_map(to, args), **pytree.tree_map(to, kwargs))

    return kernel


@functools.cache
def _teach_autocast() -> torch.library.Library:
    """Once a process: the casts of CUDA, for as long as the library lives."""
    makers = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # kernels of torch are replaced
        for names, policy in ((LOWER, "lower"), (FULL, "full"), (WIDEST, "widest")):
            for name in names.split():
                makers.impl(name, _cast(pretended.operator_named(name), policy), "AutocastCUDA")
    return makers


@contextmanager
def _meta() -> Iterator[None]:
    """The pretended GPU without values, and with CUDA's attention."""
    AcceleratorState._reset_state(reset_partial_state=True)
    _teach_autocast()
    with (
        mock.patch.object(pretended, "INNER", torch.device("meta")),
        mock.patch.object(torch.nn.functional, "scaled_dot_product_attention", _attention),
        pretended.pretend_gpu(),
    ):
        yield


def count_step(name: str, precision: str, images: int, side: int, sizes: dict[str, int]) -> list[Kernel]:
    """The kernels of a step after the first one."""
    with _meta():
        accelerator, model = Accelerator(mixed_precision="bf16"), build(name, sizes)
        model.config.stage = 0
        model.freeze()
        model.begin_discovery(lambda: build(name, sizes))
        objective = method_named(name).objective(
            model, StageContext(images=cast(Any, None)), TrainingArguments(prompt_warmup_epochs=0), accelerator,
            cast(Any, None),
        )  # fmt: skip
        learning = [each for each in model.parameters() if each.requires_grad]
        wrapped, optimizer = accelerator.prepare(model, torch.optim.SGD(learning, lr=0.1, momentum=0.9))
        model.train()
        pixels = GpuTensor(torch.empty(images, 2, 3, side, side, dtype=torch.uint8, device="meta"))
        with fast(model, precision):
            for _ in range(2):
                counted = Count()
                _step(counted, wrapped, objective, optimizer, accelerator, pixels)
    return counted.kernels


def _step(
    counted: Count,
    wrapped: nn.Module,
    objective: Any,
    optimizer: Any,
    accelerator: Accelerator,
    pixels: Tensor,
) -> None:
    with counted:
        positions, prompted = torch.arange(len(pixels)), objective.prompted(1)
        rows = Rows.of(wrapped, normalise(pixels), None, positions, prompted=prompted, epoch=1)
        loss = objective.losses(rows)["loss"]
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()


def figures(kernels: Sequence[Kernel]) -> dict[str, float]:
    """Kernels, arithmetic, bytes, the least time, and the share of peak that it leaves."""
    flops, seconds = sum(each.flops for each in kernels), sum(each.seconds for each in kernels)
    moved = sum(sum(each.reads.values()) + sum(each.writes.values()) for each in kernels)
    return {
        "kernels": len(kernels),
        "teraflop": flops / 1e12,
        "gigabytes": moved / 1e9,
        "milliseconds": 1e3 * seconds,
        "share_of_peak": flops / PEAK[torch.bfloat16] / seconds,
    }


def measure(
    names: Sequence[str], images: int, side: int, sizes: dict[str, int]
) -> dict[str, dict[str, float]]:
    """The figures of methods under all options."""
    found = {}
    for name in names:
        for options, precision in PRECISIONS.items():
            kernels = count_step(name, precision, images, side, sizes)
            found[f"{name}, {options}"] = figures(kernels)
    return found


def main(argv: Sequence[str] | None = None) -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--small", action="store_true", help="sizes to try this itself")
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS), metavar="NAME")
    parser.add_argument("--out", type=Path, help="file for the figures")
    options = parser.parse_args(argv)
    if problem := pretended.teachable():
        parser.exit(message=f"Nothing is counted: there is no pretended GPU ({problem})\n")
    small = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2}
    found = measure(options.methods, *((4, 28, small) if options.small else (128, 224, {})))
    for case, each in found.items():
        print(
            f"{case:44}{each['kernels']:6.0f} kernels {each['teraflop']:6.1f} TFLOP {each['gigabytes']:6.1f} GB "
            f"{each['milliseconds']:6.1f} ms, {each['share_of_peak']:.1%} of peak",
            flush=True,
        )
    if options.out:
        options.out.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
