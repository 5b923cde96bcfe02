"""What a launcher of several processes says of this one, before torch is loaded."""

import os


def is_first_process() -> bool:
    """Whether this process speaks for all that ``torchrun`` or ``accelerate launch`` started; a lone one does."""
    return os.environ.get("RANK", "0") == "0" or os.environ.get("WORLD_SIZE", "1") == "1"
