"""Parts of the new files of a big source, which other processes or machines read before one discovery groups all.

Each part has a folder like that of a project, with thumbnails and features of its files. Any process may make it, be
killed, and resume it. `discover` would make equal chunks by itself: results are byte-identical.
"""

import contextlib
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers.utils import logging as transformers_logging

from promptccd import systems
from promptccd.data.loaders import Progress
from promptccd.data.sources import Entry, ImageSource
from promptccd.discovery.embedding import resolve_precision
from promptccd.discovery.intake.reading import entries_of, find_source
from promptccd.discovery.intake.seen import SeenFiles
from promptccd.discovery.project.record import CHUNKS, PROJECT
from promptccd.discovery.session import DiscoverySession
from promptccd.disk import CHECKSUMS, make_folder, make_inside, remove, remove_leftovers
from promptccd.errors import ConfigurationError
from promptccd.locks import FolderLock
from promptccd.reports import PoolOfDevices, RayEngine
from promptccd.runs.folder import RunDirectory

logger = logging.getLogger(__name__)

_WAIT_S = 10.0  # for the lock of a killed process


def results_folder(source: str | Path | None, out: str | Path) -> Path:
    """The folder for the results, made if need be.

    Raises:
        ConfigurationError: it is a checkpoint, or lies inside the folder of images.
        DiskError: it cannot be made.
    """
    folder = Path(os.path.expanduser(out))
    images = None if source is None else Path(os.path.expanduser(source))
    if (folder / "config.json").exists() or (folder / CHECKSUMS).exists():
        raise ConfigurationError(f"{str(out)!r} is a model: give another --out for the results.")
    if RunDirectory(folder).begun:
        raise ConfigurationError(
            f"{str(out)!r} is a run of promptccd train: give another --out for the results."
        )
    if images is not None and images.is_dir() and folder.resolve().is_relative_to(images.resolve()):
        raise ConfigurationError(
            f"{str(out)!r} is in the folder of images, where the next run would take results for images: give an "
            "--out outside of it."
        )
    return make_folder(folder)


def make_part(session: DiscoverySession, source: str | Path, out: str | Path, part: int, parts: int) -> None:
    """Read and embed one part of the new files of a source, or resume that; nothing is grouped.

    The next `discover` with that folder imports all parts that were made, by any process or machine.

    Args:
        session: with its model.
        source: see `discover`.
        out: see `discover`.
        part: number of the part, from 1 on.
        parts: number of parts, the same for all.

    Raises:
        PromptCCDError: as `discover`, or because another process is at this part.
    """
    project = make_inside(results_folder(source, out), PROJECT)
    with contextlib.closing(find_source(source, session.image_roots)) as opened:
        with contextlib.closing(SeenFiles(project, session.made_with, is_reader=True)) as seen:
            files = _new_files(session, opened, seen)
            rendering = seen.rendering
        size = -(-len(files) // parts)
        if mine := files[(part - 1) * size : part * size]:
            folder = make_inside(make_inside(project, CHUNKS), f"{part:06d}-of-{parts}")
            with FolderLock(folder, _WAIT_S):
                remove_leftovers(folder)
                with contextlib.closing(SeenFiles(folder, session.made_with)) as seen:
                    seen.use(rendering.over(seen.rendering))
                    embedder = session.new_embedder(seen, is_part=True)
                    embedder.features_of(
                        session.read_with(embedder, opened, entries=mine, rendered_by=files), session.workers
                    )
    logger.info("Part %d of %d: %d of %d new files.", part, parts, len(mine), len(files))


def _new_files(session: DiscoverySession, source: ImageSource, seen: SeenFiles) -> list[Entry]:
    """The files without a verdict or a feature; an empty list if they are few.

    Changed files are not among them: their earlier content decides the key of their pictures.
    """
    embedder = session.new_embedder(seen)
    is_begun = seen.has_space(embedder.space)

    def is_new(entry: Entry) -> bool:
        if (stamp := source.stamp(entry)) is None:
            return not is_begun  # a row of a data set, which has to be read to see whether it is known
        key = seen.known_key(seen.content_of(stamp))
        lacks_feature = key != "" and not seen.has_feature(embedder.space, key)
        return lacks_feature or not seen.hash_at(stamp.path)

    files = [entry for entry in entries_of(source, session.limits) if not entry.reason and is_new(entry)]
    return files if len(files) > embedder.batch_size else []


def spread(
    session: DiscoverySession,
    source: str | Path,
    out: Path,
    engine: PoolOfDevices | RayEngine,
    look: Callable[[], None],
    progress: Progress,
) -> None:
    """Make all parts of the new files of a source through an engine; the discovery reads what a failed part lacks.

    `look` is called every moment and raises to end all; errors as in `make_part`.

    Raises:
        ConfigurationError: the session was not made by `DiscoverySession.open`, so other processes cannot find its
            model.
    """
    if not session.opened_with:
        raise ConfigurationError("Other processes need a session that DiscoverySession.open has opened.")
    with contextlib.closing(find_source(source, session.image_roots)) as opened:
        count = len(_new_files(session, opened, session.seen))
    if not count:
        return
    parts, cpus = engine.places, engine.cpus
    precision = resolve_precision(session.precision, session.model.device)
    opening = {**session.opened_with, "precision": precision, "workers": cpus}
    calls = [(opening, source, out, part, parts, Path.cwd()) for part in range(1, parts + 1)]
    ended = progress(engine.outcomes(_problem_of, calls, look), parts, f"parts of {count} new files")
    if failed := [problem for _, problem in ended if problem]:
        why = " ".join(failed[0].split())[:300]
        logger.warning("%d of %d parts failed, and are made here: %s", len(failed), parts, why)


def _problem_of(opening: dict[str, Any], source: str, out: str, part: int, parts: int, folder: Path) -> str:
    """Make a part in another process, with paths relative to a folder; returns why that failed, or nothing."""
    try:
        os.chdir(folder)
        transformers_logging.set_verbosity_error()
        transformers_logging.disable_progress_bar()
        torch.set_num_threads(opening["workers"])
        make_part(DiscoverySession.open(**opening), source, out, part, parts)
    except Exception as error:  # the discovery meets the same error
        return f"{type(error).__name__}: {error}"
    return ""


def import_parts(session: DiscoverySession, project: Path) -> None:
    """Import the results of parts into a project, in order; only the holder of its lock may.

    Raises:
        RunError: a process is still at work there.
    """
    folders = [
        each for each in sorted(project.glob(f"{CHUNKS}/*")) if each.is_dir() and not systems.is_link(each)
    ]
    if not folders:
        remove(project / CHUNKS)  # a process may have been killed before this
        return
    for folder in folders:
        with FolderLock(folder):
            session.seen.import_from(folder)
        remove(folder)
    remove(project / CHUNKS)
