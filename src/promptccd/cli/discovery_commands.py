"""``promptccd discover`` and ``demo``: a person's images."""

import argparse
import logging
from dataclasses import asdict
from typing import Any

from promptccd.cli.command import add_model_limit, command, show
from promptccd.cli.parsing import MOST_DIGITS, MOST_SEED, whole_number
from promptccd.discovery import (
    EXPORTS,
    AdaptationOptions,
    DiscoveryResult,
    DiscoverySession,
    FeatureCache,
    discover,
)
from promptccd.errors import ConfigurationError
from promptccd.training.interruption import StopRequest

logger = logging.getLogger(__name__)

# How a category stands, in the words of the page.
KINDS = {"known": "known", "settled": "found earlier", "new": "new"}


def add_commands(commands: Any) -> None:
    """Declare them."""
    found = command(
        commands, "discover", discover_command, "group your images: known categories and new ones"
    )
    found.add_argument(
        "model",
        metavar="MODEL",
        help="a finished stage or a bare backbone: folder or Hub id; a backbone knows nothing",
    )
    found.add_argument("images", metavar="IMAGES", help="a folder, a zip archive, or a data set of the Hub")
    found.add_argument("--out", metavar="DIR", required=True, help="folder for the results")
    found.add_argument(
        "--num_categories", default="auto", metavar="auto|N", help="of all categories, known ones included"
    )
    found.add_argument(
        "--adapt", action="store_true", help="first train one stage on the images, into DIR/stage<t+1>"
    )
    found.add_argument("--epochs", type=whole_number(), default=AdaptationOptions.epochs, help="of --adapt")
    found.add_argument(
        "--batch_size",
        type=whole_number(),
        default=AdaptationOptions.batch_size,
        help="images per step of --adapt",
    )
    found.add_argument(
        "--export",
        nargs="*",
        action="extend",
        choices=list(EXPORTS),
        default=[],
        help="besides assignments.csv; may be given several times",
    )
    found.add_argument(
        "--file-names", action="store_true", help="let exported images tell what their files were called"
    )
    found.add_argument(
        "--precision", choices=["auto", "fp32", "bf16"], default="auto", help="of the features"
    )
    found.add_argument(
        "--seed", type=whole_number(0, MOST_SEED), default=1, help="of everything that is drawn"
    )
    found.add_argument("--no-cache", action="store_true", help="keep no features on disk")
    add_model_limit(found)


def discover_command(options: argparse.Namespace) -> None:
    """``promptccd discover``."""
    num_categories = _count(options.num_categories)
    adaptation = (
        AdaptationOptions(epochs=options.epochs, batch_size=options.batch_size) if options.adapt else None
    )
    session = DiscoverySession.open(
        options.model,
        seed=options.seed,
        cache=None if options.no_cache else FeatureCache(),
        max_model_bytes=options.max_model_bytes,
    )
    with StopRequest() as stop:
        result = discover(
            session,
            options.images,
            options.out,
            num_categories=num_categories,
            adaptation=adaptation,
            exports=options.export,
            file_names=options.file_names,
            precision=options.precision,
            stop=stop,
        )
    show(options, _plain(result), lambda: _summary(result))
    logger.info("Written: %s", ", ".join(str(path) for path in result.paths))


def _count(text: str) -> int | None:
    if text == "auto":
        return None
    if not text.isdecimal() or len(text) > MOST_DIGITS or int(text) < 1:
        raise ConfigurationError(
            f"Expected --num_categories to be auto or a number from 1 on, got {text[:50]!r}."
        )
    return int(text)


def _plain(result: DiscoveryResult) -> dict[str, Any]:
    return {
        "files": asdict(result.report),
        "counts": result.counts,
        "num_categories": result.estimate.to_dict(),
        "new": list(result.change.new),
        "seconds": result.seconds,
        "assignments": [asdict(row) for row in result.rows],
        "written": [str(path) for path in result.paths],
    }


def _summary(result: DiscoveryResult) -> str:
    report, counts = result.report, result.counts
    sizes: dict[tuple[int, str, str], int] = {}
    for row in result.rows:
        if row.category is not None:
            key = (row.category, row.name, row.known)
            sizes[key] = sizes.get(key, 0) + 1
    unseen = ", those without an image here included" if result.estimate.count > len(sizes) else ""
    lines = [
        f"{report.found} files: {report.used} images, {report.duplicates} "
        f"{'copy' if report.duplicates == 1 else 'copies'}, {report.skipped} skipped",
        *(f"  skipped {count}: {reason}" for reason, count in report.skipped_reasons.items()),
        f"categories{', estimated' if result.estimate.is_estimate else ''}: {result.estimate}{unseen}"
        if sizes
        else "categories: none that an image is in",
        f"{'images and copies' if report.duplicates else 'images'}: {counts['known']} in known categories, "
        f"{counts['settled']} in ones discovered before, {counts['new']} in new ones"
        + (f", {counts['unassigned']} in none" if counts["unassigned"] else ""),
    ]
    lines += [
        f"  {number:4d}  {name} ({KINDS[kind]}): {size}"
        for (number, name, kind), size in sorted(sizes.items())
    ]
    return "\n".join(lines)
