"""The safetensors files of a checkpoint, checked by their headers before a value is read."""

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from promptccd.errors import CheckpointError, one_line, shown

from .loading import file_of
from .untrusted import read_json, remedy_of_copy

# Twice the largest published DINO: DINOv2 giant has 1,136,480,768 values of four bytes.
MAX_MODEL_BYTES = 2 * 4 * 1_136_480_768
MOST_HEADER_BYTES = 8 * 2**20
MOST_SHARDS = 1_000
DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*\.safetensors")


@contextmanager
def stored_weights(
    place: str, variant: str | None = None, stem: str = "model", **hub_options: Any
) -> Iterator[tuple[dict[str, Any], torch.dtype]]:
    """Open the safetensors of a checkpoint, one file or shards.

    Args:
        place: a folder, or a full repository name.
        variant: part of the files' names, as in ``model.fp16.safetensors``.
        stem: how the files' names begin.
        hub_options: `promptccd.models.loading.HUB_OPTIONS`.

    Returns:
        Slices of safetensors by key, each of which is read when it is indexed, and the dtype of the first.

    Raises:
        OSError: the model has none.
        CheckpointError: a header, an index, a dtype or a link is not as ours are.
    """
    middle = f".{variant}" if variant else ""
    whole, index = f"{stem}{middle}.safetensors", f"{stem}.safetensors.index{middle}.json"
    files: dict[str, tuple[str, set[str] | None]]
    path = file_of(place, whole, **hub_options)
    if path is not None:
        files = {whole: (path, None)}
    elif (path := file_of(place, index, **hub_options)) is not None:
        files = _shards(place, read_json(path, f"{index} of {place}"), index, hub_options)
    else:
        raise OSError(
            f"{place} has no {whole}, and nothing else is opened: weights of other formats can run code. Convert them "
            "to safetensors where you trust them."
        )
    with ExitStack() as stack:
        slices: dict[str, Any] = {}
        for name, (file, keys) in files.items():
            slices |= _opened(stack, file, f"{name} of {place}", keys)
        if not slices:
            raise CheckpointError(f"The safetensors of {place} hold no tensor: copy them again.")
        yield slices, DTYPES[next(iter(slices.values())).get_dtype()]


def described(slices: Mapping[str, Any]) -> dict[str, Tensor]:
    """Tensors with the names, shapes and dtypes of these slices, on the meta device."""
    return {
        name: torch.empty(part.get_shape(), dtype=DTYPES[part.get_dtype()], device="meta")
        for name, part in slices.items()
    }


def require_affordable(model: nn.Module, most_bytes: int, place: str) -> None:
    """Refuse a model on the meta device if its weights would take more memory than `most_bytes`.

    Raises:
        CheckpointError: they would.
    """
    needed = sum(tensor.numel() * tensor.element_size() for tensor in _tensors(model).values())
    if needed > most_bytes:
        raise CheckpointError(
            f"The weights of {place} take {needed} bytes, {most_bytes} are allowed. If you trust it and have the "
            "memory, give max_model_bytes."
        )


def require_finite(model: nn.Module, slices: Mapping[str, Any], place: str) -> None:
    """Refuse weights that are NaN or infinite.

    Those that were offloaded, and come when they are needed, are read from the checkpoint's `slices`. Tensors with an
    arithmetic of their own, such as integers with a scale, are made of values that were checked by whoever made them.

    Raises:
        CheckpointError: naming the tensor.
    """
    tensors: Mapping[str, Any] = _tensors(model)
    if any(tensor.is_meta for tensor in tensors.values()):
        tensors = {name: tensor for name, tensor in tensors.items() if not tensor.is_meta} | dict(slices)
    for name, tensor in tensors.items():
        # A slice of a file is read by [...].
        values = tensor if isinstance(tensor, Tensor) else tensor[...]
        if not hasattr(values, "__tensor_flatten__") and not torch.isfinite(values).all():
            raise CheckpointError(
                f"{name} of {place} holds NaN or infinity: its training diverged, or it was damaged. Use an earlier "
                "stage, or download it again."
            )


def where_it_fits(device_map: Any, max_memory: Any) -> Any:
    """A device map for transformers that does not split what fits on one device.

    On several GPUs ``"auto"`` splits every model, though the largest DINO takes 5 GB. It does so here only where
    ``max_memory`` says how much there is.
    """
    if max_memory is not None or device_map not in ("auto", "balanced", "balanced_low_0", "sequential"):
        return device_map
    # mutant without check_available=: a build for a GPU that is not there, which no machine of the tests has
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None:
        return {"": "cpu"}
    return {"": f"{accelerator.type}:{torch.accelerator.current_device_index()}"}


@contextmanager
def memory_in_one_line(place: str) -> Iterator[None]:
    """Turn every kind of error about too little memory into one line.

    Raises:
        CheckpointError: instead of that error.
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
    place: str, index: Mapping[str, Any], name: str, hub_options: dict[str, Any]
) -> dict[str, tuple[str, set[str] | None]]:
    """Path of every shard, and the keys that are read from it."""
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
    files: dict[str, tuple[str, set[str] | None]] = {}
    for file, own_keys in keys.items():
        path = file_of(place, file, **hub_options)
        if path is None:
            raise CheckpointError(
                f"{name} of {place} names {shown(file)}, which is not there: copy it again."
            )
        files[file] = (path, own_keys)
    return files


def _opened(stack: ExitStack, path: str, name: str, keys: set[str] | None) -> dict[str, Any]:
    """Slices of one file, which must hold exactly these keys if they are given."""
    _require_small_header(path, name)
    try:
        opened = stack.enter_context(safe_open(path, framework="pt"))
        slices = {key: opened.get_slice(key) for key in opened.keys()}  # noqa: SIM118 - it is no mapping
    except (SafetensorError, OSError, RuntimeError, ValueError) as error:
        if _is_about_memory(str(error)):
            raise
        raise CheckpointError(
            f"{name} is no safetensors file: {one_line(error)}.{remedy_of_copy(path)}"
        ) from error
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
    """Refuse a header that is too long: safetensors parses all of it, however long it claims to be."""
    with open(path, "rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
    if length > min(MOST_HEADER_BYTES, os.path.getsize(path)):
        raise CheckpointError(
            f"{name} is no safetensors file: its header would be {length} bytes long.{remedy_of_copy(path)}"
        )


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def _is_about_memory(message: str) -> bool:
    return any(
        words in message.lower() for words in ("allocate memory", "out of memory", "not enough memory")
    )
