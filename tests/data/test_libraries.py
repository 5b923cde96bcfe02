"""Folders in which programs keep photographs: each photograph once, as it was taken, and the rest is counted."""

import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from promptccd.data.folders import FolderSource, images_in
from promptccd.discovery.intake.reading import read_intake
from promptccd.images.limits import IntakeLimits

LIBRARIES: dict[str, tuple[str, list[str], list[str], str]] = {  # its name, originals, copies, and whose they are
    "Photos": (
        "Photos Library.photoslibrary", ["originals/A/1.jpeg", "originals/B/2.jpeg"],
        ["resources/derivatives/A/1_1_105_c.jpeg", "resources/renders/B/2.jpeg", "scopes/cloudsharing/x.jpeg", "x.png",
         "database/search/y.png"], "Photos",
    ),
    "Photos of older systems": (
        "Mine.PhotosLibrary", ["Masters/2015/05/01/1.jpg"],
        ["Thumbnails/2015/1.jpg", "resources/proxies/2.jpg", "Previews/1.jpg"], "Photos",
    ),
    "iPhoto": ("iPhoto.photolibrary", ["Masters/1.jpg"], ["Thumbnails/1.jpg", "Previews/1.jpg"], "iPhoto"),
    "old iPhoto": ("iPhoto Library", ["Originals/2007/1.jpg"], ["Data/1.jpg", "Modified/2007/1.jpg"], "iPhoto"),
    "Aperture": ("A.aplibrary", ["Masters/1.jpg"], ["Previews/1.jpg", "Thumbnails/1.jpg"], "Aperture"),
    "Capture One": ("2024.cocatalog", ["Originals/1.jpg"], ["Cache/Thumbnails/1.jpg"], "Capture One"),
    "Photo Booth": ("Photo Booth Library", ["Pictures/1.jpg"], ["Originals/1.jpg"], "Photo Booth"),
}  # fmt: skip
NOT_SEARCHED = {
    "Catalog Previews.lrdata": "Lightroom", "Smart Previews.lrdata": "Lightroom", "CaptureOne": "Capture One",
}  # fmt: skip


def photograph(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(zlib.crc32(str(path).encode())).integers(
        0, 256, (24, 24, 3), dtype=np.uint8
    )
    Image.fromarray(noise).save(path, "JPEG")


@pytest.mark.parametrize("kind", LIBRARIES)
@pytest.mark.parametrize("below", ["", "Pictures/mine"])
def test_a_library_gives_its_originals_alone(below: str, kind: str, tmp_path: Path) -> None:
    name, originals, copies, program = LIBRARIES[kind]
    for each in [*originals, *copies]:
        photograph(tmp_path / below / name / each)
    place = tmp_path if below else tmp_path / name  # the library itself may be given
    inside = f"{below}/{name}/" if below else ""
    found = images_in(FolderSource(place), IntakeLimits())
    assert found.images == [inside + each for each in originals]
    tops = {inside + each.split("/")[0] for each in copies}
    assert found.left_out == dict.fromkeys(tops, f"left there by {program}")
    intake = read_intake(place)
    assert [file.name for file in intake.used] == [inside + each for each in originals]


@pytest.mark.parametrize("name", NOT_SEARCHED)
def test_a_folder_of_small_copies_is_not_searched(name: str, tmp_path: Path) -> None:
    photograph(tmp_path / "2024" / "1.jpg")
    photograph(tmp_path / "2024" / name / "deep" / "1.jpg")
    found = images_in(FolderSource(tmp_path), IntakeLimits())
    assert found.images == ["2024/1.jpg"]
    assert found.left_out == {f"2024/{name}": f"folder of {NOT_SEARCHED[name]}, not searched"}
    assert not images_in(FolderSource(tmp_path / "2024" / name), IntakeLimits()).images


SIDE_FILES = {
    ".IMG_7.heic.icloud": "not downloaded from iCloud: in the Finder choose Download Now, and give the folder again",
    "IMG_1.AAE": "left there by Photos: what was edited",
    "MVI_1.THM": "left there by a camera: a small picture of a film",
    ".hidden.jpg": "hidden file",
    "._IMG_1.jpg": "left there by an operating system",
}


@pytest.mark.parametrize("packed", [False, True])
def test_what_lies_beside_photographs_is_called_what_it_is(packed: bool, tmp_path: Path) -> None:
    photograph(tmp_path / "set" / "a" / "IMG_1.jpg")
    for name in SIDE_FILES:
        photograph(tmp_path / "set" / "a" / name)
    place = tmp_path / "set"
    if packed:
        with zipfile.ZipFile(tmp_path / "set.zip", "w") as archive:
            for file in sorted(place.rglob("*.*")):
                archive.write(file, file.relative_to(place))
        place = tmp_path / "set.zip"
    with read_intake(place) as intake:
        assert [file.name for file in intake.used] == ["a/IMG_1.jpg"]
        notes = {Path(file.name).name: file.verdict.note for file in intake.files if not file.is_used}
    assert notes.keys() == SIDE_FILES.keys()
    for name, said in SIDE_FILES.items():
        assert notes[name].startswith(said), name
