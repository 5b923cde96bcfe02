"""RankStats: a linear head over all classes, and while a stage trains one over its new classes alone."""

from typing import ClassVar

from huggingface_hub.dataclasses import strict
from torch import Tensor

from .classifiers import CosineClassifier, LinearClassifier
from .modeling_classifier import ClassifierConfig, HeadlessClassifierModel


@strict
class RankStatsConfig(ClassifierConfig):
    """RankStats.

    Attributes:
        top_ranks: k; two images are taken for a pair whose k largest feature dimensions are the same.
        pseudo_weight: of the joint head's cross-entropy with the novel head's answers, at the end of the ramp.
        consistency_weight: of the squared distance between answers to two views, at the end of the ramp.
        ramp_epochs: epochs over which both rise.
    """

    model_type = "rankstats"

    top_ranks: int = 5
    pseudo_weight: float = 0.05
    consistency_weight: float = 25.0
    ramp_epochs: int = 300


class RankStatsModel(HeadlessClassifierModel):
    """The last block and a joint linear head, which answers.

    `novel`, the head over the classes that are new at a stage, is there while the stage trains, and in none of its
    checkpoints: nothing reads it afterwards.
    """

    config: RankStatsConfig
    roles: ClassVar = {"classifier": "classifier", "novel": "classifier"}
    novel: LinearClassifier | None

    def __init__(self, config: RankStatsConfig):
        super().__init__(config)
        self.novel = None

    @staticmethod
    def build_classifier(config: ClassifierConfig) -> CosineClassifier:
        """See the base class."""
        return LinearClassifier(config.num_classes, config.vision_config.hidden_size)

    def open_novel_head(self, rows: Tensor) -> None:
        """A head over new classes, whose rows ``(n, D)`` these are."""
        self.novel = LinearClassifier(0, rows.shape[1]).to(self.device)
        self.novel.grow(rows)

    def close_novel_head(self) -> None:
        """The end of that head."""
        self.novel = None
