"""What methods learn and what groups are found is kept in ``tests/golden/numbers.json``.

Every method trains on two tiny stages; every way of grouping reads one set of points. Tests of their own say what is
right; here any other number is seen.
"""

import copy
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import Dinov2Config, Dinov2Model, PreTrainedConfig

from promptccd import clustering
from promptccd.clustering import counting
from promptccd.clustering.kmeans import suggest_split
from promptccd.clustering.spread import measure_spread
from promptccd.clustering.stream import EarlierImages, Stream, false_openings
from promptccd.data import StageStream
from promptccd.data.benchmarks import BENCHMARKS
from promptccd.data.randomness import torch_generator
from promptccd.data.readable import StageImages
from promptccd.data.splits import usual_cuts
from promptccd.discovery.grouping.open_grouping import KnownCategories, group_images
from promptccd.discovery.grouping.questions import pair_questions
from promptccd.evaluation import audit, published
from promptccd.evaluation.continual import ContinualAccuracy
from promptccd.evaluation.counting import estimate_by_accuracy
from promptccd.evaluation.protocols import SCORERS
from promptccd.methods import METHODS, StageContext
from promptccd.methods.exemplars import Memory
from promptccd.methods.pa_cgcd import new_classes, split_old_and_new
from promptccd.models.configuration import CategoryDiscoveryConfig, bounds_of
from promptccd.runs.stage import learn_prediction
from promptccd.training.features import extract_features
from promptccd.training.options import PretrainingOptions, TrainingArguments
from promptccd.training.pretraining import _join, _warp
from promptccd.training.progress import EpochRecord, progress_bar
from promptccd.training.stage_trainer import BatchPlan
from tests.conftest import TINY_BACKBONE, TINY_HEAD, coloured_images
from tests.evaluation.test_tasks import TASK, features
from tests.kept import in_lines, kept
from tests.training.test_stage_trainer import trainer_of

NEAR = 1e-3  # relative: processors differ in the last bits of a product, and training carries that on
SEED, WIDTH, KNOWN = 5, 12, 4
WIDE = {"initializer_range": 1.0, "num_hidden_layers": 3}  # so that features of different images differ
ARGUMENTS = TrainingArguments(
    epochs=1, batch_size=8, learning_rate=0.03, num_workers=0, prompt_warmup_epochs=0, kmeans_restarts=2,
    init_components=1, seed=SEED,
)  # fmt: skip
OPTIONS: dict[str, dict[str, Any]] = {  # a tenth of the time
    "metagcd": {"meta_episodes": 1, "meta_epochs": 1}, "dydm": {"expansion_size": 60}
}  # fmt: skip
SHIPPED = [name for name, each in METHODS.items() if each.model.__module__.startswith("promptccd.methods.")]
PLACED = {
    "prompt_place": "last", "prompt_scale": "tokens", "prompt_centred": True, "prompt_copies": 2,
    "prompts_per_image": 2, "covariance_type": "spherical",
}  # fmt: skip
LEARNT: dict[str, tuple[str, dict[str, Any], int | None]] = {  # a method, its options, categories of stage 1
    **{name: (name, OPTIONS.get(name, {}), 4) for name in SHIPPED},
    "promptccd, uncounted": ("promptccd", PLACED, None),
    "promptccd, any prompt": ("promptccd", {"random_prompts": True, "prompts_at_test": True}, 4),
    **{f"{each}, exemplars": (each, {}, 4) for each in ("simgcd", "grow-merge")},
    "promptccd-b, dualprompt": ("promptccd-b", {"pool": "dualprompt"}, 4),
    "promptccd-pp, features": ("promptccd-pp", {"anchor_on": "cls"}, 4),
    **{f"{name}, nothing new": (name, {}, 2) for name in ("happy", "grow-merge", "pa-cgcd", "vb-cgcd")},
    "dydm, nothing new": ("dydm", OPTIONS["dydm"], 2),
}  # fmt: skip


def plain(value: Any) -> Any:
    """As JSON; of many fractions their sum, their size, and a sum that tells their order."""
    if is_dataclass(value):
        # Iterations hang on last bits, and a margin is words.
        names = [each.name for each in fields(value) if "iter" not in each.name and each.name != "margin"]
        return {name: plain(getattr(value, name)) for name in names}
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, np.ndarray):
        value = torch.from_numpy(value)
    if isinstance(value, Tensor) and value.is_floating_point() and value.numel() > 1:
        flat = value.detach().double().flatten()
        return [float(flat.sum()), float(flat.abs().sum()), float(flat @ torch.arange(len(flat)).double())]
    if isinstance(value, Tensor):
        return value.tolist()
    if isinstance(value, tuple | list | range | Iterator):
        return [plain(each) for each in value]
    return value


def alike(found: Any, kept: Any) -> bool:
    """Whether two such values differ only as processors do."""
    if isinstance(kept, dict):
        return found.keys() == kept.keys() and all(alike(found[key], kept[key]) for key in kept)
    if isinstance(kept, list):
        return len(found) == len(kept) and all(map(alike, found, kept))
    return found == (pytest.approx(kept, rel=NEAR, abs=1e-6) if isinstance(kept, float) else kept)


def two_stages() -> list[StageImages]:
    """Images of two known categories, then of those and two new ones."""
    stream = StageStream.from_dataset(coloured_images(4, 6), class_blocks=[2, 2], seed=3)
    return [StageImages.read(stage, 0, progress_bar) for stage in stream]


def learnt(what: str, backbone: Path, stages: list[StageImages]) -> list[dict[str, Any]]:
    """What a method learns, by stage."""
    name, options, count = LEARNT[what]
    model = METHODS[name].model.from_pretrained(backbone, **TINY_HEAD, **options)
    model.head.reset_parameters(torch_generator("head", SEED), std=0.3)
    model.reset_prompts(torch_generator("prompts", SEED))
    found, places = list[dict[str, Any]](), [(stages[0], row) for row in (0, 5, 9)]
    memory = Memory(places, torch.tensor([0, 1, -1])) if "exemplars" in what else None
    for images in stages:
        found.append(_trained(name, model, images, *((count, memory) if images.stage.index else (2, None))))
        if images.stage.index == 0:
            model.config.category_ids = [0, 1]
            first = copy.deepcopy(model)
            model.begin_discovery(lambda first=first: first)
    return found


def _trained(
    name: str, model: Any, images: StageImages, count: int | None, memory: Memory | None
) -> dict[str, Any]:
    index, epochs = images.stage.index, list[EpochRecord]()
    labels = None if index else torch.from_numpy(images.stage.labels[images.positions])
    replay = model.replay(5, torch_generator("replay", SEED)) if index else None
    context = StageContext(images, labels, replay, count, memory)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    trainer = trainer_of(model, context, METHODS[name].objective, ARGUMENTS, end_epoch=epochs.append)
    trainer.train()
    model.config.stage = index
    features = extract_features(model, images, trainer.evaluation_view, 16, 0, prompted=False)
    learn_prediction(model, features, None if labels is None else labels.numpy(), count or 4, SEED)
    moved = Counter[str]()
    for key, value in model.state_dict().items():
        old = before[key] if key in before and before[key].shape == value.shape else torch.zeros_like(value)
        moved[key.partition(".")[0]] += float((value - old).double().abs().sum())
    own = {item.name for item in fields(model.config)} - {item.name for item in fields(PreTrainedConfig)}
    values = {field: getattr(model.config, field) for field in sorted(own)}
    return {
        "config": {field: each for field, each in values.items() if isinstance(each, int | float)},
        "losses": [each.losses for each in epochs],
        "moved": {key: value for key, value in sorted(moved.items()) if value},
        "learns": {role: sum(map(Tensor.numel, each)) for role, each in model.learning().items()},
        "values": {
            f"{when} {key}": [f"{value.dtype}", *value.shape]
            for when, every in (("before", before), ("after", model.state_dict()))
            for key, value in every.items()
            if key.count(".") < 3 and not key.startswith("backbone.")
        },
        "classes": plain(model.assign_natively(features)),
    }


class Points:
    """Unit features of four known categories, of 20 images each, and of six categories, of 10 images each."""

    def __init__(self) -> None:
        def drawn(*shape: int) -> Tensor:
            return torch.randn(shape, generator=torch_generator("points", *shape))

        means = drawn(KNOWN + 2, WIDTH)
        self.labels, others = torch.arange(KNOWN).repeat(20), torch.arange(KNOWN + 2).repeat(10)
        self.labelled = F.normalize(means[self.labels] + 0.6 * drawn(len(self.labels), WIDTH))
        self.free = F.normalize(means[others] + 0.6 * drawn(len(others), WIDTH))
        self.others = others
        self.every = torch.cat([self.labelled, self.free])
        self.fixed = torch.cat([self.labels, torch.full_like(others, -1)])
        self.prototypes = torch.stack([self.labelled[self.labels == each].mean(0) for each in range(KNOWN)])
        kinds = torch.arange(16) % 4 // 2 * 2 + torch.arange(16) // 8
        self.patches = 3 * means[kinds] + 0.5 * drawn(6, 16, WIDTH)
        self.known = KnownCategories(tuple(range(KNOWN)), self.prototypes)
        self.spread = measure_spread(self.labelled, self.labels, self.prototypes, seed=SEED)
        self.measured = replace(self.known, spread=self.spread)

    def ever_noisier(self) -> Iterator["Points"]:
        """The same with ever more noise: categories touch, then overlap, then are one."""
        for step in range(4, 16, 2):
            noise = torch.randn(self.every.shape, generator=torch_generator("noisier", step))
            noisy = copy.copy(self)
            noisy.every = F.normalize(self.every + 0.04 * step * noise)
            noisy.labelled, noisy.free = noisy.every.split([len(self.labelled), len(self.free)])
            yield noisy

    def grouped(self, known: KnownCategories, **options: Any) -> Any:
        """The free images in groups."""
        keys = [f"{row:03d}" for row in range(len(self.free))]
        return group_images(self.free, keys, known, next_id=KNOWN, seed=SEED, **options)


def _calibrated(points: Points) -> Any:
    mixture = clustering.CalibratedMixture(random_state=SEED).fit(points.labelled, points.labels)
    mixture.partial_fit(points.free[::2])
    mixture.partial_fit(points.free, num_categories=len(mixture.classes_) + 2)
    return mixture.gaussians_, mixture.predict_proba(points.free)


def _of_scikit_learn(points: Points) -> Any:
    given = points.every, points.fixed
    kmeans = clustering.SemiSupervisedKMeans(KNOWN + 2, random_state=SEED).fit(*given)
    counter = clustering.CategoryCounter(prior="calibrated", random_state=SEED).fit(*given)
    unlabelled = clustering.CategoryCounter(random_state=SEED).fit(points.free)
    return kmeans.labels_, kmeans.inertia_, kmeans.score(points.free), counter.estimate_, unlabelled.estimate_


def _opened(points: Points) -> Any:
    late, earlier = points.free.repeat(3, 1), points.labelled.repeat(4, 1)
    late, earlier = late + 0.01 * late.roll(1, 0), earlier + 0.01 * earlier.roll(1, 0)
    return Stream(late, earlier, torch.arange(len(earlier)) % 4, points.prototypes, 4, SEED).opened(0.5)


SAID: dict[str, Any] = {  # what people said of the free images, of which the last are near-duplicates of others
    "constraints": clustering.GroupingConstraints(
        must_link=(("000", "001"),), cannot_link=(("002", "008"), ("003", "055")), pinned={"004": 1, "005": 9},
        forbidden={"006": {0}, "013": {1, 2}, "056": {2}},
    ),
    "first_of": [*range(54), *range(48, 54)],
}  # fmt: skip


def _said(points: Points) -> Any:
    known = points.grouped(points.known, **SAID), points.grouped(points.known, num_categories=8, **SAID)
    return *known, points.grouped(points.measured, **SAID)


def _dense(points: Points) -> Any:
    sizes = torch.tensor([25, 20, 15, 6, 5, 3, 3, 3])
    centres = torch.randn(len(sizes), WIDTH, generator=torch_generator("dense"))
    noise = torch.randn(int(sizes.sum()), WIDTH, generator=torch_generator("in dense"))
    images = centres.repeat_interleave(sizes, 0) + 0.15 * noise
    keys = [f"{row:03d}" for row in range(len(images))]
    return group_images(images, keys, KnownCategories.none(WIDTH), next_id=0)


def _overlapping(points: Points) -> Any:
    """Groups, their number and what a person is asked about; and a stream."""
    for noisy in points.ever_noisier():
        for known in (KnownCategories.none(WIDTH), points.measured):
            groups, estimate = noisy.grouped(known)
            yield groups.category_ids, estimate, pair_questions(groups), suggest_split(noisy.free, seed=SEED)
        spread = measure_spread(noisy.labelled, points.labels, noisy.prototypes, seed=SEED)
        yield spread, _opened(noisy)


def _in_stream(points: Points) -> Any:
    labels = points.labels.repeat(4)
    earlier = EarlierImages(points.labelled.repeat(4, 1), labels, torch.zeros_like(labels), 1)
    known = replace(points.known, earlier=earlier).measured(SEED)
    return known.spread, points.grouped(known), points.grouped(known, **SAID)


def _asked(points: Points) -> Any:
    found, _ = points.grouped(points.known, num_categories=6)
    # No image of a group that others are close to.
    without = found.select((found.category_ids != 1).nonzero()[:, 0])
    return pair_questions(found), pair_questions(without), suggest_split(points.free, seed=SEED)


def _pretraining_pictures(points: Points) -> Any:
    drawn = torch_generator("joined, then warped")
    joined = _join(torch.rand(6, 3, 16, 16, generator=drawn), 0.5, drawn)
    return joined, _warp(joined, PretrainingOptions(), drawn)


def _printed(points: Points) -> Any:
    """Sums of the paper's tables, and the verdicts on their rows by protocol."""
    rows = audit(published())
    numbers = rows.select_dtypes("number").astype(float)
    sums = {name: f"{numbers[name].sum():.3f} of {numbers[name].count()}" for name in numbers}
    return sums, Counter(f"{row.protocol}: {row.outcome}" for row in rows.itertuples())


def _fields(config_class: type[CategoryDiscoveryConfig]) -> Any:
    """Defaults and bounds of the fields of a configuration."""
    defaults = {item.name: item.default for item in fields(config_class)}
    return {name: [defaults[name], *bounds] for name, bounds in bounds_of(config_class).items()}


def _scored(points: Points) -> Any:
    protocol = ContinualAccuracy(points.labels.numpy(), KNOWN, restarts=3, seed=SEED)
    found = protocol.discover([points.labelled, points.free], KNOWN + 2)
    return found, protocol.score(found, points.others.numpy()).to_dict()


PIXELS = replace(
    TASK, native=None, features=lambda stage, sets: [each.repeat(1, 200) for each in features(stage, sets)]
)
WAYS: dict[str, Callable[[Points], Any]] = {
    "k-means": lambda points: clustering.AnchoredKMeans(KNOWN + 2, 3, random_state=SEED).fit(
        points.free, points.labelled, points.labels
    ),
    "k-means, known centres fixed": lambda points: clustering.AnchoredKMeans(
        KNOWN + 2, 3, random_state=SEED, fix_labelled=True
    ).fit(points.free, points.labelled, points.labels),
    "estimators of scikit-learn": _of_scikit_learn,
    "mixture": lambda points: clustering.fit_gaussian_mixture(points.every, KNOWN + 2, fixed=points.fixed, seed=SEED),
    "spherical mixture": lambda points: clustering.fit_gaussian_mixture(
        points.every, KNOWN + 2, covariance_type="spherical", seed=SEED
    ),
    "split and merge": lambda points: clustering.split_and_merge(points.every, KNOWN, fixed=points.fixed, seed=SEED),
    "calibrated mixture": _calibrated,
    "count by accuracy": lambda points: estimate_by_accuracy(
        points.labelled, points.labels, points.free, restarts=2, seed=SEED
    ),
    "parts": lambda points: clustering.fit_part_labels(points.patches, (4, 4), 3, seed=SEED),
    "parts, their number too": lambda points: clustering.fit_part_labels(points.patches, (4, 4), "auto", seed=SEED),
    "spread": lambda points: points.spread,
    "trials": lambda points: [*counting.trials(points.free.repeat(6, 1), 3 * points.others.repeat(6), SEED)],
    "stream": lambda points: [_opened(points), [false_openings(stage) for stage in (1, 4)]],
    "groups without known ones": lambda points: points.grouped(KnownCategories.none(WIDTH)),
    "groups": lambda points: points.grouped(points.known),
    "groups in an open set": lambda points: points.grouped(points.measured),
    "groups in a stream": _in_stream,
    "groups as people said": _said,
    "groups that lie densely": _dense,
    "groups that come to overlap": _overlapping,
    "questions": _asked,
    "pretraining pictures": _pretraining_pictures,
    "printed": _printed,
    "benchmarks": lambda points: BENCHMARKS,
    "fields of methods": lambda points: {name: _fields(METHODS[name].model.config_class) for name in SHIPPED},
    "scores": _scored,
    "usual cuts": lambda points: [usual_cuts(stages) for stages in range(2, 8)],
    "batches": lambda points: [
        BatchPlan(23, size, 1, 2, least, count).batches(3)
        for size, least, count in (
            (8, 0, 7), (9, 0, 50), (2, 0, 3), (11, 0, 0), (11, 0.5, 0), (10, 0.3, 0), (30, 1, 0), (30, 1, 4)
        )
    ],
    "old and new": lambda points: split_old_and_new(
        points.free, (points.free @ points.prototypes.T).amax(1) - 0.5, torch_generator("split")
    ),
    "new classes": lambda points: [new_classes(points.free[:, :width], 3) for width in (4, WIDTH)],
    "protocols": lambda points: {
        name: each(TASK).to_dict() for name, each in SCORERS.items() if name != "part-routing"
    },
    "protocol of pixels": lambda points: SCORERS["c-gcd"](PIXELS).to_dict(),
    **{
        f"count, prior {name}": lambda points, name=name: clustering.estimate_categories(
            points.every[40:], KNOWN, fixed=points.fixed[40:], seed=SEED, prior=name
        )
        for name in clustering.PRIORS
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def wide_backbone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wide")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        Dinov2Model(Dinov2Config(**TINY_BACKBONE | WIDE)).save_pretrained(folder)
    return folder


images = pytest.fixture(two_stages, scope="module")


@pytest.fixture(scope="module")
def points() -> Points:
    return Points()


@pytest.mark.parametrize("name", LEARNT)
def test_a_method_learns_what_it_learnt(name: str, wide_backbone: Path, images: list[StageImages]) -> None:
    require_kept("methods", name, learnt(name, wide_backbone, images))


@pytest.mark.parametrize("name", WAYS)
def test_points_are_grouped_as_they_were(name: str, points: Points) -> None:
    require_kept("groups", name, WAYS[name](points))


def require_kept(what: str, name: str, value: Any) -> None:
    found = plain(value)
    assert alike(found, kept("numbers.json", found, what, name, text_of=in_lines)), found
