"""Train one discovery stage on a person's images, from a checkpoint alone."""

import copy
import logging
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset, Features, Image
from torch import Tensor

from promptccd.data.image_rows import ImageRows
from promptccd.data.options import ViewOptions
from promptccd.data.randomness import torch_generator
from promptccd.data.readable import ImageCache, StageImages
from promptccd.data.stages import Stage
from promptccd.data.views import TrainingViews
from promptccd.discovery.checkpoint import newest_stage_in, save_checkpoint
from promptccd.discovery.embedding import RESIZE_SHARE
from promptccd.discovery.intake.reading import IntakeFile
from promptccd.discovery.options import AdaptationOptions
from promptccd.discovery.project.registry import CategoryRegistry, load_registry
from promptccd.discovery.session import DiscoverySession
from promptccd.disk import parsed_json, write_json
from promptccd.errors import ConfigurationError, DataError, RunError
from promptccd.methods import StageContext, method_named
from promptccd.models import Assignment, CategoryDiscoveryModel
from promptccd.runs.predict import load_model
from promptccd.training.devices import accelerator_for
from promptccd.training.options import TrainingArguments
from promptccd.training.progress import Callbacks, StopRequest
from promptccd.training.stage_trainer import StageTrainer

logger = logging.getLogger(__name__)

FEWEST_LEARNT = 4


def require_head(session: DiscoverySession) -> None:
    """Refuse a bare backbone, which has no head to train, with a `ConfigurationError`."""
    if not session.registry.num_known:
        raise ConfigurationError(
            "A bare backbone cannot be adapted: it has no projection head to learn with. Give a stage that training "
            "finished, or leave --adapt out."
        )


def _learnt(session: DiscoverySession) -> list[IntakeFile]:
    """The newest images without ignored images."""
    members, aside = session.registry.members, {each.id for each in session.registry.aside}
    return [file for file in session.current.intake.used if members.get(file.key) not in aside]


def _require_images(session: DiscoverySession) -> None:
    if (count := len(_learnt(session))) < FEWEST_LEARNT:
        raise DataError(f"Expected at least {FEWEST_LEARNT} images to train on, got {count}.")


def adapt(session: DiscoverySession, options: AdaptationOptions, stop: StopRequest | None = None) -> None:
    """Train a copy of the session's model on its newest images, without labels, and embed them again with it.

    A stage of a run groups the labelled images again, but a checkpoint has only their means. So the prototype of an
    earlier category moves by as much as training moved the images nearest to it (ours). The bytes of all images are in
    memory meanwhile, which is fine for thousands of photographs.

    Args:
        session: its images are embedded and grouped; the number of categories is that of the grouping.
        options: of the training.
        stop: remembers signals; if absent, Ctrl-C is an ordinary `KeyboardInterrupt`.

    Raises:
        ConfigurationError: the model is a bare backbone, which has no head to train.
        DataError: there are fewer than four images.
        DivergedError: the loss or a feature is no longer a number.
        InterruptedRunError: a signal was received; the session is as before.
    """
    require_head(session)
    _require_images(session)
    found, student = session.assignment(), copy.deepcopy(session.model)
    _train(student, session, len(found.ids), options, stop or StopRequest())
    session.model = student.eval()
    # Training changed how known categories spread, and their images are not here to measure it.
    session.model.set_measured("spread", None)
    keys, intake = session.current.keys, session.current.intake
    session.read(intake.source, None if stop is None else stop.progress, intake.entries)
    if session.current.keys != keys:
        raise DataError("The images changed while a stage was trained on them. Run the same command again.")
    row_of = {key: row for row, key in enumerate(keys)}
    after = session.current.features[[row_of[key] for key in found.keys]]
    carry_prototypes(session.registry, found, after)


def _train(
    model: CategoryDiscoveryModel,
    session: DiscoverySession,
    num_categories: int,
    options: AdaptationOptions,
    stop: StopRequest,
) -> None:
    stage, replay = session.current, None
    if options.replay_samples:
        replay = model.replay(options.replay_samples, torch_generator("replay", session.seed, stage.stage))
    # The model of stage 0 is not here, so the newest model replaces it.
    model.begin_discovery(lambda: copy.deepcopy(session.model).to(model.device))
    arguments = TrainingArguments(
        seed=session.seed,
        epochs=options.epochs,
        batch_size=min(options.batch_size, len(_learnt(session))),
        learning_rate=options.learning_rate,
        refit_every=max(1, options.epochs // 3),
        prompt_warmup_epochs=0,
    )
    side, resized = session.view.sides[0], session.view.processor.size.get("shortest_edge")
    resized = max(side, resized or int(side / RESIZE_SHARE))
    views = TrainingViews(ViewOptions(image_size=side, resize_size=resized))
    images = StageImages.read(_stage_of(session), 0, stop.progress, ImageCache(views.options))
    StageTrainer(
        model,
        StageContext(images, replay=replay, num_categories=num_categories),
        method_named(model.config.model_type).objective,
        callbacks=Callbacks(arguments, stop),
        views=views,
        evaluation_view=session.view,
        accelerator=accelerator_for(arguments, model.device),
    ).train()


def carry_prototypes(registry: CategoryRegistry, found: Assignment, after: Tensor) -> None:
    """Move the prototype of each category by the mean shift of its images, or of all images if it is empty.

    `after` ``(N, D)`` are the features of the images after training.
    """
    known = registry.prototypes_of([*registry.active, *registry.aside])
    moved, shifts = after - found.features, []
    for identity in known.ids:
        own = moved[found.category_ids == identity]
        shifts.append((own if len(own) else moved).mean(0).numpy() if len(moved) else 0.0)
    rows = (row + shift for row, shift in zip(known.matrix, shifts, strict=True))
    registry.replace_prototypes(dict(zip(known.ids, rows, strict=True)))


def _stage_of(session: DiscoverySession) -> Stage:
    """The newest images as a stage without labels; sample ids are positions."""
    intake = session.current.intake
    records = [{"bytes": intake.read_bytes(file), "path": None} for file in _learnt(session)]
    table = Dataset.from_dict({"image": records}, features=Features({"image": Image()}))
    rows, num_categories = ImageRows(table, decoding=intake.decoding), len(session.registry.active)
    return Stage(session.current.stage, rows, np.arange(len(records)), num_categories)


RECORD = "adaptation.json"


def values_asked(
    session: DiscoverySession, options: AdaptationOptions, num_categories: int | None
) -> dict[str, Any]:
    """The model of a fresh session, its categories, and the options of an adaptation, as plain values."""
    return {
        "model": session.model_space,
        "came_with": session.registry.state_hash(),
        "seed": session.seed,
        "num_categories": num_categories,
        "precision": session.precision,
        **asdict(options),
    }


def resume_adapted(session: DiscoverySession, out: Path, asked: Mapping[str, Any]) -> bool:
    """Give a fresh session the model and the categories of the newest stage in a folder, if equal values trained it.

    Args:
        session: with the model that the stage was trained from.
        out: folder of the results.
        asked: see `values_asked`.

    Returns:
        Whether there is such a stage.

    Raises:
        RunError: the record of the stage is damaged.
    """
    newest = newest_stage_in(out)
    if newest is None or not (newest / RECORD).is_file():
        return False
    try:
        if parsed_json((newest / RECORD).read_text(encoding="utf-8")) != asked:
            return False
    except ValueError as error:
        raise RunError(f"{newest / RECORD} is damaged: give another --out.") from error
    logger.info("%s was trained by this very command: its results are written.", newest)
    session.model = load_model(newest).to(session.model.device).eval()
    session.registry = load_registry(newest)
    return True


def require_trainable(session: DiscoverySession, out: Path, is_trained: bool) -> None:
    """Refuse to train on images that are too few, or over a stage that other images or values trained.

    `is_trained` is from `resume_adapted`.
    """
    if not session.is_grouped if is_trained else (out / f"stage{session.current.stage}").exists():
        raise RunError(
            f"{newest_stage_in(out)} was trained already: give it as the model, without --adapt, or give another --out."
        )
    _require_images(session)


def save_adapted(session: DiscoverySession, out: Path, asked: Mapping[str, Any]) -> None:
    """Write the session as a checkpoint with a record of the adaptation, whole or not at all."""
    folder = out / f"stage{session.current.stage}"
    save_checkpoint(session, folder, lambda staging: write_json(staging / RECORD, asked))
    session.model.config.name_or_path = str(folder)  # as when it is loaded from there
