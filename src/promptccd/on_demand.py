"""Imports that wait until they are wanted: torch and transformers take seconds, and ``--help`` needs neither.

A package whose names wait lists them as imports under ``if TYPE_CHECKING``, where type checkers read them too: ``as``
their own names, by which those know what the package offers. The same list is its ``__all__``.
"""

import ast
import sys
import threading
from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pkgutil import get_data
from types import ModuleType
from typing import Any


def give_names_on_demand(package: str) -> None:
    """Let a package import its names, and its modules, when they are first asked for.

    Args:
        package: ``__name__`` of the package; its ``if TYPE_CHECKING`` says which name comes from where.
    """
    sys.modules[package].__class__ = _Package


class _Package(ModuleType):
    """A package whose names wait."""

    def __getattr__(self, name: str) -> Any:
        if name == "__all__":
            return sorted(self._homes())
        if not name.startswith("_"):  # as what the import system asks for
            if (home := self._homes().get(name)) is not None:
                value = vars(self)[name] = getattr(import_module(home), name)
                return value
            if find_spec(f"{self.__name__}.{name}") is not None:
                return import_module(f"{self.__name__}.{name}")
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        """The import system puts every module into its package: not over a name that the package gives."""
        if not (isinstance(value, ModuleType) and name in self._homes()):
            super().__setattr__(name, value)

    def _homes(self) -> dict[str, str]:
        """The module of every name."""
        return _imports_for_type_checkers(self.__name__)


@cache
def _imports_for_type_checkers(package: str) -> dict[str, str]:
    source = get_data(package, "__init__.py") or b""
    blocks = [node for node in ast.parse(source).body if isinstance(node, ast.If)]
    lines = [line for block in blocks for line in block.body if isinstance(line, ast.ImportFrom)]
    return {each.name: line.module or "" for line in lines for each in line.names}


def after_import(module: str, act: Callable[[], object]) -> None:
    """Do something once a module has been imported: now, or when somebody imports it.

    It is done when the outermost import that led to the module is over, so that `act` finds nothing half made.

    Args:
        module: its full name, of one of the packages in `_Waiting.watched`.
        act: is called once, without arguments.
    """
    if module in sys.modules:
        act()
    else:
        _Waiting.of_process().acts.append((module, act))


class _Waiting(MetaPathFinder):
    """Finds nothing by itself: it notices when the modules that others find are whole.

    A module is whole when its code has run and no import that it is part of is still under way, be it one of
    transformers, whose modules import each other by halves, or one of ours, which import transformers.
    """

    watched = ("transformers", "promptccd")

    def __init__(self) -> None:
        self.acts: list[tuple[str, Callable[[], object]]] = []
        self._under_way = threading.local()

    @classmethod
    def of_process(cls) -> "_Waiting":
        """The one that this process has."""
        found = [each for each in sys.meta_path if isinstance(each, cls)]
        if not found:
            found = [cls()]
            sys.meta_path.insert(0, found[0])
        return found[0]

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """What the other finders find, its loader telling when it is done."""
        if not self.acts or name.partition(".")[0] not in self.watched:
            return None
        others = [each for each in sys.meta_path if each is not self and hasattr(each, "find_spec")]
        spec = next((found for each in others if (found := each.find_spec(name, path, target))), None)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module
            vars(spec.loader)["exec_module"] = lambda module: self._run(run, module)
        return spec

    def _run(self, run: Callable[[ModuleType], None], module: ModuleType) -> None:
        depth = getattr(self._under_way, "depth", 0)
        self._under_way.depth = depth + 1
        try:
            run(module)
        finally:
            self._under_way.depth = depth
        if depth == 0:
            due = [each for each in self.acts if each[0] in sys.modules]
            for each in due:
                self.acts.remove(each)
            for _, act in due:
                act()
