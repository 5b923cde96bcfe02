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
MISTAKES = [
    # Group photographs
    Mistake(OPEN, "promptccd open fotos/", "fotos", "promptccd discover"),
    Mistake(OPEN, "promptccd opn my_photos/", "opn", "promptccd --help"),
    Mistake(OPEN, "promptccd open", "FOLDER", "promptccd open --help"),
    Mistake(OPEN, "promptccd open nothing --no-browser", "nothing", "promptccd open --help"),
    Mistake(OPEN, "promptccd open texts --no-browser", "texts", "promptccd train"),
    Mistake(OPEN, "promptccd open notes.txt", "notes.txt", "promptccd discover"),
    Mistake(OPEN, "promptccd open photos.zip", "photos.zip", "promptccd discover"),
    Mistake(OPEN, "promptccd open my_photos --port 99999", "99999", "promptccd open --help"),
    Mistake(
        OPEN, "promptccd open runs/promptccd-my_photos", "runs/promptccd-my_photos",
        "promptccd open PHOTOGRAPHS --model runs/promptccd-my_photos",
    ),
    Mistake(
        OPEN, "promptccd open my_photos --model photograph --no-browser", "photograph", "photographs"
    ),
    Mistake(GROUP, "promptccd discover photographs fotos/ --out new/", "fotos", "my_photos"),
    Mistake(GROUP, "promptccd discover photographs photos/ --out new/", "photos/", "my_photos"),
    Mistake(GROUP, "promptccd discover photograph my_photos/ --out new/", "photograph", "photographs"),
    Mistake(
        GROUP, "promptccd discover facebook/dinov2-small my_photos/ --out new/", "facebook/dinov2-small",
        "photographs",
    ),
    Mistake(GROUP, "promptccd discover my_photos/ --out new/", "IMAGES", "promptccd discover MODEL IMAGES --out DIR"),
    Mistake(GROUP, "promptccd discover photographs my_photos/", "--out", "--out DIR"),
    Mistake(GROUP, "promptccd discover my_photos/ photographs --out new/", "my_photos/", "promptccd discover --help"),
    Mistake(GROUP_MINE, "promptccd discover photographs nothing --out new/", "nothing", "promptccd discover --help"),
    Mistake(GROUP_MINE, "promptccd discover photographs texts --out new/", "texts", "promptccd train"),
    Mistake(
        GROUP_MINE, "promptccd discover photographs my_photos/ --out my_photos/groups",
        "my_photos/groups", "--out",
    ),
    Mistake(
        GROUP_MINE, "promptccd discover photographs my_photos --out runs/promptccd-my_photos",
        "runs/promptccd-my_photos", "--out",
    ),
    Mistake(GROUP_MINE, "promptccd discover photographs my_photos --out notes.txt", "notes.txt", "folder"),
    Mistake(GROUP_MINE, "promptccd discover photographs my_photos --ot new/", "--ot", "--out"),
    Mistake(
        GROUP_MINE, "promptccd discover photographs my_photos --out new/ --num_categories four",
        "four", "--num_categories",
    ),
    Mistake(
        GROUP_MINE, "promptccd discover photographs my_photos --out new/ --export folder",
        "folder", "promptccd discover --help",
    ),
    Mistake(
        GROUP_MINE, "promptccd discover photographs https://example.org/a.zip --out new/",
        "https://example.org/a.zip", "promptccd discover --help",
    ),
    # Correct groups
    Mistake(NAME, "promptccd categories groups/ rename 99 'night heron'", "99", "promptccd categories --help"),
    Mistake(
        NAME, "promptccd categories groups/ rename 3 night heron",
        "'night', 'heron'", "promptccd categories --help",
    ),
    Mistake(NAME_0, "promptccd categories groups/ rename 'night heron' 0", "night heron", "list"),
    Mistake(NAME_0, "promptccd categories groups/ renam 0 heron", "renam", "promptccd categories --help"),
    Mistake(NAME_0, "promptccd categories group/ rename 0 heron", "group", "groups"),
    Mistake(MERGE, "promptccd categories groups/ merge 1", "['1']", "promptccd categories --help"),
    Mistake(
        MERGE, "promptccd categories my_photos/ merge 1 2",
        "my_photos", "promptccd discover photographs IMAGES --out groups/",
    ),
    Mistake(UNDO, "promptccd categories groups/ undo 3", "3", "promptccd categories --help"),
    Mistake(UNDO, "promptccd categories groups/ undo", "stage 0", "rename"),
    Mistake(LIST, "promptccd categories groups/", "ACTION", "promptccd categories --help"),
    Mistake(
        LIST, "promptccd categories nothing/ list",
        "nothing", "promptccd discover photographs IMAGES --out groups/",
    ),
    Mistake(
        LIST, "promptccd categories runs/promptccd-my_photos list",
        "runs/promptccd-my_photos", "runs/promptccd-my_photos/stage2",
    ),
    Mistake(DEMO, "promptccd demo photograph --no-browser", "photograph", "promptccd demo photographs"),
    Mistake(DEMO, "promptccd demo --port none", "none", "promptccd demo --help"),
    # Train
    Mistake(TRAIN, "promptccd train fotos/ --class_blocks 2 1 1", "fotos/", "my_photos"),
    Mistake(TRAIN, "promptccd train my_fotos --class_blocks 2 1 1", "my_fotos", "my_photos"),
    Mistake(TRAIN, "promptccd train my_photos/ --class_blocks 12 4 4", "sum to 20", "--class_blocks 2 1 1"),
    Mistake(TRAIN, "promptccd train my_photos/", "my_photos/", "--class_blocks 2 1 1"),
    Mistake(STREAMS, "promptccd train my_photos/ --unlabeled texts", "--unlabeled", "--unlabelled"),
    Mistake(STREAMS, "promptccd train my_photos/ --unlabelled nothing", "nothing", "leave it out"),
    Mistake(STREAMS, "promptccd train my_photos/ --unlabelled texts", "texts", "leave it out"),
    Mistake(STREAMS, "promptccd train my_photos/ --unlabelled notes.txt", "notes.txt", "path"),
    Mistake(STREAMS, "promptccd train my_photos/ --unlabelled ./my_photos", "my_photos", "give it once"),
    Mistake(STREAMS, "promptccd train my_photos/ --unlabelled week1/", "week1/", "my_photos"),
    Mistake(STREAMS, "promptccd train my_photos/leopard --unlabelled my_photos/bonsai", "--unlabelled", "sub-folder"),
    Mistake(
        STREAMS, "promptccd train my_photos/ --class_blocks 2 1 1 --unlabelled nothing", "class_blocks [2, 1, 1]",
        "give one or the other",
    ),
    Mistake(
        MORE, "promptccd train runs/promptccd-my_photos --unlabelled nothing", "runs/promptccd-my_photos",
        "promptccd train LABELLED --unlabelled FOLDER",
    ),
    Mistake(
        MORE, "promptccd train runs/promptccd-my_photos/stage1 --unlabelled nothing",
        "runs/promptccd-my_photos/stage1", "give the run",
    ),
    Mistake(
        MORE, "promptccd train runs/promptccd-my_photos --method gcd --unlabelled nothing",
        "runs/promptccd-my_photos", "leave --config and --method out",
    ),
    Mistake(
        TRAIN, "promptccd train my_photos/ --class_blocks 2 1 1 --output_dir runs/new",
        "facebook/dinov2-base", "--backbone",
    ),
    Mistake(TRAIN, "promptccd train", "Which images", "--config promptccd-digits"),
    Mistake(
        TRAIN_MINE, "promptccd train my_photos/ --class_blocks 2 1 1 --backbone photograph --epochs 8",
        "photograph", "photographs",
    ),
    Mistake(
        TRAIN_MINE, "promptccd train my_photos/ --class-blocks 2 1 1 --backbone photographs",
        "--class-blocks", "--class_blocks",
    ),
    Mistake(
        TRAIN_MINE, "promptccd train my_photos/ --class_blocks 4 --backbone photographs",
        "[4]", "promptccd train --help",
    ),
    Mistake(
        TRAIN_MINE, "promptccd train my_photos/ --class_blocks two --backbone photographs",
        "two", "promptccd train --help",
    ),
    Mistake(
        TRAIN_MINE, "promptccd train my_photos/ --class_blocks 2 1 1 --backbone photographs --epochs 0",
        "0", "promptccd train --help",
    ),
    Mistake(
        TRAIN_MINE, "promptccd train my_photos/ --class_blocks 2 1 1 --backbone photographs --epochs 9",
        "9", "--output_dir runs/promptccd-my_photos-2",
    ),
    Mistake(
        TRAIN_MINE, "promptccd train my_photos/leopard --class_blocks 2 1 1 --backbone photographs",
        "category", "promptccd discover photographs FOLDER --out groups/",
    ),
    Mistake(
        TRAIN_MINE, "promptccd train nothing/ --class_blocks 2 1 1 --backbone photographs",
        "nothing", "sub-folder",
    ),
    Mistake(TRAIN_MINE, "promptccd train texts/ --class_blocks 2 1 1 --backbone photographs", "texts", "sub-folder"),
    Mistake(
        TRAIN_MINE, "promptccd train notes.txt --class_blocks 2 1 1 --backbone photographs",
        "notes.txt", "path,label",
    ),
    Mistake(
        TRAIN_MINE, "promptccd train photos.zip --class_blocks 2 1 1 --backbone photographs",
        "photos.zip", "path,label",
    ),
    Mistake(TRAIN_MINE, "promptccd train my_photos --class_blocks 2 1 1 --method prompccd", "prompccd", "promptccd"),
    Mistake(TRAIN_PAPER, "promptccd train --config promptccd-cifar10", "promptccd-cifar10", "promptccd recipes"),
    Mistake(
        TRAIN_PAPER, "promptccd train --config hub_configs/cifar100.yaml",
        "hub_configs/cifar100.yaml", "promptccd recipes",
    ),
    Mistake(TRAIN_PAPER, TRAIN_PAPER, "uoft-cs/cifar100", "promptccd train --config promptccd-digits"),
    Mistake(TRAIN_PAPER, "promptccd train --config promptccd-cifar100 --seed seven", "seven", "promptccd train --help"),
    Mistake(TRAIN_PAPER, "promptccd train promptccd-digits more", "more", "promptccd train --help"),
    # What a model can do afterwards
    Mistake(EVALUATE, EVALUATE, "runs/promptccd-cifar100", "promptccd train"),
    Mistake(
        EVALUATE, "promptccd evaluate runs/promptccd-my_photo",
        "runs/promptccd-my_photo", "runs/promptccd-my_photos",
    ),
    Mistake(EVALUATE, "promptccd evaluate runs/promptccd-my_photos/stage2", "stage2", "runs/promptccd-my_photos"),
    Mistake(EVALUATE, "promptccd evaluate runs", "runs", "promptccd-my_photos"),
    Mistake(EVALUATE, "promptccd evaluate my_photos", "my_photos", "promptccd train"),
    Mistake(EVALUATE, "promptccd evaluate runs/promptccd-my_photos --protocol cac", "cac", "promptccd evaluate --help"),
    Mistake(EVALUATE, "promptccd evaluate runs/half", "runs/half", "promptccd evaluate --help"),
    Mistake(REPORT, REPORT, "runs/promptccd-cifar100", "promptccd train"),
    Mistake(REPORT, "promptccd report runs/promptccd-my_photos", "--out", "--out DIR"),
    Mistake(
        REPORT_MINE, "promptccd report runs/promptccd-my_photos/stage2 --out report/",
        "stage2", "runs/promptccd-my_photos",
    ),
    Mistake(
        REPORT_MINE, "promptccd report runs/promptccd-my_photos --map umap --out report/",
        "umap", "promptccd report --help",
    ),
    Mistake(REPORT_MINE, "promptccd report runs/half --out report/", "runs/half", "promptccd report --help"),
    Mistake(PREDICT, PREDICT, "runs/promptccd-cifar100/stage3", "promptccd-my_photos"),
    Mistake(PREDICT, "promptccd predict runs/promptccd-my_photos/stage2 my_images/", "my_images/", "my_photos"),
    Mistake(
        PREDICT, "promptccd predict photographs my_photos/",
        "photographs", "promptccd discover photographs IMAGES --out groups/",
    ),
    Mistake(PREDICT_NEW, "promptccd predict runs/promptccd-labelld my_photos/", "runs/promptccd-labelld", "--help"),
    Mistake(
        PREDICT_MINE, "promptccd predict runs/promptccd-my_photos/stage3 my_photos/",
        "stage3", "runs/promptccd-my_photos/stage2",
    ),
    Mistake(
        PREDICT_MINE, "promptccd predict my_photos/ runs/promptccd-my_photos/stage2",
        "my_photos/", "promptccd predict --help",
    ),
    Mistake(
        PREDICT_MINE, "promptccd predict runs/promptccd-my_photos/stage2",
        "FOLDER", "promptccd predict MODEL FOLDER",
    ),
    Mistake(
        PREDICT_MINE, "promptccd predict runs/promptccd-my_photos/stage2 nothing",
        "nothing", "promptccd predict --help",
    ),
    Mistake(
        GROUP_TRAINED, "promptccd discover runs/promptccd-my_photos my_photos/ --out found/",
        "runs/promptccd-my_photos", "runs/promptccd-my_photos/stage2",
    ),
    Mistake(
        GROUP_TRAINED, "promptccd discover runs/promptccd-my_photos/stage3 my_photos/ --out found/",
        "stage3", "runs/promptccd-my_photos/stage2",
    ),
    Mistake(
        GROUP_TRAINED, "promptccd discover runs/promptccd-my_photos/stage2 my_photos/ --out groups/",
        "groups", "--out",
    ),
]  # fmt: skip
