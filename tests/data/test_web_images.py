"""A picture from the web comes within bounds, and from nobody who was not meant."""

import time
from pathlib import Path

import pytest

from promptccd.data.limits import MIB, SkippedFileError
from promptccd.data.web_images import _is_public, fetch_image, is_web_address
from tests.data.web import Web, web  # noqa: F401 - a fixture

ROOT = Path(__file__).parent.parent.parent


def test_a_picture_is_fetched(web: Web) -> None:  # noqa: F811
    web.pages |= {"/a": b"picture", "/moved": "/again", "/again": f"{web.url}/a?x=1"}
    for path in ("/a", "/a?size=3", "/moved"):
        assert fetch_image(web.url + path, private_addresses=True) == b"picture"
    assert web.asked == ["/a", "/a?size=3", "/moved", "/again", "/a?x=1"]


def test_a_picture_that_is_elsewhere_too_is_taken_where_it_is(web: Web) -> None:  # noqa: F811
    web.pages["/a"] = b"picture", "/b"
    assert fetch_image(f"{web.url}/a", private_addresses=True) == b"picture"
    assert web.asked == ["/a"]


def test_what_is_an_address() -> None:
    assert is_web_address("https://example.org/a.png") and is_web_address("HTTP://example.org")
    assert not any(
        map(is_web_address, ("a.png", "ftp://example.org/a", Path("https:/example.org"), b"http://a"))
    )


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1", "localhost", "[::1]", "0.0.0.0", "10.1.2.3", "192.168.1.1", "172.16.0.1", "169.254.169.254",
        "100.64.0.1", "2130706433", "0x7f000001", "[::ffff:127.0.0.1]", "[fe80::1]", "[fd00::1]", "[64:ff9b::7f00:1]",
        "[2002:7f00:1::]", "224.0.0.1", "255.255.255.255",
    ],
)  # fmt: skip
def test_machines_of_ones_own_are_not_asked(host: str) -> None:
    with pytest.raises(
        SkippedFileError, match="is a machine of this network, which is not asked|cannot be fetched"
    ):
        fetch_image(f"http://{host}:1/latest/meta-data", timeout=1)


def test_what_is_public() -> None:
    assert all(map(_is_public, ("8.8.8.8", "2606:4700::1111", "151.101.1.140")))
    assert not any(map(_is_public, ("::ffff:8.8.8.8", "2002:808:808::", "64:ff9b::808:808", "ff02::1")))


def test_a_redirection_is_looked_at_anew(web: Web) -> None:  # noqa: F811
    for moved in ("file:///etc/passwd", "ftp://127.0.0.1/a", "http://user:secret@127.0.0.1/", "https:///a"):
        web.pages["/a"] = moved
        with pytest.raises(SkippedFileError, match="is no address of the web|user and a password"):
            fetch_image(f"{web.url}/a", private_addresses=True)


def test_it_does_not_run_in_circles(web: Web) -> None:  # noqa: F811
    web.pages["/a"] = "/a"
    with pytest.raises(SkippedFileError, match="is redirected more than 3 times"):
        fetch_image(f"{web.url}/a", private_addresses=True)
    assert len(web.asked) == 4


def test_it_does_not_wait_for_ever(web: Web) -> None:  # noqa: F811
    web.pages["/drip"] = 20.0
    start = time.monotonic()
    with pytest.raises(SkippedFileError, match=r"/drip' cannot be fetched \(no answer in time\)"):
        fetch_image(f"{web.url}/drip", timeout=0.5, private_addresses=True)
    assert time.monotonic() - start < 5


def test_it_does_not_take_everything(web: Web) -> None:  # noqa: F811
    web.pages |= {"/much": bytes(20 * MIB + 1), "/all": bytes(20 * MIB)}
    assert len(fetch_image(f"{web.url}/all", private_addresses=True)) == 20 * MIB
    with pytest.raises(SkippedFileError, match="sends more than 20971520 bytes"):
        fetch_image(f"{web.url}/much", private_addresses=True)


def test_what_is_behind_the_question_mark_is_kept(web: Web) -> None:  # noqa: F811
    with pytest.raises(SkippedFileError) as raised:
        fetch_image(f"{web.url}/gone?token=secret", private_addresses=True)
    assert "answers 404 Not Found" in str(raised.value) and "secret" not in str(raised.value)


@pytest.mark.parametrize(
    "url", ["https://", "http://a b/c", "http://host:99999/", "http://host:0/", "http://a\n/b"]
)
def test_what_is_no_address_is_said(url: str) -> None:
    with pytest.raises(SkippedFileError, match="is no address of the web"):
        fetch_image(url)


def test_no_one_answers() -> None:
    with pytest.raises(SkippedFileError, match="cannot be fetched .*refused"):
        fetch_image("http://127.0.0.1:9/a.png", timeout=2, private_addresses=True)


@pytest.mark.fault(48)
def test_only_the_pipeline_asks_the_web() -> None:
    """Neither the page, nor the Space, nor a command: they are given files."""
    for path in [*(ROOT / "src").rglob("*.py"), *(ROOT / "spaces").rglob("*.py")]:
        text, here = path.read_text(encoding="utf-8"), path.relative_to(ROOT).as_posix()
        assert ("web_images import" in text) == (here == "src/promptccd/pipeline.py"), path
        if "discovery" in here or "spaces" in here:
            assert "promptccd.pipeline" not in text and "CategoryDiscoveryPipeline" not in text, path
