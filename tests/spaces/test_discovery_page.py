"""The page of the Space in a real browser: all steps of a visit, by mouse and by keyboard, wide and narrow."""

import csv
import io
import re
import shutil
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from datasets import Image as ImageFeature
from playwright.sync_api import Browser, Locator, Page, expect

from promptccd.registry import load_registry
from promptccd.runs import train_run
from promptccd.training.recipe import Recipe
from tests.browsing import Visit, watch
from tests.conftest import TINY_HEAD, coloured_images

# Gradio 6.31 warns so at the end of every upload: its client follows it by an event stream of its own making, of
# which `close` does nothing but this.
GRADIOS_OWN = "warning: Method not implemented."
PATIENCE = 20_000  # milliseconds, for a machine that is busy otherwise
FIRST_PICTURE_S = 2.0
# Brightness, 0 to 765, of the heading and of what lies behind it.
INK_AND_PAPER = """() => {
    const numbers = (colour) => colour.match(/[\\d.]+/g).map(Number);
    const bright = (colour) => numbers(colour).slice(0, 3).reduce((sum, part) => sum + part);
    const heading = document.querySelector(".pc-title h1");
    let behind = heading;
    while (numbers(getComputedStyle(behind).backgroundColor)[3] === 0) behind = behind.parentElement;
    return [getComputedStyle(heading).color, getComputedStyle(behind).backgroundColor].map(bright);
}"""
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
HOSTILE = "<img src=x onerror=document.title=1>"
FORMULA = "${7*7}{{7*7}}"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory, backbone_folder: Path) -> Path:
    """Stage 0 of a tiny PromptCCD that knows two categories."""
    folder = tmp_path_factory.mktemp("known")
    coloured_images(5, 20).save_to_disk(str(folder / "images"))
    values = {
        "data": {"dataset": str(folder / "images"), "class_blocks": [2, 1, 1, 1]},
        "views": {"image_size": 16, "resize_size": 18},
        "model": {"backbone": str(backbone_folder), **TINY_HEAD},
        "training": {
            "output_dir": str(folder / "run"),
            "epochs": 1,
            "batch_size": 16,
            "refit_every": 1,
            "prompt_warmup_epochs": 0,
            "replay_samples": 5,
            "kmeans_restarts": 2,
        },
    }
    train_run(Recipe.from_dict(values))
    return folder / "run" / "stage0"


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Folders of two stages: 24 and 12 images; beside the first ones a copy and two files that are no images."""
    first, second = tmp_path_factory.mktemp("first"), tmp_path_factory.mktemp("second")
    table = coloured_images(5, 9, seed=7).cast_column("image", ImageFeature(decode=False))
    for row, record in enumerate(table):
        category, number = record["label"], row // 5
        if category < 4 and number < 6:
            (first / f"kind {category} {number}.png").write_bytes(record["image"]["bytes"])
        elif category in (0, 4):
            (second / f"kind {category} {number}.png").write_bytes(record["image"]["bytes"])
    (first / "kind 1 0.png").rename(first / f"{HOSTILE}.png")
    (first / "kind 2 0.png").rename(first / f"{FORMULA}.png")
    shutil.copy(first / "kind 0 0.png", first / "once more.png")
    (first / "page.jpg").write_text("<html>no image</html>")
    (first / "cut.png").write_bytes((first / "kind 0 1.png").read_bytes()[:60])
    return [first, second]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where Gradio keeps uploads and downloads."""
    return tmp_path_factory.mktemp("gradio")


@pytest.fixture(scope="module")
def url(checkpoint: Path, cache: Path) -> Iterator[str]:
    """The app served on loopback as the Space serves it."""
    pytest.importorskip("gradio", reason="the page needs gradio: pip install -c constraints.txt gradio")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRADIO_TEMP_DIR", str(cache))
        patch.delenv("OAUTH_CLIENT_ID", raising=False)
        from promptccd.discovery.app import Site, build_app

        app = build_app(str(checkpoint))
        server = app.serve(Site.of_machine())
        yield server.url
        server.close()
        app.close()


def step(page: Page, name: str) -> None:
    """Go to a step."""
    page.get_by_role("tab", name=name, exact=True).click()


def press(page: Page, name: str) -> None:
    """Click a button."""
    page.get_by_role("button", name=name, exact=True).filter(visible=True).click()


def told(page: Page, text: str) -> Locator:
    """Wait for a text that can be seen."""
    found = page.get_by_text(text).filter(visible=True).first
    expect(found).to_be_visible(timeout=PATIENCE)
    return found


def give(page: Page, folder: Path) -> None:
    """Upload a folder's files and have them grouped."""
    step(page, "Images")
    files = sorted(folder.iterdir())
    page.locator("#pc-upload input[type=file]").set_input_files(files)
    told(page, files[0].name[:5])
    press(page, "Find groups")


def desk(page: Page, place: str) -> Locator:
    """A part of the element that shows groups."""
    return page.locator(f"promptccd-desk {place}")


def said(page: Page, text: str) -> None:
    desk(page, ".status").filter(has_text=text).wait_for(timeout=PATIENCE)


def names(page: Page) -> list[str]:
    return desk(page, ".card .name").all_inner_texts()


def download(page: Page, name: str) -> bytes:
    with page.expect_download(timeout=PATIENCE) as waiting:
        page.locator(f"#pc-files a[download='{name}']").click()
    return Path(waiting.value.path()).read_bytes()


def held(cache: Path) -> int:
    """Bytes that Gradio keeps; of every upload it leaves an empty file behind."""
    return sum(path.stat().st_size for path in cache.rglob("*") if path.is_file())


@pytest.mark.slow
@pytest.mark.fault(41)
def test_a_visit_from_the_example_to_the_end(
    visit: Visit, url: str, pictures: list[Path], cache: Path, tmp_path: Path
) -> None:
    page = visit.page
    page.set_default_timeout(PATIENCE)
    look_at_the_example(page, url)
    for name in ("Groups", "Take away"):  # every step says what to do first
        step(page, name)
        told(page, {"Groups": "No groups yet", "Take away": "What to take"}[name])
    press(page, "Prepare the files")
    told(page, "No images yet: give some in the step")
    step(page, "Example")
    press(page, "Start with your own images")
    press(page, "Find groups")
    told(page, "No images yet: choose some files, or name a data set of the Hub.")

    give(page, pictures[0])
    desk(page, ".card img").first.wait_for()
    step(page, "Images")  # what became of every file
    told(page, "27 files found: 24 used, 1 copy, 2 skipped.")
    told(page, "not an image that can be read (starts like HTML)")
    page.screenshot(path=tmp_path / "2-report.png", full_page=True)
    step(page, "Groups")
    page.screenshot(path=tmp_path / "3-groups.png", full_page=True)

    correct_groups(page)
    kept = names(page)
    ask_for_more_groups(page)
    see_the_next_stage(page, pictures[1], kept, tmp_path)
    take_away(page, tmp_path)

    assert held(cache) > 0, "uploads, the project and downloads lie there"
    press(page, "Forget my data")
    told(page, "Your images, groups and files are deleted.")
    assert held(cache) == 0
    told(page, "Stage 0: 7 known digits")  # the page starts anew
    step(page, "Groups")
    told(page, "No groups yet")

    assert "Traceback" not in page.content()
    assert page.locator("img[src=x]").count() == 0
    assert page.title() == "What is in these images?"
    complaints = [text for text in visit.complaints if text != GRADIOS_OWN and "410 (Gone)" not in text]
    assert complaints == []
    assert visit.foreign_requests == []


def look_at_the_example(page: Page, url: str) -> None:
    waited = []
    for _ in range(5):  # the first that is quick enough: other tests may run beside this one
        started = time.monotonic()
        page.goto(url)
        expect(page.locator("#pc-example-map svg")).to_be_visible(timeout=PATIENCE)
        expect(page.locator("#pc-example-cards img").first).to_be_visible(timeout=PATIENCE)
        waited.append(time.monotonic() - started)
        if waited[-1] < FIRST_PICTURE_S:
            break
    assert min(waited) < FIRST_PICTURE_S
    told(page, "Stage 0: 7 known digits")
    page.get_by_role("slider", name="Stage").focus()
    page.keyboard.press("ArrowRight")
    told(page, "Stage 1: 1 new group")


def correct_groups(page: Page) -> None:
    """Name, merge, move, split, ask why, and take it back; keys that are typed elsewhere do nothing here."""
    before = names(page)
    unnamed = desk(page, ".card .name.none").first
    unnamed.click()
    page.keyboard.type(HOSTILE)
    page.keyboard.press("Enter")
    said(page, "Now called")
    page.keyboard.press("Escape")
    assert HOSTILE in names(page)

    for nth in range(2):
        desk(page, ".card .box").nth(nth).click(force=True)
    page.keyboard.press("m")
    desk(page, "dialog[open] .side").nth(1).wait_for()
    page.keyboard.press("Enter")
    said(page, "Merged 2 groups")
    assert len(names(page)) == len(before) - 1
    page.keyboard.press("Control+z")
    said(page, "Taken back: merged")
    assert len(names(page)) == len(before)

    desk(page, ".card .open").first.click()
    desk(page, ".cell img").first.wait_for()
    desk(page, ".cell").first.focus()
    page.keyboard.press("Space")
    said_before = desk(page, ".status").inner_text()
    page.get_by_role("button", name="More or fewer groups").click()
    number = page.get_by_label("Number of groups, known ones included")
    number.focus()
    page.keyboard.press("g")  # is no key of the element's there
    page.keyboard.press("Delete")
    assert desk(page, ".status").inner_text() == said_before
    page.get_by_role("button", name="More or fewer groups").click()
    desk(page, ".cell.picked").focus()
    page.keyboard.press("m")
    desk(page, "dialog[open] .targets").wait_for()
    page.keyboard.press("Enter")
    said(page, "Moved 1 to")
    page.keyboard.press("Control+z")
    said(page, "Taken back: moved 1")

    desk(page, ".cell").first.click()
    desk(page, "dialog[open] .photo").wait_for()
    page.keyboard.press("w")
    desk(
        page,
        ".why",
    ).filter(has_text="It could also be").wait_for()
    page.keyboard.press("Escape")
    page.keyboard.press("Escape")
    desk(page, ".card").first.wait_for()


def ask_for_more_groups(page: Page) -> None:
    """One more than there are, and back; the element shows it without being asked to."""
    count = len(names(page))
    page.get_by_role("button", name="More or fewer groups").click()
    number = page.get_by_label("Number of groups, known ones included")
    for _ in range(20):  # what is typed before the opened part is drawn to its end is lost
        number.fill(str(count + 1))
        page.wait_for_timeout(100)
        if number.input_value() == str(count + 1):
            break
    press(page, "Group with this number")
    told(page, f"Grouped again: {count + 1} categories in all.")
    expect(desk(page, ".card")).to_have_count(count + 1)
    press(page, "Use the estimate")
    expect(desk(page, ".card")).to_have_count(count)


def see_the_next_stage(page: Page, folder: Path, kept: list[str], tmp_path: Path) -> None:
    give(page, folder)
    desk(page, ".changes").filter(has_text="12 new photographs").wait_for()
    page.screenshot(path=tmp_path / "6-changes.png", full_page=True)
    page.keyboard.press("Escape")
    desk(page, ".card").first.wait_for()
    assert set(kept) <= set(names(page))


def take_away(page: Page, tmp_path: Path) -> None:
    """All files; the table adds up, and a name that tries things is text in all of them."""
    step(page, "Take away")
    for box in page.locator("#pc-what input").all():
        box.check()
    press(page, "Prepare the files")
    expect(page.locator("#pc-files a")).to_have_count(4)
    page.screenshot(path=tmp_path / "7-files.png", full_page=True)
    rows = list(csv.DictReader(io.StringIO(download(page, "assignments.csv").decode("utf-8-sig"))))
    assert len(rows) == 12
    assert {row["status"] for row in rows} == {"used"}
    assert {row["stage"] for row in rows} == {"2"}
    with zipfile.ZipFile(io.BytesIO(download(page, "images.zip"))) as archive:
        images = [name for name in archive.namelist() if name.endswith(".png")]
    assert len(images) == 12
    assert HOSTILE.encode() not in download(page, "discovery.html")
    with zipfile.ZipFile(io.BytesIO(download(page, "checkpoint.zip"))) as archive:
        archive.extractall(tmp_path / "checkpoint")
    registry = load_registry(tmp_path / "checkpoint")
    assert HOSTILE in {category.name for category in registry.active}
    assert sum(stage > 0 for stage in registry.images.values()) == 36
    assert registry.stage == 2


@pytest.mark.slow
@pytest.mark.fault(44)
def test_a_window_of_its_own_keeps_to_its_policy_and_to_its_owner(
    browser: Browser, url: str, pictures: list[Path]
) -> None:
    mine, theirs = browser.new_context(), browser.new_context()
    page = mine.new_page()
    page.set_default_timeout(PATIENCE)
    page.goto(url)
    give(page, pictures[0])
    with mine.expect_page() as opening:
        desk(page, ".bar a.wide").click()
    own = watch(opening.value)
    violations: list[str] = []
    own.page.expose_function("violated", lambda directive: violations.append(directive))
    own.page.add_init_script(
        "document.addEventListener('securitypolicyviolation', e => violated(e.violatedDirective))"
    )
    own.page.reload()
    desk(own.page, ".card .name").first.click()
    own.page.keyboard.type("heron")
    own.page.keyboard.press("Enter")
    said(own.page, "Now called")
    expect(
        desk(
            page,
            ".card .name",
        ).filter(has_text="heron")
    ).to_be_visible(timeout=PATIENCE)  # at once, there too
    other = theirs.new_page()
    assert other.goto(own.page.url.partition("#")[0]).status == 410
    press(page, "Forget my data")
    own.page.get_by_text("This visit is over and its images are deleted").wait_for(timeout=PATIENCE)
    assert desk(own.page, "img").count() == 0
    assert violations == []
    assert own.foreign_requests == []
    mine.close()
    theirs.close()


def shown(page: Page, where: str, place: str) -> None:
    page.evaluate(f"location.hash = {where!r}")
    desk(page, place).first.wait_for()


SCREENS: dict[str, Callable[[Page], None]] = {
    "groups": lambda page: shown(page, "view=groups", ".card img"),
    "all": lambda page: shown(page, "view=all", ".cell img"),
    "map": lambda page: shown(page, "view=map", "canvas"),
    "images": lambda page: step(page, "Images"),
    "take away": lambda page: step(page, "Take away"),
    "example": lambda page: step(page, "Example"),
}


@pytest.mark.slow
@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_it_fits_and_shuts_nobody_out(
    browser: Browser, url: str, pictures: list[Path], tmp_path: Path, theme: str, width: int
) -> None:
    page = browser.new_page(viewport={"width": width, "height": 844}, reduced_motion="reduce")
    visit = watch(page)
    page.set_default_timeout(PATIENCE)
    page.goto(f"{url}?__theme={theme}")
    expect(page.locator("#pc-example-map svg")).to_be_visible(timeout=PATIENCE)
    ink, paper = page.evaluate(INK_AND_PAPER)
    assert (ink > paper) == (theme == "dark")
    assert abs(ink - paper) > 400
    give(page, pictures[0])
    desk(page, ".card img").first.wait_for()
    behind = page.locator("promptccd-desk").evaluate("each => getComputedStyle(each).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", behind)[:3])) > 384) == (
        theme == "light"
    )  # as the page around it
    found = {}
    for name, go in SCREENS.items():
        go(page)
        page.screenshot(path=tmp_path / f"{name}.png", full_page=True)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, name
        for problem in Axe().run(page, options={"runOnly": RULES}).response["violations"]:
            found[name, problem["id"]] = [each["html"][:200] for each in problem["nodes"][:3]]
    assert found == {}
    assert [text for text in visit.complaints if text != GRADIOS_OWN] == []
    assert visit.foreign_requests == []
    page.close()
