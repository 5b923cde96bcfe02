"""``python -m promptccd`` is the command ``promptccd``."""

import sys

from promptccd_command import main

if __name__ == "__main__":
    sys.exit(main())
