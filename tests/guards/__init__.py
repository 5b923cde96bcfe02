"""Guards that are taken out in turn: whoever removes one has to see a test fail.

A ``*.toml`` here lists the guards of one area::

    [[guard]]
    name = "a link under the lock's name is not followed"
    file = "src/promptccd/storage.py"
    old = "os.O_RDWR | os.O_NOFOLLOW"   # occurs once in the file
    new = "os.O_RDWR"
    tests = ["tests/test_storage.py::test_links_are_refused"]
"""

import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Guard:
    """One guard.

    Attributes:
        name: what it keeps from happening.
        file: where it stands, from the root of the project.
        old: its text.
        new: what stands there without it.
        tests: at least one of which fails without it.
    """

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def removed_from(self, text: str) -> str:
        """The file's text without the guard."""
        assert text.count(self.old) == 1, (
            f"{self.name}: its text occurs {text.count(self.old)} times in {self.file}"
        )
        return text.replace(self.old, self.new)


def all_guards() -> list[Guard]:
    """All of them, by area."""
    listed = []
    for path in sorted(Path(__file__).parent.glob("*.toml")):
        for values in tomllib.loads(path.read_text(encoding="utf-8"))["guard"]:
            listed.append(Guard(**{**values, "tests": tuple(values["tests"])}))
    return listed
