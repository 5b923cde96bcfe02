"""A pretended GPU: tensors that say they are elsewhere and lie in main memory, and have no float64, as on a Mac.

An operator that gets or gives float64 there is refused, and so is one that gets tensors from here and there. It can
also give wrong numbers, or lack an operator. It changes torch for good, so it is a program of its own: ``python -m
tests.pretended_gpu right '[["predict", ...], ...]'`` runs commands, and its last line says of each how it ended and how
many layers were computed there.
"""

import json
import sys
from collections import Counter
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

KIND = "pretended"
COPIES = ("_to_copy", "copy_")
SEEN: Counter[str] = Counter()


class Elsewhere(Tensor):
    """A tensor of the pretended device; `inner` is the same memory on the CPU."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> "Elsewhere":
        place = {"strides": inner.stride(), "storage_offset": inner.storage_offset()}
        made = Tensor._make_wrapper_subclass(
            cls, inner.size(), dtype=inner.dtype, device=torch.device(KIND, 0), **place
        )
        made.inner = inner
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl

    def new_tensor(self, data: Any, **options: Any) -> Tensor:  # torch makes it without asking Python
        return torch.tensor(data, dtype=self.dtype).to(self.device)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return compute(func, args, kwargs or {})


class Machine(TorchDispatchMode):
    """Where tensors can be made on the pretended device."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return compute(func, args, kwargs or {})


def compute(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    name = func._schema.name.partition("::")[2]
    given = [each for each in pytree.tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
    there = [each for each in given if isinstance(each, Elsewhere)]
    asked = kwargs.get("device")
    to_there = bool(there) if asked is None else torch.device(asked).type == KIND
    if there and name not in COPIES and any(not isinstance(each, Elsewhere) and each.ndim for each in given):
        raise RuntimeError(f"Expected all tensors to be on the same device ({func})")
    here = pytree.tree_map(_inner, (args, kwargs))
    made = func(*here[0], **here[1])
    if there or to_there:
        SEEN[name] += 1
        if any(
            each.dtype == torch.float64
            for each in (*given, *pytree.tree_leaves(made))
            if isinstance(each, Tensor)
        ):
            raise TypeError(f"Cannot convert a tensor to float64: the device has none ({func})")
        if WHAT == "wrong" and name in ("addmm", "mm", "bmm"):
            made = made * torch.linspace(0.5, 1.5, made.shape[-1])
        if WHAT == "lacking" and "norm" in name:
            raise NotImplementedError(f"The operator {func} is not implemented for the device.\nOr so.")
    if name == "copy_":
        return args[0]
    return (
        pytree.tree_map(lambda each: Elsewhere(each) if isinstance(each, Tensor) else each, made)
        if to_there
        else made
    )


def _inner(value: Any) -> Any:
    if isinstance(value, torch.device) and value.type == KIND:
        return torch.device("cpu")
    return value.inner if isinstance(value, Elsewhere) else value


WHAT = sys.argv[1] if __name__ == "__main__" else ""

if __name__ == "__main__":
    _setup_privateuseone_for_python_backend(KIND)
    torch.pretended.get_amp_supported_dtype = lambda: [torch.bfloat16]  # type: ignore[attr-defined]
    from promptccd.cli.main import main
    from promptccd.training import devices

    devices.reported_gpu, devices._GPUS = lambda: KIND, (KIND,)
    ended = []
    for words in json.loads(sys.argv[2]):
        before = SEEN["native_layer_norm"]
        with Machine():
            code = main(words)
        ended.append([code, SEEN["native_layer_norm"] - before])
    print(json.dumps(ended))
