"""Names of files by which they are skipped."""

import io
import zipfile
from contextlib import closing
from pathlib import Path

import pytest

from promptccd.data.names import system_reason
from promptccd.discovery.intake.archives import ArchiveSource
from promptccd.images.limits import IntakeLimits
from tests.data.layouts import picture


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("a/b.png", ""),
        ("a/.b.png", "hidden file"),
        ("a/.cache/c/b.png", "in a hidden folder"),
        ("A/Thumbs.db", "left there by an operating system"),
        ("__MACOSX/b.png", "left there by an operating system"),
        ("a/._b.png", "left there by an operating system"),
    ],
)
def test_what_no_person_put_there_is_skipped(name: str, reason: str) -> None:
    assert system_reason(name) == reason


NAMES_OF_ZIPS = {
    "utf-8": ["写真/鳥.png", "ö.png"],
    "cp437": ["Möwe/é.png", "größe.png"],
    "cp850": ["Ángel.png", "søster/Åse.png"],
    "cp1252": ["Möwe.png"],
    "cp932": ["写真/鳥.png", "ソース.png", "アオサギ/01.png"],
    "cp949": ["사진/까치.png", "참새.png"],
    "gb2312": ["照片/海鸥.png", "麻雀.png"],
    "cp866": ["Фото/чайка.png", "Воробей 1.png"],
    "cp1251": ["Фото/чайка.png", "Воробей 1.png"],
}


@pytest.mark.parametrize("encoding", NAMES_OF_ZIPS)
@pytest.mark.parametrize("count", [1, 3])
def test_names_in_archives_are_decoded_by_the_code_page_that_fits(
    encoding: str, count: int, tmp_path: Path
) -> None:
    names = NAMES_OF_ZIPS[encoding][:count]
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as packed:
        for number, name in enumerate(names):
            packed.writestr("x" * (len(name.encode(encoding)) - 2) + f"{number:02d}", picture(number))
    packed_bytes = content.getvalue()
    for number, name in enumerate(names):  # as packers without UTF-8 write them
        raw = name.encode(encoding)
        packed_bytes = packed_bytes.replace(b"x" * (len(raw) - 2) + b"%02d" % number, raw)
    (tmp_path / "photos.zip").write_bytes(packed_bytes)
    with closing(ArchiveSource(tmp_path / "photos.zip")) as source:
        assert [entry.name for entry in source.entries(IntakeLimits())] == names
