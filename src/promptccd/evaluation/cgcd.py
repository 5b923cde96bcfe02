"""C-GCD, the protocol of Happy, VB-CGCD, DYDM and GOAL: native predictions on test images of all categories so far."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from promptccd.evaluation.accuracy import clustering_accuracy
from promptccd.evaluation.continual import ContinualScore, StageScore


def cgcd_score(
    true_ids: Sequence[np.ndarray], predicted: Sequence[np.ndarray], num_categories: Sequence[int]
) -> ContinualScore:
    """All, Old and New of every unlabelled stage under one matching, where Old are all categories of earlier stages.

    Further figures are ``initial``, the accuracy on the categories of stage 0 under the same matching, and ``lost``,
    the points that it fell since stage 0.

    Args:
        true_ids: of the test images of all categories so far, for stages 0, 1, ..., ``(N_t,)`` each.
        predicted: native predictions of the stage's model for them.
        num_categories: K_0, K_1, ...: ids of the categories of stage t are below K_t.
    """
    known = range(num_categories[0])
    before = clustering_accuracy(true_ids[0], predicted[0], known).all
    rows = []
    for stage in range(1, len(true_ids)):
        row = StageScore.of(stage, true_ids[stage], predicted[stage], num_categories[stage - 1])
        initial = clustering_accuracy(true_ids[stage], predicted[stage], known).old
        rows.append(replace(row, figures={"initial": initial, "lost": before - initial, **row.figures}))
    return ContinualScore("c-gcd", rows)
