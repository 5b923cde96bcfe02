"""The accelerator of a training: its device, precision, processes and tracker."""

import logging
import os
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedDataParallelKwargs, GradientAccumulationPlugin, InitProcessGroupKwargs

from promptccd.data.loaders import workers_for
from promptccd.errors import ConfigurationError
from promptccd.training.devices import PROCESS_TIMEOUT, reported_gpu, usual_device, usual_precision
from promptccd.training.options import TrainingArguments

logger = logging.getLogger(__name__)

_SHARDING = {"FSDP": "FSDP", "DEEPSPEED": "DeepSpeed", "MEGATRON_LM": "Megatron-LM"}


def accelerator_for(arguments: TrainingArguments, device: torch.device | None = None) -> Accelerator:
    """The accelerator of a training; on the CPU where there is no GPU.

    The recipe decides precision and steps, whatever a launcher or a job script left in the environment; a warning
    names the difference. A recipe with precision ``auto`` accepts bf16 from the launcher.
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
    """Refuse a launcher or an accelerator that shards the model or accumulates gradients.

    On CPUs Accelerate ignores a launcher's sharding, but transformers loads no weights then except in one process.

    Raises:
        ConfigurationError: the message names the setting and the remedy.
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
