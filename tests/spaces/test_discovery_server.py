"""The page served as it is, and visitors who are up to no good: each is answered, and the others do not notice."""

import gc
import hashlib
import http.server
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import quote, urlsplit

import httpx
import pytest

from promptccd.data.limits import MIB
from promptccd.discovery.session import DiscoverySession
from tests.data.test_images import BOMB_WEBP
from tests.discovery.app.half_sent import wait_for
from tests.discovery.intake.test_archives import REFUSED, SKIPPING, packed
from tests.spaces.conftest import LIMITS, Server, picture, pictures
from tests.spaces.visitor import Answer, Visitor, as_file, shown


@pytest.fixture(autouse=True)
def still_serves(server: Server) -> Iterator[None]:
    """Whatever a test did, somebody else is served after it."""
    yield
    with server.visitor() as other:
        assert other.call("example", [2]).went_well


def refused(answer: Answer, *parts: str) -> None:
    """A message was given, not a traceback and not silence."""
    assert not answer.went_well
    message = answer.text if answer.status != 200 else answer.error
    assert message
    assert "Traceback" not in message
    for part in parts:
        assert part in message


def test_a_visit(visitor: Visitor) -> None:
    read = visitor.call("read", [visitor.upload(pictures()), ""])
    assert shown(read, lambda text: "9 images can be grouped" in text and "the first images" in text)
    found = visitor.call("find_groups", [])
    assert shown(found, lambda text: "9 files found" in text and "given before" not in text)
    taken = visitor.call("take_away", [["csv"]])
    assert shown(taken, lambda text: "assignments.csv" in text)


@pytest.mark.fault(43)
def test_uploads_beyond_the_limits(visitor: Visitor) -> None:
    form = {"files": ("large.png", bytes(LIMITS.max_total_bytes + 2 * MIB))}
    answer = visitor.post("/gradio_api/upload", files=form)
    assert (answer.status_code, "the limit is 2097152 in all" in answer.text) == (413, True)
    answer = visitor.post("/gradio_api/upload", files={"files": ("large.png", bytes(2 * MIB + 1))})
    assert (answer.status_code, "the limit of 2097152 bytes in all" in answer.text) == (413, True)
    answer = visitor.post("/gradio_api/upload", files=[("files", (f"{n}.png", b"x")) for n in range(1500)])
    assert (answer.status_code, "holds 31 files; the limit is 30" in answer.text) == (413, True)
    two = visitor.upload([(f"{n}.png", b"x") for n in range(30)]) + visitor.upload([("30.png", b"x")])
    refused(visitor.call("read", [two, ""]), "holds 31 files; the limit is 30")
    refused(
        visitor.call("read", [visitor.upload([("a.png", bytes(MIB + 1))]), ""]),
        "exceeds the limit of 1048576",
    )
    refused(visitor.call("read", [visitor.upload([("a.webp", BOMB_WEBP)]), ""]), "pixels")


@pytest.mark.fault(43)
def test_an_upload_must_say_how_long_it_is(server: Server) -> None:
    def parts() -> Iterator[bytes]:
        yield b'--b\r\nContent-Disposition: form-data; name="files"; filename="a.png"\r\n\r\n'
        yield bytes(100)
        yield b"\r\n--b--\r\n"

    kind = {"Content-Type": "multipart/form-data; boundary=b"}
    answer = httpx.post(f"{server.url}gradio_api/upload", content=parts(), headers=kind)
    assert answer.status_code == 411


@pytest.mark.fault(43)
@pytest.mark.parametrize(
    "body",
    [
        b"no form at all",
        b'--b\r\nContent-Disposition: form-data; name="files"; filename="a.png"\r\n\r\nhalf of a picture',
        b"--b\r\nContent-Disposition: form-data\r\n\r\n" + b"x" * 100,
        b"--b\r\n" + b"X-Long: " + b"x" * 100_000,
    ],
    ids=["no form", "no end", "no file", "long head"],
)
def test_a_broken_form_is_answered_and_nothing_of_it_stays(
    server: Server, visitor: Visitor, body: bytes
) -> None:
    before, used = server.files, server.page.visits.store.quota.used
    kind = {"Content-Type": "multipart/form-data; boundary=b"}
    answer = visitor.post("/gradio_api/upload", content=body, headers=kind)
    assert answer.status_code == 400
    assert "\n" not in answer.text
    assert (server.files, server.page.visits.store.quota.used) == (before, used)


@pytest.mark.fault(43)
def test_an_upload_that_breaks_off_does_not_stay(server: Server) -> None:
    before, used = server.files, server.page.visits.store.quota.used
    address = urlsplit(server.url)
    head = f"POST /gradio_api/upload HTTP/1.1\r\nHost: {address.netloc}\r\nContent-Length: 1000000\r\n"
    form = '--b\r\nContent-Disposition: form-data; name="files"; filename="a.png"\r\n\r\n'
    with socket.create_connection((address.hostname, address.port)) as connection:
        connection.sendall(f"{head}Content-Type: multipart/form-data; boundary=b\r\n\r\n{form}".encode())
        connection.sendall(bytes(300_000))
        wait_for(lambda: sum(path.stat().st_size for path in server.files) > 200_000)
        assert server.page.visits.store.quota.used >= used + 1_000_000  # room for all of it
    wait_for(lambda: server.page.visits.store.quota.used == used)
    assert server.files == before


@pytest.mark.fault(43)
@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("script.sh", picture(1), "Invalid file type"),
        ("page.jpg", b"<html><script>alert(1)</script>", "starts like HTML"),
        ("nothing.png", b"", "holds no image that can be used"),
        ("program.png", b"\x7fELF" + bytes(200), "holds no image that can be used"),
        ("weights.png", b"\x80\x04\x95cos\nsystem\n.", "holds no image that can be used"),
        ("drawing.png", b"<svg xmlns='http://www.w3.org/2000/svg'/>", "holds no image that can be used"),
        ("album.zip", b"no archive", "holds no image that can be used"),
    ],
)
def test_wrong_types_are_told_by_their_content(
    visitor: Visitor, name: str, content: bytes, message: str
) -> None:
    refused(visitor.call("read", [visitor.upload([(name, content)]), ""]), message)


@pytest.mark.fault(41)
def test_one_bad_image_does_not_end_a_visit(visitor: Visitor) -> None:
    bad = [("page.jpg", b"<html>"), ("<img src=x onerror=alert(1)>.png", b"")]
    read = visitor.call("read", [visitor.upload([*pictures(), *bad]), ""])
    assert read.went_well
    assert shown(read, lambda text: "9 images can be grouped" in text and "<img src=x" not in text)
    refused(visitor.call("read", [visitor.upload(bad[:1]), ""]), "no image")
    assert visitor.call("find_groups", []).went_well  # of the nine


FORGED = [
    "/etc/passwd", "/proc/self/environ", "../../../../etc/passwd", "app.py", "\0", "a" * 5000,
    "http://169.254.169.254/latest/meta-data", "file:///etc/passwd", "ftp://127.0.0.1/a.png",
]  # fmt: skip


@pytest.mark.parametrize("path", FORGED, ids=lambda path: path[:20].encode("unicode_escape").decode())
def test_forged_paths(visitor: Visitor, server: Server, path: str) -> None:
    for file in (as_file(path), {"path": path}, as_file(path, url=path, orig_name="a.png")):
        refused(visitor.call("read", [[file], ""]))
    inside = f"{server.page.visits.store.root}/../../{path.strip('/')}"
    refused(visitor.call("read", [[as_file(inside)], ""]))
    answer = visitor.get(f"/gradio_api/file={quote(path, safe='')}")
    assert answer.status_code == 404
    assert "root:" not in answer.text


@pytest.mark.fault(42)
def test_addresses_are_never_fetched(visitor: Visitor) -> None:
    asked = []

    class Notes(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_error(404)

        def log_message(self, *_: object) -> None:
            """Nothing is printed."""

    with http.server.HTTPServer(("127.0.0.1", 0), Notes) as trap:
        threading.Thread(target=trap.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{trap.server_port}/a.png"
        own = visitor.upload(pictures())[0]
        for file in (
            as_file(address),
            as_file(address.upper()),
            as_file(f" {address}"),
            {**own, "path": address},
        ):
            refused(visitor.call("read", [[file], ""]), "Addresses are not fetched")
        assert visitor.get(f"/gradio_api/file={address}").status_code == 404
        assert visitor.get(f"/gradio_api/proxy={address}").status_code == 404
        for name in (
            address,
            "http://169.254.169.254/latest",
            "file:///etc/passwd",
            "../../etc",
            "/etc",
            "x" * 200,
        ):
            refused(visitor.call("read", [[], name]), "is no data set of the Hub")
        refused(visitor.call("read", [[], "namespace/name"]), "Cannot ask the Hub")  # offline
        assert visitor.call("read", [[{**own, "url": address}], ""]).went_well  # which nobody reads
        trap.shutdown()
    assert asked == []


@pytest.mark.fault(44)
def test_nobody_reaches_what_another_has(server: Server, visitor: Visitor) -> None:
    files = visitor.upload(pictures())
    read = visitor.call("read", [files, ""])
    assert read.values[0] is None  # the id of a visit stays on the server
    assert visitor.call("find_groups", []).went_well
    assert visitor.call("take_away", [["csv"]]).went_well
    own = Path(files[0]["path"]).parents[2]
    private = [path for path in server.files if own in path.parents]
    assert {path.name for path in private} >= {"0.png", "assignments.csv"}
    for path in private:
        assert visitor.get(f"/gradio_api/file={path}").status_code == 200
    for other in (server.visitor(), server.visitor(keeps_cookies=False)):
        with other:
            for name in ("find_groups", "take_away"):
                refused(other.call(name, [] if name == "find_groups" else [["csv"]]), "give")
            for path in private:
                answer = other.get(f"/gradio_api/file={path}")
                assert (answer.status_code, answer.text) == (404, "There is no such file.")
                refused(other.call("read", [[as_file(str(path))], ""]), "not uploaded here")
            for route in ("deep_link?session_hash=" + visitor.session, "run-history/records", "runs"):
                assert other.get(f"/gradio_api/{route}").status_code == 404
            assert other.get("/monitoring").status_code == 404
            assert other.get("/monitoring/summary").status_code == 404
            assert other.call("read", [other.upload(pictures()), ""]).went_well  # the same pictures
            other.click("pc-forget")
    assert visitor.call("find_groups", []).went_well


@pytest.mark.fault(44)
@pytest.mark.parametrize("keeps_cookies", [True, False])
def test_nobody_learns_whether_somebody_else_gave_a_picture(server: Server, keeps_cookies: bool) -> None:
    """Who has the picture, its name, and the address that it got for themselves, cannot tell one page from another."""
    picture_of_a = pictures()[:1]

    def answers(of_whom: str | None) -> list[tuple[int, str]]:
        with server.visitor(keeps_cookies=keeps_cookies) as curious:
            own = Path(curious.upload(picture_of_a)[0]["path"])
            guesses = [own.with_name("1.png"), own.parents[1] / "1" / own.name]
            for depth in (1, 2):  # the folder of the form, of the visitor; with what the picture hashes to
                digest = hashlib.sha256(picture_of_a[0][1]).hexdigest()
                guesses += [
                    own.parents[depth].with_name(digest) / own.name,
                    own.parents[depth] / digest / own.name,
                ]
            guesses += [Path(of_whom)] if of_whom and keeps_cookies else []
            return [
                (answer.status_code, answer.text)
                for answer in (curious.get(f"/gradio_api/file={path}") for path in guesses)
            ]

    before = answers(None)
    with server.visitor(keeps_cookies=keeps_cookies) as first:
        address = first.upload(picture_of_a)[0]["path"]
        assert first.get(f"/gradio_api/file={address}").status_code == 200
        after = answers(address)
        again = first.upload(picture_of_a)[0]["path"]
        assert again != address  # it does not even tell oneself
    assert set(before) == set(after) == {(404, "There is no such file.")}


def test_forgetting_reaches_what_the_server_keeps(server: Server, visitor: Visitor) -> None:
    pages = server.page.blocks.state_holder.session_data

    def remembered() -> str:
        page = pages.get(visitor.session)
        return "" if page is None else str(page.config_values)

    images = [(f"holiday in {name}", content) for name, content in [*pictures(), ("broken.png", b"")]]
    files = visitor.upload(images)
    visitor.upload(images)  # and never given
    assert visitor.call("read", [files, ""]).went_well
    assert visitor.call("find_groups", []).went_well
    assert visitor.call("take_away", [["csv"]]).went_well
    assert "holiday in" in remembered()
    assert "assignments.csv" in {path.name for path in server.files}
    assert visitor.click("pc-forget").went_well
    assert "holiday in" not in remembered()
    assert not any("holiday" in path.name or path.suffix == ".csv" for path in server.files)
    assert visitor.get(f"/gradio_api/file={files[0]['path']}").status_code == 404
    refused(visitor.call("take_away", [["csv"]]), "images")


def test_values_out_of_bounds(visitor: Visitor) -> None:
    for stage in (99, -1, "x", None, [1]):
        refused(visitor.call("example", [stage]))
    visitor.call("read", [visitor.upload(pictures()), ""])
    visitor.call("find_groups", [])
    for count in (10**9, 0, -5, "many", None):
        refused(visitor.click("pc-regroup", [count]))
    for what in (["../../etc"], ["csv", "everything"], "csv", 7):
        refused(visitor.call("take_away", [what]))
    assert visitor.post("/gradio_api/queue/join", content=b"[" * 10_000).status_code == 400
    assert visitor.post("/gradio_api/queue/join", content=b'{"a": "' + b"x" * MIB + b'"}').status_code == 413
    assert visitor.post("/gradio_api/queue/join", json={"fn_index": 10**6}).status_code in (404, 422)
    refused(visitor.call("read", [None, None]), "No images yet")


ARCHIVES = {
    **{name: content for name, (content, _) in SKIPPING.items()},
    **{name: content for name, (content, _, _) in REFUSED.items() if len(content) < LIMITS.max_total_bytes},
}


@pytest.mark.slow
def test_hostile_archives(server: Server, visitor: Visitor) -> None:
    assert len(ARCHIVES) > 25
    usable = packed(*pictures())

    def give(name: str) -> Answer:
        with server.visitor() as guest:
            answer = guest.call(
                "read", [guest.upload([(f"{name}.zip", ARCHIVES[name]), (f"good {name}.zip", usable)]), ""]
            )
            guest.click("pc-forget")
            return answer

    with ThreadPoolExecutor(6) as pool:
        answers = dict(zip(ARCHIVES, pool.map(give, ARCHIVES), strict=True))
    for name, answer in answers.items():
        if name in SKIPPING and name not in ("says too much", "thousandfold"):
            assert answer.went_well, (name, answer.error)
            assert shown(answer, lambda text: "can be grouped" in text)
        elif not answer.went_well:
            refused(answer, "rchive")
    for name in ("overlap", "quoted overlap", "cut", "ratio"):
        refused(answers[name])


@pytest.mark.slow
@pytest.mark.fault(45)
def test_fifty_at_once(server: Server) -> None:
    """Each is served or told to come back, somebody at the page still is, and memory is given back."""
    with server.visitor() as first:  # the first visit loads the model that all share, and which stays
        assert first.call("read", [first.upload(pictures()), ""]).went_well
        assert first.click("pc-forget").went_well
    before = sessions()

    def come(number: int) -> list[Answer]:
        with server.visitor() as guest:
            files = guest.upload([(f"{number} {name}", content) for name, content in pictures(number)])
            answers = [guest.call("read", [files, ""])]
            if answers[0].went_well:
                answers.append(guest.call("find_groups", []))
            while guest.click("pc-forget").status == 503:  # the queue is full
                time.sleep(0.1)
            return answers

    with ThreadPoolExecutor(50) as pool:
        answers = [answer for some in pool.map(come, range(50)) for answer in some]
    # How many come before the queue is full depends on the machine; those who fit into it at once are served.
    assert any(answer.went_well for answer in answers)
    for answer in answers:
        if not answer.went_well:
            assert answer.status == 503 or answer.error
    with server.visitor() as late:
        read = late.call("read", [late.upload(pictures()), ""])
        assert shown(read, lambda text: "9 images can be grouped" in text)
        assert late.call("find_groups", []).went_well
        assert late.click("pc-forget").went_well
    deadline = time.monotonic() + 120  # only a leak waits for so long
    while sessions() > before and time.monotonic() < deadline:
        time.sleep(0.2)
    assert sessions() <= before


def sessions() -> int:
    gc.collect()
    return sum(isinstance(each, DiscoverySession) for each in gc.get_objects())
