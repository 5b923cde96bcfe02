"""The command ``promptccd``."""

import argparse
import logging
import sys
from collections.abc import Sequence

from transformers.utils import logging as transformers_logging

from promptccd.cli import (
    audit_commands,
    category_commands,
    demo_commands,
    discovery_commands,
    evaluation_commands,
    hub_commands,
    model_commands,
    report_commands,
    sweep_commands,
    training_commands,
)
from promptccd.errors import PromptCCDError

COMMANDS = (
    training_commands,
    sweep_commands,
    evaluation_commands,
    audit_commands,
    model_commands,
    discovery_commands,
    category_commands,
    demo_commands,
    hub_commands,
    report_commands,
)


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
    for group in COMMANDS:
        group.add_commands(commands)
    return parser


def _quieten_libraries() -> None:
    for name in ("transformers", "datasets", "huggingface_hub", "httpx", "httpx2", "fsspec"):
        logging.getLogger(name).setLevel(logging.ERROR)
    transformers_logging.disable_progress_bar()


if __name__ == "__main__":
    sys.exit(main())
