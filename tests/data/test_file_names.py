"""Names of files by which they are skipped."""

import io
import zipfile
from contextlib import closing
from pathlib import Path

import pytest

from promptccd.data.folders import FolderSource, images_in
from promptccd.data.names import display_name, is_of_windows, path_parts, system_reason
from promptccd.discovery.intake.archives import ArchiveSource
from promptccd.discovery.intake.reading import read_intake
from promptccd.errors import DataError
from promptccd.images.limits import IntakeLimits
from tests.data.layouts import picture, put
from tests.messages import TEXT


@pytest.mark.parametrize(
    ("path", "is_windows", "parts"),
    [
        ("C:\\photos\\a.jpg", True, ["C:", "photos", "a.jpg"]),
        ("c:/photos/a.jpg", True, ["c:", "photos", "a.jpg"]),
        ("\\\\nas\\share\\a.jpg", True, ["", "", "nas", "share", "a.jpg"]),
        ("photos\\a.jpg", True, ["photos", "a.jpg"]),
        ("/home/me/a.jpg", False, ["", "home", "me", "a.jpg"]),
        ("/home/me/a\\b.jpg", False, ["", "home", "me", "a\\b.jpg"]),
        ("a.jpg", False, ["a.jpg"]),
    ],
)
def test_paths_of_windows_are_told_from_others(path: str, is_windows: bool, parts: list[str]) -> None:
    assert is_of_windows(path) == is_windows
    assert path_parts(path) == parts


def test_leftovers_in_lists_of_either_system_are_known() -> None:
    for name in ("x\\._p.jpg", "a\\Thumbs.db", "__MACOSX\\p.jpg"):
        assert system_reason(name, r"[/\\]") == TEXT["left-there-by-an-operating-system"], name
        assert system_reason(name) == ""  # a file of Linux may be called so
    assert system_reason(".x\\p.jpg", r"[/\\]") == TEXT["in-a-hidden-folder"]


def test_every_character_of_a_name_is_seen() -> None:
    shown = {"é \u202e\u200d\n": "é \\u202e\u200d\\n", "\udc7f\udc80\udcff\udd00": "\\udc7f\\x80\\xff\\udd00"}
    assert {name: display_name(name) for name in shown} == shown


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


SIDE_FILES = {
    "a/.IMG_7.heic.icloud": "not downloaded from iCloud: in the Finder choose Download Now, and give the folder again",
    "a/IMG_1.AAE": "left there by Photos: what was edited",
    "a/MVI_1.THM": "left there by a camera: a small picture of a film",
    "a/.hidden.jpg": "hidden file",
    "a/._IMG_1.jpg": "left there by an operating system",
    "a/Thumbs.db": "left there by an operating system",
}
IN_FOLDERS = {
    ".cache/c/b.png": "in a hidden folder",
    "__MACOSX/b.png": "left there by an operating system",
    "A.photoslibrary/resources/b.png": "in the library of a program: export its photographs",
}


@pytest.mark.parametrize("packed", [False, True])
def test_what_lies_beside_photographs_is_called_what_it_is(packed: bool, tmp_path: Path) -> None:
    """A folder names the folders that it does not search; an archive has members alone."""
    place, expected = tmp_path / "set", SIDE_FILES | (IN_FOLDERS if packed else {})
    for number, name in enumerate(["a/IMG_1.jpg", *expected]):
        put(place / name, picture(number))
    if packed:
        with zipfile.ZipFile(tmp_path / "set.zip", "w") as archive:
            for file in sorted(place.rglob("*.*")):
                archive.write(file, file.relative_to(place))
        place = tmp_path / "set.zip"
    with read_intake(place) as intake:
        assert [file.name for file in intake.used] == ["a/IMG_1.jpg"]
        notes = {file.name: file.verdict.note for file in intake.files if not file.is_used}
    assert notes.keys() == expected.keys()
    for name, said in expected.items():
        assert notes[name].startswith(said), name


def test_the_originals_of_a_library_can_be_given_and_the_library_cannot(tmp_path: Path) -> None:
    library = put(tmp_path / "A.photoslibrary" / "originals" / "2.jpg", picture(1)).parents[1]
    with pytest.raises(DataError, match=TEXT["give-its-folder-of-originals"]):
        FolderSource(library)
    assert images_in(FolderSource(library / "originals"), IntakeLimits()).images == ["2.jpg"]
