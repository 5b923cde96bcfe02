"""What a file is, by its first bytes."""

import gzip

import pytest
from PIL import Image

from promptccd.images.kinds import camera_raw_kind, is_picture, kind_of, picture_kind, why_skipped
from tests.images.test_decode import encoded

NAVY = Image.new("RGB", (8, 8), "navy")
READ = {
    **{codec: encoded(NAVY, codec)[:512] for codec in ("JPEG", "PNG", "GIF", "BMP", "WEBP", "AVIF", "TIFF")},
    "TIFF ": b"MM\0*\0\0\0\x08",
    "TIFF  ": encoded(NAVY, "TIFF", big_tiff=True)[:512],
    "AVIF ": b"\0\0\0\x1cftypmif1\0\0\0\0mif1avifmiaf",
    **{"PPM" + " " * number: b"P%d\n8 8\n" % number for number in range(1, 8)},
}


@pytest.mark.parametrize("kind", READ)
def test_pictures_are_told(kind: str) -> None:
    head = READ[kind]
    assert (picture_kind(head), camera_raw_kind(head)) == (kind.strip(), "")
    assert is_picture(head)
    assert (kind_of(head)[0], why_skipped(head)) == ("an image", "")


@pytest.mark.parametrize(
    ("head", "kind", "advice"),
    [
        (b"P0\n8 8\n", "text", "give a table"),
        (b"P8\n8 8\n", "text", "give a table"),
        (b" \n<!DOCTYPE html><p>", "HTML", "save the picture itself"),
        (b"\xef\xbb\xbf<svg>", "SVG", "save it as JPEG or PNG"),
        (b"{\\rtf1", "an office file", "save it as"),
        (b'{"a": 1}', "JSON", ""),
        (b"PK\x03\x04" + bytes(26) + b"word/document.xml", "an office file", "save its pictures"),
        (b"PK\x03\x04" + bytes(26) + b"photos/1.jpg", "a ZIP archive", "give it by itself"),
        (b"7z\xbc\xaf\x27\x1c", "a packed archive", "unpack it first"),
        (b"a.png".ljust(257, b"\0") + b"ustar\0" + b"00", "a packed archive", "unpack it first"),
        (b"\0\0\0\x18ftypmp42\0\0\0\0", "a video", "save some of its frames"),
        (b"RIFF\x24\0\0\0AVI LIST", "a video", "save some of its frames"),
        (b"\x1aE\xdf\xa3\1", "a video", "save some of its frames"),
        (b"\0\0\0\x18ftypM4A \0\0\0\0", "sound", "give features of such files"),
        (b"ID3\4", "sound", "give features of such files"),
        (bytes(128) + b"DICM", "DICOM", "save it as"),
        (b"SIMPLE  =                    T", "FITS", "save its images"),
        (b"\x89HDF\r\n\x1a\n", "HDF5", "save its images"),
        (b"PAR1\x15\x04", "a table (parquet)", "give it by itself"),
        (b"\x93NUMPY", "a NumPy array (.npy)", "save its images"),
        (gzip.compress(b"\0" * 344 + b"n+1\0", mtime=0), "NIfTI", "save it as"),
        (bytes(512), "nothing: all its first bytes are 0", "copy it again"),
        ("Notes für später\n".encode(), "text", "give a table"),
        ("Notes\n".encode("utf-16"), "text", "give a table"),
        (b"\x01\x02\x03\x04", "no known format", "give JPEG, PNG or WebP"),
    ],
)
def test_what_is_no_picture_is_called_what_it_is_with_what_to_do(head: bytes, kind: str, advice: str) -> None:
    assert kind_of(head)[0] == kind
    said = f"not an image that can be read (starts like {kind})"
    assert why_skipped(head).startswith(f"{said}: {advice}") if advice else why_skipped(head) == said


def test_letters_that_are_cut_at_the_end_of_what_was_read_are_text_still() -> None:
    words = ("ä" * 300).encode()
    assert kind_of(b"a" + words[:511])[0] == "text"
    assert kind_of(words[:99])[0] == "no known format"  # here the file ends
    assert why_skipped(b"") == "empty file"
