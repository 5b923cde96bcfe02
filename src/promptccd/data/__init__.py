"""The learner's data: stages, images and views of them."""

from typing import TYPE_CHECKING

from promptccd.on_demand import give_names_on_demand

if TYPE_CHECKING:
    from promptccd.data.splits import CategorySplit, StageCount
    from promptccd.data.stages import LabelledStage, Stage, StageStream

__all__ = ["CategorySplit", "LabelledStage", "Stage", "StageCount", "StageStream"]

give_names_on_demand(__name__)
