"""What is in a file: camera RAW, JPEG without an end, what is no picture, and pictures that fill the memory."""

import io
import struct

import numpy as np
import pytest
from PIL import Image

from promptccd import systems
from promptccd.data.sources import read_regular_file
from promptccd.images import decode
from promptccd.images.clean import clean_image
from promptccd.images.decode import Decoding, Status, Verdict, decode_image
from promptccd.images.limits import ByteBudget, IntakeLimits, SkippedFileError
from tests.images.test_decode import deep_tiff, encoded, oriented, photograph, picture

SMALL = picture(160, 120)
RAW_VALUES = np.full((900, 1200), 9000, np.uint16)


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
    "NEF": joined_tiff({254: 1}, {254: 0}),
    "DNG": joined_tiff({254: 1, 50706: 1025}, {262: 32803}),
    "only below": joined_tiff({}, {}),
    "CR2": b"II*\0\x10\0\0\0CR\2\0" + bytes(300),
    "CR3": b"\0\0\0\x18ftypcrx \0\0\0\1crx isom" + bytes(300),
    "RAF": b"FUJIFILMCCD-RAW 0201" + bytes(300),
    "ORF": b"IIRO\x08\0\0\0" + bytes(300),
    "RW2": b"IIU\0\x08\0\0\0" + bytes(300),
}


@pytest.mark.parametrize("kind", RAWS)
def test_camera_raw_is_its_jpeg_of_full_size_or_nothing(kind: str) -> None:
    for behind in (b"", THUMBNAIL, b"\xff\xd8\xff\xc4" + bytes(99)):
        found = decode_image(RAWS[kind] + behind)
        assert found.verdict.status is Status.SKIPPED
        assert found.verdict.note.startswith("camera RAW (")
        assert "give the JPEG that the camera wrote beside it" in found.verdict.note
        assert clean_image(RAWS[kind] + behind) is None
    for behind in (FULL, THUMBNAIL + bytes(7) + FULL + THUMBNAIL + bytes(99)):
        found = decode_image(RAWS[kind] + behind)
        assert found.verdict.status is Status.NOTED
        assert found.verdict.note.endswith("the JPEG inside is used")
        assert (found.size, found.jpeg) == ((1200, 900), FULL)
        assert found.image is not None
        assert found.image.tobytes() == decode_image(FULL).image.tobytes()  # type: ignore[union-attr]


@pytest.mark.parametrize("sides", [(800, 300), (300, 800)])
def test_the_longer_side_of_the_photograph_says_what_is_full_size(sides: tuple[int, int]) -> None:
    raw = joined_tiff({254: 1}, {256: sides[0], 257: sides[1]})
    for side, is_used in ((400, False), (710, False), (730, True)):
        jpeg = encoded(picture(side, 280), "JPEG")
        assert decode_image(raw + jpeg).jpeg == (jpeg if is_used else b"")


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_camera_raw_says_how_its_jpeg_is_turned_unless_that_says_so_itself(orientation: int) -> None:
    raw = joined_tiff({254: 1, 274: orientation}, {})
    for enough in (None, 100):
        found = decode_image(raw + FULL, enough=enough)
        expected = decode_image(oriented("JPEG", orientation, photograph(1200, 900)), enough=enough)
        assert (found.size, found.box) == (expected.size, expected.box)
        assert found.image is not None and expected.image is not None
        difference = np.abs(np.asarray(found.image).astype(int) - np.asarray(expected.image)).mean()
        assert difference < 4  # of another quality; another turn differs by 50
    turned = oriented("JPEG", 3, photograph(1200, 900))
    itself = decode_image(raw + turned).image
    assert itself is not None and itself.tobytes() == decode_image(turned).image.tobytes()  # type: ignore[union-attr]


def test_other_files_with_several_pictures_are_no_camera_raw() -> None:
    pages = encoded(picture(48, 36), "TIFF", save_all=True, append_images=[picture(96, 72)])
    assert decode_image(pages).verdict.note == "first of 2 frames used"
    pyramid = joined_tiff({256: 160}, {256: 80, 257: 60})
    assert decode_image(pyramid).verdict == Verdict(Status.USED)


def test_a_small_picture_that_a_scanner_puts_in_front_is_not_the_page() -> None:
    small, page = picture(48, 36), photograph(300, 200)
    content = encoded(small, "TIFF", save_all=True, append_images=[page], tiffinfo={254: 1})
    entry = struct.pack("<HHII", 254, 4, 1, 1)
    before, _, after = content.rpartition(entry)
    found = decode_image(before + entry[:-4] + bytes(4) + after)
    assert found.image is not None
    assert found.image.tobytes() == page.tobytes()
    assert decode_image(content).size == (48, 36)  # all of them are small ones


@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"subsampling": 0}, {"quality": 30}], ids=str)
@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_a_jpeg_that_lacks_its_end_alone_is_used(mode: str, options: dict[str, object]) -> None:
    content = encoded(photograph(200, 150).convert(mode), "JPEG", **options)
    whole = decode_image(content)
    assert whole.image is not None
    for cut in (1, 2):
        found = decode_image(content[:-cut])
        assert found.verdict == Verdict(Status.NOTED, "without its end marker")
        assert found.image is not None and found.image.tobytes() == whole.image.tobytes()
        assert decode_image(content[:-cut], enough=50).verdict == found.verdict
        clean = clean_image(content[:-cut])
        assert clean is not None
        assert decode_image(clean[1]).image.tobytes() == whole.image.tobytes()  # type: ignore[union-attr]
    for cut in (3, 4, 5, 9):  # a few bits that round to nothing may lack too
        found = decode_image(content[:-cut])
        assert found.image is None or found.image.tobytes() == whole.image.tobytes()
    for cut in (30, len(content) // 30, len(content) // 2):
        assert decode_image(content[:-cut]).verdict == Verdict(Status.SKIPPED, "truncated file")
    if options.get("progressive"):
        scans = [at for at in range(len(content)) if content[at : at + 2] == b"\xff\xda"]
        assert decode_image(content[: scans[-1]]).verdict.status is Status.SKIPPED  # whole rows, and coarse


NO_PICTURES = {
    b"\0\0\0\x20ftypisom\0\0\2\0isomiso2avc1mp41": "a video (MP4)",
    b"\0\0\0\x20ftypmp42": "a video (MP4)",
    b"\0\0\0\x20ftypM4V ": "a video (MP4)",
    b"\0\0\0\x14ftypqt  \0\0\0\0qt  ": "a video (MOV)",
    b"\0\0\0\x08wide\0\0\0\0mdat": "a video (MOV)",
    b"\0\0\0\x18ftyp3gp4": "a video (3GP)",
    b"\0\0\0\x18ftyp3g2a": "a video (3GP)",
    b"\0\0\0\x18ftypM4A ": "sound (M4A)",
    b"RIFF\x10\x20\0\0AVI LIST": "a video (AVI)",
    b"RIFF\x10\x20\0\0WAVEfmt ": "sound (WAV)",
    b"\x1aE\xdf\xa3\1": "a video (Matroska or WebM)",
    b"\0\0\1\xba": "a video (MPEG)",
    b"\x30\x26\xb2\x75\x8e\x66": "a video (WMV)",
    b"\xff\x0a": "JPEG XL",
    b"\0\0\0\x0cJXL \r\n\x87\n": "JPEG XL",
    b"photo.jpg" + bytes(248) + b"ustar\0": "a tar archive",
    b"7z\xbc\xaf\x27\x1c": "a 7z archive",
    b"Rar!\x1a\x07\1\0": "a RAR archive",
    b"\x1f\x8b\x08": "a gzip archive",
    b"PK\3\4" + bytes(26) + b"[Content_Types].xml": "an office file",
    b"PK\3\4" + bytes(26) + b"mimetypeapplication/vnd.oasis.opendocument.text": "an office file",
    b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1": "an office file",
    b"PK\3\4" + bytes(26) + b"photo.jpg": "a ZIP archive",
    b"<svg ": "SVG",
    b"path,label\na.jpg,cat\n": "text",
    "höhe;größe\n1;2\n".encode(): "text",
    b"<?xpacket begin=": "an XMP side file",
    bytes(128) + b"DICM": "DICOM",
    b"v/1\1": "OpenEXR",
    b"SIMPLE  =                    T": "FITS",
    b"ID3\4": "sound (MP3)",
    bytes(600): "nothing: all its first bytes are 0",
}


@pytest.mark.parametrize(("start", "kind"), NO_PICTURES.items(), ids=NO_PICTURES.values())
def test_what_is_no_picture_is_called_what_it_is(start: bytes, kind: str, tmp_path) -> None:
    is_text = kind == "text"
    content = start if is_text else start + bytes(600)
    found = decode_image(content)
    assert found.image is None
    assert found.verdict.note.startswith(f"not an image that can be read (starts like {kind})")
    (tmp_path / "video.mp4").write_bytes(start + (b" " if is_text else b"\0") * 2**20)
    nothing = ByteBudget(
        IntakeLimits(max_total_bytes=1), "the folder"
    )  # because a large one is not read for it
    with pytest.raises(SkippedFileError, match=kind.partition(" (")[0]):
        read_regular_file(str(tmp_path / "video.mp4"), nothing)


def test_stacks_say_when_the_plane_that_is_used_is_empty() -> None:
    planes = [Image.fromarray(np.full((20, 30), 0, np.uint16)), Image.fromarray(RAW_VALUES[:20, :30])]
    content = encoded(planes[0], "TIFF", save_all=True, append_images=planes[1:])
    assert "first of 2 frames used, which is empty" in decode_image(content).verdict.note


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """A world in which 50,000 pixels are many."""
    monkeypatch.setattr(decode, "MOST_HANDED_ON", 50_000)


HOW = Decoding(handed_on=50_000)
KINDS = [
    ("JPEG", {}),
    ("JPEG", {"progressive": True}),
    ("PNG", {}),
    ("TIFF", {}),
    ("WEBP", {"lossless": True}),
]


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize(("codec", "options"), [*KINDS, ("AVIF", {"quality": 100})], ids=str)
def test_large_photographs_of_every_kind_are_handed_on_reduced_and_leave_whole(
    codec: str, options: dict
) -> None:
    content = encoded(photograph(411, 303), codec, **options)
    found = decode_image(content, HOW)
    assert found.verdict == Verdict(Status.NOTED, "411 x 303 pixels, reduced")
    assert found.image is not None
    assert (found.size, found.image.size, found.box) == ((411, 303), (206, 152), (0, 0, 205.5, 151.5))
    whole = decode_image(content, HOW.whole)
    assert whole.image is not None and whole.image.size == (411, 303)
    suffix, clean = clean_image(content, HOW) or ("", b"")
    left = decode_image(clean, HOW.whole).image
    assert left is not None and left.tobytes() == whole.image.tobytes()


@pytest.mark.usefixtures("large")
def test_a_large_picture_is_decoded_only_if_memory_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    content = encoded(photograph(411, 303), "PNG")
    monkeypatch.setattr(systems, "free_memory", lambda: 16 * 411 * 303)
    assert decode_image(content, HOW).verdict.status is Status.NOTED
    monkeypatch.setattr(systems, "free_memory", lambda: 16 * 411 * 303 - 1)
    verdict = decode_image(content, HOW).verdict
    assert (verdict.status, verdict.is_passing) == (Status.SKIPPED, True)
    assert "GB are free: close other programs" in verdict.note
    assert decode_image(encoded(picture(), "PNG"), HOW).verdict.status is Status.USED


@pytest.mark.slow
@pytest.mark.parametrize("make", ["JPEG", "progressive", "TIFF", "PNG", "16 bit"])
def test_a_sheet_of_70_million_pixels_is_read_by_default(make: str) -> None:
    if make == "16 bit":
        values = np.tile(np.arange(10_000, dtype=np.uint16), (7_000, 1))
        content = deep_tiff(values)
    else:
        tile = np.asarray(photograph(1000, 1000))
        sheet = Image.fromarray(np.tile(tile, (7, 10, 1)))
        stream = io.BytesIO()
        options = {"progressive": {"progressive": True}, "PNG": {"compress_level": 1}}.get(make, {})
        sheet.save(stream, "JPEG" if make == "progressive" else make, **options)
        content = stream.getvalue()
    found = decode_image(content)
    assert found.verdict.note.startswith("10000 x 7000 pixels, reduced")
    assert found.image is not None and found.image.size == (5000, 3500)
