"""The page of the Space on loopback, with small limits, and visitors without a browser, who may be up to no good."""

import io
import json
import os
import re
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import numpy as np
import pytest
from PIL import Image

from promptccd.images.limits import MIB, IntakeLimits

if TYPE_CHECKING:
    from promptccd.discovery.page.space import Space

LIMITS = IntakeLimits(
    max_files=30, max_file_bytes=MIB, max_total_bytes=2 * MIB, max_pixels=10**6, max_ratio=100
)


@dataclass
class Answer:
    """What a call came to.

    Attributes:
        error: the message of the failure; none if it went well.
        shown: all outputs as one text.
    """

    error: str | None = None
    shown: str = ""

    @property
    def went_well(self) -> bool:
        return self.error is None


class Visitor(httpx.Client):
    """One session.

    Args:
        url: of the app.
        keeps_cookies: as a browser does that shows the page by itself.
    """

    def __init__(self, url: str, *, keeps_cookies: bool = True):
        super().__init__(base_url=url, timeout=180, trust_env=False, verify=False)  # no TLS
        self.session, self.base = secrets.token_hex(6), ""
        if keeps_cookies:
            self.head("/")
        self.config = self.get("/config").json()

    def __enter__(self) -> "Visitor":
        return self  # which has asked already

    def upload(self, files: Sequence[tuple[str, bytes]]) -> list[dict[str, Any]]:
        """Upload files; what comes back stands for them in a call."""
        answer = self.post("/gradio_api/upload", files=[("files", file) for file in files])
        answer.raise_for_status()
        return [as_file(path) for path in answer.json()]

    def load(self) -> Answer:
        """Open the page."""
        functions = self.config["dependencies"]
        found = next(each for each in functions if "load" in [event for _, event in each["targets"]])
        return self._call(found, [])

    def enter(self) -> str:
        """Open the page; the address of the screens that it shows."""
        return address_in(self.load())

    def give(self, images: Sequence[tuple[str, bytes]]) -> Answer:
        """Upload images, and have them grouped with what was given before."""
        return self.call("group", [self.upload(images)])

    def call(self, name: str, values: Sequence[Any] = ()) -> Answer:
        """Call an end point by name."""
        functions = self.config["dependencies"]
        return self._call(next(each for each in functions if each.get("api_name") == name), values)

    def _call(self, function: dict[str, Any], values: Sequence[Any]) -> Answer:
        body = {"data": list(values), "fn_index": function["id"], "session_hash": self.session}
        if not function["queue"]:
            answer = self.post("/gradio_api/run/predict", json=body)
            return Answer(shown=answer.text) if answer.status_code == 200 else Answer(answer.text)
        joined = self.post("/gradio_api/queue/join", json=body)
        if joined.status_code != 200:
            return Answer(joined.text)
        event = joined.json()["event_id"]
        params = {"session_hash": self.session}
        with self.stream("GET", "/gradio_api/queue/data", params=params) as stream:
            for line in stream.iter_lines():
                message = json.loads(line.removeprefix("data: ")) if line.startswith("data: ") else {}
                if message.get("msg") == "process_completed" and message.get("event_id") == event:
                    output = message["output"]
                    if message["success"]:
                        return Answer(shown=json.dumps(output["data"], ensure_ascii=False))
                    return Answer(output.get("error") or "no message")
        return Answer("the stream ended without an answer")


def address_in(answer: Answer) -> str:
    """Where the screens are that an answer shows."""
    found = re.search(r'base=\\"(desk/[\w-]+/)\\"', answer.shown)
    assert found, answer.error or answer
    return f"/{found[1]}"


def as_file(path: str, **more: Any) -> dict[str, Any]:
    """How a call names a file."""
    return {"path": path, "meta": {"_type": "gradio.FileData"}, **more}


def picture(seed: int, size: int = 16) -> bytes:
    """A noisy PNG whose colour is one of three."""
    generator = np.random.default_rng(seed)
    pixels = generator.integers(0, 90, (size, size, 3))
    pixels[..., seed % 3] += 150
    stream = io.BytesIO()
    Image.fromarray(pixels.astype(np.uint8)).save(stream, "PNG")
    return stream.getvalue()


def pictures(seed: int = 0) -> list[tuple[str, bytes]]:
    return [(f"{number}.png", picture(seed + number)) for number in range(9)]


@dataclass
class Server:
    """The page on loopback.

    Attributes:
        url: its address.
        space: what is served.
    """

    url: str
    space: "Space"

    def visitor(self, *, keeps_cookies: bool = True) -> Visitor:
        """Somebody who has opened the page."""
        visitor = Visitor(self.url, keeps_cookies=keeps_cookies)
        visitor.base = visitor.enter()
        return visitor

    @property
    def files(self) -> list[Path]:
        """Everything that visitors brought or can take; Gradio leaves empty files without a name behind."""
        walk = os.walk(Path(os.environ["GRADIO_TEMP_DIR"]).parent)
        found = (Path(place, name) for place, _, names in walk for name in names)
        return [path for path in found if path.is_file() and path.stat().st_size]


@contextmanager
def serving(model: Path, uploads: Path, **limits: Any) -> Iterator[Server]:
    """The page over a model, with small limits."""
    pytest.importorskip("gradio", reason="the page needs gradio: pip install 'promptccd[space]'")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRADIO_TEMP_DIR", str(uploads / "uploads"))
        patch.delenv("OAUTH_CLIENT_ID", raising=False)
        patch.setattr("gradio.context.Context.id", 0)  # Gradio counts the components of a process
        from promptccd.discovery.page.space import Site, Space

        space = Space(str(model), **{"limits": LIMITS, **limits})
        served = space.serve(Site.of_machine())
        yield Server(served.url, space)
        served.close()
        space.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, backbone_folder: Path) -> Iterator[Server]:
    """The page over a tiny backbone, with small limits."""
    with serving(backbone_folder, tmp_path_factory.mktemp("uploads")) as served:
        yield served


@pytest.fixture
def visitor(server: Server) -> Iterator[Visitor]:
    """Somebody new."""
    with server.visitor() as visitor:
        yield visitor
        visitor.call("forget")
