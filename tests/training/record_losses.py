"""Trains a recipe and writes the loss of every step: ``record_losses.py RECIPE LOSSES`` under torchrun or alone."""

import json
import os
import sys
from pathlib import Path

import torch

from promptccd.runs import train_run
from promptccd.training import trainer
from promptccd.training.recipe import Recipe

torch.set_num_threads(1)
losses: list[float] = []
original = trainer.training_loss


def recorded(*args, **kwargs):
    parts = original(*args, **kwargs)
    losses.append(float(parts["loss"]))
    return parts


trainer.training_loss = recorded
score = train_run(Recipe.from_yaml(sys.argv[1]))
rank = int(os.environ.get("RANK", "0"))
Path(f"{sys.argv[2]}-{rank}.json").write_text(json.dumps({"losses": losses, "score": score.to_dict()}))
if torch.distributed.is_initialized():
    torch.distributed.destroy_process_group()
