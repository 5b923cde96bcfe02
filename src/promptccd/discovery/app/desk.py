"""What every panel is built on: who is asking, one thing at a time, and messages instead of tracebacks.

What panels show comes from templates that escape every name.
"""

import html
import logging
import re
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

import gradio as gr
from jinja2 import Environment

from promptccd.data.stage_images import Progress
from promptccd.discovery.app.visits import Visit, Visits
from promptccd.discovery.session import DiscoverySession
from promptccd.errors import DataError, PromptCCDError
from promptccd.experiments.pages import templates_of

logger = logging.getLogger(__name__)

EVERY_S = 0.25  # between two looks at the work
SETTLED_S = 2.0  # of work before the time that is left can be estimated
MESSAGE_S = 15  # that an error stays in view
CONTENT_HASH = re.compile(r"\b[0-9a-f]{64}\b")
# Few things that are short at once: a visitor who waits does not hold up the others.
QUIET: Mapping[str, Any] = {"show_progress": "hidden", "api_visibility": "private", "concurrency_limit": 8}
# Whatever runs the model, or changes its categories, waits for its turn.
MODEL: Mapping[str, Any] = {"show_progress": "hidden", "concurrency_id": "model", "concurrency_limit": 1}
Updates = dict[Any, Any]  # by component


def render(template: str, **values: Any) -> str:
    """A part of the page from ``templates/``; every value is escaped, a missing one is an error."""
    return _environment().get_template(template).render(**values)


def percent(share: float) -> str:
    """A share of 1 as a whole number of percent, on one line."""
    return f"{round(100 * share)}\N{NO-BREAK SPACE}%"


def counted(number: int, noun: str, plural: str = "") -> str:
    """``1 image``, ``2 images``."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


@cache
def _environment() -> Environment:
    environment = templates_of("promptccd.discovery.app")
    environment.filters.update(percent=percent, counted=counted)
    return environment


class Panel(Protocol):
    """A part of the page; `show` may update its `outputs`."""

    outputs: list[Any]

    def show(self, visit: Visit) -> Updates:
        """What the panel looks like now."""


class Desk:
    """Knows who is asking: the component `visit_id` holds the id of a visit, ``""`` before one is opened."""

    def __init__(self, visits: Visits, visit_id: gr.State):
        self.visits, self.visit_id = visits, visit_id

    def visit(self, visit_id: str) -> Visit:
        """The visitor's visit, if nothing is going on there.

        Raises:
            DataError: it has not begun, or something takes long there.
            VisitOverError: it is over.
        """
        if not visit_id:
            raise DataError("No images yet: give some in the step “Images” first.")
        found = self.visits.get(visit_id)
        if found.busy:
            raise DataError("Your images are being worked on: wait until that is done, or press “Cancel”.")
        return found

    @contextmanager
    def at(self, visit_id: str) -> Iterator[Visit]:
        """The visitor's visit, held; errors are shown.

        Raises:
            gr.Error: something was not possible.
        """
        with errors_shown():
            visit = self.visit(visit_id)
            with visit.lock, errors_shown(visit.session):
                yield visit


@contextmanager
def errors_shown(session: DiscoverySession | None = None) -> Iterator[None]:
    """Errors inside are shown in the visitor's browser, escaped; bugs of ours go into the log.

    Args:
        session: a message calls its images by their names, and not by the hash of their content.

    Raises:
        StoppedError: the visitor stopped something; whoever did it says so.
        gr.Error: in place of any other exception.
    """

    def name(found: re.Match[str]) -> str:
        stages = session.stages if session else []
        names = [stage.files[found[0]].name for stage in stages if found[0] in stage.files]
        return names[-1] if names else found[0]

    try:
        yield
    except (gr.Error, StoppedError):
        raise
    except Exception as error:
        text = CONTENT_HASH.sub(name, str(error))
        if not isinstance(error, PromptCCDError):
            logger.error("Unexpected error in the app.", exc_info=error)
            text = (
                "Something went wrong on our side. Your images and groups are as they were: try again, or start over "
                "with fewer images."
            )
        raise gr.Error(html.escape(text, quote=False), duration=MESSAGE_S, print_exception=False) from error


class StoppedError(PromptCCDError):
    """The visitor ended what took long; that is no mistake."""


class LateError(PromptCCDError):
    """The clock ended what took long."""


@dataclass(frozen=True)
class Step:
    """How far a piece of work is: so many items of all; `seconds_left` is `None` while it cannot be estimated."""

    label: str
    done: int
    total: int
    seconds_left: float | None

    @property
    def text(self) -> str:
        """One line for people."""
        left = f", about {_in_words(self.seconds_left)} left" if self.seconds_left is not None else ""
        return (
            f"{self.label[:1].upper()}{self.label[1:]}: {round(100 * self.done / max(self.total, 1))} %{left}"
        )


def watched(
    work: Callable[[Progress], Any], stop: threading.Event, most_s: float
) -> Generator[Step, None, None]:
    """Do work in a thread and say how far it is.

    Args:
        work: is given a progress bar to wrap what it goes through, as `promptccd.data.stage_images.Progress`.
        stop: ends the work at the next item.
        most_s: seconds it may take.

    Raises:
        StoppedError: it was stopped.
        LateError: it took too long.
        Exception: whatever the work raised.
    """
    newest: Step | None = None
    deadline = time.monotonic() + most_s

    def progress(items: Iterable[Any], total: int, label: str) -> Iterator[Any]:
        nonlocal newest
        started = time.monotonic()
        for done, item in enumerate(items):
            now = time.monotonic()
            if stop.is_set():
                raise StoppedError("Stopped, as you asked. You can start again when you like.")
            if now > deadline:
                raise LateError(
                    f"This took longer than the {_in_words(most_s)} that one visitor can have here. Give fewer "
                    "images, or run promptccd discover on your own machine."
                )
            is_settled = done and now - started >= SETTLED_S
            newest = Step(label, done, total, (now - started) / done * (total - done) if is_settled else None)
            yield item

    stop.clear()
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(work, progress)
        shown = None
        try:
            while wait([future], EVERY_S).not_done:
                if newest is not None and newest is not shown:
                    shown = newest
                    yield shown
        finally:
            stop.set()  # for a visitor who has left; work that is done does not look
        future.result()


def _in_words(seconds: float) -> str:
    return f"{max(1, round(seconds))} s" if seconds < 90 else f"{round(seconds / 60)} min"
