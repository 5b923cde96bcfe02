"""The safetensors files of a checkpoint: held against their model by their headers, before a value is read."""

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from .loading import file_of
from .untrusted import CheckpointError, one_line, read_json, shown

# Twice the largest published DINO: DINOv2 giant has 1,136,480,768 values of four bytes.
MAX_MODEL_BYTES = 2 * 4 * 1_136_480_768
MOST_HEADER_BYTES = 8 * 2**20
MOST_SHARDS = 1_000
DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*\.safetensors")


@dataclass(frozen=True)
class StoredWeights:
    """Tensors of a checkpoint that are described and not read yet.

    Attributes:
        slices: by their names on disk; each is read when it is indexed.
        dtype: of the first of them.
    """

    slices: Mapping[str, Any]
    dtype: torch.dtype

    def described(self) -> dict[str, Tensor]:
        """Tensors of the same names, shapes and dtypes, without memory."""
        return {
            name: torch.empty(part.get_shape(), dtype=DTYPES[part.get_dtype()], device="meta")
            for name, part in self.slices.items()
        }


@contextmanager
def stored_weights(place: str, variant: str | None = None, **look: Any) -> Iterator[StoredWeights]:
    """Open the safetensors of a checkpoint, one file or shards.

    Args:
        place: a folder, or a full repository name.
        variant: part of the files' names, as in ``model.fp16.safetensors``.
        look: how to look, of `promptccd.models.loading.WHERE_TO_LOOK`.

    Raises:
        OSError: the model has none.
        CheckpointError: a header, an index, a dtype or a link is not as ours are.
    """
    middle = f".{variant}" if variant else ""
    whole, index = f"model{middle}.safetensors", f"model.safetensors.index{middle}.json"
    files: dict[str, tuple[str, set[str] | None]]
    path = file_of(place, whole, **look)
    if path is not None:
        files = {whole: (path, None)}
    elif (path := file_of(place, index, **look)) is not None:
        files = _shards(place, read_json(path, f"{index} of {place}"), index, look)
    else:
        raise OSError(
            f"{place} has no {whole}, and nothing else is opened: weights of other formats can run code. Convert them "
            "to safetensors where you trust them."
        )
    with ExitStack() as stack:
        slices: dict[str, Any] = {}
        for name, (file, keys) in files.items():
            slices |= _opened(stack, file, f"{name} of {place}", keys)
        yield StoredWeights(slices, _common_dtype(slices, place))


def require_affordable(model: nn.Module, most_bytes: int, place: str) -> None:
    """Refuse a model by the bytes of its weights, built on the meta device.

    Raises:
        CheckpointError: it needs more than it may.
    """
    needed = sum(tensor.numel() * tensor.element_size() for tensor in _tensors(model).values())
    if needed > most_bytes:
        raise CheckpointError(
            f"The weights of {place} take {needed} bytes, {most_bytes} are allowed. If you trust it and have the "
            "memory, give max_model_bytes."
        )


def require_finite(model: nn.Module, place: str) -> None:
    """Refuse weights that are no numbers.

    Raises:
        CheckpointError: naming the tensor.
    """
    for name, tensor in _tensors(model).items():
        if not torch.isfinite(tensor).all():
            raise CheckpointError(
                f"{name} of {place} holds NaN or infinity: its training diverged, or it was damaged. Use an earlier "
                "stage, or download it again."
            )


@contextmanager
def memory_in_one_line(place: str) -> Iterator[None]:
    """Say plainly that a model does not fit into memory.

    Raises:
        CheckpointError: instead of the error of whoever ran out of it.
    """
    try:
        yield
    except (MemoryError, RuntimeError, OSError) as error:
        if not isinstance(error, MemoryError) and not _is_about_memory(str(error)):
            raise
        raise CheckpointError(
            f"There is not enough memory for the weights of {place}: use a smaller model, or a machine with more."
        ) from error


def _shards(
    place: str, index: Mapping[str, Any], name: str, look: dict[str, Any]
) -> dict[str, tuple[str, set[str] | None]]:
    """Path of every shard, and the tensors that are read from it."""
    placed = index.get("weight_map")
    if not isinstance(placed, dict) or not placed:
        raise CheckpointError(f"{name} of {place} has no weight_map that names a file for every tensor.")
    keys: dict[str, set[str]] = {}
    for key, file in placed.items():
        if not isinstance(file, str) or not _PLAIN_NAME.fullmatch(file):
            raise CheckpointError(f"{name} of {place} names the file {shown(file)}: expected one beside it.")
        keys.setdefault(file, set()).add(key)
    if len(keys) > MOST_SHARDS:
        raise CheckpointError(f"{name} of {place} names {len(keys)} files: expected at most {MOST_SHARDS}.")
    paths = {file: file_of(place, file, **look) for file in keys}
    for file, path in paths.items():
        if path is None:
            raise CheckpointError(
                f"{name} of {place} names {shown(file)}, which is not there: copy it again."
            )
    return {file: (str(paths[file]), keys[file]) for file in keys}


def _opened(stack: ExitStack, path: str, name: str, keys: set[str] | None) -> dict[str, Any]:
    """The tensors of one file; with keys, exactly these must be in it."""
    _require_small_header(path, name)
    try:
        opened = stack.enter_context(safe_open(path, framework="pt"))
        slices = {key: opened.get_slice(key) for key in opened.keys()}  # noqa: SIM118 - it is no mapping
    except (SafetensorError, OSError, RuntimeError, ValueError) as error:
        if _is_about_memory(str(error)):
            raise
        raise CheckpointError(f"{name} is no safetensors file: {one_line(error)}.") from error
    if keys is not None and keys != set(slices):
        odd = sorted(keys ^ set(slices))
        raise CheckpointError(
            f"{name} does not hold what the index says: {shown(odd[0])} is in one of them only."
        )
    for key, part in slices.items():
        if part.get_dtype() not in DTYPES:
            raise CheckpointError(
                f"{shown(key)} in {name} is of type {part.get_dtype()}: expected {', '.join(DTYPES)}. Save it anew "
                "in one of these."
            )
    return slices


def _require_small_header(path: str, name: str) -> None:
    """A header is parsed whole, whatever it says of itself."""
    with open(path, "rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
    if length > min(MOST_HEADER_BYTES, os.path.getsize(path)):
        raise CheckpointError(f"{name} is no safetensors file: its header would be {length} bytes long.")


def _common_dtype(slices: Mapping[str, Any], place: str) -> torch.dtype:
    if not slices:
        raise CheckpointError(f"The safetensors of {place} hold no tensor: copy them again.")
    return DTYPES[next(iter(slices.values())).get_dtype()]


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    return dict(_named(model))


def _named(model: nn.Module) -> Iterable[tuple[str, Tensor]]:
    yield from model.named_parameters()
    yield from model.named_buffers()


def _is_about_memory(message: str) -> bool:
    return any(
        words in message.lower() for words in ("allocate memory", "out of memory", "not enough memory")
    )
