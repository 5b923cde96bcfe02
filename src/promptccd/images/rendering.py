"""How a file becomes an RGB picture: which values are black and white, which pages are shown, and how it fits a square.

A 16-bit file of a microscope may use 12 bits, or values between 29,315 and 31,355. One rule for all files of a source
keeps them comparable. It is decided once, by values that are robust against single pixels and single files, and is
stored with the project or the checkpoint. A file that exceeds it is cut and reported, and changes nothing.
"""

import io
import math
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from PIL import Image

from promptccd.errors import ConfigurationError
from promptccd.images.limits import BIT_DEPTHS, FITS, PAGES, SkippedFileError

Window = tuple[float, float]  # the values that are black and white
ValueKind = Literal["integer", "float"]
Pages = Literal["first", "max", "mean"]
Fit = Literal["crop", "pad", "squeeze"]
CUT = "values cut"  # in the note of a file that exceeds the window
PROBED = 64  # files with more than 8 bits that decide the window of all
_UNIT: Window = (0, 1)  # of floats from 0 to 1, a convention of its own
_FEWEST, _SHARE = 2, 0.001  # pixels of a file, and share of them, that do not decide at either end
_NODATA = (65535, 32767, -32768, -9999, -99999, -999)  # values that mean "missing", far from all other values
_FROM_0 = 0.2  # of the largest value, up to which values are thought to begin at 0
_MARGIN = 0.05  # share of the range by which a window goes beyond the values
_MANY_FILES = 20  # number of files from which extreme files are ignored, one in a hundred
_LARGEST_VALUE = 1e30
_SIGNIFICANT = re.compile(r'SignificantBits="(\d{1,2})"')
_BITS, _PHOTOMETRIC, _DESCRIPTION, _LARGEST = 258, 262, 270, (281, 341)  # tags of TIFF
_WHITE_IS_0, _GDAL_NODATA = 0, 42113
_CHANNELS, _PLANES, _ONE_BY_ONE = 277, 284, 2
_LONGEST = 2**20  # of a description


@dataclass(frozen=True)
class Levels:
    """The values of one file that has more than 8 bits a value.

    Attributes:
        kind: of its values.
        low: smallest value, without the most extreme pixels.
        high: largest value, without the most extreme pixels.
        own: the window that the file says, or that its kind has by convention.
    """

    kind: ValueKind
    low: float
    high: float
    own: Window | None = None


@dataclass(frozen=True)
class Rendering:
    """One rule for all files of a source.

    Attributes:
        integer: window of the integers of files that do not say how many bits they have; `None` is not decided, and a
            file is then judged by itself.
        real: the same of floats.
        given: window that a person gave, for all files of more than 8 bits, whatever their metadata.
        pages: how the pages of a file are one picture; by default its first page.
        fit: how a model sees an image that is not square; by default its central square.
    """

    integer: Window | None = None
    real: Window | None = None
    given: Window | None = None
    pages: Pages | None = None
    fit: Fit | None = None

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Rendering":
        """The rule from values that a stranger may have written.

        Raises:
            ConfigurationError: a value does not belong to a rule.
        """
        windows = {name: _as_window(values.get(name)) for name in ("integer", "real", "given")}
        for name, known in (("pages", PAGES), ("fit", FITS)):
            if (value := values.get(name)) not in (None, *known):
                raise ConfigurationError(f"Expected {name} to be in {', '.join(known)}, got {value!r:.50}.")
        return cls(**windows, pages=values.get("pages"), fit=values.get("fit"))

    def to_dict(self) -> dict[str, Any]:
        """As JSON types."""
        return {
            name: list(value) if isinstance(value, tuple) else value for name, value in vars(self).items()
        }

    def over(self, other: "Rendering") -> "Rendering":
        """The other rule with what this one says in place of it."""
        return replace(other, **{name: value for name, value in vars(self).items() if value is not None})

    def decided_by(self, found: Iterable[Levels | None]) -> "Rendering":
        """The same with windows for the values of these files; `None` is a file of 8 bits. Decided values stay."""
        levels = [each for each in found if each is not None and each.own is None]
        integers, floats = ([each for each in levels if each.kind == kind] for kind in ("integer", "float"))
        integer = self.integer or (_window_of(integers) if integers else None)
        return replace(self, integer=integer, real=self.real or (_window_of(floats) if floats else None))

    def __str__(self) -> str:
        """One sentence for people; empty where no file has more than 8 bits."""
        if self.given:
            return f"values of more than 8 bits are shown by the given window, {_named(self.given)}"
        kinds = (("integer", self.integer), ("float", self.real))
        return "; ".join(
            f"{kind} values of more than 8 bits: {_named(window)}" for kind, window in kinds if window
        )


def _as_window(value: Any) -> Window | None:
    if value is None:
        return None
    if not isinstance(value, list) or len(value) != 2 or {*map(type, value)} - {int, float}:
        raise ConfigurationError(f"Expected a window of two numbers, got {value!r:.50}.")
    low, high = value
    if not -_LARGEST_VALUE < low < high < _LARGEST_VALUE:
        raise ConfigurationError(f"Expected a window from a smaller to a larger number, got {value!r:.50}.")
    return low, high


def _window_of(files: list[Levels]) -> Window:
    """The window of the values of files: from 0 to full bits where that fits, else from their lows to highs."""
    skipped = max(len(files) // 100, int(len(files) >= _MANY_FILES))
    low = sorted(each.low for each in files)[skipped]
    high = sorted(each.high for each in files)[-1 - skipped]
    fewest = next((2**bits - 1 for bits in BIT_DEPTHS if high <= 2**bits - 1), None)
    if fewest is not None and 0 <= low <= _FROM_0 * high:
        return 0, fewest
    room = _MARGIN * (high - low) or 1
    if files[0].kind == "integer":
        return math.floor(low - room), math.ceil(high + room)
    return low - room, high + room


def _named(window: Window) -> str:
    bits = _bits_of(window)
    return f"{f'{bits} bits, ' if bits else ''}window {window[0]:g} to {window[1]:g}"


def _bits_of(window: Window) -> int:
    return next((bits for bits in range(1, 17) if window == (0, 2**bits - 1)), 0)


@dataclass(frozen=True)
class DeepValues:
    """The values of a picture with more than 8 bits each.

    Attributes:
        values: ``(H, W)`` or ``(H, W, C)``, integers or floats.
        said: bits that the file says it has; `None` if it does not.
        white_is_0: whether 0 is white and the largest value black.
        nodata: value that means "missing" by the file's metadata; NaN if it names none.
    """

    values: np.ndarray
    said: int | None = None
    white_is_0: bool = False
    nodata: float = math.nan

    def shown(self, rendering: Rendering) -> tuple[np.ndarray, Levels, str]:
        """The values as uint8, their meaning, and a note.

        Raises:
            SkippedFileError: no value is a finite number.
        """
        kind: ValueKind = "float" if self.values.dtype.kind == "f" else "integer"
        usable, nodata = self._usable()
        if not usable.size:
            raise SkippedFileError("no value is a finite number")
        cut = max(_FEWEST, int(_SHARE * usable.size)) if usable.size > 2 * _FEWEST + 1 else 0
        ordered = np.partition(usable, [cut, usable.size - 1 - cut])
        low, high = ordered[cut].item(), ordered[-1 - cut].item()
        own: Window | None = _UNIT if kind == "float" and low >= 0 and high <= 1 else None
        if self.said is not None:  # PNG scales its values up
            own = 0, 2 ** (self.said if high <= 2**self.said - 1 else 16) - 1
        levels = Levels(kind, low, high, own)
        decided = rendering.real if kind == "float" else rendering.integer
        low, high = rendering.given or levels.own or decided or _window_of([levels])
        shown = np.empty(self.values.shape, np.uint8)
        for rows in range(0, len(shown), 256):  # a few at a time, because floats take eight times the memory
            part = self.values[rows : rows + 256].astype(np.float64)
            is_none = ~np.isfinite(part) | np.isin(part, nodata)
            part = np.where(is_none, low, part).clip(low, high)
            part = high + low - part if self.white_is_0 else part
            shown[rows : rows + 256] = (part - low) * (255 / (high - low)) + 0.5
        sides = [(usable.max() > high, "larger"), (usable.min() < low, "smaller")]
        bits = 0 if kind == "float" else _bits_of((low, high))
        note = f"{f'{bits} bits' if bits else f'{kind} values from {low:g} to {high:g}'} scaled to 8 bits"
        beyond = " and ".join(side for is_beyond, side in sides if is_beyond)
        return shown, levels, f"{note}, {beyond} {CUT}" if beyond else note

    def _usable(self) -> tuple[np.ndarray, list[float]]:
        """All values except missing ones, and the missing ones."""
        values = self.values.ravel()
        values = values[np.abs(values.astype(np.float64)) < _LARGEST_VALUE]  # leaves NaN out, too
        found, values = [self.nodata], values[values != self.nodata]
        for extreme in (values.max(), values.min()) if values.size else ():
            rest = values[values != extreme]
            few = max(_FEWEST, _SHARE * values.size)  # as many are hot pixels: white, cut and reported
            if rest.size and extreme in _NODATA and values.size - rest.size > few:
                low, high = float(rest.min()), float(rest.max())
                if max(float(extreme) - high, low - float(extreme)) > high - low:
                    values, found = rest, [*found, float(extreme)]
        return values, found


def deep_values(image: Image.Image) -> DeepValues | None:
    """The values of a picture that has more than 8 bits each; `None` for 8 bits.

    Pillow gives 16-bit colours as their upper bytes, by the name of how they are stored. By the name of the other byte
    order it gives the lower values.

    Args:
        image: opened and not loaded; it is loaded then.

    Raises:
        SkippedFileError: its colours are stored one after the other, which Pillow reads as 8-bit values.
    """
    tiles, tags = list(getattr(image, "tile", ())), getattr(image, "tag_v2", {})
    several = _largest(tags.get(_CHANNELS, 1)) > 1
    nodata = math.nan
    with suppress(ValueError):
        nodata = float(str(tags.get(_GDAL_NODATA)).strip("\0 "))
    if several and tags.get(_PLANES) == _ONE_BY_ONE and _largest(tags[_BITS]) > 8:
        raise SkippedFileError(
            "16-bit colours in separate planes are not read: save it with interleaved colours (contiguous), or as PNG"
        )
    is_grey = image.mode == "F" or image.mode.startswith("I")
    is_coloured = image.mode in ("RGB", "RGBA") and tiles and all(";16" in _stored_as(tile) for tile in tiles)
    if not is_grey and not is_coloured:
        return None
    lower = None if is_grey else _lower_bytes(image)
    said, white_is_0 = _said_by(image, tiles)
    image.load()
    if is_grey:
        values = np.asarray(image)
        return DeepValues(np.asarray(values, values.dtype.newbyteorder("=")), said, white_is_0, nodata)
    if lower is None or lower.mode != image.mode:
        return None
    try:
        lower.load()
    except ValueError:  # of grey with transparency Pillow has but the upper bytes
        return None
    return DeepValues(np.asarray(image).astype(np.uint16) << 8 | np.asarray(lower), said, nodata=nodata)


DEPTH_BYTES = 32  # of a file, which tell whether it may be deep


def may_be_deep(head: bytes) -> bool:
    """Whether a file may have more than 8 bits a value, by its first `DEPTH_BYTES`."""
    if head.startswith(b"\x89PNG"):
        return head[24:25] == b"\x10"
    return head.startswith((b"II*\0", b"MM\0*", b"II+\0", b"MM\0+", b"P2", b"P5", b"P6", b"Pf"))


def is_deep(image: Image.Image) -> bool:
    """Whether a picture that was opened may have more than 8 bits a value."""
    tiles = getattr(image, "tile", ())
    return image.mode == "F" or image.mode.startswith("I") or any(";16" in _stored_as(tile) for tile in tiles)


def _stored_as(tile: Any) -> str:
    return str(tile[3][0] if isinstance(tile[3], tuple) else tile[3])


def _lower_bytes(image: Image.Image) -> Image.Image | None:
    """The same picture, opened again so that Pillow reads the lower bytes of its values; `None` if it cannot."""
    source = getattr(image, "fp", None)
    if source is None or "a;16" in _stored_as(image.tile[0]):  # type: ignore[attr-defined]
        return None  # RGBa: colours that are multiplied by their transparency, which no byte alone tells
    place = source.tell()
    source.seek(0)
    again: Any = type(image)(io.BytesIO(source.read()))  # type: ignore[call-arg]
    source.seek(place)
    again.seek(image.tell())
    swapped = {"L": "B", "B": "L", "N": "B" if sys.byteorder == "little" else "L"}
    for index, tile in enumerate(again.tile):
        before, order, after = _stored_as(tile).partition(";16")
        name = before + order + swapped[after]
        args = (name, *tile[3][1:]) if isinstance(tile[3], tuple) else name
        again.tile[index] = tile._replace(args=args)
    return again


def _said_by(image: Image.Image, tiles: Sequence[Any]) -> tuple[int | None, bool]:
    """Bits that the file says its values have, and whether 0 is white in it."""
    if image.format == "PPM":  # Pillow scales values up unless they fill 16 bits
        return (16 if any(tile[0].startswith("ppm") for tile in tiles) else None), False
    if image.format != "TIFF":
        return None, False
    tags = image.tag_v2  # type: ignore[attr-defined]
    said = [_largest(tags[_BITS])]
    said += [_largest(tags[tag]).bit_length() for tag in _LARGEST if tag in tags]
    said += [int(bits) for bits in _SIGNIFICANT.findall(str(tags.get(_DESCRIPTION, ""))[:_LONGEST])]
    usual = [bits for bits in said if 8 < bits < 16]
    return (min(usual) if usual else None), tags.get(_PHOTOMETRIC) == _WHITE_IS_0


def _largest(values: Any) -> int:
    return int(max(values)) if isinstance(values, tuple) else int(values)
