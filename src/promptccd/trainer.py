"""Training as transformers has it: a model, arguments, data and callbacks; and what ``promptccd train`` calls."""

import dataclasses
import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from accelerate import Accelerator
from datasets import Dataset
from transformers import PreTrainedConfig

from promptccd.data.loading import IN_MEMORY
from promptccd.data.stages import StageStream
from promptccd.data.views import ViewOptions
from promptccd.errors import ConfigurationError, RunError
from promptccd.evaluation import ContinualScore, StageScore
from promptccd.evaluation.protocol_terms import ProtocolOptions
from promptccd.hub import PushedRepository, fetch_stages, push_run, pusher
from promptccd.models import CategoryDiscoveryModel
from promptccd.models.loading import BACKBONES, find_model
from promptccd.models.stored_files import BACKBONE_TYPES
from promptccd.models.weights import MAX_MODEL_BYTES
from promptccd.runs import RunDirectory, RunEvaluation, load_model, train_run
from promptccd.runs.tracking import Tracking
from promptccd.runs.train_run import accelerator_for
from promptccd.storage import trusted, write_directory
from promptccd.training.arguments import DataArguments, ModelArguments, TrainingArguments
from promptccd.training.callbacks import Callbacks, CategoryDiscoveryCallback, RunState, require_callbacks
from promptccd.training.launcher import is_first_process
from promptccd.training.objectives import method_named
from promptccd.training.progress import StopRequest
from promptccd.training.recipe import Recipe, build_section


def train_recipe(
    recipe: Recipe,
    accelerator: Accelerator | None = None,
    *,
    stages: StageStream | None = None,
    callbacks: Sequence[CategoryDiscoveryCallback] = (),
) -> ContinualScore:
    """Train all stages of a recipe, fetched from the Hub and pushed there as it says.

    Args:
        recipe: what to train on, what and how.
        accelerator: as for `train_run`, and so are the others.
        stages: see there.
        callbacks: see there.

    Returns:
        The table so far.

    Raises:
        PromptCCDError: with a message that says what, why and what to do; what was saved stays.
    """
    training = recipe.training
    run, push = RunDirectory(training.output_dir), None
    if training.push_to_hub:
        push = pusher(run, training.hub_namespace, training.hub_private)
    if training.resume_from is not None and is_first_process():  # the others wait for it
        fetch_stages(training.resume_from, run, training.seed)
    return train_run(recipe, accelerator, push, stages=stages, callbacks=callbacks)


def _require_kinds(model: object, args: object, stages: object) -> None:
    """Refuse what transformers' own Trainer would take in their place.

    Raises:
        ConfigurationError: naming what to give instead.
    """
    for name, value, kind, instead in (
        ("model", model, CategoryDiscoveryModel, "PromptCCDModel.from_pretrained(BACKBONE)"),
        ("args", args, TrainingArguments, "promptccd.TrainingArguments, which is not transformers'"),
        ("stages", stages, StageStream, "StageStream.from_dataset(DATASET, class_blocks=[...])"),
    ):
        if not isinstance(value, kind):
            raise ConfigurationError(
                f"Expected {name} to be a {kind.__name__} of promptccd, got {type(value).__module__}."
                f"{type(value).__qualname__}: give {instead}."
            )


class CategoryDiscoveryTrainer:
    """Trains a model through the stages of a data set; the engine of ``promptccd train``, with the same bytes.

    What was saved in ``args.output_dir`` is never trained again: the same calls go on where they were interrupted.
    A tracker stays open until the process ends, or until ``trainer.accelerator.end_training()``.

    Example:
        >>> stages = StageStream.from_dataset(dataset, class_blocks=[70, 10, 10, 10])  # doctest: +SKIP
        >>> model = PromptCCDModel.from_pretrained("facebook/dinov2-base")  # doctest: +SKIP
        >>> trainer = CategoryDiscoveryTrainer(model, TrainingArguments("out"), stages)  # doctest: +SKIP
        >>> trainer.train().average  # doctest: +SKIP

    Args:
        model: a model over a bare backbone. Its type decides the method, its configuration the options. Its head and
            prompts are drawn anew for the seed, so that nothing depends on how it was made.
        args: how to train.
        stages: what to train on, cut with the seed of `args`.
        callbacks: what is told of the training, and may end it early.
        views: how a picture becomes a tensor.
        eval_dataset: unseen images, for protocols that need some; cut by the keywords that `stages` were cut by.
        method: a method of your own over a model that is there, by its name in `METHODS`.
        conflicting_labels: what becomes of a picture that stage 0 holds under two labels.

    Attributes:
        model: the model that was given; after `train`, that of the last finished stage.
        recipe: what the run records of all this; a command can go on with the same.

    Raises:
        ConfigurationError: these do not go together; the message says what does.
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
        _require_kinds(model, args, stages)
        if stages.split.seed != args.seed:
            raise ConfigurationError(
                f"The stages were cut with seed {stages.split.seed}, and TrainingArguments has seed {args.seed}: one "
                f"seed decides both, so cut them with StageStream.from_dataset(..., seed={args.seed})."
            )
        require_callbacks(callbacks)
        self.model, self.args, self.stages, self.callbacks = model, args, stages, list(callbacks)
        self.eval_dataset = eval_dataset
        self.run = RunDirectory(args.output_dir)
        self.recipe = Recipe(
            data=data_arguments(stages, conflicting_labels),
            views=views or ViewOptions(),
            model=model_arguments(model, self.run, method),
            training=args,
        )
        self._given, self._accelerator = model, None

    @property
    def accelerator(self) -> Accelerator:
        """Where and in which precision it computes."""
        self._accelerator = self._accelerator or accelerator_for(self.args)
        return self._accelerator

    def train(self) -> ContinualScore:
        """Train all stages; those that are finished stay, and one that was interrupted goes on.

        Returns:
            All, Old and New per stage, also in ``results.json``: of all stages, unless a callback ended the training.

        Raises:
            PromptCCDError: with a message that says what, why and what to do; what was saved stays.
        """
        return self._train(self.stages)

    def train_stage(self, stage: int) -> StageScore | None:
        """Train one stage, and those before it that are not finished.

        Returns:
            Its row of the table; none for stage 0, where there is nothing to discover, or if a callback ended it.

        Raises:
            PromptCCDError: as `train`, or there is no such stage.
        """
        if not 0 <= stage < len(self.stages):
            raise ConfigurationError(f"Expected a stage in 0..{len(self.stages) - 1}, got {stage}.")
        rows = self._train(self.stages[: stage + 1]).stages
        return next((row for row in rows if row.stage == stage), None)

    def evaluate(self, protocol: str = "cacc", options: ProtocolOptions | None = None) -> ContinualScore:
        """Score every finished stage from its checkpoint alone; callbacks and trackers hear of it.

        Args:
            protocol: a name in `promptccd.evaluation.PROTOCOLS`, such as ``inductive``.
            options: of the protocol.

        Raises:
            PromptCCDError: no unlabelled stage is finished, or the protocol needs images that are not there.
        """
        evaluation = RunEvaluation(
            str(self.run.path),
            num_workers=self.args.num_workers,
            stages=self.stages,
            test_images=self.eval_dataset,
        )
        score = evaluation.evaluate(protocol, options)
        tracking = Tracking(self.accelerator, self.run)
        last = evaluation.num_stages - 1
        state = RunState(self.run.path, len(self.stages), self.accelerator.is_main_process, last)
        told = Callbacks(self.args, state, StopRequest(), [tracking, *self.callbacks])
        tracking.start(self.args, state)
        told.tell("on_evaluate", metrics=score.metrics())
        return score

    def push_to_hub(
        self, namespace: str | None = None, private: bool | None = None
    ) -> list[PushedRepository]:
        """Push every finished stage to a repository of its own; what is there already is not sent again.

        Args:
            namespace: user or organisation; none means ``args.hub_namespace``, or else who is logged in.
            private: whether repositories that are made are private; none means ``args.hub_private``.

        Raises:
            RunError: there is no finished stage, or one is damaged.
            HubError: the Hub could not be reached or refused.
        """
        return push_run(
            self.run,
            namespace=namespace or self.args.hub_namespace,
            private=self.args.hub_private if private is None else private,
        )

    def _train(self, stages: StageStream) -> ContinualScore:
        if self.recipe.model.backbone == str(self.run.backbone):
            self._keep_backbone()
        score = train_recipe(self.recipe, self.accelerator, stages=stages, callbacks=self.callbacks)
        finished = [stage.index for stage in stages if self.run.stage(stage.index).exists()]
        if finished:
            self.model = load_model(self.run.stage(finished[-1]), self.recipe.model.max_model_bytes)
        return score

    def _keep_backbone(self) -> None:
        if self.accelerator.is_main_process:
            self.run.lock()
            try:
                keep_backbone(self._given, self.run)
            finally:
                self.run.unlock()
        self.accelerator.wait_for_everyone()


def data_arguments(
    stages: StageStream, conflicting_labels: Literal["refuse", "drop"] | None = None
) -> DataArguments:
    """What a recipe says of stages that a caller has.

    A data set that was given by name keeps it; any other is called one given from Python.
    """
    values: dict[str, Any] = {"dataset": IN_MEMORY, "conflicting_labels": conflicting_labels}
    split, origin = stages.split, stages.origin
    if origin is None:
        values |= {"cuts": [list(row) for row in split.cuts] or None, "split_rule": split.rule}
    else:
        usual = inspect.signature(StageStream.from_dataset).parameters
        known = DataArguments.__dataclass_fields__
        values |= {
            name: value
            for name, value in origin.options.items()
            if name in known and value != usual[name].default
        }
        if isinstance(origin.dataset, str):
            values["dataset"] = origin.dataset
    if values.get("cuts") is not None:
        values["cuts"] = [[float(share) for share in row] for row in values["cuts"]]
    return build_section("data", DataArguments, {**values, "class_blocks": [*map(int, split.class_blocks)]})


_NOT_CHOSEN = {"vision_config", "precision"}  # they follow from the backbone and the training


def model_arguments(model: CategoryDiscoveryModel, run: RunDirectory, method: str | None) -> ModelArguments:
    """What a recipe says of a model that is about to be trained.

    Args:
        model: over a pretrained backbone; its head and prompts do not count, a run draws them for its seed.
        run: which keeps the backbone, where that is not the one the model was loaded from.
        method: its name in `METHODS`; none means the one that is called as the model's type.

    Raises:
        ConfigurationError: the model has finished a stage, or is not of the method.
    """
    kind, config = type(model), model.config
    variant = method or config.model_type
    if method_named(variant).model is not kind:
        raise ConfigurationError(
            f"Method {variant!r} trains a {method_named(variant).model.__name__}, got a {kind.__name__}: give one of "
            "those, or name its method."
        )
    if config.stage is not None:
        raise ConfigurationError(
            f"This {kind.__name__} has finished stage {config.stage}, and a training begins with a bare backbone: give "
            f"{kind.__name__}.from_pretrained(<backbone>). A run that was begun goes on by itself in its output_dir."
        )
    chosen = _chosen(model)
    own = {each.name for each in dataclasses.fields(ModelArguments)}
    options = {name: value for name, value in chosen.items() if name not in own}
    memory = 2 * model.get_memory_footprint()
    return ModelArguments(
        variant=variant,
        backbone=_source(model) or str(run.backbone),
        options=options or None,
        max_model_bytes=memory if memory > MAX_MODEL_BYTES else None,
        **{name: value for name, value in chosen.items() if name in own},
    )


def keep_backbone(model: CategoryDiscoveryModel, run: RunDirectory) -> None:
    """Write the backbone of a model into its run, unless it lies there.

    Raises:
        RunError: another one lies there.
    """
    if not trusted(run.backbone):
        write_directory(
            run.backbone,
            lambda folder: model.backbone.save_pretrained(folder),
            needed=model.backbone.get_memory_footprint(),
        )
    elif not _lies_in(model, run.backbone):
        raise RunError(
            f"The run in {run.path} was begun with another backbone than this model has: load the model from "
            f"{run.backbone}, or give another output_dir."
        )


def _chosen(model: CategoryDiscoveryModel) -> dict[str, Any]:
    """Fields of the model's configuration that are not at their defaults."""
    known = {*PreTrainedConfig.__dataclass_fields__, *_NOT_CHOSEN}
    fields = [each for each in dataclasses.fields(type(model.config)) if each.name not in known]
    usual = {
        each.name: each.default if each.default_factory is dataclasses.MISSING else each.default_factory()
        for each in fields
    }
    found = {name: getattr(model.config, name) for name in usual}
    return {name: value for name, value in found.items() if value != usual[name]}


def _source(model: CategoryDiscoveryModel) -> str | None:
    """Where the model's backbone was loaded from, if that is a bare backbone and nothing of it was changed since."""
    place: str = model.config.name_or_path
    try:
        is_bare = bool(place) and find_model(place)[1].get("model_type") in BACKBONE_TYPES
        found = is_bare and _lies_in(model, place)
    except (OSError, ValueError):  # a folder that is gone, or a Hub that cannot be asked
        found = False
    names = {path: name for name, path in BACKBONES.items()}
    return names.get(place, place) if found else None


def _lies_in(model: CategoryDiscoveryModel, place: str | Path) -> bool:
    """Whether the bare backbone that lies there is the model's, value by value."""
    memory = 2 * model.get_memory_footprint()
    stored = type(model).from_pretrained(
        place, dtype=torch.float32, max_model_bytes=max(memory, MAX_MODEL_BYTES), **_chosen(model)
    )
    own, there = model.backbone.state_dict(), stored.backbone.state_dict()
    return own.keys() == there.keys() and all(
        value.shape == there[name].shape and torch.equal(value.cpu(), there[name].to(value.dtype))
        for name, value in own.items()
    )
