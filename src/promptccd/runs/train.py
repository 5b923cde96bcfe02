"""A whole run: trains, discovers, scores and saves every stage, and continues a run that was begun."""

import logging
import math
import os
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import DistributedDataParallelKwargs, GradientAccumulationPlugin, InitProcessGroupKwargs
from numpy.typing import ArrayLike
from torch import Tensor

from promptccd.clustering import CountEstimate
from promptccd.clustering.spread import measure_spread
from promptccd.data.duplicates import Original
from promptccd.data.image_cache import ImageCache
from promptccd.data.loaders import workers_for
from promptccd.data.randomness import torch_generator
from promptccd.data.stage_images import StageImages
from promptccd.data.stages import LabelledStage, Stage, StageStream
from promptccd.data.views import TrainingViews
from promptccd.errors import (
    ConfigurationError,
    DeviceError,
    DiskError,
    OutOfMemoryError,
    RunError,
    SplitMismatchError,
)
from promptccd.evaluation import (
    ContinualAccuracy,
    ContinualScore,
    Discovery,
    StageScore,
    labelled_categories,
)
from promptccd.evaluation.category_counts import COUNTS
from promptccd.locks import FolderLock
from promptccd.methods import StageContext, method_named
from promptccd.models import CategoryDiscoveryConfig, CategoryDiscoveryModel, Replay
from promptccd.processes import is_first_process
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
    SettledImages,
    categories_at,
    load_configuration,
    load_exemplars,
    load_stage,
    observe_stage,
    row_of,
    save_stage,
    settled_images,
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
from promptccd.storage import trusted
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
from promptccd.training.exemplars import NO_LABEL, Exemplars, Memory
from promptccd.training.features import extract_features
from promptccd.training.history import (
    EpochRecord,
    add_epoch,
    peak_memory,
    read_history,
    reset_peak_memory,
)
from promptccd.training.instruments import Instruments, measure
from promptccd.training.options import MixedPrecision, TrainingArguments
from promptccd.training.progress import StopRequest, TrainingStopped
from promptccd.training.recipe import Recipe
from promptccd.training.stage_trainer import StageTrainer, TrainingState

logger = logging.getLogger(__name__)

AfterStages = Callable[[RunDirectory, Sequence[int]], None]


def accelerator_for(arguments: TrainingArguments, device: torch.device | None = None) -> Accelerator:
    """The accelerator of a training: its device, precision and tracker; on the CPU where there is no GPU.

    What a launcher or a job script left in the environment does not change a training without a word: precision and
    steps are the recipe's. Where that says ``auto``, the launcher may say bf16; its ``no`` is what it says unasked.
    """
    device = device or torch.device(usual_device(reported_gpu()))
    on_cpu = device.type == "cpu"
    precision: str = arguments.mixed_precision
    if precision == "auto":
        asked_for = os.environ.get("ACCELERATE_MIXED_PRECISION", "no")
        precision = "bf16" if asked_for == "bf16" else usual_precision(on_cpu)
    asked = {"GRADIENT_ACCUMULATION_STEPS": "1"}
    if arguments.mixed_precision != "auto":
        asked["MIXED_PRECISION"] = precision
    for name, ours in asked.items():
        theirs = os.environ.get(f"ACCELERATE_{name}", ours)
        if theirs != ours:
            remedy = "give --mixed_precision" if name == "MIXED_PRECISION" else "raise --batch_size instead"
            logger.warning(
                "The launcher says %s %s, and the recipe %s, which counts: %s.",
                name.lower(),
                theirs,
                ours,
                remedy,
            )
    _keep_whole()
    if device.type in ("cuda", "xpu") and device.index is not None:  # of which there may be several
        # Accelerate takes the current one, which is the first until it is told.
        torch.get_device_module(device).set_device(device)
    return Accelerator(
        # without it, processes of torchrun on CPUs do not find each other
        cpu=on_cpu,
        mixed_precision=precision,
        gradient_accumulation_plugin=GradientAccumulationPlugin(num_steps=1),
        log_with=None if arguments.report_to == "none" else arguments.report_to,
        project_dir=str(Path(arguments.output_dir) / "logs"),
        kwargs_handlers=[
            DistributedDataParallelKwargs(broadcast_buffers=False),
            InitProcessGroupKwargs(timeout=PATIENCE),
        ],
    )


_SPLITTING = {"FSDP": "FSDP", "DEEPSPEED": "DeepSpeed", "MEGATRON_LM": "Megatron-LM"}
_WHOLE = (
    "every process holds the whole model, of which only the last block learns (the largest DINO takes 5 GB), and "
    "images are what is shared out"
)


def _keep_whole() -> None:
    """Take back what a launcher says about splitting models, and say so.

    On CPUs Accelerate ignores it, but transformers goes by it and loads nothing in all processes but the first.
    """
    for name, title in _SPLITTING.items():
        if os.environ.get(f"ACCELERATE_USE_{name}", "false").lower() in ("true", "1"):
            os.environ.pop(f"ACCELERATE_USE_{name}")
            if is_first_process():
                logger.warning("The launcher says %s, which does not count: %s.", title, _WHOLE)


def _require_usual(accelerator: Accelerator) -> None:
    """Refuse an accelerator that would train otherwise than the recipe says."""
    if (title := _SPLITTING.get(accelerator.distributed_type.value)) is not None:
        raise ConfigurationError(
            f"Expected an accelerator without {title}: {_WHOLE}. Give another or none; several processes need nothing."
        )
    if (steps := accelerator.gradient_accumulation_steps) != 1:
        raise ConfigurationError(
            f"Expected an accelerator with gradient_accumulation_steps 1, got {steps}: every step changes the weights, "
            f"and its loss would be divided by {steps}. Give another or none, and raise batch_size instead."
        )


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
        accelerator: by default one is made as the recipe says; it may not accumulate gradients.
        after_stages: the main process calls it with the run and its finished stages, at the start (if any are
            finished) and after every stage. Where several processes train together none waits for it but at the end,
            and what was finished meanwhile comes in one call.
        stages: by default they are cut as the recipe says.
        callbacks: called during the training; they may end it early.

    Returns:
        The table so far, also in ``results.json``; of all stages, unless a callback ended the training.

    Raises:
        PromptCCDError: with a message that says what, why and what to do; what was saved stays.
    """
    require_callbacks(callbacks)
    own_processes, run = accelerator is None, RunDirectory(recipe.training.output_dir)
    if run.begun and recipe.training.mixed_precision == "auto":
        recipe = _in_precision(recipe, run.recipe.training.mixed_precision)
    accelerator = accelerator or accelerator_for(recipe.training)
    recipe = _in_precision(recipe, "bf16" if accelerator.mixed_precision == "bf16" else "no")
    arguments = recipe.training
    _require_usual(accelerator)
    model_on_meta(recipe, 0)  # refuses an impossible model before anything is read or written
    if not run.begun:
        require_whole_patches(recipe)
    if accelerator.is_main_process:
        _tell_of_device(accelerator, arguments.num_workers)
        warn_of_emulation(arguments.frozen_precision, accelerator.device)
    if stages is None:
        stages = stage_stream(recipe.data, arguments.seed)
    recipe = _with_streams(recipe, stages, tell=accelerator.is_main_process)
    with StopRequest() as stop, ExitStack() as held:
        try:
            if accelerator.is_main_process:
                held.enter_context(FolderLock(run.path))
                begin(run, recipe, stages)
            accelerator.wait_for_everyone()
            with reproducible(arguments.deterministic), _beside(after_stages, accelerator) as after:
                score = _Run(recipe, stages, run, accelerator, stop, after, callbacks).train()
            if own_processes:
                accelerator.end_training()
            return score
        except OutOfMemoryError:
            run.write(OUT_OF_MEMORY, {"batch_size": arguments.batch_size})
            raise
        except (RuntimeError, MemoryError, TypeError) as error:
            if (problem := device_problem(error)) is None:
                raise
            raise DeviceError(
                f"{problem}. What was saved in {run.path} is whole: run the same command again to go on from there."
            ) from error


def _beside(
    after_stages: AfterStages | None, accelerator: Accelerator
) -> AbstractContextManager[AfterStages | None]:
    is_shared = accelerator.num_processes > 1 and accelerator.is_main_process
    return Beside(after_stages) if after_stages and is_shared else nullcontext(after_stages)


def _in_precision(recipe: Recipe, precision: MixedPrecision) -> Recipe:
    """The recipe with what ``auto`` became."""
    if recipe.training.mixed_precision != "auto":
        return recipe
    return replace(recipe, training=replace(recipe.training, mixed_precision=precision))


def _tell_of_device(accelerator: Accelerator, num_workers: int | None) -> None:
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


def _with_streams(recipe: Recipe, stages: StageStream, tell: bool) -> Recipe:
    """The recipe with the blocks that streams without labels turned out to have, which is told."""
    if stages.is_scored:
        return recipe
    if tell:
        counting = recipe.training.counting
        estimated = f"are estimated ({counting}; --category_count gives them)"
        logger.info(
            "%d images of %d categories are labelled, %d in %d streams are not. Numbers of categories %s; nothing is "
            "scored.",
            len(stages.labelled), stages.num_known, sum(map(len, stages[1:])), len(stages) - 1,
            "are those given" if counting == "given" else estimated,
        )  # fmt: skip
    return replace(recipe, data=replace(recipe.data, class_blocks=[*stages.split.class_blocks]))


class _Run:
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
        self.view = evaluation_view(recipe, run)
        if accelerator.is_main_process:
            told = {"mean": [*map(float, self.view.mean)], "std": [*map(float, self.view.std)]}
            run.update_manifest({NORMALISATION: told})
        self.images: list[StageImages] = []
        self._cache = ImageCache.at(recipe.training.image_cache, recipe.views)
        self._seen: dict[bytes, Original] = {}  # pictures of all stages, by digest
        self._counts = COUNTS[recipe.training.counting](recipe.training)
        self.state = RunState(run.path, len(stages), accelerator.is_main_process)
        self.callbacks = Callbacks(
            recipe.training, self.state, stop, [Tracking(accelerator, run), *callbacks]
        )

    def train(self) -> ContinualScore:
        finished = self._finished_stages()
        if finished:
            logger.info("Finished already in %s: stages %s.", self.run.path, ", ".join(map(str, finished)))
        if self.accelerator.is_main_process:
            score_finished(self.run, self.stages, finished)
            self._conclude(finished)
        if len(finished) == len(self.stages):
            if self.stages.later_labels:
                logger.info(
                    "%d labels that came later wait for the next stream: give it as --unlabelled.",
                    len(self.stages.later_labels),
                )
            return self._table()
        self.callbacks.tell("on_train_begin")
        try:
            self._train_missing(finished)
        except TrainingStopped as stopped:
            logger.info("%s", stopped)
        self.callbacks.tell("on_train_end")
        return self._table()

    def _train_missing(self, finished: Sequence[int]) -> None:
        for stage in self.stages:
            if stage.index in finished:
                self._read(stage)
                continue
            self._train_stage(stage)
            finished = sorted([*finished, stage.index])
            if self.accelerator.is_main_process:
                self._conclude(finished)
            self.accelerator.wait_for_everyone()
            self._tell_of(stage.index)
            if self.stop.agreed(self.accelerator) and self.stop.asked:
                raise self.stop.error(f"stage {stage.index} is finished")

    def _tell_of(self, stage: int) -> None:
        """Tell callbacks of a finished stage; every process reads its records."""
        rows = [row for row in self._table().stages if row.stage <= stage]
        if rows and rows[-1].stage == stage:
            self.callbacks.tell("on_evaluate", metrics=ContinualScore("cacc", rows).metrics(first=stage))
        measured = self.run.manifest.get("instruments", {}).get(f"stage{stage}", {})
        self.callbacks.tell("on_stage_end", metrics=measured)

    def _train_stage(self, stage: Stage) -> None:
        started = time.monotonic()
        reset_peak_memory(self.accelerator.device)
        images = self._read(stage)
        model = self._model_before(stage.index)
        method = method_named(self.recipe.model.variant)
        self._tell_of_labels(stage)
        count = self._count_before(stage, model, method.objective.needs_count)
        replay = self._replay(model, stage.index)
        labels = None
        if isinstance(stage, LabelledStage):
            labels = torch.from_numpy(stage.labels[images.positions])
            self._warn_of_bare(stage)
        resumed = self.run.load_state(stage.index)
        before = resumed[1] if resumed else 0.0
        if resumed:
            logger.info(
                "Stage %d goes on at epoch %d, step %d.", stage.index, resumed[0].epoch, resumed[0].step
            )

        def save(state: TrainingState) -> None:
            if self.accelerator.is_main_process:
                self.run.save_state(stage.index, state, before + time.monotonic() - started)

        def record(epoch: EpochRecord) -> None:
            if self.accelerator.is_main_process:
                add_epoch(self.run.path, epoch)
            self.callbacks.tell("on_epoch_end", metrics=epoch.metrics)

        def stepped(epoch: int, step: int) -> None:
            self.state.epoch, self.state.step = epoch, step
            self.callbacks.tell("on_step_end")

        self.state.stage, self.state.model, self.state.draw_groups = stage.index, model, None
        self.callbacks.tell("on_stage_begin")
        trainer = StageTrainer(
            model,
            StageContext(
                images,
                labels,
                replay,
                None if count is None else count.count,
                self._memory(model, stage.index),
            ),
            method.objective,
            arguments=self.recipe.training,
            views=TrainingViews(self.recipe.views),
            evaluation_view=self.view,
            accelerator=self.accelerator,
            stop=self.stop,
            save=save,
            record=record,
            stepped=stepped,
        )
        try:
            trainer.train(resumed[0] if resumed else None)
            self._finish_stage(stage, model, count, started - before)
        except BaseException:  # a signal, no memory: the steps are not lost for it
            if trainer.unsaved is not None:
                with suppress(DiskError):  # of which the error tells, too
                    save(trainer.unsaved)
            raise

    def _tell_of_labels(self, stage: Stage) -> None:
        """Say what labels that came later change before a stage, and how many are of images that did not come yet."""
        given = self.stages.later_labels
        if not stage.index or not given or not self.accelerator.is_main_process:
            return
        said = self._settled(stage.index).labelled
        logger.info(
            "Labels that came later, before stage %d: %d of %d are of images that came before it; %d of these change "
            "their category; named: %s; new: %s. Those of other images do not count, or not yet.",
            stage.index, said.images, len(given), said.moved, ", ".join(said.named) or "none",
            ", ".join(said.new) or "none",
        )  # fmt: skip

    def _warn_of_bare(self, stage: LabelledStage) -> None:
        """Warn of known categories without an image at stage 0."""
        bare = np.setdiff1d(np.arange(self.stages.num_known), self._known_ids())
        if len(bare) and self.accelerator.is_main_process:
            logger.warning(
                "Stage 0: %d of its %d categories have no image there, %s for one: nothing learns them, they can "
                "only be found as new ones, and count as Old all the same. Give them more images, or leave them out.",
                len(bare), self.stages.num_known, stage.category_names[bare[0]],
            )  # fmt: skip

    def _count_before(
        self, stage: Stage, model: CategoryDiscoveryModel, needed: bool
    ) -> CountEstimate | None:
        """The number of categories a stage is trained with, from the model before it; none if it is found later."""
        settled = self._settled(stage.index)
        assigned, features = self._protocol(settled).assigned, partial(self._features, model, settled)
        count = self._counts.before_training(stage, features, assigned)
        if count is None and needed:
            count = self._counts.estimate(stage.index, features(), assigned)
        return same_on_all(count)

    def _conclude(self, finished: Sequence[int]) -> None:
        """Tidy up after finished stages and hand them to `after_stages`, also those of an earlier, killed process."""
        for stage in finished:
            self.run.forget_states(stage)
        if finished:
            (self.run.path / OUT_OF_MEMORY).unlink(missing_ok=True)
        if finished and self.after_stages is not None:
            self.after_stages(self.run, finished)

    def _finish_stage(
        self,
        stage: Stage,
        model: CategoryDiscoveryModel,
        count: CountEstimate | None,
        started: float,
    ) -> None:
        """Discover, score and save; the stage's folder is written last, because it marks the stage as finished."""
        model.config.stage, model.config.num_known = stage.index, self.stages.num_known
        images, settled = self.images[stage.index], self._settled(stage.index)
        features = self._features(model, settled)
        protocol = self._protocol(settled)
        if isinstance(stage, LabelledStage):
            found = labelled_categories(features[0], protocol.assigned[0])
        else:
            count = count or same_on_all(self._counts.estimate(stage.index, features, protocol.assigned))
            found = protocol.discover(features, count.count)
            if count.is_estimate:
                model.config.count_estimate = count.to_dict()
        registry, found = observe_stage(
            settled, found, images.sample_ids, self.stages.labelled.category_names
        )
        model.set_categories(found.prototypes, found.prototype_ids, registry.active_prototypes().names)
        own: Tensor | None = None  # the method's own answers, in categories that are set; stage 0 has labels
        if stage.index:
            own = model.assign_natively(
                features[stage.index]
                if model.answers_prompted is None
                else self._features_of(model, images, model.answers_prompted)
            )
        self._measure_spread(model, features, [*settled.assigned, found.category_ids])
        self.state.draw_groups = group_picture(
            images, features[stage.index], found, model.config.names_by_id, self.stages.num_known
        )
        if not self.accelerator.is_main_process:
            return
        assignments = {"sample_ids": images.sample_ids, "category_ids": found.category_ids}
        if own is not None:
            assignments["class_ids"] = own.cpu().numpy()
        if stage.index and not self.stages.is_scored:
            strange = model.assign(features[stage.index]).strange.cpu().numpy()
            record = StreamRecord.of(
                stage.index, found.category_ids, settled.assigned, self.stages.num_known, len(found.prototype_ids),
                strange, count,
            )  # fmt: skip
            record_stream(self.run, record)
            logger.info("stage %d: %s", stage.index, record)
        elif stage.index:
            score = _record_score(
                self.run, self.stages, stage.index, model.config, assignments, len(found.prototype_ids)
            )
            parts = {"All": score.all, "Old": score.old, "New": score.new}
            figures = ", ".join(
                f"{part} {value:.1f}" for part, value in parts.items() if not math.isnan(value)
            )
            logger.info(
                "stage %d: %s over %d images; categories so far: %s",
                stage.index, figures, score.num_images, count,
            )  # fmt: skip
        self.run.write(
            "images.json",
            {
                "stages": [images.report.to_dict() for images in self.images],
                "left_out": dict(self.stages.left_out),
            },
        )
        name, memory = f"stage{stage.index}", peak_memory(self.accelerator.device)
        seconds = round(time.monotonic() - started, 1)
        self.run.update_manifest({"seconds": {name: seconds}, "peak_memory": {name: memory}})
        self.run.forget_source(stage.index)  # a fetched stage was damaged, and is trained here instead
        examples = example_pictures(self.recipe, model, images, features[stage.index])
        instruments = self._instruments(model, images, found)
        save_stage(
            self.run.stage(stage.index),
            model,
            self.view,
            assignments=assignments,
            card=self._card(model, found, instruments, registry, examples),
            registry=registry,
            exemplars=self._exemplars(settled, assignments, features[stage.index]),
            examples=examples,
        )

    def _measure_spread(
        self, model: CategoryDiscoveryModel, features: Sequence[Tensor], assigned: Sequence[np.ndarray]
    ) -> None:
        """Set the model's spread: how far the images so far lie from the prototypes of their categories."""
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

    def _instruments(
        self, model: CategoryDiscoveryModel, images: StageImages, found: Discovery
    ) -> Instruments:
        """Measure what the prompts did; warn of problems and record the values in the manifest."""
        training = self.recipe.training
        instruments = measure(
            model,
            images,
            self.view,
            found.category_ids,
            seed=training.seed,
            batch_size=training.feature_batch_size,
        )
        stage = images.stage.index
        before = self.run.manifest.get("instruments", {}).get(f"stage{stage - 1}", {})
        told = Instruments(**before).warnings(training.mixed_precision)
        for kind, warning in instruments.warnings(training.mixed_precision).items():
            if kind not in told:  # cards say it of every stage
                logger.warning("stage %d: %s", stage, warning)
        self.run.update_manifest({"instruments": {f"stage{stage}": instruments.to_dict()}})
        return instruments

    def _card(
        self,
        model: CategoryDiscoveryModel,
        found: Discovery,
        instruments: Instruments,
        registry: CategoryRegistry,
        examples: Sequence[Example],
    ) -> str:
        ids, sizes = np.unique(found.category_ids, return_counts=True)
        fetched, stage = self.run.fetched, model.config.stage or 0
        last = max((each for each in fetched if each < stage), default=None)
        source = None if last is None else Source.of(fetched[last], last)
        return stage_card(
            model.config,
            self.run.recipe,
            name=self.run.name,
            fingerprint=self.stages.split.up_to(len(self.images) - 1).fingerprint,
            images=[images.report.to_dict() for images in self.images],
            category_sizes=dict(zip(ids.tolist(), sizes.tolist(), strict=True)),
            scores=self.run.results,
            made_with=self.run.made_with(self.accelerator.device),
            instruments=instruments,
            corrections=sum(entry.kind != GROUPING for entry in registry.log),
            streams=stream_records(self.run),
            examples=examples,
            licence=self._licence(source, stage),
            source=source,
            history=[each for each in read_history(self.run.path) if each.stage == stage],
        )

    def _licence(self, source: Source | None, stage: int) -> Licence:
        """That of the stage that the run went on from, or else of its backbone; recorded as soon as it is known."""
        recorded = self.run.manifest.get(LICENCE)
        if recorded is not None:
            return Licence(**recorded)
        if source is None:
            licence = licence_of(self.recipe.model.backbone)
        else:
            card = self.run.stage(source.stage) / CARD
            text = card.read_text(encoding="utf-8", errors="replace") if card.exists() else ""
            licence = licence_on(
                text, f"`{source.repo_id}`" if source.repo_id else "the stage", source.repo_id or None
            )
        if licence.id is not None:
            self.run.update_manifest({LICENCE: asdict(licence)})
        elif stage == (0 if source is None else source.stage + 1):  # told once
            logger.warning("Cards of %s name no licence: %s.", self.run.name, licence.reason)
        return licence

    def _model_before(self, stage: int) -> CategoryDiscoveryModel:
        device = self.accelerator.device
        if stage == 0:
            if self.accelerator.is_main_process:
                ensure_backbone(self.recipe, self.run, self.images[0], device, self.stop.progress)
            self.accelerator.wait_for_everyone()
            backbone = backbone_of(self.recipe, self.run)
            model = stage_zero_model(self.recipe, backbone, self.images[0], self._known_ids(), device)
            require_alike(model, self.view)
            return model
        model = load_stage(self.run.stage(stage - 1), self.recipe.model).to(device)
        require_alike(model, self.view)
        model.begin_discovery(lambda: load_stage(self.run.stage(0), self.recipe.model))
        return model

    def _replay(self, model: CategoryDiscoveryModel, stage: int) -> Replay | None:
        count, seed = self.recipe.training.replay_samples, self.recipe.training.seed
        if stage == 0 or count == 0:
            return None
        return model.replay(count, torch_generator("replay", seed, stage))

    def _memory(self, model: CategoryDiscoveryModel, stage: int) -> Memory | None:
        """Exemplars of earlier stages, with the labels they have by now; `None` without a memory."""
        training = self.recipe.training
        if stage == 0 or not training.exemplars_per_class:
            return None
        exemplars = load_exemplars(self.run.stage(stage - 1))
        labels = exemplars.labels(self._settled(stage).category_of)
        classes = getattr(model.config, "num_classes", None)  # of a classifier, which knows no other labels
        if classes is not None and labels.max(initial=NO_LABEL) >= classes:
            raise RunError(
                f"{self.run.stage(stage - 1)} shows images of class {labels.max()} again, but its classifier has "
                f"{classes} classes: copy it again, or train the stage again."
            )
        shown = labels if training.exemplar_labels else np.full_like(labels, NO_LABEL)
        return Memory.of(exemplars, shown, self.images[:stage])

    def _exemplars(
        self, settled: SettledImages, assignments: Mapping[str, np.ndarray], features: Tensor
    ) -> Exemplars | None:
        """The memory after a stage, extended by images of classes that are new to the method; or none."""
        if not self.recipe.training.exemplars_per_class:
            return None
        stage, nothing = len(settled.ids), np.zeros(0, dtype=np.int64)
        before = load_exemplars(self.run.stage(stage - 1)) if stage else Exemplars(*4 * [nothing])
        labels, categories = before.labels(settled.category_of), assignments["category_ids"]
        classes = assignments.get("class_ids", categories)
        return before.extended(
            features, classes, categories, self.images[stage], labels, self.recipe.training
        )

    def _settled(self, stage: int) -> SettledImages:
        """Images of earlier stages with the categories they have by now, by the labels that came since."""
        earlier, names = self.images[:stage], self.stages.later_labels
        labels = {
            sample: names[digest]
            for images in earlier
            for sample, digest in zip(images.sample_ids.tolist(), images.digests, strict=True)
            if digest in names
        }
        return settled_images(self.run, [images.sample_ids for images in earlier], labels)

    def _protocol(self, settled: SettledImages) -> ContinualAccuracy:
        """The protocol after the earlier stages and the corrections made since."""
        training = self.recipe.training
        protocol = ContinualAccuracy(
            self._known_ids(), self.stages.num_known, restarts=training.kmeans_restarts, seed=training.seed
        )
        protocol.assigned = settled.assigned or protocol.assigned
        return protocol

    def _known_ids(self) -> np.ndarray:
        return self.stages.labelled.labels[self.images[0].positions]

    def _features(self, model: CategoryDiscoveryModel, settled: SettledImages) -> list[Tensor]:
        """Features of the images so far, of earlier stages only those of images with a category."""
        return settled.of_placed([self._features_of(model, images) for images in self.images])

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

    def _table(self) -> ContinualScore:
        return self.run.results or ContinualScore("cacc", [])

    def _finished_stages(self) -> list[int]:
        """Stages whose checkpoints are whole; the main process checks them for all."""
        asked = range(len(self.stages)) if self.accelerator.is_main_process else ()
        return same_on_all([stage for stage in asked if trusted(self.run.stage(stage))])


def score_finished(run: RunDirectory, stages: StageStream, finished: Sequence[int]) -> None:
    """Add the missing rows of finished stages to the table, such as those fetched from the Hub.

    Raises:
        SplitMismatchError: a stage holds images that do not belong to that stage of `stages`.
    """
    scored = {row.stage for row in run.results.stages} if run.results else set()
    for index in finished:
        given, own = run.assignments(index), stages[index].sample_ids
        if not np.isin(given["sample_ids"], own).all():
            raise SplitMismatchError(
                f"{run.stage(index)} was trained on other images than stage {index} holds here: use the data set, "
                "class_blocks, cuts and seed it was made with, or start a new output_dir."
            )
        if index > 0 and index not in scored and stages.is_scored:
            config = load_configuration(run.stage(index))
            _record_score(run, stages, index, config, given, categories_at(run.stage(index), config)[0])


def _record_score(
    run: RunDirectory,
    stages: StageStream,
    index: int,
    config: CategoryDiscoveryConfig,
    assignments: Mapping[str, ArrayLike],
    num_categories: int,
) -> StageScore:
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
    return score


class Beside:
    """Calls a function in a thread, and again with what was finished meanwhile.

    The end of the context waits for it. An error that ends the training does not: the same command does it again.

    Args:
        work: called with the run and all its finished stages; it may be called with the same again.
    """

    def __init__(self, work: AfterStages):
        self._work, self._asked = work, queue.SimpleQueue[tuple[RunDirectory, list[int]] | None]()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._serve, name="after stages", daemon=True)

    def __call__(self, run: RunDirectory, finished: Sequence[int]) -> None:
        """Ask for it, and go on."""
        self._asked.put((run, [*finished]))

    def __enter__(self) -> "Beside":
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._asked.put(None)
        if kind is not None:
            return
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _serve(self) -> None:
        while (asked := self._asked.get()) is not None:
            is_last = False
            while not is_last and not self._asked.empty():  # the newest has the stages of all
                newer = self._asked.get()
                is_last, asked = newer is None, newer or asked
            try:
                self._work(*asked)
            except Exception as error:  # told when the training has ended
                self._error = error
                return
            if is_last:
                return
