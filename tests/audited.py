"""Run the command line, or the page, while noting whom it calls and what it unpickles: ``python -m tests.audited``.

Arguments: ``cli`` or ``page``, and a folder that `tests.test_no_network` has filled. The last line is JSON.
"""

import json
import signal
import socket
import sys
import threading
import time
import traceback
from pathlib import Path

LOOPBACK = {"127.0.0.1", "::1", "localhost", "", None, b"127.0.0.1", b"localhost"}
NOTED: list[str] = []


def watch(event: str, values: tuple) -> None:
    """Audit hook: note what leaves this machine, and keep it from doing so; note classes that a pickle asks for."""
    if event in ("socket.connect", "socket.sendto", "socket.sendmsg"):
        address = values[1]
        away = isinstance(address, tuple) and address[0] not in LOOPBACK  # a path is a socket of this machine
    elif event == "socket.bind":  # an empty address is all of this machine's
        address = values[1]
        away = isinstance(address, tuple) and (address[0] != "127.0.0.1" or "page" not in sys.argv)
    elif event in ("socket.getaddrinfo", "socket.gethostbyname"):
        address, away = values[0], values[0] not in LOOPBACK
    elif event == "pickle.find_class":
        NOTED.append(f"{event} {values}: {caller()}")
        return
    else:
        return
    if away:
        NOTED.append(f"{event} {address}: {caller()}")
        raise PermissionError(f"{event} {address} leaves this machine, or lets others in")


def caller() -> str:
    """The last frames that are not of this file."""
    frames = [f"{frame.filename}:{frame.lineno}" for frame in traceback.extract_stack()[:-2]]
    return " < ".join(reversed(frames[-12:]))


def cli(folder: Path) -> None:
    """Every command that has no business with the Hub."""
    from promptccd.cli.main import main

    run, images = folder / "run", folder / "album"
    recipe, stage = folder / "recipe.yaml", run / "stage1"
    for command in (
        ["train", "--config", recipe],
        ["evaluate", run],
        ["predict", stage, images],
        ["discover", stage, images, "--out", folder / "found"],
        ["discover", folder / "backbone", images, "--out", folder / "all-new", "--export", "publish"],
        ["categories", folder / "found", "list"],
        ["split", recipe],
        ["parameters", recipe],
        ["explain", stage, images / "0.png", "--out", folder / "explained"],
        ["report", run, "--out", folder / "report"],
        ["verify", run],
        ["audit"],
        ["sweep", "--config", recipe, "--seeds", "1", "--dry-run"],
    ):
        words = [*map(str, command), *(["--json"] if command[0] != "train" else [])]
        assert main(words) == 0, command


def page(folder: Path) -> None:
    """``promptccd demo``, a visitor who does what visitors do, and the end of it."""
    from promptccd.cli.main import main

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    failed: list[BaseException] = []

    def come() -> None:
        try:
            visit(f"http://127.0.0.1:{port}/", folder)
        except BaseException as error:
            failed.append(error)
        finally:
            signal.raise_signal(signal.SIGTERM)

    threading.Thread(target=come).start()
    assert main(["demo", str(folder / "backbone"), "--no-browser", "--port", str(port)]) == 0
    if failed:
        raise failed[0]


def visit(url: str, folder: Path) -> None:
    """Look at the example, upload, group, take away, forget."""
    import httpx

    from tests.spaces.conftest import Visitor

    for _ in range(600):
        try:
            text = httpx.get(url).text
            break
        except httpx.TransportError:
            time.sleep(0.1)
    assert "What is in these photographs?" in text
    pictures = [(path.name, path.read_bytes()) for path in sorted((folder / "album").iterdir())]
    with Visitor(url) as visitor:
        screens = visitor.enter()
        assert visitor.get(f"{screens}api/state").json()["title"] == "An example"
        uploaded = visitor.upload(pictures)
        private = Path(uploaded[0]["path"]).parents[1]
        assert private.stat().st_mode & 0o777 == 0o700
        answer = visitor.call("group", [uploaded])
        assert answer.went_well, answer
        for name in ("images.zip", "model.zip"):
            assert visitor.get(f"{screens}take/{name}").status_code == 200, name
        assert list(private.parent.rglob("*.png"))  # left for the end of the page to delete


if __name__ == "__main__":
    sys.addaudithook(watch)
    {"cli": cli, "page": page}[sys.argv[1]](Path(sys.argv[2]))
    print(json.dumps(NOTED))
