"""The page of the Space on loopback, over a tiny backbone, with small limits."""

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image

from promptccd.images.limits import MIB, IntakeLimits
from tests.spaces.visitor import Visitor

if TYPE_CHECKING:
    from promptccd.discovery.page.space import Space

LIMITS = IntakeLimits(
    max_files=30, max_file_bytes=MIB, max_total_bytes=2 * MIB, max_pixels=10**6, max_ratio=100
)


def picture(seed: int, size: int = 16) -> bytes:
    """A noisy PNG whose colour is one of three."""
    generator = np.random.default_rng(seed)
    pixels = generator.integers(0, 90, (size, size, 3))
    pixels[..., seed % 3] += 150
    stream = io.BytesIO()
    Image.fromarray(pixels.astype(np.uint8)).save(stream, "PNG")
    return stream.getvalue()


def pictures(first: int = 0) -> list[tuple[str, bytes]]:
    return [(f"{number}.png", picture(number)) for number in range(first, first + 9)]


@dataclass
class Server:
    """The page on loopback.

    Attributes:
        url: its address.
        config: what it tells browsers.
        space: what is served.
    """

    url: str
    config: dict[str, Any]
    space: "Space"

    def visitor(self, *, keeps_cookies: bool = True) -> Visitor:
        """Somebody who has opened the page."""
        visitor = Visitor(self.url, self.config, keeps_cookies=keeps_cookies)
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
        from promptccd.discovery.page.space import Site, Space

        space = Space(str(model), **{"limits": LIMITS, **limits})
        served = space.serve(Site.of_machine())
        with Visitor(served.url) as visitor:
            config = visitor.config
        yield Server(served.url, config, space)
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
