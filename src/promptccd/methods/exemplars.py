"""Exemplars: M images of earlier stages that later stages see again, and their labels.

(The paper only says that its replay baselines save samples of discovered categories and mix them in. How many, which,
what share of a batch they are, and that their labels take part are our decisions.)
"""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from promptccd.data.readable import StageImages
from promptccd.models.configuration import MOST_CATEGORIES
from promptccd.training.options import TrainingArguments

logger = logging.getLogger(__name__)

NO_LABEL = -1


@dataclass(frozen=True, eq=False)
class Exemplars:
    """The exemplars after a stage; they stay as they were chosen.

    Attributes:
        sample_ids: rows in the source data set, ``(M,)``.
        stages: in which they arrived, ``(M,)``.
        category_ids: their categories when they were chosen, ``(M,)``.
        class_ids: their classes by the method, ``(M,)``: the true category at stage 0, later that of k-means, or the
            prediction of its classifier.
    """

    sample_ids: np.ndarray
    stages: np.ndarray
    category_ids: np.ndarray
    class_ids: np.ndarray

    def to_dict(self) -> dict[str, list[int]]:
        """Plain lists by name, for JSON."""
        return {name: values.tolist() for name, values in vars(self).items()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Exemplars":
        """The inverse of `to_dict`; a `ValueError` for anything else."""
        try:
            found = cls(**{name: np.array(each, dtype=np.int64) for name, each in values.items()})
            rows = np.stack(list(vars(found).values()))
        except (AttributeError, TypeError, OverflowError) as error:
            raise ValueError(str(error)) from error
        if rows.ndim != 2 or (rows < 0).any() or (rows[2:] >= MOST_CATEGORIES).any():
            raise ValueError(
                f"a number in it is negative, or a category or class not below {MOST_CATEGORIES}."
            )
        return found

    def labels(self, category_of: Callable[[int], int]) -> np.ndarray:
        """The class that each exemplar is trained as now, ``(M,)``, by the present category of each sample id.

        An exemplar that a correction moved, or whose category was merged, takes the most frequent class of the first
        exemplars of its category. Without any it has no label (-1): a class of a classifier is no category (ours).
        """
        now = np.array([category_of(each) for each in self.sample_ids.tolist()], dtype=np.int64)
        moved, labels = now != self.category_ids, self.class_ids.copy()
        for category in np.unique(now[moved]):
            mates = np.flatnonzero(self.category_ids == category)
            first = mates[self.stages[mates] == self.stages[mates[:1]]]
            label = np.bincount(self.class_ids[first]).argmax() if len(first) else NO_LABEL
            labels[moved & (now == category)] = label
        return labels

    def extended(
        self, features: Tensor, class_ids: np.ndarray, category_ids: np.ndarray, images: StageImages,
        labels: np.ndarray, arguments: TrainingArguments,
    ) -> "Exemplars":  # fmt: skip
        """These exemplars, and images of a stage for every class without exemplars.

        The images have unit features ``(N, D)``, classes by the method ``(N,)`` and categories ``(N,)``; `labels`
        ``(M,)`` are the classes that the present exemplars are trained as.
        """
        points, stage, chosen = features.cpu().double().numpy(), images.stage.index, [np.zeros(0, np.int64)]
        for number in np.setdiff1d(class_ids, [*self.class_ids, *labels, NO_LABEL]).tolist():
            own = np.flatnonzero(class_ids == number)
            # Similarities that agree to five places are a tie: the last bit must not decide.
            near = (points[own] @ points[own].mean(0)).round(5)
            order = np.argsort(-near, kind="stable")
            share = math.ceil(arguments.exemplar_share * len(own) - 1e-9)  # 0.2 * 35 is a little more than 7
            chosen.append(np.sort(own[order[: min(arguments.exemplars_per_class, share)]]))
        new = np.concatenate(chosen)
        parts = images.sample_ids[new], np.full_like(new, stage), category_ids[new], class_ids[new]
        return Exemplars(*map(np.append, vars(self).values(), parts))


@dataclass(frozen=True, eq=False)
class Memory:
    """Readable exemplars, as a stage is trained with them.

    Attributes:
        places: for each the images of its stage, and its index among them.
        labels: the classes that they are trained as, ``(M,)``, or -1.
    """

    places: Sequence[tuple[StageImages, int]]
    labels: Tensor

    @classmethod
    def of(cls, exemplars: Exemplars, labels: np.ndarray, images: Sequence[StageImages]) -> "Memory | None":
        """The exemplars among the readable images of earlier stages, `None` without any; warns of lost exemplars."""
        index_of = {
            (stage, sample): index
            for stage, each in enumerate(images)
            for index, sample in enumerate(each.sample_ids.tolist())
        }
        keys = list(zip(exemplars.stages.tolist(), exemplars.sample_ids.tolist(), strict=True))
        found = [place for place, key in enumerate(keys) if key in index_of]
        if lost := [key[1] for key in keys if key not in index_of]:
            logger.warning(
                "%d of %d exemplars are not among the readable images of earlier stages any more, such as image %d: "
                "training continues without them.", len(lost), len(keys), lost[0],
            )  # fmt: skip
        places = [(images[keys[place][0]], index_of[keys[place]]) for place in found]
        return cls(places, torch.from_numpy(labels[found])) if found else None

    def __len__(self) -> int:
        return len(self.places)

    def sample(self, place: int, shorter_side: int) -> tuple[Image.Image | np.ndarray, int]:
        """The image of an exemplar, as `StageImages.for_view` gives it, and its row in the source data set."""
        images, index = self.places[place]
        return images.for_view(index, shorter_side), int(images.sample_ids[index])
