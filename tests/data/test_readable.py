"""Copies of images, made once for all processes and never those of other images; and the same picture twice."""

import functools
import logging
import os
import shutil
import tracemalloc
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pyarrow as pa
import pytest
import torch
from datasets import ClassLabel, Dataset, Features
from datasets import Image as ImageColumn
from filelock import FileLock
from PIL import Image

from promptccd.data import StageStream, readable
from promptccd.data.image_rows import ImageRows
from promptccd.data.options import ViewOptions
from promptccd.data.randomness import numpy_generator
from promptccd.data.readable import ImageCache, StageImages, conflicts
from promptccd.data.views import EvaluationView, TrainingViews, build_image_processor, resized
from promptccd.errors import DataError, InterruptedRunError
from promptccd.images.decode import DecodedImage, Status, Verdict
from promptccd.images.rendering import Rendering
from promptccd.training.progress import progress_bar
from tests.conftest import coloured_images
from tests.data.layouts import written
from tests.images.test_decode import encoded, oriented, photograph
from tests.messages import TEXT

SMALL = ViewOptions(image_size=28, resize_size=32)
TURNED = ViewOptions(image_size=28, resize_size=32, rotation=20, zoom=0.2)
SIZES = [
    (60, 45), (45, 60), (33, 33), (32, 32), (20, 20), (1, 1), (1, 60), (90, 34), (200, 36), (300, 200), (900, 40),
]  # fmt: skip


def noise(width: int, height: int, mode: str = "RGB") -> Image.Image:
    rng = np.random.default_rng(width * 1000 + height)
    return Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8)).convert(mode)


@functools.cache
def of_every_kind() -> list[bytes]:
    """Every shape and mode: grey, palette, transparent, printed, deep, turned, animated, thin, long, and no image."""
    plain = [encoded(noise(*size), "PNG") for size in SIZES]
    modes = [encoded(noise(70, 50, mode), "PNG") for mode in ("L", "P", "RGBA", "1", "LA")]
    deep = encoded(Image.fromarray(np.arange(70 * 50, dtype=np.uint16).reshape(50, 70) * 18), "PNG")
    frames = [noise(50, 40), noise(51, 41).resize((50, 40))]
    moving = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    printed = encoded(noise(70, 50, "CMYK"), "JPEG")
    turned = [oriented("JPEG", each, photograph(80, 50)) for each in range(1, 9)]
    return [*plain, *modes, deep, moving, printed, *turned, b"", b"no image", plain[0][: len(plain[0]) // 2]]


def table_of(files: list[bytes]) -> Dataset:
    images, labels = [{"bytes": each, "path": None} for each in files], [row % 2 for row in range(len(files))]
    features = Features({"image": ImageColumn(), "label": ClassLabel(names=["a", "b"])})
    return Dataset.from_dict({"image": images, "label": labels}, features=features)


def stages_of(table: Dataset, seed: int = 1, blocks: Sequence[int] = (1, 1)) -> StageStream:
    return StageStream.from_dataset(table, class_blocks=blocks, seed=seed)


def plain_table(count: int = 12) -> Dataset:
    return table_of([encoded(noise(40 + each, 40), "PNG") for each in range(count)])


def read(stages: StageStream, cache: ImageCache | None) -> list[StageImages]:
    return [StageImages.read(stage, 0, progress_bar, cache) for stage in stages]


@pytest.mark.parametrize(
    ("where", "options"), [("disk", SMALL), ("disk", TURNED), ("memory", TURNED), ("nowhere", SMALL)]
)
def test_views_of_what_is_kept_are_those_of_the_image(
    where: str, options: ViewOptions, tmp_path: Path
) -> None:
    stages = stages_of(table_of(of_every_kind()))
    cache = {"disk": ImageCache(options, tmp_path), "memory": ImageCache(options), "nowhere": None}[where]
    views, view = TrainingViews(options), EvaluationView(build_image_processor(options))
    kinds = []
    plain = read(stages, None)
    for stage, images, bare in zip(stages, read(stages, cache), plain, strict=True):
        assert images.report == bare.report
        assert images.digests == bare.digests
        assert np.array_equal(images.positions, bare.positions)
        for index in range(len(images)):
            image, verdict = (decoded := stage.decode(int(images.positions[index]))).image, decoded.verdict
            assert images.report.noted.get(images.name_of(index), "") == verdict.note
            kept = images.for_view(index, 32)
            kinds.append(type(kept))
            one, other = (numpy_generator("view", index) for _ in range(2))
            assert torch.equal(views(kept, one), views(image, other))
            assert torch.equal(images.seen_in(view, index), view(image))
            assert np.array_equal(np.asarray(images[index]), np.asarray(image))
    assert len(kinds) == len(of_every_kind()) - 3
    assert set(kinds) == {Image.Image if where == "nowhere" else np.ndarray}, "of every size"


def test_images_are_decoded_once_for_each_size_and_decoding_and_all_seeds_and_crops(
    tmp_path: Path, decoded: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "promptccd.data.readable")
    table = plain_table()
    for options, more in (
        (SMALL, {}),
        (ViewOptions(image_size=28, resize_size=31), {}),
        (SMALL, {"rendering": Rendering(given=(0, 4095))}),
        (SMALL, {"max_pixels": 10**6}),
    ):
        stages = StageStream.from_dataset(table, class_blocks=[1, 1], **more)
        decoded.clear()
        read(stages, ImageCache(options, tmp_path))
        assert sorted(decoded) == list(range(12))
    assert TEXT["copies-of-12-images-are-stored"].format(tmp_path) in caplog.text
    assert caplog.text.count("are stored in") == 4, "once by all stages"
    assert len([*tmp_path.glob("*.arrow")]) == 4
    # Another seed puts them into other stages; another crop is cut from the same copies.
    for seed, crop in ((1, 28), (2, 28), (1, 20)):
        stages = stages_of(table, seed)
        decoded.clear()
        read(stages, ImageCache(ViewOptions(image_size=crop, resize_size=32), tmp_path))
        assert decoded == []


def folder_of(place: Path, count: int = 12) -> Path:
    files = {each: encoded(noise(40 + each, 40), "BMP") for each in range(count)}
    return written(place, {f"{'ba'[each % 2]}/{each:02}.bmp": content for each, content in files.items()})


@pytest.mark.parametrize("how", ["time", "end", "longer"])
def test_an_image_that_changed_under_its_name_is_read_again(
    how: str, tmp_path: Path, decoded: list[int]
) -> None:
    """The time is kept, as by programs that turn photographs; or the end alone is another; or it is longer."""
    data, cache = folder_of(tmp_path / "data"), tmp_path / "cache"
    read(StageStream.from_dataset(str(data), class_blocks=[1, 1]), ImageCache(SMALL, cache))
    changed = data / "a" / "01.bmp"
    content, before = changed.read_bytes(), changed.stat()
    turned = encoded(noise(41, 40).transpose(Image.Transpose.FLIP_LEFT_RIGHT), "BMP")
    contents = {"time": turned, "end": content[:-120] + bytes(120), "longer": content + b"more"}
    changed.write_bytes(contents[how])
    os.utime(changed, ns=(before.st_atime_ns, before.st_mtime_ns + (how == "end")))
    stages = StageStream.from_dataset(str(data), class_blocks=[1, 1])
    decoded.clear()
    images = read(stages, ImageCache(SMALL, cache))
    assert len(decoded) == 12, "all images of the table"
    for each in images:
        for index in range(len(each)):
            image = each.stage.decode(int(each.positions[index])).image
            assert np.array_equal(each.for_view(index, 32), resized(image, 32))


@pytest.mark.parametrize("harm", ["cut", "emptied", "another table"])
def test_a_damaged_file_is_made_again(harm: str, tmp_path: Path, decoded: list[int]) -> None:
    stages = stages_of(plain_table())
    read(stages, ImageCache(SMALL, tmp_path))
    (part,) = tmp_path.glob("*.arrow")
    whole = part.read_bytes()
    if harm == "another table":
        with pa.ipc.new_stream(str(part), pa.schema({"a": pa.int8()})) as writer:
            writer.write_batch(pa.RecordBatch.from_pydict({"a": pa.array([1], pa.int8())}))
    else:
        part.write_bytes(whole[:-1] if harm == "cut" else b"")
    decoded.clear()
    images = read(stages, ImageCache(SMALL, tmp_path))
    assert len(decoded) == 12
    assert part.read_bytes() == whole
    assert isinstance(images[0].for_view(0, 32), np.ndarray)


@pytest.mark.parametrize("why", ["no room", "a file", "read-only"])
def test_where_nothing_can_be_kept_training_goes_on_without(
    why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    place = tmp_path / "cache"
    if why == "no room":
        monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    elif why == "a file":
        place.write_text("")
    else:
        monkeypatch.setattr(Path, "mkdir", Mock(side_effect=OSError(30, "Read-only file system")))
    images, later = read(stages_of(plain_table()), ImageCache(SMALL, place))
    assert [each.getMessage() for each in caplog.records if "--image_cache" in each.getMessage()] != []
    assert caplog.text.count("--image_cache") == 1, "once, not at every stage"
    assert str(place) in caplog.text
    assert isinstance(images.for_view(0, 32), np.ndarray), "in memory"
    assert isinstance(later.for_view(0, 32), np.ndarray)


def test_memory_holds_so_much_and_no_more(monkeypatch: pytest.MonkeyPatch, decoded: list[int]) -> None:
    stages = stages_of(plain_table())
    monkeypatch.setattr(readable, "IMAGES_AT_ONCE", 2)
    monkeypatch.setattr(readable, "MEMORY_BYTES", 2 * 3 * 32 * 50)
    images, *_ = read(stages, ImageCache(SMALL))
    kinds = [type(images.for_view(index, 32)) for index in range(len(images))]
    assert kinds[:2] == [np.ndarray] * 2
    assert np.ndarray not in kinds[2:]


def test_only_images_that_failed_for_a_passing_reason_are_tried_again(
    tmp_path: Path, decoded: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    stages = stages_of(table_of([*(encoded(noise(40, 40 + each), "PNG") for each in range(9)), b"no image"]))
    usual = ImageRows.decode

    def without_memory(images: ImageRows, row: int) -> DecodedImage:
        if row == 3:
            return DecodedImage(None, Verdict(Status.SKIPPED, "not enough memory", is_passing=True))
        return usual(images, row)

    with monkeypatch.context() as short:
        short.setattr(ImageRows, "decode", without_memory)
        read(stages, ImageCache(SMALL, tmp_path))
    decoded.clear()
    reports = [each.report for each in read(stages, ImageCache(SMALL, tmp_path))]
    assert len(decoded) == 1
    assert sum(len(each.skipped) for each in reports) == 1


def test_a_stream_that_is_added_leaves_the_others_known(tmp_path: Path, decoded: list[int]) -> None:
    table, weeks = plain_table(), [folder_of(tmp_path / "week1", 4), folder_of(tmp_path / "week2", 6)]
    for count, new in ((1, 12 + 4), (2, 6)):
        stages = StageStream.from_dataset(table, unlabelled=[str(each) for each in weeks[:count]])
        decoded.clear()
        read(stages, ImageCache(SMALL, tmp_path / "cache"))
        assert len(decoded) == new


def test_a_signal_ends_the_reading_and_the_lock_is_released(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readable, "IMAGES_AT_ONCE", 2)
    stages = stages_of(plain_table())

    def stopping(items: object, total: int, label: str) -> Iterator[object]:
        for number, item in enumerate(items):
            if label.startswith("reading images") and number == 3:
                raise InterruptedRunError("stop", 15)
            yield item

    with pytest.raises(InterruptedRunError):
        StageImages.read(stages[0], 0, stopping, ImageCache(SMALL, tmp_path))
    assert [each.name for each in tmp_path.iterdir() if each.name != ".lock"] == []
    assert isinstance(read(stages, ImageCache(SMALL, tmp_path))[0].for_view(0, 32), np.ndarray)


def test_a_process_waits_for_the_copies_of_another(tmp_path: Path, decoded: list[int]) -> None:
    stages = stages_of(plain_table())
    read(stages, ImageCache(SMALL, tmp_path / "other"))
    place, waits = tmp_path / "cache", []
    place.mkdir()
    lock = FileLock(place / ".lock")
    lock.acquire()
    decoded.clear()

    def noticing(items: object, total: int, label: str) -> Iterator[object]:
        for item in items:
            waits.append(label)
            if len(waits) == 2:
                for each in (tmp_path / "other").glob("*.arrow"):
                    shutil.copy(each, place)
                lock.release()
            yield item

    images = StageImages.read(stages[0], 0, noticing, ImageCache(SMALL, place))
    assert waits == [TEXT["waiting-for-copies-of-images-that"]] * 2
    assert decoded == [], "by the other process"
    assert isinstance(images.for_view(0, 32), np.ndarray)


# The same picture twice, in two stages, or under two labels

IMAGES = coloured_images(3, 8)


def with_copies(pairs: dict[int, int]) -> Dataset:
    """Coloured images, some of them replaced by others under their own labels."""
    source = np.arange(len(IMAGES))
    source[[*pairs]] = [*pairs.values()]
    labels, feature = IMAGES["label"][:], IMAGES.features["label"]
    return IMAGES.select(source).remove_columns("label").add_column("label", labels, feature=feature)


def samples(stage: int, category: int, count: int) -> list[int]:
    """So many of the coloured images of a category that the split gives a stage."""
    ids = stages_of(IMAGES, blocks=(2, 1))[stage].sample_ids
    return ids[ids % 3 == category][:count].tolist()


def read_stage(table: Dataset, stage: int = 0, **options: object) -> StageImages:
    return StageImages.read(stages_of(table, blocks=(2, 1))[stage], 0, progress_bar, **options)


@pytest.mark.fault(25)
def test_two_labels_for_one_picture_are_refused() -> None:
    (one,), (other,) = samples(0, 0, 1), samples(0, 1, 1)
    with pytest.raises(DataError) as refused:
        read_stage(with_copies({other: one}), conflicting="refuse")
    first, second = sorted([(one, "category 0"), (other, "category 1")])
    for sample, name in (first, second):
        assert TEXT["row-is-labelled"].format(sample, name) in str(refused.value)
    assert "--conflicting_labels drop" in str(refused.value)


@pytest.mark.fault(25)
@pytest.mark.parametrize("is_kept", [True, False])
def test_or_left_out_with_all_copies(is_kept: bool) -> None:
    (one, same), (other,) = samples(0, 0, 2), samples(0, 1, 1)
    table = with_copies({other: one, same: one})
    images = read_stage(table, cache=ImageCache(ViewOptions()) if is_kept else None, conflicting="drop")
    assert not {one, same, other} & set(images.sample_ids.tolist())
    assert images.report.used == len(images) == images.report.images - 3
    assert images.report.conflicting.keys() == {f"row {one}", f"row {same}", f"row {other}"}
    for index, sample in enumerate(images.sample_ids.tolist()):
        assert np.array_equal(np.asarray(images[index]), np.asarray(table[sample]["image"]))
    assert len(read_stage(table)) == images.report.images  # a test set is taken as it is


@pytest.mark.fault(25)
def test_copies_are_listed_within_a_stage_and_across_stages(caplog: pytest.LogCaptureFixture) -> None:
    one, same = samples(0, 0, 2)
    (later,) = samples(1, 0, 1)
    table, seen = with_copies({same: one, later: one}), {}
    first = read_stage(table, 0, seen=seen, conflicting="refuse")  # one label is no contradiction
    second = read_stage(table, 1, seen=seen)
    first_one = {"image": f"row {min(one, same)}", "stage": 0}
    assert first.report.copies == {f"row {max(one, same)}": first_one}
    assert second.report.copies == {f"row {later}": first_one}
    assert len(first) + len(second) == first.report.images + second.report.images
    assert TEXT["stage-1-1-images-are-the"] in caplog.text
    assert read_stage(IMAGES).report.copies == {}


@pytest.mark.fault(25)
def test_a_category_without_any_undisputed_image_is_no_category() -> None:
    ones = samples(0, 0, 100)
    others = samples(0, 1, len(ones))
    table = with_copies(dict(zip(ones, others, strict=False)))
    with pytest.raises(DataError, match=TEXT["all-images-of-category-0-also"]):
        read_stage(table, conflicting="drop")


def test_conflicts_are_those_of_brute_force() -> None:
    generator = np.random.default_rng(3)
    for _ in range(40):
        digests = [bytes([each]) for each in generator.integers(0, 6, 12)]
        labels = generator.integers(0, 3, 12).tolist()
        found = conflicts(digests, labels)
        for one in range(12):
            others = [two for two in range(12) if digests[one] == digests[two] and labels[one] != labels[two]]
            assert found.get(one) == (others[0] if others else None)


def test_a_picture_of_many_images_and_labels_takes_little_memory() -> None:
    tracemalloc.start()
    found = conflicts([b"no image"] * 2000, range(2000))
    assert found == {0: 1} | dict.fromkeys(range(1, 2000), 0)
    assert tracemalloc.get_traced_memory()[1] < 10 * 2**20
    tracemalloc.stop()
