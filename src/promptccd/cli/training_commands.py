"""``promptccd train``, ``split``, ``parameters`` and ``recipes``."""

import argparse
import logging
from collections.abc import Sequence
from pathlib import Path

from promptccd import hub, runs
from promptccd.cli.options import Arguments, command, show
from promptccd.cli.recipe_options import add_what, recipe_from
from promptccd.cli.tables import count_table, parameter_table, score_table, stream_table
from promptccd.errors import ConfigurationError, did_you_mean, nothing_at
from promptccd.processes import is_first_process
from promptccd.training.recipe import names_recipe, recipes_in, shipped, summary_of

logger = logging.getLogger(__name__)

SHOWN = 12  # names of categories in a line


_SPLIT: Arguments = {
    "--push": dict(metavar="NS/NAME", help="data set of the Hub to publish the stages as"),
    "--public": dict(action="store_true", help="public visibility (default: private)"),
    "--dry-run": dict(action="store_true", help="list of what --push would send"),
}
_RECIPES: Arguments = {
    "word": dict(metavar="WORD", nargs="?",
        help="part of the names of the listed recipes (default: the methods and data sets)"),
}  # fmt: skip


@command(("promptccd.trainer",), add_what)
def train_command(options: argparse.Namespace) -> None:
    """``promptccd train``; only the first of several processes prints, except for errors."""
    from datasets.utils import disable_progress_bars as disable_bars_of_datasets
    from huggingface_hub.utils import disable_progress_bars

    from promptccd.trainer import train_recipe

    if not (first := is_first_process()):
        logging.getLogger("promptccd").setLevel(logging.ERROR)
        disable_progress_bars()
        disable_bars_of_datasets()
    recipe = recipe_from(options, needs_images=True)
    score = train_recipe(recipe)
    if not first:
        return
    if streams := runs.stream_rows(runs.RunDirectory(recipe.training.output_dir)):
        show(options, streams, lambda: stream_table(streams))
    else:
        show(options, score.to_dict(), lambda: score_table(score))


@command(("promptccd.runs.train", "promptccd.hub.stages"), _SPLIT, add_what)
def split_command(options: argparse.Namespace) -> None:
    """``promptccd split``."""
    recipe = recipe_from(options, needs_images=True)
    stages = runs.stage_stream(recipe.data, recipe.training.seed)
    if options.push:
        published = hub.publish_stages(stages, options.push, public=options.public, dry_run=options.dry_run)
        verb = "Published" if published.sent else "All of it is there already:"
        logger.info("%s %s.", "Would send" if options.dry_run else verb, published.listing)
    split, names, known = stages.split.to_dict(), stages.categories, stages.num_known
    shown = ("fingerprint", "data_fingerprint", "seed", "class_blocks", "stages")
    lines = [count_table(stages.counts), f"known: {_few(names[:known])}"]
    lines += [f"new:   {_few(names[known:])}"] * (known < len(names))
    lines.append(f"fingerprint {stages.split.fingerprint}")
    summary = {key: split[key] for key in shown} | {"categories": list(names)}
    show(options, summary, lambda: "\n".join(lines))


def _few(names: Sequence[str]) -> str:
    return ", ".join([*names[:SHOWN], *([f"... {names[-1]} ({len(names)})"] if len(names) > SHOWN else [])])


@command(("promptccd.runs.start",), add_what)
def parameters_command(options: argparse.Namespace) -> None:
    """``promptccd parameters``."""
    what = options.what
    if what is not None and not names_recipe(what) and not Path(what).expanduser().exists():
        raise ConfigurationError(f"{nothing_at(what)} `promptccd recipes` lists the recipes.")
    counts = runs.count_parameters(recipe_from(options))
    show(options, [count._asdict() for count in counts], lambda: parameter_table(counts))


@command((), _RECIPES)
def recipes_command(options: argparse.Namespace) -> None:
    """``promptccd recipes``: the recipes with a word in their name, or else the methods and data sets."""
    known = recipes_in(shipped())
    rows = [_row(name, *parts) for name, parts in known.items() if (options.word or "") in name]
    if not rows:
        hint = did_you_mean(options.word, known)
        raise ConfigurationError(
            f"No recipe is called {options.word!r}.{hint} `promptccd recipes` lists the recipes."
        )
    named = {row["name"]: f"{row['trains']} | {row['on']}" for row in rows}
    show(options, rows, lambda: "\n".join(_lines(named) if options.word else _parts(rows)))


def _row(name: str, method: Path, data: Path) -> dict[str, str]:
    texts = {"trains": summary_of(method), "on": summary_of(data)}
    return {"name": name, "method": method.stem, "data": data.stem, **texts}


def _parts(rows: Sequence[dict[str, str]]) -> list[str]:
    """Methods and data sets; every pair of them is a recipe."""
    methods = _lines({row["method"]: row["trains"] for row in rows})
    sets = _lines({row["data"]: row["on"] for row in rows})
    pairs = f"{len(rows)} recipes, a method and a data set each: such as `promptccd train --config promptccd-cub`."
    return ["methods", *methods, "", "data sets", *sets, "", pairs]


def _lines(texts: dict[str, str]) -> list[str]:
    width = max(map(len, texts))
    return [f"  {name:{width}}  {text}" for name, text in texts.items()]
