"""Which of several processes this one is, before torch is loaded."""

import os


def is_first_process() -> bool:
    """Whether this is the only process, or the first that ``torchrun`` or ``accelerate launch`` started."""
    return os.environ.get("RANK", "0") == "0" or os.environ.get("WORLD_SIZE", "1") == "1"
