"""DYDM (Yu et al., CVPR 2026), our reading of two notes; the paper could not be read, and no code is public.

Two last blocks read the tokens of the frozen prefix. The discovery block learns at every stage by Happy's losses of
discovery, with nothing against forgetting. The memory block stays as stage 0 left it; a random expansion and a ridge
classifier in closed form read its features, and predict. At the end of a stage, images that the discovery classifier
gives to new classes update the ridge classifier exactly. While a stage trains, its scores of old classes teach the
discovery classifier.

Our decisions: the entropies of Happy are maximised (the notes print the other sign), all values of training are
Happy's, scores of the memory are sharpened like logits, features are unit vectors, and the expansion has no bias.
"""

import copy
import logging
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn

from promptccd.methods.base import Method
from promptccd.methods.classifier import (
    DISTILLATION_LOSSES,
    STUDENT_TEMPERATURE,
    ClassifierModel,
    DiscoveryConfig,
    DiscoveryObjective,
    sampled_rows,
)
from promptccd.methods.processes import Rows, same_on_all
from promptccd.models.backbone import blocks_of
from promptccd.models.configuration import bounded

logger = logging.getLogger(__name__)

ROWS_AT_ONCE = 1_000  # of expanded features in float64
RIDGE = 0.1  # gamma, added to the squares of the ridge classifier


@strict
class DYDMConfig(DiscoveryConfig):
    """DYDM.

    Attributes:
        expansion_size: random directions that memory features are expanded to.
        rehearsal_weight: of the divergence of discovery from memory over old classes.
        num_memory: classes of the ridge classifier; sizes the buffers.
    """

    model_type = "dydm"

    expansion_size: int = bounded(3_000, 1, 65_536)
    rehearsal_weight: float = bounded(1.0, 0, 1e6)
    num_memory: int = bounded(0, 0, 100_000, stored=True)


class DYDMModel(ClassifierModel):
    """The discovery block, an MLP and a cosine classifier; the memory block and its ridge classifier, which predict.

    Training reads the discovery block, tests the predicting block. Without prompts, features are of `plain_block`.

    Attributes:
        memory_block: the last block as stage 0 left it; `None` before the end of stage 0.
        expansion: ``(D, E)``.
        squares: sum of ``x x^T`` over expanded features x, ``(E, E)``.
        sums: sum of x over the images of each class, ``(E, K)``.
        readout: weights of the ridge classifier, ``(E, K)``.
    """

    config: DYDMConfig
    block_parts: ClassVar = ("backbone", "memory_block")
    plain_block: Literal["discovery", "memory"] = "discovery"
    memory_block: nn.Module | None
    expansion: Tensor
    squares: Tensor
    sums: Tensor
    readout: Tensor

    def __init__(self, config: DYDMConfig):
        super().__init__(config)
        size, classes = config.expansion_size if config.num_memory else 0, config.num_memory
        self.memory_block = self._frozen_block() if classes else None
        self.register_buffer("expansion", torch.zeros(config.vision_config.hidden_size, size))
        self.register_buffer("squares", torch.zeros(size, size))
        self.register_buffer("sums", torch.zeros(size, classes))
        self.register_buffer("readout", torch.zeros(size, classes))

    def _frozen_block(self) -> nn.Module:
        return copy.deepcopy(blocks_of(self.backbone)[-1]).requires_grad_(False)

    def expanded(self, features: Tensor) -> Tensor:
        """Unit features ``(N, D)`` of the memory block after the expansion, ``(N, E)``."""
        return torch.relu(features @ self.expansion.to(features))

    def memory_scores(self, features: Tensor) -> Tensor:
        """Scores ``(N, K)`` of the ridge classifier for unit features ``(N, D)`` of the memory block."""
        return self.expanded(features) @ self.readout.to(features)

    def begin_memory(self, expansion: Tensor) -> None:
        """Freeze a copy of the last block under an expansion ``(D, E)``."""
        self.memory_block = self._frozen_block()
        self.expansion = expansion.to(self.prototypes)
        self.squares = self.expansion.new_zeros(expansion.shape[1], expansion.shape[1])
        self.sums = self.expansion.new_zeros(expansion.shape[1], 0)

    def remember(self, features: Tensor, classes: Tensor, num_classes: int) -> None:
        """Add unit features ``(N, D)`` of the memory block with their classes ``(N,)``, and solve again."""
        squares, sums = (each.to("cpu", torch.float64, copy=True) for each in (self.squares, self.sums))
        sums = F.pad(sums, (0, num_classes - sums.shape[1]))
        for rows, own in zip(features.split(ROWS_AT_ONCE), classes.split(ROWS_AT_ONCE), strict=True):
            expanded = self.expanded(rows.cpu().double())
            squares += expanded.T @ expanded
            sums += expanded.T @ F.one_hot(own.cpu(), num_classes).double()
        ridge = RIDGE * torch.eye(len(squares), dtype=torch.float64)
        readout = torch.cholesky_solve(sums, torch.linalg.cholesky(squares + ridge))
        for name, value in {"squares": squares, "sums": sums, "readout": readout}.items():
            setattr(self, name, same_on_all(value.to(self.prototypes.dtype)).to(self.prototypes))
        self.config.num_memory = num_classes

    def last_block(self, prompted: bool | None = None) -> nn.Module:
        """See the base class: the memory block at test, once there is one."""
        which = {True: "discovery", None: "memory", False: self.plain_block}[prompted]
        return (
            super().last_block() if which == "discovery" or self.memory_block is None else self.memory_block
        )

    @torch.no_grad()
    def assign_natively(self, features: Tensor) -> Tensor:
        """Class ``(N,)`` of the highest score for features ``(N, D)`` of the block that predicts."""
        return self.memory_scores(features.to(self.prototypes)).argmax(1)


class DYDMObjective(DiscoveryObjective):
    """Happy's losses of discovery, and ``rehearsal``: the memory teaches old classes to the discovery classifier."""

    model: DYDMModel

    def begin_stage(self) -> None:
        """Compare with the memory block, then add new classes."""
        if self.stage.labels is None:
            self.previous = self.model.memory_block
        super().begin_stage()

    def losses(self, rows: Rows) -> dict[str, Tensor]:
        """Those of discovery, and at unlabelled stages ``rehearsal``."""
        parts = super().losses(rows)
        if self.previous is None:
            return parts
        assert rows.output.features is not None
        memory = self.model.memory_scores(F.normalize(self.features_before(rows).float()))[:, : self.num_old]
        logits = self.model.classifier(rows.output.features.float())[:, : self.num_old]
        rehearsal = rows.of_all(divergence(memory / STUDENT_TEMPERATURE, logits / STUDENT_TEMPERATURE))
        parts["rehearsal"] = self.config.rehearsal_weight * rehearsal.mean()
        return {**parts, "loss": parts["loss"] + parts["rehearsal"]}

    @torch.no_grad()
    def end_stage(self) -> None:
        """Freeze the memory block at stage 0; add images of labelled, later of new classes to the ridge classifier."""
        model, labels = self.model, self.stage.labels
        classes = model.classifier.num_classes
        features = self.plain_features("features for the memory")
        if labels is not None:
            drawn = sampled_rows(model.config.expansion_size, features.shape[1], self.generator(0))
            model.begin_memory(drawn.T.contiguous())
            model.remember(features, labels, classes)
            return
        own = model.classifier(features.to(model.prototypes)).argmax(1).to(features.device)
        keep = own >= self.num_old
        sizes = own[keep].bincount(minlength=classes)[self.num_old :].tolist()
        logger.info(
            "The memory learns from %s images of the new classes.", ", ".join(map(str, sizes)) or "no"
        )
        if 0 in sizes:
            logger.warning("%d new classes got no image, and will never be predicted.", sizes.count(0))
        model.plain_block = "memory"
        features = self.plain_features("features of the memory block")
        model.plain_block = "discovery"
        model.remember(features[keep], own[keep], classes)


def divergence(teacher: Tensor, student: Tensor) -> Tensor:
    """``KL(softmax(teacher) || softmax(student))`` of each row, ``(N,)``; the notes have a tau, which is 1 (ours)."""
    return F.kl_div(F.log_softmax(student, dim=1), torch.softmax(teacher, dim=1), reduction="none").sum(1)


METHOD = Method(
    name="dydm",
    model=DYDMModel,
    objective=DYDMObjective,
    title="DYDM",
    summary="a block that discovers and a frozen block that remembers; our reading of two notes",
    parts={"classifier": "cosine classifier of the discovery block"},
    losses={**DISTILLATION_LOSSES, "rehearsal": "divergence from the memory"},
    predicts_natively=True,
)
