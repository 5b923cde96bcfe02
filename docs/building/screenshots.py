"""Screenshots of the page of ``promptccd open``, one for each screen, in ``docs/pictures/page``.

Run it with ``python -m docs.building.screenshots`` after the page was changed. It needs Chromium and playwright. The
photographs are the 44 of the example of the Space (Caltech-101, CC BY 4.0), grouped by the bundled backbone.
"""

import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from promptccd.discovery import DiscoverySession, Project, discover
from promptccd.discovery.page import OpenPage

if TYPE_CHECKING:
    from playwright.sync_api import Page

ROOT = Path(__file__).parents[2]
PHOTOS = ROOT / "src/promptccd/discovery/page/example/photos"
PICTURES = ROOT / "docs/pictures/page"
NAMES = {1: "sailing boat", 3: "aeroplane", 9: "bonsai", 11: "flamingo"}  # by the number of a photograph


def nothing(page: "Page") -> None:
    """Leave a screen as it opens."""


def enlarge(page: "Page") -> None:
    """Open the first photograph."""
    page.keyboard.press("Enter")


# Screens by file name: the address after ``#``, and an action. GROUP is the group of the sailing boats.
SCREENS: dict[str, tuple[str, Callable[["Page"], None]]] = {
    "groups": ("view=groups", nothing),
    "group": ("view=group&of=GROUP", nothing),
    "large": ("view=group&of=GROUP", enlarge),
    "map": ("view=map", nothing),
    "quick_sort": ("view=desk", nothing),
    "check": ("view=check", nothing),
}


def shoot(out: Path) -> None:
    """Write every screen as a JPEG of 1280 x 600 pixels into a folder.

    Args:
        out: the folder.
    """
    from playwright.sync_api import sync_playwright

    out.mkdir(parents=True, exist_ok=True)
    executable = shutil.which("chromium") or shutil.which("google-chrome")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        groups = Path(folder, "groups")
        found = discover(DiscoverySession.open("photographs", precision="fp32"), PHOTOS, groups)
        group_of = {row.file: row.category for row in found.rows if row.category is not None}
        project = Project(groups)
        for number, name in NAMES.items():
            project.rename(group_of[f"photo-{number:02d}.jpg"], name)
        opened = OpenPage(groups)
        opened.start()
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 600})
        page.goto(opened.url)
        for name, (place, then) in SCREENS.items():
            page.goto(
                f"{opened.url.partition('?')[0]}#{place.replace('GROUP', str(group_of['photo-01.jpg']))}"
            )
            page.wait_for_timeout(1500)
            then(page)
            page.wait_for_timeout(1000)
            page.screenshot(path=out / f"{name}.jpg", type="jpeg", quality=80)
        browser.close()
        opened.close()


if __name__ == "__main__":
    shoot(Path(sys.argv[1]) if len(sys.argv) > 1 else PICTURES)
