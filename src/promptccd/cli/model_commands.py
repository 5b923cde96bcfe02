"""``promptccd predict`` and ``explain``: a finished stage and images."""

import argparse
import logging
from typing import Any

from promptccd.cli.command import add_model_limit, command, show
from promptccd.cli.tables import explanation_table
from promptccd.runs import explain_image, load_model, load_view, predict_folder

logger = logging.getLogger(__name__)


def add_commands(commands: Any) -> None:
    """Declare them."""
    explain = command(
        commands,
        "explain",
        explain_command,
        "show what a stage looked at in an image, and which prompts acted",
    )
    explain.add_argument("model", metavar="MODEL", help="folder or Hub id of a finished stage")
    explain.add_argument("image", metavar="IMAGE", help="an image file")
    explain.add_argument("--out", metavar="DIR", required=True, help="folder for the arrays and the overlay")
    add_model_limit(explain)

    predict = command(
        commands, "predict", predict_command, "assign the images of a folder to a stage's categories"
    )
    predict.add_argument("model", metavar="MODEL", help="folder or Hub id of a finished stage")
    predict.add_argument("folder", metavar="FOLDER", help="folder of images, searched with its sub-folders")
    add_model_limit(predict)


def explain_command(options: argparse.Namespace) -> None:
    """``promptccd explain``."""
    model = load_model(options.model, options.max_model_bytes)
    explanation = explain_image(model, load_view(options.model), options.image)
    paths = explanation.save(options.out)
    show(options, explanation.to_dict(), lambda: explanation_table(explanation.to_dict()))
    logger.info("Written: %s", ", ".join(str(path) for path in paths))


def predict_command(options: argparse.Namespace) -> None:
    """``promptccd predict``."""
    found = predict_folder(load_model(options.model, options.max_model_bytes), options.model, options.folder)

    def lines() -> str:
        rows = [
            f"{item.file}\t{item.name}\t{'known' if item.known else 'new'}\t{item.confidence:.3f}"
            for item in found.predictions
        ]
        rows += [f"{file}\tskipped: {reason}" for file, reason in found.skipped.items()]
        return "\n".join(rows)

    show(options, found.to_dict(), lines)
    counted = len(found.predictions), len(found.skipped)
    logger.info("%d files: %d assigned, %d skipped.", sum(counted), *counted)
