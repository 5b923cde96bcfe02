"""Discovered categories for people: typical images, and the nearest known categories."""

import base64
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from PIL import Image

from promptccd.data.readable import StageImages
from promptccd.images.decode import media_type

SIDE = 96
PIXEL_ART = 32  # images up to this side are PNGs and shown pixel by pixel


@dataclass(frozen=True)
class Thumbnail:
    """A small picture as a ``data:`` URI; `is_small` asks for visible pixels."""

    uri: str
    is_small: bool


def thumbnail(image: Image.Image) -> Thumbnail:
    """A picture of at most `SIDE` pixels each way: PNG of tiny images, JPEG of larger images."""
    is_small = max(image.size) <= PIXEL_ART
    copy, stream = image.convert("RGB"), io.BytesIO()
    copy.thumbnail((SIDE, SIDE))
    copy.save(stream, "PNG" if is_small else "JPEG", quality=72, optimize=True)
    return Thumbnail(picture_uri(stream.getvalue()), is_small)


def picture_uri(content: bytes) -> str:
    """A picture as a ``data:`` URI; empty for no bytes."""
    return f"data:{media_type(content)};base64,{base64.b64encode(content).decode()}" if content else ""


MAX_CARDS = 60
NEAREST = 3


# Columns of a card that tables have. ``mostly`` is the most frequent true category of the images, ``purity`` its share
# in percent; empty and NaN without labels. ``sample_ids`` are the images that are shown, typical ones first.
COLUMNS = ("stage", "category", "images", "mostly", "purity", "sample_ids")


@dataclass
class CardMaker:
    """Makes the cards of a run, stage by stage, at most `MAX_CARDS`.

    A card is a discovered category at the stage that discovered it: `COLUMNS`, its ``thumbnails``, and ``near``: names
    of known categories and the cosine of their mean features, nearest first.
    """

    labels: np.ndarray  # (N,), categories of the readable images of stage 0
    categories: Sequence[str]  # names of the true categories; position is category id
    samples: int  # pictures per card
    cards: list[dict[str, Any]] = field(default_factory=list)
    left_out: int = 0  # discovered categories beyond `MAX_CARDS`
    _seen: set[int] = field(default_factory=set)

    def add_stage(
        self, table: pd.DataFrame, images: StageImages, known_features: np.ndarray, own_features: np.ndarray
    ) -> None:
        """Add a card for every category that a stage discovers.

        Args:
            table: the images of the stage, see `promptccd.reports.tables.ReportedRun`.
            images: their pictures.
            known_features: of stage 0 under the stage's model, normalised, ``(M, D)``.
            own_features: of the stage itself, ``(N, D)``.
        """
        known = {int(item): _mean(known_features[self.labels == item]) for item in np.unique(self.labels)}
        for category, rows in table.reset_index(drop=True).groupby("found").groups.items():
            if category < 0 or category in known or category in self._seen:  # -1 is no category
                continue
            self._seen.add(category)
            if len(self.cards) >= MAX_CARDS:
                self.left_out += 1
                continue
            own = table.iloc[rows]
            mean = _mean(own_features[rows])
            typical = rows[np.argsort(-(own_features[rows] @ mean), kind="stable")][: self.samples].tolist()
            counts = own["category"].value_counts()  # empty without labels
            near = [(self.categories[item], float(known[item] @ mean)) for item in known]
            near = sorted(near, key=lambda each: -each[1])[:NEAREST]
            self.cards.append(
                {
                    "stage": int(own["stage"].iloc[0]),
                    "category": own["group"].iloc[0],
                    "images": len(own),
                    "mostly": counts.index[0] if len(counts) else "",
                    "purity": 100 * counts.iloc[0] / len(own) if len(counts) else math.nan,
                    "sample_ids": images.sample_ids[typical].tolist(),
                    "thumbnails": [thumbnail(images[row]) for row in typical],
                    "near": near,
                }
            )


def _mean(features: np.ndarray) -> np.ndarray:
    """Mean direction, of length 1."""
    mean = features.mean(axis=0)
    return mean / max(float(np.linalg.norm(mean)), 1e-12)
