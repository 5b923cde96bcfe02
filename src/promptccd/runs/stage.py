"""One stage on disk: a model for ``from_pretrained`` with its image processor, card, registry and assignments."""

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME

from promptccd import systems
from promptccd.clustering import CalibratedMixture
from promptccd.data.readable import StageImages
from promptccd.data.views import EvaluationView
from promptccd.discovery.project.edits import Labelled, apply_labels
from promptccd.discovery.project.observe import NO_CATEGORY, StageGroups
from promptccd.discovery.project.registry import CategoryRegistry, load_registry, save_registry
from promptccd.discovery.project.store import CATEGORIES
from promptccd.disk import CHECKSUMS, parsed_json, problems_of, write_directory, write_json
from promptccd.errors import DataError, RunError, nothing_at, one_line
from promptccd.evaluation import Discovery
from promptccd.methods.exemplars import NO_LABEL, Exemplars, Memory
from promptccd.models import CategoryDiscoveryModel
from promptccd.models.backbone import blocks_of
from promptccd.models.checkpoint import ALIGNMENT, PREPROCESSOR, FoundModel, load_processor, split_revision
from promptccd.runs import endpoint
from promptccd.runs.folder import ASSIGNMENTS, RunDirectory
from promptccd.training.options import TrainingArguments

logger = logging.getLogger(__name__)

FROZEN, LEARNT = (f"model-0000{number}-of-00002.safetensors" for number in (1, 2))
WEIGHTS = "model*.safetensors*"  # pattern of the files with a model's weights, and of their index
EXEMPLARS = "exemplars.json"


def save_stage(
    path: Path,
    model: CategoryDiscoveryModel,
    view: EvaluationView,
    assignments: Mapping[str, np.ndarray],
    card: str,
    registry: CategoryRegistry,
    exemplars: Exemplars | None,
) -> None:
    """Write a stage's checkpoint, whole or not at all; later stages train on exemplars."""

    def fill(folder: Path) -> None:
        save_shards(model, folder, sorted(each for each in path.parent.glob("stage*") if each != path))
        view.processor.save_pretrained(folder)
        write_json(folder / ASSIGNMENTS, {name: each.tolist() for name, each in assignments.items()})
        if exemplars is not None:
            write_json(folder / EXEMPLARS, exemplars.to_dict())
        save_registry(registry, folder)
        (folder / "handler.py").write_bytes(Path(endpoint.__file__).read_bytes())
        (folder / "requirements.txt").write_text("promptccd\n", encoding="utf-8", newline="\n")
        (folder / "README.md").write_text(card, encoding="utf-8", newline="\n")

    write_directory(path, fill)


def require_undamaged(path: str | Path) -> None:
    """Refuse a missing path, and a checkpoint of promptccd that differs from its records.

    A model that a person saved in Python has no sums and no files that only this module writes: it is not
    checked. Neither is a name on the Hub.

    Raises:
        RunError: a file was altered, is missing, or does not belong there; the message names all.
    """
    folder, written = Path(path), os.fspath(path)
    is_path = len(folder.parts) > 2 or (folder.parent != Path() and folder.parent.exists())  # no Hub id, then
    if is_path and split_revision(written)[0] == written and not folder.exists():
        raise RunError(f"{nothing_at(path)} Give the folder of a model, such as the last stage of a run.")
    ours = any((folder / name).exists() for name in (CHECKSUMS, ASSIGNMENTS, CATEGORIES))
    if ours and (problems := problems_of(folder)):
        raise RunError(
            f"{folder} is damaged: {'; '.join(problems)}. Copy it again, or train the stage again."
        )


def load_view(path: str | Path | FoundModel) -> EvaluationView:
    """The deterministic view saved with a model, on the PIL backend whatever else is installed.

    Raises:
        RunError: it is missing.
        CheckpointError: it is refused.
    """
    try:
        processor = load_processor(path)
    except OSError as error:
        raise RunError(f"Cannot read the image processor of {str(path)!r}: {one_line(error)}") from error
    if processor is None:
        raise RunError(f"{str(path)!r} has no {PREPROCESSOR}, the image processor: copy the model again.")
    return EvaluationView(processor)


def load_exemplars(path: Path) -> Exemplars:
    """The images that stages after a finished one train on again; or a `RunError`."""
    try:
        return Exemplars.from_dict(parsed_json((path / EXEMPLARS).read_text(encoding="utf-8")))
    except FileNotFoundError as error:
        raise RunError(
            f"{path} has no {EXEMPLARS}: it was trained without exemplars_per_class. Set that to 0, or train all "
            "stages in a new output_dir."
        ) from error
    except ValueError as error:
        raise RunError(f"{path / EXEMPLARS} is damaged: {one_line(error)} Train the stage again.") from error


def memory_before(
    run: RunDirectory, earlier: "AssignedImages", images: Sequence[StageImages], with_labels: bool
) -> Memory | None:
    """Exemplars of earlier stages with their present labels, unless these are hidden; or `None`."""
    before = len(earlier.ids) - 1
    exemplars = load_exemplars(run.stage(before))
    labels = exemplars.labels(earlier.category_of)
    shown = labels if with_labels else np.full_like(labels, NO_LABEL)
    return Memory.of(exemplars, shown, images[: before + 1])


def exemplars_after(
    run: RunDirectory,
    earlier: "AssignedImages",
    images: StageImages,
    features: Tensor,
    assignments: Mapping[str, np.ndarray],
    arguments: TrainingArguments,
    *,
    with_classes: bool,
) -> Exemplars:
    """The exemplars after a stage, extended by images that are new to the method: of its classes or of categories."""
    stage = len(earlier.ids)
    before = load_exemplars(run.stage(stage - 1)) if stage else Exemplars(*4 * [np.zeros(0, dtype=np.int64)])
    labels, categories = before.labels(earlier.category_of), assignments["category_ids"]
    classes = assignments["class_ids"] if with_classes and stage else categories
    return before.extended(features, classes, categories, images, labels, arguments)


@dataclass(frozen=True, eq=False)
class AssignedImages:
    """Images of earlier stages with their present categories."""

    registry: CategoryRegistry | None  # after the last stage and its corrections; None before the first stage
    # Per earlier stage, (N,); -1 for an image that a correction left without category.
    ids: Sequence[np.ndarray]
    labelled: Labelled = field(default_factory=Labelled)  # changes that later labels made

    def category_of(self, sample_id: int) -> int:
        """The present category of an image, or -1."""
        assert self.registry is not None
        return self.registry.members.get(key_of(sample_id), NO_CATEGORY)

    @property
    def assigned(self) -> list[np.ndarray]:
        """Per earlier stage, the ids of the images that have a category."""
        return [ids[ids != NO_CATEGORY] for ids in self.ids]


def earlier_images(
    run: RunDirectory, before: Sequence[StageImages], later_labels: Mapping[bytes, str]
) -> AssignedImages:
    """Images of earlier stages, with their categories when the next stage begins.

    Later labels, by the digest of a picture, count from the next stage on; no earlier stage is changed.
    """
    if not before:
        return AssignedImages(None, [])
    registry = load_registry(run.stage(len(before) - 1))
    labels = {
        key_of(sample): later_labels[digest]
        for images in before
        for sample, digest in zip(images.sample_ids.tolist(), images.digests, strict=True)
        if digest in later_labels
    }
    changes = apply_labels(registry, labels)
    ids = [_categories_of(images.sample_ids, registry) for images in before]
    return AssignedImages(registry, ids, changes)


def key_of(sample_id: int) -> str:
    """The key of an image of a data set in a registry."""
    return f"row:{sample_id}"


def _categories_of(sample_ids: np.ndarray, registry: CategoryRegistry) -> np.ndarray:
    """Category ids ``(N,)``; -1 for images in no category and for ignored images."""
    ignored, members = {each.id for each in registry.aside}, registry.members
    ids = [members.get(key_of(each), NO_CATEGORY) for each in sample_ids.tolist()]
    return np.array([NO_CATEGORY if each in ignored else each for each in ids], dtype=np.int64)


def learn_prediction(
    model: CategoryDiscoveryModel, features: Tensor, labels: np.ndarray | None, num_categories: int, seed: int
) -> None:
    """Fit the calibrated mixture of a model that has no prediction of its own.

    The labelled stage begins it, and every stream adds its new categories: features of earlier stages are not needed.
    Labels from which nothing can be learnt leave the model without a prediction. Features ``(N, D)`` are L2-normalised;
    labels ``(N,)`` are those of the labelled stage, else `None`; `num_categories` includes earlier stages.
    """
    gaussians = model.gaussians
    if model.predicts or (labels is None and gaussians is None):
        return
    if labels is not None:
        try:
            mixture = CalibratedMixture(random_state=seed).fit(features, labels)
        except DataError as error:
            logger.warning("No calibrated mixture is fitted: %s", error)
            return
    else:
        assert gaussians is not None
        known = len(gaussians.ids)  # more than K if corrections joined some
        count = min(max(num_categories, known), known + len(features))
        mixture = CalibratedMixture.of(gaussians, features.device, random_state=seed)
        mixture.partial_fit(features, num_categories=count)
    model.set_measured("gaussians", mixture.gaussians_)


def observe_stage(
    earlier: AssignedImages, found: Discovery, sample_ids: np.ndarray, names: Sequence[str]
) -> tuple[CategoryRegistry, Discovery]:
    """Add the groups of a stage to the registry.

    Ids of new categories are provisional in `found`. Names of the known categories, by id.

    Returns:
        The registry after the stage, and the grouping with the ids that the registry gave.
    """
    stage, keys = len(earlier.ids), [key_of(each) for each in sample_ids.tolist()]
    prototypes = found.prototypes.float().cpu().numpy()
    if earlier.registry is None:
        members = dict(zip(keys, found.category_ids.tolist(), strict=True))
        shown = [names[each] if each < len(names) else f"discovered {each}" for each in found.prototype_ids]
        registry = CategoryRegistry.from_categories(
            found.prototype_ids, shown, len(names), prototypes, stage=stage, members=members
        )
        return registry, found
    before = {int(each) for ids in earlier.assigned for each in np.unique(ids)}
    registry = earlier.registry.copy()
    registry.observe(
        stage, StageGroups.of(keys, found.category_ids, found.prototype_ids, prototypes, fixed=before)
    )
    active = registry.active_prototypes()
    ids = _categories_of(sample_ids, registry)
    return registry, Discovery(ids, torch.from_numpy(active.matrix).to(found.prototypes), active.ids)


# Weights of a stage are two shards of the format of transformers: frozen and trained weights. The first is the same in
# every stage of a run, so that a disk stores it once (hard links). A file with several names must never be changed: it
# is read-only where modes exist, and everything of ours puts a new file in its place.


def frozen_names(model: CategoryDiscoveryModel) -> set[str]:
    """Names of the backbone's frozen weights outside the last block, which every method trains in some stage."""
    start, last = f"{model.base_model_prefix}.", {*map(id, blocks_of(model.backbone)[-1].parameters())}
    return {
        name
        for name, value in model.named_parameters()
        if name.startswith(start) and not value.requires_grad and id(value) not in last
    }


def save_shards(model: CategoryDiscoveryModel, folder: Path, others: Iterable[Path]) -> None:
    """Save a model in two shards, frozen and trained weights; a model without frozen weights is saved as usual.

    Other stages of the run may have the same frozen shard.
    """
    learnt = model.state_dict()
    frozen = {name: learnt.pop(name) for name in frozen_names(model)}
    if not frozen:
        model.save_pretrained(folder)
        return
    model.save_pretrained(folder, state_dict=learnt)
    whole = folder / SAFE_WEIGHTS_NAME
    (folder / LEARNT).write_bytes(_aligned(whole.read_bytes()))
    whole.unlink()
    values = {name: value.cpu().contiguous() for name, value in frozen.items()}
    content = _aligned(save(values, {"format": "pt"}))
    if not any(_has_linked(each / FROZEN, folder / FROZEN, content) for each in others):
        (folder / FROZEN).write_bytes(content)
        systems.make_read_only(folder / FROZEN)
    with safe_open(folder / LEARNT, "pt") as opened:
        placed = dict.fromkeys(opened.keys(), LEARNT) | dict.fromkeys(frozen, FROZEN)
    size = sum(each.nbytes for each in model.state_dict().values())
    write_json(folder / SAFE_WEIGHTS_INDEX_NAME, {"metadata": {"total_size": size}, "weight_map": placed})


def _aligned(content: bytes) -> bytes:
    """A safetensors file whose header is lengthened by spaces, so that values start at a multiple of 64 bytes.

    Such a file is mapped into memory, and needs no copy: see `promptccd.models.checkpoint.stored_tensors`.
    """
    end = 8 + int.from_bytes(content[:8], "little")
    header = content[8:end].ljust(end - 8 + -end % ALIGNMENT)
    return len(header).to_bytes(8, "little") + header + content[end:]


def _has_linked(source: Path, target: Path, content: bytes) -> bool:
    """Whether a file of this user with this content got a second name; some disks have no hard links."""
    try:
        if not systems.is_own_file(source) or source.read_bytes() != content:
            return False
        systems.link(source, target)
    except OSError:
        return False
    return True
