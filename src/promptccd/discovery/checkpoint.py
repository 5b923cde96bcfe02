"""Save a session as a checkpoint, or with its results for the next session to resume from."""

import json
import logging
import os
from collections.abc import Callable
from pathlib import Path

import torch

from promptccd.clustering import CountEstimate
from promptccd.discovery.project.record import (
    BEFORE,
    CATEGORIES,
    FORMAT,
    PROJECT,
    RECORD,
    categories_in,
    load_before,
    read_record,
)
from promptccd.discovery.project.registry import CategoryRegistry, has_registry, save_registry
from promptccd.discovery.session import DiscoverySession
from promptccd.disk import make_folder, make_inside, write_directory, write_file
from promptccd.errors import DataError, RunError
from promptccd.models import CategoryDiscoveryModel
from promptccd.models.checkpoint import BUNDLED

logger = logging.getLogger(__name__)


def save_checkpoint(
    session: DiscoverySession, folder: str | Path, add: Callable[[Path], None] = lambda staging: None
) -> Path:
    """Write the model with the session's categories, its view and its registry, whole or not at all.

    ``from_pretrained``, ``promptccd predict`` and ``promptccd discover`` load it.

    Args:
        session: grouped.
        folder: must not exist.
        add: writes more files into the folder it is given.

    Raises:
        DataError: there are no groups.
    """
    model, found = session.model, session.registry.active_prototypes()
    if not found.ids:
        raise DataError(
            "There are no groups, so the model cannot assign images. Undo a correction, or group other images first."
        )
    model.set_categories(torch.from_numpy(found.matrix), found.ids, found.names)
    model.config.stage, model.config.num_known = session.registry.stage, session.registry.num_known
    model.config.count_estimate = session.estimate.to_dict() if session.estimate.is_estimate else None

    def fill(staging: Path) -> None:
        model.save_pretrained(staging)
        session.view.record(session.current.intake.decoding.rendering)
        session.view.processor.save_pretrained(staging)
        save_registry(session.registry, staging)
        add(staging)

    make_folder(Path(folder).absolute().parent)
    write_directory(Path(folder), fill)
    return Path(folder)


def save_progress(session: DiscoverySession, out: Path, source: str | Path | None) -> None:
    """Write the registry, the one before this stage, and a record of what both were made with; `source` is the newest.

    The registry is written last: if the writer is killed before, the folder contains the earlier registry.
    """
    project = make_inside(out, PROJECT)
    sources = read_record(out)["sources"] if (project / RECORD).is_file() else []
    if source is not None:
        place = Path(os.path.expanduser(source))
        sources += [str(place.absolute() if place.exists() else source)]
    sources += [os.path.abspath(os.path.expanduser(each)) for each in session.image_roots]
    spread = None if session.given else session.model.spread
    decoding = session.current.intake.decoding
    record = {
        "format": FORMAT,
        "model": session.model_space,
        "features": session.current.space,
        "found_with": {"model": "given features", "method": ""}
        if session.given
        else found_with(session.model, out),
        # If new images look like known ones, it was not measured how often a confidence is right.
        "measured": spread is not None and spread.tells_new,
        "estimate": session.estimate.to_dict(),
        "decoding": {"max_pixels": decoding.max_pixels, **decoding.rendering.to_dict()},
        "sources": list(dict.fromkeys(sources)),
    }
    session.current.before.write_to(project / BEFORE)
    write_file(project / RECORD, json.dumps(record, indent=1) + "\n")
    session.registry.write_to(project / CATEGORIES)


def found_with(model: CategoryDiscoveryModel, out: Path) -> dict[str, str]:
    """Name of a model, or its folder (relative if inside `out`), and the title of its method, if any."""
    from promptccd.methods import METHODS  # slow to import, and readers do not need it

    method = METHODS.get(model.config.model_type) if model.config.category_ids else None
    name = str(model.config.name_or_path)
    place, around = Path(name).absolute(), out.absolute()
    if place.is_relative_to(around):
        name = place.relative_to(around).as_posix()
    name = next((each for each, folder in BUNDLED.items() if folder == name), name)
    return {"model": name, "method": method.title if method else ""}


def load_progress(
    session: DiscoverySession, out: Path, trained_from: CategoryRegistry | None = None
) -> tuple[CategoryRegistry | None, CountEstimate | None] | None:
    """Give a session the categories that an earlier discovery left in a folder.

    Args:
        session: with its model.
        out: folder of the results.
        trained_from: the categories before the training of the session's stage, if `resume_adapted` found one. If its
            writer was killed before it wrote the categories to the folder, those of the stage stay.

    Returns:
        The registry before the newest stage, if it is not lost, and the estimate; `None` without an earlier discovery.

    Raises:
        RunError: they were found with another model, so that their prototypes are of no use here, or by a newer
            version, or were changed after the training.
        RegistryError: they are damaged.
    """
    left = categories_in(out)
    if left is not None:
        record = read_record(out)
        # A writer that was killed after the record left the categories from before the training: these are older.
        is_whole = trained_from is None or left.next_number >= session.registry.next_number
        if is_whole and record["model"] == session.model_space:
            session.registry = left
            return load_before(out), record["estimate"]
        if trained_from is None:
            newest = newest_stage_in(out)
            raise RunError(
                f"{out} contains categories that were found with another model. "
                + (f"Give the model that was trained there, {newest}" if newest else "Give that model")
                + ", or another --out."
            )
        logs = left.log, session.registry.log
        done, known = ([(each.number, each.kind, each.what) for each in log] for log in logs)
        if done != known[: len(done)]:
            raise RunError(
                f"The categories in {out} were changed after a stage was trained there. Give that stage as the model, "
                "without --adapt, and another --out."
            )
    if trained_from is None:
        return None
    before = left or trained_from
    if before.stage == session.registry.stage:  # the images were grouped there already
        before = load_before(out) or before
    estimate = session.model.config.count_estimate
    return before, CountEstimate(**estimate) if estimate else None


def newest_stage_in(out: Path) -> Path | None:
    """Folder of the newest stage that was trained in a folder, or `None`."""
    numbered = {each.name.removeprefix("stage"): each for each in out.glob("stage*") if has_registry(each)}
    newest = max(filter(str.isdecimal, numbered), key=int, default=None)
    return None if newest is None else numbered[newest]
