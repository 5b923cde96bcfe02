"""What a window may ask for, from values that anybody may have sent."""

from collections.abc import Callable, Mapping
from typing import Any

from promptccd.discovery.registry_edits import correct
from promptccd.discovery.workbench.corrections import GoneError, Workbench
from promptccd.errors import RegistryError
from promptccd.registry import CategoryRegistry, Confirm, Edit, Merge, Rename


def act_of(bench: Workbench, asked: Mapping[str, Any]) -> Callable[[CategoryRegistry], object]:
    """What a window asked for, as something to do with the categories.

    Raises:
        RegistryError: it is nothing that can be done, or is not said in full.
    """
    try:
        make = ACTS[asked["do"]]
        return lambda registry: make(bench, registry, asked)
    except (KeyError, TypeError) as error:
        raise RegistryError(f"Expected one of {', '.join(ACTS)}, got {str(asked)[:80]}.") from error


def _images(bench: Workbench, asked: Mapping[str, Any]) -> list[str]:
    rows = asked.get("rows")
    if not isinstance(rows, list) or not all(type(row) is int for row in rows):
        raise RegistryError("Expected rows, a list of numbers of photographs.")
    return bench.keys_of(rows, str(asked.get("generation")))


def _answer(bench: Workbench, asked: Mapping[str, Any]) -> Edit:
    images, is_same = _images(bench, asked), asked.get("same")
    if len(set(images)) != 2 or not isinstance(is_same, bool):
        raise RegistryError("Expected two rows, and same to be true or false.")
    return bench.answer_question(images[0], images[1], is_same)


def _number(asked: Mapping[str, Any], name: str) -> int:
    if type(asked.get(name)) is not int:
        raise RegistryError(f"Expected {name}, the number of a group, got {str(asked.get(name))[:40]!r}.")
    return int(asked[name])


def _text(asked: Mapping[str, Any]) -> str | None:
    name = asked.get("name")
    if name is not None and not isinstance(name, str):
        raise RegistryError("Expected name to be a text.")
    return name


def _ids(asked: Mapping[str, Any]) -> list[int]:
    groups = asked.get("groups")
    if not isinstance(groups, list):
        raise RegistryError("Expected groups, a list of their numbers.")
    return [_number({"group": each}, "group") for each in groups]


def _back(registry: CategoryRegistry, asked: Mapping[str, Any], forward: bool) -> None:
    """Take back, or do again, the very thing that a window has shown.

    Raises:
        GoneError: something else happened meanwhile.
    """
    entries = registry.redo_stack if forward else registry.log
    if not entries or entries[-1].number != asked.get("number"):
        raise GoneError(
            "Something else was corrected meanwhile, so nothing was taken back: look, and try again."
        )
    if forward:
        registry.redo()
    else:
        registry.undo()


Act = Callable[[Workbench, CategoryRegistry, Mapping[str, Any]], object]
ACTS: dict[str, Act] = {
    "rename": lambda bench, registry, asked: correct(registry, Rename(_number(asked, "group"), _text(asked) or "")),
    "merge": lambda bench, registry, asked: correct(registry, Merge(_ids(asked), _text(asked))),
    "move": lambda bench, registry, asked: correct(
        registry,
        bench.move(_images(bench, asked), None if asked.get("group") is None else _number(asked, "group")),
    ),
    "gather": lambda bench, registry, asked: correct(registry, bench.gather(_images(bench, asked), _text(asked))),
    "confirm": lambda bench, registry, asked: correct(registry, Confirm(_images(bench, asked))),
    "answer": lambda bench, registry, asked: correct(registry, _answer(bench, asked)),
    "split": lambda bench, registry, asked: correct(registry, bench.split(_number(asked, "group"))),
    "dissolve": lambda bench, registry, asked: correct(registry, bench.dissolve(_number(asked, "group"))),
    "undo": lambda bench, registry, asked: _back(registry, asked, forward=False),
    "redo": lambda bench, registry, asked: _back(registry, asked, forward=True),
}  # fmt: skip
