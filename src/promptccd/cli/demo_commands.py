"""``promptccd demo``: the page of the Space on your own machine."""

import argparse
import signal
from typing import Any

from promptccd.cli.command import command
from promptccd.errors import ConfigurationError, RunError
from promptccd.models.loading import find_model

DEFAULT_MODEL = "facebook/dinov2-small"


def add_commands(commands: Any) -> None:
    """Declare it."""
    demo = command(commands, "demo", demo_command, "the page for people: group your images in the browser")
    demo.add_argument(
        "model",
        metavar="MODEL",
        nargs="?",
        default=DEFAULT_MODEL,
        help=f"a finished stage or a bare backbone: folder or Hub id; {DEFAULT_MODEL} if not given",
    )
    demo.add_argument(
        "--host", default="127.0.0.1", help="address to listen on; 0.0.0.0 lets the whole network in"
    )
    demo.add_argument("--port", type=int, help="the first free one from 7860 on if not given")
    demo.add_argument("--no-browser", action="store_true", help="open no browser")


def demo_command(options: argparse.Namespace) -> None:
    """``promptccd demo``; ends with Ctrl-C.

    Raises:
        ConfigurationError: gradio is not installed, or it cannot listen there.
        RunError: there is no such model.
    """
    try:
        from promptccd.app import LAUNCH, build_app
    except ModuleNotFoundError as error:
        if error.name != "gradio":
            raise
        raise ConfigurationError("The page needs gradio: pip install 'promptccd[space]'.") from error
    app = build_app(options.model)
    try:
        find_model(
            options.model
        )  # the model itself is loaded at the first visit; a mistake should not wait for it
    except OSError as error:
        raise RunError(f"Cannot load a model from {options.model!r}: {str(error).splitlines()[0]}") from error
    served = {"server_name": options.host, "server_port": options.port, "inbrowser": not options.no_browser}
    try:
        _, address, _ = app.launch(**LAUNCH | served, prevent_thread_lock=True, quiet=True)
    except (OSError, OverflowError) as error:
        raise ConfigurationError(
            f"Cannot listen on {options.host}, port {options.port or 'any'}: {str(error).splitlines()[0]} Give "
            "another --port or --host."
        ) from error
    print(f"The page is at {address} and works with {options.model}. Ctrl-C ends it.", flush=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what visitors left is deleted then, too
    app.block_thread()
