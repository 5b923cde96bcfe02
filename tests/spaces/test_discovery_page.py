"""The page for people in a real browser: all steps of a visit, by mouse and by keyboard, wide and narrow."""

import csv
import io
import shutil
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from datasets import Image as ImageFeature
from playwright.sync_api import Locator, Page, expect

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
CARDS = (
    """cards => cards.map((card) => [".pc-facts", "h4"].map((part) => card.querySelector(part).innerText))"""
)
NOTHING_YET = {
    "Groups": "No groups yet",
    "Questions": "No questions yet",
    "Changes": "Nothing to compare yet",
}
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
    """Upload a folder's files and have them checked."""
    step(page, "Images")
    files = sorted(folder.iterdir())
    page.locator("#pc-upload input[type=file]").set_input_files(files)
    told(page, files[0].name[:5])
    press(page, "Check the images")
    told(page, "can be grouped")


def facts(page: Page, wanted: Callable[[dict[str, str]], bool] = bool) -> dict[str, str]:
    """Name of every group on the page by the line below it, once they are as wanted: messages come before pages."""
    for _ in range(PATIENCE // 50):
        cards = page.locator("#pc-cards .pc-card:visible")
        found = dict(cards.evaluate_all(CARDS))
        if wanted(found):
            return found
        page.wait_for_timeout(50)
    pytest.fail(f"The groups did not become as wanted; they are {found}.")


def open_group(page: Page, card: Locator) -> None:
    card.get_by_role("button").click()
    expect(page.locator("#pc-group h2")).to_be_visible(timeout=PATIENCE)


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
    stage = page.get_by_role("slider", name="Stage")
    stage.focus()
    page.keyboard.press("ArrowRight")
    told(page, "Stage 1: 1 new group")
    page.screenshot(path=tmp_path / "1-example.png", full_page=True)
    for name, text in NOTHING_YET.items():  # every step says what to do first
        step(page, name)
        told(page, text)
    step(page, "Take away")
    press(page, "Prepare the files")
    told(page, "No images yet: give some in the step")
    for name, text in NOTHING_YET.items():  # and goes on saying it when the server has answered
        step(page, name)
        told(page, text)
    step(page, "Example")
    press(page, "Start with your own images")

    press(page, "Check the images")
    told(page, "No images yet: choose some files, or name a data set of the Hub.")
    give(page, pictures[0])
    told(page, "27 files found: 24 used, 1 copy, 2 skipped.")
    told(page, "not an image that can be read (starts like HTML)")
    page.screenshot(path=tmp_path / "2-report.png", full_page=True)
    press(page, "Find groups")

    told(page, "24 images in")
    found = facts(page)
    sections = page.locator("#pc-cards .pc-section > h3").all_inner_texts()
    assert [text.rstrip(" 0123456789") for text in sections] == ["Known before", "New groups"]
    assert sum(int(line.split(" · ")[1].split()[0]) for line in found) == 24
    assert all("sure (" in line for line in found)
    page.screenshot(path=tmp_path / "3-groups.png", full_page=True)

    ask_for_more_groups(page, found)
    correct_a_group(page, tmp_path)
    names = answer_by_keyboard(page, tmp_path)
    see_the_next_stage(page, pictures[1], names, tmp_path)
    take_away(page, tmp_path)

    assert held(cache) > 0, "uploads and downloads lie there"
    press(page, "Forget my data")
    told(page, "Your images, groups and files are deleted.")
    assert held(cache) == 0
    told(page, "Stage 0: 7 known digits")  # the page starts anew
    step(page, "Groups")
    told(page, "No groups yet")

    assert "Traceback" not in page.content()
    assert page.locator("img[src=x]").count() == 0
    assert page.title() == "What is in these images?"
    assert [text for text in visit.complaints if text != GRADIOS_OWN] == []
    assert visit.foreign_requests == []


def ask_for_more_groups(page: Page, found: dict[str, str]) -> None:
    """One category more than the estimate, and back."""
    page.get_by_role("button", name="More or fewer groups").click()
    told(page, "Estimate:")
    number = page.locator("#pc-slider input[type=number]")
    count = int(number.input_value())
    slider = page.get_by_role("slider", name="Number of categories")
    for _ in range(20):  # what is typed before the opened part is drawn to its end is lost
        number.fill(str(count + 1))
        page.wait_for_timeout(100)
        if slider.input_value() == str(count + 1):
            break
    press(page, "Group with this number")
    told(page, f"Grouped again: {count + 1} categories in all.")
    facts(page, lambda now: bool(now) and now != found)
    press(page, "Use the estimate")
    told(page, f"Grouped again: {count} categories in all.")
    facts(page, found.__eq__)


def correct_a_group(page: Page, tmp_path: Path) -> None:
    """Name, split, move, merge, dissolve, and take it back; the groups are then what they were."""
    card = page.locator("#pc-cards .pc-section").last.locator(".pc-card").first
    open_group(page, card)
    assert page.evaluate("document.activeElement.tagName") == "H2"  # a screen reader goes on there
    page.get_by_label("Name", exact=True).fill(HOSTILE)
    page.keyboard.press("Enter")
    expect(page.locator("#pc-group h2")).to_have_text(HOSTILE)
    named = press_back(page, lambda now: HOSTILE in now.values())

    def on_the_group(act) -> None:
        open_group(page, page.locator("#pc-cards .pc-card", has_text=HOSTILE))
        act()

    def split() -> None:
        press(page, "Split in two")
        told(page, "became the new group")

    def move() -> None:
        page.locator("#pc-members input").first.check()
        told(page, "1 selected")
        page.locator("#pc-others input").first.check()
        press(page, "Move selected there")
        told(page, "1 image moved to")

    def merge() -> None:
        page.locator("#pc-others input").first.check()
        press(page, "Merge: both are one")
        told(page, "Both are")

    def dissolve() -> None:
        press(page, "Not a category")
        told(page, "is gone")

    for kind, act, all_groups in (
        ("split", split, press_back),
        ("move", move, press_back),
        ("merge", merge, press_back),
        ("not a category", dissolve, facts),  # which closes the group
    ):
        on_the_group(act)
        all_groups(page, lambda now: bool(now) and now != named)
        press(page, f"Undo: {kind}")
        facts(page, named.__eq__)
    press(page, "Redo: not a category")
    facts(page, lambda now: HOSTILE not in now.values())
    press(page, "Undo: not a category")
    facts(page, named.__eq__)

    open_group(page, page.locator("#pc-cards .pc-card", has_text=HOSTILE))
    press(page, "Why is it here?")
    told(page, "No image is selected")
    press(page, "Merge: both are one")
    told(page, "No other group is chosen")
    assert (
        page.locator("#pc-others img").count() == page.locator("#pc-others input").count() - 1
    )  # no group has none
    page.locator("#pc-members input").first.check()
    press(page, "Why is it here?")
    told(page, "What the model looked at in")
    picture = page.locator("#pc-why img")
    assert "the places it looked at" in (picture.get_attribute("alt") or "")
    assert picture.evaluate("image => image.naturalWidth") > 300
    told(page, "It is nearest to")
    told(page, "It does not prove")
    page.screenshot(path=tmp_path / "4-group.png", full_page=True)
    press_back(page, named.__eq__)


def press_back(page: Page, wanted: Callable[[dict[str, str]], bool]) -> dict[str, str]:
    """From the open group to all groups."""
    page.get_by_role("button", name="← All groups").filter(visible=True).click()
    return facts(page, wanted)


def answer_by_keyboard(page: Page, tmp_path: Path) -> set[str]:
    """Skip one question and answer one without a mouse; returns the names that are there afterwards."""
    page.get_by_role("tab", name="Questions", exact=True).focus()
    page.keyboard.press("Enter")
    told(page, "Question 1 of up to 10")
    page.screenshot(path=tmp_path / "5-question.png", full_page=True)
    alt = page.locator("#pc-question img").first.get_attribute("alt") or ""
    assert alt.endswith(".png")
    page.get_by_role("button", name="Skip").focus()
    page.keyboard.press("Enter")
    told(page, "Question 2 of up to 10")
    assert page.evaluate("document.activeElement.tagName") == "H3"
    page.keyboard.press("Tab")  # from the question to its first answer
    assert page.evaluate("document.activeElement.textContent").strip() == "Same"
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    told(page, "Question 3 of up to 10")
    told(page, "Thank you:")
    step(page, "Groups")
    expect(page.get_by_role("button", name="Undo: answer")).to_be_enabled()
    return {name for name in facts(page).values()}


def see_the_next_stage(page: Page, folder: Path, names: set[str], tmp_path: Path) -> None:
    give(page, folder)
    told(page, "They will be stage 2")
    press(page, "Find groups of the next stage")
    told(page, "What stage 2 changed")
    told(page, "12 images came in.")
    told(page, "from before kept their number and name.")
    page.screenshot(path=tmp_path / "6-changes.png", full_page=True)
    step(page, "Groups")
    told(page, "12 images in")
    seen = page.locator("#pc-cards").inner_text()
    assert all(name in seen for name in names)


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
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_it_fits_a_phone(browser, url: str, pictures: list[Path], tmp_path: Path, theme: str) -> None:
    page = browser.new_page(viewport={"width": 390, "height": 844})
    visit = watch(page)
    page.set_default_timeout(PATIENCE)

    def fits(name: str) -> None:
        page.screenshot(path=tmp_path / f"{name}.png", full_page=True)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, name

    try:
        page.goto(f"{url}?__theme={theme}")
        expect(page.locator("#pc-example-map svg")).to_be_visible(timeout=PATIENCE)
        fits("example")
        ink, paper = page.evaluate(INK_AND_PAPER)
        assert (ink > paper) == (theme == "dark")
        assert abs(ink - paper) > 400
        give(page, pictures[0])
        fits("report")
        press(page, "Find groups")
        told(page, "24 images in")
        page.get_by_role("button", name="More or fewer groups").click()
        told(page, "Estimate:")
        fits("groups")
        places = [card.bounding_box() for card in page.locator("#pc-cards .pc-card").all()[:2]]
        assert places[0]["y"] == places[1]["y"]  # a grid to scan, not a column
        open_group(page, page.locator("#pc-cards .pc-card").last)
        fits("group")
        step(page, "Questions")
        told(page, "Question 1 of")
        fits("question")
        step(page, "Take away")  # no step hides in a menu
        told(page, "What to take")
        fits("take away")
        assert [text for text in visit.complaints if text != GRADIOS_OWN] == []
        assert visit.foreign_requests == []
    finally:
        page.close()
