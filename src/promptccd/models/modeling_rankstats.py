"""RankStats: a linear head over all classes, and during training of a stage one over its new classes."""

from typing import ClassVar

from huggingface_hub.dataclasses import strict
from torch import Tensor

from .classifiers import LinearClassifier
from .modeling_classifier import ClassifierConfig, HeadlessClassifierModel
from .untrusted import bounded


@strict
class RankStatsConfig(ClassifierConfig):
    """RankStats.

    Attributes:
        top_ranks: k; two images whose k largest feature dimensions are the same count as a pair.
        pseudo_weight: of the joint head's cross-entropy with the novel head's labels, at the end of the ramp.
        consistency_weight: of the squared distance between the predictions of two views, at the end of the ramp.
        ramp_epochs: epochs over which both weights rise.
    """

    model_type = "rankstats"

    top_ranks: int = bounded(5, 1, 8_192)
    pseudo_weight: float = bounded(0.05, 0, 1e6)
    consistency_weight: float = bounded(25.0, 0, 1e6)
    ramp_epochs: int = bounded(300, 1, 1_000_000)


class RankStatsModel(HeadlessClassifierModel):
    """The last block and a joint linear head.

    `novel`, the head over the classes that are new at a stage, exists only while the stage trains, and is in no
    finished checkpoint.
    """

    config: RankStatsConfig
    roles: ClassVar = {"classifier": "classifier", "novel": "classifier"}
    classifier_class: ClassVar = LinearClassifier
    novel: LinearClassifier | None

    def __init__(self, config: RankStatsConfig):
        super().__init__(config)
        self.novel = None

    def open_novel_head(self, rows: Tensor) -> None:
        """Add a head over new classes with these rows ``(n, D)``."""
        self.novel = LinearClassifier(0, rows.shape[1]).to(self.device)
        self.novel.grow(rows)
