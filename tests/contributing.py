"""Sections of CONTRIBUTING.md and of pages of the docs, and the blocks of code in them."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent


def section(heading: str, name: str = "CONTRIBUTING.md") -> str:
    """The text under a heading of the second level."""
    text = (ROOT / name).read_text(encoding="utf-8")
    found = re.search(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert found, f"{name} has no section {heading!r}"
    return found[1]


def blocks(text: str, language: str = "") -> list[str]:
    """Blocks of code of a language, word by word."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
