"""Trains recipes and writes the loss of every step: ``record_losses.py RECIPE...`` under torchrun or alone.

Beside ``recipe.json`` a process writes ``recipe-0.json``, with its own number.
"""

import json
import os
import sys
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState

from promptccd.runs import train_run
from promptccd.training.recipe import Recipe

torch.set_num_threads(1)
rank, processes = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
losses: list[float] = []
original = Accelerator.backward


def recorded(accelerator: Accelerator, loss: torch.Tensor) -> None:
    losses.append(float(loss))
    original(accelerator, loss)


Accelerator.backward = recorded
for path in map(Path, sys.argv[1:]):
    losses.clear()
    if processes > 1:  # a finished run leaves its process group: the next one meets in a file of its own
        meeting = f"file://{path}.meeting"
        torch.distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=processes)
    AcceleratorState._reset_state(reset_partial_state=True)
    score = train_run(Recipe.from_yaml(path))
    values = {"losses": losses, "score": score.to_dict()}
    path.with_stem(f"{path.stem}-{rank}").write_text(json.dumps(values))
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
