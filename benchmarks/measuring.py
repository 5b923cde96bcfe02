"""What benchmarks share: their options, and the time and memory that a call takes."""

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

Result = TypeVar("Result")


def options_of(description: str | None, argv: Sequence[str] | None, **defaults: int) -> argparse.Namespace:
    """Whole numbers from the command line, by the names of their defaults."""
    parser = argparse.ArgumentParser(description=description)
    for name, default in defaults.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    return parser.parse_args(argv)


def timed(call: Callable[[], Result]) -> tuple[float, Result]:
    """Wall seconds and result of a call."""
    start = time.perf_counter()
    result = call()
    return time.perf_counter() - start, result


def median_seconds(call: Callable[[], object], rounds: int) -> float:
    """Median wall time of a call."""
    return statistics.median(timed(call)[0] for _ in range(rounds))


def extra_megabytes(call: Callable[[], object]) -> float | None:
    """Peak resident memory of a call above the state before it; None where Linux's counters are missing."""
    status, reset = Path("/proc/self/status"), Path("/proc/self/clear_refs")
    if not (status.exists() and reset.exists()):
        return None

    def kilobytes(name: str) -> int:
        return int(status.read_text().split(f"{name}:")[1].split()[0])

    reset.write_text("5")
    before = kilobytes("VmRSS")
    call()
    return (kilobytes("VmHWM") - before) / 1024
