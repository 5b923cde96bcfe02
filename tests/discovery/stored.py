"""Everything that a folder of seen files contains, whatever the order in which it was written."""

import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np

from promptccd.discovery.intake.seen import FEATURES, SEEN


def rows_in(path: Path) -> dict[str, list[tuple[object, ...]]]:
    """Rows of a database by table."""
    with closing(sqlite3.connect(path)) as database:
        names = [name for (name,) in database.execute("select name from sqlite_master where type = 'table'")]
        return {name: sorted(database.execute(f"select * from {name}"), key=repr) for name in names}


def stored_in(folder: Path) -> dict[str, object]:
    """Rows by table, with the features themselves; without the times and links of files, which a new name changes."""
    if not (folder / SEEN).is_file():
        return {}
    floats = np.fromfile(folder / FEATURES, "<f4") if (folder / FEATURES).is_file() else np.empty(0)
    found: dict[str, object] = {**rows_in(folder / SEEN)}
    with closing(sqlite3.connect(folder / SEEN)) as database:
        found["file"] = sorted(database.execute("select path, size, mtime, hash from file"))
        found["feature"] = sorted(
            (name, key, floats[start : start + width].tobytes())
            for name, key, start, width in database.execute(
                "select name, key, start, width from feature join origin on id = space"
            )
        )
    return found


def relocate(folder: Path, old: str, new: str) -> None:
    """Replace a part of the paths of seen files."""
    with closing(sqlite3.connect(folder / SEEN)) as database:
        paths = [path for (path,) in database.execute("select path from file")]
        renamed = [(path.replace(old.encode(), new.encode()), path) for path in paths]
        database.executemany("update file set path = ? where path = ?", renamed)
        database.commit()
