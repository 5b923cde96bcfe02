"""``promptccd recipes``."""

import argparse
import difflib
from collections.abc import Sequence
from pathlib import Path

from promptccd.cli.parsing import show
from promptccd.errors import ConfigurationError
from promptccd.training.recipe import parts_of, recipes_in
from promptccd.training.shipped_recipes import recipe_folder, said_of


def _declare_recipes(recipes: argparse.ArgumentParser) -> None:
    recipes.add_argument(
        "word",
        metavar="WORD",
        nargs="?",
        help="list those whose name has it; methods and data sets unless given",
    )
    recipes.set_defaults(run=recipes_command)


def recipes_command(options: argparse.Namespace) -> None:
    """``promptccd recipes``: every one of them with a word, or else what they are made of.

    Raises:
        ConfigurationError: no recipe has the word in its name.
    """
    folder = recipe_folder()
    paths = [path for path in recipes_in(folder) if (options.word or "") in path.stem]
    if not paths:
        names = [path.stem for path in recipes_in(folder)]
        close = difflib.get_close_matches(options.word, names, n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise ConfigurationError(
            f"No recipe is called {options.word!r}.{hint} `promptccd recipes` says which there are."
        )
    rows = [_row(path) for path in paths]
    show(options, rows, lambda: _each(rows) if options.word else _parts(rows))


def _row(path: Path) -> dict[str, str]:
    method, data = parts_of(path) or (path, path)
    begins = path.stem.removesuffix(f"-{data.stem}")
    return {
        "name": path.stem, "method": begins, "data": data.stem, "trains": said_of(method), "on": said_of(data),
    }  # fmt: skip


def _each(rows: Sequence[dict[str, str]]) -> str:
    return "\n".join(_lines({row["name"]: f"{row['trains']} | {row['on']}" for row in rows}))


def _parts(rows: Sequence[dict[str, str]]) -> str:
    """Methods and data sets, of which every pair is a recipe."""
    methods = _lines({row["method"]: row["trains"] for row in rows})
    sets = _lines({row["data"]: row["on"] for row in rows})
    pairs = f"{len(rows)} recipes, a method and a data set each: such as `promptccd train --config promptccd-cub`."
    return "\n".join(["methods", *methods, "", "data sets", *sets, "", pairs])


def _lines(said: dict[str, str]) -> list[str]:
    width = max(map(len, said))
    return [f"  {name:{width}}  {text}" for name, text in said.items()]


COMMANDS = {"recipes": _declare_recipes}
