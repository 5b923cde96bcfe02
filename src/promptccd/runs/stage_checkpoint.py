"""One stage on disk: a model for ``from_pretrained`` with its image processor, card, registry and assignments."""

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from promptccd.data.views import EvaluationView
from promptccd.errors import RunError, nothing_at
from promptccd.evaluation import Discovery, StageScore, clustering_accuracy
from promptccd.methods import method_named
from promptccd.models import CategoryDiscoveryConfig, CategoryDiscoveryModel, stored_configuration
from promptccd.models.hub_names import parted
from promptccd.models.loading import find_model
from promptccd.models.stored_files import PREPROCESSOR, patch_size_of, stored_processor
from promptccd.models.untrusted import CheckpointError, one_line
from promptccd.registry import (
    REGISTRY,
    CategoryRegistry,
    StageGroups,
    has_registry,
    load_registry,
    save_registry,
    take_labels,
)
from promptccd.registry.grouping import NO_CATEGORY
from promptccd.registry.labelling import Labelled
from promptccd.runs import endpoint
from promptccd.runs.card_usage import Example
from promptccd.runs.run_directory import ASSIGNMENTS, RunDirectory
from promptccd.runs.shards import save_shards, stages_beside
from promptccd.storage import CHECKSUMS, parsed_json, problems_of, write_directory, write_json
from promptccd.training.adapters import StageAdapter
from promptccd.training.exemplars import Exemplars
from promptccd.training.options import ModelArguments

logger = logging.getLogger(__name__)

EXEMPLARS = "exemplars.json"


def save_stage(
    path: Path,
    model: CategoryDiscoveryModel,
    view: EvaluationView,
    *,
    assignments: Mapping[str, np.ndarray],
    card: str,
    registry: CategoryRegistry,
    exemplars: Exemplars | None = None,
    examples: Sequence[Example] = (),
    adapter: StageAdapter | None = None,
) -> None:
    """Write a stage's checkpoint, whole or not at all.

    Args:
        path: folder of the stage.
        model: the model with its prototypes set.
        view: its deterministic view, saved as ``preprocessor_config.json``.
        assignments: see `assignments_in`, ``(N,)`` each.
        card: text of the model card, see `stage_card`.
        registry: its categories, and what people corrected so far.
        exemplars: images that later stages train on again, if any.
        examples: pictures that its card shows.
        adapter: what makes its backbone of the plain one, if low-rank adapters alone did.
    """

    def fill(folder: Path) -> None:
        save_shards(model, folder, stages_beside(path))
        view.processor.save_pretrained(folder)
        write_json(folder / ASSIGNMENTS, {name: each.tolist() for name, each in assignments.items()})
        if exemplars is not None:
            write_json(folder / EXEMPLARS, exemplars.to_dict())
        save_registry(registry, folder)
        (folder / "handler.py").write_bytes(Path(endpoint.__file__).read_bytes())
        for each in examples:
            (folder / each.path).parent.mkdir(exist_ok=True)
            (folder / each.path).write_bytes(each.content)
        if adapter is not None:
            adapter.save(folder)
        (folder / "README.md").write_text(card, encoding="utf-8", newline="\n")

    write_directory(path, fill, needed=model.get_memory_footprint())


def stage_adapter(
    run: RunDirectory, stage: int, learnt: Mapping[str, Tensor], plain: str | None
) -> StageAdapter | None:
    """What low-rank adapters made of the plain backbone up to a stage; `None`, which is told, if not they alone did.

    Args:
        run: its earlier stages are finished.
        stage: that they have just learnt in.
        learnt: see `Adapters.merge`.
        plain: repository of the run's backbone, if it has one; stages that were fetched may have begun with another.
    """
    try:
        before = run.stage(stage - 1) if stage else None
        return StageAdapter.after(before, learnt, None if run.fetched else plain)
    except (OSError, CheckpointError) as error:
        logger.warning("Stage %d keeps no adapter beside its weights: %s", stage, one_line(error))
        return None


def require_whole(path: str | Path) -> None:
    """Refuse a path where nothing is, and a checkpoint of promptccd that does not hold what was written.

    A model that a person saved in Python has no sums and none of the files that only this module writes: it is not
    checked. Neither is a name on the Hub.

    Raises:
        RunError: a file was altered, is missing, or does not belong there; all are named.
    """
    folder, written = Path(path), os.fspath(path)
    is_path = len(folder.parts) > 2 or (folder.parent != Path() and folder.parent.exists())  # no Hub id, then
    if is_path and parted(written)[0] == written and not folder.exists():
        raise RunError(f"{nothing_at(path)} Give the folder of a model, such as the last stage of a run.")
    ours = any((folder / name).exists() for name in (CHECKSUMS, ASSIGNMENTS, REGISTRY))
    if ours and (problems := problems_of(folder)):
        raise RunError(
            f"{folder} is damaged: {'; '.join(problems)}. Copy it again, or train the stage again."
        )


def load_view(path: str | Path, **hub_options: Any) -> EvaluationView:
    """The deterministic view saved beside a model, on the PIL backend whatever else is installed.

    Args:
        path: of the model.
        hub_options: `promptccd.models.loading.HUB_OPTIONS`, such as those that found the model.

    Raises:
        RunError: there is none, or it is refused.
    """
    try:
        found = find_model(path, **hub_options)
        processor = stored_processor(found.place, patch_size_of(found.values), **found.options)
    except (OSError, ValueError) as error:
        raise RunError(f"Cannot read how images enter {str(path)!r}: {one_line(error)}") from error
    if processor is None:
        raise RunError(
            f"{str(path)!r} has no {PREPROCESSOR}, which says how images enter it: copy the model again."
        )
    return EvaluationView(processor)


def load_stage(path: Path, arguments: ModelArguments) -> CategoryDiscoveryModel:
    """The model of a finished stage, given its run's arguments; a `RunError` if it holds no such model."""
    kind = method_named(arguments.variant).model
    try:
        return kind.from_pretrained(path, max_model_bytes=arguments.max_model_bytes)
    except (OSError, ValueError) as error:
        raise RunError(f"Cannot load the model of {path}: {one_line(error)}") from error


def load_configuration(path: Path) -> CategoryDiscoveryConfig:
    """The configuration of a finished stage, without its weights; a `RunError` if there is none or it is refused."""
    try:
        return stored_configuration(path)
    except (OSError, ValueError) as error:
        raise RunError(f"Cannot read the configuration of {path}: {one_line(error)}") from error


def row_of(
    stage: int,
    config: CategoryDiscoveryConfig,
    true_ids: np.ndarray,
    found_ids: ArrayLike,
    num_known: int,
    *,
    num_categories: int,
    class_ids: ArrayLike | None = None,
) -> StageScore:
    """A finished stage's row of the table.

    Args:
        stage: its index.
        config: of its model.
        true_ids: true categories of its images, ``(N,)``.
        found_ids: categories it assigned, ``(N,)``, with the corrections made before the stage.
        num_known: number of initially labelled categories; ids below it are Old.
        num_categories: categories known after the stage.
        class_ids: what the model's classifier takes the images for, ``(N,)``, if it has one.
    """
    accuracy = clustering_accuracy(true_ids, found_ids, range(num_known))
    native = None if class_ids is None else clustering_accuracy(true_ids, class_ids, range(num_known))
    estimate = config.count_estimate
    limits = None if estimate is None else (estimate["low"], estimate["high"])
    return StageScore(stage, *accuracy, num_categories, len(true_ids), limits, native)


def categories_at(path: Path, config: CategoryDiscoveryConfig) -> tuple[int, dict[int, str]]:
    """How many categories a finished stage had when it was grouped, and today's names of all it ever had.

    Later corrections change neither the assignments nor the row of the table, which stay as they were written.

    Raises:
        RegistryError: its registry is damaged.
    """
    if not has_registry(path):
        return len(config.category_ids), config.names_by_id | {NO_CATEGORY: "no category"}
    registry = load_registry(path)
    names = {each.id: each.name for each in registry.categories.values()}
    while registry.log and registry.log[-1].patch is not None:  # a later correction
        registry.undo()
    return len(registry.active), names | {NO_CATEGORY: "no category"}


def load_exemplars(path: Path) -> Exemplars:
    """The images that stages after a finished one train on again.

    Raises:
        RunError: the stage names none, or the file is damaged.
    """
    try:
        return Exemplars.from_dict(parsed_json((path / EXEMPLARS).read_text(encoding="utf-8")))
    except FileNotFoundError as error:
        raise RunError(
            f"{path} has no {EXEMPLARS}: it was trained without exemplars_per_class. Set that to 0, or train all "
            "stages in a new output_dir."
        ) from error
    except ValueError as error:
        raise RunError(f"{path / EXEMPLARS} is damaged: {one_line(error)} Train the stage again.") from error


@dataclass(frozen=True, eq=False)
class SettledImages:
    """Images of earlier stages, with the category that each has by now.

    Attributes:
        registry: as the last stage and the corrections since left it; `None` before the first stage.
        ids: per earlier stage the category ids ``(N,)``, -1 for an image that a correction left without one.
        labelled: what labels that came since have changed.
    """

    registry: CategoryRegistry | None
    ids: Sequence[np.ndarray]
    labelled: Labelled = field(default_factory=Labelled)

    def category_of(self, sample_id: int) -> int:
        """The category that an image has by now, or -1."""
        assert self.registry is not None
        return self.registry.members.get(key_of(sample_id), NO_CATEGORY)

    @property
    def assigned(self) -> list[np.ndarray]:
        """Per earlier stage, the ids of the images that have a category."""
        return [ids[ids != NO_CATEGORY] for ids in self.ids]

    def of_placed(self, features: Sequence[Tensor]) -> list[Tensor]:
        """Features of the images that have a category, and all features of later stages."""
        masks = [torch.from_numpy(ids != NO_CATEGORY) for ids in self.ids]
        return [
            each if stage >= len(masks) or bool(masks[stage].all()) else each[masks[stage].to(each.device)]
            for stage, each in enumerate(features)
        ]


def key_of(sample_id: int) -> str:
    """The key of an image of a data set in a registry."""
    return f"row:{sample_id}"


def settled_images(
    run: RunDirectory, sample_ids: Sequence[np.ndarray], labels: Mapping[int, str] | None = None
) -> SettledImages:
    """Images of earlier stages, with their categories when the next stage begins.

    Args:
        run: its earlier stages are finished.
        sample_ids: the readable images of every earlier stage.
        labels: that came since, by sample id: they count, and the last stage stays as it was written.

    Raises:
        RegistryError: the last stage's registry is damaged, or a label cannot be the name of a category.
    """
    if not sample_ids:
        return SettledImages(None, [])
    registry = load_registry(run.stage(len(sample_ids) - 1))
    said = take_labels(registry, {key_of(sample): label for sample, label in (labels or {}).items()})
    return SettledImages(registry, [_categories_of(each, registry) for each in sample_ids], said)


def _categories_of(sample_ids: np.ndarray, registry: CategoryRegistry) -> np.ndarray:
    """Nobody learns from images that are set aside, as from those in no category."""
    aside, members = {each.id for each in registry.aside}, registry.members
    homes = [members.get(key_of(each), NO_CATEGORY) for each in sample_ids.tolist()]
    return np.array([NO_CATEGORY if each in aside else each for each in homes], dtype=np.int64)


def observe_stage(
    settled: SettledImages, found: Discovery, sample_ids: np.ndarray, names: Sequence[str]
) -> tuple[CategoryRegistry, Discovery]:
    """Add what a stage found to the registry.

    Args:
        settled: images of the stages before it.
        found: the stage's grouping; ids of new categories are provisional.
        sample_ids: the stage's readable images ``(N,)``.
        names: of the known categories; position is category id.

    Returns:
        The registry after the stage, and the grouping with the ids that the registry gave.
    """
    stage, keys = len(settled.ids), [key_of(each) for each in sample_ids.tolist()]
    prototypes = found.prototypes.float().cpu().numpy()
    if settled.registry is None:
        members = dict(zip(keys, found.category_ids.tolist(), strict=True))
        shown = [names[each] if each < len(names) else f"discovered {each}" for each in found.prototype_ids]
        registry = CategoryRegistry.from_categories(
            found.prototype_ids, shown, len(names), prototypes, stage=stage, members=members
        )
        return registry, found
    before = {int(each) for ids in settled.assigned for each in np.unique(ids)}
    registry = settled.registry.copy()
    registry.observe(
        stage, StageGroups.of(keys, found.category_ids, found.prototype_ids, prototypes, settled=before)
    )
    active = registry.active_prototypes()
    ids = _categories_of(sample_ids, registry)
    return registry, Discovery(ids, torch.from_numpy(active.matrix).to(found.prototypes), active.ids)
