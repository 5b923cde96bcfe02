"""Methods, a file each: `METHODS` holds the `METHOD` of every module here, and those that others register."""

from importlib import import_module
from pkgutil import iter_modules

from promptccd.training.methods import LOSSES, METHODS, PARTS, Method, method_named, register
from promptccd.training.objectives.contrastive import ContrastiveObjective
from promptccd.training.objectives.objective import Objective, Rows, StageContext

for _module in iter_modules(__path__):
    if (_method := getattr(import_module(f"{__name__}.{_module.name}"), "METHOD", None)) is not None:
        register(_method)

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
