"""A photograph as a file: its date, its folder, the file itself and its pixels, and what was left out."""

from __future__ import annotations

import io
import json
import os
import shutil
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from PIL import ExifTags, Image

from promptccd.discovery import DiscoverySession, discover
from promptccd.discovery.intake.seen import SEEN
from promptccd.discovery.page import OpenPage
from promptccd.discovery.project import ProjectView
from promptccd.discovery.project.photos import LARGE_SIDE, SIDES, Photos
from promptccd.discovery.project.record import PROJECT, RECORD
from promptccd.errors import DataError
from tests.discovery.intake.test_archives import packed
from tests.discovery.page.conftest import WIDE, Person, Window, person_at
from tests.discovery.stored import copied, relocate
from tests.messages import TEXT
from tests.photographs import MARKER, jpeg, pixels
from tests.processes import eventually

if TYPE_CHECKING:
    from playwright.sync_api import Browser

DATES = {
    "one.jpg": "2024:05:01 10:00:00",
    "trip/three.jpg": "2024:05:02 11:00:00",
    "trip/two.jpg": "2023:01:09 09:30:00",
}
MARKED = "<b>marked.jpg"


@pytest.fixture(scope="session")
def journey_once(tiny_backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photographs with dates, one that tells on a person, one without, a panorama for no browser, and two bad files."""
    folder = tmp_path_factory.mktemp("journey")
    album = folder / "album"
    (album / "trip").mkdir(parents=True)
    exif = Image.Exif()
    for row, (name, date) in enumerate(DATES.items()):
        exif[ExifTags.Base.DateTime] = date
        pixels(row, 2400).save(album / name, exif=exif)
    (album / MARKED).write_bytes(jpeg(pixels(6, 480)))
    pixels(7, 60).save(album / "trip" / "undated Ä.PNG")
    pixels(8, 2400).resize((2400, 120)).save(album / "wide Ä.tif")
    (album / "broken.jpg").write_bytes(b"\xff\xd8\xff nothing")
    (album / "notes.txt").write_text("no picture")
    discover(DiscoverySession.open(tiny_backbone), album, folder / "found", num_categories=1)
    return folder


@pytest.fixture
def journey(journey_once: Path, tmp_path: Path) -> Path:
    return copied(journey_once, tmp_path / "journey")


@pytest.fixture
def project(journey: Path) -> Path:
    return journey / "found"


def rows(window: Window) -> dict[str, int]:
    return {name: row for row, name in enumerate(window.get("names"))}


def generation(window: Window) -> str:
    return str(window.get("state")["generation"])


def test_the_original_is_the_file_itself_and_where_and_from_when_it_is_is_told(
    window: Window, journey: Path
) -> None:
    numbers, which = rows(window), generation(window)
    dates = np.frombuffer(window.ask("/api/dates")[2], "<f8")
    assert dates[numbers["trip/two.jpg"]] == np.datetime64("2023-01-09T09:30:00").astype(float)
    assert np.isnan(dates[numbers["trip/undated Ä.PNG"]])
    assert len(dates) == len(numbers) == 6
    for name, kind in (
        ("one.jpg", "image/jpeg"),
        ("trip/undated Ä.PNG", "image/png"),
        ("wide Ä.tif", "application/octet-stream"),
    ):
        status, headers, content = window.ask(f"/api/original/{which}/{numbers[name]}")
        path = journey / "album" / name
        assert (status, headers["content-type"], content) == (200, kind, path.read_bytes())
        saved = "attachment; filename*=UTF-8''wide%20%C3%84.tif" if name == "wide Ä.tif" else None
        assert headers.get("content-disposition") == saved
        assert (headers["x-content-type-options"], headers["cache-control"]) == ("nosniff", "no-store")
        assert window.get(f"file/{numbers[name]}")["path"] == str(path)
    assert window.get(f"file/{numbers['one.jpg']}")["date"] == "2024-05-01T10:00:00"


def test_only_who_may_look_gets_a_file_and_only_what_the_project_showed(
    window: Window, journey: Path
) -> None:
    row, which = rows(window)["one.jpg"], generation(window)
    for path in (f"original/{which}/{row}", f"file/{row}", "dates"):
        assert window.ask(f"/api/{path}", cookie="")[0] == 401
        assert window.ask(f"/api/{path}", Host="evil.example")[0] in (403, 421)
    for path in (f"original/{which}/99", f"original/other/{row}", "file/99", f"original/{which}/..%2f1"):
        assert window.ask(f"/api/{path}")[0] == 404, path
    photograph = journey / "album" / "one.jpg"
    photograph.unlink()
    (journey / "secret").write_text("secret")
    photograph.symlink_to(journey / "secret")
    for asked in (window.ask(f"/api/original/{which}/{row}"), show(window, row)):
        assert asked[0] == 409
        assert b"is not where it was" in asked[2]
    photograph.unlink()
    pixels(77, 100).save(photograph)
    assert window.ask(f"/api/original/{which}/{row}")[0] == 409
    assert show(window, row)[0] == 409


def show(window: Window, row: object, **more: str) -> tuple[int, dict[str, str], bytes]:
    return window.ask("/api/show_in_folder", {"row": row, "generation": generation(window)}, **more)


@pytest.fixture
def shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What a program that shows folders was called with."""
    if sys.platform in ("darwin", "win32"):
        pytest.skip("it would open a window there")
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "xdg-open"
    part, whole = tmp_path / "part", tmp_path / "asked"
    program.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {part}; mv {part} {whole}\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    return whole


def test_its_folder_is_shown_on_this_machine(window, journey, shown, monkeypatch) -> None:
    assert show(window, rows(window)["trip/two.jpg"])[0] == 200
    assert eventually(shown.exists)
    assert shown.read_text().splitlines() == [str(journey / "album" / "trip")]
    shown.unlink()
    for row in (99, -1, "0", None, True, "../../etc"):
        assert show(window, row)[0] in (404, 409), row
    assert show(window, 0, cookie="")[0] == 401
    assert show(window, 0, Origin="http://evil.example")[0] == 403
    assert window.ask("/api/show_in_folder", {"row": 0, "generation": "other"})[0] == 409
    for kind in ("table", "../../etc"):
        assert window.ask("/api/show_in_folder", {"export": kind})[0] == 409
    assert not shown.exists()
    assert window.ask("/api/export", {"kind": "table"})[0] == 200
    _, _, content = window.ask("/api/show_in_folder", {"export": "table"})
    assert json.loads(content) == {"path": str(journey / "found/table")}
    monkeypatch.setenv("PATH", "")  # a machine that shows no folders says the path
    status, _, content = show(window, rows(window)["one.jpg"])
    assert (status, str(journey / "album" / "one.jpg").encode() in content) == (409, True)


@pytest.fixture
def looker(browser: Browser, page: OpenPage) -> Iterator[Person]:
    allowed = ["clipboard-read", "clipboard-write"]
    with person_at(browser, page.url, device_scale_factor=2, permissions=allowed) as person:
        yield person


@pytest.mark.slow
def test_photographs_by_date(looker: Person) -> None:
    looker.go("view=all")
    looker.see(".cell img")
    by_date = [MARKED, "trip/two.jpg", "one.jpg", "trip/three.jpg"]
    for order, expected in (("date", by_date), ("late", by_date[::-1])):
        looker.page.locator(".head select").select_option(order)
        looker.page.wait_for_timeout(400)
        labels = looker.page.locator(".cell").evaluate_all("all => all.map(each => each.title)")
        assert [label.partition(",")[0] for label in labels][:4] == expected


def in_large(looker: Person, name: str) -> None:
    looker.go("view=all")
    looker.page.locator(f".cell[title^='{name}']").click()
    looker.see("dialog.large .photo")
    looker.page.wait_for_timeout(500)


@pytest.mark.slow
def test_its_own_pixels_are_seen_and_moved(looker: Person) -> None:
    in_large(looker, "one.jpg")
    photo = looker.page.locator("dialog.large .photo")
    looker.press("z")
    looker.see("dialog.large .photo[src*=original]")
    looker.page.wait_for_timeout(200)
    assert round(photo.bounding_box()["width"]) == 2400
    before = photo.bounding_box()["y"]
    looker.press("ArrowDown")
    looker.page.wait_for_timeout(200)
    assert photo.bounding_box()["y"] < before
    looker.page.mouse.dblclick(600, 300)
    looker.page.wait_for_timeout(200)
    assert photo.bounding_box()["width"] <= WIDE[0]
    looker.press("Escape")
    in_large(looker, "wide Ä.tif")  # no browser shows this file: it is the preview
    looker.press("z")
    looker.see("dialog.large .photo[src*=picture]")
    looker.page.wait_for_timeout(300)
    assert photo.bounding_box()["width"] == pytest.approx(1600, abs=2)


@pytest.mark.slow
def test_its_path_is_copied_and_the_browser_keeps_its_menu(looker, journey, shown) -> None:
    in_large(looker, "one.jpg")
    looker.press("f")
    looker.page.get_by_text(str(journey / "album" / "one.jpg")).wait_for()
    looker.page.get_by_role("button", name="Copy the path").click()
    looker.said("Copied")
    assert looker.page.evaluate("navigator.clipboard.readText()") == str(journey / "album" / "one.jpg")
    with looker.page.expect_popup() as opening:
        looker.page.get_by_role("link", name="Open the original").click()
    opening.value.wait_for_load_state()
    assert opening.value.evaluate("document.images[0].naturalWidth") == 2400
    looker.page.get_by_role("button", name="Show it in its folder").click()
    looker.said("Its folder was asked to open")
    looker.press("Escape", "Escape")
    prevented = """() => new Promise((done) => {
        document.addEventListener('contextmenu', (event) => setTimeout(() => done(event.defaultPrevented)), true); })"""
    answer = looker.page.evaluate_handle(f"({{ found: ({prevented})() }})")
    looker.page.locator(".cell").first.click(button="right")
    assert looker.page.evaluate("async (asked) => await asked.found", answer) is False


# Pictures of the page come from the files of the project, and from no other


def test_pictures_tell_nothing_but_what_is_seen(journey: Path) -> None:
    for large in (480, 128):  # with the files, and without them
        photos = ProjectView(journey / "found").photos
        contents = [photos.picture(photos.names.index(MARKED), side) for side in SIDES]
        assert not any(MARKER.encode() in each for each in contents)
        seen = [Image.open(io.BytesIO(each)) for each in contents]
        found = [(max(each.size), each.format) for each in seen]
        assert found == [(128, "JPEG"), (320, "WEBP"), (large, "JPEG")]
        assert large == 128 or sum(seen[2].quantization[0]) == 1109
        photos.close()
        shutil.rmtree(journey / "album", ignore_errors=True)


def test_a_file_that_holds_something_else_now_is_not_shown(journey: Path) -> None:
    secret = journey / "secret.jpg"
    secret.write_bytes(jpeg(pixels(9, 480)))
    photos = ProjectView(journey / "found").photos
    known = [photos.picture(row, 128) for row in range(5)]
    (journey / "album/one.jpg").unlink()
    (journey / "album/one.jpg").symlink_to(secret)
    (journey / "album" / MARKED).write_bytes(secret.read_bytes())
    (journey / "album/trip").rename(journey / "moved")
    (journey / "album/trip").symlink_to(journey / "moved")
    assert [photos.picture(row, LARGE_SIDE) for row in range(5)] == known


def test_a_project_of_a_stranger_shows_no_file_outside_its_folders(journey: Path) -> None:
    """Even one whose content it knows: a list of files that was altered names it, and its sources do not hold it."""
    project, outside = journey / "found" / PROJECT, journey / "outside.jpg"
    shutil.copy(journey / "album/one.jpg", outside)
    relocate(project, str(journey / "album/one.jpg"), str(outside))
    with closing(sqlite3.connect(project / SEEN)) as database:
        database.execute("delete from small")
        database.commit()
    photos = ProjectView(journey / "found").photos
    row = next(row for row, name in enumerate(photos.names) if "outside" in name)
    assert [photos.picture(row, side) for side in SIDES] == [None, None, None]
    record = json.loads((project / RECORD).read_text())
    (project / RECORD).write_text(json.dumps({**record, "sources": [str(journey)]}))
    assert ProjectView(journey / "found").photos.picture(row, 128) is not None


def test_what_is_at_hand_gives_bytes_first_and_hears_of_a_file_that_is_not_what_it_seemed(
    journey: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry, asked = ProjectView(journey / "found"), list[str]()

    def at_hand(key: str) -> bytes | None:
        asked.append(key)
        return b"at hand" if key == first else None

    photos = Photos(journey / "found", registry.images, at_hand)
    first, second, *_ = photos.keys
    assert photos.original(first) == b"at hand"
    with monkeypatch.context() as patch:
        patch.setattr("promptccd.discovery.project.photos.look_at", None)  # an unchanged file is not decoded
        assert photos.original(second) == (journey / "album" / photos.names[1]).read_bytes()
    assert asked == [first, second]
    asked.clear()
    assert photos.file_of(second) == journey / "album" / photos.names[1]
    assert asked == []
    (journey / "album" / photos.names[1]).write_bytes(jpeg(pixels(9, 480)))
    with pytest.raises(DataError, match="shows something else"):
        photos.file_of(second)
    assert asked == [second]


def test_photographs_of_an_archive_are_there_as_they_were_kept(tiny_backbone: Path, tmp_path: Path) -> None:
    content = {f"{row}.jpg": jpeg(pixels(row, 480)) for row in range(3)}
    (tmp_path / "album.zip").write_bytes(packed(*content.items()))
    discover(DiscoverySession.open(tiny_backbone), tmp_path / "album.zip", tmp_path / "found")
    photos = ProjectView(tmp_path / "found").photos
    assert photos.names == list(content)
    with pytest.raises(DataError, match=TEXT["0-jpg-lies-in-an-archive"]):
        photos.original(photos.keys[0])
    for row in range(3):
        assert max(Image.open(io.BytesIO(photos.picture(row, LARGE_SIDE))).size) == 128  # the file is nowhere
    assert photos.here.all()
    with (tmp_path / "album.zip").open("ab") as archive:
        archive.write(b"more")
    assert not ProjectView(tmp_path / "found").photos.here.any()  # another archive, until it is read
