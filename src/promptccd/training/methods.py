"""The words for every method. Help and lists do not wait for torch: files of methods are read without running them."""

import ast
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path


@dataclass(frozen=True)
class MethodWords:
    """The words for a method, as in `Method`."""

    name: str
    title: str
    summary: str
    published: Mapping[str, str] = field(default_factory=dict)


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
