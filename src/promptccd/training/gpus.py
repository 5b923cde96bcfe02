"""Which device computes what: features on a GPU that gives the CPU's answers, groups where there is float64."""

import copy
import logging

import torch

from promptccd.data.randomness import torch_generator
from promptccd.data.views import EvaluationView, normalise
from promptccd.errors import ConfigurationError
from promptccd.models import CategoryDiscoveryModel
from promptccd.models.untrusted import one_line

logger = logging.getLogger(__name__)

_GPUS = ("cuda", "xpu", "mps")  # kinds that are used without being named
_EXACT = ("cpu", "cuda")  # kinds that compute float64, whatever the model of the GPU; others are asked
_ALIKE = (
    0.9999  # cosine of features: another device rounds the seventh digit, a wrong kernel changes the first
)


def reported_gpu() -> str:
    """The kind of GPU that torch finds on this machine, such as ``"cuda"`` or ``"mps"``; empty for none."""
    if not torch.accelerator.is_available():
        return ""
    found = torch.accelerator.current_accelerator()
    return "" if found is None else found.type


def usual_device(gpu: str) -> str:
    """The device that features are computed on unless another one is named; `gpu` is what `reported_gpu` says."""
    return gpu if gpu in _GPUS else "cpu"


def exact_device(device: torch.device) -> torch.device:
    """The device that groups are found on, and models are trained on, where features are computed on this one.

    k-means and mixtures sum in float64, which Apple's GPUs have not, and Intel's not all of them: they are asked.
    """
    if device.type in _EXACT:
        return device
    try:
        exact = torch.ones(1, dtype=torch.float64, device=device).add(1).item() == 2
    except (RuntimeError, TypeError, AssertionError):  # which of them depends on the kind
        exact = False
    return device if exact else torch.device("cpu")


def usual_precision(on_cpu: bool) -> str:
    """What is computed in unless told: ``"bf16"`` on a CUDA GPU that has it in hardware, else ``"no"``."""
    return "bf16" if not on_cpu and torch.cuda.is_available() and has_bf16(torch.device("cuda")) else "no"


def has_bf16(device: torch.device) -> bool:
    """Whether a CPU or a CUDA GPU computes bfloat16 in hardware; also where an older torch cannot tell of a CPU."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    told = getattr(torch.cpu, "get_capabilities", lambda: {"bf16": True})()
    return any(there for name, there in told.items() if "bf16" in name)


def why_on_the_cpu(gpu: str) -> str:
    """Why a training is on the CPU, in a line; `gpu` is what `reported_gpu` says."""
    if not gpu:
        return "No GPU was found: training on the CPU."
    return (
        f"Training on the CPU: k-means and mixtures need float64, which this GPU ({gpu}) has not. discover, predict "
        "and evaluate compute features on it."
    )


def placed(
    model: CategoryDiscoveryModel, view: EvaluationView, device: torch.device
) -> CategoryDiscoveryModel:
    """The model on a device; on the CPU where the device does not give the CPU's features of two pictures of noise.

    CUDA is what all is run on, and is not asked. What is chosen is logged for the others.
    """
    if device.type in _EXACT:
        return model.to(device)
    noise = torch.rand(2, 3, *view.sides, generator=torch_generator("placed"))
    there, problem = copy.deepcopy(model).to(device), ""
    with torch.no_grad():
        wanted = model.eval().features_of(normalise((noise * 255).byte(), view.mean, view.std))
        try:
            pixels = normalise((noise * 255).byte().to(device), view.mean, view.std)
            alike = float((there.eval().features_of(pixels).cpu() * wanted).sum(1).min())
            problem = "" if alike >= _ALIKE else f"it gives other features than the CPU (cosine {alike:.4f})"
        except (RuntimeError, TypeError) as error:  # an operator that it has not
            problem = one_line(error)[:200]
    if problem:
        logger.warning("Features are computed on the CPU and not on %s: %s", device, problem)
        return model
    logger.info(
        "Features are computed on %s, and groups are found on %s, in float64.", device, exact_device(device)
    )
    return there


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
