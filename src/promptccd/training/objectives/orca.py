"""ORCA (Cao et al., ICLR 2022): labelled categories wait for new ones, and images agree with those next to them."""

import torch
import torch.nn.functional as F
from torch import Tensor

from promptccd.models.modeling_orca import ORCAModel
from promptccd.training.devices import same_on_all
from promptccd.training.methods import Method
from promptccd.training.objectives.objective import Rows
from promptccd.training.objectives.self_distillation import ClassifierObjective, mean_answer, unevenness


class ORCAObjective(ClassifierObjective):
    """Cross-entropy with a margin for the uncertain, pairs of images that should be one, and evenness.

    Stage 0 has all three, over the labelled images alone: the paper has unlabelled ones beside them, and takes its
    margin of those. Later stages have no labels, and nothing but evenness keeps pairs from one answer for all. Growth,
    like training stage by stage, is not in the paper.

    The paper adds minus the entropy of the mean answer; the evenness here is more by log K, which never learns.
    """

    model: ORCAModel

    def new_rows(self, count: int) -> Tensor:
        """See the base class; of length 1."""
        return F.normalize(super().new_rows(count), dim=-1)

    @torch.no_grad()
    def begin_epoch(self, epoch: int) -> None:
        """Measure how uncertain the answers are, which is the margin as long as labels are learnt from."""
        if self.stage.labels is None:
            return
        config = self.model.config
        logits = config.logit_scale * self.model.classifier(self.plain_features("features for the margin"))
        uncertainty = same_on_all(1 - float(logits.softmax(-1).amax(-1).mean()))
        self.model.margin.fill_(min(uncertainty, config.largest_margin))

    def losses(self, rows: Rows) -> dict[str, Tensor]:
        """``pairs``, ``entropy``, and ``classification`` with labels; all but ``pairs`` of the first view."""
        scale = self.model.config.logit_scale
        cosines = self.model.classifier(rows.features)  # (2, B, K)
        answers = (scale * cosines).softmax(-1)
        partners = self.partners(rows)
        parts = {
            "pairs": pair_loss(answers[0], answers[1, partners]),
            "entropy": unevenness(mean_answer(cosines[:1], 1 / scale)),
        }
        if rows.labels is not None:
            parts["classification"] = margin_loss(cosines[0], rows.labels, scale, self.model.margin)
        return {"loss": torch.stack(list(parts.values())).sum(), **parts}

    @torch.no_grad()
    def partners(self, rows: Rows) -> Tensor:
        """Which image of the batch each should agree with, ``(B,)``: one of its category, else the nearest."""
        if rows.labels is None:
            return nearest_others(rows.features[0])
        return same_category(rows.labels.cpu(), self.generator(rows.epoch, rows.step)).to(rows.labels.device)


def margin_loss(cosines: Tensor, labels: Tensor, scale: float, margin: Tensor) -> Tensor:
    """Cross-entropy of ``(B, K)`` cosines, of which the true ones ``(B,)`` count as if they were larger already."""
    raised = cosines + margin * F.one_hot(labels, cosines.shape[1])
    return F.cross_entropy(scale * raised, labels)


def pair_loss(answers: Tensor, others: Tensor) -> Tensor:
    """Minus the mean logarithm of the chance that two answers ``(B, K)`` are the same class."""
    return -(answers * others).sum(-1).clamp(min=1e-7).log().mean()


def same_category(labels: Tensor, generator: torch.Generator) -> Tensor:
    """For each of the labels ``(B,)`` another place with the same one, or its own if there is none; all on the CPU."""
    alike = (labels[:, None] == labels).float().fill_diagonal_(0)
    alone = alike.sum(1) == 0
    alike[alone, alone] = 1
    return torch.multinomial(alike, 1, generator=generator).squeeze(1)


def nearest_others(features: Tensor) -> Tensor:
    """For each of the features ``(B, D)`` the place of the other that has the largest cosine with it, ``(B,)``."""
    unit = F.normalize(features, dim=-1)
    return (unit @ unit.T).fill_diagonal_(float("-inf")).argmax(1)


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
        "entropy": "unevenness of the mean answer",
    },
    answers_natively=True,
)
