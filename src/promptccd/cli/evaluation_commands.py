"""``promptccd evaluate``."""

import argparse
import json
import re
from typing import Any

from promptccd.cli.command import command
from promptccd.cli.tables import comparison_table, score_table
from promptccd.evaluation import ContinualScore
from promptccd.runs import RunEvaluation

NEXT_STEPS = """
That was a tiny backbone on 8 x 8 digits. What to do next:
  promptccd predict {run}/stage3 FOLDER
      assign your own images to what was found
  promptccd train --config hub_configs/promptccd-cifar100.yaml
      facebook/dinov2-base on CIFAR-100 from the Hub; wants a GPU
  promptccd train --config hub_configs/promptccd-cifar100.yaml --dataset DATA --class_blocks 70 10 10 10
      the same on your data: a Hub id, or a folder with one sub-folder of images per category
"""


def add_commands(commands: Any) -> None:
    """Declare them."""
    evaluate = command(
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


def _without_seed(name: str) -> str:
    """Name of a run without ``-seed7``: runs that differ in their seed are averaged."""
    return re.sub(r"-seed\d+$", "", name)
