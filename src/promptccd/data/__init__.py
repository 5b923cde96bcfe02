"""What the learner is allowed to see: stages, images and views of them."""

from promptccd.data.splits import CategorySplit, StageCount
from promptccd.data.stages import LabelledStage, Stage, StageStream

__all__ = ["CategorySplit", "LabelledStage", "Stage", "StageCount", "StageStream"]
