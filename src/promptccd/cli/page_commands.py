"""``promptccd open`` and ``demo``: pages that are served until Ctrl-C."""

import argparse
import contextlib
import gc
import logging
import os
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING

from promptccd import runs
from promptccd.cli.logs import hide_bars
from promptccd.cli.options import DECODING, Arguments, command, reading_of, whole_number
from promptccd.data.sources import FOLLOWED, OUTSIDE
from promptccd.discovery import page as pages
from promptccd.errors import ConfigurationError, RunError, nothing_at, one_line

if TYPE_CHECKING:
    from promptccd.discovery.page.server import ServingThread

logger = logging.getLogger(__name__)

BUNDLED_MODEL = "photographs"
_SUFFIX = "-groups"


_OPEN: Arguments = {
    "folder": dict(metavar="FOLDER", help="folder of photographs, or the --out of promptccd discover"),
    "--model": dict(default=BUNDLED_MODEL,
        help="model that finds the groups: a finished stage or a bare backbone, as a folder or Hub id (default: "
        f"{BUNDLED_MODEL}, the bundled backbone)"),
    "--out": dict(metavar="DIR", help=f"folder of the groups and corrections (default: FOLDER{_SUFFIX})"),
}  # fmt: skip
_DEMO: Arguments = {
    "model": dict(metavar="MODEL", nargs="?", default=BUNDLED_MODEL,
        help="finished stage or bare backbone, as a folder or Hub id (default: "
        f"{BUNDLED_MODEL}, the bundled backbone)"),
    "--host": dict(default="127.0.0.1",
        help="address to listen on; 0.0.0.0 for the whole network (default: 127.0.0.1)"),
    "--name": dict(action="append", default=[],
        help="further host name of the page, such as the name of a proxy; may be repeated"),
}  # fmt: skip
_SERVER: Arguments = {
    "--port": dict(type=whole_number(1, 65_535), help="port (default: the first free one from 7860)"),
    "--no-browser": dict(action="store_true", help="no new browser window"),
}


@command(("promptccd.discovery.page.server",), _OPEN, DECODING, _SERVER)
def open_command(options: argparse.Namespace) -> None:
    """``promptccd open``; ends with Ctrl-C."""
    from promptccd.discovery.project import has_registry
    from promptccd.disk import PROJECT

    folder = Path(os.path.expanduser(options.folder))
    is_project = has_registry(folder / PROJECT)
    out = folder if is_project else _place_beside(folder, options.out)
    if (url := pages.address_of(out)) is not None:
        print(f"{out} is open already: {url}", flush=True)
        if not options.no_browser:
            webbrowser.open(url)
        if not is_project:
            _find_groups(folder, out, options)
        return
    if not is_project:
        _find_groups(folder, out, options)
    # With millions of photographs the search for garbage among them is a third of the time that reading takes, and
    # delays corrections for seconds later.
    gc.disable()
    try:
        page = pages.OpenPage(out, options.port)
    except OSError as error:
        raise ConfigurationError(
            f"Cannot listen on port {options.port or 'any'}: {one_line(error)}. Give another --port."
        ) from error
    finally:
        gc.freeze()
        gc.enable()
    page.start()
    print(
        f"{out} is open at {page.url} - Ctrl-C ends it; every correction is kept as you make it.", flush=True
    )
    _serve(page, options, "Closed.")


def _place_beside(folder: Path, out: str | None) -> Path:
    """Place of the groups of a folder of photographs; refuses a folder without photographs."""
    if not folder.is_dir():
        missing = nothing_at(folder) if not folder.exists() else f"{str(folder)!r} is a file."
        raise ConfigurationError(
            f"{missing} Give a folder of photographs, or the --out of promptccd discover, which also takes archives."
        )
    if runs.RunDirectory(folder).begun or (folder / "config.json").exists():
        raise ConfigurationError(
            f"{str(folder)!r} is a model, not photographs: promptccd open PHOTOGRAPHS --model {folder} groups "
            "photographs with it (of a run, give its last stage)."
        )
    if out:
        return Path(os.path.expanduser(out))
    place = folder.resolve() if folder.name == ".." else folder.absolute()
    if not place.name:
        raise ConfigurationError(f"{str(folder)!r} has no folder next to it: give an --out for the groups.")
    return place.with_name(f"{place.name}{_SUFFIX}")


def _find_groups(folder: Path, out: Path, options: argparse.Namespace) -> None:
    # Imported here, because opening an existing project does not need it.
    from promptccd.discovery.discover import DiscoverySession, discover
    from promptccd.training.progress import StopRequest

    hide_bars()
    logger.info("Looking for groups in %s with %s; they are kept in %s.", folder, options.model, out)
    with StopRequest() as stop:
        session = DiscoverySession.open(options.model, **reading_of(options))
        found = discover(session, folder, out, stop=stop)
    logger.info(
        "Photographs: %d (%d without near-duplicates); groups: about %s.",
        found.report.used,
        found.distinct,
        found.estimate,
    )
    if found.report.rendering:
        logger.info("%s (--window sets another).", found.report.rendering.capitalize())
    if found.report.skipped:
        logger.info("Files that were skipped: %d; %s says why.", found.report.skipped, out / "discovery.html")
    if OUTSIDE in found.report.skipped_reasons:
        logger.info("%s: %d; %s.", OUTSIDE, found.report.skipped_reasons[OUTSIDE], FOLLOWED)


@command(("promptccd.discovery.discover",), _DEMO, _SERVER)
def demo_command(options: argparse.Namespace) -> None:
    """``promptccd demo``; ends with Ctrl-C."""
    from promptccd.models.checkpoint import find_model

    try:
        find_model(options.model)  # the first visit loads it
    except (OSError, ValueError) as error:
        raise RunError(
            f"Cannot load a model from {options.model!r}: {one_line(error)} `promptccd demo {BUNDLED_MODEL}` uses the "
            "bundled backbone."
        ) from error
    try:
        from promptccd.discovery.page.space import Site, Space  # gradio takes seconds to import
    except ModuleNotFoundError as error:
        if error.name != "gradio":
            raise
        raise ConfigurationError("The page needs gradio: pip install 'promptccd[space]'.") from error
    with contextlib.closing(Space(options.model)) as page:
        try:
            server = page.serve(Site.of_machine(options.host, options.name), options.host, options.port)
        except OSError as error:
            raise ConfigurationError(
                f"Cannot listen on {options.host}, port {options.port or 'any'}: {one_line(error)}. Give "
                "another --port or --host."
            ) from error
        print(f"The page is at {server.url} and works with {options.model}. Ctrl-C ends it.", flush=True)
        _serve(server, options, "The page is closed; what visitors left is deleted.")


def _serve(server: "ServingThread", options: argparse.Namespace, farewell: str) -> None:
    """Serve until Ctrl-C or SIGTERM; each releases the resources of the page."""
    if not options.no_browser:
        webbrowser.open(server.url)
    try:
        server.wait()
    except KeyboardInterrupt:
        print(farewell, flush=True)
    finally:
        server.close()
