"""Hooks of MkDocs: pages that are generated from the package, and links that leave ``docs/``."""

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

from docs.building.commands import commands_page, fields_page
from docs.building.keys import keys_table
from docs.building.notebooks import notebook_page
from docs.building.reference import PACKAGES, api_pages, api_table, page_of

ROOT = Path(__file__).parents[2]
FILLED = {"commands": commands_page, "recipe fields": fields_page, "api": api_table, "keys": keys_table}
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)\s:#]+)(#[^)\s]*)?\)")
# Files outside docs/ that are pages of the site too.
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
    """Fill in generated parts, and point links to files of the repository at pages of the site."""
    for name, filling in FILLED.items():
        before, marker, rest = markdown.partition(f"<!-- generated: {name} -->")
        if marker:
            markdown = before + filling() + rest.partition("<!-- end -->")[2]
    place = page.file.src_uri
    written = next((f"../{source}" for source, name in FROM_ROOT.items() if name == place), place)
    markdown = LINK.sub(lambda link: _in_site(link, written, place), markdown)
    return re.sub(r"\(([\w/]+)\.ipynb\)(?!\{)", r"(\1.md)", markdown)


def _in_site(link: re.Match[str], written: str, place: str) -> str:
    """A link of a file that is shown at a place of the site; files that the site lacks become code."""
    text, target, anchor = link.groups()
    reached = posixpath.normpath(posixpath.join(posixpath.dirname(written), target))
    if not reached.startswith("../") and not written.startswith("../"):
        return link[0]
    reached = reached.removeprefix("../docs/")
    reached = FROM_ROOT.get(reached.removeprefix("../"), reached)
    if reached.startswith("../"):
        return f"`{text}`"
    return f"[{text}]({posixpath.relpath(reached, posixpath.dirname(place) or '.')}{anchor or ''})"
