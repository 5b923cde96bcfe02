"""Part routing accuracy: how often the router of PromptCCD++ agrees with the part labels it learnt from."""

import math

import numpy as np

from promptccd.evaluation.continual import StageScore


def score_part_routing(
    stage: int, agreement: np.ndarray, category_ids: np.ndarray, num_known: int, num_parts: int
) -> StageScore:
    """All, Old and New of one stage: share of patches routed to the part they are labelled with (paper, S10).

    Router and labels share part ids, so nothing is matched.

    Args:
        stage: index of the stage.
        agreement: share of agreeing patches of every image, ``(N,)`` in 0..1.
        category_ids: true categories of the images, ``(N,)``.
        num_known: number of initially labelled categories; ids below it are Old.
        num_parts: P; stands where other tables have the number of categories.
    """
    old = category_ids < num_known

    def percent(mask: np.ndarray) -> float:
        # float64: in float32 All is no longer the weighted mean of Old and New to nine places
        return 100 * float(agreement[mask].mean(dtype=np.float64)) if mask.any() else math.nan

    return StageScore(stage, percent(old | True), percent(old), percent(~old), num_parts, len(agreement))
