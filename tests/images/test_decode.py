import functools
import io
import os
import re
import struct
import subprocess
import sys
import textwrap
import zlib
from collections import Counter
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import PIL
import pytest
from PIL import Image, ImageFile, TiffImagePlugin, TiffTags

from promptccd import systems
from promptccd.images.decode import DecodedImage, Decoding, Status, Verdict, decode_image
from promptccd.images.files import read_regular_file
from promptccd.images.kinds import FEATURES, kind_of
from promptccd.images.limits import ByteBudget, IntakeLimits, SkippedFileError
from promptccd.images.rendering import Rendering
from tests.data.layouts import written
from tests.messages import TEXT
from tests.photographs import encoded, png_of
from tests.photographs import png_chunk as chunk

USED, NOTED, SKIPPED = Status.USED, Status.NOTED, Status.SKIPPED
CODECS = [
    ("JPEG", {}), ("JPEG", {"progressive": True}), ("PNG", {}), ("GIF", {}), ("WEBP", {}), ("WEBP", {"lossless": True}),
    ("BMP", {}), ("TIFF", {}), ("TIFF", {"compression": "tiff_lzw"}), ("PPM", {}), ("AVIF", {}),
]  # fmt: skip


def picture(width=48, height=36, mode="RGB"):
    """A smooth picture without any symmetry."""
    rng = np.random.default_rng(width * height)
    coarse = rng.integers(0, 256, (5, 6, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC).convert(mode)


def frames(codec, count=12, stripe=False):
    moving = [Image.new("RGB", (16, 16), (20 * index, 0, 0)) for index in range(count)]
    if stripe:
        moving[0].paste("white", (0, 0, 8, 16))
    return encoded(moving[0], codec, save_all=True, append_images=moving[1:])


def png(width, height, *extra, rows=b""):
    return png_of((width, height), 8, 0, rows or zlib.compress(bytes(20)), *extra)


def zeros_compressed(size):
    """A zlib stream of so many zeros, and of up to a MiB more: one packed block again and again."""
    count = size // 2**20 + 1
    packer = zlib.compressobj(wbits=-15)
    block = packer.compress(bytes(2**20)) + packer.flush(zlib.Z_FULL_FLUSH)
    checksum = count * 2**20 % 65521 << 16 | 1
    return b"\x78\x9c" + block * count + b"\x03\0" + struct.pack(">I", checksum)


def gif(frame_sizes):
    """Black frames behind a logical screen of 1 x 1."""
    start = b"GIF89a" + struct.pack("<HH", 1, 1) + b"\x80\0\0\0\0\0\xff\xff\xff"
    body = [b"," + struct.pack("<HHHH", 0, 0, *size) + b"\0\x02\x02\x44\x01\0" for size in frame_sizes]
    return start + b"".join(body) + b";"


def oriented(codec, orientation, image=None):
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encoded(image or picture(), codec, exif=exif)


def deep_png(values):
    """A 16-bit PNG, grey or with colours, with transparency or without."""
    colour = {1: 0, 2: 4, 3: 2, 4: 6}[1 if values.ndim == 2 else values.shape[2]]
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)
    return png_of(values.shape[1::-1], 16, colour, zlib.compress(rows))


def tiff(values):
    return encoded(Image.fromarray(values), "TIFF")


def with_transparency(mode):
    image = picture().convert(mode)
    image.putalpha(Image.new("L", image.size, 128))
    return image


JPEG, PNG = encoded(picture(), "JPEG"), encoded(picture(), "PNG")
RAMP_16 = np.linspace(0, 65535, 48 * 36).reshape(36, 48)
RAMP_01 = np.linspace(0, 1, 48 * 36, dtype=np.float32).reshape(36, 48)
HOLED = np.where(np.arange(36)[:, None] == 7, np.float32(np.nan), RAMP_01)
INFINITE = np.where(np.isnan(HOLED), np.float32(np.inf), RAMP_01)
BOMB_WEBP = bytes.fromhex("524946461a000000574542505650384c0e0000002ffebfff0f071011fd0f4444ff03")  # 16383^2

CROPPED = "wider or taller than 2:1, only the centre is used: --fit pad|squeeze"

PAGE = "HTML): save the picture itself instead of the page"
STARTS = "not an image that can be read (starts like"
NOTHING = "{} million pixels in {} bytes: a picture of one colour, or made to exhaust memory"
# Pillow 13 refuses more than twice its own limit by itself.
BOMB_NOTE = (
    NOTHING.format(268, 34)
    if int(PIL.__version__.split(".")[0]) < 13
    else "more pixels than Pillow opens of a WEBP file"
)
GOLDEN = {  # file name -> (content, status, note)
    "zero.jpg": (b"", SKIPPED, "empty file"),
    "page.jpg": (b"\n<!DOCTYPE html><title>404", SKIPPED, f"{STARTS} {PAGE}"),
    "text.jpg": (b"hello, text", SKIPPED, f"{STARTS} text): {kind_of(b'hello, text')[1]}"),
    "drawing2.svg": (b"<?xml?><svg/>", SKIPPED, f"{STARTS} XML or SVG)"),
    "paper.pdf": (b"%PDF-1.7\n", SKIPPED, f"{STARTS} PDF or PostScript): save its pages as JPEG or PNG"),
    "phone.heic": (
        b"\0\0\0\x18ftypheic" + bytes(40), SKIPPED, "damaged, truncated or unsupported HEIC file",
    ),
    "album.zip": (b"PK\3\4" + bytes(9), SKIPPED, f"{STARTS} a ZIP archive): give it by itself, or unpack it"),
    "lfs.png": (
        b"version https://git-lfs.github.com/spec/v1\noid sha256:0", SKIPPED,
        f"{STARTS} a Git LFS pointer, not downloaded): git lfs pull downloads it",
    ),
    "icon.ico": (
        encoded(picture(), "ICO"), SKIPPED, f"{STARTS} no known format): give JPEG, PNG or WebP, or {FEATURES}",
    ),
    "wavelets.jp2": (
        encoded(picture(), "JPEG2000"), SKIPPED, f"{STARTS} JPEG 2000): save it as JPEG or PNG",
    ),
    "truncated.jpg": (JPEG[:-40], SKIPPED, "truncated file"),
    "truncated.png": (PNG[: len(PNG) // 2], SKIPPED, "truncated file"),
    "header only.jpg": (JPEG[:20], SKIPPED, "damaged, truncated or unsupported JPEG file"),
    "broken stream.png": (PNG[:70] + b"\xff" * 40 + PNG[110:], SKIPPED, "damaged file"),
    "plain.jpg": (JPEG, USED, ""),
    "plain.png": (PNG, USED, ""),
    "wrong extension.png": (JPEG, USED, ""),
    "plain.gif": (encoded(picture(), "GIF"), USED, ""),
    "grey.jpg": (encoded(picture(mode="L"), "JPEG"), USED, ""),
    "bilevel.png": (encoded(picture(mode="1"), "PNG"), USED, ""),
    "palette.png": (encoded(picture().quantize(16), "PNG"), USED, ""),
    "cmyk.jpg": (encoded(picture(mode="CMYK"), "JPEG"), USED, ""),
    "opaque.png": (encoded(picture(mode="RGBA"), "PNG"), USED, ""),
    "rgba.png": (encoded(with_transparency("RGB"), "PNG"), NOTED, "transparency laid over white"),
    "la.png": (encoded(with_transparency("L"), "PNG"), NOTED, "transparency laid over white"),
    "transparent palette.png": (
        encoded(picture().quantize(16), "PNG", transparency=3), NOTED, "transparency laid over white",
    ),
    "rgba.webp": (encoded(with_transparency("RGB"), "WEBP"), NOTED, "transparency laid over white"),
    "grey16.png": (
        encoded(Image.fromarray(RAMP_16.astype(np.uint16)), "PNG"), NOTED, "16 bits scaled to 8 bits",
    ),
    "grey16.tif": (tiff(RAMP_16.astype(np.uint16)), NOTED, "16 bits scaled to 8 bits"),
    "grey16.pgm": (
        b"P5 48 36 65535\n" + RAMP_16.astype(">u2").tobytes(), NOTED, "16 bits scaled to 8 bits",
    ),
    "grey12.pgm": (  # Pillow scales its values up to 16 bits
        b"P5 48 36 4095\n" + (RAMP_16 / 100).astype(">u2").tobytes(), NOTED, "16 bits scaled to 8 bits",
    ),
    "grey16 with alpha.png": (
        deep_png(np.stack([RAMP_16, RAMP_16[::-1]], axis=-1)), NOTED,
        "16-bit colours of which 8 bits can be read; transparency laid over white",
    ),
    "signed.tif": (
        tiff(RAMP_16.astype(np.int32) - 9), NOTED, "16 bits scaled to 8 bits, smaller values cut",
    ),
    "float 0 to 1.tif": (tiff(RAMP_01), NOTED, "float values from 0 to 1 scaled to 8 bits"),
    "float 0 to 255.tif": (
        tiff(RAMP_01 * 255), NOTED, "float values from 0 to 255 scaled to 8 bits",
    ),
    "nan.tif": (tiff(HOLED), NOTED, "float values from 0 to 1 scaled to 8 bits"),
    "no number.tif": (tiff(HOLED * np.float32(np.nan)), SKIPPED, "no value is a finite number"),
    "infinite.tif": (tiff(INFINITE), NOTED, "float values from 0 to 1 scaled to 8 bits"),
    "moving.gif": (frames("GIF"), NOTED, "first of 12 frames used, which is empty"),
    "moving.webp": (frames("WEBP"), NOTED, "first of 12 frames used, which is empty"),
    "moving.png": (frames("PNG"), NOTED, "first of 12 frames used, which is empty"),
    "two colours.gif": (frames("GIF", stripe=True), NOTED, "first of 12 frames used"),
    "pages.tif": (frames("TIFF", 3), NOTED, "first of 3 frames used, which is empty"),
    "turned.jpg": (oriented("JPEG", 6), NOTED, "turned upright by its EXIF orientation"),
    "turned.tif": (oriented("TIFF", 6), NOTED, "turned upright by its EXIF orientation"),
    "upright.jpg": (oriented("JPEG", 1), USED, ""),
    "odd orientation.jpg": (oriented("JPEG", 42), USED, ""),
    "strip.png": (encoded(picture(3000, 1), "PNG"), NOTED, f"strip of 3000 x 1 pixels; {CROPPED}"),
    "twenty to one.png": (encoded(picture(200, 10), "PNG"), NOTED, CROPPED),
    "dot.png": (encoded(picture(1, 1), "PNG"), NOTED, "only 1 x 1 pixels"),
    "small.png": (encoded(picture(20, 7), "PNG"), NOTED, f"only 20 x 7 pixels; {CROPPED}"),
    "digit.png": (encoded(picture(8, 8), "PNG"), USED, ""),
    "bomb 400 MP.png": (png(20000, 20000), SKIPPED, NOTHING.format(400, 68)),
    "bomb 64 MP.png": (png(8000, 8000), SKIPPED, NOTHING.format(64, 68)),
    "text bomb.png": (
        png(4, 4, chunk(b"zTXt", b"a\0\0" + zeros_compressed(2**26))), SKIPPED,
        "damaged, truncated or unsupported PNG file",
    ),
    "one colour bomb.webp": (BOMB_WEBP, SKIPPED, BOMB_NOTE),
    "frame bomb.gif": (gif([(60000, 60000)]), SKIPPED, "more pixels than Pillow opens of a GIF file"),
    "n" * 251 + ".png": (PNG, USED, ""),
    os.fsdecode(b"caf\xe9.png"): (PNG, USED, ""),
    "=cmd()<b>\u202egnp.png": (PNG, USED, ""),
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    files = {name: content for name, (content, _, _) in GOLDEN.items()}
    return written(tmp_path_factory.mktemp("hostile"), files)


@pytest.mark.fault(22)
@pytest.mark.parametrize("name", GOLDEN, ids=ascii)
def test_all_kinds_of_source_agree(folder, name):
    content, status, note = GOLDEN[name]
    by_path = decode_image(str(folder / name))
    assert by_path.verdict == Verdict(status, note)
    others = [decode_image(content), decode_image({"bytes": content, "path": "elsewhere/" + name})]
    others.append(decode_image({"bytes": None, "path": str(folder / name)}))
    if status is not SKIPPED:
        with Image.open(folder / name) as opened:
            others.append(decode_image(opened))
    for other in others:
        assert other.verdict == Verdict(status, note)
        assert pixels_of(other) == pixels_of(by_path)
    assert (by_path.image is None) == (status is SKIPPED)
    assert by_path.image is None or by_path.image.mode == "RGB"
    assert os.sep not in note


def pixels_of(decoded: DecodedImage):
    return None if decoded.image is None else (decoded.image.size, decoded.image.tobytes())


@pytest.mark.timeout(10)
def test_what_is_no_readable_file_is_skipped_without_waiting(tmp_path):
    (tmp_path / "folder.jpg").mkdir()
    os.mkfifo(tmp_path / "pipe.jpg")
    links = {"dangling.jpg": "nowhere.jpg", "link.png": "good.png", "loop.png": "loop.png"}
    linked = {name: tmp_path / target for name, target in links.items()}
    written(tmp_path, {"good.png": PNG, "terabyte.png": PNG, **linked})
    os.truncate(tmp_path / "terabyte.png", 2**40)  # which no memory can hold
    with pytest.raises(SkippedFileError, match="link, not followed"):
        read_regular_file(tmp_path / "link.png", ByteBudget(IntakeLimits(), "a test"))
    found = {path.name: decode_image(path).verdict.note for path in sorted(tmp_path.iterdir())}
    assert found == {
        "dangling.jpg": TEXT["link-to-a-file-that-does"],
        "folder.jpg": TEXT["a-folder-not-a-file"],
        "good.png": "",
        "link.png": "",
        "loop.png": TEXT["link-to-a-file-that-does"],
        "pipe.jpg": TEXT["not-a-regular-file"],
        "terabyte.png": TEXT["file-of-bytes-exceeds-the-limit"].format(2**40, 8 * Decoding().max_pixels),
    }


@pytest.mark.parametrize(
    ("source", "note"),
    [
        (None, "no image given"),
        ({"bytes": None, "path": None}, "no image given"),
        ({}, "no image given"),
        (b"", "empty file"),
        ("no/such/file.png", "no such file"),
        ("null\0byte.png", "file cannot be opened (not a file name)"),
        ("n" * 300 + ".png", "file cannot be opened (File name too long)"),
        (Image.new("RGB", (0, 5)), "image without pixels"),
    ],
    ids=range(8),
)
def test_absent_and_impossible_sources_are_skipped(source, note):
    assert decode_image(source) == DecodedImage(None, Verdict(SKIPPED, note), (0, 0))


def test_file_without_permission_is_skipped(tmp_path, monkeypatch):
    (path := tmp_path / "secret.png").write_bytes(PNG)
    monkeypatch.setattr(systems, "open_file", Mock(side_effect=PermissionError(13, "Permission denied")))
    assert decode_image(path).verdict == Verdict(SKIPPED, TEXT["no-permission-to-read-the-file"])


@pytest.mark.filterwarnings("ignore:::PIL")
@pytest.mark.parametrize(("codec", "options"), CODECS, ids=str)
def test_no_file_is_half_decoded_wherever_it_is_cut(codec, options):
    content = encoded(picture(96, 80), codec, **options)
    whole = pixels_of(decode_image(content))
    assert whole is not None
    cuts = [*range(1, len(content) - 20, max(1, len(content) // 60)), *range(len(content) - 20, len(content))]
    decoded = [pixels_of(decode_image(content[:cut])) for cut in cuts]
    assert all(pixels in (None, whole) for pixels in decoded)
    assert decoded.count(None) >= len(cuts) - 22


@pytest.mark.filterwarnings("ignore:::PIL")
@pytest.mark.parametrize(("codec", "options"), CODECS, ids=str)
def test_damaged_bytes_never_raise(codec, options):
    content = np.frombuffer(encoded(picture(), codec, **options), np.uint8)
    rng = np.random.default_rng(0)
    seen = Counter()
    for _ in range(150):
        damaged = content.copy()
        where = rng.integers(0, min(len(content), 400), 3)
        damaged[where] = rng.integers(0, 256, 3)
        seen[decode_image(damaged.tobytes()).verdict.status] += 1
    assert seen[SKIPPED] > 0
    assert seen.total() == 150


@pytest.mark.slow
@pytest.mark.fault(23)
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the peak memory from /proc")
def test_memory_of_bombs_is_bounded(tmp_path):
    bombs = {
        "real.png": png(9000, 9000, rows=zeros_compressed(9001 * 9000)),
        "header.png": png(30000, 30000),
        "one colour.webp": BOMB_WEBP,
        "chunk.png": png(4, 4, chunk(b"iCCP", b"a\0\0" + zeros_compressed(2**28))),
        "frame.gif": gif([(60000, 60000)]),
        "second frame.gif": gif([(1, 1), (60000, 60000)]),
    }
    written(tmp_path, {"plain.png": PNG, **bombs})
    script = textwrap.dedent("""
        import re, sys
        from promptccd.images import decode
        peak = lambda: int(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1]) * 1024
        decode.decode_image(sys.argv[1])
        before = peak()
        for path in sys.argv[2:]:
            decode.decode_image(path)
        print(peak() - before)
        decode.PIXELS_PER_BYTE = 10**9
        decode.decode_image(sys.argv[2])
        print(peak() - before)
    """)
    arguments = [sys.executable, "-c", script, *(tmp_path / name for name in ("plain.png", *bombs))]
    bounded, unbounded = map(int, subprocess.check_output(arguments, text=True).split())
    assert bounded < 20e6
    assert unbounded > 150e6  # the measure does see a bomb that is let through


@pytest.mark.parametrize("bits", [8, 10, 12, 14, 16])
def test_values_of_more_than_8_bits_are_scaled_by_the_depth_that_holds_them(bits):
    top = 2**bits - 1
    grey = np.rint(np.linspace(0, top, 48 * 36)).astype(np.uint16).reshape(36, 48)
    colours = np.stack([grey, grey[::-1], grey[:, ::-1]], axis=-1)
    for values in (grey, colours):
        expected = np.rint(values * (255 / top)).astype(np.uint8)
        expected = expected if values.ndim == 3 else np.stack([expected] * 3, axis=-1)
        contents = [deep_png(values), raw_tiff(values), raw_tiff(values, big_endian=True)]
        if values.ndim == 2:
            contents += [tiff(values.astype(np.int32)), tiff(values.astype(np.float32))]
            contents.append(raw_tiff(top - values, tags={262: 0}))
            contents.append(b"P5 48 36 65535\n" + values.astype(">u2").tobytes())
            contents.append(encoded(Image.fromarray(values), "TIFF", compression="tiff_lzw"))
        for content in contents:
            found = decode_image(content)
            assert re.match(f"({bits} bits|float values from 0 to {top}) scaled", found.verdict.note)
            assert np.abs(np.asarray(found.image).astype(int) - expected).max() <= 1
            assert found.verdict.note.endswith("scaled to 8 bits")


DIM = np.linspace(0, 700, 48 * 36).astype(np.uint16).reshape(36, 48)  # needs 10 bits


@pytest.mark.parametrize(
    "content",
    [
        lambda: raw_tiff(DIM, tags={281: 4095}),
        lambda: raw_tiff(DIM, tags={341: 4095}),
        lambda: raw_tiff(np.stack([DIM] * 3, axis=-1), tags={281: 4095}),
        lambda: encoded(Image.fromarray(DIM), "TIFF", tiffinfo={270: '<Pixels SignificantBits="12"/>'}),
        lambda: raw_tiff(DIM, tags={281: "4095"}),
    ],
    ids=["MaxSampleValue", "SMaxSampleValue", "of colours", "SignificantBits", "as a text"],
)
def test_a_file_that_says_its_depth_is_believed_unless_a_person_says_another(content):
    found = decode_image(content())
    assert found.levels.own == (0, 4095)
    assert np.asarray(found.image).max() == round(700 / 4095 * 255)
    others = Decoding(rendering=Rendering(integer=(0, 65535)))
    assert pixels_of(decode_image(content(), others)) == pixels_of(found)
    said = decode_image(content(), Decoding(rendering=Rendering(given=(0, 255))))
    assert np.asarray(said.image).max() == 255
    assert TEXT["8-bits-scaled-to-8-bits"] in said.verdict.note


@pytest.mark.parametrize(
    ("largest", "own"),
    [(255, None), (256, 511), (511, 511), (2**14, 2**15 - 1), (2**15, None)],
)
def test_a_depth_of_9_to_15_bits_is_one_that_a_file_can_say(largest, own):
    found = decode_image(raw_tiff(np.minimum(DIM, 400), tags={281: largest}))
    assert found.levels.own == (own and (0, own))
    beyond = decode_image(raw_tiff(DIM + 60, tags={281: 300}))  # values up to 760 have more than 9 bits
    assert beyond.levels.own == (0, 65535)


def raw_tiff(values, *, big_endian=False, tags=None):
    """An uncompressed TIFF of one strip, with any depth, bands and further tags of one value, unlike Pillow's."""
    order, (height, width, bands) = ">" if big_endian else "<", (*values.shape, 1)[:3]
    bits, kind = values.dtype.itemsize * 8, {"u": 1, "i": 2, "f": 3}[values.dtype.kind]
    found = {256: width, 257: height, 258: [bits] * bands, 259: 1, 262: 2 if bands > 2 else 1, 273: 0, 277: bands,
             278: height, 279: values.nbytes, 284: 1, 339: [kind] * bands}  # fmt: skip
    found |= ({338: [0] * (bands - 3)} if bands > 3 else {}) | (tags or {})
    directory = TiffImagePlugin.ImageFileDirectory_v2(prefix=b"MM" if big_endian else b"II")
    for tag, value in found.items():
        is_text, is_long = isinstance(value, str), tag in (273, 279)
        directory.tagtype[tag] = (TiffTags.SHORT, TiffTags.LONG, TiffTags.ASCII)[2 * is_text + is_long]
        directory[tag] = value
    head = directory.prefix + struct.pack(f"{order}HI", 42, 8) + directory.tobytes(8)  # it places the strip
    return head + values.astype(values.dtype.newbyteorder(order)).tobytes()


def test_colours_stored_plane_by_plane_are_refused_and_not_garbled():
    found = decode_image(raw_tiff(np.stack([DIM] * 3, axis=-1), tags={284: 2}))
    assert found.verdict.status is SKIPPED
    assert "interleaved" in found.verdict.note


def test_first_frame_is_the_one_used():
    for codec in ("GIF", "WEBP", "PNG", "TIFF"):
        pixels = np.asarray(decode_image(frames(codec)).image)
        assert pixels.max() <= 2, codec  # the first frame is black, the others red
    moving = Image.open(io.BytesIO(frames("PNG")))
    moving.seek(5)
    chosen = decode_image(moving)
    assert chosen.verdict.status is USED
    assert np.asarray(chosen.image)[0, 0].tolist() == [100, 0, 0]
    assert moving.tell() == 5
    moving.seek(0)
    assert (decode_image(moving).pages, decode_image(frames("PNG")).pages) == (1, 12)
    damaged = decode_image(frames("TIFF", 3)[:-40])  # a later frame
    assert damaged.verdict.status is NOTED
    assert np.asarray(damaged.image).max() == 0


def test_metadata_stays_behind_and_the_callers_image_is_untouched():
    exif = Image.Exif()
    exif.get_ifd(0x8825)[1] = "N"  # a place
    content = encoded(picture(), "JPEG", exif=exif, comment=b"at home", dpi=(72, 72))
    decoded = decode_image(content).image
    assert decoded.info == {}
    assert not dict(decoded.getexif())
    opened = Image.open(io.BytesIO(content))
    mine = opened.convert("L")
    mine_before, info_before = mine.tobytes(), dict(mine.info)
    decode_image(mine)
    assert (mine.mode, mine.tobytes(), mine.info) == ("L", mine_before, info_before)
    assert info_before["comment"] == b"at home"


def test_lack_of_memory_is_said(monkeypatch):
    monkeypatch.setattr(ImageFile.ImageFile, "load", Mock(side_effect=MemoryError))
    verdict = Verdict(SKIPPED, "not enough memory to decode it", is_passing=True)
    assert decode_image(encoded(picture(), "BMP")).verdict == verdict


@functools.cache
def photograph(width=1030, height=773, seed=0):
    """A picture with edges and a fine grain, of no even size."""
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 256, (11, 14, 3), dtype=np.uint8))
    grain = rng.normal(0, 6, (height, width, 3))
    pixels = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC)) + grain
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_reduced_decode_shows_the_same_picture(orientation):
    content = oriented("JPEG", orientation, photograph())
    whole, upright = decode_image(content), (1030, 773) if orientation < 5 else (773, 1030)
    for enough, scale in [(100, 4), (96, 8), (386, 2), (387, 1), (774, 1), (None, 1)]:
        reduced = decode_image(content, enough=enough)
        assert reduced.verdict == whole.verdict
        assert reduced.size == whole.size == upright
        assert reduced.image.size == tuple(-(-side // scale) for side in upright)
        sides = [side // 10 for side in upright]
        small = [each.image.resize(sides, Image.Resampling.BOX) for each in (whole, reduced)]
        assert np.abs(np.subtract(*map(np.int16, small))).mean() < 3  # of 255; 60 for another turn


def test_limits_hold_for_the_whole_and_not_for_what_is_decoded(tmp_path):
    (tmp_path / "large.bmp").write_bytes(bytes(8 * 48 * 36 + 1))
    note = TEXT["file-of-bytes-exceeds-the-limit"].format(8 * 48 * 36 + 1, 8 * 48 * 36)
    assert decode_image(tmp_path / "large.bmp", Decoding(48 * 36)).verdict == Verdict(SKIPPED, note)
    content = encoded(photograph(), "JPEG")
    assert decode_image(content, Decoding(1030 * 773), enough=8).verdict == Verdict(USED)
    refused = decode_image(content, Decoding(1030 * 773 - 1), enough=8)
    assert refused == decode_image(content, Decoding(1030 * 773 - 1))
    assert TEXT["1030-x-773-exceeds-the-limit"] in refused.verdict.note
    at = content.index(b"\xff\xc0") + 5  # height and width in the header of the frame
    for sides in ((65_000, 65_000), (65_500, 9_000), (0, 773)):
        forged = content[:at] + b"".join(side.to_bytes(2, "big") for side in sides) + content[at + 4 :]
        assert decode_image(forged, enough=8).verdict == decode_image(forged).verdict
        assert decode_image(forged, enough=8).image is None
