"""The readable images of a stage, and copies of them at the size that views are cut from.

Every image is decoded once, before its stage begins: its verdict, a digest of its pixels and its pixels resized are
rows of an Arrow file, which is named by a hash of the images, complete once it exists, and mapped by every process. So
no epoch decodes or resizes an image. An image that cannot be read is left out of the stage and listed with its reason,
so that no later step can meet it. Copies of the same picture are listed, and never trained on under two labels.
"""

import hashlib
import logging
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal

import datasets
import numpy as np
import pandas as pd
import pyarrow as pa  # type: ignore[import-untyped]
from filelock import FileLock, Timeout
from PIL import Image, features
from PIL import __version__ as pillow_version
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from promptccd import disk, systems
from promptccd.data.image_rows import ImageRows
from promptccd.data.loaders import Progress, loader_options
from promptccd.data.options import ViewOptions
from promptccd.data.stages import LabelledStage, Stage
from promptccd.data.views import EvaluationView, resized
from promptccd.errors import DataError, DiskError
from promptccd.images.decode import Status
from promptccd.images.identity import digest_of
from promptccd.images.kinds import heif_plugin
from promptccd.images.limits import TOO_MANY_BAD

logger = logging.getLogger(__name__)

Conflicting = Literal["refuse", "drop"]
COPY_FORMAT = 4  # of files, and of the functions that make their content
IMAGES_AT_ONCE = 16  # images between two looks at signals; large images take .1 s each
MEMORY_BYTES = 2**30  # copies of a stage without copies on disk
SHARE = 0.5  # of the free space that missing copies may take
_SCHEMA = pa.schema({
    "status": pa.string(), "note": pa.string(), "is_passing": pa.bool_(), "digest": pa.binary(),
    "width": pa.int32(), "pixels": pa.large_binary(),
})  # fmt: skip


@dataclass(eq=False)
class _Decoding(Dataset):
    """Every image as a row of `_SCHEMA`; decoded in loader processes, if there are any."""

    images: Stage | ImageRows
    views: ViewOptions | None

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, row: int) -> dict[str, Any]:
        decoded = self.images.decode(row)
        found: dict[str, Any] = {**vars(decoded.verdict), "digest": b"", "width": 0}
        if decoded.image is not None:
            found["digest"] = digest_of(np.asarray(decoded.image))
            if self.views is not None:
                copy = resized(decoded.image, self.views.resize_size)
                found |= {"width": copy.shape[2], "pixels": copy.tobytes()}
        return found

    def batches(
        self, num_workers: int | None, progress: Progress, label: str = "reading images"
    ) -> Iterator[pa.RecordBatch]:
        """All images in order, some at a time."""
        loader = DataLoader(self, IMAGES_AT_ONCE, collate_fn=list, **loader_options(num_workers))
        for rows in progress(loader, len(loader), label):
            yield pa.RecordBatch.from_pylist(rows, _SCHEMA)


@dataclass
class ImageCache:
    """Copies of all images that a training will see.

    Attributes:
        views: views that will be cut; `None` to make no copies.
        folder: where copies are stored; `None` to keep up to `MEMORY_BYTES` of each stage in memory.
    """

    views: ViewOptions | None
    folder: Path | None = None
    _opened: dict[ImageRows, datasets.Dataset] = field(default_factory=dict)

    @classmethod
    def at(cls, place: str, views: ViewOptions) -> "ImageCache":
        """The cache at a place as recipes name it: ``auto``, ``off`` or a folder."""
        folder = Path(datasets.config.HF_DATASETS_CACHE) / "promptccd" if place == "auto" else Path(place)
        return cls(views, None if place in ("off", "none") else folder.expanduser())

    def of(self, stage: Stage, num_workers: int | None, progress: Progress) -> datasets.Dataset:
        """A row of `_SCHEMA` for every image of a stage; images without a copy are decoded now."""
        if self.folder is not None:
            whole = stage.images.whole
            try:
                if whole not in self._opened:
                    self._opened[whole] = self._stored(self.folder, whole, num_workers, progress)
                return self._opened[whole].select(stage.images.rows)
            except (DiskError, OSError) as error:
                logger.warning(
                    "%s Copies of images are kept in memory where they fit, and other images are decoded for every "
                    "view. --image_cache names another folder.", error,
                )  # fmt: skip
                self.folder = None
        batches, room = list[pa.RecordBatch](), MEMORY_BYTES
        label = f"stage {stage.index}: reading images"
        for batch in _Decoding(stage, self.views).batches(num_workers, progress, label):
            room -= batch.nbytes
            nothing = pa.nulls(len(batch), pa.large_binary())
            batches.append(batch if room >= 0 else batch.set_column(5, "pixels", nothing))
        return datasets.Dataset(pa.Table.from_batches(batches, _SCHEMA))

    def _stored(
        self, folder: Path, images: ImageRows, num_workers: int | None, progress: Progress
    ) -> datasets.Dataset:
        """The copies of a whole table, mapped; a missing file is made first, or waited for."""
        assert self.views is not None
        digest = hashlib.blake2b(digest_size=16)  # of all that the copies depend on
        digest.update(repr((COPY_FORMAT, self.views.resize_size, images.decoding, _decoders())).encode())
        for key in images.content_keys():
            digest.update(b"%d " % len(key) + key)
        path = folder / f"{digest.hexdigest()}.arrow"
        if (found := _mapped(path)) is not None:
            return found
        lock = FileLock(disk.make_folder(folder) / ".lock")
        try:
            waiting = iter(lambda: _is_taken(lock), True)  # between whose moments signals are noticed
            for _ in progress(waiting, 0, "waiting for copies of images that another process makes"):
                pass
            if (found := _mapped(path)) is None:
                _write(path, _Decoding(images, self.views).batches(num_workers, progress), len(images))
                found = datasets.Dataset.from_file(str(path))
            return found
        finally:
            lock.release()


def _mapped(path: Path) -> datasets.Dataset | None:
    """The table in a file; `None` if there is none that is whole."""
    try:
        table = datasets.Dataset.from_file(str(path))
    except (OSError, ValueError, pa.ArrowException):
        return None
    return table if table.column_names == _SCHEMA.names else None


@cache
def _decoders() -> tuple[str, ...]:
    """Versions of the libraries that decode and resize: another version may give other pixels."""
    named = ("jpg", "webp", "avif", "libtiff", "littlecms2")
    heif = heif_plugin() and sys.modules[heif_plugin().__module__.partition(".")[0]]
    versions = (str(features.version(each)) for each in named)
    return (pillow_version, *versions, str(getattr(heif, "__version__", heif)))


def _is_taken(lock: FileLock) -> bool:
    """Whether this process has a lock, for which it waits a moment."""
    with suppress(Timeout):
        lock.acquire(timeout=0.1)
    return lock.is_locked


def _write(path: Path, batches: Iterator[pa.RecordBatch], count: int) -> None:
    """Make the file of a table of so many images; after a kill or a full disk there is none."""
    started, size, left, staging = time.monotonic(), 0, count, disk.temporary(path)
    try:
        # Of a path, the writer would keep the file open, which Windows cannot rename then.
        with open(staging, "wb") as file, pa.ipc.new_stream(file, _SCHEMA) as writer:
            for batch in batches:
                needed = round(batch.nbytes * left / len(batch) / SHARE)
                disk.require_space(
                    path.parent, needed, "copies of images, which may use half of the free space"
                )
                writer.write_batch(batch)
                size, left = size + batch.nbytes, left - len(batch)
        systems.rename(staging, path)
    finally:
        staging.unlink(missing_ok=True)
    logger.info(
        "Copies of %d images are stored in %s (%s); that took %.0f s.",
        count, path.parent, disk.readable_size(size), time.monotonic() - started,
    )  # fmt: skip


@dataclass(frozen=True)
class Original:
    """The first image with a picture: its sample id, the index of its stage, and its name."""

    sample: int
    stage: int
    name: str = ""


@dataclass
class ImageReport:
    """The verdicts on the images of a stage, by name; as ``images.json`` of a run contains them.

    Attributes:
        stage: index of the stage.
        images: how many the split gives the stage.
        used: how many take part in the stage.
        noted: notes of used images.
        skipped: reason of every image that is left out.
        copies: name and stage of the first image with equal pixels, of every later image.
        conflicting: an image with the same picture and another label, of every image that is left out for it.
    """

    stage: int
    images: int
    used: int = 0
    noted: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    copies: dict[str, dict[str, Any]] = field(default_factory=dict)
    conflicting: dict[str, str] = field(default_factory=dict)


@dataclass(eq=False)
class StageImages:
    """Readable images of one stage by position.

    Attributes:
        stage: the stage.
        positions: positions in the stage that can be read, ascending.
        copies: a row for every image of the stage, with the pixels that views are cut from or none.
        report: what became of every image.
        digests: by which equal pictures are known, by entry of `positions`.
    """

    stage: Stage
    positions: np.ndarray
    copies: datasets.Dataset
    report: ImageReport
    digests: Sequence[bytes] = ()

    @classmethod
    def read(
        cls,
        stage: Stage,
        num_workers: int | None,
        progress: Progress,
        cache: ImageCache | None = None,
        *,
        seen: dict[bytes, Original] | None = None,
        conflicting: Conflicting | None = None,
    ) -> "StageImages":
        """Look at every image of a stage, unless a cache knows it.

        Args:
            stage: the stage.
            num_workers: loader processes.
            progress: wraps an iterable, its length and a label in a progress bar.
            cache: where what views are cut from is kept; by default nowhere.
            seen: the first image with each picture of earlier stages, by digest; this stage adds its own.
            conflicting: ``"refuse"`` the stage if a picture has two labels, or ``"drop"`` all copies of that picture;
                `None` keeps them, as for test images.

        Raises:
            DataError: more than half of the images cannot be read, or the labels contradict each other.
        """
        copies = (cache or ImageCache(None)).of(stage, num_workers, progress)
        seen = {} if seen is None else seen
        report, used = ImageReport(stage.index, len(stage)), dict[int, bytes]()  # digest by position
        for position, found in enumerate(
            copies.select_columns(_SCHEMA.names[:4]).to_pandas().to_dict("records")
        ):
            if found["is_passing"]:  # such as a lack of memory, which may be over
                found = _Decoding(stage, None)[position]
            name, sample, note = stage.name_of(position), int(stage.sample_ids[position]), found["note"]
            if found["status"] == Status.SKIPPED:
                again = f" (row {sample})" * (name in report.skipped)  # a list may name a file twice
                report.skipped[name + again] = note
                continue
            original = seen.setdefault(found["digest"], Original(sample, stage.index, name))
            if original.sample != sample:  # the same image may be in several stages
                report.copies[name] = {"image": original.name, "stage": original.stage}
                if stage.place:
                    continue
            used[position] = found["digest"]
            if found["status"] == Status.NOTED:
                report.noted[name] = note
        if conflicting is not None and isinstance(stage, LabelledStage):
            for position, other in _conflicts_of(stage, used, conflicting).items():
                report.conflicting[stage.name_of(position)] = stage.name_of(other)
                del used[position]
        report.used = len(used)
        _log_and_judge(report, stage.place)
        pixels = copies.select_columns(["width", "pixels"])
        return cls(stage, np.array([*used], dtype=np.int64), pixels, report, [*used.values()])

    def __len__(self) -> int:
        return len(self.positions)

    def __getitem__(self, index: int) -> Image.Image:
        """The decoded RGB image at an index among the readable images."""
        image = self.stage.decode(int(self.positions[index])).image
        if image is None:
            raise DataError(
                f"{self.name_of(index)!r} could be read before and cannot be read now. Restore the file, and repeat "
                "the command."
            )
        return image

    def for_view(self, index: int, shorter_side: int | None) -> Image.Image | np.ndarray:
        """The copy of an image, or the decoded image if there is no copy with that shorter side."""
        found = self.copies[int(self.positions[index])]
        if not found["pixels"]:
            return self[index]
        copy = np.frombuffer(found["pixels"], np.uint8).reshape(3, -1, found["width"])
        return copy if min(copy.shape[1:]) == shorter_side else self[index]

    def seen_in(self, view: EvaluationView, index: int) -> Tensor:
        """The fixed view of an image."""
        return view(self.for_view(index, view.shorter_side))

    def name_of(self, index: int) -> str:
        """What the image at an index among the readable images."""
        return self.stage.name_of(int(self.positions[index]))

    @cached_property
    def sample_ids(self) -> np.ndarray:
        """Row number in the source data set of every readable image, ``(N,)``."""
        return self.stage.sample_ids[self.positions]


def _conflicts_of(stage: LabelledStage, used: Mapping[int, bytes], how: Conflicting) -> dict[int, int]:
    """The `conflicts` of a stage by position, of images with these digests; or refuse the stage for them."""
    positions, names = [*used], stage.category_names
    labels = stage.labels[positions].tolist()
    by_index = conflicts([*used.values()], labels)
    found = {positions[one]: positions[other] for one, other in by_index.items()}
    if found and how == "refuse":
        one, other = ((stage.name_of(each), names[stage.labels[each]]) for each in next(iter(found.items())))
        raise DataError(
            f"{one[0]!r} is labelled {one[1]!r}, but the same picture {other[0]!r} is labelled {other[1]!r}. "
            f"{len(found)} images of stage 0 have such a contradiction. Mend the labels, or give --conflicting_labels "
            "drop to leave these images out."
        )
    if bare := set(labels) - {label for index, label in enumerate(labels) if index not in by_index}:
        raise DataError(
            f"All images of {names[min(bare)]!r} also have another label, so no image is left: correct the labels."
        )
    return found


def conflicts(digests: Sequence[bytes], labels: Sequence[int]) -> dict[int, int]:
    """Positions of pictures with several labels -> the first position of the same picture with another label.

    Digests and labels (category ids) are one per image, N.
    """
    images = pd.DataFrame({"digest": digests, "label": labels}).rename_axis("position")
    # The first image of each label of a picture; two labels are enough for a contradiction to any label.
    firsts = images.drop_duplicates().groupby("digest").head(2)
    pairs = images.reset_index().merge(firsts.reset_index(), on="digest", suffixes=("", "_of_first"))
    pairs = pairs[pairs["label"] != pairs["label_of_first"]]
    found: dict[int, int] = pairs.groupby("position")["position_of_first"].min().to_dict()
    return found


def _log_and_judge(report: ImageReport, place: str) -> None:
    """Log everything unusual, and refuse a stage of which more than half cannot be read; a stream has a place."""
    if report.noted:
        logger.info("Stage %d: %d images have a note in images.json.", report.stage, len(report.noted))
    if report.skipped:
        logger.warning(
            "Stage %d: %d of %d images cannot be read and are left out, %r for one: %s.",
            report.stage, len(report.skipped), report.images, *next(iter(report.skipped.items())),
        )  # fmt: skip
    if report.copies:
        name, first = next(iter(report.copies.items()))
        logger.warning(
            "Stage %d: %d images are the very picture of another, %d of them of one in an earlier stage%s: %r "
            "is %r of stage %d, for example; images.json lists all.",
            report.stage, len(report.copies), sum(each["stage"] < report.stage for each in report.copies.values()),
            ", and count once, where they came first" * bool(place), name, first["image"], first["stage"],
        )  # fmt: skip
    if report.conflicting:
        logger.warning(
            "Stage %d: %d images have another label elsewhere and are left out, %r, which is %r, for one.",
            report.stage, len(report.conflicting), *next(iter(report.conflicting.items())),
        )  # fmt: skip
    if len(report.skipped) > TOO_MANY_BAD * report.images:
        remedy = "mend the data set, or point --dataset at another."
        raise DataError(
            f"{len(report.skipped)} of {report.images} images of stage {report.stage} cannot be read "
            f"({'; '.join(sorted(set(report.skipped.values()))[:3])}): "
            f"{f'mend {place}, or leave it out.' if place else remedy}"
        )
    if not report.used:
        raise DataError(
            f"All {report.images} images of stage {report.stage} ({place}) are in an earlier stage: "
            "repeat the command without that stream."
        )
