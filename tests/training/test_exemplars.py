"""Which images are kept, what they are learnt as, and how batches are made of two sources."""

import json

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from promptccd.data import StageStream
from promptccd.data.options import ViewOptions
from promptccd.data.readable import StageImages
from promptccd.data.views import TrainingViews
from promptccd.errors import ConfigurationError
from promptccd.methods import METHODS, StageContext
from promptccd.methods.exemplars import Exemplars, Memory
from promptccd.methods.processes import Rows
from promptccd.models import CategoryDiscoveryOutput
from promptccd.training.options import TrainingArguments
from promptccd.training.progress import progress_bar
from promptccd.training.recipe import Recipe
from promptccd.training.stage_trainer import training_loader
from tests.conftest import coloured_images

NOTHING = Exemplars(*4 * [np.zeros(0, dtype=np.int64)])


@pytest.fixture(scope="module")
def read() -> list[StageImages]:
    """The images of two stages of three categories."""
    stream = StageStream.from_dataset(coloured_images(3, 12), class_blocks=[2, 1], cuts=[[0.5, 1.0], [1.0]])
    return [StageImages.read(stage, 0, progress_bar) for stage in stream]


def kept(samples: list[int], stages: list[int], categories: list[int], classes: list[int]) -> Exemplars:
    return Exemplars(*(np.array(each, dtype=np.int64) for each in (samples, stages, categories, classes)))


def extended(
    before: Exemplars, features: Tensor, classes: list[int], images: StageImages, **options: object
) -> Exemplars:
    arguments = TrainingArguments(seed=5, exemplars_per_class=20, **options)
    own = np.array(classes)
    return before.extended(F.normalize(features, dim=1), own, own + 100, images, before.class_ids, arguments)


# Batches of two sources, of which the golden numbers keep some


def test_an_image_of_the_memory_is_cropped_anew_in_every_round_and_the_same_way_again(
    read: list[StageImages],
) -> None:
    places = [(read[0], 4), (read[0], 1)]
    memory = Memory(places, torch.tensor([0, 1]))
    views = TrainingViews(ViewOptions(image_size=16, resize_size=18))
    num = len(read[1])

    def arguments(workers: int) -> TrainingArguments:
        return TrainingArguments(seed=3, batch_size=4, num_workers=workers)

    def drawn(indices: list[int], workers: int = 0) -> Tensor:
        batches = [[(0, index) for index in indices]]
        context = StageContext(read[1], memory=memory)
        return next(iter(training_loader(context, views, batches, arguments(workers))))

    rounds = drawn([num, num + 2, num + 4, num + 1])
    assert not torch.equal(rounds[0], rounds[1])
    assert not torch.equal(rounds[1], rounds[2])
    assert torch.equal(drawn([num + 1, num], workers=1), rounds[[3, 0]])
    (alone,) = drawn([0])
    plain = training_loader(StageContext(read[1]), views, [[(0, 0)]], arguments(0))
    assert torch.equal(alone, next(iter(plain))[0])


def test_labels_have_holes_where_the_stream_is(read: list[StageImages]) -> None:
    memory = Memory([(read[0], 4), (read[0], 1), (read[0], 2)], torch.tensor([4, 6, -1]))
    context, num = StageContext(read[1], memory=memory), len(read[1])
    labels, positions = context.of_batch(np.array([2, num + 1, 0, num + 3, num + 5]))
    assert labels is not None
    assert labels.tolist() == [-1, 6, -1, 4, -1]
    assert positions.tolist() == [2, -1, 0, -1, -1]
    labels, positions = StageContext(read[1]).of_batch(np.array([2, 0]))
    assert labels is None
    assert positions.tolist() == [2, 0]


@pytest.mark.parametrize(
    ("labels", "places"), [([5, 4], [0, 1]), ([-1, 5], [1]), ([-1, -1], None), (None, None)]
)
def test_the_losses_read_labels_where_an_image_has_one(labels: list[int] | None, places: list | None) -> None:
    given = None if labels is None else torch.tensor(labels)
    found = Rows(CategoryDiscoveryOutput(), torch.zeros(2, 2, 3), given, torch.tensor([-1, 0])).labelled
    assert (found is None) == (places is None)
    if found is not None and given is not None:
        assert torch.arange(2)[found[0]].tolist() == places
        assert found[1].tolist() == given[places].tolist()


# Which images


def test_those_next_to_the_mean_of_their_class_are_kept(read: list[StageImages]) -> None:
    """Two classes of 7 and 5 images: 20 % are 2 and 1."""
    classes, features = [3, 8, 3, 3, 8, 8, 3, 3, 8, 3, 8, 3], torch.randn(12, 6)
    found = extended(NOTHING, features, classes, read[0])
    unit, expected = F.normalize(features, dim=1), []
    for number, count in ((3, 2), (8, 1)):
        own = [place for place, each in enumerate(classes) if each == number]
        mean = sum(unit[place] for place in own) / len(own)
        cosines = {place: float(unit[place] @ mean / mean.norm()) for place in own}
        expected += sorted(sorted(own, key=lambda place: -cosines[place])[:count])
    assert found.sample_ids.tolist() == read[0].sample_ids[expected].tolist()
    assert found.class_ids.tolist() == [3, 3, 8]
    assert found.category_ids.tolist() == [103, 103, 108]
    assert found.stages.tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("options", "counts"),
    [({}, [20, 7, 1]), ({"exemplar_share": 1.0}, [20, 20, 2]), ({"exemplar_share": 0.01}, [2, 1, 1])],
)
def test_how_many_of_a_class_are_kept(options: dict, counts: list[int], read: list[StageImages]) -> None:
    """No more than 20, nor than a share of its images, rounded up; 0.2 * 35 is 7, whatever floats make of it."""
    classes = [0] * 130 + [1] * 35 + [2] * 2
    rows = np.arange(12).repeat(14)[: len(classes)]
    images = StageImages(read[0].stage, rows, read[0].copies, read[0].report)
    found = extended(NOTHING, torch.randn(len(classes), 4), classes, images, **options)
    assert np.bincount(found.class_ids).tolist() == counts


def test_a_class_is_chosen_for_once(read: list[StageImages]) -> None:
    """Also where a correction has moved all that was kept of one; and who is in no class is never kept."""
    before = kept([7, 9], [0, 0], [0, 1], [0, 1])
    own = np.array([0, 1, 2, 3, -1, 2, 1, 0] + [-1] * (len(read[1]) - 8))
    labels = np.array([3, 1])
    arguments = TrainingArguments(exemplars_per_class=1)
    found = before.extended(torch.eye(len(own)), own, own, read[1], labels, arguments)
    assert found.class_ids.tolist() == [0, 1, 2]
    assert found.stages.tolist() == [0, 0, 1]
    assert found.sample_ids.tolist()[:2] == [7, 9]
    assert found.sample_ids[2] in read[1].sample_ids[[2, 5]]
    assert Exemplars.from_dict(json.loads(json.dumps(found.to_dict()))).to_dict() == found.to_dict()


# Under what labels


def test_corrections_reach_the_labels() -> None:
    """Rows of a classifier: 7 and 9 were mostly category 5 when it appeared, at stage 1."""
    memory = kept(
        samples := [10, 11, 12, 13, 14, 15, 16],
        [0, 0, 1, 1, 1, 2, 2],
        [0, 1, 5, 5, 5, 5, 8],
        [0, 1, 7, 9, 9, 7, 7],
    )
    category = dict(zip(samples, memory.category_ids.tolist(), strict=True))
    assert memory.labels(category.__getitem__).tolist() == memory.class_ids.tolist()
    # 8 was merged into 5, an image moved, 12 is new, and 10 is in none.
    category |= {16: 5, 13: 1, 11: 12, 10: -1}
    assert memory.labels(category.__getitem__).tolist() == [-1, -1, 7, 1, 9, 7, 9]


def test_what_cannot_be_read_any_more_shrinks_the_memory(read: list[StageImages]) -> None:
    first, second = (each.sample_ids for each in read)
    exemplars = kept([first[2], second[0], second[1]], [0, 0, 1], [0] * 3, [0] * 3)
    memory = Memory.of(exemplars, np.array([4, 5, 6]), read)
    assert memory is not None and memory.labels.tolist() == [4, 6]
    (_, one), (image, other) = (memory.sample(place, 18) for place in range(2))
    assert (one, other) == (first[2], second[1])
    assert np.array_equal(np.asarray(image), np.asarray(read[1][1]))
    assert Memory.of(kept([first[2]], [7], [0], [0]), np.array([4]), read) is None


def test_a_method_that_cannot_take_a_memory_says_who_can() -> None:
    with pytest.raises(ConfigurationError) as error:
        Recipe.from_dict({"model": {"variant": "orca"}, "training": {"exemplars_per_class": 3}})
    said = str(error.value).partition("choose from ")[2].removesuffix(" as --variant.")
    able = {name for name, each in METHODS.items() if each.uses_exemplars}
    assert set(said.split(", ")) == able >= {"promptccd-gcd", "simgcd", "grow-merge"}
