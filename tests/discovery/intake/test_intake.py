"""Folders, files and rows of strangers: each file gets its verdict, under limits, whatever it is."""

import io
import os
import socket
import time
import zipfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from datasets import Dataset, Features, Image, Value
from PIL import Image as PilImage

from promptccd.data.image_rows import ImageRows
from promptccd.data.options import ViewOptions
from promptccd.data.views import EvaluationView, build_image_processor
from promptccd.discovery import DiscoverySession, discover
from promptccd.discovery.intake import reading
from promptccd.discovery.intake.reading import DatasetSource, Intake, find_source, read_intake
from promptccd.discovery.intake.seen import SeenFiles
from promptccd.discovery.project import ProjectView
from promptccd.errors import DataError
from promptccd.images import identity
from promptccd.images.clean import clean_image
from promptccd.images.decode import Status, decode_image
from promptccd.images.limits import IntakeLimits
from promptccd.images.rendering import Rendering
from tests.data.layouts import put, written
from tests.discovery.conftest import image_of
from tests.hub.hostile_tables import foreign, write_parquet
from tests.images.test_decode import (
    GOLDEN,
    JPEG,
    PNG,
    chunk,
    deep_png,
    encoded,
    oriented,
    picture,
    png,
    raw_tiff,
    zeros_compressed,
)
from tests.images.test_identity import exif
from tests.messages import TEXT

USED, NOTED, SKIPPED = Status.USED, Status.NOTED, Status.SKIPPED
UPRIGHT = "turned upright by its EXIF orientation"


def distinct(number, width=48, height=36):
    """A picture that no other of the corpus equals."""
    pixels = np.random.default_rng(number).integers(0, 256, (4, 5, 3), dtype=np.uint8)
    return PilImage.fromarray(pixels).resize((width, height), PilImage.Resampling.BICUBIC)


EXTRA = {  # path -> (content, status, note)
    **{
        f"album/turned {turn}.jpg": (
            oriented("JPEG", turn, distinct(turn)), USED if turn == 1 else NOTED, "" if turn == 1 else UPRIGHT,
        )
        for turn in range(1, 9)
    },
    "album/deep/er/plain.png": (encoded(distinct(20), "PNG"), USED, ""),
    "album/new\nline.png": (encoded(distinct(21), "PNG"), USED, ""),
    "album/\x1b[31mred.png": (encoded(distinct(22), "PNG"), USED, ""),
    "album/<img src=x onerror=alert(1)>.png": (encoded(distinct(23), "PNG"), USED, ""),
    "=cmd()!A1.png": (encoded(distinct(24), "PNG"), USED, ""),
    "no suffix": (encoded(distinct(25), "PNG"), USED, ""),
    "trailing garbage.jpg": (encoded(distinct(26), "JPEG") + b"<?php" + bytes(9000), USED, ""),
    "huge exif.jpg": (encoded(distinct(27), "JPEG", exif=exif(title="long " * 12_000)), USED, ""),
    "odd profile.jpg": (
        encoded(distinct(28), "JPEG", icc_profile=b"\xff" * 999), NOTED, "colour profile left aside (it is damaged)",
    ),
    "profile bomb.png": (
        png(4, 4, chunk(b"iCCP", b"a\0\0" + zeros_compressed(2**26))), SKIPPED,
        "damaged, truncated or unsupported PNG file",
    ),
    "notes.txt": (b"bought in May", SKIPPED, 
        "not an image that can be read (starts like text): give a table of path,label itself to promptccd train. "
        "For texts, give features of such files instead: promptccd discover --features FILE",
    ),
    "album/.DS_Store": (b"\0\0\0\1Bud1", SKIPPED, "left there by an operating system"),
    "album/Thumbs.db": (JPEG, SKIPPED, "left there by an operating system"),
    "album/._plain.jpg": (b"\0\5\x16\7", SKIPPED, "left there by an operating system"),
    "album/.secret.png": (PNG, SKIPPED, "hidden file"),
}  # fmt: skip

LINKS = {  # path -> (target, status, note)
    "links/inside.png": ("../album/deep/er/plain.png", USED, ""),
    "links/out.png": ("../../outside.png", SKIPPED, "link to a place outside"),
    "links/passwords.png": ("/etc/passwd", SKIPPED, "link to a place outside"),
    "links/dangling.png": ("nowhere.png", SKIPPED, "link to a file that does not exist"),
    "links/loop.png": ("loop.png", SKIPPED, "link that leads back to itself"),
    "links/up": ("..", SKIPPED, "link that leads back to itself"),
    "links/root": ("/", SKIPPED, "link to a place outside"),
    "links/zero.png": ("/dev/zero", SKIPPED, "link to a place outside"),
}


def write_hostile(root):
    """Everything that a stranger may send; the verdict of each by its name."""
    links = {name: (Path(target), *verdict) for name, (target, *verdict) in LINKS.items()}
    given = {**GOLDEN, **EXTRA, **links}
    written(root, {name: content for name, (content, *_) in given.items()})
    put(root.parent / "outside.png", encoded(distinct(30), "PNG"))
    os.mkfifo(root / "pipe.jpg")
    return {name: verdict for name, (_, *verdict) in given.items()}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """What was read of it and of what else a system has, and the verdict of each by the name that is shown."""
    root = tmp_path_factory.mktemp("corpus") / "images"
    expected = write_hostile(root)
    written(root, {"folder.jpg/within.png": encoded(distinct(31), "PNG"), ".git/cached.png": PNG})
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.path.relpath(root / "socket.png"))
    expected |= {
        "pipe.jpg": (SKIPPED, "not a regular file"),
        "socket.png": (SKIPPED, "not a regular file"),
        "folder.jpg": (SKIPPED, "a folder, not a file"),
        "folder.jpg/within.png": (USED, ""),
        ".git": (SKIPPED, "hidden folder, not searched"),
    }
    shown = {
        os.fsdecode(b"caf\xe9.png"): r"caf\xe9.png",
        "=cmd()<b>\u202egnp.png": r"=cmd()<b>\u202egnp.png",
        "album/new\nline.png": r"album/new\nline.png",
        "album/\x1b[31mred.png": r"album/\x1b[31mred.png",
    }
    with read_intake(root) as intake:
        yield intake, {shown.get(name, name): tuple(verdict) for name, verdict in expected.items()}


@pytest.mark.fault(22)
@pytest.mark.timeout(60)
def test_every_file_gets_its_verdict_and_the_counts_add_up(corpus):
    intake, expected = corpus
    report = intake.report()
    assert {file.name: (file.verdict.status, file.verdict.note) for file in intake.files} == expected
    assert all(file.name.isprintable() and file.name.encode() for file in intake.files), "inert where shown"
    assert [file.index for file in intake.files] == list(range(report.found))
    assert report.found == len(expected) == report.used + report.duplicates + report.skipped >= 90
    assert report.skipped == sum(status is SKIPPED for status, _ in expected.values())
    assert sum(report.skipped_reasons.values()) == report.skipped
    assert report.skipped_reasons[TEXT["link-to-a-place-outside"]] == 4
    assert report.notes[UPRIGHT] >= 7


@pytest.mark.fault(25)
def test_duplicates_are_listed_with_their_original_and_images_opened_again_without_metadata(corpus):
    intake, _ = corpus
    by_name = {file.name: file for file in intake.files}
    link, original = by_name["links/inside.png"], by_name["album/deep/er/plain.png"]
    assert link.duplicate_of == original.index
    assert intake.original(link) is intake.original(original) is original
    assert link.content_hash == original.content_hash
    assert original in intake.used and link not in intake.used
    copies = [file for file in intake.files if file.content_hash == by_name["plain.png"].content_hash]
    assert sum(file.is_used for file in copies) == 1
    assert len({file.key for file in intake.used}) == len(intake.used)
    empty = by_name["zero.jpg"]
    assert (empty.duplicate_of, empty.key) == (None, "")
    for file in intake.used:
        image_of(intake, file)
    turned = next(file for file in intake.used if file.name == "album/turned 6.jpg")
    assert image_of(intake, turned).size == (36, 48)
    assert not image_of(intake, turned).getexif()
    skipped = next(file for file in intake.files if file.verdict.status is SKIPPED)
    with pytest.raises(DataError, match="was skipped"):
        intake.read_bytes(skipped)


def test_file_that_changes_is_noticed(tmp_path):
    written(tmp_path, {"a.png": PNG, "b.png": encoded(distinct(1), "PNG")})
    with read_intake(tmp_path) as intake:
        (tmp_path / "a.png").write_bytes(JPEG)
        (tmp_path / "b.png").unlink()
        (tmp_path / "b.png").symlink_to("/etc/passwd")
        with pytest.raises(DataError, match=TEXT["a-png-was-changed-while-it"]):
            image_of(intake, intake.files[0])
        with pytest.raises(DataError, match=TEXT["b-png-could-be-read-before"]):
            image_of(intake, intake.files[1])


def test_file_over_a_limit_is_skipped_and_more_files_are_refused(tmp_path):
    (tmp_path / "a.png").write_bytes(PNG)
    limits = IntakeLimits(max_file_bytes=len(PNG) - 1)
    rows = DatasetSource(ImageRows(Dataset.from_dict({"image": [PNG]}).cast_column("image", Image())))
    for source in (tmp_path, [tmp_path / "a.png"], rows):
        (file,) = read_intake(source, limits=limits).files
        assert file.verdict.note == TEXT["file-of-bytes-exceeds-the-limit"].format(len(PNG), len(PNG) - 1)
        with pytest.raises(DataError, match="holds 1 files; the limit is 0"):
            read_intake(source, limits=IntakeLimits(max_files=0))
    pixels = IntakeLimits(max_pixels=48 * 36 - 1)
    assert "exceeds the limit" in read_intake(tmp_path, limits=pixels).files[0].verdict.note


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("no/such/folder", "Nothing is at 'no/such/folder'"),
        ("./nowhere", "Nothing is at"),
        ("nowhere/", "Nothing is at 'nowhere/'.*Give a folder of images"),
        ("my photos/birds", "Nothing is at"),  # no name of the Hub has a blank
        ("http://127.0.0.1/a.zip", "Addresses such as"),
        ("file:///etc/passwd", "Addresses such as"),
        ("null\0byte", "Nothing is at"),
    ],
)
def test_what_is_nowhere_is_said(source, message):
    with pytest.raises(DataError, match=message):
        find_source(source)


def test_a_table_is_read_by_itself_but_not_beside_the_images_that_it_describes(tmp_path):
    Dataset.from_dict({"image": [PNG], "url": ["https://example.org"]}).to_parquet(tmp_path / "00000.parquet")
    assert [file.name for file in read_intake(tmp_path / "00000.parquet").used] == ["row 0"]
    assert [file.name for file in read_intake(tmp_path).used] == ["row 0"]
    put(tmp_path / "00000" / "0.png", PNG)
    assert [file.name for file in read_intake(tmp_path).used] == ["00000/0.png"]


def test_uploads_of_images_and_archives(tmp_path):
    written(tmp_path, {"a.png": PNG, "link.png": tmp_path / "a.png"})
    with zipfile.ZipFile(tmp_path / "b.zip", "w") as archive:
        archive.writestr("inner/c.jpg", JPEG)
        archive.writestr("inner/again.png", PNG)
    with read_intake([tmp_path / name for name in ("b.zip", "a.png", "link.png", "gone.png")]) as intake:
        found = {file.name: (file.verdict.note, file.duplicate_of) for file in intake.files}
        assert image_of(intake, intake.files[-1]).size == (48, 36)
    skipped = {"link.png": ("link, not followed", None), "gone.png": ("no such file", None)}
    assert found == {"a.png": ("", None), "inner/c.jpg": ("", None), "inner/again.png": ("", 0), **skipped}


@pytest.mark.fault(42)
def test_rows_cannot_name_files_of_the_machine(tmp_path):
    own, strange = (str(put(tmp_path / name, PNG)) for name in ("own/a.png", "strange.png"))
    paths = [own, strange, "/etc/passwd", "http://127.0.0.1/a.png", "zip://a.png::/b.zip", "/dev/zero"]
    paths += [str(tmp_path / "own" / ".." / "strange.png"), None]
    rows = [{"bytes": None, "path": path} for path in paths] + [{"bytes": JPEG, "path": "/etc/passwd"}]
    features = Features({"image": {"bytes": Value("binary"), "path": Value("string")}})
    dataset = Dataset.from_dict({"image": rows}, features=features).cast_column("image", Image())
    with read_intake(DatasetSource(ImageRows(dataset, [tmp_path / "own"]))) as intake:
        notes = [file.verdict.note for file in intake.files]
    outside, address = "a file outside of the data set", TEXT["an-address-not-an-image"]
    assert notes == ["", outside, outside, address, address, outside, outside, "no image given", ""]
    write_parquet(foreign(strange), tmp_path / "own" / "table.parquet")
    with read_intake(str(tmp_path / "own" / "table.parquet")) as intake:  # one such row stops no discovery
        assert [file.verdict.note for file in intake.files if not file.is_used] == [outside]


VIEW = EvaluationView(build_image_processor(ViewOptions(image_size=16, resize_size=18)))


def test_every_image_is_decoded_once_in_any_order_and_its_view_used_in_the_order_of_the_files(
    tmp_path, monkeypatch
):
    """Photographs, some larger than a view needs, drawings, copies of both, and what is none."""
    files = {f"{number} drawing.png": encoded(distinct(50 + number), "PNG") for number in range(6)}
    for number in range(6):
        size = (900 + number, 700) if number % 2 else (120, 90)
        files[f"{number} photo.jpg"] = oriented("JPEG", number + 1, distinct(number, *size))
    photo, drawing = files["5 photo.jpg"], files["2 drawing.png"]
    copies = {"0 copy.jpg": photo, "7 copy.png": drawing, "8 cut.jpg": photo[:900], "9 cut.jpg": photo[:900]}
    written(tmp_path, files | copies)
    made, counts, decode, look_at = [], Counter(), identity.decode_image, reading.look_at
    waits = iter(np.random.default_rng(1).uniform(0, 0.05, 100))

    def counting(content, *how, **options):
        counts[content] += 1
        return decode(content, *how, **options)

    def slow(*arguments):  # the last are ready first
        time.sleep(next(waits))
        return look_at(*arguments)

    monkeypatch.setattr(identity, "decode_image", counting)
    for workers in (2, 4):
        keys = []
        with read_intake(
            tmp_path, view=VIEW, workers=workers, use=lambda file, _, keys=keys: keys.append(file.key)
        ) as intake:
            made.append((intake.files, intake.miniatures.tobytes(), intake.thumbnails(intake.used)))
        assert keys == [file.key for file in intake.used]
        assert len(counts) == 13
        assert counts.total() <= 13 + 3, "copies that follow at once may be decoded again"
        counts.clear()
        monkeypatch.setattr(reading, "look_at", slow)
    assert made[0] == made[1]
    by_name = {file.name: file for file in intake.files}
    assert by_name["0 copy.jpg"].duplicate_of is None
    assert by_name["5 photo.jpg"].duplicate_of == by_name["0 copy.jpg"].index
    assert by_name["9 cut.jpg"].verdict == by_name["8 cut.jpg"].verdict
    assert by_name["9 cut.jpg"].verdict.status is SKIPPED


# Files with more than 8 bits a value are shown by one rule, from the first discovery to the last export


def ramp(top: int, seed: int = 0) -> np.ndarray:
    """Values up to a largest one, another picture for every seed."""
    coarse = np.random.default_rng(seed).integers(0, 256, (5, 7), dtype=np.uint8)
    smooth = np.asarray(PilImage.fromarray(coarse).resize((48, 36), PilImage.Resampling.BICUBIC), float)
    return np.rint((smooth - smooth.min()) / np.ptp(smooth) * top).astype(np.uint16)


@pytest.fixture
def deep(tmp_path: Path) -> Path:
    bright = deep_png(np.stack([ramp(4000, 2)] * 3, axis=-1))
    said = raw_tiff(ramp(900, 3), tags={281: 1023})
    files = {"dim.tif": raw_tiff(ramp(900, 1)), "bright.png": bright, "plain.png": PNG, "said.tif": said}
    return written(tmp_path / "photos", files)


def brightest(intake: Intake) -> dict[str, int]:
    small = intake.thumbnails(intake.used)
    pictures = {file.name: PilImage.open(io.BytesIO(small[file.key])) for file in intake.used}
    return {name: int(np.asarray(shown).max()) for name, shown in pictures.items()}


@pytest.mark.parametrize("workers", [1, 3])
def test_the_smallest_depth_that_holds_all_values_is_that_of_all(deep: Path, workers: int) -> None:
    with read_intake(deep, workers=workers) as intake:
        assert intake.decoding.rendering == Rendering(integer=(0, 4095))
        assert TEXT["12-bits-window-0-to-4095"] in intake.report().rendering
        notes = {file.name: file.verdict.note for file in intake.used}
        assert notes == {
            "bright.png": TEXT["12-bits-scaled-to-8-bits"], "dim.tif": TEXT["12-bits-scaled-to-8-bits"],
            "plain.png": "", "said.tif": TEXT["10-bits-scaled-to-8-bits"],
        }  # fmt: skip
        shown = brightest(intake)
        assert abs(shown["dim.tif"] - 900 / 4095 * 255) < 6
        assert abs(shown["said.tif"] - 900 / 1023 * 255) < 8
    with read_intake(deep / "plain.png") as intake:
        assert intake.report().rendering == ""


def test_later_images_are_shown_by_the_first_rule_and_keep_their_keys(deep: Path, tmp_path: Path) -> None:
    (project := tmp_path / "project").mkdir()
    shown, keys, said = list[dict[str, int]](), list[dict[str, str]](), list[str]()

    def again(rendering: Rendering | None = None) -> None:
        seen = SeenFiles(project, {"enough": 1})
        with read_intake(deep, seen=seen, rendering=rendering) as intake:
            shown.append(brightest(intake))
            keys.append({file.name: file.key for file in intake.used})
            said.append(intake.report().rendering)
        seen.close()

    again()
    again()
    (deep / "new.tif").write_bytes(raw_tiff(ramp(65535, 4)))
    again()
    assert said[2].endswith("1 file has values beyond it, which are cut, such as new.tif")
    again(Rendering(given=(0, 1023)))
    again()
    assert shown[0] == shown[1]
    assert shown[0].items() <= shown[2].items()
    assert shown[3]["dim.tif"] > 200 > shown[2]["dim.tif"]
    assert shown[3] == shown[4], "what a person gave is kept"
    assert shown[3]["plain.png"] == shown[0]["plain.png"]
    assert keys[0].items() <= keys[2].items()
    assert keys[2] == keys[3] == keys[4]


@pytest.mark.slow
def test_features_page_and_exports_show_the_same_depth(deep: Path, out: Path, tiny_backbone: Path) -> None:
    features = []
    for name, content in {"": b"", "new.tif": raw_tiff(ramp(65535, 4))}.items():
        if name:
            (deep / name).write_bytes(content)
        session = DiscoverySession.open(tiny_backbone)
        discover(session, deep, out, num_categories=2, exports=["publish"])
        fresh = DiscoverySession.open(tiny_backbone, rendering=Rendering(integer=(0, 4095)))
        fresh.read(deep)
        assert np.allclose(session.current.features, fresh.current.features, atol=1e-5)
        names = [file.name for file in session.current.intake.used]
        features.append(dict(zip(names, session.current.features, strict=True)))
        shown = ProjectView(out).photos
        assert shown.decoding.rendering == session.current.intake.decoding.rendering == fresh.rendering
        row = shown.names.index("dim.tif")
        pixels = np.asarray(decode_image((deep / "dim.tif").read_bytes(), shown.decoding).image).astype(int)
        large, cell = (PilImage.open(io.BytesIO(shown.picture(row, side))) for side in (1600, 320))
        assert np.abs(np.asarray(large) - pixels).max() < 12
        assert np.abs(np.asarray(cell) - pixels).mean() < 6
        exported = [np.asarray(PilImage.open(path)) for path in (out / "publish").rglob("*.webp")]
        assert any(np.array_equal(each, pixels) for each in exported)
        shown.close()
    for name in ("dim.tif", "plain.png"):
        assert np.array_equal(features[0][name], features[1][name])


def test_rows_that_are_trained_on_are_shown_by_one_rule(deep: Path) -> None:
    names = sorted(path.name for path in deep.iterdir())
    records = [{"bytes": (deep / name).read_bytes(), "path": None} for name in names]
    feature = Features({"image": Image(decode=False)})
    rows = ImageRows(Dataset.from_dict({"image": records}, features=feature))
    at = names.index("dim.tif")
    for shown, top in ((rows.with_one_rendering(), 4095), (rows, 1023)):
        image = shown.select(np.array([at])).decode(0).image
        assert image is not None
        assert np.asarray(image).max() == round(900 / top * 255)
    decoding = rows.with_one_rendering().decoding
    clean = clean_image((deep / "dim.tif").read_bytes(), decoding)
    assert clean is not None
    assert np.asarray(PilImage.open(io.BytesIO(clean[1]))).max() == round(900 / 4095 * 255)


def test_a_camera_raw_beside_its_picture_is_left_out_and_named(tmp_path: Path) -> None:
    raw = b"FUJIFILMCCD-RAW 0201" + bytes(300) + oriented("JPEG", 1, picture(1200, 900))
    stub = b"II*\0\x08\0\0\0" + bytes(400)
    written(tmp_path, {"one.RAF": raw, "two.RAF": raw, "stub.ARW": stub, "one.jpg": JPEG})
    with read_intake(tmp_path) as intake:
        assert {file.name: file.verdict.note.partition(":")[0] for file in intake.files} == {
            "one.RAF": TEXT["camera-raw-beside-one-jpg-which"],
            "two.RAF": "camera RAW (RAF)",
            "stub.ARW": TEXT["camera-raw-arw-without-a-jpeg"],
            "one.jpg": "",
        }
        assert [file.name for file in intake.used] == ["one.jpg", "two.RAF"]
