"""Charts as numbers: where lines, bars and cells go on a drawing, for the macros that draw them as SVG.

Coordinates are in units of the drawing, `WIDTH` wide; a page scales it. A series has a colour and a mark of its
own, so that nobody depends on telling colours apart.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

WIDTH, HEIGHT = 360, 210
LEFT, RIGHT, TOP, BOTTOM = 44, 10, 10, 34
DODGE, FEW_POINTS = 3.0, 12  # how far lines of few points stand apart
ROOM_TO_DODGE = 18.0  # all of them together, so that none leaves the drawing
NICE_TICKS, WHOLE_TICKS = 5, 8  # steps between the values at an axis, at most
NUM_STYLES = 10  # colours of the style sheet, and marks and dashes that go with them
FEWEST_ON_MAP = 3  # images; a map of fewer says nothing


@dataclass(frozen=True)
class Tick:
    """A labelled place on an axis."""

    at: float
    label: str


@dataclass(frozen=True)
class Point:
    """A place on the drawing with what a reader is told about it."""

    x: float
    y: float
    text: str
    low: float | None = None  # ends of an error bar
    high: float | None = None


@dataclass(frozen=True)
class Series:
    """A line or a set of bars: its name, its style (0 to `NUM_STYLES` - 1) and its points."""

    name: str
    style: int
    points: list[Point]


@dataclass(frozen=True)
class Chart:
    """What the macros ``lines`` and ``bars`` draw."""

    label: str
    x_label: str
    y_label: str
    x_ticks: list[Tick]
    y_ticks: list[Tick]
    series: list[Series]
    bar_width: float = 0.0
    width: ClassVar = WIDTH
    height: ClassVar = HEIGHT
    base: ClassVar = HEIGHT - BOTTOM  # of bars, and where the horizontal axis lies


@dataclass(frozen=True)
class Cell:
    """A cell of a heat map; `share` in 0..1 is how strongly it is filled."""

    x: float
    y: float
    share: float
    text: str
    shown: str


@dataclass(frozen=True)
class HeatMap:
    """What the macro ``heat_map`` draws."""

    label: str
    x_label: str
    y_label: str
    x_ticks: list[Tick]
    y_ticks: list[Tick]
    cells: list[Cell]
    side_x: float
    side_y: float
    left: float
    height: float
    width: ClassVar = WIDTH


Scale = Callable[[float], float]
Values = Sequence[tuple[float, float] | tuple[float, float, float | None]]


def line_chart(
    label: str,
    series: Mapping[str, Values],
    *,
    x_label: str,
    y_label: str,
    y_least: float = -math.inf,
    y_most: float = math.inf,
    whole: bool = False,
    dodge: float = DODGE,
) -> Chart:
    """Lines through points ``(x, y)`` or ``(x, y, deviation)``; places without a number are left out.

    Args:
        label: what the drawing shows, for those who cannot see it.
        series: points by name, in order of x.
        x_label: name of the horizontal axis; its values are whole numbers.
        y_label: name of the vertical axis.
        y_least: what no value can fall below; neither the axis nor a deviation goes beyond.
        y_most: what no value can exceed, likewise.
        whole: whether values are counts, so that only whole numbers are written at the axis.
        dodge: how far series of few points stand apart.
    """
    points = {
        name: [(float(x), float(y), rest[0] if rest else None) for x, y, *rest in each if math.isfinite(y)]
        for name, each in series.items()
    }
    flat = [point for each in points.values() for point in each]
    xs = [x for x, _, _ in flat] or [0.0]

    def limits(y: float, deviation: float) -> tuple[float, float]:
        return max(y - deviation, y_least), min(y + deviation, y_most)

    ends = [end for _, y, deviation in flat for end in limits(y, deviation or 0.0)] or [0.0, 1.0]
    ticks = nice_ticks(min(ends), max(ends), least_step=1.0 if whole else 0.0)
    y_ticks = [tick for tick in ticks if y_least <= tick <= y_most]
    x_scale, y_scale = _scales((min(xs), max(xs)), (y_ticks[0], y_ticks[-1]))

    def place(name: str, side: float, x: float, y: float, deviation: float | None) -> Point:
        said = f"{name}, {x_label} {x:g}: {y:.4g}" + (f" ± {deviation:.2g}" if deviation else "")
        low, high = map(y_scale, limits(y, deviation)) if deviation else (None, None)
        return Point(x_scale(x) + side, y_scale(y), said, low, high)

    few = max((len(each) for each in points.values()), default=0) <= FEW_POINTS
    # Marks and bars on one another cannot be told apart.
    spread = min(dodge, ROOM_TO_DODGE / max(1, len(points) - 1)) if few else 0.0
    drawn = [
        Series(
            name,
            number % NUM_STYLES,
            [place(name, (number - (len(points) - 1) / 2) * spread, *point) for point in each],
        )
        for number, (name, each) in enumerate(points.items())
    ]
    return Chart(
        label, x_label, y_label,
        [Tick(x_scale(x), f"{x:g}") for x in whole_ticks(min(xs), max(xs))],
        [Tick(y_scale(y), f"{y:g}") for y in y_ticks],
        drawn,
    )  # fmt: skip


def bar_chart(
    label: str,
    groups: Sequence[str],
    series: Mapping[str, Sequence[float | None]],
    *,
    x_label: str,
    y_label: str,
) -> Chart:
    """Bars side by side, one of every series for each group, from zero.

    Args:
        label: what the drawing shows, for those who cannot see it.
        groups: names along the horizontal axis; every one of them is written if they are few.
        series: a value per group by name, `None` where there is none.
        x_label: name of the horizontal axis.
        y_label: name of the vertical axis.
    """
    values = [
        value for each in series.values() for value in each if value is not None and math.isfinite(value)
    ]
    y_ticks = nice_ticks(0, max(values, default=1) or 1)
    _, y_scale = _scales((0, 1), (0, y_ticks[-1]))
    slot = (WIDTH - LEFT - RIGHT) / max(1, len(groups))
    bar = min(26.0, 0.8 * slot / max(1, len(series)))
    every = math.ceil(
        len(groups) * max((len(group) for group in groups), default=1) * 6.2 / (WIDTH - LEFT - RIGHT)
    )
    drawn = []
    for number, (name, each) in enumerate(series.items()):
        offset = (number - (len(series) - 1) / 2) * bar - bar / 2
        points = [
            Point(
                LEFT + (place + 0.5) * slot + offset, y_scale(value), f"{groups[place]}, {name}: {value:.4g}"
            )
            for place, value in enumerate(each)
            if value is not None and math.isfinite(value)
        ]
        drawn.append(Series(name, number % NUM_STYLES, points))
    ticks = [
        Tick(LEFT + (place + 0.5) * slot, group)
        for place, group in enumerate(groups)
        if place % max(1, every) == 0
    ]
    return Chart(
        label, x_label, y_label, ticks, [Tick(y_scale(y), f"{y:g}") for y in y_ticks], drawn, bar,
    )  # fmt: skip


def heat_map(
    label: str,
    values: Sequence[Sequence[float | None]],
    rows: Sequence[str],
    columns: Sequence[str],
    *,
    x_label: str,
    y_label: str,
    limits: tuple[float, float] | None = None,
    show_values: bool = True,
    blank_zeros: bool = False,
    places: int = 0,
) -> HeatMap:
    """Cells filled by their value.

    Args:
        label: what the drawing shows, for those who cannot see it.
        values: one row of values per entry of `rows`; `None` or NaN leaves a cell empty.
        rows: names of the rows, from the top.
        columns: names of the columns.
        x_label: name of the columns together.
        y_label: name of the rows together.
        limits: values of an empty and a full cell; `None` for those of the smallest and the largest.
        show_values: whether the values are written into the cells.
        blank_zeros: whether values below one half are not.
        places: decimals of written values.
    """
    given = [value for row in values for value in row if value is not None and math.isfinite(value)]
    low, high = limits or (min(given, default=0.0), max(given, default=1.0))
    left = min(110.0, 12 + 5.6 * max((len(name) for name in rows), default=1) + 12)
    side_x = min(64.0, (WIDTH - left - RIGHT) / max(1, len(columns)))
    side_y = min(26.0, side_x) if len(rows) > 6 else 30.0
    cells = [
        Cell(
            left + column * side_x,
            TOP + row * side_y,
            0.0 if high <= low else min(1.0, max(0.0, (value - low) / (high - low))),
            f"{y_label} {rows[row]}, {x_label} {columns[column]}: {value:.{max(places, 1) if value % 1 else 0}f}",
            f"{value:.{places}f}"
            if show_values and side_x >= 16 and (value >= 0.5 or not blank_zeros)
            else "",
        )
        for row, line in enumerate(values)
        for column, value in enumerate(line)
        if value is not None and math.isfinite(value)
    ]
    every_x = max(1, math.ceil((max((len(name) for name in columns), default=1) * 6 + 4) / side_x))
    every_y = max(1, math.ceil(11 / side_y))
    return HeatMap(
        label, x_label, y_label,
        [Tick(left + (place + 0.5) * side_x, name) for place, name in enumerate(columns) if place % every_x == 0],
        [
            Tick(TOP + (place + 0.5) * side_y, shortened(name, 16))
            for place, name in enumerate(rows)
            if place % every_y == 0
        ],
        cells, side_x, side_y, left, height=TOP + len(rows) * side_y + BOTTOM,
    )  # fmt: skip


def nice_ticks(low: float, high: float, least_step: float = 0.0) -> list[float]:
    """Round numbers that enclose a range: steps of 1, 2 or 5 times a power of ten, but none below the least."""
    span = high - low or abs(high) or 1.0
    power = 10.0 ** math.floor(math.log10(span / NICE_TICKS))
    step = max(
        least_step, next(power * factor for factor in (1, 2, 5, 10) if power * factor * NICE_TICKS >= span)
    )
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(number * step, 10) for number in range(first, max(last, first + 1) + 1)]


def whole_ticks(low: float, high: float) -> list[float]:
    """Whole numbers inside a range, evenly spaced."""
    step = max(1, math.ceil((high - low) / WHOLE_TICKS))
    return [float(number) for number in range(math.ceil(low), math.floor(high) + 1, step)]


def shortened(text: str, most: int) -> str:
    """A text that is at most so long, its end replaced by an ellipsis."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def style_of(category: int) -> tuple[int, int]:
    """Colour and mark: 64 categories in a row differ in one of them, the first eight in both."""
    return category % NUM_STYLES, (category + category // NUM_STYLES) % NUM_STYLES


def _scales(x_range: tuple[float, float], y_range: tuple[float, float]) -> tuple[Scale, Scale]:
    """Functions from values to places; a range without extent lies in the middle."""

    def scale(low: float, high: float, first: float, last: float) -> Scale:
        if high <= low:
            return lambda value: (first + last) / 2
        return lambda value: first + (value - low) / (high - low) * (last - first)

    return (
        scale(*x_range, LEFT + 10, WIDTH - RIGHT - 10),
        scale(*y_range, HEIGHT - BOTTOM, TOP),
    )
