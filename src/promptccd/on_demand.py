"""Imports that wait until they are needed: torch and transformers take seconds, and ``--help`` needs neither.

A package lists its names as imports under ``if TYPE_CHECKING``, where type checkers read them, too: ``as`` their own
names, which marks them as exported. The same list is its ``__all__``.
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
    """Let a package import its names and modules when they are first used.

    Args:
        package: ``__name__`` of the package; its ``if TYPE_CHECKING`` says where each name comes from.
    """
    sys.modules[package].__class__ = _Package


class _Package(ModuleType):
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
        """Keep the import system, which sets every submodule, from replacing an exported name of the same name."""
        if not (isinstance(value, ModuleType) and name in self._homes()):
            super().__setattr__(name, value)

    def _homes(self) -> dict[str, str]:
        return _imports_for_type_checkers(self.__name__)


@cache
def _imports_for_type_checkers(package: str) -> dict[str, str]:
    """Modules of the exported names."""
    source = get_data(package, "__init__.py") or b""
    blocks = [node for node in ast.parse(source).body if isinstance(node, ast.If)]
    lines = [line for block in blocks for line in block.body if isinstance(line, ast.ImportFrom)]
    return {each.name: line.module or "" for line in lines for each in line.names}


def after_import(module: str, act: Callable[[], object]) -> None:
    """Call something once, as soon as a module has been imported: now, or after a later import.

    The call follows the outermost import that led to the module, so that no module is half imported then.

    Args:
        module: its full name, of one of the packages in `_Waiting.watched`.
        act: called without arguments.
    """
    if module in sys.modules:
        act()
    else:
        _Waiting.of_process().acts.append((module, act))


class _Waiting(MetaPathFinder):
    """Finds no module itself, but notices when the modules that others find are whole.

    A module is whole when its code has run and no import that it is part of is still running: neither one of
    transformers, whose modules import each other half done, nor one of promptccd's, which import transformers.
    """

    watched = ("transformers", "promptccd")

    def __init__(self) -> None:
        self.acts: list[tuple[str, Callable[[], object]]] = []
        self._under_way = threading.local()

    @classmethod
    def of_process(cls) -> "_Waiting":
        """The only one of this process."""
        for each in sys.meta_path:
            if isinstance(each, cls):
                return each
        sys.meta_path.insert(0, made := cls())
        return made

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """What the other finders find, with a loader that notices when the module is done."""
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
