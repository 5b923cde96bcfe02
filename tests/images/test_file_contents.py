"""What a file is by its first bytes: camera RAW, stacks of planes, other files; and pictures that fill the memory."""

import gzip
import math
import struct

import numpy as np
import pytest
from PIL import ExifTags, Image

from promptccd import systems
from promptccd.images import decode
from promptccd.images.camera import seconds_of
from promptccd.images.clean import clean_image
from promptccd.images.decode import Status, Verdict, decode_image
from promptccd.images.kinds import camera_raw_kind, is_picture, kind_of, picture_kind, why_skipped
from tests.images.test_decode import encoded, oriented, photograph, picture
from tests.messages import TEXT

SMALL = picture(160, 120)


def joined_tiff(first: dict[int, int], below: dict[int, int], behind: bytes = b"") -> bytes:
    """A TIFF with a small picture in front and another below it, as cameras write; and something behind."""
    rows = np.asarray(SMALL).tobytes()
    tags = {256: 160, 257: 120, 258: 8, 259: 1, 262: 2, 273: 400, 277: 3, 278: 120, 279: len(rows), 330: 300}
    others = {256: 1200, 257: 900, 258: 16, 259: 1, 262: 1, 277: 1}
    content = b"II*\0" + struct.pack("<I", 8) + directory({**tags, **first}).ljust(292, b"\0")
    return content + directory({**others, **below}).ljust(100, b"\0") + rows + behind


def directory(tags: dict[int, int]) -> bytes:
    entries = [struct.pack("<HHII", tag, 4, 1, number) for tag, number in sorted(tags.items())]
    return struct.pack("<H", len(entries)) + b"".join(entries) + bytes(4)


FULL = encoded(photograph(1200, 900), "JPEG", quality=92)
THUMBNAIL = encoded(SMALL, "JPEG")
RAWS = {
    "TIFF, NEF": joined_tiff({254: 1, 271: 1}, {254: 0}),
    "TIFF, DNG": joined_tiff({254: 1, 50706: 1025}, {262: 32803}),
    "TIFF, DNG of BigTIFF": encoded(SMALL, "TIFF", big_tiff=True, tiffinfo={50706: b"\1\4\0\0"}),
    "TIFF, only below": joined_tiff({271: 1}, {}),
    "CR2": b"II*\0\x10\0\0\0CR\2\0" + bytes(300),
    "CR2, big-endian": b"MM\0*\0\0\0\x10CR\2\0" + bytes(300),
    "CR3": b"\0\0\0\x18ftypcrx \0\0\0\1crx isom" + bytes(300),
    "RAF": b"FUJIFILMCCD-RAW 0201" + bytes(300),
    "ORF": b"IIRO\x08\0\0\0" + bytes(300),
    "RW2": b"IIU\0\x08\0\0\0" + bytes(300),
}


@pytest.mark.parametrize("kind", RAWS)
def test_camera_raw_is_its_jpeg_of_full_size_or_nothing(kind: str) -> None:
    frame = FULL.index(b"\xff\xc0")
    of_12_bits = FULL[: frame + 4] + b"\x0c" + FULL[frame + 5 :]
    scan = b"\xff\xd8\xff\xda\0\4\0\0" + bytes(99)
    printed = encoded(photograph(1200, 900).convert("CMYK"), "JPEG")
    assert is_picture(RAWS[kind])
    for behind in (b"", THUMBNAIL, b"\xff\xd8\xff\xc4" + bytes(99), of_12_bits, scan, printed, FULL[:frame]):
        found = decode_image(RAWS[kind] + behind)
        assert found.verdict.status is Status.SKIPPED
        assert found.verdict.note.startswith(f"camera RAW ({kind.partition(',')[0]})")
        assert TEXT["give-the-jpeg-that-the-camera"] in found.verdict.note
        assert clean_image(RAWS[kind] + behind) is None
    for behind in (FULL, THUMBNAIL + bytes(7) + FULL + THUMBNAIL + bytes(99)):
        found = decode_image(RAWS[kind] + behind)
        assert found.verdict.status is Status.NOTED
        assert found.verdict.note.endswith("the JPEG inside is used")
        assert (found.size, found.jpeg) == ((1200, 900), FULL)
        assert found.image is not None
        assert found.image.tobytes() == decode_image(FULL).image.tobytes()  # type: ignore[union-attr]


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_camera_raw_says_how_its_jpeg_is_turned_unless_that_says_so_itself(orientation: int) -> None:
    raw = joined_tiff({254: 1, 271: 1, 274: orientation}, {})
    for enough in (None, 100):
        found = decode_image(raw + FULL, enough=enough)
        expected = decode_image(oriented("JPEG", orientation, photograph(1200, 900)), enough=enough)
        assert found.size == expected.size
        assert found.image is not None and expected.image is not None
        difference = np.abs(np.asarray(found.image).astype(int) - np.asarray(expected.image)).mean()
        assert difference < 4  # of another quality; another turn differs by 50
    turned = oriented("JPEG", 3, photograph(1200, 900))
    itself = decode_image(raw + turned).image
    assert itself is not None and itself.tobytes() == decode_image(turned).image.tobytes()  # type: ignore[union-attr]


WHEN = {  # tags of the EXIF directory, when it was taken, and in seconds
    "taken": ({36867: "2024:05:01 10:11:12", 36868: "2023:01:01 00:00:00"}, "2024-05-01T10:11:12", 1714558272.0),
    "east": ({36867: "2024-05-01T10:11:12", 36881: "+02:00\0"}, "2024-05-01T10:11:12+02:00", 1714558272.0),
    "no zone": ({36868: "1969:12:31 23:59:59", 36881: "+02:00", 36882: "MEZ"}, "1969-12-31T23:59:59", -1.0),
    "made digital": ({36867: "0000:00:00 00:00:00", 36868: "1970:01:01 00:00:01"}, "1970-01-01T00:00:01", 1.0),
    "written": ({306: "2024:02:30 10:11:12"}, "2024-02-30T10:11:12", math.nan),  # no day of a calendar
    "unknown": ({36867: "    :  :  ", 306: 5}, "", math.nan),
}  # fmt: skip


@pytest.mark.parametrize("kind", WHEN)
def test_when_a_photograph_was_taken_is_by_the_clock_of_its_camera(kind: str) -> None:
    tags, taken, seconds = WHEN[kind]
    exif = Image.Exif()
    exif.update({271: "Phone", **{tag: value for tag, value in tags.items() if tag == 306}})
    exif.get_ifd(ExifTags.IFD.Exif).update({tag: value for tag, value in tags.items() if tag != 306})
    assert decode_image(encoded(picture(), "PNG", exif=exif)).taken == taken
    assert seconds_of(taken) == pytest.approx(seconds, nan_ok=True)


def test_other_files_with_several_pictures_are_no_camera_raw() -> None:
    pages = encoded(picture(48, 36), "TIFF", save_all=True, append_images=[picture(96, 72)])
    assert decode_image(pages).verdict.note == TEXT["first-of-2-frames-used"]
    pyramid = joined_tiff({256: 160}, {256: 80, 257: 60})
    assert decode_image(pyramid).verdict == Verdict(Status.USED)


def test_a_large_picture_is_decoded_only_if_memory_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode, "LARGE", 50_000)
    content = encoded(photograph(411, 303), "PNG")
    monkeypatch.setattr(systems, "free_memory", lambda: 16 * 411 * 303)
    assert decode_image(content).verdict.status is Status.USED
    monkeypatch.setattr(systems, "free_memory", lambda: 16 * 411 * 303 - 1)
    verdict = decode_image(content).verdict
    assert (verdict.status, verdict.is_passing) == (Status.SKIPPED, True)
    assert TEXT["gb-are-free-close-other-programs"] in verdict.note
    assert decode_image(encoded(picture(), "PNG")).verdict.status is Status.USED


@pytest.mark.slow
def test_a_sheet_of_70_million_pixels_is_read_by_default() -> None:
    tile = np.asarray(photograph(1000, 1000))
    found = decode_image(encoded(Image.fromarray(np.tile(tile, (7, 10, 1))), "JPEG"))
    assert found.image is not None and found.image.size == (10000, 7000)


# What a file is, by its first bytes

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
