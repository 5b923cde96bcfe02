"""Archives of strangers: bad members are skipped with a reason, bad archives are refused, nothing is unpacked."""

import io
import os
import stat
import struct
import tracemalloc
import warnings
import zipfile

import pytest

from promptccd.discovery.intake.archives import ArchiveSource
from promptccd.discovery.intake.reading import read_intake
from promptccd.errors import DataError
from promptccd.images.decode import Status
from promptccd.images.limits import IntakeLimits
from tests.data.layouts import written
from tests.discovery.conftest import image_of
from tests.images.test_decode import JPEG, PNG, encoded, picture
from tests.messages import TEXT

BMP = encoded(picture(30, 30), "BMP")
DAMAGED = "damaged member of the archive"
PACKED = "not an image that can be read (starts like a ZIP archive): give it by itself, or unpack it"


def member(name, mode=stat.S_IFREG | 0o644, packing=zipfile.ZIP_DEFLATED):
    info = zipfile.ZipInfo(name)
    info.external_attr = mode << 16
    info.compress_type = packing
    info.create_system = 3
    return info


def packed(*members):
    """The bytes of an archive of ``(name or ZipInfo, content)``."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of names given twice
        for name, content in members:
            archive.writestr(name, content)
    return buffer.getvalue()


def renamed(content, before, after):
    """An archive with a name of the same length instead: zipfile would mend some while writing."""
    assert len(before) == len(after) and before in content
    return content.replace(before, after)


def broken_middle(name, content):
    """An archive of one stored member with a byte turned after its checksum was taken."""
    made = bytearray(packed((member(name, packing=zipfile.ZIP_STORED), content)))
    made[made.find(content) + len(content) // 2] ^= 1
    return bytes(made)


def broken_stream(name):
    made, start = packed((name, os.urandom(4000))), 30 + len(name)
    return made[:start] + b"\xff" * 20 + made[start + 20 :]


def declared(content, value, place=22):
    """An archive of one member that says, in both of its headers, what it unpacks to, or what is at another place."""
    said, at = struct.pack("<I", value), content.find(b"PK\x01\x02") + 2 + place
    return content[:place] + said + content[place + 4 : at] + said + content[at + 4 :]


def overlapping(times):
    """An archive whose directory names the same bytes again and again."""
    made = packed(("a.png", PNG))
    start, end = made.find(b"PK\x01\x02"), made.find(b"PK\x05\x06")
    entry = made[start:end]
    closing = struct.pack("<4s4H2IH", b"PK\x05\x06", 0, 0, times, times, len(entry) * times, start, 0)
    return made[:start] + entry * times + closing


def many_entries(count):
    entry = struct.pack("<4s6H3I5H2I", b"PK\x01\x02", 20, 20, *[0] * 7, 5, *[0] * 6) + b"a.png"
    size, start = len(entry) * count, b"PK\x03\x04" + bytes(31)
    end = struct.pack("<4s4H2IH", b"PK\x05\x06", 0, 0, 0xFFFE, 0xFFFE, size, len(start), 0)
    return start + entry * count + end


THOUSANDFOLD = packed(("zeros.png", PNG[:8] + bytes(5 * 2**20)), ("a.png", PNG))
SIZE_IN_IT = zipfile.ZipFile(io.BytesIO(THOUSANDFOLD)).getinfo("zeros.png").compress_size
ANOTHER = packed(("aaa.png", PNG))  # its directory and its member disagree about the name
ANOTHER = ANOTHER[:30] + b"bbb.png" + ANOTHER[37:]

SKIPPING = {  # archive -> (content, {name shown: note of the verdict}); "" is used
    "up": (
        packed(("../../up.png", PNG), ("ok.png", JPEG)),
        {"../../up.png": "path that leaves the archive", "ok.png": ""},
    ),
    "backslash up": (packed(("a\\..\\..\\b.png", PNG)), {"a\\..\\..\\b.png": "path that leaves the archive"}),
    "absolute": (packed(("/etc/cron.d/a.png", PNG)), {"/etc/cron.d/a.png": "absolute path"}),
    "drive": (packed(("C:\\a.png", PNG)), {"C:\\a.png": "path with a drive letter"}),
    "link": (
        packed((member("link.png", stat.S_IFLNK | 0o777), b"/etc/passwd"), ("a.png", PNG)),
        {"link.png": "link, not followed", "a.png": ""},
    ),
    "device": (packed((member("null.png", stat.S_IFCHR | 0o666), b"")), {"null.png": "not a regular file"}),
    "nested": (
        packed(("inner.zip", packed(("a.png", PNG))), ("inner.png", packed(("a.png", JPEG))), ("b.png", BMP)),
        {"inner.zip": PACKED, "inner.png": PACKED, "b.png": ""},
    ),
    "encrypted": (declared(packed(("a.png", PNG)), 8 << 16 | 1, place=6), {"a.png": "encrypted"}),  # flag 1, method 8
    "checksum": (broken_middle("a.bmp", BMP), {"a.bmp": f"{DAMAGED} (wrong checksum)"}),
    "stream": (broken_stream("a.png"), {"a.png": DAMAGED}),
    "other name within": (ANOTHER, {"aaa.png": DAMAGED}),
    "null byte": (
        renamed(packed(("a.png_exe", PNG)), b"a.png_exe", b"a.png\0exe"),
        {r"a.png\x00exe": "name with a null byte"},
    ),
    "override": (packed(("\u202egnp.png", PNG), ("<b>\n.png", JPEG)), {r"\u202egnp.png": "", r"<b>\n.png": ""}),
    "system": (
        packed(("__MACOSX/._a.png", b"\0\5"), ("a.png", PNG), (".DS_Store", b"\0"), (".b.png", JPEG), ("c/", b"")),
        {
            "__MACOSX/._a.png": "left there by an operating system", "a.png": "",
            ".DS_Store": "left there by an operating system", ".b.png": "hidden file",
        },
    ),
    "lzma": (
        packed((member("a.bmp", packing=zipfile.ZIP_LZMA), BMP)),
        {"a.bmp": "packed by a method that is not read (number 14)"},
    ),
    "thousandfold": (
        THOUSANDFOLD,
        {"zeros.png": f"unpacks from {SIZE_IN_IT} to more than 1048576 bytes", "a.png": ""},
    ),
    "says too much": (
        declared(packed(("a.png", PNG)), 2**32 - 2), 
        {"a.png": f"file of {2**32 - 2} bytes exceeds the limit of {IntakeLimits().max_file_bytes}"},
    ),
    "says too little": (declared(packed(("a.png", PNG)), 100), {"a.png": f"{DAMAGED} (wrong checksum)"}),
    "empty": (packed(), {}),
}  # fmt: skip

REFUSED = {  # archive -> (content, limits, what is said)
    "overlap": (overlapping(50), IntakeLimits(), "its members overlap"),
    "directory": (
        many_entries(400_000), IntakeLimits(max_files=100), r"has a directory of 20400000 bytes; the limit is",
    ),
    "files": (
        packed(*((f"{n}.png", PNG) for n in range(9))), IntakeLimits(max_files=8), "holds 9 files; the limit is 8",
    ),
    "total": (
        packed(*((f"{n}.bin", os.urandom(5000)) for n in range(9))), IntakeLimits(max_total_bytes=40_000),
        "contains more than the limit of 40000 bytes",
    ),
    "cut": (packed(("a.png", PNG))[:-30], IntakeLimits(), "is damaged or no zip archive"),
    "no archive": (b"PK\3\4 and nothing else", IntakeLimits(), "is damaged or no zip archive"),
    "name that is no UTF-8": (
        renamed(packed(("caf_é.png", PNG)), "caf_é.png".encode(), b"caf_\xff\xff.png"), IntakeLimits(),
        "is damaged or no zip archive",
    ),
}  # fmt: skip


@pytest.mark.fault(40)
@pytest.mark.parametrize("case", SKIPPING)
def test_bad_members_are_skipped_and_the_others_used(tmp_path, case):
    content, expected = SKIPPING[case]
    (tmp_path / "album.zip").write_bytes(content)
    with read_intake(tmp_path / "album.zip") as intake:
        assert {file.name: file.verdict.note for file in intake.files} == expected
        report = intake.report()
        assert report.found == report.used + report.duplicates + report.skipped
        for file in intake.used:
            image_of(intake, file)
    assert os.listdir(tmp_path) == ["album.zip"]  # nothing was unpacked


@pytest.mark.fault(40)
@pytest.mark.timeout(20)
@pytest.mark.parametrize("case", REFUSED)
def test_bad_archives_are_refused_with_limit_and_value(tmp_path, case):
    content, limits, message = REFUSED[case]
    (tmp_path / "album.zip").write_bytes(content)
    with pytest.raises(DataError, match=message) as raised:
        read_intake(tmp_path / "album.zip", limits=limits)
    assert "Archive 'album.zip'" in str(raised.value)
    assert str(tmp_path) not in str(raised.value)


def test_an_archive_is_known_by_its_content_and_links_and_folders_are_none(tmp_path):
    content = packed(("a.png", PNG))
    written(tmp_path, {"a.zip": content, "holiday.png": content, "link.zip": tmp_path / "a.zip"})
    assert [file.name for file in read_intake([tmp_path / "holiday.png"]).files] == ["a.png"]
    assert read_intake([tmp_path / "link.zip"]).files[0].verdict.note == "link, not followed"
    with pytest.raises(DataError, match=TEXT["link-zip-cannot-be-opened"]):
        ArchiveSource(tmp_path / "link.zip")  # one that was put there after somebody looked
    with read_intake(tmp_path) as intake:  # archives inside a folder stay packed
        assert [file.verdict.status for file in intake.files] == [Status.SKIPPED] * 3


@pytest.mark.fault(23, 40)
def test_bombs_take_no_memory(tmp_path):
    (tmp_path / "thousandfold.zip").write_bytes(SKIPPING["thousandfold"][0])
    (tmp_path / "directory.zip").write_bytes(REFUSED["directory"][0])
    tracemalloc.start()
    read_intake(tmp_path / "thousandfold.zip").close()
    with pytest.raises(DataError):
        read_intake(tmp_path / "directory.zip", limits=REFUSED["directory"][1])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 40e6  # 10 MB are allowed for the member, 6 MB are the directory
