"""What an image is known by: its pixels, however its file is called, captioned or turned."""

import hashlib

import numpy as np
from PIL import Image

from promptccd.images.jpeg import ADOBE, END, JFIF, JPEG, jpeg_segments

_COMMENT = 0xFE
_METADATA = {*range(JFIF, JFIF + 16), _COMMENT, END} - {ADOBE}  # the end, because some files lack it
MOST_TRIMMED = 16  # pixels that a lossless turn of a JPEG may cut off a side, a block of its coding
MOST_ALIKE = (
    4.0  # mean difference of miniatures, in grey levels of 255; that of a turn is some 3, by its rounding
)


def picture_key(content: bytes, loaded: Image.Image | np.ndarray | None) -> str:
    """A hash of a picture, 64 hexadecimal digits, that no metadata and no turn flag changes.

    Of a JPEG it is that of the coded picture, which saves decoding large photographs in full. Of any other file it is
    that of the pixels as they are stored, in any depth, and the same for all four quarter turns.

    Args:
        content: bytes of the file.
        loaded: the picture as it is stored, before anything was done to it, or its values where it has more than 8
            bits each; that of a JPEG may be `None`.
    """
    if loaded is None or content.startswith(JPEG):
        digest = hashlib.sha256()
        for marker, segment in jpeg_segments(content):
            if marker not in _METADATA:
                digest.update(segment)
        return digest.hexdigest()
    pixels = loaded if isinstance(loaded, np.ndarray) else np.asarray(_plain(loaded))
    weights = [_weights(pixels)]
    for _ in range(3):  # a quarter turn against the clock brings the upper right quarter to the upper left
        upper_left, upper_right, lower_left, lower_right = weights[-1]
        weights.append((upper_right, lower_right, upper_left, lower_left))
    turns = [turn for turn in range(4) if weights[turn] == max(weights)]
    return min(_digest(np.rot90(pixels, turn)) for turn in turns)


def _plain(image: Image.Image) -> Image.Image:
    """One mode for pictures that look the same: programs that save space store grey and few colours otherwise."""
    if image.mode in ("1", "L", "P", "LA", "PA", "RGB", "RGBA"):
        image = image.convert("RGBA" if image.has_transparency_data else "RGB")
        if image.mode == "RGBA" and image.getchannel("A").getextrema() == (255, 255):
            image = image.convert("RGB")
    return image


def _weights(pixels: np.ndarray) -> tuple[float, ...]:
    """Sums of the four quarters, row by row, by which one of the turns of a picture is chosen."""
    height, width = (max(1, side // 2) for side in pixels.shape[:2])
    quarters = (
        pixels[:height, :width],
        pixels[:height, -width:],
        pixels[-height:, :width],
        pixels[-height:, -width:],
    )
    return tuple(float(np.nan_to_num(each).sum()) for each in quarters)


def _digest(pixels: np.ndarray) -> str:
    digest = hashlib.blake2b(f"{pixels.shape} {pixels.dtype.kind}".encode(), digest_size=32)
    digest.update(np.ascontiguousarray(pixels).data)
    return digest.hexdigest()


def is_edited_file_of(
    before: tuple[tuple[int, int], np.ndarray], after: tuple[tuple[int, int], np.ndarray]
) -> bool:
    """Whether the new content of a file shows what the old one did: turned without loss, or saved once more.

    Args:
        before: width and height of the upright picture, and its miniature ``(32, 32)`` uint8, see `SeenImage`.
        after: the same of the new content.
    """
    (size, old), (now, new) = before, after
    for turn in range(4):
        sides = size if turn % 2 == 0 else size[::-1]
        if max(abs(one - other) for one, other in zip(sides, now, strict=True)) >= MOST_TRIMMED:
            continue
        difference = np.abs(np.rot90(old, turn).astype(np.int16) - new)
        if difference.mean() <= MOST_ALIKE:
            return True
    return False
