"""The folder ``.promptccd`` that `discover` keeps beside its results, read without a model and a session.

``project.json`` records the model and the sources. ``categories.sqlite`` contains the categories and every correction,
``before.sqlite`` those from before the newest stage. The rest is made again if it is lost, see
`promptccd.discovery.intake.seen`. The folder has one writer at a time.
"""

import logging
import re
from pathlib import Path
from typing import Any

from promptccd.clustering.count_estimate import CountEstimate
from promptccd.discovery.project.registry import CategoryRegistry, has_registry
from promptccd.discovery.project.store import CATEGORIES as CATEGORIES
from promptccd.disk import PROJECT as PROJECT
from promptccd.disk import newer_format, parsed_json, read_file
from promptccd.errors import DataError, RegistryError, RunError
from promptccd.images.decode import Decoding
from promptccd.images.rendering import Rendering

logger = logging.getLogger(__name__)

RECORD, FORMAT = "project.json", 1
BEFORE = "before.sqlite"
PAGE = "page"  # address of the page while it is open
_LARGEST_RECORD = 2**20  # bytes


def categories_in(out: Path) -> CategoryRegistry | None:
    """The categories that a discovery left in a folder, with later corrections; `None` if missing.

    Raises:
        RegistryError: they are damaged.
    """
    return CategoryRegistry.open(out / PROJECT / CATEGORIES).copy() if has_registry(out / PROJECT) else None


def read_record(out: Path) -> dict[str, Any]:
    """The record of a discovery, with types checked.

    Raises:
        RunError: it is missing, damaged, or of a newer version.
    """
    path = out / PROJECT / RECORD
    try:
        record = parsed_json(read_file(path, _LARGEST_RECORD))
        if (newer := newer_format(record.get("format", FORMAT), FORMAT)) is not None:
            raise RunError(f"{path} {newer}")
        texts = [record[name] for name in ("model", "features")] + record["sources"]
        texts += [record["found_with"][name] for name in ("model", "method")]
        if not isinstance(record["measured"], bool):
            raise ValueError("measured or not is yes or no")
        if not all(isinstance(text, str) for text in texts) or not re.fullmatch("[0-9a-f]+", texts[1]):
            raise ValueError("a value is of another kind")
        rendering = dict(record["decoding"])
        pixels = rendering.pop("max_pixels")
        if type(pixels) is not int or pixels < 1:
            raise ValueError("a limit is missing")
        decoding = Decoding(pixels, Rendering.from_dict(rendering))
        return {**record, "estimate": CountEstimate(**record["estimate"]), "decoding": decoding}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, DataError) as error:
        raise RunError(
            f"{path} is missing or damaged, so the model of these categories is unknown. Give another --out."
        ) from error


def load_before(out: Path) -> CategoryRegistry | None:
    """The registry before the newest stage, or `None`, with a warning, if it is damaged: it only tells what changed."""
    try:
        return CategoryRegistry.open(out / PROJECT / BEFORE).copy()
    except RegistryError as error:
        logger.warning("Changes since the last stage are unknown: %s", error)
        return None
