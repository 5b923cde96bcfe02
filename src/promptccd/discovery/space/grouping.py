"""What a visitor gives, groups and takes away: the same functions as on the command line, over their own folder."""

import contextlib
import copy
import logging
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar, cast

from promptccd import systems
from promptccd.data.names import display_name
from promptccd.discovery.categories import registry_of
from promptccd.discovery.checkpoint import save_checkpoint
from promptccd.discovery.discover import DiscoveryResult, discover
from promptccd.discovery.embedding import load_embedder
from promptccd.discovery.exports.publish import export_publish
from promptccd.discovery.intake.reading import find_source
from promptccd.discovery.page.export_job import rows_of
from promptccd.discovery.session import DiscoverySession
from promptccd.discovery.space.visits import Visit
from promptccd.errors import DataError, PromptCCDError
from promptccd.images.limits import ByteBudget, IntakeLimits, SkippedFileError
from promptccd.locks import LOCK
from promptccd.models.checkpoint import split_revision
from promptccd.training.devices import device_named, placed
from promptccd.training.progress import StopRequest

logger = logging.getLogger(__name__)

Work = TypeVar("Work", bound=Callable[..., Any])
Tell = Callable[..., object]  # of (how many are done, of how many), desc=what; as Gradio's Progress

_WORKERS = 2  # images that are decoded at once; visitors wait for the same cores
_BATCH = 8  # so that Cancel is heard soon


def called(place: str) -> str:
    """What people call a model: visitors need not know where it lies."""
    name, _ = split_revision(place)
    return Path(name).absolute().name if Path(name).is_dir() else name


class Watched(StopRequest):
    """Tells how far work is, and ends it when the visitor or the clock says so."""

    def __init__(self, tell: Tell, most_s: float):
        super().__init__()
        self._tell, self._most_s, self._until = tell, most_s, time.monotonic() + most_s

    def cancel(self) -> None:
        """End it at the next item."""
        self.received = 1

    def progress(self, items: Iterable[Any], total: int, label: str) -> Iterator[Any]:
        """Go through items, unless it was cancelled (`InterruptedRunError`) or takes too long (`DataError`)."""
        for done, item in enumerate(items):
            if self.received:
                raise self.error("by the visitor")
            if time.monotonic() > self._until:
                minutes = round(self._most_s / 60)
                raise DataError(f"This took longer than {minutes} min: give fewer images at a time.")
            self._tell((done, total), desc=label.capitalize())
            yield item


class Grouping:
    """The model that groups, loaded when it is first needed, and all that it is needed for.

    Whoever calls sees to it that one piece of work is done at a time; it may take `most_s` seconds.
    """

    def __init__(self, place: str, limits: IntakeLimits, most_s: float):
        self.place, self.limits, self._most_s = place, limits, most_s
        self._shared: DiscoverySession | None = None

    def take_in(self, visit: Visit, uploads: Sequence[str]) -> tuple[int, list[tuple[str, str]]]:
        """Put uploads among a visitor's photographs, all or none, archives unpacked; the uploads are deleted.

        Returns how many photographs came, and the files that were left out, with the reasons. A `DataError` if it is
        too much, or nothing can be taken.
        """
        arriving, left_out = visit.folder / "arriving", list[tuple[str, str]]()
        with visit.held():
            arriving.mkdir()
            try:
                budget, before = ByteBudget(self.limits, "What you gave"), list(visit.photos.glob("*"))
                budget.spend(sum(each.stat().st_size for each in before))
                taken = {each.name for each in before}
                with contextlib.closing(find_source(list(uploads))) as source:
                    for entry in source.entries(self.limits):
                        try:
                            if entry.reason:
                                raise SkippedFileError(entry.reason)
                            name = _file_name(entry.name)
                            name = f"{len(taken)} {name}" if name in taken else name
                            (arriving / name).write_bytes(source.read(entry, budget))
                            taken.add(name)
                        except SkippedFileError as skipped:
                            left_out.append((entry.name, str(skipped)))
                came = list(arriving.iterdir())
                self.limits.require_files(len(before) + len(came), "This visit")
                if not came:
                    why = left_out[0][1] if left_out else "choose some"
                    raise DataError(f"No image came: {why}.")
                visit.photos.mkdir(exist_ok=True)
                for path in came:
                    systems.rename(path, visit.photos / path.name)
            finally:
                shutil.rmtree(arriving)
                for upload in uploads:
                    Path(upload).unlink(missing_ok=True)
        return len(came), left_out

    def find(self, visit: Visit, count: int | None, tell: Tell) -> DiscoveryResult:
        """Group all photographs of a visitor, as `discover` does: corrections stay, new photographs are a new stage.

        The number of groups is `count`, or estimated; `tell` is told how far it is.
        """
        if not visit.is_own:
            raise DataError("No photographs yet: choose some first.")
        watched = Watched(tell, self._most_s)
        with visit.held(watched.cancel):
            result = _discover(visit, self._session(), watched, count)
            visit.renew()
        return result

    def images(self, visit: Visit) -> Path:
        """A zip archive of a visitor's photographs, a folder for each group, without metadata."""
        with visit.held():
            photos, rows = visit.project().photos, rows_of(visit.project())
            made = export_publish(photos, rows, _emptied(visit.taken), lambda: None)
            for lock in made.place.glob(f"{LOCK}*"):
                lock.unlink()
            return _zipped(made.place.rename(visit.taken / "images"))

    def model(self, visit: Visit) -> Path:
        """A zip archive of the model with a visitor's categories and corrections."""
        if not visit.is_grouped:
            raise DataError("Find groups in photographs of your own first: the example needs no model.")
        watched = Watched(lambda *done, **what: None, self._most_s)
        with visit.held(watched.cancel):
            session = self._session()
            _discover(visit, session, watched, None)  # takes up what is there, corrections included
            return _zipped(save_checkpoint(session, _emptied(visit.taken) / "model"))

    def _session(self) -> DiscoverySession:
        """A session whose model has categories and configuration of its own, over the weights that all share."""
        shared = self._shared = self._shared or self._load()
        tensors = [*shared.model.parameters(), *shared.model.buffers()]
        model = copy.deepcopy(shared.model, {id(tensor): tensor for tensor in tensors})
        registry = shared.registry.copy()
        return DiscoverySession(
            model, shared.view, registry, limits=self.limits, workers=_WORKERS, batch_size=_BATCH
        )

    def _load(self) -> DiscoverySession:
        try:
            model, view = load_embedder(self.place)
            model.config.name_or_path = called(self.place)
            model = placed(model.eval(), view, device_named(None))
            return DiscoverySession(model, view, registry_of(model, self.place))
        except PromptCCDError as error:  # which may name folders of this machine
            logger.error("Nothing can be grouped: %s", error)
            raise PromptCCDError("The model of this page cannot be loaded: its log says why.") from error


def _on_gpu(work: Work) -> Work:
    """The work as the Hub lends a GPU for it, where GPUs are lent by the call (ZeroGPU); elsewhere as it is."""
    try:
        lend: Any = import_module("spaces").GPU
    except (ImportError, AttributeError):  # a folder of that name is another thing
        return work
    return cast(Work, lend(work))


@_on_gpu
def _discover(visit: Visit, session: DiscoverySession, stop: Watched, count: int | None) -> DiscoveryResult:
    return discover(session, visit.photos, visit.groups, num_categories=count, stop=stop)


def _file_name(name: str) -> str:
    """A name for a file, from one that anybody may have chosen; its end says what kind of file it is."""
    return re.sub(r"[/\\]+", " - ", display_name(name)).encode()[-150:].decode(errors="ignore")


def _emptied(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return folder


def _zipped(folder: Path) -> Path:
    """A zip archive in the place of a folder."""
    target = Path(shutil.make_archive(str(folder), "zip", folder))
    shutil.rmtree(folder)
    return target
