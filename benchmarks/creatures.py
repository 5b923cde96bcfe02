"""Creatures drawn by rule: categories differ by their parts alone, and the parts are known.

A creature has a tail, legs, a body and a head, and a category is one choice of a type for each. The categories form a
walk: two consecutive ones differ in one part and share the other three. Position, size, rotation, viewing direction,
colours and background are drawn per image, from the same distributions for all categories, and so say nothing about
the category.

    python -m benchmarks.creatures runs/creatures
"""

import argparse
import colorsys
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from datasets import ClassLabel, Dataset, Features, Image

from promptccd.data.randomness import numpy_generator
from promptccd.errors import DataError

NUM_CATEGORIES = 20
IMAGES_PER_CATEGORY = 60
IMAGE_SIZE = 32
SMALLEST_SIZE = 16  # in a smaller image a stick is thinner than a pixel
_FRAME = 32.0  # side of the square that the outlines are given in, for every image size
_SAMPLES = 2  # points per pixel and axis, for smooth edges
_MARK_VALUE = 0.35  # brightness of stripes, as a share of the body's

# Arrays only meet sums, products and comparisons of float64, which every processor rounds alike, unlike sines of
# arrays: the fingerprint of a split hashes pixels.
Outline = Callable[[np.ndarray, np.ndarray], np.ndarray]


def _ellipse(x0: float, y0: float, across: float, down: float) -> Outline:
    return lambda x, y: ((x - x0) / across) ** 2 + ((y - y0) / down) ** 2 <= 1


def _box(left: float, top: float, right: float, bottom: float) -> Outline:
    return lambda x, y: (x >= left) & (x <= right) & (y >= top) & (y <= bottom)


def _convex(*corners: tuple[float, float]) -> Outline:
    """A convex polygon, its corners clockwise on the screen."""
    edges = list(zip(corners, [*corners[1:], corners[0]], strict=True))
    return lambda x, y: np.logical_and.reduce(
        [(x1 - x0) * (y - y0) >= (y1 - y0) * (x - x0) for (x0, y0), (x1, y1) in edges]
    )


def _union(*outlines: Outline) -> Outline:
    return lambda x, y: np.logical_or.reduce([outline(x, y) for outline in outlines])


@dataclass(frozen=True)
class PartType:
    """How a part may look.

    Attributes:
        name: a word for it.
        outline: which of the points ``(x, y)`` belong to it; y points down, and the creature looks to the right.
        marks: which of its points are darker; `None` for a part of one shade.
    """

    name: str
    outline: Outline
    marks: Outline | None = None


_OVAL = _ellipse(0, 0, 8.5, 4.8)
# Part maps number the parts from 1 in this order, in which they are also drawn, a later one over an earlier one.
PARTS: dict[str, tuple[PartType, ...]] = {
    "tail": (
        PartType("stick", _convex((-14, -8.5), (-12.6, -10), (-4, -1.5), (-5.4, 1))),
        PartType("ball", _union(_box(-10, -1, -5, 1), _ellipse(-11.5, 0, 3.2, 3.2))),
        PartType("fan", _convex((-14.5, -6.5), (-5, -1), (-5, 1), (-14.5, 6.5))),
        PartType(
            "fork",
            _union(
                _convex((-14.5, -6.5), (-14, -8), (-5, -1), (-5, 1)),
                _convex((-5, -1), (-5, 1), (-14, 8), (-14.5, 6.5)),
            ),
        ),
    ),
    "legs": (
        PartType("two", _union(_box(-6.2, 2, -3.4, 11), _box(3.4, 2, 6.2, 11))),
        PartType("wheels", _union(_ellipse(-4.6, 7.2, 3.6, 3.6), _ellipse(4.6, 7.2, 3.6, 3.6))),
        PartType("four", _union(*(_box(left, 2, left + 1.5, 11) for left in (-7, -3, 1.5, 5.5)))),
        PartType("skirt", _convex((-3, 2), (3, 2), (7.5, 11), (-7.5, 11))),
        PartType("foot", _union(_box(-1.2, 3, 1.2, 9), _box(-7, 8.6, 7, 11))),
    ),
    "body": (
        PartType("oval", _OVAL),
        PartType("block", _box(-7.8, -4.2, 7.8, 4.2)),
        PartType("striped", _OVAL, marks=lambda x, y: np.floor(x / 2.2) % 2 == 0),
        PartType("humps", _union(_ellipse(-4.4, -0.6, 4.4, 5.2), _ellipse(4.4, -0.6, 4.4, 5.2))),
    ),
    "head": (
        PartType("round", _ellipse(8.8, -5.4, 4.4, 4.4)),
        PartType("pointed", _convex((8.8, -12.5), (14, -2), (3.8, -2))),
        PartType(
            "horned",
            _union(
                _box(5.2, -6.4, 12.6, -1.6),
                _convex((4.4, -12), (8, -6), (5.2, -6)),
                _convex((13.4, -12), (12.6, -6), (9.8, -6)),
            ),
        ),
    ),
}
NUM_PARTS = 1 + len(PARTS)  # the background is part 0
_VALUES = (0.6, 0.45, 0.75, 0.95)  # mean brightness of the parts; every background is darker


@dataclass(frozen=True)
class Creature:
    """One drawn image.

    Attributes:
        pixels: uint8 ``(S, S, 3)``.
        parts: part of every pixel, uint8 ``(S, S)``: 0 for the background, then the parts in the order of `PARTS`.
    """

    pixels: np.ndarray
    parts: np.ndarray


def part_types(category: int) -> tuple[PartType, ...]:
    """The types a category consists of, in the order of `PARTS`.

    From one category to the next one part goes on to its next type, the parts taking turns. They have different
    numbers of types, and so fall out of step: early categories introduce most types, later ones mostly recombine them.

    Raises:
        DataError: there is no such category.
    """
    if not 0 <= category < NUM_CATEGORIES:
        raise DataError(f"Expected a category of creatures in 0..{NUM_CATEGORIES - 1}, got {category}.")
    turns = len(PARTS)
    return tuple(
        types[(category + turns - 1 - turn) // turns % len(types)]
        for turn, types in enumerate(PARTS.values())
    )


def draw_creature(category: int, index: int, *, size: int = IMAGE_SIZE, seed: int = 0) -> Creature:
    """One image of a category, the same on every machine.

    Args:
        category: ``0..NUM_CATEGORIES - 1``.
        index: which image of the category; every image is drawn independently.
        size: side S in pixels.
        seed: seed of everything but the category.

    Raises:
        DataError: there is no such category, or the image is too small for the parts to be seen.
    """
    types = part_types(category)
    if size < SMALLEST_SIZE:
        raise DataError(f"Expected creatures of size >= {SMALLEST_SIZE} pixels, got {size}.")
    generator = numpy_generator("creature", seed, category, index)
    x, y = _points(size, generator)
    parts = np.zeros(x.shape, dtype=np.uint8)
    marked = np.zeros(x.shape, dtype=bool)
    for part, kind in enumerate(types, start=1):
        inside = kind.outline(x, y)
        parts[inside] = part
        marked = (marked & ~inside) if kind.marks is None else np.where(inside, kind.marks(x, y), marked)
    colours = _part_colours(generator)[parts] * np.where(marked, _MARK_VALUE, 1.0)[..., None]
    colours = np.where(parts[..., None] == 0, _background(len(parts), generator), colours)
    pixels = _per_pixel(colours).mean(axis=(2, 3)) + generator.uniform(-0.03, 0.03, (size, size, 3))
    shares = [_per_pixel(parts == part).sum(axis=(2, 3)) for part in range(NUM_PARTS)]
    return Creature(
        pixels=np.rint(pixels.clip(0, 1) * 255).astype(np.uint8),
        parts=np.argmax(shares, axis=0).astype(np.uint8),
    )


def creatures_dataset(images_per_category: int = IMAGES_PER_CATEGORY, *, seed: int = 0) -> Dataset:
    """RGB images of the 20 categories with columns ``image`` and ``label``; another seed gives other images.

    Row r shows image ``r // 20`` of category ``r % 20``. The name of a category lists its types, from the head to the
    tail.
    """
    rows = range(NUM_CATEGORIES * images_per_category)
    drawn = [draw_creature(row % NUM_CATEGORIES, row // NUM_CATEGORIES, seed=seed) for row in rows]
    names = [
        " ".join(kind.name for kind in reversed(part_types(category))) for category in range(NUM_CATEGORIES)
    ]
    return Dataset.from_dict(
        {"image": [each.pixels for each in drawn], "label": [row % NUM_CATEGORIES for row in rows]},
        features=Features({"image": Image(), "label": ClassLabel(names=names)}),
    )


def _points(size: int, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """The points of the image in the frame of the creature: shifted, scaled, turned and mirrored."""
    angle = math.radians(generator.uniform(-14, 14))
    scale = generator.uniform(0.8, 1.02)
    across, down = generator.uniform(-1.5, 1.5, size=2)
    looks = 1 if generator.random() < 0.5 else -1
    place = (np.arange(size * _SAMPLES) + 0.5) / (size * _SAMPLES) * _FRAME - _FRAME / 2
    right, below = (place[None, :] - across) / scale, (place[:, None] - down) / scale
    cos, sin = math.cos(angle), math.sin(angle)
    return looks * (cos * right + sin * below), cos * below - sin * right


def _part_colours(generator: np.random.Generator) -> np.ndarray:
    """RGB in 0..1 by part id, ``(NUM_PARTS, 3)``: one hue per image, which varies a little from part to part."""
    hue, saturation = generator.random(), generator.uniform(0.15, 0.7)
    hues = (hue + generator.uniform(-0.08, 0.08, len(PARTS))) % 1
    values = np.clip(_VALUES + generator.uniform(-0.05, 0.05, len(PARTS)), 0, 1)
    colours = [
        colorsys.hsv_to_rgb(h, saturation, v) for h, v in zip(hues.tolist(), values.tolist(), strict=True)
    ]
    return np.array([(0.0, 0.0, 0.0), *colours])


def _background(side: int, generator: np.random.Generator) -> np.ndarray:
    """A dark colour under a triangle wave of random direction and length: RGB in 0..1, ``(side, side, 3)``."""
    colour = colorsys.hsv_to_rgb(generator.random(), generator.uniform(0.2, 0.9), generator.uniform(0.1, 0.3))
    across, down = generator.uniform(-4, 4, size=2)
    place = np.arange(side) / side
    phase = across * place[None, :] + down * place[:, None] + generator.random()
    wave = np.abs(2 * (phase - np.floor(phase)) - 1)
    return np.array(colour) * (0.6 + generator.uniform(0, 0.8) * wave)[..., None]


def _per_pixel(points: np.ndarray) -> np.ndarray:
    """``(n * s, n * s, ...)`` as ``(n, n, s, s, ...)``: the points of each pixel together."""
    side = len(points) // _SAMPLES
    return points.reshape(side, _SAMPLES, side, _SAMPLES, *points.shape[2:]).swapaxes(1, 2)


def main(argv: Sequence[str] | None = None) -> int:
    """Write the data set into a folder that ``promptccd train --dataset`` reads."""
    parser = argparse.ArgumentParser(description="Draw creatures and save them as a data set.")
    parser.add_argument("folder", help="folder of the data set")
    parser.add_argument("--seed", type=int, default=0, help="random seed (default: 0)")
    options = parser.parse_args(argv)
    creatures_dataset(seed=options.seed).save_to_disk(options.folder)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
