"""A server for one project on this machine; a second command finds its address."""

import json
import os
import secrets
import socket
from contextlib import suppress
from pathlib import Path

from promptccd import system
from promptccd.discovery.project import ProjectView
from promptccd.discovery.project.folder import PAGE, PROJECT
from promptccd.discovery.site import ServingThread, listen
from promptccd.discovery.workbench.routes import build_routes
from promptccd.errors import PromptCCDError, RunError
from promptccd.storage import lock_folder, make_inside, open_to_change, read_file

ADDRESS = "address.json"
_WARMS_AFTER_S = 2.0
_ENDS_WITHIN_S = 1


class OpenPage(ServingThread):
    """The page of a project; one process serves it, and any number of windows show it.

    It is at `url`, which holds the token; by default on the first free port from 7860 on.

    Raises:
        RegistryError: there is no project, or it is damaged.
        RunError: another process serves it.
        OSError: it cannot listen there.
    """

    def __init__(self, out: Path, port: int | None = None):
        self.bench = ProjectView(out)
        self._folder = make_inside(out / PROJECT, PAGE)
        self._lock = lock_folder(self._folder)
        listening = listen("127.0.0.1", port)
        token, number = secrets.token_urlsafe(24), listening.getsockname()[1]
        self.url = f"http://127.0.0.1:{number}/?token={token}"
        _keep(self._folder / ADDRESS, self.url)
        app = build_routes(self.bench, token, f"promptccd_page_{number}")
        super().__init__(app, listening, _ENDS_WITHIN_S, http="h11", lifespan="off")

    def wait(self) -> None:
        """Until it ends by itself, or Ctrl-C; slow work that no window waits for is done meanwhile."""
        if not self._ended.wait(_WARMS_AFTER_S):  # the first pictures before all else
            with suppress(PromptCCDError):  # the correction that needs them says so
                self.bench.warm()  # so that the first move need not read all features
        while not self._ended.wait(0.5):
            with suppress(PromptCCDError):  # a busy project or a full disk: corrections say so
                self.bench.rest()

    def close(self) -> None:
        """End it; what was corrected is on the disk already. A second call does nothing."""
        if self.bench.closing:
            return
        self.bench.closing = True
        super().close()
        self.bench.photos.close()
        (self._folder / ADDRESS).unlink(missing_ok=True)
        os.close(self._lock)


def address_of(out: Path) -> str | None:
    """Where the page of a project is, if a process serves it.

    Raises:
        RunError: a link stands in the way, or another computer serves it.
    """
    folder = out / PROJECT / PAGE
    if not (folder / ADDRESS).exists():
        return None
    try:
        probe = lock_folder(folder)
    except RunError:
        found = json.loads(read_file(folder / ADDRESS, 1000))
        if found.get("host") != socket.gethostname():
            raise RunError(
                f"{out} is open on the computer {found.get('host')!r}, by a page that answers there alone. Close it "
                "there first."
            ) from None
        return str(found["url"])
    os.close(probe)  # its server was killed
    return None


def _keep(path: Path, url: str) -> None:
    """Write the address where only this user can read it."""
    path.unlink(missing_ok=True)
    descriptor = open_to_change(path)
    try:
        system.make_private(descriptor)
        os.write(descriptor, json.dumps({"url": url, "host": socket.gethostname()}).encode())
    finally:
        os.close(descriptor)
