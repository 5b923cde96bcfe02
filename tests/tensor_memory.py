"""How much memory tensors take at once: what a device would have to hold, whichever machine the tests run on."""

import weakref
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class TensorMemory(TorchDispatchMode):
    """Counts the bytes of tensors that operators make in this block while they live.

    What was there before is not counted, nor what a kernel needs for itself.

    Attributes:
        peak: most bytes at once so far.
    """

    def __init__(self) -> None:
        super().__init__()
        self.peak = self.now = 0
        self._alive: dict[int, weakref.ref[Any]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        tensors = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
        given = {id(each.untyped_storage()) for each in tensors}
        for each in tree_leaves(result):
            if isinstance(each, Tensor) and id(each.untyped_storage()) not in given | self._alive.keys():
                self._count(each.untyped_storage())
        return result

    def _count(self, storage: torch.UntypedStorage) -> None:
        key, size = id(storage), storage.nbytes()

        def freed(_: Any) -> None:
            self.now -= size
            del self._alive[key]

        self._alive[key] = weakref.ref(storage, freed)
        self.now += size
        self.peak = max(self.peak, self.now)
