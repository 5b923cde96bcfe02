"""Train a recipe through all its stages: ``accelerate launch train.py --config hub_configs/<recipe>.yaml``.

Every field of a recipe can be given as an option (``--epochs 50``); ``--help`` lists them. ``promptccd train`` is
the same code. On CPUs, ``torchrun --nproc_per_node 2 train.py ...`` starts two processes.
"""

import sys

from promptccd_command import main

if __name__ == "__main__":
    sys.exit(main(["train", *sys.argv[1:]]))
