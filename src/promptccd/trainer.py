"""Training in the manner of transformers: a model, arguments, data and callbacks; ``promptccd train`` calls it too."""

import inspect
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch
from accelerate import Accelerator
from datasets import Dataset
from transformers import PreTrainedConfig

from promptccd.data.options import ViewOptions
from promptccd.data.stages import StageStream
from promptccd.data.tables import IN_MEMORY
from promptccd.disk import trusted, write_directory
from promptccd.errors import ConfigurationError, RunError
from promptccd.evaluation import ContinualScore, StageScore
from promptccd.hub import PushedRepository, StagePusher, fetch_stages, push_run
from promptccd.locks import FolderLock
from promptccd.methods import method_named
from promptccd.models import CategoryDiscoveryModel
from promptccd.models.checkpoint import BUNDLED, MAX_MODEL_BYTES, find_model
from promptccd.processes import is_first_process
from promptccd.runs import RunDirectory, RunEvaluation, load_model, train_run
from promptccd.training.devices import accelerator_for
from promptccd.training.options import DataArguments, ModelArguments, TrainingArguments
from promptccd.training.progress import Callbacks, CategoryDiscoveryCallback, RunState, StopRequest, Tracking
from promptccd.training.recipe import Recipe


def train_recipe(
    recipe: Recipe,
    accelerator: Accelerator | None = None,
    *,
    stages: StageStream | None = None,
    callbacks: Sequence[CategoryDiscoveryCallback] = (),
) -> ContinualScore:
    """`train_run` of a recipe, after a fetch from the Hub and with a push to it if the recipe says so."""
    training, pushers = recipe.training, list[StagePusher]()
    run = RunDirectory(training.output_dir)
    if training.push_to_hub:
        pushers.append(StagePusher(run, training.hub_namespace, training.hub_private))
    if training.resume_from is not None and is_first_process():  # all other processes wait for it
        fetch_stages(training.resume_from, run)
    score = train_run(recipe, accelerator, stages=stages, callbacks=[*callbacks, *pushers])
    if pushers and is_first_process():  # stages that an earlier command has finished and could not push
        pushers[0].push()
    return score


_KINDS = {  # arguments that transformers' own Trainer would accept too, and what to give instead
    "model": (CategoryDiscoveryModel, "PromptCCDModel.from_pretrained(BACKBONE)"),
    "args": (TrainingArguments, "promptccd.TrainingArguments, which is not transformers'"),
    "stages": (StageStream, "StageStream.from_dataset(DATASET, class_blocks=[...])"),
}


class CategoryDiscoveryTrainer:
    """Trains a model through the stages of a data set; the engine of ``promptccd train``, with byte-identical results.

    Finished stages in ``args.output_dir`` are never trained again, and an interrupted stage is resumed by the same
    calls. A tracker stays open until the process ends, or until ``trainer.accelerator.end_training()``.

    Example:
        >>> stages = StageStream.from_dataset(dataset, class_blocks=[70, 10, 10, 10])  # doctest: +SKIP
        >>> model = PromptCCDModel.from_pretrained("facebook/dinov2-base")  # doctest: +SKIP
        >>> trainer = CategoryDiscoveryTrainer(model, TrainingArguments("out"), stages)  # doctest: +SKIP
        >>> trainer.train().average  # doctest: +SKIP

    Args:
        model: a model over a bare backbone. Its type decides the method, its configuration the options. Its head and
            prompts are drawn again from the seed, so that nothing depends on how it was made.
        args: how to train.
        stages: what to train on, cut with the seed of `args`; with further streams a finished run is continued.
        callbacks: run during the training, and may end it early.
        views: how a picture becomes a tensor.
        eval_dataset: unseen images, for protocols that need some; cut with the options of `stages`.
        method: a method of your own over an existing model class, by its name in `METHODS`.
        conflicting_labels: ``"refuse"`` a picture with two labels in stage 0 (the default), or ``"drop"`` all
            its copies.

    Attributes:
        model: the model that was given; after `train`, that of the last finished stage.
        recipe: the record of the run; a command can continue with it.

    Raises:
        ConfigurationError: these do not go together; the message names compatible values.
    """

    def __init__(
        self,
        model: CategoryDiscoveryModel,
        args: TrainingArguments,
        stages: StageStream,
        callbacks: Sequence[CategoryDiscoveryCallback] = (),
        *,
        views: ViewOptions | None = None,
        eval_dataset: Dataset | None = None,
        method: str | None = None,
        conflicting_labels: Literal["refuse", "drop"] | None = None,
    ):
        for (name, (kind, instead)), value in zip(_KINDS.items(), (model, args, stages), strict=True):
            if not isinstance(value, kind):
                raise ConfigurationError(
                    f"Expected {name} to be a {kind.__name__} of promptccd, got {type(value).__module__}."
                    f"{type(value).__qualname__}: give {instead}."
                )
        if stages.split.seed != args.seed:
            raise ConfigurationError(
                f"The stages were cut with seed {stages.split.seed}, but TrainingArguments has seed {args.seed}. "
                f"Cut the stages with StageStream.from_dataset(..., seed={args.seed})."
            )
        self.model, self.args, self.stages, self.callbacks = model, args, stages, list(callbacks)
        self.eval_dataset = eval_dataset
        self.run = RunDirectory(args.output_dir)
        self.recipe = Recipe(
            data=_data_arguments(stages, conflicting_labels),
            views=views or ViewOptions(),
            model=_model_arguments(model, self.run, method),
            training=args,
        )
        self._given = model

    @cached_property
    def accelerator(self) -> Accelerator:
        """The device and precision of the training."""
        return accelerator_for(self.args)

    def train(self) -> ContinualScore:
        """Train all stages; finished stages stay, and an interrupted stage is resumed.

        Returns:
            All, Old and New per stage, also in ``results.json``: of all stages, unless a callback ended the training.

        Raises:
            PromptCCDError: the message gives the cause and the remedy; saved files stay.
        """
        return self._train(self.stages)

    def train_stage(self, stage: int) -> StageScore | None:
        """Train one stage, and unfinished stages before it.

        Returns:
            Its row of the table; `None` for stage 0, where there is nothing to discover, or if a callback ended it.

        Raises:
            PromptCCDError: as for `train`, or there is no such stage.
        """
        if not 0 <= stage < len(self.stages):
            raise ConfigurationError(f"Expected a stage in 0..{len(self.stages) - 1}, got {stage}.")
        rows = self._train(self.stages[: stage + 1]).stages
        return next((row for row in rows if row.stage == stage), None)

    def evaluate(self, protocol: str = "cacc", **options: str | None) -> ContinualScore:
        """Score every finished stage from its checkpoint alone; callbacks and trackers get the metrics.

        Args:
            protocol: a name in `promptccd.evaluation.PROTOCOLS`, such as ``inductive``.
            options: ``test_split`` and ``estimator``, as far as the protocol reads them.

        Raises:
            PromptCCDError: no unlabelled stage is finished, or the images that the protocol needs are missing.
        """
        evaluation = RunEvaluation(
            str(self.run.path),
            num_workers=self.args.num_workers,
            stages=self.stages,
            test_images=self.eval_dataset,
            image_cache=self.args.image_cache,
        )
        score = evaluation.evaluate(protocol, **options)
        tracking = Tracking(self.accelerator, self.run.name, self.run.manifest)
        is_main, last = self.accelerator.is_main_process, evaluation.num_stages - 1
        state = RunState(self.run.path, len(self.stages), is_main, last)
        listeners = Callbacks(self.args, StopRequest(), state, [tracking, *self.callbacks])
        tracking.on_train_begin(self.args, state, listeners.control)
        listeners.call("on_evaluate", metrics=score.metrics())
        return score

    def push_to_hub(
        self, namespace: str | None = None, private: bool | None = None
    ) -> list[PushedRepository]:
        """Push every finished stage to a repository of its own; stages that are there already are not sent again.

        Args:
            namespace: user or organisation; `None` means ``args.hub_namespace``, or else the logged-in user.
            private: whether new repositories are private; `None` means ``args.hub_private``.

        Raises:
            RunError: no stage is finished, or a stage is damaged.
            HubError: the Hub cannot be reached or refuses.
        """
        private = self.args.hub_private if private is None else private
        return push_run(self.run, namespace=namespace or self.args.hub_namespace, private=private)

    def _train(self, stages: StageStream) -> ContinualScore:
        if self.recipe.model.backbone == str(self.run.backbone):
            if self.accelerator.is_main_process:
                with FolderLock(self.run.path):
                    self._keep_backbone()
            self.accelerator.wait_for_everyone()
        score = train_recipe(self.recipe, self.accelerator, stages=stages, callbacks=self.callbacks)
        finished = [stage.index for stage in stages if self.run.stage(stage.index).exists()]
        if finished:
            self.model = load_model(self.run.stage(finished[-1]), self.recipe.model.max_model_bytes)
        return score

    def _keep_backbone(self) -> None:
        """Write the backbone of the given model into the run, or make sure that it is the one stored there."""
        backbone, place = self._given.backbone, self.run.backbone
        if not trusted(place):
            write_directory(place, backbone.save_pretrained)
        elif not _is_stored_in(self._given, place):
            raise RunError(
                f"The run in {self.run.path} started from another backbone. Load the model from {place}, or give "
                "another output_dir."
            )


def _data_arguments(stages: StageStream, conflicting_labels: str | None) -> DataArguments:
    """The data section of a recipe for given stages: a data set that was given by name keeps it."""
    values: dict[str, Any] = {"dataset": IN_MEMORY, "conflicting_labels": conflicting_labels}
    split, source = stages.split, stages.source
    if source is None:
        values |= {"cuts": split.cuts or None, "split_rule": split.rule}
    else:
        usual = inspect.signature(StageStream.from_dataset).parameters
        names = (source.keys() & DataArguments.__dataclass_fields__) - {"dataset"}
        values |= {name: source[name] for name in names if source[name] != usual[name].default}
        if isinstance(source["dataset"], str):
            values["dataset"] = source["dataset"]
    for name in {"unlabelled", "labels"} & values.keys():
        values[name] = [each if isinstance(each, str) else IN_MEMORY for each in values[name]]
    if values.get("cuts") is not None:
        values["cuts"] = [[float(share) for share in row] for row in values["cuts"]]
    return DataArguments(**{**values, "class_blocks": [*map(int, split.class_blocks)]})


def _model_arguments(model: CategoryDiscoveryModel, run: RunDirectory, method: str | None) -> ModelArguments:
    """The model section of a recipe for a model over a pretrained backbone.

    Its head and prompts do not count: a run draws them from its seed. The run keeps a backbone that differs from the
    one the model was loaded from.
    """
    kind, config = type(model).__name__, model.config
    variant = method or config.model_type
    wanted = method_named(variant).model
    if wanted is not type(model):
        raise ConfigurationError(
            f"Method {variant!r} trains a {wanted.__name__}, not a {kind}. Give a {wanted.__name__}, or another method."
        )
    if config.stage is not None:
        raise ConfigurationError(
            f"This {kind} has finished stage {config.stage}. A training starts from a bare backbone: give "
            f"{kind}.from_pretrained(<backbone>). To resume a run, give its output_dir."
        )
    place: str = config.name_or_path
    try:
        is_unchanged = bool(place) and find_model(place).is_backbone and _is_stored_in(model, place)
    except (OSError, ValueError):  # a folder that is gone, or a Hub that cannot be asked
        is_unchanged = False
    bundled = {path: name for name, path in BUNDLED.items()}
    memory = 2 * model.get_memory_footprint()
    return ModelArguments(
        variant=variant,
        backbone=bundled.get(place, place) if is_unchanged else str(run.backbone),
        options=_non_default_fields(model),
        max_model_bytes=memory if memory > MAX_MODEL_BYTES else None,
    )


def _non_default_fields(model: CategoryDiscoveryModel) -> dict[str, Any]:
    """Fields of the model's configuration that differ from their defaults.

    ``vision_config`` and ``precision`` follow from the backbone and the training.
    """
    config, usual = model.config, type(model.config)()
    known = {*PreTrainedConfig.__dataclass_fields__, "vision_config", "precision"}
    names = [name for name in config.__dataclass_fields__ if name not in known]
    return {name: getattr(config, name) for name in names if getattr(config, name) != getattr(usual, name)}


def _is_stored_in(model: CategoryDiscoveryModel, place: str | Path) -> bool:
    """Whether the bare backbone in a folder or repository equals the model's, value by value."""
    memory = max(2 * model.get_memory_footprint(), MAX_MODEL_BYTES)
    options = _non_default_fields(model)
    stored = type(model).from_pretrained(place, dtype=torch.float32, max_model_bytes=memory, **options)
    own, there = model.backbone.state_dict(), stored.backbone.state_dict()
    return own.keys() == there.keys() and all(
        torch.equal(value.cpu(), there[name].to(value.dtype)) for name, value in own.items()
    )
