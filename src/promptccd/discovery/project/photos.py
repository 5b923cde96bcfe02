"""The photographs of a project, by row: their names, pictures of them to look at, and their groups."""

import contextlib
import hashlib
import io
import json
import os
import unicodedata
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from promptccd.data.names import display_name, path_parts
from promptccd.data.sources import inside
from promptccd.discovery.intake.seen import SeenFiles, item_name, present, sound_file
from promptccd.discovery.project.observe import NO_CATEGORY
from promptccd.discovery.project.record import PROJECT, read_record
from promptccd.discovery.project.rows import SURE, Rows
from promptccd.errors import DataError
from promptccd.images.decode import Decoding, decode_image
from promptccd.images.files import read_regular_file
from promptccd.images.identity import THUMBNAIL_SIDE, look_at
from promptccd.images.limits import ByteBudget, IntakeLimits, SkippedFileError

CELL_SIDE, LARGE_SIDE = 320, 1600
SIDES = (THUMBNAIL_SIDE, CELL_SIDE, LARGE_SIDE)
IGNORED_IMAGE = -2  # in place of the category, of images that are set aside
# Bits of a photograph: a correction put it there; it came with the newest stage; its file is not where it was; a
# person has looked at it and put or left it there.
PINNED, NEWEST, AWAY, REVIEWED = 1, 2, 4, 8
STATES = {"reviewed": REVIEWED, "pinned": PINNED}
COVERS = 4  # pictures of a group in the list
_SURE = "cast(255 * ifnull(confidence, 1) + 0.5 as integer) + 256 * (stage = (select stage from state))"


class Photos:
    """Photographs in the order of their files, and where each is.

    A file is read only below the folders that the project was made of, never through a link that leads out
    of them, and only if unchanged: a project of a stranger shows nothing else of this machine.

    Args:
        out: folder of the results.
        keys: of the photographs.
        at_hand: gives the bytes of photographs that are being grouped, also of an archive or a data set; else `None`. A
            `DataError` reports a file with unexpected content.

    Attributes:
        decoding: how they were decoded, which tells how they are shown.
        keys: of the photographs, by row.
        names: paths in their folders, for people.
        project: the folder of their cached verdicts.
        here: which of them are where they were ``(N,)`` bool: not deleted, not moved away, their disk plugged in.
    """

    def __init__(
        self, out: Path, keys: Iterable[str], at_hand: Callable[[str], bytes | None] = lambda key: None
    ):
        record, self._at_hand = read_record(out), at_hand
        self.decoding: Decoding = record["decoding"]
        self._roots = [os.path.realpath(source) for source in record["sources"] if os.path.isdir(source)]
        self.project = out / PROJECT
        self._store = SeenFiles(self.project, is_reader=True)
        seen = self._store.pictures()  # without training images of a model
        self._seen = {key: seen[key] for key in keys if key in seen}
        there = present(self._seen.values())
        self._files = {key: each.chosen(there) for key, each in self._seen.items()}
        # By path; photographs without a path last.
        self.keys = sorted(self._files, key=lambda key: (not self.path(key), self.path(key), key))
        self.here = np.array([self._seen[key].is_here(there) for key in self.keys], dtype=bool)
        self.names = [self._name(key) for key in self.keys]
        self.rows = {key: row for row, key in enumerate(self.keys)}
        self.generation = hashlib.sha256("".join(self.keys).encode() + self.here.tobytes()).hexdigest()[:12]

    def _name(self, key: str) -> str:
        path = self.path(key)
        if item := item_name(path):
            return display_name(item)
        root = self._root_of(path)
        name = _below(root, path) if root else path_parts(path)[-1]
        return display_name(name) or key[:12]

    def _root_of(self, path: str) -> str:
        """The folder that a file was found in; empty where that is not there."""
        return next((root for root in self._roots if path.startswith(f"{root.rstrip(os.sep)}{os.sep}")), "")

    def content_hash(self, key: str) -> str:
        """SHA-256 of the file that shows a picture, as it was when it was read."""
        return self._files[key][1]

    def date(self, key: str) -> str:
        """When the camera says that the photograph was taken; empty if it does not."""
        return self._seen[key].dates[self.content_hash(key)]

    def found(self, words: str) -> list[int]:
        """Rows of photographs whose file name contains all of these words."""
        wanted = _plain(words).split()
        plain = map(_plain, self.names)
        return [row for row, name in enumerate(plain) if all(word in name for word in wanted)]

    def picture(self, row: int, side: int) -> bytes | None:
        """A picture without metadata, at most so many pixels a side; the small one where the file is gone."""
        return self.pictures([row], side)[0] or None

    def pictures(self, rows: Sequence[int], side: int) -> list[bytes]:
        """Pictures of several photographs; empty if missing."""
        contents = {row: self.content_hash(self.keys[row]) for row in rows}
        found = dict[str, bytes]()
        if side != LARGE_SIDE:
            found = self._store.small("cell" if side == CELL_SIDE else "thumbnail", contents.values())
        missing = {row: content for row, content in contents.items() if content not in found}
        new = ((content, self._made(self.keys[row], side)) for row, content in missing.items())
        made = {content: picture for content, picture in new if picture}
        if side == CELL_SIDE and made:
            self._store.add_cells(made)
        found |= made
        away = [row for row, content in missing.items() if content not in made]
        if away and side != THUMBNAIL_SIDE:
            small = self.pictures(away, THUMBNAIL_SIDE)
            found |= {contents[row]: each for row, each in zip(away, small, strict=True)}
        return [found.get(contents[row], b"") for row in rows]

    def close(self) -> None:
        """Close the caches of the project."""
        self._store.close()

    def path(self, key: str) -> str:
        """Where the file of a picture is or was; empty for a row of a data set, below the archive for a member."""
        return self._files[key][0]

    def files_of(self, key: str) -> list[tuple[str, str]]:
        """Every file that is there and showed the picture: the folder that it was found in, and its path in there."""
        found = []
        for path, _ in self._seen[key].files:
            root = self._root_of(path)
            with contextlib.suppress(SkippedFileError):
                if root and os.path.isfile(inside(path, self._roots)):
                    found.append((root, _below(root, path)))
        return found

    def copies_of(self, key: str) -> int:
        """How many further files that are there showed the picture."""
        return len(self.files_of(key)[1:])

    def file_of(self, key: str) -> Path | None:
        """The checked file of a picture; `None` in an archive or a data set.

        Raises:
            DataError: as `original`.
        """
        if not os.path.lexists(self.path(key)):
            return None
        try:
            return Path(self._checked(key)[0])
        except DataError:
            self._at_hand(key)  # reads a file with unexpected content again the next time
            raise

    def original(self, key: str) -> bytes:
        """The bytes of the file of a picture.

        Raises:
            DataError: it is not where it was, or shows something else.
        """
        content = self._at_hand(key)
        return self._checked(key)[1] if content is None else content

    def _checked(self, key: str) -> tuple[str, bytes]:
        """Path and bytes of a file that shows the picture still."""
        name, path, roots = self.names[self.rows[key]], self.path(key), self._roots
        sound = sound_file(path)
        try:
            if sound:
                roots = [os.path.realpath(sound.removesuffix(item_name(path)))]
            target = inside(sound or path, roots)
            limits = IntakeLimits.of_person(max_pixels=self.decoding.max_pixels)
            content = read_regular_file(target, ByteBudget(limits, target))
        except (KeyError, ValueError, SkippedFileError) as error:
            raise DataError(
                f"{name!r} is not where it was, or lies in an archive or a data set: put it back, or give the archive "
                "or data set to promptccd discover with --export."
            ) from error
        if not sound and hashlib.sha256(content).hexdigest() not in self._seen[key].dates:
            _, seen = look_at(content, self.decoding, None)  # a changed file may show the same picture
            if seen is None or seen.key != key:
                raise DataError(
                    f"{name!r} shows something else than when it was grouped: run promptccd discover again."
                )
        return target, content

    def _made(self, key: str, side: int) -> bytes | None:
        try:
            content = self.original(key)
        except DataError:
            return None
        image = decode_image(content, self.decoding, enough=2 * side).image
        if image is None:
            return None
        image.thumbnail((side, side))
        buffer = io.BytesIO()
        image.save(buffer, "JPEG" if side > CELL_SIDE else "WEBP", quality=85)
        return buffer.getvalue()


class Columns:
    """A value of every photograph, by row.

    Args:
        registry: the categories.
        by_id: row of every image, see `Rows.rows_by_id`.
        here: which of the photographs are where they were.

    Attributes:
        group: category ``(N,)`` int32, `NO_CATEGORY` or `IGNORED_IMAGE`.
        sure: how sure the last grouping was, in 0..255, ``(N,)`` uint8.
        flags: `PINNED`, `NEWEST`, `AWAY` and `REVIEWED` ``(N,)`` uint8.
    """

    def __init__(self, registry: Rows, by_id: np.ndarray, here: np.ndarray):
        self._by_id, self._here, self._shown = by_id, here, dict[int, dict[str, Any]]()
        self.group, self.sure, self.flags = (np.empty(len(here), each) for each in ("<i4", "u1", "u1"))
        self._read(registry, "true")

    def _read(self, store: Rows, those: str, *given: Any) -> None:
        # Others came since. With a plus, SQLite does not search all of the ids, and finds pins by their index.
        those = f"image where +id < {len(self._by_id)} and {those}"
        ids, group, sure = store.numbers(["id", f"ifnull(category, {NO_CATEGORY})", _SURE], those, *given)
        pinned, reviewed = store.numbers(["id", "reviewed is not null"], f"{those} and pinned", *given)
        group[np.isin(group, store.numbers(["id"], "category where state = 'aside'"))] = IGNORED_IMAGE
        rows, pinned = self._by_id[ids], self._by_id[pinned]
        is_shown = rows >= 0
        rows, group, sure = rows[is_shown], group[is_shown], sure[is_shown]
        pinned, reviewed = pinned[pinned >= 0], reviewed[pinned >= 0]
        self.group[rows], self.sure[rows] = group, sure & 255
        self.flags[rows] = NEWEST * (sure >> 8) + AWAY * ~self._here[rows]
        self.flags[pinned] += PINNED + REVIEWED * reviewed.astype("u1")

    def packed(self) -> bytes:
        """The concatenated arrays, as a window reads them."""
        return self.group.tobytes() + self.sure.tobytes() + self.flags.tobytes()

    def update(self, registry: Rows, ids: Collection[int]) -> list[int]:
        """Read images again of which something has changed; returns the rows of those that are photographs."""
        rows = self._by_id[[*ids]]
        rows = np.sort(rows[rows >= 0])
        before = self.group[rows].tolist()
        self._read(registry, "id in (select value from json_each(?))", json.dumps([*ids]))
        for identity in {*before, *self.group[rows].tolist()}:
            self._shown.pop(identity, None)
        return rows.tolist()

    def shown(self, identity: int) -> dict[str, Any]:
        """Fields of a group, cached until a photograph of it changes.

        Returns:
            ``size``: how many photographs are here; ``unsure``: how many of them the last grouping was unsure
            of, and are unreviewed; ``cover``: rows of the surest.
        """
        if identity not in self._shown:
            rows = np.flatnonzero((self.group == identity) & self._here)
            unsure = (self.sure[rows] < SURE * 255) & (self.flags[rows] & REVIEWED == 0)
            cover = rows[np.argsort(-self.sure[rows].astype(np.int16), kind="stable")[:COVERS]]
            self._shown[identity] = {"size": len(rows), "unsure": int(unsure.sum()), "cover": cover.tolist()}
        return self._shown[identity]


def _below(root: str, path: str) -> str:
    return path[len(root) :].replace(os.sep, "/").lstrip("/")


def _plain(text: str) -> str:
    """Without case, and with accents composed: a Mac writes them as characters of their own, a keyboard does not."""
    return unicodedata.normalize("NFC", text).casefold()
