"""The pages of the docs as files: their sections and blocks of code, and the anchors of their headings."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
NOTEBOOKS = sorted((DOCS / "notebooks").glob("*.ipynb"))


def prose(path: Path) -> str:
    """A page without its blocks of code, in which nothing is a link or a heading."""
    return re.sub(r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def section(heading: str, name: str = "CONTRIBUTING.md") -> str:
    """The text under a heading of the second level."""
    text = (ROOT / name).read_text(encoding="utf-8")
    found = re.search(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert found, f"{name} has no section {heading!r}"
    return found[1]


def blocks(text: str, language: str = "") -> list[str]:
    """Blocks of code of a language, word by word."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def anchors(path: Path) -> set[str]:
    """What GitHub, and the site, call the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", prose(path), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


# Pages whose commands and code tests/docs/test_pages.py runs, those that another test runs, and why others are not run.
TYPED = [f"docs/{name}.md" for name in ("own_images", "photos", "protocols", "python", "start")]
TYPED += [f"docs/how_to/{name}.md" for name in ("add_a_week", "correct_groups", "estimators", "export")]
TYPED += [
    "README.md",
    *(f"docs/how_to/{name}.md" for name in ("measure_groups", "number_of_groups", "resume")),
]
RUN_BY = {
    "docs/how_to/add_a_method.md": "tests/test_own_method.py",
    "docs/how_to/transformers.md": "tests/models/test_tools.py",
}
NOT_RUN = {  # commands of these pages are parsed by tests/cli/test_mistakes.py
    "docs/how_to/backbone.md": "needs backbones of the Hub",
    "docs/how_to/cluster.md": "needs Slurm or Ray",
    "docs/how_to/compare_methods.md": "needs the benchmarks of the paper",
    "docs/how_to/given_features.md": "needs a backbone of the Hub and features of your own",
    "docs/how_to/gpus.md": "needs several GPUs",
    "docs/how_to/serve_the_page.md": "serves until it is stopped, and pushes to the Hub",
    "docs/how_to/share_a_model.md": "needs the Hub",
    "docs/method.md": "pseudocode",
    "docs/models.md": "needs an address of an image and a backbone of the Hub",
    "docs/versions.md": "installs packages",
}
