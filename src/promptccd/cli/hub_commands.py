"""``promptccd push`` and ``verify``."""

import argparse
from dataclasses import asdict
from typing import Any

from promptccd.cli.command import command, show
from promptccd.cli.parsing import whole_number
from promptccd.errors import MismatchError
from promptccd.hub import push_run, verify
from promptccd.runs import RunDirectory


def add_commands(commands: Any) -> None:
    """Declare them."""
    push = command(commands, "push", push_command, "push a run's stages to the Hub, a repository each")
    push.add_argument("run_folder", metavar="RUN", help="output_dir of a training")
    push.add_argument("--namespace", help="user or organisation (default: who is logged in)")
    push.add_argument("--stage", type=whole_number(0), help="one stage (default: all that are finished)")
    push.add_argument("--private", action="store_true", help="make new repositories private")
    push.add_argument("--dry-run", action="store_true", help="only say what would be sent")

    verify_ = command(commands, "verify", verify_command, "recompute what a run or a repository claims")
    verify_.add_argument(
        "place", metavar="REPO_OR_RUN", help="output_dir of a training, a stage, or its repository"
    )
    verify_.add_argument("--quick", action="store_true", help="do not group the images anew")


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
        ) + ("\n" + "\n".join(stage.listing for stage in pushed) if options.dry_run else "")

    show(options, [asdict(stage) for stage in pushed], lines)


def verify_command(options: argparse.Namespace) -> None:
    """``promptccd verify``: exit code 1 if anything disagrees."""
    checks = verify(options.place, recompute=not options.quick)

    def lines() -> str:
        return "\n".join(f"{'MISMATCH' if check.problem else 'ok':8}  {check.what}" for check in checks)

    show(options, [asdict(check) for check in checks], lines)
    wrong = [f"{check.what}: {check.problem}" for check in checks if check.problem]
    if wrong:
        raise MismatchError(f"{len(wrong)} of {len(checks)} checks disagree. {' | '.join(wrong)}")
