"""Make the files of the example anew: ``python spaces/discovery/make_example.py RUN`` after ``make demo``."""

import json
import math
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import save

from promptccd.discovery.categories import assignment_in
from promptccd.discovery.example import ARRAYS, DATA, FORMAT, RECORD
from promptccd.discovery.groups import GroupView, views_of
from promptccd.errors import RunError
from promptccd.experiments import stage_maps
from promptccd.models import Assignment
from promptccd.registry import CategoryRegistry
from promptccd.runs import RunEvaluation
from promptccd.runs.stage_checkpoint import key_of, load_configuration
from promptccd.storage import make_folder, write_file

PLACES = 6  # decimals of what is written down


def prepare_example(run: str | Path, folder: str | Path) -> None:
    """Write down what a finished run on the digits found, stage by stage.

    Args:
        run: its folder.
        folder: where ``example.json`` and ``example.safetensors`` go.

    Raises:
        RunError: the run is not finished, or is not one on the digits.
    """
    evaluation = RunEvaluation(str(run))
    results = evaluation.run.results
    if evaluation.recipe.data.resolved.dataset != "digits" or results is None:
        raise RunError(
            f"{run} is no finished run on the digits: train hub_configs/promptccd-digits.yaml first."
        )
    accuracies = {row.stage: {"all": row.all, "old": row.old, "new": row.new} for row in results.stages}
    stages, confidences = [], []
    for index in range(evaluation.num_stages):
        registry, found = _stand(evaluation, index)
        stages.append(
            {
                "stage": index,
                "images": len(found.keys),
                "accuracy": accuracies.get(index),
                "groups": [_plain(view) for view in views_of(found, registry)],
            }
        )
        confidences.append(found.confidences.numpy())
    features = torch.cat(evaluation.features_of_stage(evaluation.num_stages - 1)).numpy()
    arrays = {
        "sample_ids": np.concatenate([images.sample_ids for images in evaluation.images]).astype(np.int32),
        "category_ids": np.concatenate(
            [evaluation.run.assignments(index)["category_ids"] for index in range(evaluation.num_stages)]
        ).astype(np.int32),
        "confidences": np.concatenate(confidences).astype(np.float32),
        "places": _places(features, evaluation.recipe.training.seed),
    }
    manifest = evaluation.run.manifest
    made_with = {
        "model": evaluation.recipe.model.variant,
        "seed": evaluation.recipe.training.seed,
        "split": manifest["split_fingerprint"],
    }
    record = {"format": FORMAT, "made_with": made_with, "stages": stages}
    make_folder(folder)
    write_file(Path(folder) / RECORD, json.dumps(record, indent=1, ensure_ascii=False) + "\n")
    write_file(Path(folder) / ARRAYS, save(arrays))


def _stand(evaluation: RunEvaluation, index: int) -> tuple[CategoryRegistry, Assignment]:
    """The images of a stage among the categories that its checkpoint knows."""
    model = evaluation.load_stage(index)
    config, features = model.config, evaluation.features_of_stage(index)[index]
    keys = [key_of(each) for each in evaluation.images[index].sample_ids.tolist()]
    registry = CategoryRegistry.from_categories(
        config.category_ids,
        config.category_names,
        config.num_known,
        model.prototypes.float().numpy(),
        stage=index,
        members=dict(zip(keys, evaluation.run.assignments(index)["category_ids"], strict=True)),
    )
    found = assignment_in(
        registry,
        keys,
        features,
        settled=load_configuration(evaluation.run.stage(max(index - 1, 0))).category_ids,
        temperature=config.confidence_temperature,
    )
    return registry, found


def _places(features: np.ndarray, seed: int) -> np.ndarray:
    """``(N, 2)`` float32 in 0..1, both directions by the same scale."""
    layout = stage_maps([features], seed=seed, max_points=len(features)).layouts[0]
    return ((layout - layout.min(axis=0)) / np.ptp(layout, axis=0).max()).astype(np.float32)


def _plain(view: GroupView) -> dict[str, Any]:
    values = asdict(view)
    values["confidence"] = None if math.isnan(view.confidence) else round(view.confidence, PLACES)
    if view.nearest_known is not None:
        identity, name, distance = view.nearest_known
        values["nearest_known"] = [identity, name, round(distance, PLACES)]
    return values


if __name__ == "__main__":
    prepare_example(sys.argv[1], Path(__file__).with_name(DATA))
