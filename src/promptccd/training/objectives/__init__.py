"""Methods, a file each: `METHODS` holds the `METHOD` of every module here, and those that others register."""

from importlib import import_module
from pkgutil import iter_modules

from promptccd.errors import ConfigurationError
from promptccd.models import register_variant
from promptccd.training.objectives.contrastive import ContrastiveObjective
from promptccd.training.objectives.objective import Method, Objective, Rows, StageContext

METHODS: dict[str, Method] = {}

# Titles of what every method has; a method declares its own beside them.
PARTS = {"backbone": "last block of the backbone", "head": "projection head"}
LOSSES = {"loss": "loss, all parts", "info_nce": "InfoNCE", "supervised": "supervised contrastive"}


def register(method: Method) -> Method:
    """Make a method known to recipes, cards, tables and checkpoints; returns it.

    Raises:
        ValueError: another method has its name, or its model has no configuration of its own.
    """
    if METHODS.get(method.name, method) is not method:
        raise ValueError(f"There is a method {method.name!r} already: give yours another name.")
    register_variant(method.model)
    METHODS[method.name] = method
    return method


def method_named(name: str) -> Method:
    """The method of a recipe's ``model.variant``.

    Raises:
        ConfigurationError: there is none of that name.
    """
    if name not in METHODS:
        raise ConfigurationError(f"Unknown model.variant {name!r}: expected {' | '.join(METHODS)}.")
    return METHODS[name]


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
