"""Copies of a picture: near duplicates within an intake, exact copies over stages, and copies under two labels."""

import hashlib
import io
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image
from torch import Tensor

from promptccd.data.depths import Depth
from promptccd.data.images import MAX_ASPECT, Decoding, Verdict, decode_image
from promptccd.data.picture_keys import picture_key

if TYPE_CHECKING:
    from promptccd.data.views import EvaluationView

MAX_BITS = 3  # of 64 that may differ
MAX_DIFFERENCE = 4.0  # mean absolute difference of miniatures, in grey levels of 255
_BANDS = 4  # two hashes that differ in at most 3 bits agree in one of 4 bands whole
LOOK_ALIKES = 64  # bounds the comparisons: a thousand blank pages would need a million
_PAIRS = 4096  # compared at a time, 3 MB of miniatures each


@dataclass(frozen=True)
class Fingerprint:
    """What near duplicates of an image are found by.

    Attributes:
        gradients: 64 bits, whether a pixel of the 9 x 8 grey image is darker than its right neighbour.
        miniature: ``(16, 16, 3)`` uint8.
    """

    gradients: int
    miniature: np.ndarray


def fingerprint_of(image: Image.Image) -> Fingerprint:
    """The fingerprint of an RGB image."""
    small = image.resize((16, 16), Image.Resampling.BOX)
    grey = np.asarray(image.convert("L").resize((9, 8), Image.Resampling.BOX), dtype=np.int16)
    bits = np.packbits(grey[:, 1:] > grey[:, :-1])
    return Fingerprint(int.from_bytes(bits.tobytes(), "big"), np.asarray(small))


def near_duplicates(fingerprints: Sequence[Fingerprint]) -> dict[int, int]:
    """For every image that nearly equals an earlier one, the first such image.

    Args:
        fingerprints: one per image, N. Where more than `LOOK_ALIKES` share a band of bits, such as blank pages, each is
            only compared with its nearest neighbours in order.

    Returns:
        Position of the later image -> position of the first earlier one that it nearly equals, ascending. The
        earlier one may itself be a near duplicate of a third that the later one differs from.
    """
    count = len(fingerprints)
    if count < 2:
        return {}
    hashes = np.array([item.gradients for item in fingerprints], dtype=np.uint64)
    miniatures = np.stack([item.miniature.ravel() for item in fingerprints])
    first = np.full(count, count)
    for early, late in _candidates(hashes):
        alike = _difference(miniatures[early], miniatures[late]) <= MAX_DIFFERENCE
        np.minimum.at(first, late[alike], early[alike])
    return {int(late): int(first[late]) for late in np.flatnonzero(first < count)}


def _candidates(hashes: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Pairs ``early < late`` whose hashes differ in at most `MAX_BITS`, a few thousand at a time."""
    for band in range(_BANDS):
        keys = _band(hashes, band)
        order = np.argsort(keys, kind="stable")
        for shift in range(1, min(LOOK_ALIKES, len(order))):
            early, late = order[:-shift], order[shift:]
            together = keys[early] == keys[late]
            if not together.any():
                break  # no bucket is that large
            early, late = early[together], late[together]
            differing = hashes[early] ^ hashes[late]
            close = np.bitwise_count(differing) <= MAX_BITS
            for earlier in range(band):  # which has yielded the pairs that agree in it
                close &= _band(differing, earlier) != 0
            early, late = early[close], late[close]
            for start in range(0, len(early), _PAIRS):
                yield early[start : start + _PAIRS], late[start : start + _PAIRS]


def _band(hashes: np.ndarray, band: int) -> np.ndarray:
    return (hashes >> np.uint64(16 * band)) & np.uint64(0xFFFF)


def _difference(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Mean absolute difference, in grey levels, of rows of uint8."""
    return (np.maximum(one, other) - np.minimum(one, other)).mean(axis=1)


THUMBNAIL_SIDE = 128
_LOSSLESS_SIDE = 32  # JPEG blurs drawings of this size, and saves nothing


@dataclass(frozen=True)
class SeenImage:
    """What is kept of an image after decoding.

    Attributes:
        size: width and height in pixels, upright.
        key: what the picture is known by, see `promptccd.data.picture_keys`.
        fingerprint: finds near duplicates.
        thumbnail: a JPEG of at most `THUMBNAIL_SIDE` pixels a side, or a PNG if the image is tiny; no metadata. Strips
            lose their ends first, because their short side would vanish otherwise.
        view: ``(3, S, S)`` uint8, or `None` if no view was asked for.
        depth: what the other values depend on, of a file with more than 8 bits a value.
    """

    size: tuple[int, int]
    key: str
    fingerprint: Fingerprint
    thumbnail: bytes
    view: Tensor | None = None
    depth: Depth | None = None


def view_of(content: bytes, decoding: Decoding, view: "EvaluationView") -> Tensor | None:
    """The view of an image file alone; `None` if the image is skipped."""
    decoded = decode_image(content, decoding, enough=_enough(view))
    return None if decoded.image is None else view(decoded)


def _enough(view: "EvaluationView") -> int:
    return max(view.enough, 2 * THUMBNAIL_SIDE)


def look_at(
    content: bytes, decoding: Decoding, view: "EvaluationView | None"
) -> tuple[Verdict, SeenImage | None]:
    """Decode the bytes of a file once; a JPEG no larger than the view needs, without a view at full size.

    Returns:
        The verdict, and what is kept of the image, `None` exactly when it is skipped.
    """
    enough = None if view is None else _enough(view)
    decoded = decode_image(content, decoding, enough=enough)
    image = decoded.image
    if image is None:
        return decoded.verdict, None
    key = picture_key(decoded.jpeg or content, decoded.loaded)
    small = _shrunk(image)
    kept = None if view is None else view(decoded)
    seen = SeenImage(decoded.size, key, fingerprint_of(small), _encoded(small), kept, decoded.depth)
    return decoded.verdict, seen


def _shrunk(image: Image.Image) -> Image.Image:
    width, height = (min(side, MAX_ASPECT * min(image.size)) for side in image.size)
    left, top = (image.width - width) // 2, (image.height - height) // 2
    scale = min(1.0, THUMBNAIL_SIDE / max(width, height))
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    box = (left, top, left + width, top + height)
    return image.resize(size, Image.Resampling.BICUBIC, box, reducing_gap=2.0)


def _encoded(small: Image.Image) -> bytes:
    buffer = io.BytesIO()
    if max(small.size) <= _LOSSLESS_SIDE:
        small.save(buffer, "PNG")
    else:
        small.save(buffer, "JPEG", quality=80)
    return buffer.getvalue()


@dataclass(frozen=True)
class Original:
    """The first image with a picture: its sample id, the index of its stage, and what it is called."""

    sample: int
    stage: int
    name: str = ""


def digest_of(pixels: np.ndarray) -> bytes:
    """A digest that equal pictures share and others do not; pixels are ``(H, W, 3)`` uint8."""
    return hashlib.blake2b(pixels.tobytes(), salt=b"%dx%d" % pixels.shape[:2], digest_size=16).digest()


def conflicts(digests: Sequence[bytes], labels: Sequence[int]) -> Mapping[int, int]:
    """Positions of pictures with several labels -> the first position of the same picture with another label.

    Digests and labels (category ids) are one per image, N.
    """
    positions = defaultdict(list)
    for position, digest in enumerate(digests):
        positions[digest].append(position)
    found = {}
    for same in positions.values():
        for position in same if len({labels[each] for each in same}) > 1 else ():
            found[position] = next(each for each in same if labels[each] != labels[position])
    return dict(sorted(found.items()))
