"""ORCA (Cao et al., ICLR 2022): a margin slows labelled categories down, and images agree with their neighbours."""

from typing import ClassVar

import torch
import torch.nn.functional as F
from huggingface_hub.dataclasses import strict
from torch import Tensor

from promptccd.methods.base import Method
from promptccd.methods.classifier import (
    ClassifierConfig,
    ClassifierModel,
    ClassifierObjective,
    mean_prediction,
    unevenness,
)
from promptccd.methods.processes import Rows, same_on_all, sent
from promptccd.models.backbone import UnitHead


@strict
class ORCAConfig(ClassifierConfig):
    """ORCA."""

    model_type = "orca"


LOGIT_SCALE = 10.0  # factor of the cosines
LARGEST_MARGIN = 0.5  # the mean uncertainty, at most, that is added to the cosine of the true class


class ORCAModel(ClassifierModel):
    """The last block and a cosine classifier; the margin of the epoch is saved for a stage that resumes inside it."""

    config: ORCAConfig
    head_class: ClassVar = UnitHead
    margin: Tensor

    def __init__(self, config: ORCAConfig):
        super().__init__(config)
        self.register_buffer("margin", torch.zeros(()))


class ORCAObjective(ClassifierObjective):
    """Cross-entropy with a margin that grows with uncertainty, agreement of pairs of images, and evenness.

    Stage 0 has all three, over the labelled images alone; the paper has unlabelled images in addition and derives its
    margin from unlabelled images. Later stages have no labels, and evenness alone keeps pairs from one prediction for
    all images. The paper has neither stages nor a classifier that grows.

    The paper adds minus the entropy of the mean prediction; ours is larger by the constant log K.
    """

    model: ORCAModel

    def new_rows(self, count: int) -> Tensor:
        """First values of further rows of the classifier, of length 1."""
        return F.normalize(super().new_rows(count))

    @torch.no_grad()
    def begin_epoch(self, epoch: int) -> None:
        """At a labelled stage, set the margin to the mean uncertainty of the predictions."""
        if self.stage.labels is None:
            return
        logits = LOGIT_SCALE * self.model.classifier(self.plain_features("features for the margin"))
        uncertainty = same_on_all(1 - float(logits.softmax(1).amax(1).mean()))
        self.model.margin.fill_(min(uncertainty, LARGEST_MARGIN))

    def losses(self, rows: Rows) -> dict[str, Tensor]:
        """``pairs``, ``entropy``, and ``classification`` with labels; all but ``pairs`` read the first view alone."""
        cosines = self.model.classifier(rows.features)  # (2, B, K)
        answers = (LOGIT_SCALE * cosines).softmax(-1)
        partners = self.partners(rows)
        parts = {
            "pairs": -(answers[0] * answers[1, partners]).sum(1).clamp(min=1e-7).log().mean(),
            "entropy": unevenness(mean_prediction(cosines[:1], 1 / LOGIT_SCALE)),
        }
        if rows.labelled is not None:
            labels = rows.labelled[1]
            raised = cosines[0] + self.model.margin * F.one_hot(labels, cosines.shape[-1])
            parts["classification"] = F.cross_entropy(LOGIT_SCALE * raised, labels)
        return {"loss": torch.stack(list(parts.values())).sum(), **parts}

    @torch.no_grad()
    def partners(self, rows: Rows) -> Tensor:
        """Place of the image that each should agree with, ``(B,)``: of its category, or without labels the nearest."""
        if rows.labels is None:
            unit = F.normalize(rows.features[0])
            return (unit @ unit.T).fill_diagonal_(float("-inf")).argmax(1)
        return sent(same_category(rows.labels, self.generator(rows.epoch, rows.step)), rows.bottleneck.device)


def same_category(labels: Tensor, generator: torch.Generator) -> Tensor:
    """For each of the labels ``(B,)``, on the CPU, another place with the same label, or else its own."""
    alike = (labels[:, None] == labels).float().fill_diagonal_(0)
    alone = alike.sum(1) == 0
    alike[alone, alone] = 1
    return torch.multinomial(alike, 1, generator=generator).squeeze(1)


METHOD = Method(
    name="orca",
    model=ORCAModel,
    objective=ORCAObjective,
    title="ORCA",
    summary="a cosine classifier that learns labels with a margin and neighbours in pairs",
    parts={"classifier": "cosine classifier"},
    losses={
        "classification": "cross-entropy of labels, with the margin",
        "pairs": "disagreement of pairs",
        "entropy": "unevenness of the mean prediction",
    },
    predicts_natively=True,
)
