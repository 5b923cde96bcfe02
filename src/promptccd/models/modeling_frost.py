"""FRoST: RankStats' heads, and mean and spread of the features of its classes."""

from typing import ClassVar

from huggingface_hub.dataclasses import strict
from torch import Tensor

from .modeling_classifier import RememberingModel
from .modeling_rankstats import RankStatsConfig, RankStatsModel
from .untrusted import bounded


@strict
class FrostConfig(RankStatsConfig):
    """FRoST.

    Attributes:
        drawn_per_class: features drawn around the mean of every old class for a batch.
        drift_weight: of the distance to the features of the stage before.
        num_means: classes whose mean is known; sizes the buffer.
    """

    model_type = "frost"

    pseudo_weight: float = bounded(0.01, 0, 1e6)
    drawn_per_class: int = bounded(2, 0, 65_536)
    drift_weight: float = bounded(10.0, 0, 1e6)
    num_means: int = bounded(0, 0, 1_000_000)


class FrostModel(RankStatsModel, RememberingModel):
    """The last block, a joint linear head, and what later stages draw features from.

    `class_deviation`, ``(D,)``, is the standard deviation of features around the mean of their class, averaged over
    the classes.
    """

    config: FrostConfig
    shares_prefix: ClassVar = True
    class_deviation: Tensor

    def __init__(self, config: FrostConfig):
        super().__init__(config)
        self.add_buffer("class_deviation", config.vision_config.hidden_size)
