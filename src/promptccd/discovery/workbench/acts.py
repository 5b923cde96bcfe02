"""What a window may ask for, from values that anybody may have sent."""

from collections.abc import Callable, Mapping
from typing import Any

from promptccd.discovery.registry_edits import correct
from promptccd.discovery.workbench.corrections import GoneError, Workbench
from promptccd.errors import RegistryError
from promptccd.registry import CategoryRegistry, Confirm, Edit, Merge, Rename

Asked = Mapping[str, Any]


def act_of(bench: Workbench, asked: Asked) -> Callable[[CategoryRegistry], object]:
    """What a window asked for, as something to do with the categories.

    Raises:
        RegistryError: it is nothing that can be done, or is not said in full.
    """
    do = asked.get("do")
    if do in ("undo", "redo"):
        return lambda registry: _back(registry, asked.get("number"), forward=do == "redo")
    if not isinstance(do, str) or do not in EDITS:
        raise RegistryError(f"Expected one of {', '.join(EDITS)}, undo, redo, got {str(asked)[:80]}.")
    return lambda registry: correct(registry, EDITS[do](bench, asked))


def _back(registry: CategoryRegistry, number: object, *, forward: bool) -> None:
    """Take back, or do again, the very thing that a window has shown.

    Raises:
        GoneError: something else happened meanwhile.
    """
    entries = registry.redo_stack if forward else registry.log
    if not entries or entries[-1].number != number:
        raise GoneError(
            "Something else was corrected meanwhile, so nothing was taken back: look, and try again."
        )
    if forward:
        registry.redo()
    else:
        registry.undo()


def _images(bench: Workbench, asked: Asked) -> list[str]:
    rows = asked.get("rows")
    if not isinstance(rows, list) or not all(type(row) is int for row in rows):
        raise RegistryError("Expected rows, a list of numbers of photographs.")
    return bench.keys_of(rows, str(asked.get("generation")))


def _move(bench: Workbench, asked: Asked) -> Edit:
    to = None if asked.get("group") is None else _group(asked)
    return bench.move(_images(bench, asked), to)


def _answer(bench: Workbench, asked: Asked) -> Edit:
    images, is_same = _images(bench, asked), asked.get("same")
    if len(set(images)) != 2 or not isinstance(is_same, bool):
        raise RegistryError("Expected two rows, and same to be true or false.")
    return bench.answer_question(images[0], images[1], is_same)


def _group(asked: Asked) -> int:
    group = asked.get("group")
    if type(group) is not int:
        raise RegistryError(f"Expected group, the number of a group, got {str(group)[:40]!r}.")
    return group


def _groups(asked: Asked) -> list[int]:
    groups = asked.get("groups")
    if not isinstance(groups, list):
        raise RegistryError("Expected groups, a list of their numbers.")
    return [_group({"group": each}) for each in groups]


def _name(asked: Asked) -> str | None:
    name = asked.get("name")
    if name is not None and not isinstance(name, str):
        raise RegistryError("Expected name to be a text.")
    return name


EDITS: dict[str, Callable[[Workbench, Asked], Edit]] = {
    "rename": lambda bench, asked: Rename(_group(asked), _name(asked) or ""),
    "merge": lambda bench, asked: Merge(_groups(asked), _name(asked)),
    "move": _move,
    "gather": lambda bench, asked: bench.gather(_images(bench, asked), _name(asked)),
    "confirm": lambda bench, asked: Confirm(_images(bench, asked)),
    "answer": _answer,
    "split": lambda bench, asked: bench.split(_group(asked)),
    "dissolve": lambda bench, asked: bench.dissolve(_group(asked)),
}
