"""``promptccd discover`` and ``export``."""

import argparse
import logging
from collections import Counter
from dataclasses import asdict
from typing import Any

from promptccd import discovery
from promptccd.cli.options import (
    DECODING,
    DEVICE,
    MODEL_LIMIT,
    MOST_SEED,
    MOST_WORKERS,
    PLUGIN,
    Arguments,
    advanced,
    command,
    reading_of,
    require_there,
    show,
    whole_number,
)
from promptccd.data.sources import FOLLOWED, OUTSIDE
from promptccd.discovery.exports.formats import FORMATS, titles
from promptccd.discovery.options import BATCH_SIZE, GPU_BATCH_SIZE, NEAR_DUPLICATE_MODES, AdaptationOptions
from promptccd.errors import ConfigurationError

logger = logging.getLogger(__name__)


# Options that a session has too.
_OF_SESSION = ("seed", "workers", "precision", "batch_size", "near_duplicates")
LIKEST = 2  # number of most similar categories printed for unassigned images

# Kinds of categories, in the words of the page.
KINDS = {"known": "known", "earlier": "found earlier", "new": "new"}


_DISCOVER: Arguments = {
    "model": dict(metavar="MODEL", nargs="?",
        help="finished stage, whose categories are known, or bare backbone: a folder, a Hub id, or photographs, the "
        "bundled backbone, which needs no network"),
    "images": dict(metavar="IMAGES", nargs="?", help="folder, zip archive, or data set of the Hub"),
    "--out": dict(metavar="DIR", required=True, help="folder of the results"),
    "--features": dict(metavar="FILE",
        help="features that another model computed, in place of MODEL: .parquet, .npy, .npz or .safetensors"),
    "--images": dict(metavar="PLACE", dest="pictures", help="images of --features, whose paths or names are the ids"),
    "--items": dict(metavar="FILE", help="table of the ids of --features and of texts to show, without images"),
    "--num_categories": dict(metavar="auto|N", type=lambda text: None if text == "auto" else whole_number(1)(text),
        help="number of all categories, including known ones (default: auto, which estimates it)"),
    "--adapt": dict(action="store_true", help="training of one stage on the images first, into DIR/stage<t+1>"),
    "--export": dict(metavar="FORMAT", nargs="*", action="extend", choices=FORMATS, default=[],
        help=f"formats to export the groups in, with the photographs of all sources: {titles()}"),
    "--near_duplicates": dict(choices=NEAR_DUPLICATE_MODES, default="auto",
        help="images that count as one: copies and bursts, copies alone (exact), or none (default: auto)"),
    "--seed": dict(type=whole_number(0, MOST_SEED), default=1, help="random seed (default: 1)"),
}  # fmt: skip
_ADVANCED: Arguments = {
    "--epochs": dict(type=whole_number(), default=AdaptationOptions.epochs,
        help=f"epochs of --adapt (default: {AdaptationOptions.epochs})"),
    "--batch_size": dict(type=whole_number(1),
        help=f"images per forward (default: {BATCH_SIZE}, on a GPU {GPU_BATCH_SIZE}), and per step of --adapt "
        f"(default: {AdaptationOptions.batch_size})"),
    "--workers": dict(type=whole_number(1, MOST_WORKERS),
        help="number of images that are decoded at once (default: the number of cores)"),
    "--limit": dict(metavar="FILES", type=whole_number(1),
        help="largest number of files; more are refused (default: no limit)"),
    "--precision": dict(choices=["auto", "fp32", "bf16"], default="auto",
        help="precision of the features (default: auto, bf16 on a GPU with bf16 in hardware)"),
}  # fmt: skip


def _check_source(options: argparse.Namespace) -> None:
    """Refuse images without a model, features with one, and a missing path."""
    if options.features is None:
        if options.model is None or options.images is None or options.pictures or options.items:
            raise ConfigurationError(
                "Give a model and images: promptccd discover MODEL IMAGES --out DIR. Or give --features FILE with "
                "--images or --items."
            )
        return require_there(options.images, "Give a folder of images or a zip archive.")
    excluded = {
        "MODEL": options.model, "--adapt": options.adapt, "--images": options.pictures and options.items,
    }  # fmt: skip
    if given := next((name for name, value in excluded.items() if value), ""):
        other = "--items" if given == "--images" else "--features"
        raise ConfigurationError(f"{given} and {other} exclude each other. Leave out all but one.")


@command(
    ("promptccd.discovery.discover",),
    _DISCOVER,
    advanced(DEVICE, _ADVANCED, DECODING, PLUGIN, MODEL_LIMIT),
    check=_check_source,
)
def discover_command(options: argparse.Namespace) -> None:
    """``promptccd discover``."""
    from promptccd.training.progress import StopRequest

    adaptation = None
    if options.adapt:
        adaptation = AdaptationOptions(options.epochs, options.batch_size or AdaptationOptions.batch_size)
    own = {name: getattr(options, name) for name in _OF_SESSION} | reading_of(options, options.limit)
    if options.features is None:
        own |= {"device": options.device, "max_model_bytes": options.max_model_bytes}
        session, source = discovery.DiscoverySession.open(options.model, **own), options.images
    else:
        features = discovery.GivenFeatures.read(options.features, options.items)
        session = discovery.DiscoverySession.from_features(features, **own)
        source = options.pictures or options.items or options.features
    settings = {"num_categories": options.num_categories, "adaptation": adaptation, "exports": options.export}
    with StopRequest() as stop:
        result = discovery.discover(session, source, options.out, stop=stop, **settings)
    show(options, _plain(result), lambda: _summary(result))
    logger.info("Written: %s", ", ".join(str(path) for path in result.paths))
    for line in (line for each in result.exports for line in each.lines()):
        logger.info("%s", line)


def _plain(result: "discovery.DiscoveryResult") -> dict[str, Any]:
    return {
        "files": asdict(result.report),
        "distinct": result.distinct,
        "near_duplicates": result.near_duplicates,
        "counts": result.counts,
        "num_categories": result.estimate.to_dict(),
        "new": list(result.change.new),
        "waiting": result.waiting,
        "alike": result.alike,
        "assignments": [asdict(row) for row in result.rows],
        "written": [str(path) for path in result.paths],
        "exports": [_exported(each) for each in result.exports],
    }


def _summary(result: "discovery.DiscoveryResult") -> str:
    report, counts = result.report, result.counts
    sizes = Counter((row.category, row.name, row.known) for row in result.rows if row.category is not None)
    unseen = ", including images that are not here" if result.estimate.count > len(sizes) else ""
    distinct = f" ({result.distinct} without near-duplicates)" if result.distinct < report.used else ""
    lines = [
        f"{report.found} file{'s' * (report.found != 1)}: {report.used} image{'s' * (report.used != 1)}{distinct}, "
        f"{report.duplicates} "
        f"{'copy' if report.duplicates == 1 else 'copies'}, {report.skipped} skipped",
        *(f"  skipped {count}: {reason}" for reason, count in report.skipped_reasons.items()),
        *([f"  {FOLLOWED}"] if OUTSIDE in report.skipped_reasons else []),
        *([f"  {report.rendering} (--window sets another)"] if report.rendering else []),
        *(f"  {count} with a note: {note}" for note, count in report.notes.items()),
        _near_duplicates(result.near_duplicates),
        f"categories{', estimated' if result.estimate.is_estimate else ''}: {result.estimate}{unseen}"
        if sizes
        else "unknown categories",
        f"{'images and copies' if report.duplicates else 'images'}: {counts['known']} in known categories, "
        f"{counts['earlier']} in earlier categories, {counts['new']} in new ones"
        + (f", {counts['unassigned']} in none" if counts["unassigned"] else ""),
        *([f"ignored, or like ignored images: {counts['aside']}"] if counts["aside"] else []),
    ]
    if result.waiting:
        count, like = len(result.waiting), Counter(result.waiting.values()).most_common(LIKEST)
        lines.append(
            f"of all images so far, {count} fit{'s' * (count == 1)} nowhere yet, most like "
            f"{', '.join(name for name, _ in like)}: they are looked at again with the next images, and promptccd open "
            "shows them"
        )
    if result.alike:
        pairs = ", ".join(f"{one} and {other}" for one, other in result.alike)
        lines.append(
            f"are unusually alike and may belong together: {pairs}. promptccd open shows them side "
            "by side, and `promptccd categories FOLDER merge ID ID` merges two"
        )
    lines += [
        f"  {number:4d}  {name} ({KINDS[kind]}): {size}"
        for (number, name, kind), size in sorted(sizes.items())
    ]
    return "\n".join(lines)


def _near_duplicates(found: dict[str, Any]) -> str:
    groups = f"{found['groups']} group{'s' * (found['groups'] != 1)}"
    largest = f", the largest of {found['largest']} images" if found["groups"] else ""
    doubted = f"; {found['doubted']} images look alike by nature and count singly" if found["doubted"] else ""
    return f"near-duplicates: {groups}{largest}{doubted} (--near_duplicates {found['mode']})"


_EXPORT: Arguments = {
    "project": dict(metavar="FOUND", help="the --out of promptccd discover or open"),
    "formats": dict(metavar="FORMAT", nargs="+", choices=FORMATS, help=titles()),
    "--to": dict(metavar="DIR", help="folder in which each format gets a folder (default: FOUND)"),
}


@command(("promptccd.discovery.exports.formats",), _EXPORT)
def export_command(options: argparse.Namespace) -> None:
    """``promptccd export``."""
    found = discovery.export_project(options.project, options.formats, options.to)
    show(
        options,
        [_exported(each) for each in found],
        lambda: "\n".join(line for each in found for line in each.lines()),
    )


def _exported(export: "discovery.Export") -> dict[str, Any]:
    return {**asdict(export), "place": str(export.place)}
