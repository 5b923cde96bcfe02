"""A sweep as lines for a shell: any scheduler runs them, in any order and on any computer that has the folder."""

import logging
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import yaml

from promptccd.reports.sweep import tables_held
from promptccd.reports.sweep_cells import SweepCell, shared_recipe, states_of
from promptccd.storage import make_inside, refuse_links, remove_leftovers, write_file

logger = logging.getLogger(__name__)

RECIPES = ".cells"


def cell_commands(cells: Sequence[SweepCell], out: str | Path) -> list[str]:
    """One line for each cell that is not finished and that nobody is at work on; nothing is trained.

    A line can be run again at any time, and goes on where it ended. Relative folders are meant from where we are.

    Args:
        cells: from `plan_cells` for the same `out`.
        out: folder of the runs; recipes of the cells are written into its ``.cells``.

    Raises:
        RunError: a cell was begun with other settings, or a link lies in the way.
        DiskError: nothing can be written there.
    """
    states = states_of(cells)
    for name, state in states.items():
        if state.startswith("running"):
            logger.info("%s: %s, and has no line", name, state)
    # Only the training can tell whether all of a cell is on the Hub.
    todo = [
        cell
        for cell in cells
        if states[cell.name] in ("new", "begun")
        or (states[cell.name] == "finished" and cell.recipe.training.push_to_hub)
    ]
    program = ["promptccd"] if shutil.which("promptccd") else [sys.executable, "-m", "promptccd"]
    lines = []
    with tables_held(Path(out)):
        folder = make_inside(Path(out), RECIPES)
        refuse_links(folder, [f"{cell.name}.yaml" for cell in todo])
        remove_leftovers(folder)
        for cell in todo:
            recipe = shared_recipe(cell, cells, []) or cell.recipe
            path = folder / f"{cell.name}.yaml"
            write_file(path, yaml.safe_dump(recipe.to_dict(), sort_keys=False, allow_unicode=True))
            lines.append(shlex.join([*program, "train", "--config", str(path)]))
    return lines
