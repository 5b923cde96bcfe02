"""Recomputes a run's numbers from its saved stages, and baselines on the same split."""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor

from promptccd.clustering import CountEstimate
from promptccd.data.readable import ImageCache, Original, StageImages
from promptccd.data.stages import StageStream
from promptccd.data.views import EvaluationView
from promptccd.errors import DataError, RunError
from promptccd.evaluation import ContinualScore, score_part_routing
from promptccd.evaluation.counting import Counting
from promptccd.evaluation.protocol_terms import ESTIMATORS, options_by_protocol
from promptccd.evaluation.protocols import SCORERS, FeaturesOf, ScoredImages, Task
from promptccd.methods import method_named
from promptccd.methods.processes import exact_device
from promptccd.models import CategoryDiscoveryModel, load_configuration
from promptccd.runs.folder import RunDirectory
from promptccd.runs.stage import load_view
from promptccd.runs.start import initial_model, stage_stream
from promptccd.training.devices import device_named
from promptccd.training.features import extract_features, routing_agreement
from promptccd.training.progress import progress_bar

logger = logging.getLogger(__name__)


MOST_COPIES = 0.2  # of the test images; benchmarks have a handful


class RunEvaluation:
    """The saved stages of a run with the data they were trained on.

    Args:
        path: folder of the run.
        dataset: place of the data, if it has moved.
        num_workers: loader processes; by default as the machine allows.
        device: by default a GPU if available.
        keep_features: keep the computed features of all stages, for several protocols in sequence.
        stages: the data itself; by default it is read again.
        test_images: unseen images to go with `stages`, for protocols that need some.
        image_cache: where copies of images are kept, as in a recipe; by default the run's record, ``auto`` or
            ``off``, since a record names no folder.

    Raises:
        PromptCCDError: the folder is no run, a stage is damaged, or the data gives another split.
    """

    def __init__(
        self,
        path: str,
        dataset: str | None = None,
        num_workers: int | None = None,
        device: str | None = None,
        keep_features: bool = False,
        *,
        stages: StageStream | None = None,
        test_images: Dataset | None = None,
        image_cache: str | None = None,
    ):
        self.run = RunDirectory(path)
        self.recipe = self.run.recipe
        self.variant = method_named(self.recipe.model.variant).model
        if dataset is not None:
            self.recipe.data = replace(self.recipe.data, dataset=dataset)
        self.num_stages = self.run.stages_on_disk()
        try:
            self.stages = stages or stage_stream(self.recipe.data, self.recipe.training.seed)
        except DataError as error:
            streams = " if they are labelled, and streams have to be where they were"
            streams *= self.recipe.data.unlabelled is not None
            raise DataError(
                f"{error} If the images of {path} have moved, --dataset names their place{streams}."
            ) from error
        usual_split = self.recipe.data.resolved.test_split
        self._cut_unseen = partial(cut_unseen, self.stages, test_images, usual_split)
        self.run.require_split(self.stages)
        self.device, self.num_workers = device_named(device), num_workers
        seen: dict[bytes, Original] | None = None if self.stages.is_scored else {}
        self._cache = ImageCache.at(image_cache or self.recipe.training.image_cache, self.recipe.views)
        self.images = [  # conflicts and copies as the training left them out
            StageImages.read(stage, num_workers, progress_bar, self._cache, seen=seen, conflicting="drop")
            for stage in self.stages[: self.num_stages]
        ]
        self._keep_features = keep_features
        self._kept: dict[tuple[int, StageImages], Tensor] = {}
        self._loaded: dict[int, CategoryDiscoveryModel] = {}
        self._unseen: dict[tuple[str | None, str | None], ScoredImages] = {}

    def evaluate(self, protocol: str = "cacc", **options: str | None) -> ContinualScore:
        """Score every finished stage from its checkpoint alone.

        Args:
            protocol: a name in `promptccd.evaluation.PROTOCOLS`.
            options: ``test_split`` and ``estimator``, see `options_by_protocol`.

        Raises:
            ConfigurationError: an unknown protocol, or an option that it does not read.
            RunError: no unlabelled stage is finished.
            DataError: the data has no test images and the protocol needs some.
        """
        return self._score(protocol, self.features, options)

    def held_out_accuracy(self) -> dict[int, float]:
        """By stage, the percentage of left-out labelled images that get the category of their label.

        It needs no labels of streams. It is empty if no labelled image was left out.
        """
        if not self.recipe.data.resolved.held_out:
            return {}
        test, found = self.test_images(), {}
        for stage in range(self.num_stages):
            (features,) = self.features(stage, test.images)
            given = self.load_stage(stage).assign(features).category_ids.cpu().numpy()
            found[stage] = 100 * float(np.mean(given == test.labels[0]))
        return found

    def part_routing(self) -> ContinualScore | None:
        """How well patches of unlabelled stages are routed to their parts; `None` for models without parts."""
        if "num_parts" not in self.variant.config_class.__dataclass_fields__:
            return None
        rows, batch_size, num_known = [], self.recipe.training.feature_batch_size, self.stages.num_known
        for stage, images in enumerate(self.images[1:], start=1):
            model, view = self.load_stage(stage), load_view(self.run.stage(stage))
            assert model.part_labeller is not None
            share = routing_agreement(model.eval(), images, view, batch_size, self.num_workers)
            num_parts = model.part_labeller.num_parts
            rows.append(score_part_routing(stage, share, self.true_ids(images), num_known, num_parts))
        return ContinualScore("part-routing", rows) if rows else None

    def native_predictions(self, stage: int, images: StageImages) -> np.ndarray | None:
        """The native predictions ``(N,)`` of a stage's model for images; `None` for models without them."""
        model = self.load_stage(stage)
        none = torch.zeros(0, model.config.vision_config.hidden_size, device=model.device)
        if model.assign_natively(none) is None:
            return None  # before features are computed
        if model.native_prompted is None:
            (features,) = self.features(stage, [images])
        else:
            view = load_view(self.run.stage(stage))
            (features,) = self._features(model, view, [images], model.native_prompted)
        predicted = model.assign_natively(features)
        return None if predicted is None else predicted.cpu().numpy()

    def raw_pixels(self, protocol: str = "cacc", **options: str | None) -> ContinualScore:
        """A protocol on pixels in 0..1; arguments as in `evaluate`.

        If training images differ in size, or are larger than the view, the pixels come from the view. All pixels
        are in memory.
        """
        view = load_view(self.run.stage(0))
        size, *others = {images[index].size for images in self.images for index in range(len(images))}
        as_in_view = others or 3 * math.prod(size) > view.num_bytes

        def pixels(images: StageImages, index: int) -> Tensor:
            if as_in_view:
                return images.seen_in(view, index)
            image = images[index]
            return torch.from_numpy(np.array(image if image.size == size else image.resize(size)))

        def show(images: StageImages) -> Tensor:
            shown = [pixels(images, index).flatten() for index in range(len(images))]
            return torch.stack(shown).to(exact_device(self.device)) / 255

        return self._score(protocol, _of_no_stage(show), options)

    def frozen_backbone(self, protocol: str = "cacc", **options: str | None) -> ContinualScore:
        """A protocol on the backbone the run started from; arguments as in `evaluate`."""
        view = load_view(self.run.stage(0))
        model = initial_model(self.recipe, self.run).to(self.device)
        features = _of_no_stage(lambda images: self._features(model, view, [images], prompted=False)[0])
        return self._score(protocol, features, options)

    @property
    def training_stages(self) -> ScoredImages:
        """The images of the finished stages and their true categories."""
        return ScoredImages(self.images, [self.true_ids(images) for images in self.images])

    def test_stages(self, test_split: str | None = None) -> ScoredImages:
        """Unseen images cut into stages by the run's own rule and seed, as many stages as are finished.

        By default they are the images the run left out, else the benchmark's test split; a `DataError` without any.
        """
        return self._read_unseen(test_split, rule=None)

    def test_images(self, test_split: str | None = None) -> ScoredImages:
        """All unseen images, as one entry; arguments and errors as in `test_stages`."""
        return self._read_unseen(test_split, rule="whole")

    def _read_unseen(self, test_split: str | None, rule: str | None) -> ScoredImages:
        """Unseen images cut by a rule, by default the run's; their labels are ids of the run."""
        if (found := self._unseen.get((test_split, rule))) is not None:
            return found
        test = self._cut_unseen(test_split, rule)
        ids, stages = ids_in_run(test, self.stages), test[: self.num_stages]
        images = [StageImages.read(stage, self.num_workers, progress_bar, self._cache) for stage in stages]
        require_unseen(images, self.images)
        labels = [ids[test.evaluation_labels(each.stage)[each.positions]] for each in images]
        return self._unseen.setdefault((test_split, rule), ScoredImages(images, labels))

    def _score(
        self, protocol: str, features: FeaturesOf, options: Mapping[str, str | None]
    ) -> ContinualScore:
        own = options_by_protocol([protocol], **options)[protocol]
        if self.num_stages < 2:
            raise RunError(
                f"{self.run.path} has finished only stage 0, and accuracy needs an unlabelled stage. Run the training "
                "command again to resume."
            )
        training = self.recipe.training
        task = Task(
            trained=self.training_stages,
            test_stages=lambda: self.test_stages(own.get("test_split")),
            test_images=lambda: self.test_images(own.get("test_split")),
            features=features,
            count_of_stage=self.count_of_stage,
            estimate=Counting(training, own.get("estimator", ESTIMATORS[0])).estimate,
            part_routing=self.part_routing,
            native=self.native_predictions if features == self.features else None,
            method=self.recipe.model.variant,
            num_known=self.stages.num_known,
            restarts=training.kmeans_restarts,
            seed=training.seed,
        )
        return replace(SCORERS[protocol](task), protocol=protocol)

    def features(self, stage: int, images: Sequence[StageImages]) -> list[Tensor]:
        """Features of images, of stages or a test set, under the model of a stage: ``(N, D)`` each, L2-normalised."""
        if not self._keep_features:
            self._kept = {place: values for place, values in self._kept.items() if place[0] == stage}
        if missing := [each for each in images if (stage, each) not in self._kept]:
            found = self._features(self.load_stage(stage), load_view(self.run.stage(stage)), missing)
            self._kept |= {(stage, each): values for each, values in zip(missing, found, strict=True)}
        return [self._kept[stage, each] for each in images]

    def load_stage(self, stage: int) -> CategoryDiscoveryModel:
        """The model of a finished stage on the device, kept until that of another one is loaded.

        A `CheckpointError` if it is refused.
        """
        if stage not in self._loaded:
            most_bytes = self.recipe.model.max_model_bytes
            model = self.variant.from_pretrained(self.run.stage(stage), max_model_bytes=most_bytes)
            self._loaded = {stage: model.to(self.device)}
        return self._loaded[stage]

    def _features(
        self,
        model: CategoryDiscoveryModel,
        view: EvaluationView,
        images: Sequence[StageImages],
        prompted: bool | None = None,
    ) -> list[Tensor]:
        batch_size, device = self.recipe.training.feature_batch_size, exact_device(model.device)
        return [
            extract_features(model, each, view, batch_size, self.num_workers, prompted=prompted).to(device)
            for each in images
        ]

    def count_of_stage(self, stage: int) -> CountEstimate:
        """K_t of a stage in this run: given, or the estimate that the checkpoint records."""
        recorded = load_configuration(self.run.stage(stage)).count_estimate
        if recorded is None:
            training = self.recipe.training
            counting = Counting(training, training.counting)
            return CountEstimate.known(counting.number(self.images[stage].stage))
        return CountEstimate(**recorded)

    def true_ids(self, images: StageImages) -> np.ndarray:
        """True category ids of the readable images of a stage, ``(N,)``; for scoring."""
        return self.stages.evaluation_labels(images.stage)[images.positions]


def _of_no_stage(compute: Callable[[StageImages], Tensor]) -> FeaturesOf:
    """Features that do not depend on the stage, each computed once."""
    once = cache(compute)
    return lambda stage, images: [once(each) for each in images]


def cut_unseen(
    stages: StageStream,
    test_images: Dataset | None,
    usual_split: str | None,
    test_split: str | None,
    rule: str | None,
) -> StageStream:
    """Unseen images, cut like the stages of a run or by another rule; a `DataError` that says what to do without any.

    Args:
        stages: of the run.
        test_images: images that a caller gave.
        usual_split: the benchmark's split with test images.
        test_split: the split that was asked for; it replaces both, and the images that the run held out.
        rule: replaces the split rule of the stages.
    """
    source, changes = stages.source, {"rendering": stages.rendering} | ({"split_rule": rule} if rule else {})
    everything = {**changes, "held_out": 0.0, "images_per_class": None}
    if source is not None and test_split is None:
        if test_images is not None:
            return stages.again(dataset=test_images, **everything)
        if source["held_out"] > 0:  # a local copy of a benchmark may lack its test split
            return stages.again(held_out_only=True, **changes)
    name, remedy = test_split or usual_split, "Give --test_split another split, or train with --held_out 0.2."
    if source is None or name is None or not isinstance(source["dataset"], str):
        raise DataError(
            f"No test images are known of these stages. {remedy} In Python, give CategoryDiscoveryTrainer an "
            "eval_dataset."
        )
    if name == source["split"]:
        raise DataError(f"The run was trained on split {name!r} of {source['dataset']!r}. {remedy}")
    try:
        return stages.again(split=name, **everything)
    except DataError as error:
        raise DataError(
            f"No test images from split {name!r} of {source['dataset']!r}: {error} {remedy}"
        ) from error


def ids_in_run(test: StageStream, stages: StageStream) -> np.ndarray:
    """The run's id of every category of unseen images, ``(C,)``.

    One stage of all images has categories of the run; stages have every category.
    """
    ids = {name: index for index, name in enumerate(stages.categories)}
    foreign = [name for name in test.categories if name not in ids]
    lacking = sorted(ids.keys() - set(test.categories))
    if foreign or (test.split.rule != "whole" and test.categories != stages.categories):
        raise DataError(
            f"The test images are of other categories than the run's: {foreign[:3]} are added and {lacking[:3]} are "
            "missing. Give --test_split a split with the same categories."
        )
    return np.asarray([ids[name] for name in test.categories])


def require_unseen(test: Sequence[StageImages], trained_on: Sequence[StageImages]) -> None:
    """Warn of test images with the same pixels as a training image; a fifth of them is a `DataError`."""
    trained = {digest: (each, index) for each in trained_on for index, digest in enumerate(each.digests)}
    tests = [(digest, each, index) for each in test for index, digest in enumerate(each.digests)]
    copies = [row for row in tests if row[0] in trained]
    if copies:
        digest, tested, place = copies[0]
        images, index = trained[digest]
        found = (
            f"{len(copies)} of {len(tests)} test images are copies of training images, such as "
            f"{tested.name_of(place)!r} of {images.name_of(index)!r}"
        )
        if len(copies) > MOST_COPIES * len(tests):
            raise DataError(f"{found}. Give other images with --test_split, or train with --held_out 0.2.")
        logger.warning("%s: the figures are not of unseen images.", found)
