"""``promptccd demo``: the page of the Space on your own machine."""

import argparse
import signal
import webbrowser
from typing import Any

from promptccd.cli.command import command
from promptccd.cli.parsing import whole_number
from promptccd.data.limits import MIB
from promptccd.errors import ConfigurationError, RunError
from promptccd.models.loading import find_model
from promptccd.models.untrusted import one_line

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
    demo.add_argument(
        "--port", type=whole_number(1, 65_535), help="the first free one from 7860 on if not given"
    )
    demo.add_argument(
        "--name",
        action="append",
        default=[],
        help="a name that the page is asked for by, besides localhost and addresses, such as that of a proxy before it",
    )
    demo.add_argument(
        "--disk",
        type=whole_number(1, 2**40),
        default=4096,
        metavar="MIB",
        help="what all files of visitors may take together, in MiB; 4096 if not given",
    )
    demo.add_argument("--no-browser", action="store_true", help="open no browser")


def demo_command(options: argparse.Namespace) -> None:
    """``promptccd demo``; ends with Ctrl-C.

    Raises:
        ConfigurationError: gradio is not installed, or it cannot listen there.
        RunError: there is no such model.
    """
    try:
        from promptccd.app import PageLimits, Site, build_app
    except ModuleNotFoundError as error:
        if error.name != "gradio":
            raise
        raise ConfigurationError("The page needs gradio: pip install 'promptccd[space]'.") from error
    if options.disk < 1:
        raise ConfigurationError(f"Expected --disk of at least 1 MiB, got {options.disk}.")
    try:
        find_model(
            options.model
        )  # the model itself is loaded at the first visit; a mistake should not wait for it
    except (OSError, ValueError) as error:
        raise RunError(f"Cannot load a model from {options.model!r}: {one_line(error)}") from error
    page = build_app(options.model, page_limits=PageLimits(disk_bytes=options.disk * MIB))
    try:
        server = page.serve(Site.of_machine(options.host, options.name), options.host, options.port)
    except (OSError, OverflowError) as error:
        page.close()
        raise ConfigurationError(
            f"Cannot listen on {options.host}, port {options.port or 'any'}: {one_line(error)} Give "
            "another --port or --host."
        ) from error
    print(f"The page is at {server.url} and works with {options.model}. Ctrl-C ends it.", flush=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what visitors left is deleted then, too
    if not options.no_browser:
        webbrowser.open(server.url)
    try:
        server.wait()
    except KeyboardInterrupt:
        print("The page is closed; what visitors left is deleted.", flush=True)
    finally:
        server.close()
        page.close()
