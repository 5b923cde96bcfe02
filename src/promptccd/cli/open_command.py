"""``promptccd open``."""

import argparse
import logging
import signal
import webbrowser
from pathlib import Path

from promptccd import runs
from promptccd.cli.parsing import whole_number
from promptccd.discovery import workbench
from promptccd.errors import ConfigurationError
from promptccd.models.untrusted import one_line

logger = logging.getLogger(__name__)

COMES_ALONG = "photographs"
_BESIDE = "-groups"


def _declare_open(opened: argparse.ArgumentParser) -> None:
    opened.add_argument("folder", metavar="FOLDER", help="photographs, or the --out of promptccd discover")
    opened.add_argument(
        "--model",
        default=COMES_ALONG,
        help=f"finds the groups of photographs: a finished stage or a bare backbone; {COMES_ALONG}, which comes along "
        "and needs no network, if not given",
    )
    opened.add_argument(
        "--out", metavar="DIR", help=f"where groups and corrections are kept; FOLDER{_BESIDE} if not given"
    )
    opened.add_argument(
        "--port", type=whole_number(1, 65_535), help="the first free one from 7860 on if not given"
    )
    opened.add_argument("--no-browser", action="store_true", help="open no browser")
    opened.set_defaults(run=open_command, needs=("promptccd.discovery.workbench.serving",))


def open_command(options: argparse.Namespace) -> None:
    """``promptccd open``; ends with Ctrl-C.

    Raises:
        ConfigurationError: the folder holds nothing that can be opened, or it cannot listen there.
    """
    from promptccd.discovery.project import PROJECT
    from promptccd.registry import has_registry

    folder = Path(options.folder).expanduser()
    is_project = has_registry(folder / PROJECT)
    out = folder if is_project else _place_beside(folder, options.out)
    if (url := workbench.address_of(out)) is not None:
        print(f"{out} is open already: {url}", flush=True)
        _show(url, options)
        return
    if not is_project:
        _find_groups(folder, out, options.model)
    try:
        page = workbench.OpenPage(out, options.port)
    except (OSError, OverflowError) as error:
        raise ConfigurationError(
            f"Cannot listen on port {options.port or 'any'}: {one_line(error)} Give another --port."
        ) from error
    page.start()
    print(
        f"{out} is open at {page.url} - Ctrl-C ends it; every correction is kept as you make it.", flush=True
    )
    _serve(page, options)


def _place_beside(folder: Path, out: str | None) -> Path:
    """Where the groups of a folder of photographs are kept.

    Raises:
        ConfigurationError: it is no folder of photographs.
    """
    if not folder.is_dir():
        raise ConfigurationError(
            f"There is no folder {str(folder)!r}: give one of photographs, or a discovery's --out."
        )
    if runs.RunDirectory(folder).begun or (folder / "config.json").exists():
        raise ConfigurationError(
            f"{str(folder)!r} is a model, not photographs: promptccd open PHOTOGRAPHS --model {folder} groups "
            "photographs with it (of a run, give its last stage)."
        )
    place = folder.absolute()
    return Path(out) if out else place.with_name(f"{place.name}{_BESIDE}")


def _find_groups(folder: Path, out: Path, model: str) -> None:
    # Here, because a project that is there needs none of it.
    from promptccd.discovery.discover import DiscoverySession, discover
    from promptccd.training.progress import StopRequest

    logger.info("Looking for groups in %s with %s; they are kept in %s.", folder, model, out)
    with StopRequest() as stop:
        found = discover(DiscoverySession.open(model), folder, out, stop=stop)
    logger.info("%d photographs, about %s groups.", found.report.used, found.estimate)
    if found.report.skipped:
        logger.info("%d files were skipped; %s says why.", found.report.skipped, out / "discovery.html")


def _serve(page: "workbench.OpenPage", options: argparse.Namespace) -> None:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    _show(page.url, options)
    try:
        page.wait()
    except KeyboardInterrupt:
        print("Closed.", flush=True)
    finally:
        page.close()


def _show(url: str, options: argparse.Namespace) -> None:
    if not options.no_browser:
        webbrowser.open(url)


COMMANDS = {"open": _declare_open}
