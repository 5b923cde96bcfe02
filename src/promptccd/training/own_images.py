"""A recipe for a person's own images: any method over ``hub_configs/own.yaml``, and what a backbone needs."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from promptccd.data.hub import published_split
from promptccd.data.tables import BUILT_IN, ONE_FILE
from promptccd.errors import ConfigurationError, did_you_mean
from promptccd.training.recipe import (
    SUFFIXES,
    Recipe,
    begins_with,
    laid_over,
    layers_of,
    located,
    parts_of,
    recipe_folder,
    recipes_in,
    sections_of,
)

METHOD = "promptccd"


def names_recipe(word: str) -> bool:
    """Whether a word means a recipe and not images: the name of one, or a file that is no data set."""
    path = Path(os.path.expanduser(word))
    if word in BUILT_IN or path.is_dir():
        return False  # mutant returns None: it is asked whether it is true alone
    if path.exists():
        return path.suffix.lower() not in ONE_FILE
    return path.suffix in SUFFIXES or parts_of(located(path)) is not None


def methods() -> dict[str, Path]:
    """The file of every method of this package, by the first part of its recipes' names."""
    return {begins_with(file.stem): file for file in sorted((recipe_folder() / "methods").glob("*.yaml"))}


def recipe_for_images(
    dataset: str,
    method: str | None = None,
    config: str | Path | None = None,
    overrides: Mapping[str, Mapping[str, Any]] | None = None,
) -> Recipe:
    """The recipe to train on a person's own images.

    Args:
        dataset: a folder of one sub-folder per category, a CSV file of paths and labels, a parquet file, or
            a data set of the Hub.
        method: of `methods`, with or without ``promptccd-``; none means `METHOD`.
        config: a recipe to take instead of a method's defaults, except for its data.
        overrides: values by section and field, from the command line.

    Raises:
        ConfigurationError: no such method, a method besides a recipe, or nothing is called like the images.

    Where nothing says how labels are hidden (class blocks, a ratio or a benchmark), what has none comes in streams.
    """
    if config is not None and method is not None:
        raise ConfigurationError(
            f"--config {config} has its method: leave --method {method} out, or --config."
        )
    layers: list[Mapping[str, Any]]
    if config is None:
        name, file = _method_named(method or METHOD)
        layers = [sections_of(file), sections_of(recipe_folder() / "own.yaml")]
    else:
        name, layers = Path(config).stem, layers_of(Path(config))
    given = laid_over([*layers, overrides or {}])
    if (small := recipe_folder() / "backbones" / f"{given.get('model', {}).get('backbone')}.yaml").is_file():
        layers.append(sections_of(small))
    place = Path(os.path.expanduser(dataset)).absolute()
    called = place.stem if place.suffix.lower() in ONE_FILE else place.name  # birds.v1 is not birds.v2
    folder = re.sub(r"[^A-Za-z0-9._-]+", "-", called).strip("-.") or "images"
    data, training = {"dataset": dataset, "benchmark": None}, {"output_dir": f"runs/{name}-{folder}"}
    values = laid_over([*layers, {"data": data, "training": training}, overrides or {}])
    if all(
        values["data"].get(name) is None
        for name in ("class_blocks", "category_ratio", "benchmark", "unlabelled")
    ):
        _require_no_slip(dataset)
        if (published := published_split(dataset)) is None:
            values["data"]["unlabelled"] = []
        else:
            values["data"] |= {"class_blocks": [*published.class_blocks], "split_rule": published.rule}
    return Recipe.from_dict(values)


def _method_named(name: str) -> tuple[str, Path]:
    known = methods()
    for each in (name, f"promptccd-{name}"):
        if each in known:
            return each, known[each]
    hint = did_you_mean(name, known, cutoff=0.4)
    raise ConfigurationError(f"No method is called {name!r}.{hint} There are {', '.join(known)}.")


def _require_no_slip(dataset: str) -> None:
    """Refuse a word that nothing is called, where it is nearly a recipe."""
    hint = did_you_mean(dataset, (each.stem for each in recipes_in(recipe_folder())))
    if hint and not Path(os.path.expanduser(dataset)).exists():
        raise ConfigurationError(
            f"No images and no recipe are called {dataset!r}.{hint} `promptccd recipes` lists those there are."
        )
