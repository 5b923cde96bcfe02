"""Forks trainings from a process that has everything imported, and kills them: ``victim.py RECIPE KILLS SEED``.

A fresh interpreter takes seconds to import torch, a fork takes none, so fifty kills fit into a test. Prints one
JSON object with what happened.
"""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import torch

import promptccd.runs
from promptccd.training.recipe import Recipe


def train_in_child(values: dict) -> int:
    child = os.fork()
    if child:
        return child
    os.setpgid(0, 0)
    try:
        torch.set_num_threads(1)
        promptccd.runs.train_run(Recipe.from_dict(values))
        os._exit(0)
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        os._exit(1)


def saves_in_flight(run: Path) -> bool:
    return any(run.glob(".tmp-*")) or any(run.glob("resume/.tmp-*"))


def main() -> None:
    values = json.loads(Path(sys.argv[1]).read_text())
    kills, chance = int(sys.argv[2]), random.Random(int(sys.argv[3]))
    output = Path(values["training"]["output_dir"])
    done = inside = runs = 0
    while done < kills:
        run = output.with_name(f"{output.name}-{runs}")
        values["training"]["output_dir"] = str(run)
        child = train_in_child(values)
        due = time.monotonic() + chance.uniform(0.15, 1.6)
        wait_for_a_save = done % 2 == 1  # every second kill strikes as soon as one is being written
        status = None
        while time.monotonic() < due or (wait_for_a_save and not saves_in_flight(run)):
            finished, status = os.waitpid(child, os.WNOHANG)
            if finished:
                break
            time.sleep(0.0005)
        else:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            done += 1
            inside += saves_in_flight(run)
            continue
        if status:
            sys.exit(f"the training ended with status {status}")
        runs += 1
    child = train_in_child(values)  # the last one is let through
    _, status = os.waitpid(child, 0)
    print(json.dumps({"kills": done, "inside_a_save": inside, "runs": runs + 1, "status": status}))


if __name__ == "__main__":
    main()
