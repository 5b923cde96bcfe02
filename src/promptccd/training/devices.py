"""Devices: which one computes what and in which precision, processes of a training, failures and memory."""

import copy
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
from promptccd.data.randomness import torch_generator
from promptccd.data.views import EvaluationView, normalise
from promptccd.errors import ConfigurationError, DeviceError, one_line
from promptccd.methods import processes
from promptccd.methods.processes import exact_device
from promptccd.models import CategoryDiscoveryModel
from promptccd.training.options import TrainingArguments

logger = logging.getLogger(__name__)

# How long processes wait for one that works alone: it may pretrain a backbone, or push a stage to a slow Hub. One that
# ends is noticed at once, by the launcher.
PROCESS_TIMEOUT = timedelta(hours=24)
_LOST_DEVICE = ("CUDA error", "cuDNN error", "HIP error", "NCCL error", "MPS error")
ON_THE_CPU = "To train on the CPU, set ACCELERATE_USE_CPU=true before the command"
_LACKING = ("implemented for the", "Could not run 'aten::", "to float64")
_LOADER = ("DataLoader worker", "DataLoader timed out")
_OUR_FAULT = "device-side assert"  # an index out of range: a bug, whichever device notices it
_SHARDING = {"FSDP": "FSDP", "DEEPSPEED": "DeepSpeed", "MEGATRON_LM": "Megatron-LM"}
_GPUS = ("cuda", "xpu", "mps")  # kinds that are used without being named
_ALIKE = 0.9999  # cosine of features: devices differ in the seventh digit, a wrong kernel changes the first


@contextmanager
def reproducible(wanted: bool) -> Iterator[None]:
    """Where wanted, torch uses deterministic algorithms here, and warns where it has none."""
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
    """The failure of a device, in a few words; none for any other error."""
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
            "Give --frozen_precision same and --mixed_precision no, in a new --output_dir.", precision, device,
        )  # fmt: skip


def placed(
    model: CategoryDiscoveryModel, view: EvaluationView, device: torch.device
) -> CategoryDiscoveryModel:
    """The model on a device; on the CPU where the device does not give the CPU's features of two pictures of noise.

    CUDA, on which everything is tested, is not checked; the choice is logged for the others.
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
    """Refuse to train on a device that does not give the CPU's features (`placed`), with a `DeviceError`."""
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
    """A device of this machine, or a `ConfigurationError`; without a name a GPU if there is one."""
    try:
        device = torch.device(name or usual_device(reported_gpu()))
        torch.empty((), device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:  # depends on the build of torch
        raise ConfigurationError(
            f"Cannot compute on {name!r}: {one_line(error)[:200]} Give another device, such as cpu or cuda:0."
        ) from error
    return device


def accelerator_for(arguments: TrainingArguments, device: torch.device | None = None) -> Accelerator:
    """The accelerator of a training; on the CPU where there is no GPU.

    The recipe decides precision and steps, not the environment of a launcher or a job script; a warning names the
    difference. A recipe with precision ``auto`` accepts bf16 from the launcher.
    """
    device = device or torch.device(usual_device(reported_gpu()))
    on_cpu, precision = device.type == "cpu", str(arguments.mixed_precision)
    if precision == "auto":
        launched = os.environ.get("ACCELERATE_MIXED_PRECISION")
        precision = "bf16" if launched == "bf16" else usual_precision(on_cpu)
    remedies = {
        "mixed_precision": (precision, "give --mixed_precision"),
        "gradient_accumulation_steps": ("1", "raise --batch_size instead"),
    }
    for name, (ours, remedy) in remedies.items():
        theirs = os.environ.get(f"ACCELERATE_{name.upper()}", ours)
        if theirs != ours and (name, arguments.mixed_precision) != ("mixed_precision", "auto"):
            logger.warning(
                "The launcher says %s %s, and the recipe %s, which counts: %s.", name, theirs, ours, remedy
            )
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
    """Refuse a launcher or an accelerator that shards the model or accumulates gradients, with a `ConfigurationError`.

    On CPUs Accelerate ignores a launcher's sharding, but transformers loads no weights then except in one process.
    """
    set_by_launcher = [
        name for name in _SHARDING if os.environ.get(f"ACCELERATE_USE_{name}", "").lower() in ("true", "1")
    ]
    for name in (*set_by_launcher, accelerator.distributed_type.value):
        if name in _SHARDING:
            raise ConfigurationError(
                f"The launcher or accelerator asks for {_SHARDING[name]}. Every process trains a whole model: only the "
                "last block learns, and the largest DINO takes 5 GB. Launch several processes without it."
            )
    if (steps := accelerator.gradient_accumulation_steps) != 1:
        raise ConfigurationError(
            f"Expected an accelerator with gradient_accumulation_steps 1, got {steps}: every step changes the weights, "
            f"and its loss would be divided by {steps}. Give another or none, and raise batch_size instead."
        )


def log_device(accelerator: Accelerator, num_workers: int | None) -> None:
    """Log the device, its precision and the number of processes that load images."""
    device, precision = accelerator.device, accelerator.mixed_precision
    if device.type == "cpu":
        why = "Not asked for a GPU" if reported_gpu() else "No GPU was found"
        logger.info("%s: training on the CPU.", why)
        return
    logger.info(
        "Training on %s in %s; images are loaded by %d processes.",
        f"{device} ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else device,
        "float32" if precision == "no" else precision,
        workers_for(num_workers),
    )
