"""Every page is reached, every link leads somewhere, what is generated covers all there is, and sentences are plain."""

import ast
import json
import re
import statistics
from pathlib import Path

import pytest

from docs.building.commands import commands, commands_page, fields_page
from docs.building.drawings import drawn
from docs.building.reference import PACKAGES, api_pages, page_of
from promptccd.training.recipe import Recipe, field_types
from tests.docs.pages import DOCS, NOT_RUN, NOTEBOOKS, PAGES, ROOT, RUN_BY, TYPED, anchors, links, prose
from tests.test_contributing import all_commands

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
    for link in links(text):
        if re.match(r"[a-z]+:", link):
            assert re.fullmatch(r"https://[\w.-]+\.\w+(/[^\s<>\"]*)?", link), f"{page.name}: {link}"
            continue
        place, _, anchor = link.partition("#")
        target = (page.parent / place).resolve() if place else page
        assert target.exists(), f"{page.name}: {link}"
        assert target.is_relative_to(ROOT), f"{page.name}: {link}"
        if anchor and target.name != "commands.md":
            assert anchor in anchors(target), f"{page.name}: {link}"
        if anchor and target.name == "commands.md":
            assert anchor in all_commands(), f"{page.name}: {link}"


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
    assert set(re.findall(r"^## (\S+)$", page, re.MULTILINE)) == all_commands() == set(commands())
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
    said = " ".join(_strings(path) for path in (ROOT / "src/promptccd").rglob("*.py")).lower()
    headings = re.findall(r"^### `(.+)`$", prose(DOCS / "troubleshooting.md"), re.MULTILINE)
    assert len(headings) >= 12
    assert [heading for heading in headings if heading.lower() not in said] == []


def _strings(path: Path) -> str:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = [each.value for each in ast.walk(tree) if isinstance(each, ast.Constant)]
    return " ".join(each for each in found if isinstance(each, str))


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
