"""RankStats (Han et al., ICLR 2020) under the continual protocol."""

from huggingface_hub.dataclasses import strict

from promptccd.methods.base import Method
from promptccd.methods.classifier import (
    PAIR_LOSSES,
    RankStatisticsConfig,
    RankStatisticsModel,
    RankStatisticsObjective,
)


@strict
class RankStatsConfig(RankStatisticsConfig):
    """RankStats."""

    model_type = "rankstats"


class RankStatsModel(RankStatisticsModel):
    """The last block and a joint linear head."""

    config: RankStatsConfig


METHOD = Method(
    name="rankstats",
    model=RankStatsModel,
    objective=RankStatisticsObjective,
    title="RankStats",
    summary="a linear head that learns new classes from images whose largest features agree",
    parts={"classifier": "joint linear head"},
    losses=PAIR_LOSSES,
    predicts_natively=True,
)
