"""The page of the Space on loopback, over a tiny backbone, with small limits."""

import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image

from promptccd.data.limits import MIB, IntakeLimits
from tests.spaces.visitor import Visitor

if TYPE_CHECKING:
    from promptccd.discovery.app import Page

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
        page: what is served.
    """

    url: str
    config: dict[str, Any]
    page: "Page"

    def visitor(self, *, keeps_cookies: bool = True) -> Visitor:
        return Visitor(self.url, self.config, keeps_cookies=keeps_cookies)

    @property
    def files(self) -> list[Path]:
        """Everything that visitors brought or can take."""
        return [path for path in self.page.visits.store.root.rglob("*") if path.is_file()]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, backbone_folder: Path) -> Iterator[Server]:
    """The page over a tiny backbone, with small limits."""
    pytest.importorskip("gradio", reason="the app needs gradio: pip install 'promptccd[space]'")
    from promptccd.discovery.app import Site, build_app

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRADIO_TEMP_DIR", str(tmp_path_factory.mktemp("uploads")))
        page = build_app(str(backbone_folder), limits=LIMITS)
        served = page.serve(Site.of_machine())
        with Visitor(served.url) as visitor:
            yield Server(served.url, visitor.config, page)
        served.close()
        page.close()


@pytest.fixture
def visitor(server: Server) -> Iterator[Visitor]:
    """Somebody new."""
    with server.visitor() as visitor:
        yield visitor
        visitor.click("pc-forget")
