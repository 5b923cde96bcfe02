"""``discovery.html`` in a real browser: names are text, nothing leaves the machine, and the counts are there."""

import shutil
from collections import Counter
from dataclasses import replace

import pytest
from PIL import Image

from promptccd.discovery import assignment_rows
from promptccd.discovery import report as page_module
from promptccd.discovery.project import edits
from promptccd.discovery.report import write_page
from tests.discovery.conftest import grouped, write_pictures

NAMES = [
    "<img src=x onerror=alert(1)>", '"><script>alert(2)</script>', "\u202egnp.\u2069exe", "{{ 7 * 7 }}", "z" * 100,
]  # fmt: skip


@pytest.fixture
def page(session, albums, tmp_path):
    """The page of a second stage, with names and files that try things."""
    grouped(session, albums[0])
    album = write_pictures(tmp_path / "album", [2, 4, 5, 6], per_category=5)
    with Image.open(album / "4-004.png") as found:
        found.putpixel((0, 0), 7)
        found.save(album / "<img src=x onerror=alert(3)>.png")
    shutil.copy(album / "4-004.png", album / "copy.png")
    (album / "<svg onload=alert(4)>.jpg").write_bytes(b"<html>")
    Image.new("RGB", (900, 20)).save(album / "strip.png")
    grouped(session, album, num_categories=len(session.grouping.fixed) + 3)
    sizes = Counter(session.registry.members.get(key) for key in session.current.keys)
    largest = sorted(session.registry.active, key=lambda each: -sizes[each.id])
    for each, name in zip(largest, NAMES, strict=False):
        edits.rename(session.registry, each.id, name)
    edits.merge(session.registry, [session.registry.active[-2].id, session.registry.active[-3].id])
    rows = assignment_rows(session)
    return session, rows, write_page(session, rows, tmp_path / "discovery.html")


@pytest.mark.moderate
def test_names_are_text_nothing_is_asked_of_the_network_and_a_phone_shows_it(page, visit, tmp_path) -> None:
    session, rows, path = page
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
    found = session.current.intake.report()
    counts = f"{found.found} found = {found.used} used + {found.duplicates} copies + {found.skipped} skipped"
    assert counts in text
    assert "What changed" in text
    for phrase in ("Renamed", "Retired", "merged into", "Grown"):
        assert phrase in text

    picture, other = (visit.page.locator(".thumbs img").nth(each) for each in (0, 1))
    before, beside = picture.bounding_box(), other.bounding_box()
    picture.click()
    assert picture.bounding_box()["width"] > 4 * before["width"]
    assert other.bounding_box() == beside  # nothing moves
    visit.page.keyboard.press("Tab")
    assert picture.bounding_box() == before
    visit.page.set_viewport_size({"width": 390, "height": 800})
    assert visit.page.evaluate("document.documentElement.scrollWidth") <= 390
    assert write_page(session, rows, tmp_path / "again.html").read_bytes() == path.read_bytes()
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
