"""Shares of the files of a big source, which other processes or machines look at before one discovery groups them all.

A chunk has a folder like that of a project, with what its files hold and their features. Any process may make it, be
killed, and go on with it. It holds nothing but what `discover` would make itself: results are the same bytes.
"""

import contextlib
import functools
import logging
import multiprocessing
import os
import pickle
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import connection
from pathlib import Path
from typing import Any

import torch
from transformers.utils import logging as transformers_logging

from promptccd.data.limits import ByteBudget, IntakeLimits
from promptccd.data.loaders import Progress
from promptccd.data.sources import Entry, ImageSource, Stamp
from promptccd.discovery.cache import FeatureCache
from promptccd.discovery.embedding import resolve_precision
from promptccd.discovery.intake.reading import entries_of, find_source
from promptccd.discovery.project.folder import CHUNKS, FEATURES
from promptccd.discovery.session import DiscoverySession
from promptccd.errors import ConfigurationError
from promptccd.experiments.engines.ray import RETRIES, RayEngine
from promptccd.locks import FolderLock
from promptccd.processes import ProcessApart
from promptccd.storage import make_inside, refuse_links, remove

logger = logging.getLogger(__name__)

MOST_FILES = 4096  # of a chunk: what is lost if nobody can go on with it
_LOOK_S = 0.5  # between looks for a signal
_WAIT_S = 10.0  # for the lock of a killed process


class Chunk(ImageSource):
    """Some files of a source, in order.

    Args:
        folder: for what is made of them.
        source: gives their bytes.
        files: of the source.
    """

    def __init__(self, folder: Path, source: ImageSource, files: Sequence[Entry]):
        self.folder, self.source, self._files, self.name = folder, source, files, source.name

    def entries(self, limits: IntakeLimits) -> list[Entry]:
        """The files."""
        return [*self._files]

    def read(self, entry: Entry, budget: ByteBudget) -> bytes:
        """The bytes of a file."""
        return self.source.read(entry, budget)

    def stamp(self, entry: Entry) -> Stamp | None:
        """The stamp of a file."""
        return self.source.stamp(entry)

    def make(self, session: DiscoverySession) -> None:
        """Look at the files and compute their features, or go on with that.

        Raises:
            RunError: another process is at it.
            DivergedError: a feature holds NaN or infinity; the image is named.
        """
        with FolderLock(make_inside(self.folder.parent, self.folder.name), _WAIT_S):
            embedder = session.new_embedder(FeatureCache(self.folder / FEATURES))
            intake = session.intake_of(self, embedder, project=self.folder)
            embedder.features_of(intake, session.workers)


class Devices:
    """Carries chunks to processes of this machine, one for each device.

    Args:
        names: of the devices; for several processes on one, it comes several times.

    Attributes:
        parts: how many chunks are made at once.
    """

    def __init__(self, names: Sequence[str]):
        self.names, self.parts = names, len(names)

    def carry(
        self, opening: dict[str, Any], chunks: Sequence[Chunk], look: Callable[[], None]
    ) -> Iterator[tuple[int, str]]:
        """Positions of chunks as they end, each with why it failed, or nothing; one whose process died is tried again.

        Args:
            opening: for `DiscoverySession.open`, in another process.
            chunks: the chunks.
            look: called every moment; raises to end all.
        """
        share = {"workers": max(1, opening["workers"] // self.parts)}
        idle = [pickle.dumps({**opening, **share, "device": name}) for name in self.names]
        waiting, tries = deque(range(len(chunks))), Counter[int]()
        free, at_work = list[_Worker](), dict[Any, tuple[_Worker, int]]()
        try:
            while waiting or at_work:
                look()
                while waiting and (free or idle):
                    worker, number = free.pop() if free else _Worker(idle.pop(0)), waiting.popleft()
                    at_work[worker.line] = worker, number
                    with contextlib.suppress(OSError):  # it died while it waited, as is seen below
                        worker.line.send(chunks[number])
                for line in connection.wait([*at_work], _LOOK_S):
                    worker, number = at_work.pop(line)
                    try:
                        problem = worker.line.recv()
                        free.append(worker)
                    except (EOFError, OSError):
                        code, killed = worker.ended()
                        problem = f"its process was {killed}" if killed else f"its process ended with {code}"
                        worker.end_rest()
                        idle.append(worker.opening)
                        tries[number] += 1
                        if tries[number] <= RETRIES:
                            waiting.append(number)
                            continue
                    yield number, problem
        finally:
            for worker in (*free, *(each for each, _ in at_work.values())):
                worker.kill()


class Cluster:
    """Carries chunks to the machines of a Ray cluster, as `Devices` does to processes.

    Args:
        engine: has joined it.
    """

    def __init__(self, engine: RayEngine):
        self._engine, self.parts = engine, engine.places

    def carry(
        self, opening: dict[str, Any], chunks: Sequence[Chunk], look: Callable[[], None]
    ) -> Iterator[tuple[int, str]]:
        """The same."""
        packed = pickle.dumps({**opening, "workers": self._engine.cpus})
        return self._engine.outcomes(problem_of, [(packed, each, Path.cwd()) for each in chunks], look)


class _Worker(ProcessApart):
    """A process that makes one chunk after the other, as they come down a line."""

    def __init__(self, opening: bytes):
        self.opening = opening
        self.line, theirs = multiprocessing.Pipe()
        super().__init__(_work, (theirs, opening, Path.cwd()), [__name__])
        theirs.close()  # so that the line ends with the process


def _work(line: Any, opening: bytes, folder: Path) -> None:
    with contextlib.suppress(EOFError):
        while True:
            line.send(problem_of(opening, line.recv(), folder))


def problem_of(opening: bytes, chunk: Chunk, folder: Path) -> str:
    """Make a chunk in a process of its own; why that failed, or nothing.

    Args:
        opening: arguments of `DiscoverySession.open`, pickled.
        chunk: the chunk, a copy.
        folder: that paths are meant from.
    """
    try:
        os.chdir(folder)
        chunk.make(_opened(opening))
    except Exception as error:  # whoever gets it makes the chunk itself, and meets the same
        return f"{type(error).__name__}: {error}"
    finally:
        chunk.source.close()
    return ""


@functools.lru_cache(maxsize=1)  # one model for all chunks of a process
def _opened(opening: bytes) -> DiscoverySession:
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    session = DiscoverySession.open(**pickle.loads(opening))
    torch.set_num_threads(session.workers)
    return session


def chunks_of(session: DiscoverySession, source: ImageSource, project: Path, parts: int) -> list[Chunk]:
    """The files that nothing is known of yet, or no feature, in so many chunks or more; none if they are few.

    Files that have changed are left out: what they held before decides what their pictures are known by.

    Raises:
        DataError: as `read_intake`.
    """
    embedder, seen, cache = (
        session.new_embedder(),
        session.seen_files(project),
        FeatureCache(project / FEATURES),
    )
    space, batch = embedder.space, embedder.batch_size
    is_begun = (cache.folder / space).exists()

    def is_open(entry: Entry) -> bool:
        if (stamp := source.stamp(entry)) is None:
            return not is_begun  # a row of a data set, which is opened to see whether it is known
        _, image = seen.look(seen.content_of(stamp)) or (None, None)
        return not seen.held_by(stamp.path) or (image is not None and not cache.holds(space, image.key))

    files = [entry for entry in entries_of(source, session.limits) if not entry.reason and is_open(entry)]
    if len(files) <= batch:
        return []
    size = min(MOST_FILES, -(-len(files) // parts))
    size += -size % batch
    make_inside(project, CHUNKS)
    return [
        Chunk(project.absolute() / CHUNKS / f"{start:09d}", source, files[start : start + size])
        for start in range(0, len(files), size)
    ]


def spread(
    session: DiscoverySession,
    source: Any,
    project: Path,
    carrier: Devices | Cluster,
    look: Callable[[], None],
    progress: Progress,
) -> None:
    """Have the chunks of a source made; those that fail are made here.

    Args:
        session: with the cache of the project.
        source: as `DiscoverySession.read` takes it.
        project: the folder.
        carrier: where they are made.
        look: raises to end all.
        progress: wraps the chunks, their number and a label in a progress bar.

    Raises:
        ConfigurationError: the model was not opened from a place, where others would find it.
        PromptCCDError: as `Chunk.make`.
    """
    if not session.opened_from:
        raise ConfigurationError("Other processes need a session that DiscoverySession.open has opened.")
    with contextlib.closing(find_source(source, session.image_roots)) as opened:
        chunks, failed = chunks_of(session, opened, project, carrier.parts), dict[int, str]()
        if not chunks:
            return
        logger.info("New files are looked at in %d chunks, %d at once.", len(chunks), carrier.parts)
        opening = {
            **session.opened_from,
            "limits": session.limits,
            "bit_depth": session.bit_depth,
            "image_roots": session.image_roots,
            "batch_size": session.batch_size,
            "precision": resolve_precision(session.precision, session.model.device),
            "workers": session.workers,
        }
        for number, problem in progress(carrier.carry(opening, chunks, look), len(chunks), "chunks of files"):
            if problem:
                failed[number] = problem
        if failed:
            why = " ".join(next(iter(failed.values())).split())[:300]
            logger.warning("%d of %d chunks failed, and are made here: %s", len(failed), len(chunks), why)
        for number in sorted(failed):
            chunks[number].make(session)


def take_over(session: DiscoverySession, project: Path) -> None:
    """Put what all chunks hold into a project, in order; only the holder of its lock may.

    Raises:
        RunError: a process is still at work on one of them.
    """
    folders = [each for each in sorted(project.glob(f"{CHUNKS}/*")) if each.is_dir()]
    if not folders:
        return
    refuse_links(project / CHUNKS, [each.name for each in folders])
    seen, cache = session.seen_files(project), FeatureCache(project / FEATURES)
    for folder in folders:
        with FolderLock(folder):
            keys = seen.take_over(session.seen_files(folder))
            cache.take_over(FeatureCache(folder / FEATURES), keys)
        remove(folder)
    seen.flush(last=True)
    remove(project / CHUNKS)
