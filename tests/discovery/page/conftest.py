"""A project of thirty photographs, its page on a port, and people at it."""

from __future__ import annotations

import http.client
import json
import re
import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import pytest

from promptccd.discovery.page import OpenPage
from tests.browsing import Visit
from tests.discovery.stored import registry_in

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@contextmanager
def served(project: Path, port: int | None = None) -> Iterator[OpenPage]:
    """The page of a project, which answers."""
    with closing(OpenPage(project, port)) as opened:
        opened.start()
        yield opened


@pytest.fixture
def page(project: Path) -> Iterator[OpenPage]:
    opened = OpenPage(project)
    opened.start()
    yield opened
    Thread(target=opened.close).start()  # a fifth of a second, most of which it sleeps


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
        status, headers, _ = self.ask(f"/?token={token}", cookie="")
        assert (status, headers["location"], len(token)) == (303, "/", 32)
        self.cookie, _, rest = headers["set-cookie"].partition("; ")
        assert rest == "HttpOnly; Max-Age=15552000; Path=/; SameSite=strict"  # outlives the browser

    def ask(
        self, path: str, body: Any = None, *, method: str = "", cookie: str | None = None, **headers: str
    ) -> tuple[int, dict[str, str], bytes]:
        """Status, headers in lower case, and body of an answer; ``_`` in names of headers stands for ``-``."""
        connection = http.client.HTTPConnection(self.place, timeout=30)
        sent = {"Cookie": self.cookie if cookie is None else cookie}
        if body is not None:
            sent["Origin"] = f"http://{self.place}"
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        sent = {name: value for name, value in sent.items() if value}
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


@pytest.fixture
def window(page: OpenPage) -> Window:
    return Window(page)


@pytest.fixture(scope="session")
def reader(found_once: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Window]:
    """Somebody who corrects nothing, at a page of their own that all such tests share."""
    copy = shutil.copytree(found_once / "found", tmp_path_factory.mktemp("read") / "found")
    with served(Path(copy)) as opened:
        yield Window(opened)


# In a browser


WIDE, PHONE = (1280, 860), (390, 844)
on_both = pytest.mark.parametrize("person", [WIDE, PHONE], ids=["desktop", "phone"], indirect=True)
NOTES_VIOLATIONS = "document.addEventListener('securitypolicyviolation', e => violated(e.violatedDirective))"
# What the screen shows as chosen: the photograph that is large or sorted, the selection, or the cell with the focus.
CHOSEN = """() => {
  const root = document.querySelector('promptccd-desk').shadowRoot;
  const rows = (found) => [...found].map((each) => Number(each.dataset.row)).sort((a, b) => a - b);
  if (root.querySelector('dialog:not(.large)')) return [];
  const looked = root.querySelectorAll('dialog.large .photo, .quick .photo');
  const picked = root.querySelectorAll('.cell.picked');
  const { activeElement } = root;
  const focused = activeElement?.matches('.cell:not(.gone)') ? [activeElement] : [];
  return rows(looked.length ? looked : picked.length ? picked : focused);
}"""


class Person:
    """Somebody at the page, who counts what they do.

    Attributes:
        actions: clicks, keys, drags and typed names so far.
    """

    def __init__(self, visit: Visit):
        self.visit, self.page, self.actions = visit, visit.page, 0

    def press(self, *keys: str) -> None:
        for key in keys:
            self.page.keyboard.press(key)
            self.actions += 1
            self.page.wait_for_timeout(60)

    def see(self, place: str, **options: Any) -> None:
        """Wait until the first of what is there is seen, or is gone."""
        self.page.locator(place).first.wait_for(**options)

    def click(self, place: str, nth: int = 0, **options: object) -> None:
        self.page.locator(place).nth(nth).click(**options)
        self.actions += 1

    def type(self, name: str) -> None:
        self.page.keyboard.type(name)
        self.press("Enter")  # a typed name is one action

    def said(self, text: str) -> None:
        self.page.locator(".status").filter(has_text=re.compile(text)).wait_for(timeout=30_000)

    def go(self, where: str) -> None:
        """Not an action of the job: where it begins."""
        self.page.evaluate(f"location.hash = {where!r}")
        self.page.wait_for_timeout(400)
        self.actions = 0


@contextmanager
def person_at(browser: Browser, url: str, size: tuple[int, int] = WIDE, **options: Any) -> Iterator[Person]:
    """Somebody who has opened the page in a window of their own, which has nothing to complain of."""
    viewport, is_phone = dict(zip(("width", "height"), size, strict=True)), size == PHONE
    context = browser.new_context(viewport=viewport, has_touch=is_phone, is_mobile=is_phone, **options)
    visit = Visit(context.new_page())
    violations: list[str] = []
    visit.page.expose_function("violated", lambda directive: violations.append(directive))
    visit.page.add_init_script(NOTES_VIOLATIONS)
    visit.page.goto(url)
    visit.page.locator(".card img").first.wait_for()
    yield Person(visit)
    assert (visit.complaints, visit.foreign_requests, violations) == ([], [], [])
    context.close()


@pytest.fixture
def person(request: pytest.FixtureRequest, browser: Browser, page: OpenPage) -> Iterator[Person]:
    """Somebody at a desk, unless a test asks for a phone."""
    with person_at(browser, page.url, getattr(request, "param", WIDE)) as found:
        yield found


def sizes(project: Path) -> dict[str, int]:
    return {each.name: each.size for each in registry_in(project).active}


def first_group(person: Person, project: Path) -> tuple[int, int]:
    """Opens the largest group; its number and its size."""
    largest = max(registry_in(project).active, key=lambda each: (each.size, -each.id))
    person.go(f"view=group&of={largest.id}")
    person.page.locator(".cell img").first.wait_for()
    return largest.id, largest.size


def edits_of(person: Person) -> list[dict]:
    """What the window will have sent."""
    sent: list[dict] = []
    person.page.on(
        "request", lambda request: sent.append(request.post_data_json) if "/edit" in request.url else None
    )
    return sent
