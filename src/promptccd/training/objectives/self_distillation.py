"""What SimGCD and its successors share: a classifier that learns from its own answer to the other view."""

import copy
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from promptccd.models.backbones import blocks_of, class_row
from promptccd.models.modeling_classifier import ClassifierModel
from promptccd.models.modeling_simgcd import SelfDistillationConfig
from promptccd.training.objectives.contrastive import ContrastiveObjective
from promptccd.training.objectives.objective import Objective, Rows


class ComparingObjective(Objective):
    """An objective that compares features with those of an earlier last block, for the same views."""

    previous: nn.Module | None = None

    def keep_last_block(self) -> None:
        """Keep a copy of the last block as the previous stage left it; the blocks before it are frozen."""
        self.previous = copy.deepcopy(blocks_of(self.model.backbone)[-1])

    @torch.no_grad()
    def features_before(self, rows: Rows) -> Tensor:
        """Features of the same views by the earlier block, not normalised: ``(V * b, D)`` of this process's share."""
        assert self.previous is not None
        assert rows.output.entering is not None
        with self.accelerator.autocast():
            return class_row(self.model.backbone, rows.output.entering, self.previous, rows.output.rotation)

    def moved(self, rows: Rows) -> Tensor:
        """Squared distance of unit features to the earlier ones, of the whole batch: ``(V, B)``."""
        assert rows.output.features is not None
        before = F.normalize(self.features_before(rows))
        moved = F.normalize(rows.output.features.float()) - before
        return rows.of_all(moved.square().sum(1))


class ClassifierObjective(ComparingObjective):
    """An objective over a classifier that grows by the new categories when a stage begins."""

    model: ClassifierModel
    least_batch = 0.5
    needs_count = True

    def begin_stage(self) -> None:
        """Add a row for every category that is new at this stage."""
        if (more := self.stage.count - self.model.classifier.num_classes) > 0:
            self.model.grow(self.new_rows(more))

    def new_rows(self, count: int) -> Tensor:
        """First values of further rows of the classifier, ``(n, D)``."""
        return drawn_rows(count, self.model.config.vision_config.hidden_size, self.generator())


def drawn_rows(count: int, width: int, generator: torch.Generator) -> Tensor:
    """Rows ``(n, D)`` as `torch.nn.Linear` draws them: uniform between -1 / sqrt(D) and 1 / sqrt(D)."""
    return (2 * torch.rand(count, width, generator=generator) - 1) / width**0.5


class SelfDistillationObjective(ClassifierObjective, ContrastiveObjective):
    """SimGCD (Wen et al., ICCV 2023), with its labelled terms where images have labels: at stage 0, or in a memory.

    ``(1 - w) (distillation + eps R + InfoNCE) + w (cross-entropy + SupCon)``; without a label w is 0. The contrastive
    terms read the MLP's unit outputs, the others the classifier.
    """

    @property
    def config(self) -> SelfDistillationConfig:
        """The model's configuration."""
        assert isinstance(self.model.config, SelfDistillationConfig)
        return self.model.config

    def losses(self, rows: Rows) -> dict[str, Tensor]:
        """``distillation``, `spread_of_answers`, ``info_nce``; with labels ``classification`` and ``supervised``."""
        logits = self.model.classifier(rows.features)  # (V, B, K)
        contrast = self.contrast(rows)
        parts = {
            "distillation": self_distillation_loss(
                logits, self.config.student_temperature, self.teacher_temperature(rows.epoch)
            ),
            **self.spread_of_answers(logits),
            "info_nce": contrast["info_nce"],
        }
        loss = torch.stack(list(parts.values())).sum()
        if rows.labelled is not None:
            which, labels = rows.labelled
            parts["classification"] = F.cross_entropy(
                logits[:, which].flatten(0, 1) / self.config.student_temperature, labels.repeat(len(logits))
            )
            parts["supervised"] = contrast["supervised"]
            labelled_loss = parts["classification"] + parts["supervised"]
            loss = torch.lerp(loss, labelled_loss, self.arguments.supervised_weight)
        return {"loss": loss, **parts}

    def spread_of_answers(self, logits: Tensor) -> dict[str, Tensor]:
        """Weighted terms that keep the answers ``(V, B, K)`` from being one class for all images."""
        mean = mean_answer(logits, self.config.student_temperature)
        return {"entropy": self.config.entropy_weight * unevenness(mean)}

    def teacher_temperature(self, epoch: int) -> float:
        """Temperature of the answer that teaches; it changes linearly over the first epochs of a stage."""
        config = self.config
        done = min(1.0, epoch / max(1, config.teacher_epochs - 1))
        first, last = config.first_teacher_temperature, config.teacher_temperature
        return first + (last - first) * done


def self_distillation_loss(logits: Tensor, student_temperature: float, teacher_temperature: float) -> Tensor:
    """Cross-entropy of the answer to one view with the sharper, detached answer to the other; mean of both ways.

    Logits ``(2, B, K)`` are cosines.
    """
    targets = torch.softmax(logits.detach().flip(0) / teacher_temperature, dim=-1)
    return -(targets * torch.log_softmax(logits / student_temperature, dim=-1)).sum(-1).mean()


def mean_answer(logits: Tensor, temperature: float) -> Tensor:
    """Mean ``(K,)`` over all views and images of the soft-max of ``(V, B, K)``."""
    return torch.softmax(logits / temperature, dim=-1).flatten(0, 1).mean(0)


def unevenness(shares: Tensor) -> Tensor:
    """``log K`` less the entropy of shares ``(K,)`` that sum to one: 0 where all are alike, at most ``log K``."""
    return math.log(len(shares)) + (shares * shares.clamp(min=1e-8).log()).sum()
