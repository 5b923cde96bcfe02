"""The groups of a stage as one picture: a row for each, typical images first."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
from PIL import Image, ImageDraw
from torch import Tensor

from promptccd.data.stage_images import StageImages
from promptccd.evaluation import Discovery

SIDE, GAP, TITLE = 64, 4, 14  # pixels: of an image, between two, and of a line of words
MOST_GROUPS, MOST_IMAGES = 24, 10


def group_picture(
    images: StageImages, features: Tensor, found: Discovery, names: Mapping[int, str], num_known: int
) -> Callable[[], Image.Image]:
    """What draws the groups of a stage when it is asked to; features are not kept for it.

    Args:
        images: readable images of the stage.
        features: theirs, ``(N, D)``, L2-normalised.
        found: their categories.
        names: of the categories, by id.
        num_known: ids below it are of known categories.
    """
    places = {category: row for row, category in enumerate(found.prototype_ids)}
    rows = [places.get(category, 0) for category in found.category_ids.tolist()]
    likeness = (features * found.prototypes.to(features)[rows]).sum(1).cpu().numpy()
    return partial(draw_groups, images, found.category_ids, likeness, names, num_known)


def draw_groups(
    images: StageImages,
    category_ids: np.ndarray,
    likeness: np.ndarray,
    names: Mapping[int, str],
    num_known: int,
) -> Image.Image:
    """A picture of the groups that a stage's images are in: discovered ones before known ones, the largest first.

    Args:
        images: readable images of the stage.
        category_ids: the group of each, ``(N,)``.
        likeness: how typical each is of its group, ``(N,)``.
        names: of the categories, by id.
        num_known: ids below it are of known categories.
    """
    ids, sizes = np.unique(category_ids[category_ids >= 0], return_counts=True)
    shown = sorted(zip(ids.tolist(), sizes.tolist(), strict=True), key=lambda each: (-each[1], each[0]))
    shown.sort(key=lambda each: each[0] < num_known)
    height = TITLE + SIDE + GAP
    drawn = shown[:MOST_GROUPS]
    size = GAP + MOST_IMAGES * (SIDE + GAP), max(1, len(drawn)) * height + GAP
    picture = Image.new("RGB", size, "white")
    pen = ImageDraw.Draw(picture)
    for row, (category, count) in enumerate(drawn):
        kind = "known" if category < num_known else "discovered"
        title = f"{category}: {names.get(category, '')} ({kind}, {count} images)"
        pen.text((GAP, row * height + 1), title.encode("ascii", "replace").decode(), fill="black")
        members = np.flatnonzero(category_ids == category)
        typical = members[np.argsort(-likeness[members], kind="stable")][:MOST_IMAGES]
        for place, image in enumerate(_thumbnails(images, typical.tolist())):
            picture.paste(image, (GAP + place * (SIDE + GAP), row * height + TITLE))
    return picture


def _thumbnails(images: StageImages, rows: Sequence[int]) -> list[Image.Image]:
    """Images no larger than `SIDE` each way; small ones are enlarged pixel by pixel."""
    found = []
    for row in rows:
        image = images[row]
        scale = SIDE / max(image.size)
        size = max(1, int(image.width * scale)), max(1, int(image.height * scale))
        found.append(image.resize(size, Image.Resampling.NEAREST if scale > 1 else Image.Resampling.BICUBIC))
    return found
