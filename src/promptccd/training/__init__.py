"""Batches in, a better model out."""

from promptccd.training.arguments import Recipe, TrainingArguments
from promptccd.training.trainer import StageTrainer, TrainingState

__all__ = ["Recipe", "StageTrainer", "TrainingArguments", "TrainingState"]
