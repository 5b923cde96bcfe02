"""What visitors take away tells nothing of their photographs, and their names only if they say so."""

import base64
import re
import zipfile
from pathlib import Path

import gradio as gr
import pytest

from promptccd.discovery.app.desk import Desk
from promptccd.discovery.app.panels.take_away import NAMES, OFFERS, TakeAwayPanel
from promptccd.discovery.app.visits import Visit, Visits
from tests.photographs import MARKER, album


@pytest.fixture
def visit(visits: Visits, tmp_path: Path) -> Visit:
    """A visit over grouped photographs whose files are called by what happened there, a copy among them."""
    photographs = album(16)
    for number, (suffix, content) in enumerate([*photographs, photographs[0]]):
        (tmp_path / f"{MARKER}-file_{number}{suffix}").write_bytes(content)
    (tmp_path / f"{MARKER}-file_broken.jpg").write_bytes(b"\xff\xd8\xff")
    opened = visits.open()
    opened.session.read(sorted(tmp_path.iterdir()))
    opened.session.embed()
    opened.session.group(3)
    return opened


def inside(path: Path) -> dict[str, bytes]:
    """Files, those of archives and the pictures of pages included, by their names."""
    if path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive:
            return {name: archive.read(name) for name in archive.namelist() if not name.endswith("/")}
    content = path.read_bytes()
    pictures = re.findall(rb"data:image/[a-z]+;base64,([A-Za-z0-9+/=]+)", content)
    return {path.name: content, **{str(place): base64.b64decode(each) for place, each in enumerate(pictures)}}


def taken(visits: Visits, visit: Visit, what: list[str]) -> dict[str, bytes]:
    with gr.Blocks():
        panel = TakeAwayPanel(Desk(visits, gr.State("")))
    made = panel._prepare(visit.id, what)
    found: dict[str, bytes] = {}
    for file in made.value:
        found |= {
            f"{file}/{name}": data
            for name, data in inside(Path(file["path"] if isinstance(file, dict) else file)).items()
        }
    return found


@pytest.mark.fault(47, 49)
def test_nothing_is_told_unless_asked_for(visits: Visits, visit: Visit) -> None:
    files = taken(visits, visit, list(OFFERS))
    assert len(files) > 30
    for name, data in files.items():
        for width in ("utf-8", "utf-16-le"):
            assert MARKER.encode(width) not in data, name
        assert MARKER not in name
        assert b"2019:07:14" not in data
    named = taken(visits, visit, [*OFFERS, NAMES])
    told = [name for name, data in named.items() if f"{MARKER}-file".encode() in data]
    assert {Path(name).name for name in told} >= {"assignments.csv", "discovery.html", "metadata.csv"}
    for name, data in named.items():
        for word in ("-make", "-place", "-xmp", "-comment", "-behind", "-thumbnail"):
            assert f"{MARKER}{word}".encode() not in data, name
