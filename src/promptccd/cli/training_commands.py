"""``promptccd train``, ``split`` and ``parameters``."""

import argparse
import logging
from dataclasses import asdict

from promptccd.cli.parsing import show
from promptccd.cli.recipe_options import add_what, recipe_from
from promptccd.cli.tables import count_table, parameter_table, score_table
from promptccd.data import StageStream
from promptccd.errors import ConfigurationError
from promptccd.hub import publish_stages
from promptccd.runs import count_parameters, stage_stream
from promptccd.trainer import train_recipe

logger = logging.getLogger(__name__)


def _declare_train(train: argparse.ArgumentParser) -> None:
    add_what(train)
    train.set_defaults(run=train_command)


def _declare_split(split: argparse.ArgumentParser) -> None:
    split.add_argument("--push", metavar="NS/NAME", help="publish the stages as a data set on the Hub")
    split.add_argument(
        "--ids-only", action="store_true", help="publish which image belongs where, not the images"
    )
    split.add_argument(
        "--public", action="store_true", help="let everybody see the data set (default: only you)"
    )
    split.add_argument("--private", action="store_true", help="only you can see it, as by default")
    split.add_argument("--dry-run", action="store_true", help="only say what --push would send")
    add_what(split)
    split.set_defaults(run=split_command)


def _declare_parameters(parameters: argparse.ArgumentParser) -> None:
    add_what(parameters)
    parameters.set_defaults(run=parameters_command)


def train_command(options: argparse.Namespace) -> None:
    """``promptccd train``."""
    score = train_recipe(recipe_from(options))
    show(options, score.to_dict(), lambda: score_table(score))


def split_command(options: argparse.Namespace) -> None:
    """``promptccd split``."""
    recipe = recipe_from(options)
    stages = stage_stream(recipe.data, recipe.training.seed)
    if options.push:
        if options.public and options.private:
            raise ConfigurationError("--public and --private were both given: give one of them.")
        _publish(options, stages)
    split = stages.split.to_dict()
    summary = {
        key: split[key] for key in ("fingerprint", "data_fingerprint", "seed", "class_blocks", "stages")
    }
    show(options, summary, lambda: f"{count_table(stages.counts)}\nfingerprint {stages.split.fingerprint}")


def _publish(options: argparse.Namespace, stages: StageStream) -> None:
    published = publish_stages(
        stages, options.push, ids_only=options.ids_only, public=options.public, dry_run=options.dry_run
    )
    verb = "Would send" if options.dry_run else "Published"
    logger.info("%s %s.", verb if published.sent else "All of it is there already:", published.listing)


def parameters_command(options: argparse.Namespace) -> None:
    """``promptccd parameters``."""
    counts = count_parameters(recipe_from(options))
    show(options, [asdict(count) for count in counts], lambda: parameter_table(counts))


COMMANDS = {"train": _declare_train, "split": _declare_split, "parameters": _declare_parameters}
