"""``promptccd predict``, ``explain``, ``push``, ``space`` and ``verify``."""

import argparse
import logging
from dataclasses import asdict

from promptccd import hub, runs
from promptccd.cli.options import (
    DECODING,
    DEVICE,
    MODEL_LIMIT,
    PLUGIN,
    Arguments,
    command,
    reading_of,
    show,
    whole_number,
)
from promptccd.cli.tables import explanation_table
from promptccd.data.names import display_name
from promptccd.data.sources import FOLLOWED, OUTSIDE
from promptccd.errors import MismatchError

logger = logging.getLogger(__name__)


_MODEL: Arguments = {
    "model": dict(metavar="MODEL", help="folder or Hub id of a finished stage; of a run, its last stage")
}
_EXPLAIN: Arguments = {
    "image": dict(metavar="IMAGE", help="an image file"),
    "--out": dict(metavar="DIR", required=True, help="folder of the arrays and the overlay"),
}
_PREDICT: Arguments = {
    "folder": dict(metavar="FOLDER", help="folder of images, searched with its sub-folders; or one image"),
    "--top_k": dict(metavar="N", type=whole_number(1),
        help="number of the most likely categories listed per image (default: 1)"),
}  # fmt: skip
_PUSH: Arguments = {
    "run_folder": dict(metavar="RUN", help="output_dir of a training"),
    "--namespace": dict(help="user or organisation (default: the logged-in user)"),
    "--stage": dict(type=whole_number(0), help="number of a stage (default: all finished stages)"),
    "--private": dict(action="store_true", help="private visibility of new repositories"),
    "--dry-run": dict(action="store_true", help="list of what would be sent; nothing is sent"),
}
_SPACE: Arguments = {
    "action": dict(choices=["push"], metavar="push", help="the only action: create or update the Space"),
    "repo": dict(metavar="REPO", help="name of the Space, with or without a namespace"),
    "--model": dict(metavar="CHECKPOINT", required=True,
        help="model that groups the images: a finished stage or DINO backbone on the Hub, with @REVISION for a commit "
        "(default: the newest); or photographs, the bundled backbone"),
    "--private": dict(action="store_true", help="private visibility"),
    "--dry-run": dict(action="store_true", help="list of what would be sent; nothing is sent"),
}  # fmt: skip
_VERIFY: Arguments = {
    "place": dict(metavar="REPO_OR_RUN",
        help="output_dir of a training, a stage, or a repository, by NAME, NAME@REVISION or address"),
    "--quick": dict(action="store_true", help="checks without grouping the images again"),
    "--dataset": dict(help="place of the data, if it was moved (default: as recorded)"),
}  # fmt: skip


@command(("promptccd.runs.predict",), _MODEL, _EXPLAIN, DEVICE, PLUGIN, MODEL_LIMIT)
def explain_command(options: argparse.Namespace) -> None:
    """``promptccd explain``."""
    from promptccd.training.devices import device_named

    device, place = device_named(options.device), runs.stage_of(options.model)
    model = runs.load_model(place, options.max_model_bytes)
    view = runs.load_view(model.source or place)
    explanation = runs.explain_image(model.to(device), view, options.image)
    paths = explanation.save(options.out)
    show(options, explanation.to_dict(), lambda: explanation_table(explanation.to_dict()))
    logger.info("Written: %s", ", ".join(str(path) for path in paths))


@command(("promptccd.runs.predict",), _MODEL, _PREDICT, DEVICE, PLUGIN, DECODING, MODEL_LIMIT)
def predict_command(options: argparse.Namespace) -> None:
    """``promptccd predict``."""
    from promptccd.training.devices import device_named

    device, place = device_named(options.device), runs.stage_of(options.model)
    model = runs.load_model(place, options.max_model_bytes).to(device)
    reading = reading_of(options)
    max_pixels = reading.pop("limits").max_pixels
    found = runs.predict_folder(
        model, place, options.folder, top_k=options.top_k, max_pixels=max_pixels, **reading
    )

    def kind(item: runs.Prediction, category: runs.Prediction | runs.Candidate) -> str:
        return "none of these?" if item.novel else "known" if category.known else "new"

    def lines() -> str:
        rows = [
            f"{display_name(item.file)}\t{each.name}\t{kind(item, each)}\t{each.confidence:.3f}"
            for item in found.predictions
            for each in item.best or (item,)
        ]
        rows += [f"{display_name(file)}\tskipped: {reason}" for file, reason in found.skipped.items()]
        return "\n".join(rows)

    show(options, found.to_dict(), lines)
    counted = len(found.predictions), len(found.skipped)
    remedy = f"; {FOLLOWED}" * (OUTSIDE in found.skipped.values())
    logger.info("Files: %d, %d assigned, %d skipped%s.", sum(counted), *counted, remedy)


@command(("promptccd.hub.push",), _PUSH, PLUGIN)
def push_command(options: argparse.Namespace) -> None:
    """``promptccd push``."""
    pushed = hub.push_run(
        runs.RunDirectory(options.run_folder),
        namespace=options.namespace,
        stages=None if options.stage is None else [options.stage],
        private=options.private,
        dry_run=options.dry_run,
    )
    show(
        options, [asdict(each) for each in pushed], lambda: "\n".join(_sent(each, options) for each in pushed)
    )


def _sent(pushed: "hub.PushedRepository", options: argparse.Namespace) -> str:
    """Files that went to a repository, or would."""
    if options.dry_run:
        return f"would send {pushed.listing}"
    return f"sent {pushed.listing}" if pushed.sent else f"{pushed.repo_id}: all of it is there"


@command(("promptccd.hub.space",), _SPACE, PLUGIN)
def space_command(options: argparse.Namespace) -> None:
    """``promptccd space``."""
    pushed = hub.push_space(options.repo, options.model, private=options.private, dry_run=options.dry_run)
    show(options, asdict(pushed), lambda: f"{_sent(pushed, options)}\n{pushed.url}")


@command(("promptccd.hub.verify",), _VERIFY, PLUGIN)
def verify_command(options: argparse.Namespace) -> None:
    """``promptccd verify``: exit code 1 if anything disagrees."""
    checks = hub.verify(options.place, recompute=not options.quick, dataset=options.dataset)

    def lines() -> str:
        return "\n".join(f"{'MISMATCH' if check.problem else 'ok':8}  {check.what}" for check in checks)

    show(options, [asdict(check) for check in checks], lines)
    wrong = [f"{check.what}: {check.problem}" for check in checks if check.problem]
    if wrong:
        raise MismatchError(f"{len(wrong)} of {len(checks)} checks disagree. {' | '.join(wrong)}")
