"""Trains recipes one after another: ``train_recipes.py RECIPE...`` under torchrun."""

import os
import sys

import torch
from accelerate.state import AcceleratorState

from promptccd.runs import train_run
from promptccd.training.recipe import Recipe

torch.set_num_threads(1)
for path in sys.argv[1:]:
    # A finished run leaves its process group: the next one meets in a file of its own.
    torch.distributed.init_process_group(
        "gloo",
        init_method=f"file://{path}.meeting",
        rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
    )
    AcceleratorState._reset_state(reset_partial_state=True)
    train_run(Recipe.from_yaml(path))
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
