"""Discovered categories for people: typical images, and the nearest known categories."""

import base64
import io
import math
from collections.abc import Mapping
from dataclasses import dataclass
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


def card_of(
    rows: np.ndarray,
    table: pd.DataFrame,
    images: StageImages,
    features: np.ndarray,
    known: Mapping[str, np.ndarray],
    samples: int,
) -> dict[str, Any]:
    """The card of a category at the stage that discovered it: `COLUMNS`, its ``thumbnails``, and ``near``.

    ``near`` are names of labelled categories and the cosine of their mean features, nearest first.

    Args:
        rows: of its images in the stage.
        table: the images of the stage, see `promptccd.reports.tables.ReportedRun`.
        images: their pictures.
        features: of all images under the stage's model, normalised, ``(N, D)``.
        known: `mean_direction` of the labelled categories under that model, by name.
        samples: pictures per card.
    """
    own, mean = table.iloc[rows], mean_direction(features[rows])
    typical = rows[np.argsort(-(features[rows] @ mean), kind="stable")][:samples].tolist()
    counts = own["category"].value_counts()  # empty without labels
    near = sorted(((name, float(each @ mean)) for name, each in known.items()), key=lambda each: -each[1])
    return {
        "stage": int(own["stage"].iloc[0]),
        "category": own["group"].iloc[0],
        "images": len(own),
        "mostly": counts.index[0] if len(counts) else "",
        "purity": 100 * counts.iloc[0] / len(own) if len(counts) else math.nan,
        "sample_ids": images.sample_ids[typical].tolist(),
        "thumbnails": [thumbnail(images[row]) for row in typical],
        "near": near[:NEAREST],
    }


def mean_direction(features: np.ndarray) -> np.ndarray:
    """The mean of features, with length 1."""
    mean = features.mean(axis=0)
    return mean / max(float(np.linalg.norm(mean)), 1e-12)
