"""Execute the notebooks of ``docs/notebooks`` in a folder of their own, and keep the outputs.

Run it with ``python -m docs.building.run_notebooks`` after a notebook was changed.
"""

import shutil
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

FOLDER = Path(__file__).parents[1] / "notebooks"
SECONDS = 240  # for one cell


def executed(path: Path, place: Path) -> NotebookNode:
    """The notebook with the outputs it gives today.

    Args:
        path: the notebook.
        place: an empty folder to run it in; its album is put beside it, as it is in the repository.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell failed.
    """
    shutil.copytree(FOLDER / "album", place / "album")
    notebook = nbformat.read(path, as_version=4)
    where = {"metadata": {"path": str(place)}}
    NotebookClient(notebook, timeout=SECONDS, coalesce_streams=True, resources=where).execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # times differ by machine and day
        if "outputs" in cell:  # progress bars and notes of libraries go to stderr
            cell.outputs = [each for each in cell.outputs if each.get("name") != "stderr"]
    notebook.metadata["language_info"] = {"name": "python"}  # without the version of whoever ran it
    return notebook


def main() -> None:
    """Write every notebook again, with its outputs."""
    for path in sorted(FOLDER.glob("*.ipynb")):
        with tempfile.TemporaryDirectory() as place:
            nbformat.write(executed(path, Path(place)), path)
        print(f"executed {path.name}")


if __name__ == "__main__":
    main()
