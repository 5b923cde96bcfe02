"""Every page is reached, every link leads somewhere, and sentences are plain; the site, notebooks and commands run."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import shutil
import statistics
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

import pytest

from docs.building.commands import commands, commands_page, fields_page
from docs.building.drawings import drawn
from docs.building.reference import PACKAGES, api_pages, page_of
from promptccd.cli.main import COMMANDS, main
from promptccd.methods import METHODS
from promptccd.training.recipe import Recipe, field_types
from tests.browsing import Visit
from tests.conftest import coloured_images
from tests.docs.pages import DOCS, NOT_RUN, NOTEBOOKS, PAGES, ROOT, RUN_BY, TYPED, anchors, prose

if TYPE_CHECKING:
    from playwright.sync_api import Browser

FROM_ROOT = {"contributing.md", "changelog.md"}
MOST_LINES, MOST_WORDS = 200, 900
MOST_WORDS_IN_ALL = 20_000
LARGEST_NOTEBOOK = 300_000
MEDIAN_WORDS, MOST_WORDS_OF_NINE_IN_TEN = 14, 26

# Most occurrences per 1,000 words: about twice those in docs of setfit, sentence-transformers and lightly.
PATTERNS = {
    r"\b(those|ones|none|others|as many as|the rest)\b": 3.0,
    r"(^|[.;:] )(What|Who|Whoever|Whichever)\b(?![^.?]*\?)": 0.2,
    r"\bwhat (is|was|are|it|they|you|a|the|of|one|others|nobody|people)\b": 0.4,
    r"\b(is|are|was|were)( \w+)? (told|said|named|asked|contradicted|answered|spoken)\b": 0.6,
    r"(^|[.;] )Of (a|an|the|another|several|one|each|all)\b[^.]{0,80},": 0.2,
    r"\b(goes|went|going) on\b": 0.2,
    r"\b(comes?|taken?|brings?) along\b": 0.2,
    r"\b(stands?|lies|lie|stood|lay) (in|at|there|under|with|on|below|for)\b": 0.2,
    r"\bbesides?\b|\banew\b|\b(nobody|somebody|whoever)\b": 0.2,
    r"\bholds?\b|\bheld\b(?!_)": 0.2,
    r"\b(same|equal) bytes\b|\bto the byte\b": 0.2,
}


def test_every_page_is_in_the_navigation_once() -> None:
    pages = {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")} | FROM_ROOT
    pages -= {name for name in pages if name.startswith("lab/")}  # dated notes, reached by links
    pages |= {f"notebooks/{path.stem}.md" for path in NOTEBOOKS}
    _, navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").split("\nnav:\n")
    listed = re.findall(r": (\S+)$", navigation, re.MULTILINE)
    assert set(listed) == pages
    assert len(listed) == len(pages)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_to_files_and_headings(page: Path) -> None:
    check_links(prose(page), page)


def check_links(text: str, page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "", text)):
        if re.match(r"[a-z]+:", link):
            assert re.fullmatch(r"https://[\w.-]+\.\w+(/[^\s<>\"]*)?", link), f"{page.name}: {link}"
            continue
        place, _, anchor = link.partition("#")
        target = (page.parent / place).resolve() if place else page
        assert target.exists(), f"{page.name}: {link}"
        assert target.is_relative_to(ROOT), f"{page.name}: {link}"
        if anchor:
            known = commands() if target.name == "commands.md" else anchors(target)
            assert anchor in known, f"{page.name}: {link}"


def test_every_page_with_commands_or_code_is_run_or_says_why_not() -> None:
    readers = {path.relative_to(ROOT).as_posix() for path in PAGES if path.name != "CONTRIBUTING.md"}
    code = re.compile(r"^```(bash|python)$", re.MULTILINE)
    shown = {name for name in readers if "/lab/" not in name and code.search((ROOT / name).read_text())}
    assert shown == {*TYPED, *RUN_BY, *NOT_RUN}
    for page, test in RUN_BY.items():
        assert Path(page).name in (ROOT / test).read_text(encoding="utf-8")


def test_the_readme_is_short_and_has_its_picture_near_the_top() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= MOST_LINES
    assert len(text.split()) <= MOST_WORDS
    assert text.index("![") < 500


def test_pages_are_short_in_all() -> None:
    pages = [page for page in DOCS.rglob("*.md") if page.parent.name not in ("lab", "api")]
    assert sum(len(page.read_text(encoding="utf-8").split()) for page in pages) <= MOST_WORDS_IN_ALL


@pytest.mark.moderate
def test_commands_are_all_there_with_their_options() -> None:
    page = commands_page()
    every = {name for group in COMMANDS.values() for name in group}
    assert set(re.findall(r"^## (\S+)$", page, re.MULTILINE)) == every == set(commands())
    for name, parser in commands().items():
        section = re.search(rf"^## {name}$(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)[1]
        for action in parser._actions:
            own = "." not in action.dest and action.dest not in ("help", "json", "debug")
            if own and action.help != "==SUPPRESS==":
                assert all(f"`{flag}`" in section for flag in action.option_strings), (name, action.dest)
    assert "==SUPPRESS==" not in page


def test_recipe_fields_are_all_there_each_explained() -> None:
    page = fields_page()
    for section, kind in field_types(Recipe).items():
        assert f"## {section}\n" in page
        for name in field_types(kind):
            entry = re.search(rf'id="{section}-{name}"></span>.*default .*\n:   (.+)', page)
            assert entry, f"{section}.{name}"
            assert len(entry[1]) > 5, f"{section}.{name} has no help"
    assert "`--epochs`</span>" not in page
    assert re.search(r"`--seed` <small>`int`; default `\d+`</small>", page)


def test_the_api_names_what_packages_offer() -> None:
    pages = api_pages()
    assert set(pages) == {page_of(name) for name in PACKAGES}
    assert "::: promptccd.methods.promptccd.PromptCCDModel" in pages["api/promptccd.md"]
    assert "::: promptccd.data.stages.StageStream" in pages["api/data.md"]
    assert "::: promptccd.errors.ConfigurationError" in pages["api/errors.md"]
    folders = {f"promptccd.{path.parent.name}" for path in (ROOT / "src/promptccd").glob("*/__init__.py")}
    assert folders - set(PACKAGES) == {"promptccd.cli"}


@pytest.mark.slow
def test_messages_on_the_page_about_errors_are_those_of_the_program() -> None:
    """A heading in backticks is what people search for: words of a message, as the source has them."""
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in (ROOT / "src/promptccd").rglob("*.py")]
    constants = [each.value for tree in trees for each in ast.walk(tree) if isinstance(each, ast.Constant)]
    said = " ".join(each for each in constants if isinstance(each, str)).lower()
    headings = re.findall(r"^### `(.+)`$", prose(DOCS / "troubleshooting.md"), re.MULTILINE)
    assert len(headings) >= 12
    assert [heading for heading in headings if heading.lower() not in said] == []


def test_drawings_are_what_their_script_draws() -> None:
    """`python -m docs.building.drawings` writes them."""
    for name, svg in drawn().items():
        assert (DOCS / "pictures" / name).read_text(encoding="utf-8") == svg, name


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_are_small_have_outputs_and_name_no_machine(path: Path) -> None:
    content = path.read_text(encoding="utf-8")
    assert len(content) < LARGEST_NOTEBOOK
    assert not re.search(r"/(home|root|tmp|Users|work|opt|usr)/", content)
    cells = json.loads(content)["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    outputs = [output["output_type"] for cell in code for output in cell["outputs"]]
    assert {*outputs} <= {"stream", "execute_result", "display_data"}
    assert len(outputs) >= 5
    for cell in cells:
        if cell["cell_type"] == "markdown":
            check_links("".join(cell["source"]), path)


def sentences() -> list[str]:
    """Sentences of all pages, without tables, headings, pictures and targets of links."""
    found: list[str] = []
    for page in [*PAGES, ROOT / "CHANGELOG.md"]:
        text = re.sub(r"^(\||#|<!--|!\[).*$", "", prose(page), flags=re.MULTILINE)
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
        for paragraph in re.split(r"\n\s*\n|\n\s*[-*] |\n\s*\d+\. ", text):
            found += re.split(r"(?<=[.!?])\s+(?=[A-Z`*])", " ".join(paragraph.split()))
    return [each for each in found if len(each.split()) > 2]


def test_sentences_are_short() -> None:
    lengths = sorted(len(each.split()) for each in sentences())
    assert statistics.median(lengths) <= MEDIAN_WORDS
    assert lengths[int(0.9 * len(lengths))] <= MOST_WORDS_OF_NINE_IN_TEN


@pytest.mark.parametrize("pattern", PATTERNS)
def test_patterns_are_rare(pattern: str) -> None:
    found = [each for each in sentences() if re.search(pattern, each)]
    words = sum(len(each.split()) for each in sentences())
    assert 1000 * len(found) / words <= PATTERNS[pattern], found


# The site as it is built and read, the notebooks as they are run, and the first page as it is typed


# Every attempt to reach anybody is written down, by the interpreter itself.
AUDITED = """
import runpy, sys
sys.addaudithook(lambda event, args: event in ("socket.connect", "socket.getaddrinfo") and print("NETWORK", args))
sys.argv = ["mkdocs", "build", "--strict", "--site-dir", sys.argv[1]]
runpy.run_module("mkdocs", run_name="__main__")
"""
ALBUM = DOCS / "notebooks" / "album"
SIZES = [pytest.param(1280, 900, id="desktop"), pytest.param(390, 844, id="phone")]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `make docs` builds: without a warning, and without a word to anybody."""
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-c", AUDITED, folder],
        cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "NETWORK" not in done.stdout
    assert "WARNING" not in done.stderr
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(("width", "height"), SIZES)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_ask_nobody_complain_of_nothing_and_fit(
    site: Path, browser: Browser, width: int, height: int, scheme: str
) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 30
    page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
    visit = Visit(page)
    for path in pages:
        if path.name == "404.html":  # its addresses are those of a site at the root of its host
            continue
        page.goto(path.as_uri())
        assert visit.complaints == [], path.name
        assert visit.foreign_requests == [], path.name
        broken = "[...document.images].filter(each => !each.naturalWidth).map(each => each.src)"
        assert page.evaluate(broken) == [], path.name
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), path.name
    page.close()


@pytest.mark.slow
def test_search_answers_in_pages_that_are_opened_as_files(site: Path, browser: Browser) -> None:
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto((site / "index.html").as_uri())
    page.locator("input.md-search__input").click()
    page.locator("input.md-search__input").type("replay samples")
    page.locator(".md-search-result__item").first.wait_for()
    assert page.locator(".md-search-result__item").count() > 1
    page.close()


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_run_as_they_stand(path: Path, tmp_path: Path) -> None:
    """No cell fails, and each answers in kind what is kept with it."""
    import nbformat

    from docs.building.run_notebooks import executed  # its client takes half a second to import

    kept = nbformat.read(path, as_version=4)
    ran = executed(path, tmp_path)
    for before, after in zip(kept.cells, ran.cells, strict=True):
        kinds = [[each.output_type for each in cell.get("outputs", ())] for cell in (before, after)]
        assert kinds[0] == kinds[1], before.source


def lay_out(here: Path) -> None:
    """Folders that the pages name: photographs as one folder, as weeks, and as labelled categories."""
    for name in ("photos", "my_photos", "new_photos"):
        shutil.copytree(ALBUM, here / name)
    for path in sorted(ALBUM.rglob("*.jpg")):
        number = sorted(path.parent.iterdir()).index(path)
        is_labelled = number < 3 and path.parent.name != "sunflower"
        place = here / (f"labelled/{path.parent.name}" if is_labelled else f"week0{number % 4 + 1}")
        place.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, place / f"{path.parent.name}-{path.name}")
    for name in ("one.png", "two.png"):
        shutil.copy(ALBUM / "bonsai/photo-01.jpg", here / name)
    for number, path in zip(("0042", "7", "8"), sorted((here / "photos/bonsai").iterdir()), strict=False):
        path.rename(here / f"photos/IMG_{number}.jpg")
    validated = [f"{path.relative_to(here)},{path.name.partition('-')[0]}" for path in here.glob("week01/*")]
    (here / "validated.csv").write_text("\n".join(["path,label", *validated]))


def lay_out_own_images(here: Path) -> None:
    """Folders of docs/own_images.md: twenty categories of plain colours, three of them labelled and in weeks."""
    for name in ("my_photos", "labelled", *(f"week0{week}" for week in range(1, 5))):
        shutil.rmtree(here / name, ignore_errors=True)
    for number, record in enumerate(coloured_images(20, 40)):
        kind, place = f"kind {record['label']:02d}", number // 20
        home = f"labelled/{kind}" if place < 16 and record["label"] < 3 else f"week0{place % 4 + 1}"
        for folder in [f"my_photos/{kind}"] * (place < 6) + [home] * (record["label"] < 4):
            (here / folder).mkdir(parents=True, exist_ok=True)
            record["image"].save(here / folder / f"{number}.png")
    first = next((here / "week01").iterdir())
    (here / "validated.csv").write_text(f"path,label\nweek01/{first.name},moth\n")


# A folder of plain colours learns as well in one epoch, and tests/runs/test_sweep.py trains the sweep.
SOONER = "--epochs 1 --kmeans_restarts 1 --projection_output_size 64 --projection_hidden_size 32"


def quicker(page: Path, words: list[str]) -> list[str]:
    """Options that shorten a command of a page."""
    if page.stem == "own_images":
        is_new = words[0] == "train" and not words[1].startswith("runs/")
        return ["--dry-run"] if words[0] == "sweep" else SOONER.split() if is_new else []
    if words[0] != "train" or "--epochs" in words:
        return []
    is_new = Path(words[1]).name in ("labelled", "my_photos")
    return ["--epochs", "1", *(["--backbone", "photographs"] if is_new else [])]


@pytest.mark.slow
@pytest.mark.parametrize("page", [ROOT / name for name in TYPED], ids=lambda page: page.stem)
def test_commands_and_code_of_a_page_run(page: Path, tmp_path: Path, monkeypatch, capsys, caplog) -> None:
    """In their order, where every folder that they name is there; lines of outputs are as shown."""
    monkeypatch.chdir(tmp_path)
    lay_out(tmp_path)
    if page.stem == "own_images":
        lay_out_own_images(tmp_path)
    caplog.set_level("INFO")
    text, names = page.read_text(encoding="utf-8"), dict[str, object]()
    if page.name not in ("README.md", "start.md", "own_images.md", "python.md"):
        for out in ("groups/", "photos-groups/"):
            count = [] if page.name == "number_of_groups.md" else ["--num_categories", "6"]
            assert main(["discover", "photographs", "photos/", "--out", out, *count]) == 0
    if page.name == "protocols.md":
        train = ["train", "my_photos/", "--class_blocks", "2", "1", "1", "--backbone", "photographs"]
        assert main([*train, "--epochs", "1"]) == 0
    for language, block in re.findall(r"^```(bash|python|text)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        if language == "python":
            with mock.patch.dict(METHODS):
                exec(compile(block, page.name, "exec"), names)
        elif language == "text":
            printed = capsys.readouterr().out + caplog.text
            shown = [line for line in block.splitlines() if re.match(r"\w+: |\w+/\w+: |categories, ", line)]
            assert [line for line in shown if line not in printed] == []
        for line in block.replace("\\\n", " ").splitlines() if language == "bash" else ():
            command, *words = shlex.split(line, comments=True) or [""]
            # The page has tests of its own, and the model of a benchmark takes hours.
            if command == "promptccd" and words[0] != "open" and "promptccd-cub" not in line:
                assert main([*words, *quicker(page, words)]) == 0, line
    assert all(Path(name).exists() for name in re.findall(r"[Oo]pen `([\w/.]+)`", text))
