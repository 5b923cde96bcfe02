"""The page served as it is, and visitors who are up to no good: each is answered, and the others do not notice."""

import csv
import io
import re
import socket
import stat
import sys
import tempfile
import threading
import time
import tomllib
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import quote

import httpx
import pytest
import yaml
from PIL import Image

from promptccd.cli.main import main
from promptccd.discovery.page.visits import EXAMPLE, Visit, Visits
from promptccd.discovery.project import load_registry
from promptccd.errors import DataError, DiskError, PromptCCDError
from promptccd.images.limits import MIB
from promptccd.training.progress import StopRequest
from tests.discovery.intake.test_archives import packed
from tests.docs.pages import ROOT
from tests.images.test_decode import BOMB_WEBP
from tests.messages import TEXT
from tests.photographs import MARKER, jpeg, pixels
from tests.processes import eventually
from tests.spaces.conftest import (
    LIMITS,
    Answer,
    Server,
    Visitor,
    address_in,
    as_file,
    picture,
    pictures,
    serving,
)

HOSTILE = "<img src=x onerror=alert(1)>"


def state(visitor: Visitor, base: str = "") -> dict:
    answer = visitor.get(f"{base or visitor.base}api/state")
    answer.raise_for_status()
    return answer.json()


def edit(visitor: Visitor, **asked: object) -> httpx.Response:
    return visitor.post(f"{visitor.base}api/edit", json=asked)


def refused(answer: Answer, *parts: str) -> None:
    """A message was given, not a traceback, not silence, and nothing of this machine."""
    message = answer.error
    assert message and "Traceback" not in message and "/tmp" not in message
    assert [part for part in parts if part not in message] == []


def test_a_visit_from_the_example_to_the_export(server: Server, visitor: Visitor, tmp_path: Path) -> None:
    assert state(visitor)["title"] == "An example"
    first = state(visitor)["groups"][0]
    assert edit(visitor, do="rename", category=first["id"], name="cheetah").status_code == 200
    assert address_in(visitor.give(pictures())) == visitor.base
    found = state(visitor)
    assert (found["title"], found["photos"], found["stage"]) == ("Your photographs", 9, 0)
    assert edit(visitor, do="rename", category=found["groups"][0]["id"], name="heron").status_code == 200

    visitor.give(pictures(20))  # the next stage, of the same names; what was corrected stays
    found = state(visitor)
    assert (found["photos"], found["stage"]) == (18, 1)
    assert "heron" in {each["name"] for each in found["groups"]}
    count = len(found["groups"])
    again = visitor.post(f"{visitor.base}api/regroup", json={"count": count + 1})
    assert again.status_code == 200
    assert len(state(visitor)["groups"]) == count + 1

    rows = list(csv.DictReader(io.StringIO(visitor.get(f"{visitor.base}api/groups.csv").text)))
    assert len(rows) == 18 and "heron" in {row["name"] for row in rows}
    assert {("0.png", ""), ("9 0.png", ""), ("17 8.png", "")} <= {(row["file"], row["path"]) for row in rows}
    taken = visitor.get(f"{visitor.base}take/images.zip")
    assert taken.headers["content-disposition"] == 'attachment; filename="images.zip"'
    assert taken.headers["cache-control"] == "no-store"
    with zipfile.ZipFile(io.BytesIO(taken.content)) as archive:
        files = [name for name in archive.namelist() if not name.endswith("/")]
    assert sum(name.endswith(".png") for name in files) == 18 == len(files) - 1  # and metadata.jsonl
    assert eventually(lambda: not any(path.suffix == ".zip" for path in server.files))
    with zipfile.ZipFile(io.BytesIO(visitor.get(f"{visitor.base}take/model.zip").content)) as archive:
        archive.extractall(tmp_path / "model")
    registry = load_registry(tmp_path / "model")
    assert "heron" in {each.name for each in registry.active} and registry.stage == 1


@pytest.mark.fault(43)
def test_uploads_beyond_the_limits(visitor: Visitor) -> None:
    form = {"files": ("large.png", bytes(LIMITS.max_total_bytes + 2 * MIB))}
    answer = visitor.post("/gradio_api/upload", files=form)
    assert (answer.status_code, TEXT["the-limit-is-3145728"] in answer.text) == (413, True)
    answer = visitor.post("/gradio_api/upload", files={"files": ("large.png", bytes(2 * MIB + 1))})
    assert answer.status_code == 413
    for content, status in ((b"[" * 10_000, 422), (b"x" * MIB, 422), (b"x" * (MIB + 1), 413)):
        assert visitor.post("/gradio_api/queue/join", content=content).status_code == status
    refused(visitor.give([(f"{n}.png", b"x") for n in range(31)]), "holds 31 files; the limit is 30")
    refused(visitor.give([(f"{n}.png", b"x") for n in range(30)]), "holds no image that can be used")
    refused(visitor.give([("30.png", b"x")]), "holds 31 files; the limit is 30")
    visitor.call("forget")
    visitor.base = visitor.enter()
    refused(visitor.give([("one.png", bytes(MIB)), ("two.png", bytes(MIB // 2))]), "holds no image")
    refused(visitor.give([("three.png", bytes(MIB))]), "contains more than the limit of 2097152 bytes in all")


@pytest.mark.fault(43)
def test_an_upload_must_say_how_long_it_is(server: Server) -> None:
    kind = {"Content-Type": "multipart/form-data; boundary=b"}
    sent = {"content": iter([b"--b\r\n", bytes(100)]), "headers": kind}
    assert httpx.post(f"{server.url}gradio_api/upload", **sent, trust_env=False).status_code == 411


@pytest.mark.fault(43)
def test_what_is_no_image_is_told_by_its_content(visitor: Visitor) -> None:
    for name, content, message in (  # more of them are in `tests.images.test_decode`
        ("script.sh", picture(1), "Invalid file type"),
        ("page.jpg", b"<html><script>alert(1)</script>", "starts like HTML"),
        ("album.zip", b"no archive", "holds no image that can be used"),
        ("a.png", b"\x89PNG" + bytes(MIB), "exceeds the limit of 1048576"),
        ("a.webp", BOMB_WEBP, "pixels"),
    ):
        refused(visitor.give([(name, content)]), message)


@pytest.mark.fault(41)
def test_one_bad_image_does_not_end_a_visit_and_no_name_is_markup(visitor: Visitor) -> None:
    bad = [("page.jpg", b"<html>"), (f"{HOSTILE}.png", b"")]
    found = visitor.give([*pictures(), *bad])
    assert TEXT["9-of-11-files-are-in"] in found.shown and "2 skipped" in found.shown
    assert "<img" not in found.shown


@pytest.mark.moderate
def test_forged_paths(visitor: Visitor, server: Server) -> None:
    for path in (
        "/etc/passwd", "/proc/self/environ", "../../../../etc/passwd", "app.py", "\0", "a" * 5000,
        "http://169.254.169.254/latest/meta-data", "file:///etc/passwd", "ftp://127.0.0.1/a.png",
    ):  # fmt: skip
        inside = f"{server.space.visits.root}/../../{path.strip('/')}"
        named = as_file(path), {"path": path}, as_file(path, url=path, orig_name="a.png"), as_file(inside)
        for file in named:
            assert not visitor.call("group", [[file]]).went_well, path
        for route in ("/gradio_api/file=", "/gradio_api/file/", "/gradio_api/proxy=", f"{visitor.base}take/"):
            answer = visitor.get(route + quote(path, safe=""))
            assert (answer.status_code, "root:" in answer.text) == (404, False), path


@pytest.mark.fault(42)
def test_addresses_are_never_fetched(visitor: Visitor) -> None:
    with socket.create_server(("127.0.0.1", 0)) as trap:
        address = f"http://127.0.0.1:{trap.getsockname()[1]}/a.png"
        own = visitor.upload(pictures())[0]
        refused(visitor.call("group", [[{**own, "path": address}]]), "Addresses are not fetched")
        for path in (address.upper(), f" {address}"):
            assert not visitor.call("group", [[{**own, "path": path}]]).went_well
        assert visitor.get(f"/gradio_api/file={address}").status_code == 404
        assert visitor.get(f"/gradio_api/proxy={address}").status_code == 404
        assert visitor.call("group", [[{**own, "url": address}]]).went_well  # which nobody reads
        trap.setblocking(False)
        with pytest.raises(BlockingIOError):  # nobody has come
            trap.accept()


@pytest.mark.moderate
@pytest.mark.fault(44)
def test_nobody_reaches_what_another_has(server: Server, visitor: Visitor) -> None:
    visitor.give(pictures())
    for path in ("api/state", "api/groups.csv", "take/images.zip", "api/picture/x/0/128"):
        assert visitor.get(visitor.base + path).status_code in (200, 404)
    private = [path for path in server.files if path.suffix in (".png", ".sqlite")]
    assert {path.name for path in private} >= {"0.png", "categories.sqlite"}
    for other in (server.visitor(), server.visitor(keeps_cookies=False)):
        with other:
            assert other.base != visitor.base
            for path in ("api/state", "api/groups.csv", "take/images.zip", ""):
                assert other.get(visitor.base + path).status_code == 410
            assert other.post(f"{visitor.base}api/edit", json={"do": "undo"}).status_code == 410
            for path in private:
                assert other.get(f"/gradio_api/file={path}").status_code == 404
                assert not other.call("group", [[as_file(str(path))]]).went_well
                assert path.exists()
            for route in ("deep_link?session_hash=" + visitor.session, "run-history/records", "runs"):
                assert other.get(f"/gradio_api/{route}").status_code == 404
            assert other.get("/monitoring/summary").status_code == 404
            other.call("forget")


@pytest.mark.fault(44)
def test_forgetting_reaches_what_the_server_keeps(server: Server) -> None:
    with server.visitor() as visitor:
        visitor.give([(f"holiday {name}", content) for name, content in pictures()])
        assert any("holiday" in path.name for path in server.files)
        assert visitor.call("forget").went_well
        assert not any("holiday" in path.name for path in server.files)
        assert visitor.get(f"{visitor.base}api/state").status_code == 410
        late = visitor.upload([("late.png", picture(1))])
        refused(visitor.call("group", [late]), "load the page again")
        assert not Path(late[0]["path"]).exists()


@pytest.mark.moderate
def test_values_out_of_bounds(visitor: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    refused(visitor.call("group_again"), "No photographs yet")
    with ThreadPoolExecutor(4) as pool:  # of the example, one after another
        names = ("images.zip", "images.zip", "model.zip", "x")
        taken = list(pool.map(visitor.get, [f"{visitor.base}take/{name}" for name in names]))
    assert [each.status_code for each in taken] == [200, 200, 409, 404]
    visitor.give(pictures())
    assert visitor.post("/gradio_api/queue/join", json={"fn_index": 10**6}).status_code in (404, 422)
    refused(visitor.call("group", [[]]), "No image came")
    before = state(visitor)
    for count, status in ((MIB, 400), (MIB + 1, 413)):
        assert visitor.post(f"{visitor.base}api/edit", content=b"x" * count).status_code == status
    assert edit(visitor, do="move", images=[99], to=0).status_code == 409
    assert state(visitor) == before

    def full(visit: Visit, *_: object) -> None:
        raise DiskError(f"{visit.folder} is full")

    monkeypatch.setattr(Visit, "working", full)
    for answer in (visitor.get(f"{visitor.base}take/images.zip"), edit(visitor, do="undo", number=0)):
        assert answer.json() == {"error": TEXT["your-photographs-is-full"]}  # and not where they are
    monkeypatch.undo()


def test_what_an_archive_holds_is_shown_and_its_names_lead_nowhere(server: Server, visitor: Visitor) -> None:
    inside = [*pictures(), ("../../escaped.png", picture(50)), ("holiday/beach/a.png", picture(51))]
    given = visitor.give([("album.zip", packed(*inside))])
    assert given.went_well and TEXT["10-of-10-files"] in given.shown and "1 skipped" in given.shown
    found = state(visitor)
    names = visitor.get(f"{visitor.base}api/names").json()
    assert TEXT["holiday-beach-a-png"] in names and found["photos"] == 10
    assert visitor.get(f"{visitor.base}api/picture/{found['generation']}/0/320").status_code == 200
    assert not any("escaped" in path.name for path in server.files)


@pytest.mark.moderate
@pytest.mark.fault(49)
def test_photographs_leave_without_place_time_and_camera(visitor: Visitor) -> None:
    visitor.give([("phone.jpg", jpeg(pixels(1, 64))), *pictures()])
    found = state(visitor)
    names = visitor.get(f"{visitor.base}api/names").json()
    row = names.index("phone.jpg")
    place = f"{visitor.base}api/picture/{found['generation']}/{row}"
    shown_as = [visitor.get(f"{place}/{side}").content for side in (128, 320, 1600)]
    with zipfile.ZipFile(io.BytesIO(visitor.get(f"{visitor.base}take/images.zip").content)) as archive:
        taken = [archive.read(name) for name in archive.namelist() if name.endswith((".png", ".jpg"))]
    for content in [*shown_as, *taken]:
        assert MARKER.encode() not in content
        assert not Image.open(io.BytesIO(content)).getexif()


def test_cancelled_work_can_be_gone_on_with(
    server: Server, visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert visitor.give(pictures()).went_well
    (visit,) = server.space.visits._open.values()
    slow = threading.Event()
    before = type(server.space)._group.__globals__["discover"]

    def waiting(session, *arguments, **options):
        slow.set()
        until = time.monotonic() + 10
        while not options["stop"].received and time.monotonic() < until:
            time.sleep(0.01)
        return before(session, *arguments, **options)

    monkeypatch.setitem(type(server.space)._group.__globals__, "discover", waiting)
    with ThreadPoolExecutor(1) as pool:
        finding = pool.submit(visitor.call, "group_again")
        assert slow.wait(30)
        answer = edit(visitor, do="undo", number=0)
        assert (answer.status_code, "being worked on" in answer.text) == (409, True)
        visit.cancel()
        refused(finding.result(), "As you asked")
    monkeypatch.undo()
    monkeypatch.setitem(type(server.space)._group.__globals__, "WORK_S", 0.0)
    refused(visitor.call("group_again"), "This took longer")
    monkeypatch.undo()
    assert address_in(visitor.call("group_again")) == visitor.base
    assert state(visitor)["photos"] == 9


@pytest.mark.slow
def test_a_trained_model_finds_another_number_of_groups(trained_run: Path, tmp_path: Path) -> None:
    with serving(trained_run / "stage1", tmp_path) as server, server.visitor() as visitor:
        assert visitor.give(pictures()).went_well
        count = len(state(visitor)["groups"]) + 1
        found = visitor.post(f"{visitor.base}api/regroup", json={"count": count})
        assert (found.status_code, len(found.json()["groups"])) == (200, count)
        assert edit(visitor, do="undo", number=found.json()["undo"]["number"]).status_code == 200
        assert len(state(visitor)["groups"]) == count - 1


@pytest.mark.slow
@pytest.mark.fault(45)
def test_ten_visitors_at_once_are_served(server: Server) -> None:
    def come(number: int) -> None:
        with Visitor(server.url) as guest:
            guest.base = guest.enter()  # the example is shown to everybody
            assert guest.give([(f"{n}.png", picture(100 * number + n)) for n in range(9)]).went_well
            assert state(guest)["photos"] == 9
            assert guest.call("forget").went_well

    with ThreadPoolExecutor(10) as pool:
        list(pool.map(come, range(10)))


def test_what_fails_inside_is_told_without_its_place(
    server: Server, visitor: Visitor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog
) -> None:
    monkeypatch.setattr(server.space, "place", str(tmp_path / "none"))
    monkeypatch.setattr(server.space, "_shared", None)
    assert state(visitor)["photos"] == 44  # the example needs no model
    refused(visitor.give(pictures()), "cannot be loaded")
    assert str(tmp_path / "none") in caplog.text
    monkeypatch.setattr(server.space, "_load", lambda: 1 / 0)
    refused(visitor.call("group_again"), "went wrong on our side")
    assert "ZeroDivisionError" in caplog.text
    monkeypatch.setattr(server.space.visits, "most", len(server.space.visits._open))
    with Visitor(server.url) as late:
        assert TEXT["which-is-the-most-try-again"] in late.load().shown
    monkeypatch.undo()
    monkeypatch.setattr(server.space, "place", f"user/birds@{'1a' * 20}")
    shown = server.space._foot({"SPACE_ID": "user/space"})
    assert "huggingface.co/user/birds" in shown and ">user/birds</a> (1a1a1a1a)" in shown
    assert "huggingface.co/spaces/user/space/" in shown
    monkeypatch.setattr(server.space, "place", "photographs")  # comes with the package
    assert "huggingface.co/" not in server.space._foot({})


# Visits by themselves: private, bounded, begun with the example, and gone when they are over


@pytest.fixture
def visits(tmp_path: Path) -> Iterator[Visits]:
    opened = Visits(tmp_path, most=3)
    yield opened
    opened.close()
    assert not opened.root.exists()


def test_everybody_has_a_private_copy_of_an_example_whose_largest_groups_have_no_name(visits: Visits) -> None:
    one, other = visits.enter("", "one"), visits.enter("", "other")
    assert one.folder != other.folder and one.address != other.address and len(one.address) >= 32
    assert stat.S_IMODE(one.folder.stat().st_mode) == stat.S_IMODE(visits.root.stat().st_mode) == 0o700
    assert (one.example / ".promptccd/project.json").is_file()  # before two windows ask for it at once
    project = one.project
    groups = sorted(project.summary()["groups"], key=lambda each: -each["size"])
    assert [each["named"] for each in groups] == [False, False, True, True, True, True]
    assert sum(each["size"] for each in groups) == len(project.photos.keys) == 44
    assert all(project.photos.picture(row, side) for row in range(44) for side in (128, 320))
    assert len(project.questions([])) > 0
    assert project.about()["place"] == "" and not project.can_write
    project.corrected(lambda: project.rename(groups[0]["id"], "cheetah"))
    assert "cheetah" in {each["name"] for each in project.summary()["groups"]}
    assert "cheetah" not in {each["name"] for each in other.project.summary()["groups"]}
    assert sum(path.stat().st_size for path in EXAMPLE.rglob("*") if path.is_file()) < 10**6


@pytest.mark.fault(44)
def test_a_browser_with_a_cookie_sees_its_own_visit_alone(visits: Visits) -> None:
    mine, frame = visits.enter("a secret", "1"), visits.enter("", "2")  # in some frames there is no cookie
    mine.seen_at = 0
    assert visits.enter("a secret", "3") is mine and mine.seen_at, "of a page that is loaded again"
    assert visits.of("a secret", "") is mine and visits.of("", "2") is frame
    assert visits.of("", "1") is visits.of("2", "2") is visits.of("", "") is None
    assert visits.at(mine.address, "a secret") is mine and visits.at(frame.address, "") is frame
    for address, owner in (
        (mine.address, ""), (mine.address, "another"), ("x" * 32, "a secret"), ("", "a secret"),
    ):  # fmt: skip
        assert visits.at(address, owner) is None
    assert visits.enter("another", "2") not in (mine, frame)
    space = pytest.importorskip("promptccd.discovery.page.space", reason="needs promptccd[space]")
    for session in (None, ""):  # of two scripts
        one, two = [space._owner(SimpleNamespace(cookies={}, session_hash=session)) for _ in range(2)]
        assert one != two
    with pytest.raises(PromptCCDError, match=TEXT["3-people-are-here-which-is"]):
        visits.enter("", "4")
    visits.end(frame)
    assert visits.enter("", "4")


def test_forgetting_waits_for_work_and_no_work_starts_afterwards(visits: Visits) -> None:
    visit, stop, working, seen = visits.enter("", "1"), StopRequest(), threading.Event(), []

    def work() -> None:
        with visit.working(stop):
            working.set()
            while not stop.received:
                time.sleep(0.01)
            time.sleep(0.1)
            seen.append(visit.folder.exists())

    with ThreadPoolExecutor(1) as pool:
        pool.submit(work)
        working.wait(10)
        with pytest.raises(DataError, match="being worked on"), visit.working():
            pass
        visits.end(visit)
    assert seen == [True]
    assert list(visits.root.iterdir()) == []
    with pytest.raises(PromptCCDError, match=TEXT["this-visit-is-over"]), visit.working():
        pass
    visits.end(visit)  # twice is once


def test_a_visit_without_windows_is_forgotten(tmp_path: Path) -> None:
    visits = Visits(tmp_path, away_s=0.8)
    stays, goes = visits.enter("", "1"), visits.enter("", "2")
    goes.seen_at -= 0.8
    assert eventually(lambda: visits.at(stays.address, "") is not stays or not goes.folder.exists())
    assert stays.folder.exists() and not goes.folder.exists()
    assert visits.at(goes.address, "") is None
    visits.close()


def test_progress_is_shown_uploads_are_private_and_names_are_short(tmp_path: Path, monkeypatch) -> None:
    space = pytest.importorskip("promptccd.discovery.page.space", reason="needs promptccd[space]")
    shown = list[tuple[object, ...]]()
    steps = space._Progress(lambda *done, **what: shown.append((*done, what["desc"])))
    assert [*steps.progress("ab", 2, "reading images")] == ["a", "b"]
    assert shown == [((0, 2), "Reading images"), ((1, 2), "Reading images")]
    monkeypatch.setenv("GRADIO_TEMP_DIR", "")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    made = space._uploads()
    assert made == space._uploads() and made.parent.parent == tmp_path
    assert [stat.S_IMODE(each.stat().st_mode) for each in (made, made.parent)] == [0o700, 0o700]
    assert space._file_name("é" * 100 + "//x.png") == "é" * 71 + " - x.png"


# The files of both Spaces, and what ``promptccd demo`` says to mistakes; `tests.hub.test_space` starts the app


SPACE = ROOT / "spaces" / "discovery"


def pins(path: Path) -> dict[str, str]:
    return dict(re.findall(r"^([\w-]+)==(\S+)$", path.read_text(encoding="utf-8"), re.MULTILINE))


def test_pins_are_all_that_is_needed() -> None:
    wanted = pins(SPACE / "requirements.txt")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needed = [*project["dependencies"], *project["optional-dependencies"]["space"]]
    assert {re.match(r"[\w-]+", each).group().lower() for each in needed} == {name.lower() for name in wanted}


@pytest.mark.parametrize("name", ["cacc", "discovery"])
def test_front_matter_and_pins_are_those_of_the_tests(name: str) -> None:
    space, tested = SPACE.parent / name, pins(ROOT / "constraints.txt")
    matter = yaml.safe_load((space / "README.md").read_text(encoding="utf-8").split("---\n")[1])
    assert pins(space / "requirements.txt").items() <= tested.items()
    assert (matter["sdk"], matter["sdk_version"]) == ("gradio", tested["gradio"])  # else it does not build
    assert (space / matter["app_file"]).is_file()
    assert isinstance(matter["python_version"], str)
    assert len(matter["short_description"]) <= 60
    wanted = {"discovery": ("models", {"facebook/dinov2-small"}), "cacc": ("tags", {"evaluate", "metric"})}
    assert wanted[name][1] <= set(matter[wanted[name][0]])


def test_without_gradio_it_is_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    for name in [each for each in sys.modules if each.startswith("promptccd.discovery.page.space")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "gradio", None)
    assert main(["demo", "--no-browser"]) == 2
    assert capsys.readouterr().err == TEXT["promptccd-the-page-needs-gradio-pip"]


def test_mistakes_are_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, backbone_folder: Path, tmp_path: Path
) -> None:
    pytest.importorskip("gradio", reason="the page needs gradio: pip install 'promptccd[space]'")
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    assert main(["demo", str(tmp_path / "nothing"), "--no-browser"]) == 2
    assert TEXT["cannot-load-a-model-from"] in capsys.readouterr().err
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["demo", str(backbone_folder), "--port", str(port), "--no-browser"]) == 2
    assert TEXT["cannot-listen-on-127-0-0"].format(port) in capsys.readouterr().err
