"""The same picture twice, in two stages, or under two labels: counted, listed, and never two truths."""

import tracemalloc

import numpy as np
import pytest
from datasets import Dataset

from promptccd.data import StageStream
from promptccd.data.options import ViewOptions
from promptccd.data.readable import ImageCache, StageImages, conflicts
from promptccd.errors import DataError
from promptccd.training.progress import progress_bar
from tests.conftest import coloured_images
from tests.messages import TEXT

IMAGES = coloured_images(3, 8)


def cut(table: Dataset) -> StageStream:
    return StageStream.from_dataset(table, class_blocks=[2, 1])


def with_copies(pairs: dict[int, int]) -> Dataset:
    """Coloured images, some of them replaced by others under their own labels."""
    source = np.arange(len(IMAGES))
    source[[*pairs]] = [*pairs.values()]
    labels, feature = IMAGES["label"][:], IMAGES.features["label"]
    return IMAGES.select(source).remove_columns("label").add_column("label", labels, feature=feature)


def samples(stage: int, category: int, count: int) -> list[int]:
    """So many of the coloured images of a category that the split gives a stage."""
    return [sample for sample in cut(IMAGES)[stage].sample_ids.tolist() if sample % 3 == category][:count]


def read(table: Dataset, stage: int = 0, **options: object) -> StageImages:
    return StageImages.read(cut(table)[stage], 0, progress_bar, **options)


@pytest.mark.fault(25)
def test_two_labels_for_one_picture_are_refused() -> None:
    (one,), (other,) = samples(0, 0, 1), samples(0, 1, 1)
    with pytest.raises(DataError) as refused:
        read(with_copies({other: one}), conflicting="refuse")
    first, second = sorted([(one, "category 0"), (other, "category 1")])
    for sample, name in (first, second):
        assert TEXT["row-is-labelled"].format(sample, name) in str(refused.value)
    assert "--conflicting_labels drop" in str(refused.value)


@pytest.mark.fault(25)
@pytest.mark.parametrize("is_kept", [True, False])
def test_or_left_out_with_all_copies(is_kept: bool) -> None:
    (one, same), (other,) = samples(0, 0, 2), samples(0, 1, 1)
    table = with_copies({other: one, same: one})
    images = read(table, cache=ImageCache(ViewOptions()) if is_kept else None, conflicting="drop")
    assert not {one, same, other} & set(images.sample_ids.tolist())
    assert images.report.used == len(images) == images.report.images - 3
    assert images.report.conflicting.keys() == {f"row {one}", f"row {same}", f"row {other}"}
    for index, sample in enumerate(images.sample_ids.tolist()):
        assert np.array_equal(np.asarray(images[index]), np.asarray(table[sample]["image"]))
    assert len(read(table)) == images.report.images  # a test set is taken as it is


@pytest.mark.fault(25)
def test_copies_are_listed_within_a_stage_and_across_stages(caplog: pytest.LogCaptureFixture) -> None:
    one, same = samples(0, 0, 2)
    (later,) = samples(1, 0, 1)
    table, seen = with_copies({same: one, later: one}), {}
    first = read(table, 0, seen=seen, conflicting="refuse")  # one label is no contradiction
    second = read(table, 1, seen=seen)
    original = min(one, same)
    first_one = {"image": f"row {original}", "stage": 0}
    assert first.report.copies == {f"row {max(one, same)}": first_one}
    assert second.report.copies == {f"row {later}": first_one}
    assert len(first) + len(second) == first.report.images + second.report.images
    assert TEXT["stage-1-1-images-are-the"] in caplog.text
    assert read(IMAGES).report.copies == {}


@pytest.mark.fault(25)
def test_a_category_without_any_undisputed_image_is_no_category() -> None:
    ones = samples(0, 0, 100)
    others = samples(0, 1, len(ones))
    table = with_copies(dict(zip(ones, others, strict=False)))
    with pytest.raises(DataError, match=TEXT["all-images-of-category-0-also"]):
        read(table, conflicting="drop")


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
