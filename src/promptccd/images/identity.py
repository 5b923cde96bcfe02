"""Identity of an image: keys of its pixels, and the small pictures that are stored of it."""

import hashlib
import io
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from promptccd.images.decode import Decoding, Verdict, box_of, decode_image
from promptccd.images.jpeg import ADOBE, END, JFIF, JPEG, jpeg_segments

if TYPE_CHECKING:
    from torch import Tensor

_COMMENT = 0xFE
_METADATA_MARKERS = {*range(JFIF, JFIF + 16), _COMMENT, END} - {ADOBE}  # the end, because some files lack it
MOST_TRIMMED = 16  # pixels that a lossless turn of a JPEG may cut off a side, a block of its coding
# Mean difference of miniatures, in grey levels of 255; that of a turn is some 3, by its rounding.
MOST_MINIATURE_DIFFERENCE = 4.0


def picture_key(content: bytes, loaded: Image.Image | np.ndarray | None) -> str:
    """A hash of a picture, 64 hexadecimal digits, that no metadata and no turn flag changes.

    For a JPEG, it is the hash of the coded picture, which saves decoding large photographs in full. For any other
    file, it is the hash of the stored pixels, in any depth, equal for all four quarter turns.

    Args:
        content: bytes of the file.
        loaded: the picture as it is stored, before anything was done to it, or its values where it has more than 8
            bits each; that of a JPEG may be `None`.
    """
    if loaded is None or content.startswith(JPEG):
        digest = hashlib.sha256()
        for marker, segment in jpeg_segments(content):
            if marker not in _METADATA_MARKERS:
                digest.update(segment)
        return digest.hexdigest()
    pixels = loaded if isinstance(loaded, np.ndarray) else np.asarray(_in_one_mode(loaded))
    # One of the turns is chosen by the sums of the four quarters.
    height, width = (max(1, side // 2) for side in pixels.shape[:2])
    rows, columns = (slice(height), slice(-height, None)), (slice(width), slice(-width, None))
    quarters = (pixels[row, column] for row in rows for column in columns)
    weights = [tuple(float(np.nan_to_num(each).sum()) for each in quarters)]
    for _ in range(3):  # a quarter turn against the clock brings the upper right quarter to the upper left
        upper_left, upper_right, lower_left, lower_right = weights[-1]
        weights.append((upper_right, lower_right, upper_left, lower_left))
    turns = [turn for turn in range(4) if weights[turn] == max(weights)]
    return min(_digest(np.rot90(pixels, turn)) for turn in turns)


def _in_one_mode(image: Image.Image) -> Image.Image:
    """One mode for pictures with equal pixels: programs that save space store grey and few colours otherwise."""
    if image.mode in ("1", "L", "P", "LA", "PA", "RGB", "RGBA"):
        image = image.convert("RGBA" if image.has_transparency_data else "RGB")
        if image.mode == "RGBA" and image.getchannel("A").getextrema() == (255, 255):
            image = image.convert("RGB")
    return image


def _digest(pixels: np.ndarray) -> str:
    digest = hashlib.blake2b(f"{pixels.shape} {pixels.dtype.kind}".encode(), digest_size=32)
    digest.update(np.ascontiguousarray(pixels).data)
    return digest.hexdigest()


def is_edited_file_of(
    before: tuple[tuple[int, int], np.ndarray], after: tuple[tuple[int, int], np.ndarray]
) -> bool:
    """Whether the new content of a file shows the old image: turned without loss, or saved once more.

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
        if difference.mean() <= MOST_MINIATURE_DIFFERENCE:
            return True
    return False


def digest_of(pixels: np.ndarray) -> bytes:
    """A digest that identifies the picture; pixels are ``(H, W, 3)`` uint8."""
    return hashlib.blake2b(pixels.tobytes(), salt=b"%dx%d" % pixels.shape[:2], digest_size=16).digest()


MINIATURE_SIDE = 32
THUMBNAIL_SIDE = 128
_LOSSLESS_SIDE = 32  # JPEG blurs drawings of this size, and saves nothing


@dataclass(frozen=True)
class SeenImage:
    """Stored data of an image after decoding.

    Attributes:
        size: width and height in pixels, upright.
        key: identity of the picture, see `picture_key`.
        miniature: ``(32, 32)`` uint8, grey; finds near-duplicates.
        thumbnail: a JPEG of at most `THUMBNAIL_SIDE` pixels a side, or a PNG if the image is tiny; no metadata. Strips
            lose their ends first, because their short side would vanish otherwise.
        view: ``(3, S, S)`` uint8, or `None` if no view was asked for.
        taken: when it was taken, see `DecodedImage`.
        is_rendered: whether the other values depend on the rule of `promptccd.images.rendering`.
    """

    size: tuple[int, int]
    key: str
    miniature: np.ndarray
    thumbnail: bytes
    view: "Tensor | None" = None
    taken: str = ""
    is_rendered: bool = False


def view_of(content: bytes, decoding: Decoding, view: Any) -> "Tensor | None":
    """The view of an image file alone; `None` if the image is skipped."""
    decoded = decode_image(content, decoding, enough=max(view.enough, 2 * THUMBNAIL_SIDE))
    return None if decoded.image is None else view(decoding.fitted(decoded).image)


def look_at(content: bytes, decoding: Decoding, view: Any) -> tuple[Verdict, SeenImage | None]:
    """Decode the bytes of a file once; a JPEG no larger than the view needs, without a view at full size.

    Args:
        content: of the file.
        decoding: how it becomes pixels.
        view: the fixed view, a `promptccd.data.views.EvaluationView`, or `None`.

    Returns:
        The verdict, and the stored data of the image, `None` exactly when it is skipped.
    """
    enough = None if view is None else max(view.enough, 2 * THUMBNAIL_SIDE)
    decoded = decode_image(content, decoding, enough=enough)
    if decoded.image is None:
        return decoded.verdict, None
    small, thumbnail = _shrunk(decoded.image), io.BytesIO()
    is_tiny = max(small.size) <= _LOSSLESS_SIDE
    small.save(thumbnail, "PNG") if is_tiny else small.save(thumbnail, "JPEG", quality=80)
    return decoded.verdict, SeenImage(
        size=decoded.size,
        key=picture_key(decoded.jpeg or content, decoded.loaded),
        miniature=miniature_of(small),
        thumbnail=thumbnail.getvalue(),
        view=None if view is None else view(decoding.fitted(decoded).image),
        taken=decoded.taken,
        is_rendered=decoded.levels is not None or decoded.pages > 1,
    )


def miniature_of(image: Image.Image) -> np.ndarray:
    """A grey picture ``(32, 32)`` of an RGB image."""
    return np.asarray(image.convert("L").resize((MINIATURE_SIDE, MINIATURE_SIDE), Image.Resampling.BOX))


def _shrunk(image: Image.Image) -> Image.Image:
    left, top, right, bottom = box = box_of(image.size)
    scale = min(1.0, THUMBNAIL_SIDE / max(right - left, bottom - top))
    size = (max(1, round((right - left) * scale)), max(1, round((bottom - top) * scale)))
    return image.resize(size, Image.Resampling.BICUBIC, box, reducing_gap=2.0)
