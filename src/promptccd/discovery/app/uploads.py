"""Uploads, written as they arrive: onto a shelf of the visitor, within what is left, and gone if they break off.

Gradio files uploads by a hash of their content, so that who has a picture could ask whether somebody else gave it.
"""

import asyncio
import contextlib
import json
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from gradio_client.utils import strip_invalid_filename_characters  # type: ignore[import-untyped]
from python_multipart import MultipartParser
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import parse_options_header
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, StreamingResponse

from promptccd.data.limits import MIB, ByteBudget, IntakeLimits
from promptccd.discovery.app.store import BLOCK, FullError, Shelf, Store
from promptccd.discovery.site import App, Message, Receive, header
from promptccd.errors import DataError

ENVELOPE_BYTES = MIB  # what the form adds to the files
KNOWN_S = 3.0  # until an upload that somebody wants to follow has begun
MOST_FOLLOWED = 256  # the newest, over ones included: a small upload may end before it is asked for
EVERY_S = 0.1  # between two looks at an upload


@dataclass
class _Progress:
    """What arrived since somebody last looked: names of files, and how many bytes of each."""

    news: deque[tuple[str, int]] = field(default_factory=lambda: deque(maxlen=1000))
    is_done: bool = False


class Uploads:
    """Answers ``upload`` and ``upload_progress`` as Gradio's own page asks for them; `limits` are on one upload."""

    def __init__(self, store: Store, limits: IntakeLimits):
        self._store, self._limits = store, limits
        self._followed: dict[str, _Progress] = {}

    async def receive(self, scope: Message, receive: Receive, owner: str, name: str = "") -> App:
        """Take an owner's upload in, which can be followed by its name; answers with the paths of the files.

        Raises:
            HTTPException: it is refused.
            FullError: there is no room for it.
        """
        size = self._size_of(scope)
        progress = _Progress()
        if name:
            self._followed[name] = progress
        with contextlib.ExitStack() as undo:
            shelf = self._store.shelf(owner, size)
            undo.callback(self._store.remove, shelf)
            try:
                paths = await self._write(scope, receive, shelf, progress)
                await run_in_threadpool(shelf.settle)
            except FormParserError as error:
                raise HTTPException(400, str(error)) from error
            except (DataError, FullError) as error:
                raise HTTPException(413, str(error)) from error
            except OSError as error:
                text = f"The upload cannot be kept here: {error.strerror}. Try again later."
                raise HTTPException(503, text) from error
            finally:
                progress.is_done = True
                progress.news.clear()
                while len(self._followed) > MOST_FOLLOWED:
                    del self._followed[next(iter(self._followed))]
            undo.pop_all()
        self._store.leave(shelf)
        return JSONResponse([str(path) for path in paths])

    async def follow(self, name: str) -> App:
        """How far the upload of a name is, as events.

        Raises:
            HTTPException: it does not begin soon.
        """
        for _ in range(round(KNOWN_S / EVERY_S)):
            if name in self._followed:
                return StreamingResponse(_events(self._followed[name]), media_type="text/event-stream")
            await asyncio.sleep(EVERY_S)
        raise HTTPException(404, "There is no such upload.")

    def _size_of(self, scope: Message) -> int:
        """Bytes to reserve for an upload, unless it does not say how long it is or is too long."""
        length, most = header(scope, b"content-length"), self._limits.max_total_bytes
        if not length.isdigit():
            raise HTTPException(411, "An upload must say how long it is.")
        if int(length) > most + ENVELOPE_BYTES:
            text = f"This upload has {int(length)} bytes; the limit is {most} in all. Give fewer images at a time."
            raise HTTPException(413, text)
        return int(length) + 3 * BLOCK * self._limits.max_files

    async def _write(self, scope: Message, receive: Receive, shelf: Shelf, progress: _Progress) -> list[Path]:
        kind, options = parse_options_header(header(scope, b"content-type"))
        if kind != b"multipart/form-data" or b"boundary" not in options:
            raise HTTPException(400, "An upload is a form with files.")
        with contextlib.closing(_Form(shelf.folder, self._limits, progress.news.append)) as form:
            parser = MultipartParser(options[b"boundary"], form.callbacks)
            while True:
                message = await receive()
                await run_in_threadpool(parser.write, message.get("body", b""))
                if not message.get("more_body"):  # nor is there more from who has gone
                    break
            if not form.is_complete:
                raise HTTPException(400, "The upload ends in the middle of a file.")
            return form.paths


class _Form:
    """Writes the files of a form, each into a numbered folder; `note` is told names and how many bytes arrived."""

    def __init__(self, folder: Path, limits: IntakeLimits, note: Callable[[tuple[str, int]], None]):
        self._folder, self._limits, self._note = folder, limits, note
        self._budget = ByteBudget(limits, "The upload")
        self._header, self._value, self._disposition = b"", b"", b""
        self._name = ""
        self._file: BinaryIO | None = None
        self.paths: list[Path] = []
        self.is_complete = False
        self.callbacks: Any = {
            "on_header_field": self._header_data,
            "on_header_value": self._value_data,
            "on_header_end": self._header_end,
            "on_headers_finished": self._open,
            "on_part_data": self._data,
            "on_part_end": self.close,
            "on_end": self._end,
        }

    def close(self) -> None:
        """Close the file that is written."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _header_data(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]

    def _value_data(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _header_end(self) -> None:
        if self._header.lower() == b"content-disposition":
            self._disposition = self._value
        self._header = self._value = b""

    def _open(self) -> None:
        _, options = parse_options_header(self._disposition)
        self._disposition = b""
        if b"filename" not in options:
            return  # a field; nobody reads it
        self._limits.require_files(len(self.paths) + 1, "The upload")
        self._name = options[b"filename"].decode(errors="replace")
        path = self._folder / str(len(self.paths)) / _safe(self._name)
        path.parent.mkdir(mode=0o700)
        self._file = path.open("xb")
        self.paths.append(path)

    def _data(self, data: bytes, start: int, end: int) -> None:
        if self._file is not None:
            self._budget.spend(end - start)
            self._file.write(data[start:end])
            self._note((self._name, end - start))

    def _end(self) -> None:
        self.is_complete = True


def _safe(name: str) -> str:
    """The last part of a name, as a file system and an address can have it."""
    last = strip_invalid_filename_characters(name.replace("\\", "/").rpartition("/")[2])
    return last if last.strip(".") else "unnamed"


async def _events(progress: _Progress) -> AsyncIterator[str]:
    while True:
        is_done = progress.is_done
        while progress.news:
            name, size = progress.news.popleft()
            yield _event(msg="update", orig_name=name, chunk_size=size)
        if is_done:
            yield _event(msg="done")
            return
        await asyncio.sleep(EVERY_S)


def _event(**message: Any) -> str:
    return f"data: {json.dumps(message)}\n\n"
