"""The first hour of somebody new: every command of the two pages that they read, each with plausible mistakes.

A row is the command as the page has it, the same with a mistake, and what the answer must name: the value that is
wrong, and what to type next. That is a command of its own, or options that the mistaken command lacks.
"""

import re
import shlex
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", ROOT / "docs" / "start.md")
OTHER_PAGES = sorted((ROOT / "docs").rglob("*.md"))


class Mistake(NamedTuple):
    """A mistake, made where there is no network.

    Attributes:
        of: the command that was meant, as a page has it.
        typed: what was typed instead.
        wrong: the value that the answer names.
        next: what it says to type: a command, options to add, or a name of this machine that is right.
    """

    of: str
    typed: str
    wrong: str
    next: str


def commands_of(page: Path) -> list[str]:
    """Every command of a page, without its comment."""
    blocks = re.findall(r"^```bash\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    lines = [shlex.join(shlex.split(line, comments=True)) for block in blocks for line in block.splitlines()]
    return [line for line in lines if line]


def said_in_text(page: Path) -> list[str]:
    """Commands of ours that stand within a sentence."""
    return re.findall(r"`(promptccd [a-z]+[^`]*)`", page.read_text(encoding="utf-8"))


# What is typed is not ours, and its answer neither: the shell's, pip's or make's own words.
OF_OTHERS = {
    "make demo": "tests/docs/test_pages.py runs what it does",
    "make test": "the suite itself",
    "pip install torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu": "pip",
    "pip install -c constraints.txt .": "pip",
}

OPEN = "promptccd open photos/"
GROUP = "promptccd discover photographs photos/ --out groups/"
GROUP_MINE = "promptccd discover photographs my_photos/ --out groups/"
NAME = "promptccd categories groups/ rename 3 'night heron'"
NAME_0 = "promptccd categories groups/ rename 0 'night heron'"
MERGE = "promptccd categories groups/ merge 1 2"
UNDO = "promptccd categories groups/ undo"
LIST = "promptccd categories groups/ list"
DEMO = "pip install -c constraints.txt '.[space]' '&&' promptccd demo"
TRAIN = "promptccd train my_photos/ --class_blocks 12 4 4 --backbone photographs"
TRAIN_MINE = "promptccd train my_photos/ --class_blocks 2 1 1 --backbone photographs --epochs 8"
STREAMS = "promptccd train labelled/ --unlabelled week01/ week02/"
MORE = "promptccd train runs/promptccd-labelled --unlabelled week03/"
TRAIN_PAPER = "promptccd train --config promptccd-cifar100 --epochs 100 --seed 7"
EVALUATE = "promptccd evaluate runs/promptccd-cifar100"
REPORT = "promptccd report runs/promptccd-cifar100 --out report/"
PREDICT = "promptccd predict runs/promptccd-cifar100/stage3 my_images/"
PREDICT_NEW = "promptccd predict runs/promptccd-labelled new_photos/"
PREDICT_MINE = "promptccd predict runs/promptccd-my_photos/stage2 my_photos/"
REPORT_MINE = "promptccd report runs/promptccd-my_photos --out report/"
GROUP_TRAINED = "promptccd discover runs/promptccd-my_photos/stage2 my_photos/ --out found/"

# Where these are typed there are `my_photos`, four kinds of six; `runs/promptccd-my_photos`, trained on them; `groups`,
# found in them; `nothing`, an empty folder; `texts`, which holds no image; `notes.txt`; and `photos.zip`.
MISTAKES_BY_COMMAND = {
    OPEN: [
        ("open fotos/", "fotos", "promptccd discover"),
        ("open", "FOLDER", "promptccd open --help"),
        ("open nothing --no-browser", "nothing", "promptccd open --help"),
        ("open notes.txt", "notes.txt", "promptccd discover"),
        (
            "open runs/promptccd-my_photos", "runs/promptccd-my_photos",
            "promptccd open PHOTOGRAPHS --model runs/promptccd-my_photos"
        ),
        ("open my_photos --model photograph --no-browser", "photograph", "photographs"),
    ],
    GROUP: [
        ("discover photographs fotos/ --out new/", "fotos", "my_photos"),
        ("discover photograph my_photos/ --out new/", "photograph", "photographs"),
        ("discover facebook/dinov2-small my_photos/ --out new/", "facebook/dinov2-small", "photographs"),
        ("discover my_photos/ --out new/", "IMAGES", "promptccd discover MODEL IMAGES --out DIR"),
        ("discover photographs my_photos/", "--out", "--out DIR"),
    ],
    GROUP_MINE: [
        ("discover photographs texts --out new/", "texts", "promptccd train"),
        ("discover photographs my_photos/ --out my_photos/groups", "my_photos/groups", "--out"),
        ("discover photographs my_photos --out runs/promptccd-my_photos", "runs/promptccd-my_photos", "--out"),
        ("discover photographs my_photos --out new/ --num_categories four", "four", "--num_categories"),
        (
            "discover photographs https://example.org/a.zip --out new/", "https://example.org/a.zip",
            "promptccd discover --help"
        ),
    ],
    NAME: [
        ("categories groups/ rename 99 'night heron'", "99", "promptccd categories --help"),
    ],
    NAME_0: [
        ("categories group/ rename 0 heron", "group", "groups"),
    ],
    MERGE: [
        ("categories groups/ merge 1", "['1']", "promptccd categories --help"),
    ],
    UNDO: [
        (UNDO.removeprefix("promptccd "), "stage 0", "rename"),
    ],
    LIST: [
        ("categories groups/", "ACTION", "promptccd categories --help"),
        ("categories runs/promptccd-my_photos list", "runs/promptccd-my_photos", "runs/promptccd-my_photos/stage2"),
    ],
    DEMO: [
        ("demo photograph --no-browser", "photograph", "promptccd demo photographs"),
    ],
    TRAIN: [
        ("train fotos/ --class_blocks 2 1 1", "fotos/", "my_photos"),
        ("train my_photos/", "my_photos/", "--class_blocks 2 1 1"),
        ("train my_photos/ --class_blocks 2 1 1 --output_dir runs/new", "facebook/dinov2-base", "--backbone"),
        ("train", "Which images", "--config promptccd-digits"),
    ],
    STREAMS: [
        ("train my_photos/ --unlabeled texts", "--unlabeled", "--unlabelled"),
        ("train my_photos/ --unlabelled nothing", "nothing", "leave it out"),
        ("train my_photos/ --unlabelled texts", "texts", "leave it out"),
        ("train my_photos/leopard --unlabelled my_photos/bonsai", "--unlabelled", "sub-folder"),
        (
            "train my_photos/ --class_blocks 2 1 1 --unlabelled nothing", "class_blocks [2, 1, 1]",
            "give one or the other"
        ),
    ],
    MORE: [
        (
            "train runs/promptccd-my_photos --unlabelled nothing", "class_blocks [2, 1, 1]",
            "give one or the other"
        ),
        (
            "train runs/promptccd-my_photos --method gcd --unlabelled nothing", "runs/promptccd-my_photos",
            "leave --config and --method out"
        ),
    ],
    TRAIN_MINE: [
        ("train my_photos/ --class_blocks 2 1 1 --backbone photograph --epochs 8", "photograph", "photographs"),
        ("train my_photos/ --class-blocks 2 1 1 --backbone photographs", "--class-blocks", "--class_blocks"),
        (
            "train my_photos/ --class_blocks 2 1 1 --backbone photographs --epochs 9", "9",
            "--output_dir runs/promptccd-my_photos-2"
        ),
        (
            "train my_photos/leopard --class_blocks 2 1 1 --backbone photographs", "category",
            "promptccd discover photographs FOLDER --out groups/"
        ),
        ("train texts/ --class_blocks 2 1 1 --backbone photographs", "texts", "sub-folder"),
        ("train notes.txt --class_blocks 2 1 1 --backbone photographs", "notes.txt", "path,label"),
        ("train my_photos --class_blocks 2 1 1 --method prompccd", "prompccd", "promptccd"),
    ],
    TRAIN_PAPER: [
        ("train --config promptccd-cifar10", "promptccd-cifar10", "promptccd recipes"),
        (TRAIN_PAPER.removeprefix("promptccd "), "uoft-cs/cifar100", "promptccd train --config promptccd-digits"),
    ],
    EVALUATE: [
        (EVALUATE.removeprefix("promptccd "), "runs/promptccd-cifar100", "promptccd train"),
        ("evaluate runs/promptccd-my_photo", "runs/promptccd-my_photo", "runs/promptccd-my_photos"),
        ("evaluate runs/promptccd-my_photos/stage2", "stage2", "runs/promptccd-my_photos"),
        ("evaluate runs", "runs", "promptccd-my_photos"),
    ],
    REPORT: [
        (REPORT.removeprefix("promptccd "), "runs/promptccd-cifar100", "promptccd train"),
        ("report runs/promptccd-my_photos", "--out", "--out DIR"),
    ],
    REPORT_MINE: [
        ("report runs/promptccd-my_photos/stage2 --out report/", "stage2", "runs/promptccd-my_photos"),
    ],
    PREDICT: [
        (PREDICT.removeprefix("promptccd "), "runs/promptccd-cifar100/stage3", "promptccd-my_photos"),
        ("predict runs/promptccd-my_photos/stage2 my_images/", "my_images/", "my_photos"),
        ("predict photographs my_photos/", "photographs", "promptccd discover photographs IMAGES --out groups/"),
    ],
    PREDICT_NEW: [
        ("predict runs/promptccd-labelld my_photos/", "runs/promptccd-labelld", "--help"),
    ],
    PREDICT_MINE: [
        ("predict runs/promptccd-my_photos/stage2", "FOLDER", "promptccd predict MODEL FOLDER"),
    ],
    GROUP_TRAINED: [
        (
            "discover runs/promptccd-my_photos my_photos/ --out found/", "runs/promptccd-my_photos",
            "runs/promptccd-my_photos/stage2"
        ),
        ("discover runs/promptccd-my_photos/stage2 my_photos/ --out groups/", "groups", "--out"),
    ],
}  # fmt: skip
MISTAKES = [
    Mistake(command, f"promptccd {typed}", *said)
    for command, rows in MISTAKES_BY_COMMAND.items()
    for typed, *said in rows
]
