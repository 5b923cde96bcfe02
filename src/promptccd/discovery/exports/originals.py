"""Where an export gets photographs from."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from promptccd.data.images import Decoding


class Originals(Protocol):
    """Gives photographs, as a project does."""

    @property
    def decoding(self) -> Decoding:
        """How they become pixels."""

    def original(self, key: str) -> bytes:
        """The bytes of a file that shows the picture of a key.

        Raises:
            DataError: there is none, or it shows something else than when it was grouped.
        """

    def file_of(self, key: str) -> Path | None:
        """The file that `original` reads, checked in the same way; `None` for one in an archive or a data set.

        Raises:
            DataError: as `original`.
        """

    def path(self, key: str) -> str:
        """Where the file of a picture is or was; empty for a row of a data set, below the archive for a member."""

    def files_of(self, key: str) -> Sequence[tuple[str, str]]:
        """Every file that is there and shows the picture: the folder that a person gave, and the path in it."""
