"""A pretended GPU: tensors that say `cuda:0` and lie in main memory, under the rules of a real one.

It needs neither CUDA nor a compiler. Tensors of two devices in one operation, an index on the wrong device, a CPU
generator for a device tensor, `numpy()` of a device tensor: all raise as on a GPU. What makes the host wait for the
device is recorded with the lines of the package that caused it. Arithmetic is that of the CPU: a run gives the same
bytes as there. Autocast casts nothing; `benchmarks.bench_roofline` adds what it does on CUDA.

How: a tensor subclass with the dispatch keys of CUDA computes on the CPU; kernels for those keys make tensors from
nothing; a device guard lets torch believe in the device. C++ sees a CPU tensor, so that gradients need no device and
run in the thread, and so below the line, that asked for them. Blind to: CUDA's own arithmetic and memory, streams,
`torch.compile`, devices given as integers to torch itself. Tried with torch 2.13; with one that it cannot teach, tests
are skipped (`teachable`). (`pretended_gpu` is another machine: not CUDA, and without float64, as on a Mac.)
"""

import ctypes
import functools
import sys
import threading
import types
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

PACKAGE = "promptccd"
aten = torch.ops.aten
GPU = torch.device("cuda", 0)
INNER = torch.device("cpu")  # where the tensors really lie; "meta" counts kernels without computing them

COPIES = {"copy_", "_to_copy", "copy"}
INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index", "_unsafe_index_put"}
TAKE_HOST_SCALARS = {
    "where", "lerp", "fill_", "fill", "masked_fill", "masked_fill_", "addcmul", "addcdiv", "clamp",
}  # fmt: skip
WAITING = {
    "_local_scalar_dense", "nonzero", "masked_select", "equal", "unique_dim", "unique_consecutive", "_unique",
    "_unique2", "histc", "bincount", "multinomial", "linalg_lstsq", "_linalg_eigh", "_linalg_svd",
    "_linalg_check_errors",
}  # fmt: skip
AUTOCAST = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCUDA)


class Log:
    """What happened on the device.

    Attributes:
        waits: how often the host waited, by reason and lines of the package, innermost first.
        hazards: what works on one machine and not on another, likewise.
        before: called before every operator.
    """

    def __init__(self) -> None:
        self.waits: Counter[tuple[str, tuple[str, ...]]] = Counter()
        self.hazards: Counter[tuple[str, tuple[str, ...]]] = Counter()
        self.before: Callable[..., None] = lambda func, kind, args, kwargs: None


LOG = Log()
_leaving = threading.local()  # `now` while Python asks for a copy on the host
_kept: list[Any] = []


def frames() -> tuple[str, ...]:
    """``file:line:function`` of the package on the stack, innermost first."""
    found, frame = [], sys._getframe(2)
    while frame is not None:
        _, inside, place = frame.f_code.co_filename.rpartition(f"/{PACKAGE}/")
        if inside:
            found.append(f"{place}:{frame.f_lineno}:{frame.f_code.co_name}")
        frame = frame.f_back
    return tuple(found)


class GpuTensor(Tensor):
    """A tensor of the pretended device; `inner` is the same memory as a plain CPU tensor."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> "GpuTensor":
        made = Tensor._make_subclass(cls, inner, False, device_for_backend_keys=GPU)
        made.inner = inner
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl
    device = property(lambda self: GPU)
    is_cuda = property(lambda self: True)
    is_cpu = property(lambda self: False)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return compute(func, args, kwargs or {})

    def numpy(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(f"can't convert {self.device} device type tensor to numpy. Use Tensor.cpu() first.")

    __array__ = numpy

    def tolist(self) -> Any:
        LOG.waits["tolist", frames()] += 1
        return self.inner.tolist()

    def new_tensor(self, data: Any, *, dtype: Any = None, device: Any = None) -> Tensor:
        return torch.tensor(data, dtype=dtype or self.dtype).to(device or self.device)

    def get_device(self) -> int:
        return 0

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        if id(self) not in memo:
            is_parameter = isinstance(self, torch.nn.Parameter)
            memo[id(self)] = _on_gpu(self.inner.detach().clone(), is_parameter, self.requires_grad)
        return memo[id(self)]

    def __reduce_ex__(self, protocol: Any) -> Any:
        LOG.hazards["pickled on the device: unpacked on the same one, wherever that is", frames()] += 1
        return _on_gpu, (self.inner.detach(), isinstance(self, torch.nn.Parameter), self.requires_grad)

    def __repr__(self, **kwargs: Any) -> str:  # type: ignore[override]
        LOG.waits["repr", frames()] += 1
        return f"gpu({self.inner.detach()!r})"

    def __format__(self, spec: str) -> str:
        return format(self.item() if self.ndim == 0 else repr(self), spec)


def _on_gpu(value: Tensor, is_parameter: bool, requires_grad: bool) -> Tensor:
    made = GpuTensor(value)
    return torch.nn.Parameter(made, requires_grad) if is_parameter else made.requires_grad_(requires_grad)


def compute(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Run an operator of which an argument lies on a device, or whose result shall."""
    kind = func._schema.name.partition("::")[2]
    leaves = pytree.tree_leaves((args, kwargs))
    ours = [each for each in leaves if isinstance(each, GpuTensor)]
    others = [each for each in leaves if isinstance(each, Tensor) and not isinstance(each, GpuTensor)]
    # Formulas of gradients ask for the device that C++ sees.
    backwards = bool(ours) and torch._C._current_graph_task_id() != -1
    target = _target(kind, kwargs.get("device"), ours, backwards)
    if target.type == "cuda" and any(isinstance(each, torch.Generator) for each in leaves):
        raise RuntimeError(f"Expected a 'cuda' device type for generator but found 'cpu' ({func})")
    if not backwards and kind not in COPIES:
        _refuse_mixed(func, kind, args, ours, others)
    _note(func, kind, args, kwargs, others, target)
    back: dict[int, Tensor] = {}

    def plain(value: Any) -> Any:
        if isinstance(value, GpuTensor):
            back[id(value.inner)] = value
            return value.inner
        return INNER if isinstance(value, torch.device) and value.type == "cuda" else value

    given = {name: value for name, value in kwargs.items() if name != "pin_memory"}
    with torch._C._ExcludeDispatchKeyGuard(AUTOCAST):
        result = func(*pytree.tree_map(plain, args), **pytree.tree_map(plain, given))

    def ours_again(value: Any) -> Any:
        if not isinstance(value, Tensor) or target.type == "cpu":
            return value
        if id(value) in back:
            return back[id(value)]
        is_host_copy = kind == "copy_" and value is args[0]
        return value if is_host_copy else GpuTensor(value)

    return pytree.tree_map(ours_again, result)


def _target(kind: str, asked: Any, ours: list[GpuTensor], backwards: bool) -> torch.device:
    """Where the result of an operator lies; raises where there is no such device."""
    target = torch.device(asked or (ours[0].device if ours else "cuda"))
    makes = kind.endswith("_like") or kind.startswith("new_")
    leaves_device = (makes and not backwards) or (kind == "_to_copy" and getattr(_leaving, "now", False))
    if ours and target.type in ("cpu", INNER.type) and not leaves_device:
        target = ours[0].device
    if target.type == "cuda" and target.index:
        raise RuntimeError("CUDA error: invalid device ordinal")
    return GPU if target.type == "cuda" else target


def _refuse_mixed(func: Any, kind: str, args: Any, ours: list[Any], others: list[Tensor]) -> None:
    """Raise where CUDA would, for tensors of both devices."""
    if kind in INDEXING and ours:
        if not isinstance(args[0], GpuTensor):
            raise RuntimeError(
                f"indices should be either on cpu or on the same device as the indexed tensor (cpu) ({func})"
            )
        others = [each for each in args[2:3] if not isinstance(each, GpuTensor) and each.ndim]
    is_pointwise = torch.Tag.pointwise in func.tags or kind.startswith("_foreach")
    takes_scalars = is_pointwise or kind in TAKE_HOST_SCALARS
    if ours and any(each.ndim or not takes_scalars for each in others):
        shapes = [tuple(each.shape) for each in others]
        raise RuntimeError(
            "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu! "
            f"({func}, {shapes} on the CPU)"
        )


def _note(
    func: Any, kind: str, args: Any, kwargs: dict[str, Any], others: list[Tensor], target: torch.device
) -> None:
    """Record what an operator costs."""
    LOG.before(func, kind, args, kwargs)
    why: str | None = kind if kind in WAITING else None
    if kind in COPIES:
        why = _why_a_copy_waits(kind, args, kwargs, target)
    elif kind in INDEXING:
        why = _why_an_index_waits(kind, args)
    elif kind == "repeat_interleave" and kwargs.get("output_size") is None:
        why = "repeat_interleave without output_size"
    if why:
        LOG.waits[why, frames()] += 1


def _why_a_copy_waits(kind: str, args: Any, kwargs: dict[str, Any], target: torch.device) -> str | None:
    in_place = kind == "copy_"
    source = args[int(in_place)]
    to_gpu = isinstance(args[0], GpuTensor) if in_place else target.type == "cuda"
    late = args[2] if in_place and len(args) > 2 else kwargs.get("non_blocking", False)
    if isinstance(source, GpuTensor) and not to_gpu:
        if late:
            LOG.hazards["device to host without waiting: may be read too early", frames()] += 1
        return "device to host"
    if not to_gpu or isinstance(source, GpuTensor):
        return None
    if not late:
        return "host to device"
    return None if getattr(source, "_pretend_pinned", False) else "host to device, not pinned"


def _why_an_index_waits(kind: str, args: Any) -> str | None:
    masks = [each for each in args[1] if each is not None and each.dtype in (torch.bool, torch.uint8)]
    fills = kind != "index" and len(args[1]) == 1 and args[2].numel() == 1
    if any(each is not None and not isinstance(each, GpuTensor) for each in args[1]):
        return "index on the host"
    return "index by a mask" if masks and not fills else None


class _Guard(torch._C._acc.DeviceGuard):
    def type_(self) -> Any:
        return torch._C._autograd.DeviceType.CUDA


def operator_named(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(aten, packet), overload or "default")


def _teach_torch() -> None:
    """Once a process: a guard of the device, and kernels for the dispatch keys of CUDA."""
    if _kept:
        return
    import torch._dynamo

    # The engine of gradients starts before it sees a device, for which it makes threads.
    torch.ones((), requires_grad=True).backward()
    guard, library = _Guard(), ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
    torch._C._acc.register_python_privateuseone_device_guard(guard)
    guards = (ctypes.c_void_p * 24).in_dll(library, "_ZN3c104impl26device_guard_impl_registryE")
    guards[1], guards[20] = guards[20], None  # from the place of private devices to that of CUDA
    makers = torch.library.Library("aten", "IMPL")

    def on_gpu(func: Any) -> Callable[..., Any]:
        return lambda *args, **kwargs: compute(func, args, kwargs)

    for full in torch._C._dispatch_get_all_op_names():
        namespace, _, name = full.partition("::")
        if namespace != "aten" or name.startswith("_") or "window" in name or "sparse" in name:
            continue
        arguments = torch._C._get_schema(f"aten::{name.partition('.')[0]}", name.partition(".")[2]).arguments
        takes_tensors = any("Tensor" in str(each.type) for each in arguments)
        if any(each.name == "device" for each in arguments) and not takes_tensors:
            makers.impl(name, on_gpu(operator_named(name)), "CUDA")
    # Of torch.tensor([a, b]).
    makers.impl("_local_scalar_dense", on_gpu(aten._local_scalar_dense.default), "CUDA")
    _kept.extend((guard, library, guards, makers))


def _to(original: Any, self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    if args and isinstance(args[0], Tensor):  # C++ would ask that tensor for its device
        args = (args[0].device, args[0].dtype, *args[1:])
    if not isinstance(self, GpuTensor):
        return original(self, *args, **kwargs)
    device, dtype, _, _ = torch._C._nn._parse_to(*args, **{k: v for k, v in kwargs.items() if k != "copy"})
    dtype, copy = dtype or self.dtype, bool(kwargs.get("copy"))
    if device is None or device.type == "cuda":
        return self if dtype == self.dtype and not copy else original(self, dtype, copy=copy)
    _leaving.now = True
    try:
        late = bool(kwargs.get("non_blocking")) or any(each is True for each in args)
        return aten._to_copy.default(self, dtype=dtype, device=device, non_blocking=late)
    finally:
        _leaving.now = False


def _one_hot(original: Any, tensor: Tensor, num_classes: int = -1) -> Tensor:
    if not isinstance(tensor, GpuTensor) or num_classes < 0:
        return original(tensor, num_classes)
    # CUDA does not check values.
    made = torch.zeros(*tensor.shape, num_classes, dtype=torch.int64, device=tensor.device)
    return made.scatter_(-1, tensor[..., None], 1)


def _quantile(original: Any, self: Tensor, q: Any, *args: Any, **kwargs: Any) -> Tensor:
    if isinstance(self, GpuTensor) and isinstance(q, float):  # C++ would make it on the device that it sees
        q = torch.full((), q, dtype=self.dtype, device=self.device)
    return original(self, q, *args, **kwargs)


def _pinned(self: Tensor, *args: Any) -> Tensor:
    made = self.detach().clone()
    made._pretend_pinned = True  # type: ignore[attr-defined]
    return made


def _patches() -> list[tuple[Any, dict[str, Any]]]:
    """What stands in for functions of torch, by owner."""
    stream = types.SimpleNamespace(
        is_capturing=lambda: False, synchronize=lambda: None, wait_stream=lambda other: None
    )
    cuda = dict.fromkeys(["_lazy_init", "empty_cache", "reset_peak_memory_stats"], lambda *a: None) | {
        "is_available": lambda: True, "is_bf16_supported": lambda *a, **k: True,
        "get_device_name": lambda *a: "pretend GPU", "max_memory_allocated": lambda *a: 0,
    }  # fmt: skip
    accelerator = {
        "is_available": lambda: True, "current_accelerator": lambda *a, **k: torch.device("cuda"),
        "current_stream": lambda *a: stream,
    }  # fmt: skip
    instead = {
        "cuda": lambda self, *a, **k: self.to("cuda", **k),
        "cpu": lambda self, *a, **k: self.to("cpu", **k), "pin_memory": _pinned,
    }  # fmt: skip
    to, quantile, of_tensor = Tensor.to, torch.quantile, Tensor.quantile
    instead["to"] = lambda self, *a, **k: _to(to, self, *a, **k)
    instead["quantile"] = lambda self, *a, **k: _quantile(of_tensor, self, *a, **k)
    functional, one_hot = torch.nn.functional, torch.nn.functional.one_hot
    return [
        (torch.cuda, cuda), (torch.accelerator, accelerator), (Tensor, instead),
        (functional, {"one_hot": functools.partial(_one_hot, one_hot)}),
        (torch, {"quantile": functools.partial(_quantile, quantile)}),
    ]  # fmt: skip


def _forget_answers() -> None:
    """Let transformers ask again whether there is a GPU."""
    for each in vars(sys.modules.get("transformers.utils.import_utils", types)).values():
        getattr(each, "cache_clear", lambda: None)()


@functools.cache
def teachable() -> str:
    """Why this torch cannot be taught the device; empty where it can. It rests on torch's inner parts."""
    try:
        _teach_torch()
    except (AttributeError, ImportError, OSError, RuntimeError, TypeError, ValueError) as error:
        return f"torch {torch.__version__}: {type(error).__name__}: {error}"
    return ""


@contextmanager
def pretend_gpu() -> Iterator[Log]:
    """In this block torch has a GPU; what happened on it stands in the log."""
    global LOG
    _teach_torch()
    LOG, future = Log(), torch.__future__
    moving = future.get_overwrite_module_params_on_conversion(), future.get_swap_module_params_on_conversion()
    optimisers = sys.modules["torch.optim.optimizer"]
    together = optimisers._foreach_supported_types, torch.utils._foreach_utils._foreach_supported_types
    with ExitStack() as patched:
        patched.callback(_forget_answers)  # when all is as it was
        for owner, values in _patches():
            patched.enter_context(mock.patch.multiple(owner, **values))
        # A module that moves keeps its parameters by swapping.
        future.set_overwrite_module_params_on_conversion(True)
        future.set_swap_module_params_on_conversion(True)
        for each in together:  # optimisers take one kernel for many tensors
            each.append(GpuTensor)
        _forget_answers()
        try:
            yield LOG
        finally:
            for each in together:
                each.remove(GpuTensor)
            future.set_overwrite_module_params_on_conversion(moving[0])
            future.set_swap_module_params_on_conversion(moving[1])
