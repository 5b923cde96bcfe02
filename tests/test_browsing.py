"""Tests that ask for no browser need nothing that drives one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.browsing import driver
from tests.messages import TEXT

ROOT = Path(__file__).parents[1]


@pytest.mark.moderate
def test_what_drives_a_browser_is_imported_for_those_who_ask() -> None:
    blocked = "import sys; sys.modules['playwright'] = sys.modules['axe_playwright_python'] = None\n"
    subprocess.run([sys.executable, "-c", blocked + "import tests.conftest"], cwd=ROOT, check=True)


def test_without_it_tests_are_skipped_but_not_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PROMPTCCD_BROWSER", raising=False)
    assert driver("pathlib").Path is Path
    with pytest.raises(pytest.skip.Exception, match=TEXT["no-nobody-has-it-is-installed-2"]):
        driver("nobody_has_it.sync_api")
    monkeypatch.setenv("PROMPTCCD_BROWSER", "required")
    with pytest.raises(pytest.fail.Exception, match=TEXT["no-nobody-has-it-is-installed"]):
        driver("nobody_has_it.sync_api")
