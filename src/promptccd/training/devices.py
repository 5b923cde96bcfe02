"""Devices: which one computes what and in which precision, their failures, and memory that runs out."""

import copy
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
from accelerate.utils.memory import should_reduce_batch_size
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from promptccd.data.randomness import torch_generator
from promptccd.data.views import EvaluationView, normalise
from promptccd.errors import ConfigurationError, DeviceError, one_line
from promptccd.methods import processes
from promptccd.methods.processes import exact_device
from promptccd.models import CategoryDiscoveryModel

logger = logging.getLogger(__name__)

# How long processes wait for one that works alone: it may pretrain a backbone, or push a stage to a slow Hub. One that
# ends is noticed at once, by the launcher.
PROCESS_TIMEOUT = timedelta(hours=24)
_LOST_DEVICE = ("CUDA error", "cuDNN error", "HIP error", "NCCL error", "MPS error")
ON_THE_CPU = "To train on the CPU, set ACCELERATE_USE_CPU=true before the command"
_LACKING = ("implemented for the", "Could not run 'aten::", "to float64")
_LOADER = ("DataLoader worker", "DataLoader timed out")
_OUR_FAULT = "device-side assert"  # an index out of range: a bug, whichever device notices it
_GPUS = ("cuda", "xpu", "mps")  # kinds that are used without being named
_ALIKE = (
    0.9999  # cosine of features: another device rounds the seventh digit, a wrong kernel changes the first
)


@contextmanager
def reproducible(wanted: bool) -> Iterator[None]:
    """Where wanted, torch takes algorithms here that give the same bytes again, and warns where it has none."""
    if not wanted:
        yield
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # CUDA reads it at its first product
    before, warned = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
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
    """The failure of a device, in a few words; none for any other error."""
    if is_out_of_memory(error):
        return "There is too little memory"
    message = str(error)
    if isinstance(error, NotImplementedError | TypeError) and any(word in message for word in _LACKING):
        return f"The GPU lacks what this needs ({message.splitlines()[0][:200]}). {ON_THE_CPU}"
    if isinstance(error, RuntimeError) and message.startswith(_LOADER):
        return "A process that loads images ended or hangs; without such processes the training works: --num_workers 0"
    if (
        isinstance(error, RuntimeError)
        and any(word in message for word in _LOST_DEVICE)
        and _OUR_FAULT not in message
    ):
        return f"The device was lost ({message.splitlines()[0][:200]})"
    return None


def in_smaller_batches(forward: Callable[[Tensor], Tensor], batch: Tensor) -> Tensor:
    """Rows of a forward without a gradient; where memory runs out, the batch is halved, again and again.

    Args:
        forward: rows ``(b, ...)`` to rows ``(b, ...)``, each of which depends on its own row alone.
        batch: ``(B, ...)``.

    Returns:
        ``(B, ...)``. Halves may differ from the whole in the last bit.
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


def reported_gpu() -> str:
    """The kind of GPU that torch finds on this machine, such as ``"cuda"`` or ``"mps"``; empty for none."""
    if not torch.accelerator.is_available():
        return ""
    found = torch.accelerator.current_accelerator()
    return "" if found is None else found.type


def usual_device(gpu: str) -> str:
    """The device that features are computed on unless another one is named; `gpu` is that of `reported_gpu`."""
    return gpu if gpu in _GPUS else "cpu"


def usual_precision(on_cpu: bool) -> str:
    """Precision by default: ``"bf16"`` on a CUDA GPU that has it in hardware, else ``"no"``."""
    return "bf16" if not on_cpu and torch.cuda.is_available() and has_bf16(torch.device("cuda")) else "no"


def has_bf16(device: torch.device, otherwise: bool = True) -> bool:
    """Whether a CPU or a CUDA GPU computes bfloat16 in hardware; `otherwise` of others, and where torch cannot tell."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if device.type != "cpu" or not hasattr(torch.cpu, "get_capabilities"):
        return otherwise
    return any(there for name, there in torch.cpu.get_capabilities().items() if "bf16" in name)


def warn_of_emulation(precision: str, device: torch.device) -> None:
    """Warn of a device that lacks this ``frozen_precision`` in hardware."""
    if precision == "bf16" and not has_bf16(device):
        logger.warning(
            "frozen_precision %s: %s has no bfloat16 in hardware, and steps take several times as long as in float32. "
            "Give --frozen_precision same and --mixed_precision no, in a new --output_dir.",
            precision,
            device,
        )


def placed(
    model: CategoryDiscoveryModel, view: EvaluationView, device: torch.device
) -> CategoryDiscoveryModel:
    """The model on a device; on the CPU where the device does not give the CPU's features of two pictures of noise.

    CUDA is what all is run on, and is not asked. What is chosen is logged for the others.
    """
    if device.type in processes.EXACT:
        return model.to(device)
    there = copy.deepcopy(model).to(device)
    if problem := _unlike(model.eval(), there, view):
        logger.warning("Features are computed on the CPU and not on %s: %s", device, problem)
        return model
    logger.info(
        "Features are computed on %s, and groups are found on %s, in float64.", device, exact_device(device)
    )
    return there


def require_alike(model: CategoryDiscoveryModel, view: EvaluationView) -> None:
    """Ask the device of a model that is about to be trained whether it gives the CPU's features, as `placed` does.

    Raises:
        DeviceError: it does not.
    """
    if model.device.type in processes.EXACT:
        return
    was_training = model.training
    problem = _unlike(copy.deepcopy(model).cpu().eval(), model, view)
    model.train(was_training)
    if problem:
        raise DeviceError(f"Cannot train on {model.device}: {problem} {ON_THE_CPU}.")


def _unlike(model: CategoryDiscoveryModel, there: CategoryDiscoveryModel, view: EvaluationView) -> str:
    """What is wrong with a device that a copy of the model is on, by two pictures of noise; empty if nothing is."""
    noise = (torch.rand(2, 3, *view.sides, generator=torch_generator("placed")) * 255).byte()
    with torch.no_grad():
        wanted = model.features_of(normalise(noise, view.mean, view.std))
        try:
            pixels = normalise(noise.to(there.device), view.mean, view.std)
            alike = float((there.eval().features_of(pixels).cpu() * wanted).sum(1).min())
        except (RuntimeError, TypeError) as error:  # an operator that it has not
            return one_line(error)[:200]
    return "" if alike >= _ALIKE else f"it gives other features than the CPU (cosine {alike:.4f})."


def device_named(name: str | None) -> torch.device:
    """A device of this machine; without a name a GPU if there is one.

    Raises:
        ConfigurationError: there is no such device.
    """
    try:
        device = torch.device(name or usual_device(reported_gpu()))
        torch.empty((), device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:  # depends on the build of torch
        raise ConfigurationError(
            f"Cannot compute on {name!r}: {one_line(error)[:200]} Give another device, such as cpu or cuda:0."
        ) from error
    return device
