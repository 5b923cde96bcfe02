"""How much memory is left, for what may take gigabytes."""

import os
import re
from pathlib import Path

_CONTAINERS = (  # most that this process and those beside it may take, and what they take
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)


def free_memory() -> int | None:
    """Bytes that can be asked for without driving others out, in a container its own; `None` where nobody tells."""
    free = [each for each in (_of_machine(), *map(_of_container, _CONTAINERS)) if each is not None]
    return min(free, default=None)


def _of_machine() -> int | None:
    try:
        told = re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text())
        if told is not None:
            return int(told[1]) * 1024
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2  # macOS says how much there is
    except (OSError, ValueError):
        return None


def _of_container(files: tuple[str, str]) -> int | None:
    try:
        most, taken = (int(Path(file).read_text()) for file in files)
    except (OSError, ValueError):  # no container, or one without a limit
        return None
    return max(0, most - taken)
