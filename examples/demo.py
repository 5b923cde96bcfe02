"""`make demo`: PromptCCD on 362 bundled photographs of Caltech-101, without network and GPU.

Ten categories are labelled, ten others arrive in three streams without labels. The demo takes about two minutes on two
cores and ends with a page of the discovered categories. An interrupted demo resumes when it is started again.

    python examples/demo.py
"""

import argparse
import json
import logging
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tqdm import tqdm

os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"  # the demo has one bar in place of many

from promptccd import CategoryDiscoveryCallback, TrainingArguments
from promptccd.reports import write_report
from promptccd.runs import stage_stream
from promptccd.trainer import train_recipe
from promptccd.training.progress import RunState, TrainingControl
from promptccd.training.recipe import Recipe

PHOTOS = "src/promptccd/discovery/page/example/photos"
REPORT = 0.2  # share of the time after training: features of all stages, the frozen start and the map


class DemoBar(CategoryDiscoveryCallback):
    """One bar for all stages and the report.

    Args:
        sizes: number of images of every stage; an epoch takes time in proportion.
        epochs: per stage.
    """

    def __init__(self, sizes: Sequence[int], epochs: int):
        self.sizes, self.epochs, self.started, self.first = sizes, epochs, time.monotonic(), 0.0
        self.bar = tqdm(total=1, bar_format="{desc} {bar:30} {percentage:.0f} %", disable=None)

    def show(self, work: str, share: float) -> None:
        """Show the work at hand, and the time left from the share of all work that is done."""
        passed, done = time.monotonic() - self.started, share - self.first
        left = f", about {passed / done * (1 - share):.0f} s left" if done > 0 else ""
        self.bar.n = share
        self.bar.set_description_str(f"{work}{left}")

    def on_stage_begin(self, args: TrainingArguments, state: RunState, control: TrainingControl) -> None:
        """Show a stage that begins; a line of its own if there is no terminal for the bar."""
        if self.bar.disable:
            print(f"stage {state.stage + 1} of {len(self.sizes)}", flush=True)
        self._show_stage(state, 0)
        if not self.first:  # finished stages of an earlier call took no time
            self.first, self.started = self.bar.n, time.monotonic()

    def on_epoch_end(
        self, args: TrainingArguments, state: RunState, control: TrainingControl, metrics: Mapping[str, float]
    ) -> None:
        """Show an epoch that ended."""
        self._show_stage(state, (state.epoch + 1) / self.epochs)

    def _show_stage(self, state: RunState, share: float) -> None:
        images = sum(self.sizes[: state.stage]) + self.sizes[state.stage] * share
        work = f"stage {state.stage + 1} of {len(self.sizes)}"
        self.show(work, (1 - REPORT) * images / sum(self.sizes))


def next_commands(out: Path) -> list[str]:
    """Commands to try next, which work as printed."""
    has_command = shutil.which("promptccd") is not None
    return [
        *([] if has_command else ["source .venv/bin/activate"]),
        f"promptccd predict {out}/stage3 {PHOTOS}",
        "promptccd discover photographs caltech101-demo --out groups/",
        "promptccd open groups/",
    ]


def main() -> None:
    """Train, write the report, and print the comparison with the frozen start."""
    parser = argparse.ArgumentParser(description="PromptCCD discovers ten categories of photographs.")
    parser.add_argument("--out", default="runs/promptccd-demo", help="folder of the run and its report")
    parser.add_argument("--epochs", type=int, default=16, help="epochs per stage")
    parser.add_argument("--seed", type=int, default=1, help="random seed")
    options = parser.parse_args()
    out = Path(options.out)
    values = {"output_dir": str(out), "epochs": options.epochs, "seed": options.seed}
    recipe = Recipe.from_yaml("promptccd-demo", {"training": values})
    logging.getLogger("promptccd").setLevel(logging.WARNING)
    bar = DemoBar([len(stage) for stage in stage_stream(recipe.data, options.seed)], options.epochs)
    train_recipe(recipe, callbacks=[bar])
    bar.show("report", 1 - REPORT)
    page = write_report([out], out / "report", baselines=True)
    bar.show("finished", 1.0)
    bar.bar.close()
    found = json.loads((out / "report/report.json").read_text(encoding="utf-8"))["sections"]
    print("\nPercent right, average of three streams    labelled before     new")
    for row in found["compared"]:
        print(f"  {row['variant']:40}{row['old']:16.1f}{row['new']:8.1f}")
    print(
        f"\n{len(found['discovered'])} categories were discovered; there are 10. Their pictures are here:\n  {page}"
    )
    print("\nNext:", *next_commands(out), sep="\n  ")


if __name__ == "__main__":
    main()
