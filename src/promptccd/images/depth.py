"""How many bits the values of a picture have: a 16-bit file of a microscope may hold 12, and look black as 16."""

import io
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from PIL import Image

from promptccd.images.limits import BIT_DEPTHS

UNIT = 1  # bit: of floats from 0 to 1, a convention of its own; its largest value is that of one bit

ValueKind = Literal["integer", "float"]
_SIGNIFICANT = re.compile(r'SignificantBits="(\d{1,2})"')
_BITS, _PHOTOMETRIC, _DESCRIPTION, _LARGEST = 258, 262, 270, (281, 341)  # tags of TIFF
_WHITE_IS_0 = 0
_CHANNELS, _PLANES, _ONE_BY_ONE = 277, 284, 2
_LONGEST = 2**20  # of a description


@dataclass(frozen=True)
class Depth:
    """The depth of one file that has more than 8 bits a value.

    Attributes:
        kind: of its values.
        needed: bits that the file says it has, or else the fewest of `BIT_DEPTHS` that hold its values.
        is_said: whether the file says so.
        used: bits that it was shown with: its largest value is white.
    """

    kind: ValueKind
    needed: int
    is_said: bool
    used: int


@dataclass(frozen=True)
class Depths:
    """One rule for all files of a source, which keeps them comparable.

    Attributes:
        integer: bits that hold the integers of all files that do not say how many they have; `None` if there are
            none, and a file is then judged by itself.
        real: the same of floats.
        fixed: bits that a person gave; they hold for all files, whatever those say.
    """

    integer: int | None = None
    real: int | None = None
    fixed: int | None = None

    @classmethod
    def holding(cls, found: Iterable[Depth | None], fixed: int | None = None) -> "Depths":
        """The rule for a source, of its files' depths; `None` is a file of 8 bits."""
        most = {"integer": 0, "float": 0}
        for depth in found:
            if depth is not None and not depth.is_said:
                most[depth.kind] = max(most[depth.kind], depth.needed)
        return cls(most["integer"] or None, most["float"] or None, fixed)

    def used_for(self, kind: ValueKind, needed: int, is_said: bool) -> int:
        """Bits that a file is shown with."""
        if self.fixed is not None and needed != UNIT:
            return self.fixed
        return needed if is_said else (self.real if kind == "float" else self.integer) or needed

    def suits(self, depth: Depth | None) -> bool:
        """Whether a file was shown by this rule."""
        return depth is None or depth.used == self.used_for(depth.kind, depth.needed, depth.is_said)

    def __str__(self) -> str:
        """One sentence for people; empty where no file has more than 8 bits."""
        if self.fixed is not None and (self.integer or self.real):
            return f"values of more than 8 bits are shown as {self.fixed} bits, as was asked for"
        said = [
            f"{kind} values of more than 8 bits are shown as {bits} bits"
            for kind, bits in (("integer", self.integer), ("float", self.real))
            if bits
        ]
        return f"{'; '.join(said)}, the fewest that hold all of them" if said else ""


class UnusableValuesError(Exception):
    """Values that cannot be shown as grey; the message says why, and what to do."""


_SAVE_AGAIN = "save it as 8 or 16 bit without negative values"


@dataclass(frozen=True)
class DeepValues:
    """The values of a picture with more than 8 bits each.

    Attributes:
        values: ``(H, W)`` or ``(H, W, C)``, integers or floats.
        said: bits that the file says it has; `None` if it does not.
        white_is_0: whether 0 is white and the largest value black.
    """

    values: np.ndarray
    said: int | None = None
    white_is_0: bool = False

    def shown(self, depths: Depths) -> tuple[np.ndarray, Depth]:
        """The values as uint8, and with which depth.

        Raises:
            UnusableValuesError: they are negative, too large, or not finite.
        """
        kind: ValueKind = "float" if self.values.dtype.kind == "f" else "integer"
        needed, is_said = self._needed(kind)
        used = depths.used_for(kind, needed, is_said)
        top = 2**used - 1
        shown = np.empty(self.values.shape, np.uint8)
        for rows in range(0, len(shown), 256):  # a few at a time, because floats take eight times the memory
            part = np.minimum(self.values[rows : rows + 256].astype(np.float64), top)
            part = top - part if self.white_is_0 else part
            shown[rows : rows + 256] = part * (255 / top) + 0.5
        return shown, Depth(kind, needed, is_said, used)

    def _needed(self, kind: ValueKind) -> tuple[int, bool]:
        low, high = self.values.min(), self.values.max()
        if not (np.isfinite(low) and np.isfinite(high)):
            raise UnusableValuesError(f"float image with NaN or infinite values: {_SAVE_AGAIN}")
        if low < 0 or high > 65535:
            raise UnusableValuesError(
                f"{kind} image with values from {low:g} to {high:g}; only 0 to 65535 is read: {_SAVE_AGAIN}"
            )
        if kind == "float" and high <= 1:
            return UNIT, True
        fewest = next(bits for bits in BIT_DEPTHS if high <= 2**bits - 1)
        if self.said is None:
            return fewest, False
        return (self.said, True) if high <= 2**self.said - 1 else (16, True)  # as PNG scales its values up


def deep_values(image: Image.Image) -> DeepValues | None:
    """The values of a picture that has more than 8 bits each; `None` for one of 8 bits.

    Pillow gives 16-bit colours as their upper bytes, by the name of how they are stored. By the name of the other byte
    order it gives the lower ones.

    Args:
        image: opened and not loaded; it is loaded then.

    Raises:
        UnusableValuesError: its colours are stored one after the other, which Pillow reads as 8-bit values.
    """
    tiles, tags = list(getattr(image, "tile", ())), getattr(image, "tag_v2", {})
    several = _largest(tags.get(_CHANNELS, 1)) > 1
    if several and tags.get(_PLANES) == _ONE_BY_ONE and _largest(tags.get(_BITS, 8)) > 8:
        raise UnusableValuesError(
            "16-bit colours that are stored one after the other, which are not read: save it with its colours side by "
            "side (contiguous), or as PNG"
        )
    if image.format == "PPM" and image.mode == "RGB" and tiles and tiles[0][0] == "ppm":
        return _values_of_ppm(image, tiles[0])
    is_grey = image.mode == "F" or image.mode.startswith("I")
    is_coloured = image.mode in ("RGB", "RGBA") and tiles and all(";16" in _stored_as(tile) for tile in tiles)
    if not is_grey and not is_coloured:
        return None
    lower = None if is_grey else _lower_bytes(image)
    said, white_is_0 = _said_by(image, str(tiles[0][0])) if tiles else (None, False)
    image.load()
    if is_grey:
        values = np.asarray(image)
        return DeepValues(values.astype(values.dtype.newbyteorder("="), copy=False), said, white_is_0)
    if lower is None or lower.mode != image.mode:
        return None
    try:
        lower.load()
    except ValueError:  # of grey with transparency Pillow has but the upper bytes
        return None
    return DeepValues(np.asarray(image).astype(np.uint16) << 8 | np.asarray(lower), said)


def _values_of_ppm(image: Image.Image, tile: Any) -> DeepValues | None:
    """The values of a PPM file of colours with more than 8 bits, of which Pillow keeps 8."""
    most = int(tile[3][1]) if isinstance(tile[3], tuple) else 0
    if most <= 255:
        return None
    size = image.width * image.height * 6
    stream: Any = image.fp  # type: ignore[attr-defined]
    stream.seek(tile[2])
    content = stream.read(size)
    if len(content) < size:
        raise OSError("truncated")
    image.load()
    values = np.frombuffer(content, ">u2").astype(np.uint16).reshape(image.height, image.width, 3)
    return DeepValues(values, most.bit_length() if most < 65535 else None)


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
    return str(tile[3][0] if isinstance(tile[3], tuple | list) else tile[3])


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
        args = (name, *tile[3][1:]) if isinstance(tile[3], tuple | list) else name
        again.tile[index] = tile._replace(args=args)
    return again


def _said_by(image: Image.Image, codec: str) -> tuple[int | None, bool]:
    """Bits that the file says its values have, and whether 0 is white in it."""
    if image.format == "PPM":  # Pillow scales values up unless they fill 16 bits
        return (16 if codec.startswith("ppm") and image.mode != "F" else None), False
    if image.format == "PNG":
        return _significant_bits(image.fp), False  # type: ignore[attr-defined]
    if image.format != "TIFF":
        return None, False
    tags = image.tag_v2  # type: ignore[attr-defined]
    said = [_largest(tags.get(_BITS, 16))]
    said += [_largest(tags[tag]).bit_length() for tag in _LARGEST if tag in tags]
    said += [int(bits) for bits in _SIGNIFICANT.findall(str(tags.get(_DESCRIPTION, ""))[:_LONGEST])]
    usual = [bits for bits in said if 8 < bits < 16]
    return (min(usual) if usual else None), tags.get(_PHOTOMETRIC) == _WHITE_IS_0


def _largest(values: Any) -> int:
    return int(max(values)) if isinstance(values, tuple) else int(values)


def _significant_bits(stream: Any) -> int | None:
    """What the chunk sBIT of a PNG says; the stream is left where it was."""
    place, found = stream.tell(), None
    stream.seek(8)
    while len(head := stream.read(8)) == 8 and head[4:] != b"IDAT":
        size = int.from_bytes(head[:4], "big")
        if head[4:] == b"sBIT" and size <= 4:
            found = max(stream.read(size), default=0)
            break
        stream.seek(size + 4, 1)
    stream.seek(place)
    return found if found is not None and 8 < found < 16 else None
