"""Trains in memory, for tests that start processes: ``-m tests.runs.train_in_python BACKBONE RUN TRACKER STOPS``."""

import os
import sys
from pathlib import Path

from promptccd import CategoryDiscoveryCallback, CategoryDiscoveryTrainer, PromptCCDModel, TrainingArguments
from promptccd.data import StageStream
from promptccd.data.options import ViewOptions
from tests.conftest import TINY_HEAD, coloured_images, quick_recipe

BACKBONE, RUN, TRACKER, STOPS = sys.argv[1:]


class StopOnce(CategoryDiscoveryCallback):
    """Asks for the end on the last process alone."""

    def __init__(self, stops: bool):
        self.stops = stops and os.environ.get("RANK") == "1"

    def on_epoch_end(self, args, state, control, metrics):
        control.should_training_stop, self.stops = self.stops, False


cuts = [[0.7, 1.0], [1.0]]
trainer = CategoryDiscoveryTrainer(
    PromptCCDModel.from_pretrained(BACKBONE, **TINY_HEAD),
    TrainingArguments(**quick_recipe(RUN, RUN, RUN)["training"], report_to=TRACKER),
    StageStream.from_dataset(coloured_images(5, 12), class_blocks=[4, 1], cuts=cuts),
    [StopOnce(STOPS == "stops")],
    views=ViewOptions(image_size=16, resize_size=18),
)
if STOPS == "stops":
    assert trainer.train().stages == []
    assert not (Path(RUN) / "stage0").exists()
assert [row.stage for row in trainer.train().stages] == [1]
trainer.accelerator.end_training()
