"""HEIC and HEIF, in which phones and newer cameras take photographs: read where pillow-heif is installed.

It is one more parser of what strangers made, so it is an extra. Only `promptccd.images.decode` asks its plug-in:
registered with Pillow, it would open files for every other library of the process as well.
"""

from functools import cache
from typing import Any

SUFFIXES = (".heic", ".heif", ".hif")
INSTALL = "pip install 'promptccd[heic]'"
_BRANDS = (
    b"hei",
    b"hev",
    b"mif1",
    b"msf1",
)  # of still pictures and of sequences, coded as HEVC or not said as what


def is_heif(head: bytes) -> bool:
    """Whether a file begins like HEIF, other than AVIF, by its first bytes."""
    return head[4:8] == b"ftyp" and head[8:12].startswith(_BRANDS)


@cache
def heif_plugin() -> Any:
    """The class that opens a HEIF file as an image of Pillow; `None` where pillow-heif is not installed."""
    try:
        from pillow_heif import HeifImageFile
    except ImportError:
        return None
    return HeifImageFile
