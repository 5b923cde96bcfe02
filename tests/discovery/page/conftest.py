"""A project of thirty photographs, and its page on a port."""

import asyncio
import http.client
import json
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from starlette.types import ASGIApp

from promptccd.discovery import DiscoverySession, discover
from promptccd.discovery.page import OpenPage
from tests.discovery.conftest import write_pictures

KINDS, EACH = 4, 8


@pytest.fixture(scope="session")
def found_once(tiny_backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photographs, and beside them what `discover` wrote."""
    folder = tmp_path_factory.mktemp("project")
    write_pictures(folder / "album", list(range(KINDS)), EACH)
    discover(DiscoverySession.open(tiny_backbone), folder / "album", folder / "found", num_categories=KINDS)
    return folder


@pytest.fixture
def project(found_once: Path, tmp_path: Path) -> Path:
    """The results, to be changed at will; the photographs stay where they are."""
    return Path(shutil.copytree(found_once / "found", tmp_path / "found"))


@contextmanager
def served(project: Path, port: int | None = None) -> Iterator[OpenPage]:
    """The page of a project, which answers."""
    with closing(OpenPage(project, port)) as opened:
        opened.start()
        yield opened


@pytest.fixture
def page(project: Path) -> Iterator[OpenPage]:
    with served(project) as opened:
        yield opened


class Window:
    """Somebody who has opened the address, as their browser would.

    Attributes:
        page: what they have opened.
        place: host and port.
        cookie: that it has got.
    """

    def __init__(self, page: OpenPage):
        self.page, self.place = page, urlsplit(page.url).netloc
        token = parse_qs(urlsplit(page.url).query)["token"][0]
        _, headers, _ = self.ask(f"/?token={token}", cookie="")
        self.cookie = headers["set-cookie"].partition(";")[0]

    def ask(
        self, path: str, body: Any = None, *, method: str = "", cookie: str | None = None, **headers: str
    ) -> tuple[int, dict[str, str], bytes]:
        """Status, headers in lower case, and body of an answer; ``_`` in names of headers stands for ``-``."""
        connection = http.client.HTTPConnection(self.place, timeout=30)
        sent = {"Cookie": self.cookie if cookie is None else cookie}
        if body is not None:
            sent["Origin"] = f"http://{self.place}"
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        content = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        connection.request(method or ("GET" if body is None else "POST"), path, content, sent)
        answer = connection.getresponse()
        got = answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
        connection.close()
        return got

    def get(self, path: str) -> Any:
        """What an address below ``/api/`` says."""
        status, _, content = self.ask(f"/api/{path}")
        assert status == 200, content
        return json.loads(content)

    def do(self, **edit: Any) -> tuple[int, Any]:
        """Status and answer of a correction."""
        status, _, content = self.ask("/api/edit", edit)
        return status, json.loads(content) if content.startswith(b"{") else content.decode()


def asked(app: ASGIApp, method: str, path: str, host: str = "localhost", **options: Any) -> httpx.Response:
    """What an application answers, in a thread of its own: a browser of another test may have a loop in this one."""

    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(app, client=("10.1.1.1", 1))
        async with httpx.AsyncClient(transport=transport, base_url=f"http://{host}") as session:
            return await session.request(method, path, **options)

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, ask()).result()


@pytest.fixture
def window(page: OpenPage) -> Window:
    return Window(page)


@pytest.fixture(scope="session")
def reader(found_once: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Window]:
    """Somebody who corrects nothing, at a page of their own that all such tests share."""
    copy = shutil.copytree(found_once / "found", tmp_path_factory.mktemp("read") / "found")
    with served(Path(copy)) as opened:
        yield Window(opened)
