"""Methods, one file each: configuration, model, objective and words. `METHODS` contains the `METHOD` of every file."""

from importlib import import_module
from pkgutil import iter_modules

from promptccd.methods.base import (
    COMMON_PARTS,
    LOSSES,
    METHODS,
    Method,
    Objective,
    StageContext,
    load_plugin,
    method_named,
    register,
)
from promptccd.methods.processes import Rows

for _module in iter_modules(__path__):
    if (_method := getattr(import_module(f"{__name__}.{_module.name}"), "METHOD", None)) is not None:
        register(_method)

__all__ = [
    "COMMON_PARTS",
    "LOSSES",
    "METHODS",
    "Method",
    "Objective",
    "Rows",
    "StageContext",
    "load_plugin",
    "method_named",
    "register",
]
