"""What MkDocs asks while it builds the site: pages that are made from the package, and links that leave ``docs/``."""

import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

from docs.building.commands import commands_page, fields_page
from docs.building.notebooks import notebook_page
from docs.building.reference import PACKAGES, api_pages, api_table, page_of

ROOT = Path(__file__).parents[2]
FILLED = {"commands": commands_page, "recipe fields": fields_page, "api": api_table}
# Files beside docs/ that are pages of the site too; they have one home, and GitHub shows them there.
FROM_ROOT = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Hang the packages below the page that lists them."""
    below = ["api/README.md", *({name: page_of(name)} for name in PACKAGES)]
    [reference] = [section["Reference"] for section in config.nav or () if "Reference" in section]
    reference[reference.index({"API": "api/README.md"})] = {"API": below}
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that have no file in ``docs/``."""
    pages: dict[str, str | bytes] = {**api_pages()}
    for source, name in FROM_ROOT.items():
        pages[name] = (ROOT / source).read_text(encoding="utf-8")
    for path in sorted(Path(config.docs_dir).glob("notebooks/*.ipynb")):
        body, pictures = notebook_page(path)
        pages[f"notebooks/{path.stem}.md"] = body
        pages |= {f"notebooks/{name}": content for name, content in pictures.items()}
        pages[f"notebooks/{path.name}"] = path.read_bytes()
    for name, content in pages.items():
        if (known := files.get_file_from_path(name)) is not None:
            files.remove(known)
        files.append(File.generated(config, name, content=content, inclusion=InclusionLevel.INCLUDED))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Fill in what is generated, and lead links of the repository to pages of the site."""
    for name, filling in FILLED.items():
        before, marker, rest = markdown.partition(f"<!-- generated: {name} -->")
        if marker:
            markdown = before + filling() + rest.partition("<!-- end -->")[2]
    for source, name in FROM_ROOT.items():
        markdown = markdown.replace(f"(../{source}", f"({name}")
    if "/" not in page.file.src_uri:  # other files of the repository can be followed on GitHub alone
        markdown = re.sub(r"\[([^\]]+)\]\(\.\./[^)]*\)", r"`\1`", markdown)
    if page.file.src_uri in FROM_ROOT.values():
        markdown = markdown.replace("(docs/", "(")
        for source, name in FROM_ROOT.items():
            markdown = markdown.replace(f"({source}", f"({name}")
    return re.sub(r"\(([\w/]+)\.ipynb\)(?!\{)", r"(\1.md)", markdown)
