"""The one list of corrections: each is declared where its method is, with the kinds of its arguments.

The page, the Space and the command line read this list. They check what they received by the kinds, and call
``correction.function(project, **arguments)``.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

Method = TypeVar("Method", bound=Callable[..., Any])


class Kind(StrEnum):
    """The kinds of arguments of corrections."""

    CATEGORY = "category"  # an id
    CATEGORY_OR_NONE = "category or none"  # an id, or `None` for no category
    CATEGORIES = "categories"  # a list of ids
    TARGETS = "targets"  # for each of the images an id, or `None`
    IMAGE = "image"  # a key
    IMAGES = "images"  # a list of keys
    NAME = "name"  # text
    FLAG = "flag"  # true or false
    ENTRY = "entry"  # the number of an entry of the log


@dataclass(frozen=True)
class Correction:
    """A correction that anybody who has a project can make.

    Attributes:
        name: of the correction, and of the method of `Project`.
        arguments: kind of every argument, by its name, in the order of the method.
        required: names of the arguments without a default.
        function: the method of `Project`, which takes a project first.
    """

    name: str
    arguments: Mapping[str, Kind]
    required: frozenset[str]
    function: Callable[..., Any]


CORRECTIONS: dict[str, Correction] = {}  # by name, in the order of the declarations


def correction(*kinds: Kind) -> Callable[[Method], Method]:
    """Declare a method of `Project` as a correction whose arguments are of these kinds, in their order."""

    def declare(method: Method) -> Method:
        _, *own = inspect.signature(method).parameters.values()
        arguments = dict(zip((each.name for each in own), kinds, strict=True))
        required = frozenset(each.name for each in own if each.default is each.empty)
        CORRECTIONS[method.__name__] = Correction(method.__name__, arguments, required, method)
        return method

    return declare
