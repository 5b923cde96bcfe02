"""What happened to a registry, in order, and what was taken back."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from promptccd.registry.tables import Patch

GROUPING = "grouping"  # kind of the entries that no person made
LONGEST_TIME = 40  # characters


@dataclass(frozen=True)
class LogEntry:
    """One thing that happened to a registry.

    Attributes:
        number: counts up and is never used twice.
        kind: kind of the edit (see `EDITS`), or ``"grouping"``.
        what: the edit's own values, or what the grouping brought.
        stage: the newest stage at that time.
        time: when, in ISO 8601, if whoever made the edit said so. It is in no hash.
        patch: values before and after; `None` once it cannot be taken back any more.
    """

    number: int
    kind: str
    what: Mapping[str, Any]
    stage: int
    time: str | None = None
    patch: Patch | None = None


@dataclass
class History:
    """What happened, and what was taken back and can be done again."""

    log: list[LogEntry] = field(default_factory=list)
    redo: list[LogEntry] = field(default_factory=list)
    next_number: int = 0
