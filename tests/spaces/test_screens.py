"""The screens of a visit, over plain HTTP: their owner's alone, within limits, and gone with the visit."""

import io
import json
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

from promptccd.data.limits import MIB
from promptccd.registry import load_registry
from tests.discovery.intake.test_archives import packed
from tests.spaces.conftest import Server, pictures
from tests.spaces.visitor import Visitor

N = 9
ROUTES = [
    "state", "columns", "map", "about", "changed", "names?from=0", "search?q=png", "alike/0", "why/0",
    "questions",
]  # fmt: skip


class Screens:
    """What the element of a page does.

    Args:
        visitor: whose images are grouped.
        base: address of the screens.
    """

    def __init__(self, visitor: Visitor, base: str):
        self.visitor, self.base = visitor, base

    def ask(self, path: str) -> httpx.Response:
        return self.visitor.get(f"{self.base}api/{path}")

    def get(self, path: str) -> Any:
        answer = self.ask(path)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def do(self, **edit: Any) -> httpx.Response:
        return self.visitor.post(f"{self.base}api/edit", content=json.dumps(edit))


@pytest.fixture
def mine(visitor: Visitor) -> Screens:
    """Screens of nine images."""
    return Screens(visitor, visitor.screens(pictures()))


def test_what_a_visitor_gave_is_on_the_screens_and_is_corrected_there(mine: Screens) -> None:
    state = mine.get("state")
    assert (state["photos"], state["title"], state["can_write"]) == (N, "Your images", False)
    assert mine.get("names?from=0") == [name for name, _ in pictures()]
    group = np.frombuffer(mine.ask("columns").content, "<i4", N)
    assert {each["id"]: each["size"] for each in state["groups"]} == Counter(group.tolist())
    assert len(mine.ask("map").content) == 8 * N
    about = mine.get("about")
    assert about["place"] == ""
    assert "/" not in about["model"]  # of this machine
    first = state["groups"][0]["id"]
    told = mine.do(do="rename", group=first, name="heron").json()
    assert [each["name"] for each in told["groups"] if each["id"] == first] == ["heron"]
    told = mine.do(do="move", rows=[0, 1], generation=state["generation"], group=None).json()
    assert (np.frombuffer(mine.ask("columns").content, "<i4", N)[:2] == -1).all()
    assert mine.do(do="undo", number=told["undo"]["number"]).status_code == 200
    assert np.array_equal(np.frombuffer(mine.ask("columns").content, "<i4", N), group)


def test_a_visitor_is_asked_whether_two_are_the_same(mine: Screens) -> None:
    asked = mine.get("questions")
    assert asked
    first = asked[0]
    answer = {"do": "answer", "generation": mine.get("state")["generation"], "same": True}
    assert mine.do(**answer, rows=[first["first"], first["second"]]).status_code == 200
    assert np.frombuffer(mine.ask("columns").content, "<i4", N)[first["first"]] == first["group"]
    assert first["first"] not in {each["first"] for each in mine.get("questions")}


@pytest.mark.parametrize("kind", ["files", "archive"])
def test_pictures_come_from_files_and_out_of_archives(visitor: Visitor, kind: str) -> None:
    images = [(f"{n}.png", png(n)) for n in range(3)]
    screens = Screens(visitor, visitor.screens(images if kind == "files" else [("a.zip", packed(*images))]))
    generation, names = screens.get("state")["generation"], screens.get("names?from=0")
    assert [name.rpartition("/")[2] for name in names] == ["0.png", "1.png", "2.png"]
    for side, largest in ((128, 128), (320, 320), (1600, 400)):
        answer = screens.ask(f"picture/{generation}/1/{side}")
        assert max(Image.open(io.BytesIO(answer.content)).size) == largest
    together = screens.ask(f"pictures/{generation}/320?rows=2,0").content
    assert len(together) > 2 * 500
    assert screens.ask(f"picture/{generation}/3/128").status_code == 404


def png(seed: int) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 60, (40, 40, 3)) + [
        180 * (seed % 3 == n) for n in range(3)
    ]
    stream = io.BytesIO()
    Image.fromarray(pixels.astype(np.uint8)).resize((400, 400)).save(stream, "PNG")
    return stream.getvalue()


@pytest.mark.fault(44)
def test_nobody_else_sees_or_corrects_anything(server: Server, mine: Screens) -> None:
    """Not even who knows the address, unless it came from a browser that keeps no cookie."""
    state = mine.get("state")
    paths = [*ROUTES, f"picture/{state['generation']}/0/128", f"pictures/{state['generation']}/128?rows=0"]
    with server.visitor() as other, server.visitor(keeps_cookies=False) as nobody:
        their = Screens(other, other.screens(pictures()))
        for stranger in (other, nobody):
            said = set()
            for base in (
                mine.base,
                "/desk/none/",
                "/desk/%2e%2e/",
                their.base if stranger is nobody else mine.base,
            ):
                for path in paths:
                    answer = stranger.get(f"{base}api/{path}")
                    said.add((answer.status_code, answer.text))
                edit = {"do": "rename", "group": 0, "name": "taken"}
                answer = stranger.post(f"{base}api/edit", content=json.dumps(edit))
                said.add((answer.status_code, answer.text))
                assert stranger.get(base).status_code == 410
            assert {status for status, _ in said} == {410}
            assert len(said) == 1  # nobody learns whether there is such an address
        other.click("pc-forget")
    assert mine.get("state")["groups"] == state["groups"]


def test_the_address_cannot_be_guessed_and_the_visit_is_another_secret(server: Server, mine: Screens) -> None:
    (visit,) = server.page.visits._open.values()
    address = mine.base.split("/")[2]
    assert (address, len(address) >= 32) == (visit.address, True)
    assert visit.id not in mine.base
    for page in ("", "index.html", "api/state", "api/about"):
        assert visit.id not in mine.visitor.get(mine.base + page).text


@pytest.mark.fault(41)
def test_forgetting_deletes_the_project_and_whoever_looks_is_told(server: Server, mine: Screens) -> None:
    (visit,) = server.page.visits._open.values()
    folder = visit.project.folder
    assert {path.name for path in (folder / ".promptccd").iterdir()} >= {
        "registry.json",
        "thumbs",
        "features",
    }
    revision = mine.get("state")["revision"]
    waited: list[httpx.Response] = []
    waiting = threading.Thread(
        target=lambda: waited.append(mine.ask(f"state?since={revision}".replace(" ", "+")))
    )
    waiting.start()
    time.sleep(0.3)
    with server.visitor() as same:  # who looks at pictures meanwhile brings nothing back
        same._http.cookies = mine.visitor._http.cookies
        generation = mine.get("state")["generation"]

        def look() -> None:
            for n in range(N):
                same.get(f"{mine.base}api/picture/{generation}/{n}/320")

        looking = threading.Thread(target=look)
        looking.start()
        assert mine.visitor.click("pc-forget").went_well
        looking.join()
    waiting.join(10)
    assert not waiting.is_alive()
    assert waited[0].status_code in (200, 409, 410)
    assert not folder.exists()
    assert server.files == []
    answer = mine.ask("state")
    assert (answer.status_code, "over and its images are deleted" in answer.text) == (410, True)


def test_looking_is_a_sign_of_life_and_waiting_for_news_is_none(server: Server, mine: Screens) -> None:
    (visit,) = server.page.visits._open.values()
    visit.seen_at -= 1000
    then = visit.seen_at
    assert mine.ask("state?since=another").status_code == 200
    assert visit.seen_at == then
    assert mine.ask("state").status_code == 200
    assert visit.seen_at > then
    visit.seen_at -= server.page.visits.lifetime_s + 1
    assert mine.ask("names?from=0").status_code == 410


def test_what_is_worked_on_is_not_corrected(server: Server, mine: Screens) -> None:
    (visit,) = server.page.visits._open.values()
    visit.busy = True
    answer = mine.do(do="rename", group=0, name="x")
    assert (answer.status_code, "being worked on" in answer.text) == (409, True)
    visit.busy = False
    assert mine.do(do="rename", group=0, name="x").status_code == 200


@pytest.mark.fault(45)
def test_corrections_have_their_room_on_the_disk_and_no_more(server: Server, mine: Screens) -> None:
    (visit,) = server.page.visits._open.values()
    before = server.page.visits.store.quota.used
    for n in range(5):
        assert mine.do(do="rename", group=0, name=f"name {n}").status_code == 200
    assert before < server.page.visits.store.quota.used < before + MIB  # what is there is counted
    visit.project.most = visit.project.claim.size - 1
    answer = mine.do(do="rename", group=0, name="one too many")
    assert (answer.status_code, "most for one visitor" in answer.text) == (409, True)
    assert "one too many" not in mine.ask("state").text


def test_hostile_requests_change_nothing(mine: Screens) -> None:
    before = mine.get("state")
    post = mine.visitor.post
    for content, status in (
        (b"{", 400),
        (b"[]", 400),
        (b"[" * 10_000, 400),
        (b"x" * (MIB + 1), 413),
        (b"", 400),
    ):
        assert post(f"{mine.base}api/edit", content=content).status_code == status
    edit = json.dumps({"do": "rename", "group": 0, "name": "taken"})
    for headers, status in (
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Host": "evil.example"}, 421),
    ):
        assert post(f"{mine.base}api/edit", content=edit, headers=headers).status_code == status
        if "Host" in headers or "Origin" in headers:
            assert mine.visitor._http.get(f"{mine.base}api/state", headers=headers).status_code == status
    for odd in (
        {"do": "delete"},
        {"do": "move", "rows": [99], "group": 0},
        {"do": "gather", "rows": "all"},
        {},
    ):
        assert mine.do(**{"generation": before["generation"], **odd}).status_code == 409
    for path in (
        "../../etc/passwd",
        "..%2f..%2fetc%2fpasswd",
        "picture/x/../../0/128",
        "export",
        "groups.csv",
    ):
        answer = mine.ask(path)
        assert (answer.status_code in (404, 410), "root:" in answer.text) == (True, False)
    assert post(f"{mine.base}api/export", content=b'{"kind": "imagefolder"}').status_code == 404
    assert mine.get("state") == before


def test_the_page_of_its_own_is_strict(mine: Screens) -> None:
    page = mine.visitor.get(mine.base)
    policy = page.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
    assert "unsafe" not in policy
    assert page.headers["x-content-type-options"] == "nosniff"
    assert 'src="desk.js"' in page.text
    assert mine.visitor.get(f"{mine.base}desk.js").content == mine.visitor.get("/desk/desk.js").content


def test_the_next_images_go_on_from_what_was_corrected_and_are_taken_away_with_it(mine: Screens) -> None:
    first = mine.get("state")["groups"][0]
    assert mine.do(do="rename", group=first["id"], name="heron").status_code == 200
    again = Screens(mine.visitor, mine.visitor.screens(pictures(first=20)))
    assert again.base == mine.base
    state = again.get("state")
    assert (state["photos"], state["stage"]) == (2 * N, 1)
    assert "heron" in {each["name"] for each in state["groups"]}
    change = again.get("changed")
    assert (
        sum(b - a for _, a, b in change["grown"])
        + sum(each["size"] for each in state["groups"] if each["id"] in change["new"])
        == N
    )
    assert again.do(do="rename", group=first["id"], name="egret").status_code == 200
    answer = mine.visitor.call("take_away", [["csv", "checkpoint"]])
    table = next(each for each in json.dumps(answer.values).split('"') if each.endswith("assignments.csv"))
    assert "egret" in mine.visitor.get(f"/gradio_api/file={table}").text or first["id"] not in change["grown"]


def test_another_number_of_groups_is_on_the_screens_at_once(mine: Screens) -> None:
    count = len(mine.get("state")["groups"])
    assert mine.visitor.click("pc-regroup", [count + 1]).went_well
    assert len(mine.get("state")["groups"]) == count + 1
    undone = mine.get("state")["undo"]
    assert undone["kind"] == "grouping"
    assert mine.do(do="undo", number=undone["number"]).status_code == 200
    assert len(mine.get("state")["groups"]) == count


@pytest.mark.slow
def test_images_that_the_model_was_trained_on_are_no_photographs_of_the_visitor(
    trained_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from promptccd.discovery.app import Site, build_app

    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    page = build_app(str(trained_run / "stage3"))
    served = page.serve(Site.of_machine())
    with Visitor(served.url) as visitor:
        screens = Screens(visitor, visitor.screens(pictures()))
        state = screens.get("state")
        known = load_registry(trained_run / "stage3")
        assert len(known.images) > N
        assert (state["photos"], sum(each["size"] for each in state["groups"])) == (N, N)
        assert {each.name for each in known.active} <= {each["name"] for each in state["groups"]}
        assert screens.get("about")["model"] == "stage3"
        merged = [each.id for each in known.active][:2]
        assert screens.do(do="merge", groups=merged).status_code == 200
        group = next(each for each in screens.get("state")["groups"] if each["size"])
        assert screens.do(do="split", group=group["id"]).status_code in (200, 409)
        visitor.click("pc-forget")
    served.close()
    page.close()
