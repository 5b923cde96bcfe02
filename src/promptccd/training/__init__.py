"""Batches in, a better model out."""

from promptccd.training.arguments import TrainingArguments
from promptccd.training.recipe import Recipe
from promptccd.training.trainer import StageTrainer, TrainingState

__all__ = ["Recipe", "StageTrainer", "TrainingArguments", "TrainingState"]
