"""Names of a package that are imported when they are first used: torch takes seconds, and ``--help`` does not need it.

A package lists its names under ``if TYPE_CHECKING``, each imported ``as`` itself, as type checkers expect of an export.
"""

import ast
import sys
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pkgutil import get_data
from types import ModuleType
from typing import Any


def give_names_on_demand(package: str) -> None:
    """Let a package, given by its ``__name__``, import its names and modules when they are first used."""
    sys.modules[package].__class__ = _Package


class _Package(ModuleType):
    def __getattr__(self, name: str) -> Any:
        modules = _modules_by_name(self.__name__)
        if name == "__all__":
            return sorted(modules)
        if name in modules:
            value = vars(self)[name] = getattr(import_module(modules[name]), name)
            return value
        if not name.startswith("_") and find_spec(f"{self.__name__}.{name}") is not None:
            return import_module(f"{self.__name__}.{name}")
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute, unless it is a module, set by the import system, and the package exports the same name."""
        if not (isinstance(value, ModuleType) and name in _modules_by_name(self.__name__)):
            super().__setattr__(name, value)


@cache
def _modules_by_name(package: str) -> dict[str, str]:
    blocks = [
        node for node in ast.parse(get_data(package, "__init__.py") or b"").body if isinstance(node, ast.If)
    ]
    lines = [line for block in blocks for line in block.body if isinstance(line, ast.ImportFrom)]
    return {each.name: str(line.module) for line in lines for each in line.names}
