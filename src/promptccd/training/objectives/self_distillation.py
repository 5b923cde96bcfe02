"""What SimGCD and those after it share: a classifier that learns from its own answer to the other view."""

import copy
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from promptccd.models.backbones import blocks_of, class_row
from promptccd.models.modeling_classifier import ClassifierModel
from promptccd.models.modeling_simgcd import SelfDistillationConfig
from promptccd.training.objectives.contrastive import (
    ContrastiveObjective,
    info_nce_loss,
    supervised_contrastive_loss,
)
from promptccd.training.objectives.objective import Objective, Rows


class ComparingObjective(Objective):
    """An objective that holds features against those of another last block, for the very views."""

    previous: nn.Module | None = None

    def keep_last_block(self) -> None:
        """Keep the last block as the stage before left it; all that comes before it is frozen."""
        self.previous = copy.deepcopy(blocks_of(self.model.backbone)[-1]).requires_grad_(False)

    @torch.no_grad()
    def features_before(self, rows: Rows) -> Tensor:
        """What that block makes of the very views, as it comes: ``(V * b, D)`` of this process's share."""
        assert self.previous is not None and rows.output.entering is not None
        with self.accelerator.autocast():
            return class_row(self.model.backbone, rows.output.entering, self.previous, rows.output.rotation)

    def moved(self, rows: Rows) -> Tensor:
        """Squared distance of unit features to those before, of the whole batch: ``(V, B)``."""
        assert rows.output.features is not None
        before = F.normalize(self.features_before(rows), dim=-1)
        moved = F.normalize(rows.output.features.float(), dim=-1) - before
        return rows.of_all(moved.square().sum(-1))


class ClassifierObjective(ComparingObjective):
    """An objective over a classifier, which grows by the new categories when a stage begins."""

    model: ClassifierModel
    least_batch = 0.5
    needs_count = True

    def begin_stage(self) -> None:
        """Rows for the categories that are new at this stage."""
        grown = self.stage.num_categories
        assert grown is not None  # needs_count
        if (more := grown - self.model.classifier.num_classes) > 0:
            self.model.grow(self.new_rows(more))

    def new_rows(self, count: int) -> Tensor:
        """Further rows of the classifier."""
        return drawn_rows(count, self.model.config.vision_config.hidden_size, self.generator())


def drawn_rows(count: int, width: int, generator: torch.Generator) -> Tensor:
    """Rows ``(n, D)`` as `torch.nn.Linear` draws them: uniform in plus and minus 1 / sqrt(D)."""
    return (2 * torch.rand(count, width, generator=generator) - 1) / width**0.5


class SelfDistillationObjective(ClassifierObjective, ContrastiveObjective):
    """SimGCD (Wen et al., ICCV 2023), at stage 0 with its labelled terms, later without, or with those of a memory.

    ``(1 - w) (distillation + eps R + InfoNCE) + w (cross-entropy + SupCon)``; where no label is given, w is 0. The
    contrastive terms are of the MLP's unit outputs, the others of the classifier.
    """

    @property
    def config(self) -> SelfDistillationConfig:
        """Of the model."""
        assert isinstance(self.model.config, SelfDistillationConfig)
        return self.model.config

    def losses(self, rows: Rows) -> dict[str, Tensor]:
        """``distillation``, ``info_nce``, what spreads answers; with labels ``classification`` and ``supervised``."""
        logits = self.model.classifier(rows.features)  # (V, B, K)
        similarities = self.model.head.similarities(rows.bottleneck.flatten(0, 1))
        parts = {
            "distillation": self_distillation_loss(
                logits, self.config.student_temperature, self.teacher_temperature(rows.epoch)
            ),
            **self.spread_of_answers(logits),
            "info_nce": info_nce_loss(similarities, self.arguments.temperature_unsupervised),
        }
        loss = torch.stack(list(parts.values())).sum()
        if rows.labelled is not None:
            which, labels = rows.labelled
            parts["classification"] = F.cross_entropy(
                logits[:, which].flatten(0, 1) / self.config.student_temperature, labels.repeat(len(logits))
            )
            parts["supervised"] = supervised_contrastive_loss(
                rows.among(similarities, which), labels, self.arguments.temperature_supervised
            )
            taught = parts["classification"] + parts["supervised"]
            loss = torch.lerp(loss, taught, self.arguments.supervised_weight)
        return {"loss": loss, **parts}

    def spread_of_answers(self, logits: Tensor) -> dict[str, Tensor]:
        """What keeps the answers ``(V, B, K)`` from being one class for all, by name and weighted."""
        mean = mean_answer(logits, self.config.student_temperature)
        return {"entropy": self.config.entropy_weight * unevenness(mean)}

    def teacher_temperature(self, epoch: int) -> float:
        """Of the answer that teaches, in an epoch of the stage."""
        config = self.config
        done = min(1.0, epoch / max(1, config.teacher_epochs - 1))
        first, last = config.first_teacher_temperature, config.teacher_temperature
        return first + (last - first) * done


def self_distillation_loss(logits: Tensor, student_temperature: float, teacher_temperature: float) -> Tensor:
    """Cross-entropy of the answer to one view with the sharper, detached answer to the other, mean of both ways.

    Args:
        logits: ``(2, B, K)``, cosines.
        student_temperature: of the answer that learns.
        teacher_temperature: of the answer that teaches.
    """
    taught = torch.softmax(logits.detach().flip(0) / teacher_temperature, dim=-1)
    return -(taught * torch.log_softmax(logits / student_temperature, dim=-1)).sum(-1).mean()


def mean_answer(logits: Tensor, temperature: float) -> Tensor:
    """Mean ``(K,)`` over all views and images of the soft-max of ``(V, B, K)``."""
    return torch.softmax(logits / temperature, dim=-1).flatten(0, 1).mean(0)


def unevenness(shares: Tensor) -> Tensor:
    """``log K`` less the entropy of shares ``(K,)`` that sum to one: 0 where all are alike, at most ``log K``."""
    return math.log(len(shares)) + (shares * shares.clamp(min=1e-8).log()).sum()
