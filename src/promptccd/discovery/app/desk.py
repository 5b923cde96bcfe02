"""What every panel is built on: who is asking, one thing at a time, and messages instead of tracebacks.

What panels show comes from templates that escape every name.
"""

import html
import logging
import queue
import re
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import cache
from typing import Any

import gradio as gr
from gradio.components import Component
from jinja2 import Environment

from promptccd.data.stage_images import Progress
from promptccd.discovery.app.visits import Visit, Visits
from promptccd.discovery.session import DiscoverySession
from promptccd.errors import DataError, PromptCCDError
from promptccd.experiments.pages import templates_of

EVERY_S = 0.25  # between two looks at the work
SETTLED_S = 2.0  # of work before the time that is left can be estimated


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
    environment = templates_of("promptccd.discovery.app", "promptccd.experiments")
    environment.filters.update(percent=percent, counted=counted)
    return environment


class StoppedError(PromptCCDError):
    """The visitor ended what took long; that is no mistake."""


class LateError(PromptCCDError):
    """The clock ended what took long."""


@dataclass(frozen=True)
class Step:
    """How far a piece of work is.

    Attributes:
        label: what is done.
        done: items behind.
        total: items in all.
        seconds_left: an estimate; `None` while there is too little to go by.
    """

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
    steps: queue.SimpleQueue[Step] = queue.SimpleQueue()
    deadline = time.monotonic() + most_s

    def progress(items: Iterable[Any], total: int, label: str) -> Iterator[Any]:
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
            known = done and now - started >= SETTLED_S
            steps.put(Step(label, done, total, (now - started) / done * (total - done) if known else None))
            yield item

    stop.clear()
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(work, progress)
        try:
            while wait([future], EVERY_S).not_done:
                newest = _newest(steps)
                if newest is not None:
                    yield newest
        finally:
            stop.set()  # for a visitor who has left; work that is done does not look
        future.result()


def _newest(steps: "queue.SimpleQueue[Step]") -> Step | None:
    newest = None
    while not steps.empty():
        newest = steps.get()
    return newest


def _in_words(seconds: float) -> str:
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{round(seconds / 60)} min"


logger = logging.getLogger(__name__)

Updates = dict[Any, Any]
MESSAGE_S, INFO_S = 15, 5
CONTENT_HASH = re.compile(r"\b[0-9a-f]{64}\b")
# Few things that are short at once: a visitor who waits does not hold up the others.
QUIET: Mapping[str, Any] = {"show_progress": "hidden", "api_visibility": "private", "concurrency_limit": 8}
# Whatever runs the model, or changes its categories, waits for its turn.
MODEL: Mapping[str, Any] = {"concurrency_id": "model", "concurrency_limit": 1}


class Panel(ABC):
    """A part of the page.

    Attributes:
        outputs: components that `show` may update.
    """

    outputs: Sequence[Any]

    @abstractmethod
    def show(self, visit: Visit) -> Updates:
        """What the panel looks like now, by component."""


class Desk:
    """Connects buttons to sessions.

    Args:
        visits: all of them.
        visit_id: the component that holds the id of the visit; it is ``""`` before a visit is opened.
    """

    def __init__(self, visits: Visits, visit_id: gr.State):
        self.visits, self.visit_id = visits, visit_id

    def on(
        self,
        trigger: Callable[..., Any],
        act: Callable[..., Any],
        inputs: Sequence[Component] = (),
        *,
        panels: Sequence[Panel] = (),
        model: bool = False,
    ) -> Any:
        """Let an event act on the visitor's session, then show panels anew.

        Args:
            trigger: the event, such as ``button.click``.
            act: takes the visit and the inputs; what it returns, if anything, is shown to the visitor.
            inputs: components.
            panels: shown anew afterwards.
            model: whether it uses the model.
        """

        def answer(visit_id: str, *values: Any) -> Updates:
            return self.run(visit_id, lambda visit: act(visit, *values), panels)

        outputs = [each for panel in panels for each in panel.outputs]
        options = {**QUIET, **(MODEL if model else {})}
        return trigger(answer, [self.visit_id, *inputs], outputs, **options)

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

    def run(self, visit_id: str, act: Callable[[Visit], str | None], panels: Sequence[Panel]) -> Updates:
        """Act on a visitor's session and show panels anew.

        Raises:
            gr.Error: it was not possible; the message is escaped.
        """
        with errors_shown():
            visit = self.visit(visit_id)
            with visit.lock, errors_shown(visit.session):
                said = act(visit)
                shown = merged(panel.show(visit) for panel in panels)
            if said:
                gr.Info(html.escape(said), duration=INFO_S)
            return shown


class errors_shown:
    """Errors inside are shown in the visitor's browser, escaped; bugs of ours go into the log.

    That the visitor stopped something is left to whoever did it.

    Args:
        session: images that a message speaks of by the hash of their content are called by their names there.
    """

    def __init__(self, session: DiscoverySession | None = None):
        self._session = session

    def __enter__(self) -> None:
        """Nothing happens yet."""

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        """Show it.

        Raises:
            gr.Error: in place of any other exception.
        """
        if error is None or not isinstance(error, Exception) or isinstance(error, gr.Error | StoppedError):
            return
        if isinstance(error, PromptCCDError):
            text = CONTENT_HASH.sub(self._name, str(error))
        else:
            logger.error("Unexpected error in the app.", exc_info=error)
            text = (
                "Something went wrong on our side. Your images and groups are as they were: try again, or start "
                "over with fewer images."
            )
        raise gr.Error(html.escape(text, quote=False), duration=MESSAGE_S, print_exception=False) from error

    def _name(self, found: re.Match[str]) -> str:
        stages = self._session.stages if self._session else []
        names = [stage.files[found[0]].name for stage in stages if found[0] in stage.files]
        return names[-1] if names else found[0]


def merged(parts: Iterable[Updates]) -> Updates:
    """Updates of several panels in one."""
    together: Updates = {}
    for part in parts:
        together |= part
    return together


def steps_with_errors_shown(steps: Iterator[Any], session: DiscoverySession) -> Iterator[Any]:
    """The same steps; errors are shown."""
    with errors_shown(session):
        yield from steps
