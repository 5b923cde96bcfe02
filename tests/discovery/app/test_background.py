"""Work in the background: how far it is, how it ends, and who is told."""

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("gradio", reason="the page needs gradio: pip install -c constraints.txt gradio")

from promptccd.discovery.app.desk import LateError, Step, StoppedError, watched
from promptccd.errors import DataError

MOST_S = 30.0


class Slow:
    """Goes through a hundred items, a hundredth of a second each, and counts them."""

    def __init__(self) -> None:
        self.done = 0

    def __call__(self, progress: Any) -> None:
        for _ in progress(range(100), 100, "reading images"):
            time.sleep(0.01)
            self.done += 1


def test_work_tells_how_far_it_is_and_finishes() -> None:
    work = Slow()
    steps = list(watched(work, threading.Event(), MOST_S))
    assert work.done == 100
    assert [step.total for step in steps] == [100] * len(steps)
    assert steps
    assert [step.done for step in steps] == sorted({step.done for step in steps})


def test_a_visitor_can_stop_it() -> None:
    work, stop = Slow(), threading.Event()
    with pytest.raises(StoppedError):
        for _ in watched(work, stop, MOST_S):
            stop.set()
    assert 0 < work.done < 100


def test_it_may_not_take_for_ever() -> None:
    work = Slow()
    with pytest.raises(LateError, match="longer than the 1 s"):
        list(watched(work, threading.Event(), 0.3))
    assert 0 < work.done < 100


def test_who_leaves_stops_it() -> None:
    work, stop = Slow(), threading.Event()
    steps = watched(work, stop, MOST_S)
    next(steps)
    steps.close()  # waits for the thread
    done = work.done
    assert done < 100
    time.sleep(0.05)
    assert work.done == done


def test_what_goes_wrong_is_raised_to_whoever_watches() -> None:
    def work(progress: Any) -> None:
        raise DataError("no images")

    with pytest.raises(DataError, match="no images"):
        list(watched(work, threading.Event(), MOST_S))


def test_a_stop_of_earlier_work_is_forgotten() -> None:
    stop = threading.Event()
    stop.set()
    done: list[int] = []

    def work(progress: Any) -> None:
        items: Iterator[int] = progress(range(3), 3, "counting")
        done.extend(items)

    list(watched(work, stop, MOST_S))
    assert done == [0, 1, 2]


@pytest.mark.parametrize(
    ("step", "text"),
    [
        (Step("reading images", 0, 40, None), "Reading images: 0 %"),
        (Step("reading images", 10, 40, 12.4), "Reading images: 25 %, about 12 s left"),
        (Step("computing features", 1, 3, 200.0), "Computing features: 33 %, about 3 min left"),
        (Step("computing features", 0, 0, 0.2), "Computing features: 0 %, about 1 s left"),
    ],
)
def test_steps_in_words(step: Step, text: str) -> None:
    assert step.text == text
