"""A server for one project on this machine; a second command finds its address."""

import json
import os
import secrets
import socket
from contextlib import suppress
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from promptccd import systems
from promptccd.discovery.page.routes import build_routes
from promptccd.discovery.page.site import ServingThread, listen
from promptccd.discovery.project import ProjectView
from promptccd.discovery.project.folder import PAGE, PROJECT
from promptccd.disk import make_inside, open_to_change, read_file
from promptccd.errors import DiskError, PromptCCDError, RunError
from promptccd.locks import FolderLock

ADDRESS = "address.json"
_MOST_BYTES = 1000  # of an address
TOKEN_BYTES, TOKEN_LENGTH = 24, 32  # in base64
_WARMS_AFTER_S = 2.0
_ENDS_WITHIN_S = 1


class OpenPage(ServingThread):
    """The page of a project; one process serves it, and any number of windows show it.

    It is at `url`, which holds the token. By default that is where the project was the last time, so that old windows
    and bookmarks find it again; where that port is taken, the first free one from 7860 on. Where nothing can be
    written, the project is there to be looked at; `ProjectView.locked` says why.

    Raises:
        RegistryError: there is no project, or it is damaged.
        RunError: another process serves it.
        OSError: it cannot listen there.
    """

    def __init__(self, out: Path, port: int | None = None):
        self.bench = ProjectView(out)
        self._lock: FolderLock | None = None
        address = out / PROJECT / PAGE / ADDRESS
        try:
            self._lock = FolderLock(make_inside(out / PROJECT, PAGE))
        except DiskError as error:
            self.bench.locked = (
                f"This project can only be looked at, and nothing was changed. {error} To sort it, copy {out} to where "
                "you may write."
            )
        token, last_port = _last_time(address) if self._lock is not None else (_new_token(), None)
        listening = _listen(port, last_port)
        number = listening.getsockname()[1]
        self.url = f"http://127.0.0.1:{number}/?token={token}"
        if self._lock is not None:
            _keep(address, self.url)
        app = build_routes(self.bench, token, f"promptccd_page_{number}")
        super().__init__(app, listening, _ENDS_WITHIN_S, http="h11", lifespan="off")

    def wait(self) -> None:
        """Until it ends by itself, or Ctrl-C; features are read meanwhile."""
        if not self._ended.wait(_WARMS_AFTER_S):  # the first pictures before all else
            with suppress(PromptCCDError):  # the correction that needs them says so
                self.bench.warm()  # so that the first move need not read all features
        while not self._ended.wait(0.5):  # in pieces, so that Ctrl-C is noticed on Windows
            pass

    def close(self) -> None:
        """End it; what was corrected is on the disk already. A second call does nothing."""
        if self.bench.closing:
            return
        self.bench.closing = True
        super().close()
        self.bench.photos.close()
        if self._lock is not None:
            self._lock.close()


def address_of(out: Path) -> str | None:
    """Where the page of a project is, if a process serves it.

    Raises:
        RunError: a link stands in the way, or another computer serves it.
    """
    folder = out / PROJECT / PAGE
    if not (folder / ADDRESS).exists():
        return None
    try:
        probe = FolderLock(folder)
    except RunError:
        found = json.loads(read_file(folder / ADDRESS, _MOST_BYTES))
        if found.get("host") != socket.gethostname():
            raise RunError(
                f"{out} is open on the computer {found.get('host')!r}, by a page that answers there alone. Close it "
                "there first."
            ) from None
        return str(found["url"])
    except DiskError:  # it can only be looked at, which any number of processes may
        return None
    probe.close()  # its server has ended
    return None


def _last_time(path: Path) -> tuple[str, int | None]:
    """Token and port of the last server, or a new token: nobody may choose it who has sent the project.

    What was unpacked or copied is another file than the one that says which it is; one of another person has another
    owner, or can be read by more than that one.
    """
    with suppress(OSError, ValueError, KeyError, TypeError, PromptCCDError):
        seen, kept = path.lstat(), json.loads(read_file(path, _MOST_BYTES))
        address = urlsplit(kept["url"])
        token = parse_qs(address.query)["token"][0]
        is_own = (
            kept["file"] == seen.st_ino and kept["host"] == socket.gethostname() and systems.is_private(seen)
        )
        if is_own and len(token) >= TOKEN_LENGTH:
            return token, address.port
    return _new_token(), None


def _new_token() -> str:
    return secrets.token_urlsafe(TOKEN_BYTES)


def _listen(port: int | None, last: int | None) -> socket.socket:
    if port is None and last is not None:
        with suppress(OSError):
            return listen("127.0.0.1", last)
    return listen("127.0.0.1", port)


def _keep(path: Path, url: str) -> None:
    """Write the address where only this user can read it."""
    path.unlink(missing_ok=True)
    descriptor = open_to_change(path)
    try:
        systems.make_private(descriptor)
        kept = {"url": url, "host": socket.gethostname(), "file": os.fstat(descriptor).st_ino}
        os.write(descriptor, json.dumps(kept).encode())
    finally:
        os.close(descriptor)
