"""Line charts as numbers: places of points, for the macros of ``charts.html.jinja`` that draw them as SVG.

Coordinates are in units of the drawing, which is `WIDTH` wide and scaled by the page. Series differ in colour and
mark, for readers who cannot tell colours apart.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

WIDTH, HEIGHT = 360, 210
LEFT, RIGHT, TOP, BOTTOM = 44, 10, 10, 34
DODGE, FEW_POINTS = 3.0, 12  # shift between lines of at most so many points
ROOM_TO_DODGE = 18.0  # between the first and the last of these lines: so that every line stays in the drawing
NICE_TICKS, WHOLE_TICKS = 5, 8  # most steps between the values at an axis
NUM_STYLES = 10  # colours of the style sheet, each with a mark and a dash
FEWEST_ON_MAP = 3  # images; a map of fewer says nothing


class AxisTick(NamedTuple):
    """A labelled place on an axis."""

    at: float
    label: str


class Point(NamedTuple):
    """A place on the drawing with its tooltip, and the ends of an error bar."""

    x: float
    y: float
    text: str
    low: float | None = None
    high: float | None = None


class Series(NamedTuple):
    """A line, or the points of a group; styles from `NUM_STYLES` on repeat the colours with other marks."""

    name: str
    style: int
    points: list[Point]


@dataclass(frozen=True)
class Chart:
    """A drawing for the macro ``lines``."""

    label: str
    x_label: str
    y_label: str
    x_ticks: list[AxisTick]
    y_ticks: list[AxisTick]
    series: list[Series]
    width: ClassVar = WIDTH
    height: ClassVar = HEIGHT
    base: ClassVar = HEIGHT - BOTTOM  # of the horizontal axis


def line_chart(
    label: str,
    series: Mapping[str, Sequence[Sequence[float]]],
    *,
    x_label: str,
    y_label: str,
    y_least: float = -math.inf,
    y_most: float = math.inf,
    least_step: float = 0.0,
) -> Chart:
    """Lines through points ``(x, y)`` or ``(x, y, deviation)`` with whole x; points without finite y are left out.

    Neither the vertical axis nor deviations exceed `y_least` and `y_most`; steps of that axis are at least
    `least_step`. `label` is for readers who cannot see the drawing.
    """
    points = {
        name: [(x, y, _deviation(*more)) for x, y, *more in each if math.isfinite(y)]
        for name, each in series.items()
    }
    flat = [point for each in points.values() for point in each]
    xs = [x for x, _, _ in flat] or [0.0]

    def limits(y: float, deviation: float) -> tuple[float, float]:
        return max(y - deviation, y_least), min(y + deviation, y_most)

    ends = [end for _, y, deviation in flat for end in limits(y, deviation)] or [0.0, 1.0]
    ticks = nice_ticks(min(ends), max(ends), least_step)
    y_ticks = [tick for tick in ticks if y_least <= tick <= y_most]
    x_scale = _scale(min(xs), max(xs), LEFT + 10, WIDTH - RIGHT - 10)
    y_scale = _scale(y_ticks[0], y_ticks[-1], HEIGHT - BOTTOM, TOP)
    few = all(len(each) <= FEW_POINTS for each in points.values())
    # Without a shift, marks and error bars at the same place would hide each other.
    shift = min(DODGE, ROOM_TO_DODGE / max(1, len(points) - 1)) if few else 0.0
    lines = []
    for number, (name, each) in enumerate(points.items()):
        side = (number - (len(points) - 1) / 2) * shift
        places = []
        for x, y, deviation in each:
            text = f"{name}, {x_label} {x:g}: {y:.4g}" + (f" ± {deviation:.2g}" if deviation else "")
            bar = map(y_scale, limits(y, deviation)) if deviation else ()
            places.append(Point(x_scale(x) + side, y_scale(y), text, *bar))
        lines.append(Series(name, number % NUM_STYLES, places))
    step = max(1, math.ceil((max(xs) - min(xs)) / WHOLE_TICKS))
    return Chart(
        label, x_label, y_label,
        [AxisTick(x_scale(x), f"{x:g}") for x in range(math.ceil(min(xs)), math.floor(max(xs)) + 1, step)],
        [AxisTick(y_scale(y), f"{y:g}") for y in y_ticks],
        lines,
    )  # fmt: skip


def _deviation(given: float = 0.0) -> float:
    return given if math.isfinite(given) else 0.0


def nice_ticks(low: float, high: float, least_step: float = 0.0) -> list[float]:
    """Round numbers that enclose a range, in steps of 1, 2 or 5 times a power of ten, or of `least_step` if larger."""
    span = high - low or abs(high) or 1.0
    power = 10.0 ** math.floor(math.log10(span / NICE_TICKS))
    nice_step = next(power * factor for factor in (1, 2, 5, 10) if power * factor * NICE_TICKS >= span)
    step = max(least_step, nice_step)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(number * step, 10) for number in range(first, max(last, first + 1) + 1)]


def _scale(low: float, high: float, first: float, last: float) -> Callable[[float], float]:
    """A function from values to places; a range without extent is in the middle."""
    if high <= low:
        return lambda value: (first + last) / 2
    return lambda value: first + (value - low) / (high - low) * (last - first)
