"""Methods, one file each: configuration, model, objective and words. `METHODS` holds the `METHOD` of every file."""

import logging
from importlib import import_module
from importlib.metadata import entry_points
from pkgutil import iter_modules

from promptccd.methods.base import (
    LOSSES,
    METHODS,
    PARTS,
    Method,
    Objective,
    Rows,
    StageContext,
    method_named,
    register,
)
from promptccd.methods.contrastive import ContrastiveObjective

for _module in iter_modules(__path__):
    if (_method := getattr(import_module(f"{__name__}.{_module.name}"), "METHOD", None)) is not None:
        register(_method)
for _entry in entry_points(group="promptccd.methods"):  # of installed packages
    try:
        register(getattr(_entry.load(), "METHOD", None) or _entry.load())
    except Exception as error:  # it must not stop the methods of this package
        logging.getLogger(__name__).warning("The method %s cannot be used: %s", _entry.value, error)

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
