"""Methods, a file each: `METHODS` holds the `METHOD` of every module here, and those that others register."""

from importlib import import_module
from pkgutil import iter_modules

from promptccd.errors import ConfigurationError
from promptccd.training.methods import LOSSES, METHODS, PARTS, Method, load_installed, register
from promptccd.training.objectives.contrastive import ContrastiveObjective
from promptccd.training.objectives.objective import Objective, Rows, StageContext

for _module in iter_modules(__path__):
    if (_method := getattr(import_module(f"{__name__}.{_module.name}"), "METHOD", None)) is not None:
        register(_method)
load_installed()


def method_named(name: str) -> Method:
    """The method of a recipe's ``model.variant``.

    Raises:
        ConfigurationError: there is no such method.
    """
    if name not in METHODS:
        raise ConfigurationError(
            f"Unknown model.variant {name!r}: expected {' | '.join(METHODS)}. --plugin FILE adds a method of yours."
        )
    return METHODS[name]


__all__ = [
    "LOSSES",
    "METHODS",
    "PARTS",
    "ContrastiveObjective",
    "Method",
    "Objective",
    "Rows",
    "StageContext",
    "method_named",
    "register",
]
