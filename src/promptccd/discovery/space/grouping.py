"""What a visitor gives, groups and takes away: the same functions as on the command line, over their own folder."""

import copy
import logging
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from promptccd.data.file_names import display_name
from promptccd.data.limits import ByteBudget, IntakeLimits, SkippedFileError
from promptccd.discovery.categories import registry_of
from promptccd.discovery.checkpoint import save_checkpoint
from promptccd.discovery.discover import DiscoveryResult, discover
from promptccd.discovery.embedding import load_embedder
from promptccd.discovery.exports import export_dataset, export_image_folder
from promptccd.discovery.intake.archives import ArchiveSource, is_archive
from promptccd.discovery.session import DiscoverySession
from promptccd.discovery.space.visits import Visit
from promptccd.discovery.workbench.take_away import assignment_rows_of
from promptccd.errors import DataError, InterruptedRunError, PromptCCDError
from promptccd.hub import publish_groups
from promptccd.hub.space import fetched, parted
from promptccd.models.loading import BACKBONES
from promptccd.training.progress import StopRequest

logger = logging.getLogger(__name__)

Tell = Callable[[int, int, str], None]  # how many are done, of how many, of what

_WORKERS = 2  # images that are decoded at once; visitors wait for the same cores
_BATCH = 8  # so that Cancel is heard soon


def is_remote(place: str) -> bool:
    """Whether a model is one of the Hub."""
    name, _ = parted(place)
    return name not in BACKBONES and not Path(name).is_dir()


def called(place: str) -> str:
    """What people call a model: visitors need not know where it lies."""
    name, _ = parted(place)
    return name if is_remote(place) else Path(name).absolute().name


class Watched(StopRequest):
    """Tells how far work is, and ends it when the visitor or the clock says so."""

    def __init__(self, tell: Tell, most_s: float):
        super().__init__()
        self._tell, self._most_s, self._until = tell, most_s, time.monotonic() + most_s

    def cancel(self) -> None:
        """End it at the next item."""
        self.received = 1

    def progress(self, items: Iterable[Any], total: int, label: str) -> Iterator[Any]:
        """Go through items.

        Raises:
            InterruptedRunError: it was cancelled.
            DataError: it takes too long.
        """
        for done, item in enumerate(items):
            if self.received:
                raise self.error("")
            if time.monotonic() > self._until:
                raise DataError(
                    f"This took longer than the {self._most_s / 60:.0f} min that one visitor can have here. Give fewer "
                    "images, or run promptccd discover on your own machine."
                )
            self._tell(done, total, label)
            yield item

    def error(self, what: str) -> InterruptedRunError:
        """What ends it."""
        return InterruptedRunError(
            "Stopped, as you asked. Press “Find groups” to go on from there.", self.received
        )


class Grouping:
    """The model that groups, loaded when it is first needed, and the work it is needed for, one visitor at a time.

    Args:
        place: a folder, or a name on the Hub.
        limits: on what a visitor brings.
        most_s: seconds that one piece of work may take.
    """

    def __init__(self, place: str, limits: IntakeLimits, most_s: float):
        self.place, self.limits, self._most_s = place, limits, most_s
        self._shared: DiscoverySession | None = None
        self._turn = threading.Lock()

    def take_in(self, visit: Visit, uploads: Sequence[str]) -> tuple[int, list[tuple[str, str]]]:
        """Put uploads among a visitor's photographs, all or none, and what archives hold unpacked.

        Returns:
            How many photographs came, and the members of archives that were left out, with the reasons.

        Raises:
            DataError: it is too much, or an upload is gone.
        """
        arriving, left_out = visit.folder / "arriving", list[tuple[str, str]]()
        with visit.held():
            arriving.mkdir()
            try:
                budget = ByteBudget(self.limits, "What you gave")
                for there in visit.photos.iterdir() if visit.is_own else ():
                    budget.spend(there.stat().st_size)
                for upload in map(Path, uploads):
                    left_out += self._unpack(upload, arriving, budget)
                came = list(arriving.iterdir())
                count = len(came) + (len(list(visit.photos.iterdir())) if visit.is_own else 0)
                self.limits.require_files(count, "This visit")
                if not came:
                    raise DataError(
                        "There is no image in it" + "".join(f"; {why}" for _, why in left_out[:1]) + "."
                    )
                visit.photos.mkdir(exist_ok=True)
                for path in came:
                    path.rename(_free(visit.photos, path.name))
            finally:
                shutil.rmtree(arriving)
                for each in uploads:
                    Path(each).unlink(missing_ok=True)
        return len(came), left_out

    def _unpack(self, upload: Path, into: Path, budget: ByteBudget) -> list[tuple[str, str]]:
        """An upload's photographs; members that are left out, with the reasons."""
        if not upload.is_file():
            raise DataError("An upload is not there any more: upload the files again.")
        if not is_archive(upload):
            budget.spend(upload.stat().st_size)
            shutil.move(upload, _free(into, _file_name(upload.name)))
            return []
        source, left_out = ArchiveSource(upload), list[tuple[str, str]]()
        try:
            for entry in source.entries(self.limits):
                try:
                    if entry.reason:
                        raise SkippedFileError(entry.reason)
                    content = source.read(entry, budget)
                    _free(into, _file_name(entry.name)).write_bytes(content)
                except SkippedFileError as skipped:
                    left_out.append((entry.name, str(skipped)))
        finally:
            source.close()
        return left_out

    def find(self, visit: Visit, count: int | None, tell: Tell) -> DiscoveryResult:
        """Group all photographs of a visitor, as `discover` does: corrections stay, new photographs are a new stage.

        Args:
            visit: whose photographs.
            count: of all groups; `None` estimates it.
            tell: is told how far it is.

        Raises:
            PromptCCDError: it is not possible, or was stopped.
        """
        if not visit.is_own:
            raise DataError("No photographs yet: choose some first.")
        watched = Watched(tell, self._most_s)
        with self._turn, visit.held(watched.cancel):
            result = self._discover(visit, self._session(), watched, count)
            visit.renew()
        return result

    def _discover(
        self, visit: Visit, session: DiscoverySession, watched: Watched, count: int | None = None
    ) -> DiscoveryResult:
        return discover(
            session, visit.photos, visit.groups, num_categories=count, batch_size=_BATCH, stop=watched
        )

    def images(self, visit: Visit, tell: Tell) -> Path:
        """A zip archive of a visitor's photographs, a folder for each group, without metadata."""
        watched, project = Watched(tell, self._most_s), visit.project()
        rows = assignment_rows_of(project)
        with self._turn, visit.held(watched.cancel):
            originals = _Counted(project.photos.original, watched, len(rows))
            return _zipped(export_image_folder(originals, rows, _emptied(visit.taken)))

    def model(self, visit: Visit, tell: Tell) -> Path:
        """A zip archive of the model with a visitor's categories and corrections.

        Raises:
            PromptCCDError: nothing is grouped yet, or it was stopped.
        """
        if not visit.is_grouped:
            raise DataError("Find groups in photographs of your own first: the example needs no model.")
        watched = Watched(tell, self._most_s)
        with self._turn, visit.held(watched.cancel):
            session = self._session()
            self._discover(visit, session, watched)  # takes up what is there, corrections included
            return _zipped(save_checkpoint(session, _emptied(visit.taken) / "model"))

    def push(self, visit: Visit, target: str, token: str, *, private: bool) -> None:
        """Push a visitor's groups as a data set, under their own login.

        Raises:
            DataError: no photograph is in a group.
            HubError: the Hub refuses, or cannot be reached.
        """
        project = visit.project()
        rows = assignment_rows_of(project)
        if all(row.category is None for row in rows):
            raise DataError(
                "No photograph is in a group, so there is nothing to push: take a correction back first."
            )
        watched = Watched(lambda done, total, label: None, self._most_s)
        with self._turn, visit.held(watched.cancel):
            originals = _Counted(project.photos.original, watched, len(rows))
            publish_groups(
                export_dataset(originals, rows, _emptied(visit.taken)), target, private=private, token=token
            )

    def _session(self) -> DiscoverySession:
        """A session whose model has categories and configuration of its own, over the weights that all share.

        Raises:
            PromptCCDError: the model cannot be loaded, for a reason that is logged and not shown.
        """
        shared = self._shared = self._shared or self._load()
        tensors = [*shared.model.parameters(), *shared.model.buffers()]
        model = copy.deepcopy(shared.model, {id(tensor): tensor for tensor in tensors})
        registry = shared.registry.copy()
        return DiscoverySession(model, shared.view, registry, limits=self.limits, workers=_WORKERS)

    def _load(self) -> DiscoverySession:
        try:
            folder = fetched(self.place)
            model, view = load_embedder(folder)
            model.config.name_or_path = called(self.place)
            return DiscoverySession(model.eval(), view, registry_of(model, folder))
        except PromptCCDError as error:  # which may name folders of this machine
            logger.error("Nothing can be grouped: %s", error)
            raise PromptCCDError(
                "The model of this page cannot be loaded. Whoever runs the page finds the reason in its log; try again "
                "later."
            ) from error


class _Counted:
    """Originals for an export, which ends when it is stopped."""

    def __init__(self, original: Callable[[str], bytes], watched: Watched, total: int):
        self._original = original
        self._steps = watched.progress(range(total), total, "writing images")

    def original(self, key: str) -> bytes:
        """The bytes of a photograph."""
        next(self._steps, None)
        return self._original(key)


def _file_name(name: str) -> str:
    """A name for a file, from one that anybody may have chosen."""
    plain = re.sub(r"[/\\]+", " - ", display_name(name))
    return plain.encode()[-150:].decode(errors="ignore").strip(" .") or "photograph"


def _free(folder: Path, name: str) -> Path:
    """A path that nothing has yet."""
    path, number = folder / name, 1
    while path.exists():
        number += 1
        path = folder / f"{number} {name}"
    return path


def _emptied(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return folder


def _zipped(folder: Path) -> Path:
    """A zip archive in the place of a folder."""
    target = Path(shutil.make_archive(str(folder), "zip", folder))
    shutil.rmtree(folder)
    return target
