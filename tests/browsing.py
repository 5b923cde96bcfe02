"""A real browser for pages: what they log, what they ask the network for, and how they look.

What drives it is imported where a test asks for a browser: all others run without it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Page, Request

LOOPBACK = {"127.0.0.1", "localhost"}


@dataclass
class Visit:
    """A page beside all that happens on it from now on.

    Attributes:
        page: the page of playwright.
        complaints: errors and warnings of the console, and errors nobody caught.
        foreign_requests: URLs that were asked for and would have left this machine.
    """

    page: Page
    complaints: list[str] = field(default_factory=list)
    foreign_requests: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.on("console", self._log)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", self._ask)

    def _log(self, entry: ConsoleMessage) -> None:
        if entry.type in ("error", "warning"):
            self.complaints.append(f"{entry.type}: {entry.text}")

    def _ask(self, request: Request) -> None:
        at = urlsplit(request.url)
        if at.scheme not in ("data", "blob", "file") and at.hostname not in LOOPBACK:
            self.foreign_requests.append(request.url)


def driver(module: str) -> Any:
    """A module that drives the browser; where it is not installed the tests that ask are skipped, but not in CI."""
    try:
        return import_module(module)
    except ModuleNotFoundError:
        skip_without(module.partition(".")[0])


def skip_without(what: str) -> None:
    """Skip what asks for a browser, because something is not installed."""
    if os.environ.get("PROMPTCCD_BROWSER") == "required":
        pytest.fail(
            f"No {what} is installed, and PROMPTCCD_BROWSER=required asks for a browser.", pytrace=False
        )
    pytest.skip(f"no {what} is installed", allow_module_level=True)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Chromium without a window; where there is none the test is skipped, but not in CI."""
    executable = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if executable is None:
        skip_without("chromium")
    with driver("playwright.sync_api").sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture
def visit(browser: Browser) -> Iterator[Visit]:
    """A fresh page of desktop width that is watched."""
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    yield Visit(page)
    page.close()
