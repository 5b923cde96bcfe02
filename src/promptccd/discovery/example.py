"""A finished discovery that ships with the package: handwritten digits in four stages, to look at without a model.

The images are those of scikit-learn; ``example_data/`` holds the results of a run, written by
``spaces/discovery/make_example.py``.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from typing import Any

import numpy as np
from PIL import Image
from safetensors.numpy import load

from promptccd.data.loading import digits_pixels
from promptccd.discovery.groups import GroupView
from promptccd.experiments.category_cards import thumbnail
from promptccd.runs.stage_checkpoint import key_of

FORMAT = 1
DATA, RECORD, ARRAYS = "example_data", "example.json", "example.safetensors"


@dataclass(frozen=True, eq=False)
class ExampleStage:
    """One stage of the example.

    Attributes:
        stage: its number; 0 is the labelled one.
        rows: of the images that came at this stage, in the arrays of the example.
        groups: of its images: known ones, then ones discovered before, then new ones; their keys are in `Example.keys`.
        accuracy: All, Old and New in percent by ``"all"``, ``"old"`` and ``"new"``; `None` at stage 0.
    """

    stage: int
    rows: range
    groups: tuple[GroupView, ...]
    accuracy: Mapping[str, float] | None


@dataclass(frozen=True, eq=False)
class Example:
    """Digits 0 to 6 with labels, then three stages without, which bring 7, 8 and 9.

    Letters: N images, in the order they came.

    Attributes:
        stages: oldest first.
        keys: of the images, N.
        category_ids: ``(N,)`` the group of each at the stage it came at.
        confidences: ``(N,)`` of that, in 0..1.
        places: ``(N, 2)`` on a map, in 0..1: features of the last stage's model, laid out once, so that an image
            does not move from stage to stage. The first column is to the right, the second upwards.
    """

    stages: tuple[ExampleStage, ...]
    keys: tuple[str, ...]
    category_ids: np.ndarray
    confidences: np.ndarray
    places: np.ndarray

    def picture(self, key: str) -> str:
        """A digit as a ``data:`` URI of 8 x 8 pixels, to be enlarged without smoothing."""
        return thumbnail(Image.fromarray(self._pixels[self._sample_ids[key]])).uri

    @cached_property
    def _sample_ids(self) -> dict[str, int]:
        return {key: int(key.partition(":")[2]) for key in self.keys}

    @cached_property
    def _pixels(self) -> np.ndarray:
        return digits_pixels()


def load_example() -> Example:
    """The example, from the files of the package; no model is loaded."""
    folder = files("promptccd.discovery") / DATA
    record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    arrays = load((folder / ARRAYS).read_bytes())
    stages, start = [], 0
    for each in record["stages"]:
        rows = range(start, start + each["images"])
        groups = tuple(_group_of(values) for values in each["groups"])
        stages.append(ExampleStage(each["stage"], rows, groups, each["accuracy"]))
        start = rows.stop
    return Example(
        tuple(stages),
        tuple(map(key_of, arrays["sample_ids"].tolist())),
        arrays["category_ids"],
        arrays["confidences"],
        arrays["places"],
    )


def _group_of(values: dict[str, Any]) -> GroupView:
    near, confidence = values.pop("nearest_known"), values.pop("confidence")
    typical, borderline = values.pop("typical"), values.pop("borderline")
    return GroupView(
        **values,
        confidence=float("nan") if confidence is None else confidence,
        typical=tuple(typical),
        borderline=tuple(borderline),
        nearest_known=None if near is None else (near[0], near[1], near[2]),
    )
