"""The example that ships with the package, against the digits of scikit-learn."""

import base64
import io
import time
from itertools import pairwise

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from promptccd.discovery.example import Example, load_example
from promptccd.evaluation import clustering_accuracy


@pytest.fixture(scope="module")
def example() -> Example:
    return load_example()


def rows_of(keys) -> np.ndarray:
    return np.array([int(key.removeprefix("row:")) for key in keys])


def test_every_digit_comes_once_and_every_group_adds_up(example: Example) -> None:
    digits = load_digits()
    rows = rows_of(example.keys)
    assert sorted(rows.tolist()) == list(range(len(digits.target)))
    for stage in example.stages:
        found = example.category_ids[list(stage.rows)]
        assert sum(group.size for group in stage.groups) == len(stage.rows)
        assert {group.id: group.size for group in stage.groups if group.size} == {
            int(each): int((found == each).sum()) for each in np.unique(found)
        }
        place_of = {example.keys[row]: row for row in stage.rows}
        for group in stage.groups:
            for key in (*group.typical, *group.borderline):
                assert example.category_ids[place_of[key]] == group.id


def test_what_is_known_and_what_was_discovered(example: Example) -> None:
    labels = load_digits().target[rows_of(example.keys)]
    first = list(example.stages[0].rows)
    assert (example.category_ids[first] == labels[first]).all()
    kinds = [[(group.id, group.standing) for group in stage.groups] for stage in example.stages]
    known = [(digit, "known") for digit in range(7)]
    assert kinds == [
        known,
        [*known, (7, "new")],
        [*known, (7, "settled"), (8, "new")],
        [*known, (7, "settled"), (8, "settled"), (9, "new")],
    ]
    names = [{group.id: group.name for group in stage.groups} for stage in example.stages]
    for earlier, later in pairwise(names):
        assert earlier.items() <= later.items()


def test_accuracies_are_those_of_the_groups(example: Example) -> None:
    labels = load_digits().target[rows_of(example.keys)]
    assert example.stages[0].accuracy is None
    for stage in example.stages[1:]:
        rows = list(stage.rows)
        scored = clustering_accuracy(labels[rows], example.category_ids[rows], range(7))
        assert list(stage.accuracy.values()) == pytest.approx(scored, abs=1e-3)


def test_places_keep_neighbours_together(example: Example) -> None:
    assert example.places.shape == (1797, 2)
    assert example.places.min() == 0
    assert example.places.max() == 1
    labels = load_digits().target[rows_of(example.keys)]
    squared = ((example.places[:, None] - example.places[None]) ** 2).sum(-1)
    np.fill_diagonal(squared, np.inf)
    assert (labels[squared.argmin(1)] == labels).mean() > 0.9


def test_pictures_are_the_digits(example: Example) -> None:
    picture = example.picture("row:1234")
    content = base64.b64decode(picture.removeprefix("data:image/png;base64,"))
    pixels = np.asarray(Image.open(io.BytesIO(content)).convert("L"))
    assert np.array_equal(pixels, np.rint(load_digits().images[1234] * 255 / 16).astype(np.uint8))
    with pytest.raises(KeyError):
        example.picture("row:1797")


def test_it_is_there_at_once() -> None:
    began = time.process_time()
    loaded = load_example()
    loaded.picture(loaded.keys[0])
    assert time.process_time() - began < 0.5
