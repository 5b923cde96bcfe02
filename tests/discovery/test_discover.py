"""One call from images to results, however often, however it is interrupted; and what later calls make of new ones."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from promptccd.discovery import assignment_rows, discover
from promptccd.discovery import report as page_module
from promptccd.discovery.checkpoint import found_with, save_progress
from promptccd.discovery.embedding import load_embedder
from promptccd.discovery.exports.rows import WAITS
from promptccd.discovery.project import edits
from promptccd.discovery.project.record import PROJECT, RECORD, read_record
from promptccd.discovery.report import write_page
from promptccd.errors import RunError
from promptccd.locks import FolderLock
from tests.discovery.conftest import at_forward, grouped, run, write_pictures
from tests.discovery.intake.test_intake import EXTRA, GOLDEN, LINKS, write_hostile
from tests.discovery.stored import alter, registry_in, table_of
from tests.messages import TEXT

WRITTEN = ("assignments.csv", "discovery.html", f"{PROJECT}/project.json", f"{PROJECT}/categories.sqlite")
ODD = 9  # a kind of which there is one picture at first


@pytest.fixture
def found(stage0, albums, out):
    """What the labelled stage found in the first album."""
    assert run(stage0, albums[0], out) == 0
    return out


def written(out):
    return {name: (out / name).read_bytes() for name in WRITTEN}


@pytest.mark.slow
@pytest.mark.fault(14, 16)
def test_reloading_in_a_new_process_gives_equal_bytes(stage0, albums, found):
    """Assignments and confidences, from features that are computed anew."""
    paths = [found / name for name in WRITTEN if not name.endswith("categories.sqlite")]
    first, categories = [path.read_bytes() for path in paths], registry_in(found).state_hash()
    alter(found / PROJECT, "delete from feature")
    (found / "discovery.html").unlink()
    command = [sys.executable, "-m", "promptccd", "discover", stage0, albums[0], "--out", found]
    result = subprocess.run(command, capture_output=True, check=False)
    assert result.returncode == 0, result.stderr
    assert b"Traceback" not in result.stderr
    assert [path.read_bytes() for path in paths] == first
    assert registry_in(found).state_hash() == categories
    assert any(float(row["confidence"]) < 1 for row in table_of(found))


@pytest.mark.moderate
@pytest.mark.fault(22)
def test_hostile_files_are_all_accounted_for(stage0, out, tmp_path, capsys):
    """What strangers send, as the intake's own tests have it, and some ordinary pictures."""
    images = write_pictures(tmp_path / "images", [0, 3, 5], per_category=4)
    write_hostile(images)
    assert run(stage0, images, out, "--export", "folders", "publish", "--json") == 0
    printed = json.loads(capsys.readouterr().out)
    rows, files = table_of(out), printed["files"]
    assert len(rows) == files["found"] >= len(GOLDEN) + len(EXTRA) + len(LINKS) + 12
    by_status = Counter(row["status"] for row in rows)
    assert by_status == {"used": files["used"], "duplicate": files["duplicates"], "skipped": files["skipped"]}
    assert by_status.total() == files["found"] == sum(printed["counts"].values())
    assert all(bool(row["category"]) == (row["status"] != "skipped") for row in rows)
    assert all(row["note"] for row in rows if row["status"] != "used")
    counts = "{found} found = {used} used + {duplicates} copies + {skipped} skipped".format(**files)
    assert counts in (out / "discovery.html").read_text()
    assert [each["photographs"] for each in printed["exports"]] == [files["used"]] * 2
    exported = [path for path in (out / "publish").rglob("*") if path.suffix in (".jpg", ".png", ".webp")]
    assert len(exported) == files["used"]


@pytest.mark.moderate
@pytest.mark.fault(8)
def test_one_process_at_a_time(session, albums, out):
    writing = pytest.raises(RunError, match=TEXT["process-is-writing"].format(os.getpid()))
    with FolderLock(out / PROJECT), writing:
        discover(session, albums[0], out)
    assert discover(session, albums[0], out).report.used == 32


@pytest.mark.moderate
@pytest.mark.fault(51, 52)
@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)], ids=["ctrl-c", "sigterm"]
)
def test_a_signal_leaves_the_folder_as_it_was(stage0, albums, found, capsys, number):
    before, sent = written(found), []
    with at_forward(lambda *given: sent or sent.append(signal.raise_signal(number))):
        assert run(stage0, albums[1], found) == 128 + number
    assert "Interrupted" in capsys.readouterr().err
    assert written(found) == before
    assert run(stage0, albums[1], found) == 0
    assert registry_in(found).stage == 2


def test_a_model_is_named_as_people_call_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, _ = load_embedder("photographs")
    assert found_with(model, tmp_path) == {"model": "photographs", "method": ""}
    model.config.name_or_path = str(tmp_path / "found" / "stage1")
    assert found_with(model, tmp_path / "found")["model"] == "stage1"
    monkeypatch.chdir(tmp_path)
    assert found_with(model, Path("found"))["model"] == "stage1"
    assert found_with(model, Path("elsewhere"))["model"] == str(tmp_path / "found" / "stage1")


def test_confidences_are_measured_where_the_model_tells_new_from_known(session, albums, tmp_path) -> None:
    grouped(session, albums[0])
    spread = session.model.spread
    assert spread is not None
    for known, expected in (
        (replace(spread, separation=0.95), True), (replace(spread, separation=0.85), False), (None, False)
    ):  # fmt: skip
        session.model.set_measured("spread", known)
        save_progress(session, tmp_path, albums[0])
        assert read_record(tmp_path)["measured"] is expected
    path = tmp_path / PROJECT / RECORD
    record = json.loads(path.read_text())
    limits = [{"decoding": {**record["decoding"], "max_pixels": most}} for most in (0, 1.5, 1)]
    odd = ({"measured": "yes"}, {"model": 1}, {"features": "g"}, *limits[:2])
    for text in ("{", *(json.dumps({**record, **each}) for each in odd)):
        path.write_text(text)
        with pytest.raises(RunError, match="missing or damaged"):
            read_record(tmp_path)
    path.write_text(json.dumps({**record, **limits[2]}))
    assert read_record(tmp_path)["decoding"].max_pixels == 1


def write_album(folder: Path, counts: dict[int, int], seed: int) -> Path:
    """Noisy mosaics ``<kind>-<number>.png``, so many of each kind."""
    folder.mkdir()
    for kind, count in counts.items():
        mosaic = np.kron(np.random.default_rng(kind).integers(0, 256, (4, 4, 3)), np.ones((8, 8, 1)))
        for number in range(count):
            noise = np.random.default_rng([kind, seed, number]).normal(0, 25, mosaic.shape)
            image = Image.fromarray((mosaic + noise).clip(0, 255).astype(np.uint8))
            image.save(folder / f"{kind}-{number:03d}.png")
    return folder


@pytest.mark.slow
def test_new_kinds_open_and_one_image_that_fits_nowhere_waits_until_there_are_more(out, tmp_path, capsys):
    def discovered(album: Path) -> dict:
        assert run("photographs", album, out, "--json") == 0
        return json.loads(capsys.readouterr().out)

    four = dict.fromkeys(range(4), 20)
    first = discovered(write_album(tmp_path / "one", dict.fromkeys(range(4), 30), 1))
    assert (first["num_categories"]["count"], first["waiting"]) == (4, {})

    second = discovered(write_album(tmp_path / "two", four | {4: 20, ODD: 1}, 2))
    assert (second["num_categories"]["count"], second["counts"]["unassigned"]) == (5, 1)
    (odd,) = [row for row in second["assignments"] if row["file"] == f"{ODD}-000.png"]
    assert odd["category"] is None
    assert odd["note"].startswith(WAITS)
    assert list(second["waiting"]) == [odd["picture"]]
    assert {row["category"] for row in second["assignments"] if row["file"].startswith("4-")} == {4}

    third = discovered(write_album(tmp_path / "three", four | {ODD: 15}, 3))
    assert (third["num_categories"]["count"], third["waiting"]) == (6, {})
    assert registry_in(out).category(5).size == 16
    again = discovered(tmp_path / "three")
    assert again["num_categories"]["count"] == 6
    homes = [[row["category"] for row in each["assignments"]] for each in (third, again)]
    assert homes[0] == homes[1]


# ``discovery.html`` in a real browser: names are text, nothing leaves the machine, and the counts are there


NAMES = [
    "<img src=x onerror=alert(1)>", '"><script>alert(2)</script>', "\u202egnp.\u2069exe", "{{ 7 * 7 }}", "z" * 100,
]  # fmt: skip


@pytest.mark.moderate
def test_names_are_text_nothing_is_asked_of_the_network_and_a_phone_shows_it(
    session, albums, visit, tmp_path
) -> None:
    """The page of a second stage, with names and files that try things."""
    grouped(session, albums[0])
    album = write_pictures(tmp_path / "album", [2, 4, 5, 6], per_category=5)
    with Image.open(album / "4-000.png") as found:
        found.putpixel((0, 0), 7)
        found.save(album / "<img src=x onerror=alert(3)>.png")
    shutil.copy(album / "4-000.png", album / "copy.png")
    (album / "<svg onload=alert(4)>.jpg").write_bytes(b"<html>")
    Image.new("RGB", (900, 20)).save(album / "strip.png")
    grouped(session, album, num_categories=len(session.grouping.fixed) + 3)
    sizes = Counter(session.registry.members.get(key) for key in session.current.keys)
    largest = sorted(session.registry.active, key=lambda each: -sizes[each.id])
    for each, name in zip(largest, NAMES, strict=False):
        edits.rename(session.registry, each.id, name)
    edits.merge(session.registry, [session.registry.active[-2].id, session.registry.active[-3].id])
    rows = assignment_rows(session)
    path = write_page(session, rows, tmp_path / "discovery.html")
    dialogs = []
    visit.page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
    visit.page.goto(path.as_uri())
    text = visit.page.inner_text("body")
    assert not dialogs
    assert not visit.complaints
    assert not visit.foreign_requests
    shown = {session.registry.category(row.category).name for row in rows if row.category is not None}
    assert len(shown.intersection(NAMES)) >= 2
    for name in shown:
        assert name in text
    assert "<img src=x onerror=alert(3)>.png" in path.read_text().replace("&lt;", "<").replace("&gt;", ">")
    assert "<svg onload=alert(4)>.jpg" in text
    assert visit.page.locator("img[onerror]").count() == 0
    assert visit.page.locator("script, svg[onload]").count() == 0
    picture, other = (visit.page.locator(".thumbs img").nth(each) for each in (0, 1))
    before, beside = picture.bounding_box(), other.bounding_box()
    picture.click()
    assert picture.bounding_box()["width"] > 4 * before["width"]
    assert other.bounding_box() == beside  # nothing moves
    visit.page.keyboard.press("Tab")
    assert picture.bounding_box() == before
    visit.page.set_viewport_size({"width": 390, "height": 800})
    assert visit.page.evaluate("document.documentElement.scrollWidth") <= 390
    assert b"Exif" not in path.read_bytes()


def test_unsure_images_are_counted_all_and_copies_are_none(session, tmp_path, monkeypatch) -> None:
    """Of a long list the first are shown, and the number is of all."""
    grouped(session, write_pictures(tmp_path / "album", [0, 1], per_category=3))
    rows = [replace(row, confidence=0.4) for row in assignment_rows(session)]
    rows += [replace(rows[0], file="copy.png", status="duplicate")]
    sure = [replace(row, confidence=0.5) for row in rows[1:]]
    monkeypatch.setattr(page_module, "MAX_LISTED", 2)
    for listed, said in (
        (rows, "6 images that the model is unsure of; here the first 2, and assignments.csv has all<"),
        ([rows[0], *sure], "1 image that the model is unsure of<"),
    ):
        assert f"<summary>{said}" in write_page(session, listed, tmp_path / "page.html").read_text()
    monkeypatch.setattr(page_module, "MAX_BYTES", 1)
    assert write_page(session, rows, tmp_path / "page.html").read_text().count("data:image/") == 1
