"""Batches in, a better model out."""

from typing import TYPE_CHECKING

from promptccd.on_demand import give_names_on_demand

if TYPE_CHECKING:
    from promptccd.training.options import TrainingArguments as TrainingArguments
    from promptccd.training.recipe import Recipe as Recipe
    from promptccd.training.stage_trainer import StageTrainer as StageTrainer
    from promptccd.training.stage_trainer import TrainingState as TrainingState

give_names_on_demand(__name__)
