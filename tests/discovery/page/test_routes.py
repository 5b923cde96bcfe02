"""What the page asks its server for, what the server says to everybody else, and the bundle that it sends."""

import io
import json
import re
import shutil
import subprocess
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest
import torch
from PIL import Image
from starlette.responses import PlainTextResponse
from starlette.testclient import TestClient

from promptccd.discovery.exports.formats import FORMATS
from promptccd.discovery.intake.seen import SEEN
from promptccd.discovery.page import OpenPage
from promptccd.discovery.page.routes import FILES, FOREVER
from promptccd.discovery.page.server import RequestFilter, Site
from promptccd.discovery.project import CategoryRegistry, ProjectView, StageGroups, edits
from promptccd.discovery.project.features import Features
from promptccd.discovery.project.observe import NO_CATEGORY, unit
from promptccd.discovery.project.photos import AWAY, NEWEST, PINNED, REVIEWED, Columns
from promptccd.discovery.project.record import PROJECT
from promptccd.discovery.project.view import lay_out
from tests.cli.test_quick import HEAVY, python
from tests.discovery.conftest import EACH, KINDS
from tests.discovery.page.conftest import Window, served
from tests.discovery.stored import drawn_together, registry_in, stored_in, table_of
from tests.kept import in_lines, kept
from tests.test_golden_numbers import alike

N = KINDS * EACH
UNSURE_BELOW = 128  # of 255, as frontend/src/desk.ts has it
SOURCES = Path(__file__).parents[3] / "frontend"


def columns_of(window: Window) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    content = window.ask("/api/columns")[2]
    sure, flags = np.frombuffer(content, "u1", 2 * N, 4 * N).reshape(2, N)
    return np.frombuffer(content, "<i4", N), sure, flags


def test_groups_and_photographs_are_those_of_the_project(reader: Window) -> None:
    reply, registry = reader.get("state"), reader.page.project
    listed = [(each["id"], each["name"], each["size"]) for each in reply["groups"]]
    assert sorted(listed) == sorted((each.id, each.name, each.size) for each in registry.active)
    assert (reply["photos"], reply["undo"], reply["redo"], reply["can_write"]) == (N, None, None, True)
    group, sure, _ = columns_of(reader)
    names = reader.get("names?from=0")
    assert sorted(names) == names
    assert len(names) == N
    for each in reply["groups"]:
        assert (group == each["id"]).sum() == each["size"]
        assert group[each["cover"]].tolist() == [each["id"]] * min(4, each["size"])
        assert each["id"] not in each["near"]
    assert sure.max() <= 255
    assert reader.get("search?q=1-0+PNG") == [row for row, name in enumerate(names) if "1-0" in name]


def test_groups_that_may_be_one_are_named_until_both_have_a_name(project: Path, window: Window) -> None:
    pair = drawn_together(project)
    reply = window.get("state")
    assert reply["alike"] == [list(pair)]
    assert window.do(do="rename", category=pair[0], name="heron")[1]["alike"] == [list(pair)]
    assert window.do(do="rename", category=pair[1], name="egret")[1]["alike"] == []
    assert window.do(do="undo", number=window.get("state")["undo"]["number"])[1]["alike"] == [list(pair)]


def test_a_project_opens_without_what_can_be_made_again(project: Path) -> None:
    groups = [(each.id, each.name) for each in ProjectView(project).active]
    (project / PROJECT / SEEN).unlink()
    with served(project) as page:
        state = Window(page).get("state")
    assert [(each["id"], each["name"]) for each in state["groups"]] == groups
    assert state["photos"] == 0 and not (project / PROJECT / SEEN).exists()


def test_a_browser_keeps_pictures_and_nothing_that_changes(reader: Window) -> None:
    generation = reader.get("state")["generation"]
    paths = ["", "api/state", "api/columns", "api/dates", f"api/picture/{generation}/3/128"]
    paths += [f"api/pictures/{generation}/128?rows=1,2", "?" + urlsplit(reader.page.url).query]
    kept = [reader.ask(f"/{path}")[1].get("cache-control", "") for path in paths]
    assert kept == ["no-cache", *["no-store"] * 3, FOREVER, *["no-store"] * 2]
    assert "max-age=31536000" in FOREVER


def test_pictures_come_alone_in_three_sizes_and_small_ones_together(reader: Window) -> None:
    generation = reader.get("state")["generation"]
    for side in (128, 320, 1600):
        status, headers, content = reader.ask(f"/api/picture/{generation}/3/{side}")
        assert (status, headers["content-type"].partition("/")[0]) == (200, "image")
        assert max(Image.open(io.BytesIO(content)).size) <= side
    for side in (128, 320):
        status, headers, content = reader.ask(f"/api/pictures/{generation}/{side}?rows=7,0,3")
        assert (status, headers["content-type"]) == (200, "application/octet-stream")
        for row in (7, 0, 3):
            length, content = int.from_bytes(content[:4], "little"), content[4:]
            assert content[:length] == reader.ask(f"/api/picture/{generation}/{row}/{side}")[2]
            content = content[length:]
        assert content == b""
    for path in ("{}/1600?rows=1", f"{{}}/128?rows={N}", "0123456789ab/128?rows=1", "{}/128?rows="):
        assert reader.ask(f"/api/pictures/{path.format(generation)}")[0] == 404
    for path in (f"{generation}/3/129", f"{generation}/{N}/128", "0123456789ab/3/128"):
        assert reader.ask(f"/api/picture/{path}")[0] == 404
    assert any(cell for *_, cell in stored_in(reader.page.project.folder / PROJECT)["small"])
    for count, status in ((64, 200), (65, 409)):
        assert reader.ask(f"/api/pictures/{generation}/128?rows={','.join(['1'] * count)}")[0] == status


def test_a_photograph_is_unsure_below_one_half_as_everywhere_else() -> None:
    """`discovery.html` lists those below 0.5, and a tie of two groups is no less."""
    keys, confidences = ["a", "b", "c", "d"], np.array([0.4999, 0.5, 0.5019, 1.0])
    registry = CategoryRegistry()
    registry.observe(0, StageGroups(keys, np.zeros(4, int), np.ones((1, 2)), confidences=confidences))
    rows = registry.rows_by_id({key: row for row, key in enumerate(keys)})
    columns = Columns(registry, rows, np.ones(4, bool))
    assert (columns.sure < UNSURE_BELOW).tolist() == [True, False, False, False]
    assert columns.shown(0)["unsure"] == 1


def test_flags_say_what_came_last_is_away_was_reviewed_or_came_with_a_correction() -> None:
    registry = CategoryRegistry()
    registry.observe(0, StageGroups(["a", "b"], np.zeros(2, int), np.eye(2)[:1]))
    registry.observe(1, StageGroups(["c", "d", "e"], np.array([0, 1, -1]), np.eye(2)))
    registry.features = lambda needed=False: Features(["a", "b"], torch.eye(2))
    edits.split(registry, 0, ["a"])
    edits.confirm(registry, ["d"])
    rows = registry.rows_by_id({key: row for row, key in enumerate("edcba")})
    columns = Columns(registry, rows, np.array([True, True, False, True, False]))
    assert columns.flags.tolist() == [NEWEST, NEWEST | PINNED | REVIEWED, NEWEST | AWAY, 0, PINNED | AWAY]
    assert columns.group[0] == NO_CATEGORY


def test_the_page_says_what_found_the_groups(window: Window, project: Path) -> None:
    assert window.get("about")["place"] == str(project)
    path = project / ".promptccd/project.json"
    record = json.loads(path.read_text())
    record["found_with"] = {"model": "somebody/birds-stage3", "method": "PromptCCD++"}
    path.write_text(json.dumps({**record, "measured": True}))
    assert window.get("why/5")["measured"]
    reply = window.get("about")
    assert (reply["method"], reply["card"]) == ("PromptCCD++", "https://huggingface.co/somebody/birds-stage3")
    for odd in ("https://evil.example/x", "javascript:alert(1)", "../somebody/x", "/tmp/model"):
        path.write_text(json.dumps({**record, "found_with": {"model": odd, "method": ""}}))
        assert window.get("about")["card"] == ""


def test_groups_are_taken_away_as_discover_exports_them(window: Window, project: Path) -> None:
    for kind in FORMATS:
        status, _, content = window.ask("/api/export", {"kind": kind})
        reply = json.loads(content)
        assert (status, reply["photographs"], reply["place"]) == (200, N, str(project / kind)), reply
        assert reply["lines"][0].startswith(f"{project / kind}: {N} photographs; files: ")
    assert [row["file"] for row in table_of(project / "table")] == window.get("names?from=0")


def test_an_export_that_cannot_be_written_says_why_and_leaves_all(window: Window, project: Path) -> None:
    (project / "folders").mkdir()
    (project / "folders/mine.txt").write_text("mine")
    status, _, reply = window.ask("/api/export", {"kind": "folders"})
    assert (status, b"was made by something else" in reply) == (409, True)
    assert (project / "folders/mine.txt").read_text() == "mine"
    for kind in ("../../etc", None, [], {}):
        status, _, reply = window.ask("/api/export", {"kind": kind})
        assert (status, b"Expected one of folders, sidecars, publish" in reply) == (409, True)


def test_every_correction_is_on_the_disk_and_its_answer_says_what_changed(window, project) -> None:
    """Who has the state that it names needs nothing else: all of it is as the whole would be; undo and redo, too."""
    state, now = window.get("state"), [each.copy() for each in columns_of(window)]
    generation, (first, second, third, fourth) = state["generation"], [each["id"] for each in state["groups"]]
    here, there = (np.flatnonzero(now[0] == group).tolist() for group in (first, fourth))
    corrections = [
        {"do": "rename", "category": first, "name": "heron"},
        {"do": "move", "images": here[:2], "to": second},
        {"do": "confirm", "images": [0, *here[2:4]]},
        {"do": "move", "images": here[4:5], "to": None},
        {"do": "gather", "images": [here[0], here[4]], "name": "odd ones"},
        {"do": "split", "category": second},
        {"do": "merge", "categories": [first, second], "name": "egret"},
        {"do": "confirm", "images": there},
        {"do": "set_aside", "category": fourth},
        {"do": "restore", "category": fourth},
        {"do": "set_images_aside", "images": here[:1]},
        {"do": "dissolve", "category": third},
        {"do": "set_aside", "category": fourth},
    ]
    states, revision = [registry_in(project).state_hash()], state["revision"]
    steps = [*corrections, *[{"do": "undo"}] * len(corrections), *[{"do": "redo"}] * len(corrections)]
    for number, edit in enumerate(steps):
        if edit["do"] in ("undo", "redo"):
            edit = {**edit, "number": window.get("state")[edit["do"]]["number"]}
        status, reply = window.do(**edit, generation=generation)
        assert (status, reply["base"]) == (200, revision), reply
        if number < len(corrections):
            states.append(registry_in(project).state_hash())
            assert reply["undo"]["kind"] == edit["do"]
        else:  # backwards, and forwards again
            assert registry_in(project).state_hash() == states[abs(2 * len(corrections) - 1 - number)]
        for values, name in zip(now, ("group", "sure", "flags"), strict=True):
            values[reply["changed"]["rows"]] = reply["changed"][name]
        for held, whole in zip(now, columns_of(window), strict=True):
            assert np.array_equal(held, whole)
        if number < len(corrections) or number % 3 == 0:
            fresh = ProjectView(project)
            assert reply["groups"] == fresh.summary()["groups"]
            assert np.array_equal(now[0], fresh.columns().group)
        revision = reply["revision"]
    assert len(set(states)) == len(states) - 1  # restored is as before it was set aside
    assert window.ask("/api/export", {"kind": "table"})[0] == 200
    aside = [each for each in table_of(project / "table") if each["status"] == "aside"]
    assert len(aside) == sum(each.size for each in registry_in(project).aside) > 1
    assert {each["confidence"] for each in aside} == {""}


def test_the_map_lays_like_beside_like_and_is_kept(window: Window, page: OpenPage, project: Path) -> None:
    places = np.frombuffer(window.ask("/api/map")[2], "<f4").reshape(N, 2)
    assert np.isfinite(places).all()
    assert (places.min(), places.max()) == (0, 1)
    near = np.linalg.norm(places[:, None] - places[None], axis=2).argsort(axis=1)[:, 1]
    group, _, _ = columns_of(window)
    assert (group == group[near]).mean() > 0.5
    layout = project / ".promptccd/layout.bin"
    written = layout.stat().st_mtime_ns
    assert np.array_equal(page.project.layout(), places)
    assert layout.stat().st_mtime_ns == written
    others, fewer = b"of no use...".ljust(12 + 8 * N), layout.read_bytes()[:-8]
    for content in (others, fewer):  # photographs
        layout.write_bytes(content)
        assert np.array_equal(page.project.layout(), places)


def test_photographs_that_the_map_does_not_sample_are_amid_the_likest(monkeypatch) -> None:
    monkeypatch.setattr("promptccd.reports.map.MAX_POINTS", 4)
    monkeypatch.setattr("promptccd.discovery.project.view._AT_ONCE", 3)
    vectors = unit(np.random.default_rng(0).normal(size=(8, 3))).astype(np.float32)
    places = lay_out(vectors).tolist()
    assert alike(places, kept("proposals.json", places, "map", text_of=in_lines))


REFUSED = {
    "nothing selected": ({"do": "move", "images": [], "to": 1}, "select images first"),
    "a row too many": ({"do": "move", "images": [N], "to": 1}, f"There are {N} photographs"),
    "a row that is no number": ({"do": "move", "images": [True], "to": 1}, "Expected 'images'"),
    "other photographs": ({"do": "move", "images": [1], "to": 1, "generation": "old"}, "load the page again"),
    "an undo of something else": ({"do": "undo", "number": 7}, "nothing was changed"),
    "an undo of whatever is newest": ({"do": "undo"}, "Expected 'number'"),
    "a redo of whatever is next": ({"do": "redo"}, "Expected 'number'"),
    "an unknown action": ({"do": "delete"}, "Expected one of rename"),
    "no action": ({}, "Expected one of rename"),
    "groups that are no list": ({"do": "sort", "images": [0, 1], "to": [0, "a"]}, "Expected 'to' to be a list"),
    "a group for one of two": ({"do": "sort", "images": [0, 1], "to": [0]}, "for each"),
    "a path for a name": ({"do": "rename", "category": 0, "name": 7}, "Expected 'name'"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_done_is_said_and_changes_nothing(reader: Window, case: str) -> None:
    edit, reason = REFUSED[case]
    before = reader.page.project.state_hash()
    status, reply = reader.do(**{"generation": reader.get("state")["generation"], **edit})
    assert (status, reason in reply["error"]) == (409, True), reply
    assert reader.page.project.state_hash() == before


HOSTILE = {
    "a foreign name": ({"Host": "evil.example"}, 421),
    "a foreign origin": ({"Origin": "http://evil.example"}, 403),
    "a picture in a foreign page": ({"Sec_Fetch_Site": "cross-site"}, 403),
    "a page on another port": ({"Sec_Fetch_Site": "same-site"}, 403),
    "no cookie": ({"cookie": ""}, 401),
    "a wrong cookie": ({"cookie": "promptccd_page=x"}, 401),
}


@pytest.mark.parametrize("case", HOSTILE)
@pytest.mark.parametrize("path", ["/api/state", "/api/picture/0/0/128", "/desk.js", "/api/edit"])
def test_strangers_are_turned_away(reader: Window, case: str, path: str) -> None:
    sent, expected = HOSTILE[case]
    before = reader.page.project.state_hash()
    body = {"do": "rename", "category": 0, "name": "taken"} if path == "/api/edit" else None
    status, headers, _ = reader.ask(path, body, **sent)
    assert status == expected
    assert "default-src 'none'" in headers["content-security-policy"]
    assert not any(name.startswith("access-control-") for name in headers)
    assert reader.page.project.state_hash() == before


def test_who_corrects_says_from_where_and_with_the_right_token(reader: Window) -> None:
    edit = {"do": "rename", "category": 0, "name": "x"}
    assert [reader.ask("/api/edit", edit, Origin=sent)[0] for sent in ("", "null")] == [403, 403]
    assert reader.ask("/?token=wrong", cookie="")[0] == 401
    status, headers, _ = reader.ask("/", cookie="")
    assert (status, "set-cookie" in headers) == (401, False)
    assert reader.cookie.partition("=")[2] not in reader.ask("/")[2].decode()


@pytest.mark.parametrize("path", [
    "/../../etc/passwd", "/..%2f..%2fetc%2fpasswd", "/%2e%2e/project.json", "//etc/passwd", "/.promptccd/project.json",
    "/api/../desk.ts", "/api/picture/../../0/128", "/desk.js/", "/desk.js%00", "/api/names?from=-1x", "/__init__.py",
    "/api/alike?rows=", "/api/alike?rows=999", "/api/check?skip=999", "/api/why/999",
])  # fmt: skip
def test_no_path_leads_anywhere(reader: Window, path: str) -> None:
    status, _, content = reader.ask(path)
    assert status == 404 or json.loads(content) == reader.get("names?from=0")
    assert b"root:" not in content


def test_bodies_are_bounded_and_methods_few(reader: Window) -> None:
    assert reader.ask("/api/edit", b"x" * (4 * 2**20 + 1))[0] == 413
    assert reader.ask("/api/edit", b"x" * 4 * 2**20)[0] == 400
    for body in (b"{", b"[]", b"[" * 100_000, b""):
        assert reader.ask("/api/edit", body)[0] in (400, 409)
    for method in ("PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"):
        assert reader.ask("/api/state", method=method)[0] == 405


def test_the_page_asks_nobody_else_and_runs_no_inline_script(reader: Window) -> None:
    status, headers, page = reader.ask("/")
    assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert "server" not in headers
    assert reader.ask("/favicon.ico")[0] == 204
    policy = headers["content-security-policy"]
    assert "unsafe" not in policy
    assert "http" not in policy
    assert page.count(b"<script") == page.count(b'<script type="module" src="desk.js"></script>') == 1
    script = reader.ask("/desk.js")[2].decode()
    assert "eval(" not in script
    assert "Function(" not in script
    hosts = {part.split("/")[0] for part in script.split("://")[1:]}
    assert hosts <= {"www.w3.org"}, hosts  # the names of XML, which nothing is fetched from


def test_fewer_or_more_groups_are_asked_for_by_their_number(window: Window, project: Path) -> None:
    status, _, _ = window.ask("/api/regroup", {"count": 2})
    assert (status, len(registry_in(project).active)) == (200, 2)
    for count in (True, "2", None, 0, -5, 10_000):
        status, _, content = window.ask("/api/regroup", {"count": count})
        assert (status, len(registry_in(project).active)) == (409, 2), content
    assert window.get("state")["undo"]["kind"] == "grouping"


def test_questions_are_about_two_groups_which_are_enough_and_an_answer_ends_them(
    window: Window, project: Path
) -> None:
    state, group = window.get("state"), columns_of(window)[0]
    asked = window.get("questions")
    assert 0 < len(asked) <= 10
    assert all(group[each["second"]] == each["group"] and each["first"] != each["second"] for each in asked)
    left = window.get(f"questions?skip={asked[0]['first']}-{asked[0]['second']}")
    assert asked[0]["first"] not in {each["first"] for each in left}
    answer = {"do": "answer", "generation": state["generation"]}
    for each, same in zip(asked, [True, False] * 5, strict=False):
        assert window.do(**answer, first=each["first"], second=each["second"], same=same)[0] == 200
        now = columns_of(window)[0]
        assert (now[each["first"]] == each["group"]) == same
    first_rows = {each["first"] for each in asked}
    assert first_rows.isdisjoint(each["first"] for each in window.get("questions"))
    registry = registry_in(project)
    keys, constraints = window.page.project.photos.keys, registry.constraints()
    assert all(keys[row] in constraints.keys for row in first_rows)
    _, *others = [each["id"] for each in window.get("state")["groups"]]
    window.do(do="merge", categories=others)
    assert window.get("questions") and window.get("check")["rows"]
    window.do(do="dissolve", category=min(others))
    assert window.get("questions") == []


def test_examples_come_first_then_the_likest_and_more_than_are_taken_are_refused(reader: Window) -> None:
    found = reader.get("alike?rows=5,3")["rows"]
    assert (set(found[:2]), len(found)) == ({3, 5}, N)
    vectors = reader.page.project.features().vectors
    assert (np.diff((vectors @ vectors[[5, 3]].T).max(1)[found[2:]]) <= 1e-6).all()
    home = reader.get("why/5")["group"]
    inside = reader.get(f"alike?rows=5&within={home}")["rows"]
    assert inside[0] == 5
    assert all(reader.get(f"why/{row}")["group"] == home for row in inside)
    assert reader.ask(f"/api/alike?rows={','.join(['1'] * 1000)}")[0] == 200
    status, _, content = reader.ask(f"/api/alike?rows={','.join(['1'] * 1001)}")
    assert status == 409
    assert b"1001 photographs: select at most 1000" in content


def test_the_sources_give_the_bundle(tmp_path: Path) -> None:
    if shutil.which("node") is None or not (SOURCES / "node_modules").is_dir():
        pytest.skip("needs Node, and npm ci in frontend/")
    subprocess.run(["node", "build.mjs", str(tmp_path)], cwd=SOURCES, check=True)
    built = {each.name: each.read_bytes() for each in tmp_path.iterdir()}
    assert built == {each.name: each.read_bytes() for each in FILES.iterdir()}


def test_the_lock_names_no_registry_and_versions_are_pinned() -> None:
    assert '"resolved"' not in (SOURCES / "package-lock.json").read_text()
    package = json.loads((SOURCES / "package.json").read_text())
    versions = [*package["dependencies"].values(), *package["devDependencies"].values()]
    assert all(re.fullmatch(r"\d+\.\d+\.\d+", version) for version in versions)
    assert "MIT" in (FILES / "licences.txt").read_text()


@pytest.mark.slow
def test_looking_and_sorting_wait_for_nothing_heavy(project: Path) -> None:
    code = (
        "import sys\nfrom pathlib import Path\nfrom promptccd.discovery.project import ProjectView\n"
        "from promptccd.discovery.page import OpenPage\n"
        "view = ProjectView(Path(sys.argv[1]))\n"
        "first = view.summary()['groups'][0]['id']\n"
        "moved = view.corrected(lambda: view.move(view.photos.keys[:2], first))\n"
        "print(moved['revision'] != '', bool(OpenPage))\n"
        f"print([each for each in {HEAVY} if each in sys.modules])"
    )
    assert python(code, project).splitlines() == ["True True", "[]"]


# Host names and origins of a page, and the headers of its answers


HOME = Site.of_machine()
NETWORK = Site.of_machine("0.0.0.0", ["Photos.example.org"])
SPACE = Site.of_environment(
    {"SPACE_HOST": "user-space.hf.space, groups.example.org", "PROMPTCCD_HOSTS": "other.example.org"}
)
ADDED = Site.of_environment({"PROMPTCCD_HOSTS": "a.example, B.example"})


# localhost:8080 comes through a tunnel, and 10.0.3.7 looks whether a Space is alive.
@pytest.mark.parametrize(
    ("site", "ours", "others"),
    [
        (HOME, "127.0.0.1:7860 localhost:7860 LOCALHOST:7860 [::1]:7860 localhost:8080",
         " evil.example:7860 localhost.evil.example:7860 127.0.0.1.evil.example evil.example:127.0.0.1 "
         "192.168.1.5:7860 [2001:db8::1] user@localhost localhost:7860,evil.example"),
        (NETWORK, "192.168.1.5:7860 photos.example.org", "evil.example"),
        (Site.of_machine("workstation"), "workstation:7860 LOCALHOST 10.0.0.1", "workstation.evil.example"),
        (Site.of_machine("localhost"), "localhost 127.0.0.1", "192.168.1.5"),
        (Site.of_machine("192.168.1.5"), "192.168.1.5:7860", "evil.example"),
        (SPACE, "user-space.hf.space groups.example.org other.example.org:443 10.0.3.7:7860", "evil.hf.space"),
        (ADDED, "b.example", "192.168.1.5"),
        (Site.of_environment({"GRADIO_SERVER_NAME": "0.0.0.0"}), "192.168.1.5", "evil.example"),
    ],
)  # fmt: skip
def test_hosts(site: Site, ours: str, others: str) -> None:
    assert [host for host in ours.split(" ") if not site.has_host(host)] == []
    assert [host for host in others.split(" ") if site.has_host(host)] == []


@pytest.mark.parametrize(
    ("site", "host", "ours", "others"),
    [
        (HOME, "localhost:7860", "http://localhost:7860",  # port 3000 is another page of this machine
         " http://localhost:3000 http://127.0.0.1:7860 null file://localhost:7860 https://evil.example"),
        (HOME, "photos.example.org", "https://photos.example.org", "null"),  # a proxy in front that speaks TLS
        (SPACE, "user-space.hf.space", "https://user-space.hf.space HTTPS://groups.example.org",
         "https://huggingface.co https://evil.hf.space http://groups.example.org"),
        (SPACE, "10.0.3.7:7860", "https://user-space.hf.space", ""),  # a proxy keeps the name to itself
    ],
)  # fmt: skip
def test_origins(site: Site, host: str, ours: str, others: str) -> None:
    assert [origin for origin in ours.split(" ") if not site.has_origin(origin, host)] == []
    assert [origin for origin in others.split(" ") if site.has_origin(origin, host)] == []


def test_headers_are_added_to_every_answer_and_no_other_origin_is_let_in() -> None:
    sent = {"Referrer-Policy": "unsafe-url", "Access-Control-Allow-Origin": "*", "x-kept": "yes"}
    answer = TestClient(RequestFilter(PlainTextResponse("here", headers=sent), [])).get("/")
    assert (answer.text, answer.headers["x-kept"]) == ("here", "yes")
    assert answer.headers.get_list("referrer-policy") == ["no-referrer"], "in place of the application's"
    assert "access-control-allow-origin" not in answer.headers
