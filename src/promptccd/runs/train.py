"""Training of a run: every stage is trained, grouped, scored and saved; a run that was begun continues."""

import logging
import math
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import DistributedDataParallelKwargs, GradientAccumulationPlugin, InitProcessGroupKwargs
from torch import Tensor

from promptccd.clustering import CountEstimate
from promptccd.clustering.spread import measure_spread
from promptccd.data.cached import ImageCache
from promptccd.data.loaders import workers_for
from promptccd.data.randomness import torch_generator
from promptccd.data.readable import Original, StageImages
from promptccd.data.stages import LabelledStage, Stage, StageStream
from promptccd.data.views import TrainingViews
from promptccd.disk import trusted
from promptccd.errors import ConfigurationError, DeviceError, DiskError, OutOfMemoryError, SplitMismatchError
from promptccd.evaluation import ContinualAccuracy, ContinualScore, Discovery, labelled_categories
from promptccd.evaluation.counting import COUNTS
from promptccd.locks import FolderLock
from promptccd.methods import StageContext, method_named
from promptccd.models import CategoryDiscoveryModel
from promptccd.registry import GROUPING, CategoryRegistry
from promptccd.runs.card import Example, example_pictures, stage_card
from promptccd.runs.folder import (
    LICENCE,
    NORMALISATION,
    RunDirectory,
    StreamRecord,
    record_stream,
    stream_records,
)
from promptccd.runs.provenance import CARD, Licence, Source, licence_of, licence_on
from promptccd.runs.stage import (
    EarlierImages,
    categories_at,
    earlier_images,
    exemplars_after,
    load_configuration,
    load_stage,
    memory_before,
    observe_stage,
    row_of,
    save_stage,
)
from promptccd.runs.start import (
    OUT_OF_MEMORY,
    backbone_of,
    begin,
    ensure_backbone,
    evaluation_view,
    model_on_meta,
    require_whole_patches,
    stage_stream,
    stage_zero_model,
)
from promptccd.runs.tracking import Tracking, group_picture
from promptccd.training.callbacks import Callbacks, CategoryDiscoveryCallback, RunState, require_callbacks
from promptccd.training.devices import (
    PATIENCE,
    device_problem,
    exact_device,
    reported_gpu,
    reproducible,
    require_alike,
    same_on_all,
    usual_device,
    usual_precision,
    warn_of_emulation,
)
from promptccd.training.features import extract_features
from promptccd.training.history import EpochRecord, add_epoch, peak_memory, read_history, reset_peak_memory
from promptccd.training.instruments import Instruments, measure
from promptccd.training.options import MixedPrecision, TrainingArguments
from promptccd.training.progress import StopRequest, TrainingStopped
from promptccd.training.recipe import Recipe
from promptccd.training.stage_trainer import StageTrainer, TrainingState

logger = logging.getLogger(__name__)

# Called with a run and its finished stages, for example to push them.
AfterStages = Callable[[RunDirectory, Sequence[int]], None]

_SHARDING = {"FSDP": "FSDP", "DEEPSPEED": "DeepSpeed", "MEGATRON_LM": "Megatron-LM"}


def train_run(
    recipe: Recipe,
    accelerator: Accelerator | None = None,
    after_stages: AfterStages | None = None,
    *,
    stages: StageStream | None = None,
    callbacks: Sequence[CategoryDiscoveryCallback] = (),
) -> ContinualScore:
    """Train all stages of a recipe into ``recipe.training.output_dir``; a run that was begun continues.

    Args:
        recipe: the data, the model and how to train it.
        accelerator: by default one is made as the recipe says; it may not accumulate gradients or shard the model.
        after_stages: the main process calls it with the run and its finished stages, at the start (if any are
            finished) and after every stage. With several processes it runs in a thread, and is waited for at the end.
        stages: by default they are cut as the recipe says.
        callbacks: called during the training; they may end it early.

    Returns:
        The table so far, also in ``results.json``; of all stages, unless a callback ended the training.

    Raises:
        PromptCCDError: the message names the cause and what to do; what was saved stays.
    """
    require_callbacks(callbacks)
    own_processes, run = accelerator is None, RunDirectory(recipe.training.output_dir)
    if run.begun and recipe.training.mixed_precision == "auto":
        recipe = _in_precision(recipe, run.recipe.training.mixed_precision)
    accelerator = accelerator or accelerator_for(recipe.training)
    recipe = _in_precision(recipe, "bf16" if accelerator.mixed_precision == "bf16" else "no")
    _require_usual(accelerator)
    model_on_meta(recipe, 0)  # refuses an impossible model before anything is read or written
    if not run.begun:
        require_whole_patches(recipe)
    if accelerator.is_main_process:
        _log_device(accelerator, recipe.training.num_workers)
        warn_of_emulation(recipe.training.frozen_precision, accelerator.device)
    stages = stages or stage_stream(recipe.data, recipe.training.seed)
    if not stages.is_scored:
        recipe = replace(recipe, data=replace(recipe.data, class_blocks=[*stages.split.class_blocks]))
        if accelerator.is_main_process:
            _log_streams(recipe.training, stages)
    with StopRequest() as stop, ExitStack() as context:
        if accelerator.is_main_process:
            context.enter_context(FolderLock(run.path))
            begin(run, recipe, stages)
        accelerator.wait_for_everyone()
        context.enter_context(_named_failures(run, recipe.training.batch_size))
        context.enter_context(reproducible(recipe.training.deterministic))
        if after_stages and accelerator.num_processes > 1 and accelerator.is_main_process:
            after_stages = context.enter_context(InBackground(after_stages))
        score = _Training(recipe, stages, run, accelerator, stop, after_stages, callbacks).train()
    if own_processes:
        accelerator.end_training()
    return score


@contextmanager
def _named_failures(run: RunDirectory, batch_size: int) -> Iterator[None]:
    """Record a batch that needed too much memory, and give failures of a device a message."""
    try:
        yield
    except OutOfMemoryError:
        run.write(OUT_OF_MEMORY, {"batch_size": batch_size})
        raise
    except (RuntimeError, MemoryError, TypeError) as error:
        if (problem := device_problem(error)) is None:
            raise
        raise DeviceError(
            f"{problem}. What was saved in {run.path} is whole: run the same command again to resume from there."
        ) from error


def accelerator_for(arguments: TrainingArguments, device: torch.device | None = None) -> Accelerator:
    """The accelerator of a training: its device, precision and tracker; on the CPU where there is no GPU.

    The recipe decides precision and steps, whatever a launcher or a job script left in the environment; a warning
    names the difference. A recipe with precision ``auto`` accepts bf16 from the launcher.
    """
    device = device or torch.device(usual_device(reported_gpu()))
    on_cpu, precision = device.type == "cpu", str(arguments.mixed_precision)
    if precision == "auto":
        launched = os.environ.get("ACCELERATE_MIXED_PRECISION")
        precision = "bf16" if launched == "bf16" else usual_precision(on_cpu)
    else:
        _warn_of_launcher("mixed_precision", precision, "give --mixed_precision")
    _warn_of_launcher("gradient_accumulation_steps", "1", "raise --batch_size instead")
    if device.type in ("cuda", "xpu") and device.index is not None:  # Accelerate uses the current device
        torch.get_device_module(device).set_device(device)
    return Accelerator(
        cpu=on_cpu,  # without it, processes of torchrun on CPUs do not find each other
        mixed_precision=precision,
        gradient_accumulation_plugin=GradientAccumulationPlugin(num_steps=1),
        log_with=None if arguments.report_to == "none" else arguments.report_to,
        project_dir=str(Path(arguments.output_dir) / "logs"),
        kwargs_handlers=[
            DistributedDataParallelKwargs(broadcast_buffers=False),
            InitProcessGroupKwargs(timeout=PATIENCE),
        ],
    )


def _warn_of_launcher(name: str, ours: str, remedy: str) -> None:
    theirs = os.environ.get(f"ACCELERATE_{name.upper()}", ours)
    if theirs != ours:
        logger.warning(
            "The launcher says %s %s, and the recipe %s, which counts: %s.", name, theirs, ours, remedy
        )


def _require_usual(accelerator: Accelerator) -> None:
    """Refuse a launcher or an accelerator that would train otherwise than the recipe says.

    On CPUs Accelerate ignores a launcher's sharding, but transformers loads no weights then except in one process.
    """
    asked = [
        name for name in _SHARDING if os.environ.get(f"ACCELERATE_USE_{name}", "").lower() in ("true", "1")
    ]
    if name := next(
        (each for each in (*asked, accelerator.distributed_type.value) if each in _SHARDING), None
    ):
        raise ConfigurationError(
            f"The launcher or accelerator asks for {_SHARDING[name]}. Every process trains a whole model: only the "
            "last block learns, and the largest DINO takes 5 GB. Launch several processes without it."
        )
    if (steps := accelerator.gradient_accumulation_steps) != 1:
        raise ConfigurationError(
            f"Expected an accelerator with gradient_accumulation_steps 1, got {steps}: every step changes the weights, "
            f"and its loss would be divided by {steps}. Give another or none, and raise batch_size instead."
        )


def _in_precision(recipe: Recipe, precision: MixedPrecision) -> Recipe:
    """The recipe with a precision in place of ``auto``."""
    if recipe.training.mixed_precision != "auto":
        return recipe
    return replace(recipe, training=replace(recipe.training, mixed_precision=precision))


def _log_device(accelerator: Accelerator, num_workers: int | None) -> None:
    device, precision = accelerator.device, accelerator.mixed_precision
    if device.type == "cpu":
        why = "Not asked for a GPU" if reported_gpu() else "No GPU was found"
        logger.info("%s: training on the CPU.", why)
        return
    logger.info(
        "Training on %s in %s; images are loaded by %d processes.",
        f"{device} ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else device,
        "float32" if precision == "no" else precision,
        workers_for(num_workers),
    )


def _log_streams(arguments: TrainingArguments, stages: StageStream) -> None:
    estimated = f"are estimated ({arguments.counting}; --category_count gives them)"
    logger.info(
        "%d images of %d categories are labelled, %d in %d streams are not. Numbers of categories %s; nothing is "
        "scored.",
        len(stages.labelled), stages.num_known, sum(map(len, stages[1:])), len(stages) - 1,
        "are those given" if arguments.counting == "given" else estimated,
    )  # fmt: skip


class InBackground:
    """Calls a function in a thread, so that processes that train together do not wait for it.

    The end of the context waits for all calls, unless an error ended the training: the same command calls again.

    Args:
        work: called with the run and all its finished stages.
    """

    def __init__(self, work: AfterStages):
        self._work, self._asked = work, queue.SimpleQueue[tuple[RunDirectory, Sequence[int]] | None]()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._serve, name="after stages", daemon=True)

    def __call__(self, run: RunDirectory, finished: Sequence[int]) -> None:
        """Ask for a call, without waiting for it."""
        self._asked.put((run, [*finished]))

    def __enter__(self) -> "InBackground":
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._asked.put(None)
        if kind is None:
            self._thread.join()
            if self._error is not None:
                raise self._error

    def _serve(self) -> None:
        try:
            while (asked := self._asked.get()) is not None:
                self._work(*asked)
        except Exception as error:  # raised when the training has ended
            self._error = error


@dataclass(frozen=True)
class _Trained:
    """A stage whose model is trained and whose images are grouped.

    Attributes:
        stage: the stage.
        model: its model, with its categories set.
        images: its readable images.
        earlier: images of the stages before it.
        features: of its images, ``(N, D)``.
        found: its grouping.
        registry: the categories after it.
        count: the number of categories; `None` for the labelled stage.
        started: time at which it would have begun without interruptions, in seconds of the monotonic clock.
    """

    stage: Stage
    model: CategoryDiscoveryModel
    images: StageImages
    earlier: EarlierImages
    features: Tensor
    found: Discovery
    registry: CategoryRegistry
    count: CountEstimate | None
    started: float

    @property
    def name(self) -> str:
        return f"stage{self.stage.index}"


class _Training:
    """The stages of one call of `train_run`, in one process."""

    def __init__(
        self,
        recipe: Recipe,
        stages: StageStream,
        run: RunDirectory,
        accelerator: Accelerator,
        stop: StopRequest,
        after_stages: AfterStages | None,
        callbacks: Sequence[CategoryDiscoveryCallback],
    ):
        self.recipe, self.stages, self.run = recipe, stages, run
        self.accelerator, self.stop, self.after_stages = accelerator, stop, after_stages
        self.is_main, self.method = accelerator.is_main_process, method_named(recipe.model.variant)
        self.view = evaluation_view(recipe, run)
        if self.is_main:
            colours = {"mean": [*map(float, self.view.mean)], "std": [*map(float, self.view.std)]}
            run.update_manifest({NORMALISATION: colours})
        self.images: list[StageImages] = []  # of the stages so far
        self._cache = ImageCache.at(recipe.training.image_cache, recipe.views)
        self._seen: dict[bytes, Original] = {}  # first image of every pixel digest
        self._counts = COUNTS[recipe.training.counting](recipe.training)
        self.state = RunState(run.path, len(stages), self.is_main)
        self.callbacks = Callbacks(
            recipe.training, self.state, stop, [Tracking(accelerator, run), *callbacks]
        )

    def train(self) -> ContinualScore:
        finished = self._finished_stages()
        if finished:
            logger.info("Finished already in %s: stages %s.", self.run.path, ", ".join(map(str, finished)))
        if self.is_main:
            score_finished(self.run, self.stages, finished)
            self._conclude(finished)
        if len(finished) < len(self.stages):
            self.callbacks.tell("on_train_begin")
            try:
                self._train_missing(finished)
            except TrainingStopped as stopped:
                logger.info("%s", stopped)
            self.callbacks.tell("on_train_end")
        elif labels := self.stages.later_labels:
            logger.info(
                "%d later labels count from the next stream on: give it as --unlabelled.", len(labels)
            )
        return self._table()

    def _train_missing(self, finished: Sequence[int]) -> None:
        for stage in self.stages:
            if stage.index in finished:
                self._read(stage)
                continue
            self._train_stage(stage)
            finished = sorted([*finished, stage.index])
            if self.is_main:
                self._conclude(finished)
            self.accelerator.wait_for_everyone()
            self._tell_callbacks(stage.index)
            if self.stop.agreed(self.accelerator) and self.stop.asked:
                raise self.stop.error(f"stage {stage.index} is finished")

    def _train_stage(self, stage: Stage) -> None:
        """Train a stage from its start or its saved state, and finish it."""
        started = time.monotonic()
        reset_peak_memory(self.accelerator.device)
        images, model, earlier = (
            self._read(stage),
            self._model_before(stage.index),
            self._earlier(stage.index),
        )
        self._log_labels(stage, earlier)
        count = self._count_before(stage, model, earlier)
        state, seconds = self.run.load_state(stage.index) or (None, 0.0)
        started -= seconds
        if state:
            logger.info("Stage %d resumes at epoch %d, step %d.", stage.index, state.epoch, state.step)
        self.state.stage, self.state.model, self.state.draw_groups = stage.index, model, None
        self.callbacks.tell("on_stage_begin")
        trainer = self._trainer(self._context(stage, model, images, earlier, count), model, started)
        try:
            trainer.train(state)
            self._finish_stage(stage, model, count, started)
        except BaseException:  # also a signal or too little memory: the steps are not lost
            if trainer.unsaved is not None:
                with suppress(DiskError):  # the first error names the full disk
                    trainer.save(trainer.unsaved)
            raise

    def _context(
        self,
        stage: Stage,
        model: CategoryDiscoveryModel,
        images: StageImages,
        earlier: EarlierImages,
        count: CountEstimate | None,
    ) -> StageContext:
        """What a stage is trained on: images, labels, replayed features, a number of categories and exemplars."""
        arguments, labels, replay, memory = self.recipe.training, None, None, None
        if isinstance(stage, LabelledStage):
            labels = torch.from_numpy(stage.labels[images.positions])
        if stage.index and arguments.replay_samples:
            generator = torch_generator("replay", arguments.seed, stage.index)
            replay = model.replay(arguments.replay_samples, generator)
        if stage.index and arguments.exemplars_per_class:
            memory = memory_before(self.run, earlier, self.images, model.config, arguments.exemplar_labels)
        return StageContext(images, labels, replay, None if count is None else count.count, memory)

    def _trainer(self, context: StageContext, model: CategoryDiscoveryModel, started: float) -> StageTrainer:
        stage = context.images.stage.index

        def save(state: TrainingState) -> None:
            if self.is_main:
                self.run.save_state(stage, state, time.monotonic() - started)

        def record(epoch: EpochRecord) -> None:
            if self.is_main:
                add_epoch(self.run.path, epoch)
            self.callbacks.tell("on_epoch_end", metrics=epoch.metrics)

        def stepped(epoch: int, step: int) -> None:
            self.state.epoch, self.state.step = epoch, step
            self.callbacks.tell("on_step_end")

        return StageTrainer(
            model,
            context,
            self.method.objective,
            arguments=self.recipe.training,
            views=TrainingViews(self.recipe.views),
            evaluation_view=self.view,
            accelerator=self.accelerator,
            stop=self.stop,
            save=save,
            record=record,
            stepped=stepped,
        )

    def _finish_stage(
        self, stage: Stage, model: CategoryDiscoveryModel, count: CountEstimate | None, started: float
    ) -> None:
        """Group, score and save; the stage's folder is written last, because it marks the stage as finished."""
        model.config.stage, model.config.num_known = stage.index, self.stages.num_known
        images, earlier = (
            self.images[stage.index],
            self._earlier(stage.index),
        )  # with corrections made meanwhile
        features = self._features(model, earlier)
        found, count = self._group(stage, model, features, earlier, count)
        registry, found = observe_stage(
            earlier, found, images.sample_ids, self.stages.labelled.category_names
        )
        model.set_categories(found.prototypes, found.prototype_ids, registry.active_prototypes().names)
        class_ids = self._native_prediction(stage, model, images, features[-1])
        self._set_spread(model, features, [*earlier.assigned, found.category_ids])
        self.state.draw_groups = group_picture(
            images, features[-1], found, model.config.names_by_id, self.stages.num_known
        )
        if self.is_main:
            done = _Trained(stage, model, images, earlier, features[-1], found, registry, count, started)
            assignments = {"sample_ids": images.sample_ids, "category_ids": found.category_ids, **class_ids}
            self._record(done, assignments)
            self._save(done, assignments)

    def _group(
        self,
        stage: Stage,
        model: CategoryDiscoveryModel,
        features: Sequence[Tensor],
        earlier: EarlierImages,
        count: CountEstimate | None,
    ) -> tuple[Discovery, CountEstimate | None]:
        """Categories of a stage's images, and their number, which is estimated here unless it is known already."""
        protocol = self._protocol(earlier)
        if isinstance(stage, LabelledStage):
            return labelled_categories(features[0], protocol.assigned[0]), count
        count = count or same_on_all(self._counts.estimate(stage.index, features, protocol.assigned))
        if count.is_estimate:
            model.config.count_estimate = count.to_dict()
        return protocol.discover(features, count.count), count

    def _native_prediction(
        self, stage: Stage, model: CategoryDiscoveryModel, images: StageImages, features: Tensor
    ) -> dict[str, np.ndarray]:
        """The method's own classes as a column of the assignments; empty for stage 0 and for most methods."""
        if not stage.index:
            return {}
        if model.native_prompted is not None:
            features = self._features_of(model, images, model.native_prompted)
        class_ids = model.assign_natively(features)
        return {} if class_ids is None else {"class_ids": class_ids.cpu().numpy()}

    def _set_spread(
        self, model: CategoryDiscoveryModel, features: Sequence[Tensor], assigned: Sequence[np.ndarray]
    ) -> None:
        """Measure the distances of the images so far from the prototypes of their categories."""
        places = {category: row for row, category in enumerate(model.config.category_ids)}
        rows = torch.tensor([places.get(each, -1) for each in np.concatenate(assigned).tolist()])
        spread = measure_spread(
            torch.cat(list(features)),
            rows,
            model.prototypes,
            seed=self.recipe.training.seed,
            labelled=torch.arange(len(rows)) < len(assigned[0]),
        )
        model.set_spread(spread)

    def _record(self, done: _Trained, assignments: Mapping[str, np.ndarray]) -> None:
        """Write a stage's row of the table, or the record of its stream, and update the manifest."""
        index, found = done.stage.index, done.found
        if index and self.stages.is_scored:
            num_categories = len(found.prototype_ids)
            _record_score(
                self.run, self.stages, index, done.model.config, assignments, num_categories, done.count
            )
        elif index:
            novel = done.model.assign(done.features).strange.cpu().numpy()
            stream = StreamRecord.of(
                index, found.category_ids, done.earlier.assigned, self.stages.num_known, len(found.prototype_ids),
                novel, done.count,
            )  # fmt: skip
            record_stream(self.run, stream)
            logger.info("stage %d: %s", index, stream)
        reports = [images.report.to_dict() for images in self.images]
        self.run.write("images.json", {"stages": reports, "left_out": dict(self.stages.left_out)})
        seconds, memory = round(time.monotonic() - done.started, 1), peak_memory(self.accelerator.device)
        self.run.update_manifest({"seconds": {done.name: seconds}, "peak_memory": {done.name: memory}})
        self.run.forget_source(index)  # a fetched stage was damaged, and is trained here instead

    def _save(self, done: _Trained, assignments: Mapping[str, np.ndarray]) -> None:
        """Write a stage's checkpoint."""
        examples = example_pictures(self.recipe, done.model, done.images, done.features)
        exemplars = None
        if self.recipe.training.exemplars_per_class:
            exemplars = exemplars_after(
                self.run, done.earlier, done.images, done.features, assignments, self.recipe.training
            )
        save_stage(
            self.run.stage(done.stage.index),
            done.model,
            self.view,
            assignments=assignments,
            card=self._card(done, self._instruments(done), examples),
            registry=done.registry,
            exemplars=exemplars,
            examples=examples,
        )

    def _instruments(self, done: _Trained) -> Instruments:
        """Measure the effect of the prompts; log new warnings and record the values in the manifest."""
        training = self.recipe.training
        instruments = measure(
            done.model,
            done.images,
            self.view,
            done.found.category_ids,
            seed=training.seed,
            batch_size=training.feature_batch_size,
        )
        before = self.run.manifest.get("instruments", {}).get(f"stage{done.stage.index - 1}", {})
        logged = Instruments(**before).warnings(training.mixed_precision)
        for kind, warning in instruments.warnings(training.mixed_precision).items():
            if kind not in logged:  # once per run; the card of every stage repeats it
                logger.warning("stage %d: %s", done.stage.index, warning)
        self.run.update_manifest({"instruments": {done.name: instruments.to_dict()}})
        return instruments

    def _card(self, done: _Trained, instruments: Instruments, examples: Sequence[Example]) -> str:
        index, fetched = done.stage.index, self.run.fetched
        ids, sizes = np.unique(done.found.category_ids, return_counts=True)
        last = max((each for each in fetched if each < index), default=None)
        source = None if last is None else Source.of(fetched[last], last)
        return stage_card(
            done.model.config,
            self.run.recipe,
            name=self.run.name,
            fingerprint=self.stages.split.up_to(index).fingerprint,
            images=[images.report.to_dict() for images in self.images],
            category_sizes=dict(zip(ids.tolist(), sizes.tolist(), strict=True)),
            scores=self.run.results,
            made_with=self.run.made_with(self.accelerator.device),
            instruments=instruments,
            corrections=sum(entry.kind != GROUPING for entry in done.registry.log),
            streams=stream_records(self.run),
            examples=examples,
            licence=self._licence(source, index),
            source=source,
            history=[each for each in read_history(self.run.path) if each.stage == index],
        )

    def _licence(self, source: Source | None, stage: int) -> Licence:
        """Licence of the stage that the run continues from, or else of its backbone; recorded once it is known."""
        recorded = self.run.manifest.get(LICENCE)
        if recorded is not None:
            return Licence(**recorded)
        if source is None:
            licence = licence_of(self.recipe.model.backbone)
        else:
            card = self.run.stage(source.stage) / CARD
            text = card.read_text(encoding="utf-8", errors="replace") if card.exists() else ""
            name = f"`{source.repo_id}`" if source.repo_id else "the stage"
            licence = licence_on(text, name, source.repo_id or None)
        if licence.id is not None:
            self.run.update_manifest({LICENCE: asdict(licence)})
        elif stage == (0 if source is None else source.stage + 1):  # logged once
            logger.warning("Cards of %s name no licence: %s.", self.run.name, licence.reason)
        return licence

    # Before a stage

    def _finished_stages(self) -> list[int]:
        """Stages whose checkpoints are whole; the main process checks them for all."""
        candidates = range(len(self.stages)) if self.is_main else ()
        return same_on_all([stage for stage in candidates if trusted(self.run.stage(stage))])

    def _read(self, stage: Stage) -> StageImages:
        self.images.append(
            StageImages.read(
                stage,
                self.recipe.training.num_workers,
                self.stop.progress,
                self._cache,
                seen=self._seen,
                conflicting=self.recipe.data.conflicts,
            )
        )
        return self.images[-1]

    def _model_before(self, stage: int) -> CategoryDiscoveryModel:
        device = self.accelerator.device
        if stage:
            model = load_stage(self.run.stage(stage - 1), self.recipe.model).to(device)
        else:
            if self.is_main:
                ensure_backbone(self.recipe, self.run, self.images[0], device, self.stop.progress)
            self.accelerator.wait_for_everyone()
            backbone = backbone_of(self.recipe, self.run)
            model = stage_zero_model(self.recipe, backbone, self.images[0], self._known_ids(), device)
        require_alike(model, self.view)
        if stage:
            model.begin_discovery(lambda: load_stage(self.run.stage(0), self.recipe.model))
        return model

    def _earlier(self, stage: int) -> EarlierImages:
        """Images of earlier stages with their categories after corrections and later labels."""
        before, names = self.images[:stage], self.stages.later_labels
        labels = {
            sample: names[digest]
            for images in before
            for sample, digest in zip(images.sample_ids.tolist(), images.digests, strict=True)
            if digest in names
        }
        return earlier_images(self.run, [images.sample_ids for images in before], labels)

    def _log_labels(self, stage: Stage, earlier: EarlierImages) -> None:
        """Warn of categories without an image at stage 0, and log what later labels change before another stage."""
        given, made = self.stages.later_labels, earlier.labelled
        if not self.is_main:
            return
        if isinstance(stage, LabelledStage):
            bare = np.setdiff1d(np.arange(self.stages.num_known), self._known_ids())
            if len(bare):
                logger.warning(
                    "Stage 0: %d of its %d categories have no image there, %s for one. They cannot be learnt here; "
                    "images of them will be found as new categories and still count as Old. Give them more images, or "
                    "leave them out.", len(bare), self.stages.num_known, stage.category_names[bare[0]],
                )  # fmt: skip
        elif given:
            logger.info(
                "Later labels, before stage %d: %d of %d are of images of earlier stages; %d of these change their "
                "category; named: %s; new: %s. Labels of other images do not count yet.",
                stage.index, made.images, len(given), made.moved, ", ".join(made.named) or "none",
                ", ".join(made.new) or "none",
            )  # fmt: skip

    def _count_before(
        self, stage: Stage, model: CategoryDiscoveryModel, earlier: EarlierImages
    ) -> CountEstimate | None:
        """The number of categories a stage is trained with, from the model before it; none if it is found later."""
        assigned, features = self._protocol(earlier).assigned, partial(self._features, model, earlier)
        count = self._counts.before_training(stage, features, assigned)
        if count is None and self.method.objective.needs_count:
            count = self._counts.estimate(stage.index, features(), assigned)
        return same_on_all(count)

    def _protocol(self, earlier: EarlierImages) -> ContinualAccuracy:
        """The protocol after the earlier stages and the corrections made since."""
        training = self.recipe.training
        protocol = ContinualAccuracy(
            self._known_ids(), self.stages.num_known, restarts=training.kmeans_restarts, seed=training.seed
        )
        protocol.assigned = earlier.assigned or protocol.assigned
        return protocol

    def _known_ids(self) -> np.ndarray:
        return self.stages.labelled.labels[self.images[0].positions]

    def _features(self, model: CategoryDiscoveryModel, earlier: EarlierImages) -> list[Tensor]:
        """Features of the images so far; of earlier stages only those of images with a category."""
        return earlier.features_of_assigned([self._features_of(model, images) for images in self.images])

    def _features_of(
        self, model: CategoryDiscoveryModel, images: StageImages, prompted: bool | None = None
    ) -> Tensor:
        return extract_features(
            model,
            images,
            self.view,
            self.recipe.training.feature_batch_size,
            self.recipe.training.num_workers,
            prompted=prompted,
            progress=self.stop.progress,
        ).to(exact_device(self.accelerator.device))

    # After a stage

    def _conclude(self, finished: Sequence[int]) -> None:
        """Delete states of finished stages and pass these to `after_stages`, also those of an earlier process."""
        for stage in finished:
            self.run.forget_states(stage)
        if finished:
            (self.run.path / OUT_OF_MEMORY).unlink(missing_ok=True)
            if self.after_stages is not None:
                self.after_stages(self.run, finished)

    def _tell_callbacks(self, stage: int) -> None:
        """Tell callbacks of a finished stage; every process reads its records."""
        rows = [row for row in self._table().stages if row.stage <= stage]
        if rows and rows[-1].stage == stage:
            self.callbacks.tell("on_evaluate", metrics=ContinualScore("cacc", rows).metrics(first=stage))
        measured = self.run.manifest.get("instruments", {}).get(f"stage{stage}", {})
        self.callbacks.tell("on_stage_end", metrics=measured)

    def _table(self) -> ContinualScore:
        return self.run.results or ContinualScore("cacc", [])


def score_finished(run: RunDirectory, stages: StageStream, finished: Sequence[int]) -> None:
    """Add the missing rows of finished stages to the table, such as those fetched from the Hub.

    Raises:
        SplitMismatchError: a stage was trained on images that do not belong to that stage of `stages`.
    """
    scored = {row.stage for row in run.results.stages} if run.results else set()
    for index in finished:
        assignments = run.assignments(index)
        if not np.isin(assignments["sample_ids"], stages[index].sample_ids).all():
            raise SplitMismatchError(
                f"{run.stage(index)} was trained on other images than stage {index} contains here: use the data set, "
                "class_blocks, cuts and seed it was made with, or start a new output_dir."
            )
        if index > 0 and index not in scored and stages.is_scored:
            config = load_configuration(run.stage(index))
            num_categories, _ = categories_at(run.stage(index), config)
            _record_score(run, stages, index, config, assignments, num_categories)


def _record_score(
    run: RunDirectory,
    stages: StageStream,
    index: int,
    config: Any,
    assignments: Mapping[str, Any],
    num_categories: int,
    count: CountEstimate | None = None,
) -> None:
    """Write a stage's row of the table; a stage that was trained now, with its count, is logged."""
    places = np.searchsorted(stages[index].sample_ids, assignments["sample_ids"])
    score = row_of(
        index,
        config,
        stages.evaluation_labels(stages[index])[places],
        assignments["category_ids"],
        stages.num_known,
        num_categories=num_categories,
        class_ids=assignments.get("class_ids"),
    )
    run.record(score)
    if count is not None:
        parts = {"All": score.all, "Old": score.old, "New": score.new}
        figures = ", ".join(f"{part} {value:.1f}" for part, value in parts.items() if not math.isnan(value))
        logger.info(
            "stage %d: %s over %d images; categories so far: %s", index, figures, score.num_images, count
        )
