"""Notebooks as pages: text, code and the outputs that were saved with them; nothing is executed here."""

from pathlib import Path

import nbformat
from nbconvert import MarkdownExporter


def notebook_page(path: Path) -> tuple[str, dict[str, bytes]]:
    """A page and the pictures it shows.

    Args:
        path: a notebook with its outputs.

    Returns:
        Markdown, and the content of its pictures by name.
    """
    notebook = nbformat.read(path, as_version=4)
    body, resources = MarkdownExporter().from_notebook_node(
        notebook, resources={"unique_key": path.stem, "output_files_dir": f"{path.stem}_files"}
    )
    download = f"[Download this notebook]({path.name}){{ download }}"
    title, _, rest = body.strip().partition("\n")
    return f"{title}\n\n{download}\n{rest}", resources["outputs"]
