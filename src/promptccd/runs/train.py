"""Training of a run: every stage is trained, grouped, scored and saved; a run that was begun continues."""

import logging
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor

from promptccd import systems
from promptccd.clustering import CountEstimate
from promptccd.clustering.spread import measure_spread
from promptccd.data.randomness import torch_generator
from promptccd.data.readable import ImageCache, Original, StageImages
from promptccd.data.stages import LabelledStage, Stage, StageStream
from promptccd.data.views import EvaluationView, TrainingViews
from promptccd.discovery.project.observe import NO_CATEGORY
from promptccd.discovery.project.registry import CategoryRegistry, load_registry
from promptccd.disk import trusted
from promptccd.errors import DeviceError, DiskError, SplitMismatchError
from promptccd.evaluation import ContinualAccuracy, ContinualScore, StageScore, labelled_categories
from promptccd.evaluation.counting import Counting
from promptccd.locks import FolderLock
from promptccd.methods import StageContext, method_named
from promptccd.methods.processes import exact_device, same_on_all
from promptccd.models import CategoryDiscoveryConfig, CategoryDiscoveryModel, load_configuration
from promptccd.runs.card import stage_card
from promptccd.runs.folder import STREAMS, RunDirectory, stream_row
from promptccd.runs.stage import (
    AssignedImages,
    earlier_images,
    exemplars_after,
    learn_prediction,
    load_view,
    memory_before,
    observe_stage,
    save_stage,
)
from promptccd.runs.start import (
    begin,
    ensure_backbone,
    evaluation_view,
    model_on_meta,
    require_own_folder,
    require_whole_patches,
    stage_stream,
    stage_zero_model,
)
from promptccd.training.devices import (
    accelerator_for,
    device_problem,
    is_out_of_memory,
    log_device,
    reproducible,
    require_plain,
)
from promptccd.training.features import extract_features, measure
from promptccd.training.progress import (
    Callbacks,
    CategoryDiscoveryCallback,
    RunState,
    StopRequest,
    Tracking,
    TrainingStopped,
)
from promptccd.training.recipe import Recipe
from promptccd.training.stage_trainer import StageTrainer, TrainingState

logger = logging.getLogger(__name__)

_Metrics = tuple[dict[str, float], dict[str, float]]  # of a stage: its row of the table, and its prompts


def train_run(
    recipe: Recipe,
    accelerator: Accelerator | None = None,
    *,
    stages: StageStream | None = None,
    callbacks: Sequence[CategoryDiscoveryCallback] = (),
) -> ContinualScore:
    """Train all stages of a recipe into ``recipe.training.output_dir``; a run that was begun continues.

    Args:
        recipe: the data, the model and how to train it.
        accelerator: by default made as in the recipe; it may not accumulate gradients or shard the model.
        stages: by default they are cut as the recipe says.
        callbacks: called during the training; they may end it early.

    Returns:
        The table so far, also in ``results.json``; of all stages, unless a callback ended the training.

    Raises:
        PromptCCDError: the message gives the cause and the remedy; saved files stay.
    """
    training, own_processes = recipe.training, accelerator is None
    run = RunDirectory(training.output_dir)
    if training.mixed_precision == "auto" and run.begun:
        training = replace(training, mixed_precision=run.recipe.training.mixed_precision)
    accelerator = accelerator or accelerator_for(training)
    if training.mixed_precision == "auto":
        is_bf16 = accelerator.mixed_precision == "bf16"
        training = replace(training, mixed_precision="bf16" if is_bf16 else "no")
    recipe = replace(recipe, training=training)  # checked again: a person may have changed its fields
    require_plain(accelerator)
    model_on_meta(recipe, 0)  # refuses an impossible model before anything is read or written
    if not run.begun:
        require_own_folder(run, recipe.data)
        require_whole_patches(recipe)
    if is_main := accelerator.is_main_process:
        log_device(accelerator, training.num_workers)
    stages = stages or stage_stream(recipe.data, training.seed)
    if not stages.is_scored:
        # Numbers of categories are checked again, now that the stages are known.
        recipe = replace(recipe, data=replace(recipe.data, class_blocks=[*stages.split.class_blocks]))
        if is_main:
            logger.info(
                "%d images of %d categories are labelled, %d are not (streams: %d). Numbers of categories: %s "
                "(--category_count). Nothing is scored.", len(stages.labelled), stages.num_known,
                sum(map(len, stages[1:])), len(stages) - 1, training.counting,
            )  # fmt: skip
    with StopRequest() as stop, ExitStack() as context:
        if is_main:
            context.enter_context(FolderLock(run.path))
            begin(run, recipe, stages)
        accelerator.wait_for_everyone()
        context.enter_context(_named_failures(run, training.batch_size))
        context.enter_context(reproducible(training.deterministic))
        score = _Training(recipe, stages, run, accelerator, stop, callbacks).train()
    if own_processes:
        accelerator.end_training()
    return score


@contextmanager
def _named_failures(run: RunDirectory, batch_size: int) -> Iterator[None]:
    """Give failures of a device a message."""
    try:
        yield
    except (RuntimeError, MemoryError, TypeError) as error:
        if (problem := device_problem(error)) is None:
            raise
        smaller = f", or with --batch_size {max(2, batch_size // 2)} in a new --output_dir"
        raise DeviceError(
            f"{problem}. Saved files in {run.path} are complete: run the same command again to resume from there"
            f"{smaller * is_out_of_memory(error)}."
        ) from error


class _Training:
    """The stages of one call of `train_run`, in one process."""

    view: EvaluationView
    known_ids: np.ndarray  # categories of the labelled images
    # Of the stage in training:
    model: CategoryDiscoveryModel
    earlier: AssignedImages  # images of the stages before it
    count: CountEstimate | None  # its number of categories, where that is known
    started: float

    def __init__(
        self,
        recipe: Recipe,
        stages: StageStream,
        run: RunDirectory,
        accelerator: Accelerator,
        stop: StopRequest,
        callbacks: Sequence[CategoryDiscoveryCallback],
    ):
        self.recipe, self.stages, self.run, self.arguments = recipe, stages, run, recipe.training
        self.accelerator, self.stop = accelerator, stop
        self.is_main, self.method = accelerator.is_main_process, method_named(recipe.model.variant)
        self.images: list[StageImages] = []  # of the stages so far
        self._counts = Counting(self.arguments, self.arguments.counting)
        is_tracked = self.arguments.report_to != "none" or accelerator.trackers
        tracking = [Tracking(accelerator, run.name, run.manifest)] if is_tracked else []
        self.callbacks = Callbacks(
            self.arguments,
            stop,
            RunState(run.path, len(stages), self.is_main),
            [*tracking, *callbacks],
            history=run.path if self.is_main else None,
        )

    def train(self) -> ContinualScore:
        # The main process checks the files for all.
        candidates = range(len(self.stages)) if self.is_main else ()
        finished: list[int] = same_on_all([stage for stage in candidates if trusted(self.run.stage(stage))])
        if finished:
            logger.info("Finished already in %s: stages %s.", self.run.path, ", ".join(map(str, finished)))
        if self.is_main:
            # Even if nothing is finished, a damaged table of scores is refused before anything trains.
            score_finished(self.run, self.stages, finished)
            for stage in finished:
                self.run.forget_states(stage)
        if len(finished) < len(self.stages):
            self.view = load_view(self.run.stage(0)) if 0 in finished else evaluation_view(self.recipe)
            self.view.record(self.stages.rendering)
            self.callbacks.call("on_train_begin")
            try:
                self._train_missing(finished)
            except TrainingStopped as stopped:
                logger.info("%s", stopped)
            self.callbacks.call("on_train_end")
        elif labels := self.stages.later_labels:
            logger.info(
                "%d later labels count from the next stream on: give it as --unlabelled.", len(labels)
            )
        return self.run.results

    def _train_missing(self, finished: Sequence[int]) -> None:
        seen: dict[bytes, Original] = {}  # first image of every pixel digest
        cache, progress = ImageCache.at(self.arguments.image_cache, self.recipe.views), self.stop.progress
        workers, data = self.arguments.num_workers, self.recipe.data
        conflicts = data.conflicting_labels or ("refuse" if data.benchmark is None else "drop")
        for stage in self.stages:
            self.started, index = time.monotonic(), stage.index
            images = StageImages.read(stage, workers, progress, cache, seen=seen, conflicting=conflicts)
            self.images.append(images)
            if isinstance(stage, LabelledStage):
                self.known_ids = stage.labels[images.positions]
            if index in finished:
                continue
            figures, measured = same_on_all(self._train_stage(stage))  # every process has callbacks
            if self.is_main:
                self.run.forget_states(index)
            if figures:
                self.callbacks.call("on_evaluate", metrics=figures)
            self.callbacks.call("on_stage_end", metrics=measured)
            if self.stop.agreed(self.accelerator) and self.stop.asked:
                raise self.stop.error(f"stage {index} is finished")

    # One stage

    def _train_stage(self, stage: Stage) -> _Metrics:
        """Train a stage from its start or its saved state, and finish it."""
        index, device = stage.index, self.accelerator.device
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        if index:
            load, most_bytes = self.method.model.from_pretrained, self.recipe.model.max_model_bytes
            self.model = load(self.run.stage(index - 1), max_model_bytes=most_bytes).to(device)
            self.model.begin_discovery(partial(load, self.run.stage(0), max_model_bytes=most_bytes))
        else:
            if self.is_main:
                ensure_backbone(self.recipe, self.run, self.images[0], device, self.stop.progress)
            self.accelerator.wait_for_everyone()
            self.model = stage_zero_model(self.recipe, self.run, self.images[0], self.known_ids, device)
        self.earlier = earlier_images(self.run, self.images[:-1], self.stages.later_labels)
        if self.is_main:
            self._log_labels(stage)
        assigned = self.earlier.assigned
        count = self._counts.before_training(stage, self._features, assigned)
        if count is None and self.method.objective.needs_count:
            count = self._counts.estimate(index, self._features(), assigned)
        self.count = same_on_all(count)
        state, seconds = self.run.load_state(index) or (None, 0.0)
        self.started -= seconds
        if state:
            logger.info("Stage %d resumes at epoch %d, step %d.", index, state.epoch, state.step)
        self.callbacks.state.stage, self.callbacks.state.model = index, self.model
        self.callbacks.call("on_stage_begin")
        trainer = self._trainer(stage)
        try:
            trainer.train(state)
            return self._finish_stage(stage)
        except BaseException:  # also a signal or too little memory: the steps are not lost
            if trainer.unsaved is not None:
                with suppress(DiskError):  # the first error names the full disk
                    trainer.save(trainer.unsaved)
            raise

    def _log_labels(self, stage: Stage) -> None:
        """Warn of categories without an image at stage 0, and log what later labels change before another stage."""
        given, made = self.stages.later_labels, self.earlier.labelled
        if isinstance(stage, LabelledStage):
            bare = np.setdiff1d(np.arange(self.stages.num_known), self.known_ids)
            if len(bare):
                logger.warning(
                    "Stage 0 has no image of %d of its %d categories, such as %s: they cannot be learnt, and their "
                    "images will be found as new categories.", len(bare), self.stages.num_known,
                    stage.category_names[bare[0]],
                )  # fmt: skip
        elif given:
            logger.info(
                "Later labels, before stage %d: %d, for %d images of earlier stages; %d change their category; "
                "named: %s; new: %s.", stage.index, len(given), made.images, made.moved,
                ", ".join(made.named) or "none", ", ".join(made.new) or "none",
            )  # fmt: skip

    def _trainer(self, stage: Stage) -> StageTrainer:
        """The trainer of a stage with its images, labels, replayed features, number of categories and exemplars."""
        arguments, images, labels, replay, memory = self.arguments, self.images[-1], None, None, None
        if isinstance(stage, LabelledStage):
            labels = torch.from_numpy(self.known_ids)
        elif arguments.replay_samples:
            generator = torch_generator("replay", arguments.seed, stage.index)
            replay = self.model.replay(arguments.replay_samples, generator)
        if stage.index and arguments.exemplars_per_class:
            memory = memory_before(self.run, self.earlier, self.images, arguments.exemplar_labels)
        count = None if self.count is None else self.count.count

        def save(state: TrainingState) -> None:
            if self.is_main:
                self.run.save_state(stage.index, state, time.monotonic() - self.started)

        return StageTrainer(
            self.model,
            StageContext(images, labels, replay, count, memory),
            self.method.objective,
            callbacks=self.callbacks,
            views=TrainingViews(self.recipe.views),
            evaluation_view=self.view,
            accelerator=self.accelerator,
            save=save,
        )

    # The end of a stage

    def _finish_stage(self, stage: Stage) -> _Metrics:
        """Group, score and save; the stage's folder is written last, because it marks the stage as finished."""
        model, images, num_known, seed = (
            self.model, self.images[-1], self.stages.num_known, self.arguments.seed,
        )  # fmt: skip
        model.config.stage, model.config.num_known = stage.index, num_known
        features, before = self._features(), self.earlier.assigned
        if isinstance(stage, LabelledStage):
            found, labels, count = labelled_categories(features[0], self.known_ids), self.known_ids, num_known
        else:
            if self.count is None:
                self.count = same_on_all(self._counts.estimate(stage.index, features, before))
            if self.count.is_estimate:
                model.config.count_estimate = self.count.to_dict()
            restarts = self.arguments.kmeans_restarts
            protocol = ContinualAccuracy(before[0], num_known, restarts=restarts, seed=seed)
            protocol.assigned = before
            found, labels, count = protocol.discover(features, self.count.count), None, self.count.count
        names = self.stages.labelled.category_names
        registry, found = observe_stage(self.earlier, found, images.sample_ids, names)
        model.set_categories(found.prototypes, found.prototype_ids, registry.active_prototypes().names)
        assignments = {"sample_ids": images.sample_ids, "category_ids": found.category_ids}
        learn_prediction(model, features[-1], labels, count, seed)
        if stage.index:
            own = features[-1]
            if model.native_prompted is not None:
                own = self._features_of(images, model.native_prompted)
            if (classes := model.assign_natively(own)) is not None:
                assignments["class_ids"] = classes.cpu().numpy()
        assigned = [*before, found.category_ids]
        places = {category: row for row, category in enumerate(model.config.category_ids)}
        rows = torch.tensor([places.get(each, -1) for each in np.concatenate(assigned).tolist()])
        labelled = torch.arange(len(rows)) < len(assigned[0])
        spread = measure_spread(torch.cat(features), rows, model.prototypes, seed=seed, labelled=labelled)
        model.set_measured("spread", spread)
        return self._save(features[-1], assignments, registry) if self.is_main else ({}, {})

    def _save(
        self, features: Tensor, assignments: Mapping[str, np.ndarray], registry: CategoryRegistry
    ) -> _Metrics:
        """Write a stage's row of the table or record of its stream, the manifest, and the checkpoint."""
        run, model, images, training = self.run, self.model, self.images[-1], self.arguments
        config, index, ids = model.config, images.stage.index, assignments["category_ids"]
        measured = measure(
            model, images, self.view, ids, seed=training.seed, batch_size=training.feature_batch_size
        )
        device, seconds = self.accelerator.device, round(time.monotonic() - self.started, 1)
        of_gpu = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None  # by this stage
        memory = {"process": systems.peak_memory(), "accelerator": of_gpu}  # most bytes in use at once
        facts: dict[str, Any] = {"seconds": seconds, "peak_memory": memory, "instruments": measured}
        metrics: dict[str, float] = {}
        if index and self.stages.is_scored:
            score = _score(self.stages, index, config, assignments, len(config.category_ids))
            run.record(score)
            metrics = run.results_up_to(index).metrics(first=index)
            parts = {"All": score.all, "Old": score.old, "New": score.new}.items()
            logger.info(
                "stage %d: %s over %d images. %d categories so far", index,
                ", ".join(f"{part} {value:.1f}" for part, value in parts if not math.isnan(value)),
                score.num_images, score.num_categories,
            )  # fmt: skip
        elif index:
            not_sure = int(model.assign(features).novel.sum())
            facts[STREAMS] = stream_row(index, ids, self.earlier.assigned, config, not_sure, self.count)
            folders = self.recipe.data.unlabelled or []
            name = Path(folders[index - 1]).name if index <= len(folders) else f"stage {index}"
            logger.info("%s: %s", name, facts[STREAMS]["summary"])
        estimated = self.count is not None and self.count.is_estimate
        if estimated and not np.setdiff1d(ids[ids >= 0], np.concatenate(self.earlier.assigned)).size:
            logger.warning(
                "stage %d: no new category was found in %d images; the number of categories is %s. If there are new "
                "categories, give the numbers of all stages to --category_count, in a new --output_dir.",
                index, len(ids), self.count,
            )  # fmt: skip
        reports = [vars(images.report) for images in self.images]
        run.write("images.json", {"stages": reports, "left_out": dict(self.stages.left_out)})
        run.update_manifest({name: {f"stage{index}": value} for name, value in facts.items()})
        exemplars = None
        if training.exemplars_per_class:
            exemplars = exemplars_after(
                run, self.earlier, images, features, assignments, training, with_classes=model.predicts
            )
        split = self.stages.split.first(index + 1)
        card = stage_card(
            run,
            self.recipe,
            config,
            fingerprint=split.fingerprint,
            category_ids=ids,
            device=device,
            instruments=measured,
            corrections=len(registry.corrections),
        )
        save_stage(run.stage(index), model, self.view, assignments, card, registry, exemplars)
        return metrics, measured

    # Features and categories

    def _features(self) -> list[Tensor]:
        """Features of the images so far; of earlier stages only of images with a category."""
        found = [self._features_of(images) for images in self.images]
        for stage, ids in enumerate(self.earlier.ids):
            if NO_CATEGORY in ids:  # most stages need no copy
                found[stage] = found[stage][torch.from_numpy(ids != NO_CATEGORY).to(found[stage].device)]
        return found

    def _features_of(self, images: StageImages, prompted: bool | None = None) -> Tensor:
        arguments, progress = self.arguments, self.stop.progress
        found = extract_features(
            self.model, images, self.view, arguments.feature_batch_size, arguments.num_workers,
            prompted=prompted, progress=progress,
        )  # fmt: skip
        return found.to(exact_device(self.accelerator.device))


def score_finished(run: RunDirectory, stages: StageStream, finished: Sequence[int]) -> None:
    """Add the missing rows of finished stages to the table, such as stages fetched from the Hub.

    Raises:
        SplitMismatchError: a stage was trained on images that do not belong to that stage of `stages`.
    """
    scored = {row.stage for row in run.results.stages}
    for index in finished:
        assignments = run.assignments(index)
        if not np.isin(assignments["sample_ids"], stages[index].sample_ids).all():
            raise SplitMismatchError(
                f"{run.stage(index)} was trained on other images than stage {index} contains here: use the data set, "
                "class_blocks, cuts and seed it was made with, or start a new output_dir."
            )
        if index > 0 and index not in scored and stages.is_scored:
            registry = load_registry(run.stage(index))
            while registry.newest is not None:  # a later correction changes no row
                registry.undo()
            config = load_configuration(run.stage(index))
            run.record(_score(stages, index, config, assignments, len(registry.active)))


def _score(
    stages: StageStream,
    index: int,
    config: CategoryDiscoveryConfig,
    assignments: Mapping[str, Any],
    num_categories: int,
) -> StageScore:
    """A finished stage's row of the table, from the columns of its ``assignments.json``."""
    estimate = config.count_estimate
    places = np.searchsorted(stages[index].sample_ids, assignments["sample_ids"])
    return StageScore.of(
        index,
        stages.evaluation_labels(stages[index])[places],
        assignments["category_ids"],
        stages.num_known,
        num_categories=num_categories,
        count_range=None if estimate is None else (estimate["low"], estimate["high"]),
        native_ids=assignments.get("class_ids"),
    )
