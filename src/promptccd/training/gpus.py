"""Which device computes what: features on a GPU that gives the CPU's answers, groups where there is float64."""

import copy
import logging

import torch

from promptccd.data.randomness import torch_generator
from promptccd.data.views import EvaluationView, normalise
from promptccd.errors import ConfigurationError, DeviceError, one_line
from promptccd.models import CategoryDiscoveryModel
from promptccd.training.devices import ON_THE_CPU

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
    """The device that groups are found on where features are computed on this one.

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


def has_bf16(device: torch.device, untold: bool = True) -> bool:
    """Whether a CPU or a CUDA GPU computes bfloat16 in hardware; `untold` of others, and where torch cannot tell."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if device.type != "cpu" or not hasattr(torch.cpu, "get_capabilities"):
        return untold
    return any(there for name, there in torch.cpu.get_capabilities().items() if "bf16" in name)


def placed(
    model: CategoryDiscoveryModel, view: EvaluationView, device: torch.device
) -> CategoryDiscoveryModel:
    """The model on a device; on the CPU where the device does not give the CPU's features of two pictures of noise.

    CUDA is what all is run on, and is not asked. What is chosen is logged for the others.
    """
    if device.type in _EXACT:
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
    if model.device.type in _EXACT:
        return
    was_training = model.training
    problem = _unlike(copy.deepcopy(model).cpu().eval(), model, view)
    model.train(was_training)
    if problem:
        raise DeviceError(f"Cannot train on {model.device}: {problem} {ON_THE_CPU}.")


def _unlike(model: CategoryDiscoveryModel, there: CategoryDiscoveryModel, view: EvaluationView) -> str:
    """What is wrong with a device that a copy of the model is on, by two pictures of noise; empty if nothing is."""
    # mutant * to /: black pictures would tell as well
    noise = (torch.rand(2, 3, *view.sides, generator=torch_generator("placed")) * 255).byte()
    with torch.no_grad():
        wanted = model.features_of(normalise(noise, view.mean, view.std))
        try:
            pixels = normalise(noise.to(there.device), view.mean, view.std)
            alike = float((there.eval().features_of(pixels).cpu() * wanted).sum(1).min())
        except (RuntimeError, TypeError) as error:  # an operator that it has not
            return one_line(error)[:200]  # mutant 200 to 201, 200 to 199: as much as one reads
    # mutant >= to >: no device gives just this cosine
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
