"""Devices: which one computes what and in which precision, processes of a training, failures and memory."""

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedDataParallelKwargs, GradientAccumulationPlugin, InitProcessGroupKwargs
from accelerate.utils.memory import should_reduce_batch_size
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from promptccd.data.loaders import workers_for
from promptccd.errors import ConfigurationError, one_line
from promptccd.training.options import TrainingArguments

logger = logging.getLogger(__name__)

# How long processes wait for a process that works alone: it may pretrain a backbone, or push a stage to a slow Hub.
# One that ends is noticed at once, by the launcher.
PROCESS_TIMEOUT = timedelta(hours=24)
_LOST_DEVICE = ("CUDA error", "cuDNN error", "HIP error", "NCCL error", "MPS error")
ON_THE_CPU = "To train on the CPU, set ACCELERATE_USE_CPU=true before the command"
_LACKING = ("implemented for the", "Could not run 'aten::", "to float64")
_LOADER = ("DataLoader worker", "DataLoader timed out")
_OUR_FAULT = "device-side assert"  # an index out of range: a bug, whichever device notices it
_GPUS = ("cuda", "xpu", "mps")  # kinds that are used without being named


@contextmanager
def reproducible(wanted: bool) -> Iterator[None]:
    """Where wanted, torch uses deterministic algorithms here, and warns if unavailable."""
    if not wanted:
        yield
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # CUDA reads it at its first product
    before = torch.are_deterministic_algorithms_enabled()
    warned = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=warned or not before)
    try:
        # The third kind of attention adds up gradients in any order.
        with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]):
            yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warned)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory, of a device or of the machine, ran out."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, Exception) and should_reduce_batch_size(error)


def device_problem(error: BaseException) -> str | None:
    """The failure of a device, in a few words; empty for any other error."""
    if is_out_of_memory(error):
        return "There is too little memory"
    message = str(error)
    if isinstance(error, NotImplementedError | TypeError) and any(word in message for word in _LACKING):
        return f"The GPU lacks what this needs ({message.splitlines()[0][:200]}). {ON_THE_CPU}"
    if isinstance(error, RuntimeError) and message.startswith(_LOADER):
        return "A process that loads images ended or hangs; without such processes the training works: --num_workers 0"
    is_lost = any(word in message for word in _LOST_DEVICE) and _OUR_FAULT not in message
    if isinstance(error, RuntimeError) and is_lost:
        return f"The device was lost ({message.splitlines()[0][:200]})"
    return None


def in_smaller_batches(forward: Callable[[Tensor], Tensor], batch: Tensor) -> Tensor:
    """Rows of a forward without a gradient; where memory runs out, the batch is halved, again and again.

    `forward` maps rows ``(b, ...)`` to rows, each of which depends on its own row alone. Halves may differ from the
    whole in the last bit.
    """
    try:
        return forward(batch)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error) or len(batch) == 1:
            raise
    # Outside of the handler: the error keeps all tensors of the failed forward alive.
    half = len(batch) // 2
    logger.warning("Too little memory for %d images at once: batches have %d now.", len(batch), half)
    return torch.cat([in_smaller_batches(forward, part) for part in (batch[:half], batch[half:])])


def usual_device() -> torch.device:
    """The GPU that torch finds on this machine, or the CPU."""
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return torch.device(found.type if found is not None and found.type in _GPUS else "cpu")


def has_bf16(device: torch.device) -> bool:
    """Whether a CPU or a CUDA GPU computes bfloat16 in hardware; false for other devices."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if device.type != "cpu" or not hasattr(torch.cpu, "get_capabilities"):
        return False
    return any(there for name, there in torch.cpu.get_capabilities().items() if "bf16" in name)


def device_named(name: str | None) -> torch.device:
    """A device of this machine, or a `ConfigurationError`; without a name a GPU if available."""
    try:
        device = torch.device(name) if name else usual_device()
        torch.empty((), device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:  # depends on the build of torch
        raise ConfigurationError(
            f"Cannot compute on {name!r} ({one_line(error, 60)}). Give another device, such as cpu or cuda:0."
        ) from error
    return device


def accelerator_for(arguments: TrainingArguments, device: torch.device | None = None) -> Accelerator:
    """The accelerator of a training; on the CPU where there is no GPU.

    The recipe decides precision and steps, not the environment of a launcher or a job script. A recipe with precision
    ``auto`` accepts bf16 from the launcher, and else means bf16 on a CUDA GPU that has it in hardware.
    """
    device = device or usual_device()
    on_cpu, precision = device.type == "cpu", str(arguments.mixed_precision)
    if precision == "auto":
        is_asked = os.environ.get("ACCELERATE_MIXED_PRECISION") == "bf16"
        precision = "bf16" if is_asked or (device.type == "cuda" and has_bf16(device)) else "no"
    if device.type in ("cuda", "xpu") and device.index is not None:  # Accelerate uses the current device
        torch.get_device_module(device).set_device(device)
    return Accelerator(
        cpu=on_cpu,  # without it, processes of torchrun on CPUs do not find each other
        mixed_precision=precision,
        gradient_accumulation_plugin=GradientAccumulationPlugin(num_steps=1),
        log_with=None if arguments.report_to == "none" else arguments.report_to,
        project_dir=str(Path(arguments.output_dir) / "logs"),
        kwargs_handlers=[
            DistributedDataParallelKwargs(broadcast_buffers=False),
            InitProcessGroupKwargs(timeout=PROCESS_TIMEOUT),
        ],
    )


def require_plain(accelerator: Accelerator) -> None:
    """Refuse a launcher or an accelerator that shards the model, with a `ConfigurationError`."""
    if (name := accelerator.distributed_type.value) in ("FSDP", "DEEPSPEED", "MEGATRON_LM"):
        raise ConfigurationError(
            f"The launcher or accelerator asks for {name}. Every process trains a whole model: only the last block "
            "learns, and the largest DINO takes 5 GB. Launch several processes without it."
        )


def log_device(accelerator: Accelerator, num_workers: int | None) -> None:
    """Log the device, its precision and the number of processes that load images."""
    device, precision = accelerator.device, accelerator.mixed_precision
    if device.type == "cpu":
        logger.info("Training on the CPU.")
        return
    logger.info(
        "Training on %s in %s; images are loaded by %d processes.",
        f"{device} ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else device,
        "float32" if precision == "no" else precision,
        workers_for(num_workers),
    )
