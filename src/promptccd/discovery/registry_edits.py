"""Corrections to what lies on disk: a registry by itself, or a checkpoint whose model has to follow."""

import shutil
from collections.abc import Callable
from pathlib import Path

import torch

from promptccd.clustering import CountEstimate
from promptccd.discovery.checkpoint import load_features
from promptccd.discovery.corrections import split_category
from promptccd.discovery.standing import Standing, standing_of
from promptccd.errors import RegistryError
from promptccd.registry import CategoryRegistry, has_registry, load_registry, save_registry
from promptccd.runs.prediction import load_model
from promptccd.runs.run_directory import RunDirectory
from promptccd.training.checkpoints import CHECKSUMS, write_directory


def edit_registry(folder: str | Path, act: Callable[[CategoryRegistry], None]) -> CategoryRegistry:
    """Change a registry and write it back, with the model beside it if there is one; all of it or nothing.

    Args:
        folder: of a finished stage, or what `discover` wrote.
        act: what to do with the registry.

    Returns:
        The registry as it is now.

    Raises:
        RegistryError: there is none, it is damaged, or does not allow it; nothing changed.
        RunError: another process is writing there.
    """
    place = Path(folder)
    registry = registry_in(place)
    act(registry)
    if not (place / "config.json").exists():
        lock = RunDirectory(place)
        lock.lock()
        try:
            save_registry(registry, place)
        finally:
            lock.unlock()
        return registry
    model = load_model(place)
    found = registry.active_prototypes()
    model.set_categories(torch.from_numpy(found.matrix), found.ids, found.names)

    def fill(staging: Path) -> None:
        shutil.copytree(place, staging, dirs_exist_ok=True, ignore=shutil.ignore_patterns(CHECKSUMS))
        model.save_pretrained(staging)
        save_registry(registry, staging)

    write_directory(place, fill)
    return registry


def registry_in(folder: Path) -> CategoryRegistry:
    """The registry of a folder.

    Raises:
        RegistryError: there is none, or it is damaged.
    """
    if not has_registry(folder):
        raise RegistryError(
            f"{str(folder)!r} holds no registry of categories: give the folder of a finished stage, or the --out of "
            "promptccd discover."
        )
    return load_registry(folder)


def standing_in(folder: Path, registry: CategoryRegistry) -> Standing:
    """Where the images of a discovery stand, from what it left in its folder.

    Raises:
        RegistryError: no features of images lie there.
    """
    found = load_features(folder)
    if found is None:
        raise RegistryError(
            f"{str(folder)!r} holds no features of its images, and without them there is no telling what each half "
            "looks like: split in the --out folder of promptccd discover."
        )
    keys, features = found
    settled = [each.id for each in registry.active if each.known or each.born < registry.stage]
    count = CountEstimate.known(max(len(registry.active), 1))
    return standing_of(registry, keys, features, settled=settled, count=count, temperature=1.0)


def split_in(
    folder: Path, registry: CategoryRegistry, category: int, images: list[str], name: str | None = None
) -> None:
    """Cut a category of a discovery in two; without images where their features suggest it."""
    registry.edit(split_category(standing_in(folder, registry), category, images or None, name=name))
