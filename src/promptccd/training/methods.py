"""The words and options of every method, and plugins.

Help and lists do not wait for torch: files of methods are read without running them.
"""

import ast
import sys
from collections.abc import Iterator, Mapping
from dataclasses import Field, dataclass, field, fields
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from promptccd.errors import ConfigurationError


@dataclass(frozen=True)
class MethodWords:
    """The words for a method, as in `Method`."""

    name: str
    title: str
    summary: str
    published: Mapping[str, str] = field(default_factory=dict)


# Fields of a configuration that follow from the backbone, the training or what it found.
_NO_OPTIONS = {
    "vision_config", "precision", "stage", "num_known", "category_ids", "category_names", "count_estimate", "spread",
    "num_classes", "num_components", "num_means", "num_branches", "num_clusters", "component_categories",
    "answer_categories", "count_scale", "class_radius", "known_similarity",
}  # fmt: skip


def method_options(config_class: Any) -> dict[str, Field[Any]]:
    """The fields of a method's configuration that a recipe may set, by name."""
    from transformers import PreTrainedConfig

    other = {item.name for item in fields(PreTrainedConfig)} | _NO_OPTIONS
    return {item.name: item for item in fields(config_class) if item.name not in other}


def load_plugin(place: str) -> None:
    """Run a Python file that registers methods; a second time it does nothing.

    Raises:
        ConfigurationError: there is no such file, its code fails, or it registers no method.
    """
    path = Path(place).expanduser().resolve()
    name = f"promptccd_plugin_{path.stem}"
    if name in sys.modules and sys.modules[name].__file__ == str(path):
        return
    spec = spec_from_file_location(name, path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise ConfigurationError(f"No plugin {place!r}: give a Python file that registers a method.")
    module = sys.modules[name] = module_from_spec(spec)
    from promptccd.methods import register

    try:
        spec.loader.exec_module(module)
        register(module.METHOD)
    except Exception as error:
        del sys.modules[name]
        raise ConfigurationError(
            f"The plugin {place} fails with {type(error).__name__}: {error}. Expected a METHOD = register(Method(...)) "
            "at its end; --debug shows the line of an error."
        ) from error


def words_of_methods() -> dict[str, MethodWords]:
    """The words for every method, by its name: those of this package, and those that others registered."""
    loaded = sys.modules.get("promptccd.methods")
    registered = [
        MethodWords(each.name, each.title, each.summary, each.published)
        for each in (loaded.METHODS.values() if loaded else ())
    ]
    return {each.name: each for each in (*_in_files(), *registered)}


@cache
def _in_files() -> tuple[MethodWords, ...]:
    """The words in every ``METHOD`` of this package; its file is read and not run."""
    files = sorted((Path(__file__).parents[1] / "methods").glob("*.py"))
    return tuple(each for file in files for each in _in_file(ast.parse(file.read_text(encoding="utf-8"))))


def _in_file(module: ast.Module) -> Iterator[MethodWords]:
    wanted = {each.name for each in fields(MethodWords)}
    for line in module.body:
        if isinstance(line, ast.Assign) and ast.unparse(line.targets[0]) == "METHOD":
            arguments = line.value.keywords if isinstance(line.value, ast.Call) else []
            yield MethodWords(
                **{each.arg: ast.literal_eval(each.value) for each in arguments if each.arg in wanted}
            )
