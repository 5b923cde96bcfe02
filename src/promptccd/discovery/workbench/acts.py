"""What a window may ask for, from values that anybody may have sent."""

from collections.abc import Callable, Mapping
from typing import Any

from promptccd.discovery.project import Project, ProjectView
from promptccd.errors import RegistryError
from promptccd.registry import LogEntry

Asked = Mapping[str, Any]


def act_of(view: ProjectView, asked: Asked) -> Callable[[Project], LogEntry]:
    """What a window asked for, as a correction of the project.

    Raises:
        RegistryError: it is no correction, or a value of it is missing.
    """
    do = asked.get("do")
    if not isinstance(do, str) or do not in CORRECTIONS:
        raise RegistryError(f"Expected one of {', '.join(CORRECTIONS)}, got {str(asked)[:80]}.")
    return lambda project: CORRECTIONS[do](project, view, asked)


def _images(view: ProjectView, asked: Asked) -> list[str]:
    rows = asked.get("rows")
    if not isinstance(rows, list) or not all(type(row) is int for row in rows):
        raise RegistryError("Expected rows, a list of numbers of photographs.")
    return view.keys_of(rows, str(asked.get("generation")))


def _move(project: Project, view: ProjectView, asked: Asked) -> LogEntry:
    return project.move(_images(view, asked), None if asked.get("group") is None else _group(asked))


def _answer(project: Project, view: ProjectView, asked: Asked) -> LogEntry:
    images, is_same = _images(view, asked), asked.get("same")
    if len(set(images)) != 2 or not isinstance(is_same, bool):
        raise RegistryError("Expected two rows, and same to be true or false.")
    return project.answer(images[0], images[1], same=is_same)


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


def _number(asked: Asked) -> int:
    """The entry that a window has shown, which alone it takes back or does again."""
    number = asked.get("number")
    return number if type(number) is int else -1


CORRECTIONS: dict[str, Callable[[Project, ProjectView, Asked], LogEntry]] = {
    "rename": lambda project, view, asked: project.rename(_group(asked), _name(asked) or ""),
    "merge": lambda project, view, asked: project.merge(_groups(asked), _name(asked)),
    "move": _move,
    "gather": lambda project, view, asked: project.gather(_images(view, asked), _name(asked)),
    "confirm": lambda project, view, asked: project.confirm(_images(view, asked)),
    "answer": _answer,
    "split": lambda project, view, asked: project.split(_group(asked)),
    "set_aside": lambda project, view, asked: project.set_aside(_group(asked)),
    "set_images_aside": lambda project, view, asked: project.set_images_aside(_images(view, asked)),
    "take_back": lambda project, view, asked: project.take_back(_group(asked)),
    "dissolve": lambda project, view, asked: project.dissolve(_group(asked)),
    "forget": lambda project, view, asked: project.forget(),
    "undo": lambda project, view, asked: project.undo(_number(asked)),
    "redo": lambda project, view, asked: project.redo(_number(asked)),
}
