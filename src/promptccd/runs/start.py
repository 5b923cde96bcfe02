"""What a run starts with: its settings, its stages and the model of stage 0."""

import json
import logging
import os
import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from promptccd.data.hub import published_split
from promptccd.data.splits import CategorySplit
from promptccd.data.stages import StageStream
from promptccd.data.tables import BUILT_IN, open_images
from promptccd.disk import remove_leftovers, write_file
from promptccd.errors import ConfigurationError, DataError, RunError, SplitMismatchError
from promptccd.methods import method_named
from promptccd.runs.folder import RESUME, RUN_FORMAT, RunDirectory, change_places, folder_name
from promptccd.training.options import DataArguments
from promptccd.training.recipe import Recipe, laid_over
from promptccd.version import __version__

logger = logging.getLogger(__name__)

# Fields that may change before a run is continued: they change no byte of its stages.
FREE_FIELDS = {
    # The same data in another place; the split's fingerprint decides. Streams and labels are added to those before.
    "data": {"dataset", "unlabelled", "labels"},
    "model": {"max_model_bytes"},
    "training": {
        "output_dir", "num_workers", "image_cache", "save_minutes", "report_to", "push_to_hub", "hub_namespace",
        "hub_private", "resume_from",
    },
}  # fmt: skip
OUT_OF_MEMORY = "out_of_memory.json"  # batch size that a device had too little memory for
_BENCHMARK_FIELDS = ("dataset", "split", "num_classes", "images_per_class")
_PACKAGES = ("torch", "transformers", "datasets", "accelerate", "safetensors", "numpy", "pillow")


def begin(run: RunDirectory, recipe: Recipe, stages: StageStream) -> None:
    """Record what a run is made with, or check that a run to be continued was made with the same.

    Raises:
        SplitMismatchError: the images or the split differ; both fingerprints are named.
        RunError: another setting differs; the settings are named.
    """
    remove_leftovers(run.path)
    remove_leftovers(run.path / RESUME)
    if run.begun and not any(
        each.exists() for each in (run.backbone, run.path / RESUME, *run.path.glob("stage*"))
    ):
        logger.info("The run in %s ended before anything was trained: it begins again.", run.path)
        (run.path / "manifest.json").unlink()
    if run.begun:
        if not stages.is_scored:
            _record_streams(run, recipe, stages)
        stages.require_fingerprint(run.manifest["split_fingerprint"], f"The run in {run.path}")
        _resume_settings(run, recipe)
        return
    _record_split(
        run,
        stages,
        record_of(recipe, run.path),
        format=RUN_FORMAT,
        seed=recipe.training.seed,
        versions={"promptccd": __version__, **{name: version(name) for name in _PACKAGES}},
        python=platform.python_version(),
        machine=platform.machine(),
        threads=torch.get_num_threads(),
        seconds={},
    )


def _record_split(run: RunDirectory, stages: StageStream, recipe: dict[str, Any], **others: Any) -> None:
    """Write the split, its fingerprints, the recorded recipe and other values of the manifest."""
    split = stages.split
    write_file(run.path / "split.json", json.dumps(split.to_dict()))
    fingerprints = {"split_fingerprint": split.fingerprint, "data_fingerprint": split.data_fingerprint}
    run.update_manifest({**others, **fingerprints, "recipe": recipe})


def _resume_settings(run: RunDirectory, recipe: Recipe) -> None:
    """Refuse other settings than before, except a batch size that had to become smaller, which is recorded."""
    before, training = run.manifest["recipe"], recipe.training
    was = before["training"]["batch_size"]
    smaller = (run.read(OUT_OF_MEMORY) or {}).get("batch_size") == was and training.batch_size < was
    if smaller:
        before["training"]["batch_size"] = training.batch_size
    require_same(before, record_of(recipe, run.path), run.path)
    if smaller:
        change = {"batch_size": training.batch_size, "instead_of": was, "from_stage": run.num_finished}
        changes = [*run.manifest.get("smaller_batches", []), change]
        run.update_manifest({"recipe": before, "smaller_batches": changes})
        logger.warning(
            "From stage %d on a step has %d images instead of %d, for which memory was too little. Results are not "
            "those of %d throughout; manifest.json records it.", run.num_finished, training.batch_size, was, was,
        )  # fmt: skip
        (run.path / OUT_OF_MEMORY).unlink()


def require_recipe(run: RunDirectory, recipe: Recipe) -> None:
    """Refuse, with a `RunError`, a recipe that a begun run cannot be continued with; data are not compared."""
    if run.begun:
        require_same(run.manifest["recipe"], record_of(recipe, run.path), run.path)


def require_same(before: dict[str, Any], now: dict[str, Any], path: Path) -> None:
    """Refuse recorded settings that differ in a field that decides what a run computes.

    Raises:
        RunError: the differences are named.
    """
    changed = []
    for section, fields in now.items():
        was = before.get(section, {})
        for key in ({**was, **fields}).keys() - FREE_FIELDS.get(section, set()):
            # `train_run` replaces auto by the recorded precision.
            is_auto = (key, fields.get(key)) == ("mixed_precision", "auto")
            if was.get(key) != fields.get(key) and not is_auto:
                changed.append(f"{section}.{key} was {was.get(key)!r}, is {fields.get(key)!r}")
    if changed:
        raise RunError(
            f"The run in {path} was made with other settings: {'; '.join(sorted(changed))}. Use those again, or give "
            f"a new folder, such as --output_dir {path}-2"
        )


def record_of(recipe: Recipe, run: Path) -> dict[str, dict[str, Any]]:
    """The recipe as a run records it, with the benchmark's facts, so that a record outlives a change of their table.

    Local folders are written relative to the run: no absolute path, no name of a person.
    """
    values, facts = recipe.to_dict(), recipe.data.resolved
    values["data"] |= {name: getattr(facts, name) for name in _BENCHMARK_FIELDS}
    values["data"]["class_blocks"] = list(facts.class_blocks)
    if "num_parts" in method_named(recipe.model.variant).model.config_class.__dataclass_fields__:
        values["model"]["num_parts"] = recipe.model.options.get("num_parts", facts.num_parts)
    # Not getpass.getuser: it fails for a user id without a name, as in many containers.
    people = {os.environ.get("USER"), os.environ.get("LOGNAME"), Path(os.path.expanduser("~")).name}

    def portable(value: str) -> str:
        if value in BUILT_IN or not os.path.exists(os.path.expanduser(value)):
            return value
        try:
            relative = Path(os.path.relpath(os.path.expanduser(value), run))
        except ValueError:  # Windows: a folder on another drive
            relative = Path(Path(value).name)
        return relative.name if people & set(relative.parts) else relative.as_posix()

    change_places(values, portable)
    values["training"]["output_dir"] = folder_name(run) or "run"
    values["training"]["image_cache"] = "off" if recipe.training.image_cache == "off" else "auto"
    return values


def _record_streams(run: RunDirectory, recipe: Recipe, stages: StageStream) -> None:
    """Record the streams that a run continues with: begun ones have to be the same, later ones may change.

    Raises:
        SplitMismatchError: a stage was trained on other images, or is missing; it is named.
    """
    before = CategorySplit.from_dict(run.read("split.json") or {})
    done = run.num_finished
    begun = min(max(1, done + run.has_state(done)), len(before.counts))
    if before.rule != stages.split.rule:
        raise SplitMismatchError(
            f"The run in {run.path} hides labels (class_blocks {list(before.class_blocks)}), and these streams have "
            f"none: give another --output_dir, such as {run.path}-2"
        )
    if len(stages.split.counts) < begun:
        raise SplitMismatchError(
            f"The run in {run.path} has {begun - 1} streams already, and {len(stages.split.counts) - 1} are given: "
            "give all of them in their order, and new ones behind; or the new ones alone, promptccd train "
            f"{run.path} --unlabelled ..."
        )
    for stage in stages[:begun]:
        if before.contents[stage.index] != stages.split.contents[stage.index]:
            was, place = before.counts[stage.index].images, stage.place or "the labelled set"
            raise SplitMismatchError(
                f"Stage {stage.index} of {run.path} was made with other images than {place} contains now ({was} then, "
                f"{len(stage)} now). Restore the images that were trained on; give later images as a stream of their "
                f"own, later labels as --labels; or train again with --output_dir {run.path}-2"
            )
    if stages.split.first(begun).fingerprint != before.first(begun).fingerprint:
        stages.require_fingerprint(before.fingerprint, f"The run in {run.path}")
    now, then = record_of(recipe, run.path), run.manifest["recipe"]
    for name in ("unlabelled", "labels", "class_blocks"):
        then["data"][name] = now["data"][name]
    counts, given = then["training"]["category_count"], now["training"]["category_count"]
    if isinstance(counts, list) and isinstance(given, list) and given[: begun - 1] == counts[: begun - 1]:
        then["training"]["category_count"] = given
    _record_split(run, stages, then)


def continued(run: RunDirectory, changes: Mapping[str, Mapping[str, Any]]) -> Recipe:
    """The recipe that continues a run: its own, with further streams and labels.

    Args:
        run: the run.
        changes: values by section and field. Streams, labels and given numbers of categories that the run has
            already are not added again, so that a command may be repeated.

    Raises:
        ConfigurationError: the run hides labels, and no stream can be added to it.
        RunError: its records are damaged.
    """
    recipe, data, training = run.recipe, dict(changes.get("data", {})), dict(changes.get("training", {}))
    streams = recipe.data.unlabelled
    if streams is None and (added := [name for name in ("unlabelled", "labels") if name in data]):
        raise ConfigurationError(
            f"The stages of {run.path} were cut from images that all have labels (class_blocks "
            f"{list(recipe.data.resolved.class_blocks)}), and {added[0]} cannot be added to it: begin a run with "
            "promptccd train LABELLED --unlabelled FOLDER."
        )
    if streams is not None:
        data["class_blocks"] = data.get("class_blocks")  # counted again
        for name in ("unlabelled", "labels"):
            data[name] = _extended(getattr(recipe.data, name), data.get(name))
    given = training.get("category_count")
    if streams is not None and recipe.training.given_counts and isinstance(given, list):
        are_more = len(data["unlabelled"]) > len(streams)
        training["category_count"] = _with_counts(recipe.training.given_counts, given, are_more)
    own = {"training": {"output_dir": str(run.path)}}
    return Recipe.from_dict(
        laid_over([recipe.to_dict(), own, {**changes, "data": data, "training": training}])
    )


def _with_counts(before: list[int], given: list[int], are_more: bool) -> list[int]:
    """Numbers of categories of all streams, given for all of them, for the new ones, or again for the last ones."""
    if len(given) > len(before) and given[: len(before)] == before:
        return given
    if are_more:
        return [*before, *given]
    return before if before[-len(given) :] == given else given


def _extended(before: Sequence[str] | None, given: Sequence[str] | None) -> list[str] | None:
    """Places, and the given ones that are not among them."""
    known = {os.path.realpath(os.path.expanduser(each)) for each in before or ()}
    added = [each for each in given or () if os.path.realpath(os.path.expanduser(each)) not in known]
    return None if before is None and not added else [*(before or ()), *added]


def stage_stream(
    data: DataArguments, seed: int, *, split_rule: str | None = None, held_out_only: bool = False
) -> StageStream:
    """The stages a recipe describes.

    Args:
        data: which images, and how they are cut.
        seed: seed of the split.
        split_rule: replaces the recipe's rule.
        held_out_only: cut only the images that the recipe leaves out, instead of the others.
    """
    facts = data.resolved
    if (published := published_split(facts.dataset)) is not None:
        _require_published(data, published, split_rule, held_out_only)
        return StageStream.from_hub(facts.dataset)
    roots = data.image_roots or ()
    opened = open_images(facts.dataset, facts.split, roots)

    def column(given: str | None, usual: str | None) -> str | None:
        """The column that was asked for, or else the benchmark's if the data has it."""
        return usual if given is None and usual in opened.table.column_names else given

    return StageStream.from_dataset(
        opened,
        class_blocks=facts.class_blocks,
        cuts=data.resolved_cuts,
        unlabelled=data.unlabelled,
        labels=data.labels or (),
        seed=seed,
        image_column=column(data.image_column, facts.image_column),
        label_column=column(data.label_column, facts.label_column),
        class_order=facts.class_order,
        num_classes=facts.num_classes,
        images_per_class=facts.images_per_class,
        held_out=facts.held_out,
        held_out_only=held_out_only,
        split_rule=split_rule or facts.split_rule,
        image_roots=roots,
        bit_depth=data.bit_depth,
        max_pixels=data.max_megapixels * 10**6,
    )


def _require_published(
    data: DataArguments, published: CategorySplit, split_rule: str | None, held_out_only: bool
) -> None:
    """Refuse fields that ask for other stages than the published ones, and warn of fields without effect.

    Raises:
        DataError: other stages are asked for, or images of no stage.
    """
    facts, blocks = data.resolved, " ".join(map(str, published.class_blocks))
    if held_out_only or data.split not in (None, "train"):
        raise DataError(f"{facts.dataset!r} contains published stages and no unseen images.")
    fields = {
        "class_blocks": (facts.class_blocks, published.class_blocks),
        "split_rule": (split_rule or facts.split_rule, published.rule),
        "cuts": (data.resolved_cuts and tuple(map(tuple, data.resolved_cuts)), published.cuts),
        "unlabelled": (data.unlabelled, None),
    }
    other = [
        f"{name} {ours}" if theirs is None else f"{name} {ours} instead of {theirs}"
        for name, (ours, theirs) in fields.items()
        if ours not in (None, theirs)
    ]
    if other:
        raise DataError(
            f"{facts.dataset!r} contains stages that are cut already, and others are asked for: {'; '.join(other)}. "
            f"Give --class_blocks {blocks} and leave the other fields out, or give the data set that the stages were "
            "cut from."
        )
    for name in ("num_classes", "images_per_class", "held_out"):
        if (value := getattr(data, name)) is not None:
            logger.warning("%s is cut already: %s %s has no effect.", facts.dataset, name, value)
