"""HTML of the app, from templates that escape every name."""

from functools import cache
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

from promptccd.discovery.page import picture_uri
from promptccd.discovery.session import DiscoverySession


def render(template: str, **values: Any) -> str:
    """A part of the page from ``templates/``; every value is escaped, a missing one is an error."""
    return _environment().get_template(template).render(**values)


def thumbnail_uri(session: DiscoverySession, key: str) -> str:
    """A thumbnail of an image as a ``data:`` URI."""
    return picture_uri(session.thumbnail(key))


def percent(share: float) -> str:
    """A share of 1 as a whole number of percent, on one line."""
    return f"{round(100 * share)}\N{NO-BREAK SPACE}%"


def counted(number: int, noun: str, plural: str = "") -> str:
    """``1 image``, ``2 images``."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=ChoiceLoader([PackageLoader("promptccd.app"), PackageLoader("promptccd.reports")]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(percent=percent, counted=counted)
    return environment
