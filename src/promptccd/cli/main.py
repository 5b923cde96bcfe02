"""The command ``promptccd``."""

import argparse
import json
import logging
import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from transformers.utils import logging as transformers_logging

from promptccd.cli.recipe_options import add_recipe_options, recipe_from
from promptccd.cli.tables import (
    comparison_table,
    count_table,
    explanation_table,
    parameter_table,
    score_table,
)
from promptccd.errors import MismatchError, PromptCCDError
from promptccd.evaluation import ContinualScore
from promptccd.hub import fetch_stages, publish_stages, push_run, pusher, verify
from promptccd.runs import (
    RunDirectory,
    RunEvaluation,
    count_parameters,
    explain_image,
    load_model,
    load_view,
    predict_folder,
    stage_stream,
    train_run,
)

logger = logging.getLogger(__name__)

NEXT_STEPS = """
That was a tiny backbone on 8 x 8 digits. What to do next:
  promptccd predict {run}/stage3 FOLDER
      assign your own images to what was found
  promptccd train --config hub_configs/promptccd-cifar100.yaml
      facebook/dinov2-base on CIFAR-100 from the Hub; wants a GPU
  promptccd train --config hub_configs/promptccd-cifar100.yaml --dataset DATA --class_blocks 70 10 10 10
      the same on your data: a Hub id, or a folder with one sub-folder of images per category
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code, 0 when all went well."""
    parser = build_parser()
    options = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    _quieten_libraries()
    try:
        options.run(options)
    except PromptCCDError as error:
        if options.debug:
            raise
        print(f"promptccd: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def build_parser() -> argparse.ArgumentParser:
    """All commands and their options."""
    parser = argparse.ArgumentParser(
        prog="promptccd", description="Continual category discovery with prompt pools."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    train = _command(
        commands, "train", train_command, "train all stages of a recipe; a run that was begun goes on"
    )
    train.add_argument("--config", metavar="RECIPE", help="a YAML file, see hub_configs/")
    add_recipe_options(train)

    split = _command(
        commands, "split", split_command, "show the stages a recipe would train on; trains nothing"
    )
    split.add_argument("config", metavar="RECIPE", help="a YAML file, see hub_configs/")
    split.add_argument("--push", metavar="NS/NAME", help="publish the stages as a data set on the Hub")
    split.add_argument(
        "--ids-only", action="store_true", help="publish which image belongs where, not the images"
    )
    split.add_argument("--private", action="store_true", help="make a new data set private")
    add_recipe_options(split)

    evaluate = _command(
        commands, "evaluate", evaluate_command, "recompute a run's table from its saved stages"
    )
    evaluate.add_argument(
        "runs", metavar="RUN", nargs="+", help="output_dir of a training; several are averaged"
    )
    evaluate.add_argument(
        "--protocol", choices=["cacc", "gcd"], default="cacc", help="which reference labels are used"
    )
    evaluate.add_argument(
        "--baselines", action="store_true", help="also score raw pixels and the frozen backbone"
    )
    evaluate.add_argument("--dataset", help="where the data lies now, if it has moved")
    evaluate.add_argument("--num_workers", type=int, default=0, help="loader processes")
    evaluate.add_argument("--next-steps", action="store_true", help=argparse.SUPPRESS)

    parameters = _command(
        commands, "parameters", parameters_command, "count what a recipe's model learns, part by part"
    )
    parameters.add_argument("config", metavar="RECIPE", help="a YAML file, see hub_configs/")
    add_recipe_options(parameters)

    explain = _command(
        commands,
        "explain",
        explain_command,
        "show what a stage looked at in an image, and which prompts acted",
    )
    explain.add_argument("model", metavar="MODEL", help="folder or Hub id of a finished stage")
    explain.add_argument("image", metavar="IMAGE", help="an image file")
    explain.add_argument("--out", metavar="DIR", required=True, help="folder for the arrays and the overlay")

    predict = _command(
        commands, "predict", predict_command, "assign the images of a folder to a stage's categories"
    )
    predict.add_argument("model", metavar="MODEL", help="folder or Hub id of a finished stage")
    predict.add_argument("folder", metavar="FOLDER", help="folder of images, searched with its sub-folders")
    _add_hub_commands(commands)
    return parser


def _add_hub_commands(commands: Any) -> None:
    push = _command(commands, "push", push_command, "push a run's stages to the Hub, a repository each")
    push.add_argument("run_folder", metavar="RUN", help="output_dir of a training")
    push.add_argument("--namespace", help="user or organisation (default: who is logged in)")
    push.add_argument("--stage", type=int, help="one stage (default: all that are finished)")
    push.add_argument("--private", action="store_true", help="make new repositories private")
    push.add_argument("--dry-run", action="store_true", help="only say what would be sent")

    verify_ = _command(commands, "verify", verify_command, "recompute what a run or a repository claims")
    verify_.add_argument(
        "place", metavar="REPO_OR_RUN", help="output_dir of a training, a stage, or its repository"
    )
    verify_.add_argument("--quick", action="store_true", help="do not group the images anew")


def train_command(options: argparse.Namespace) -> None:
    """``promptccd train``."""
    recipe = recipe_from(options)
    training = recipe.training
    is_first = (
        os.environ.get("RANK", "0") == "0"
    )  # of the processes a launcher started; the others wait for it
    if training.resume_from is not None and is_first:
        fetch_stages(training.resume_from, RunDirectory(training.output_dir))
    push = pusher(training.hub_namespace, training.hub_private) if training.push_to_hub else None
    score = train_run(recipe, after_stage=push)
    _show(options, score.to_dict(), lambda: score_table(score))


def split_command(options: argparse.Namespace) -> None:
    """``promptccd split``."""
    recipe = recipe_from(options)
    stages = stage_stream(recipe.data, recipe.training.seed)
    if options.push:
        url = publish_stages(stages, options.push, ids_only=options.ids_only, private=options.private)
        logger.info("Published: %s", url)
    split = stages.split.to_dict()
    summary = {
        key: split[key] for key in ("fingerprint", "data_fingerprint", "seed", "class_blocks", "stages")
    }
    _show(options, summary, lambda: f"{count_table(stages.counts)}\nfingerprint {stages.split.fingerprint}")


def evaluate_command(options: argparse.Namespace) -> None:
    """``promptccd evaluate``: one run's table; with several runs or baselines, a comparison of averages too."""
    scores: dict[str, list[ContinualScore]] = {}
    baselines: dict[str, list[ContinualScore]] = {}
    routed: dict[str, list[ContinualScore]] = {}
    baselines_of: set[tuple[str, str]] = set()
    for path in options.runs:
        evaluation = RunEvaluation(path, options.dataset, options.num_workers)
        score = evaluation.evaluate(options.protocol)
        scores.setdefault(_without_seed(evaluation.run.path.resolve().name), []).append(score)
        if options.baselines:
            _add_baselines(evaluation, baselines, baselines_of)
        routing = evaluation.part_routing()
        if routing is not None:
            routed.setdefault(_without_seed(evaluation.run.path.resolve().name), []).append(routing)
        if not options.json:
            print(f"{path} ({options.protocol})\n{score_table(score)}\n", flush=True)
            if routing is not None:
                print(f"part routing, percent of patches\n{score_table(routing, 'parts')}\n", flush=True)
    scores |= baselines
    compared = len(options.runs) > 1 or options.baselines
    if options.json:
        plain = {
            kind: {name: [each.to_dict() for each in many] for name, many in named.items()}
            for kind, named in (("scores", scores), ("part_routing", routed))
        }
        if compared:
            print(json.dumps({**plain["scores"], "part_routing": plain["part_routing"]}, indent=1))
        else:
            only = {"part_routing": routing.to_dict()} if routing is not None else {}
            print(json.dumps({**score.to_dict(), **only}, indent=1))
    elif compared:
        print(comparison_table(scores))
    if options.next_steps:
        print(NEXT_STEPS.format(run=options.runs[0]))


def _add_baselines(
    evaluation: RunEvaluation, baselines: dict[str, list[ContinualScore]], done: set[tuple[str, str]]
) -> None:
    """Score what a run is held against, once per split and backbone (pixels: once per split)."""
    for name, key, score in (
        (f"frozen {evaluation.backbone_name}", evaluation.baseline_key, evaluation.frozen_backbone),
        ("raw pixels", (evaluation.baseline_key[0], "raw pixels"), evaluation.raw_pixels),
    ):
        if key not in done:
            done.add(key)
            baselines.setdefault(name, []).append(score())


def push_command(options: argparse.Namespace) -> None:
    """``promptccd push``."""
    pushed = push_run(
        RunDirectory(options.run_folder),
        namespace=options.namespace,
        stages=None if options.stage is None else [options.stage],
        private=options.private,
        dry_run=options.dry_run,
    )
    verb = "would send" if options.dry_run else "sent"

    def lines() -> str:
        return "\n".join(
            f"{stage.repo_id}: {verb} {len(stage.sent)} files, {stage.num_bytes / 1e6:.1f} MB"
            if stage.sent
            else f"{stage.repo_id}: all of it is there"
            for stage in pushed
        )

    _show(options, [asdict(stage) for stage in pushed], lines)


def verify_command(options: argparse.Namespace) -> None:
    """``promptccd verify``: exit code 1 if anything disagrees."""
    checks = verify(options.place, recompute=not options.quick)

    def lines() -> str:
        return "\n".join(f"{'MISMATCH' if check.problem else 'ok':8}  {check.what}" for check in checks)

    _show(options, [asdict(check) for check in checks], lines)
    wrong = [f"{check.what}: {check.problem}" for check in checks if check.problem]
    if wrong:
        raise MismatchError(f"{len(wrong)} of {len(checks)} checks disagree. {' | '.join(wrong)}")


def parameters_command(options: argparse.Namespace) -> None:
    """``promptccd parameters``."""
    counts = count_parameters(recipe_from(options))
    _show(options, [asdict(count) for count in counts], lambda: parameter_table(counts))


def explain_command(options: argparse.Namespace) -> None:
    """``promptccd explain``."""
    model = load_model(options.model)
    explanation = explain_image(model, load_view(options.model), options.image)
    paths = explanation.save(options.out)
    _show(options, explanation.to_dict(), lambda: explanation_table(explanation.to_dict()))
    logger.info("Written: %s", ", ".join(str(path) for path in paths))


def predict_command(options: argparse.Namespace) -> None:
    """``promptccd predict``."""
    found = predict_folder(load_model(options.model), options.model, options.folder)

    def lines() -> str:
        rows = [
            f"{item.file}\t{item.name}\t{'known' if item.known else 'new'}\t{item.confidence:.3f}"
            for item in found.predictions
        ]
        rows += [f"{file}\tskipped: {reason}" for file, reason in found.skipped.items()]
        return "\n".join(rows)

    _show(options, found.to_dict(), lines)
    counted = len(found.predictions), len(found.skipped)
    logger.info("%d files: %d assigned, %d skipped.", sum(counted), *counted)


def _command(
    commands: Any, name: str, run: Callable[[argparse.Namespace], None], text: str
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(name, help=text, description=text)
    parser.set_defaults(run=run)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    return parser


def _show(options: argparse.Namespace, value: Any, text: Callable[[], str]) -> None:
    print(json.dumps(value, indent=1) if options.json else text())


def _without_seed(name: str) -> str:
    """Name of a run without ``-seed7``: runs that differ in their seed are averaged."""
    return re.sub(r"-seed\d+$", "", name)


def _quieten_libraries() -> None:
    for name in ("transformers", "datasets", "huggingface_hub", "httpx", "httpx2", "fsspec"):
        logging.getLogger(name).setLevel(logging.ERROR)
    transformers_logging.disable_progress_bar()


if __name__ == "__main__":
    sys.exit(main())
