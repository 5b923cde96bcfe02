"""Nothing calls anybody unasked and nothing unpickles, with every library's own switches left as users have them."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from datasets import Image as ImageFeature

from tests.audited import LOOPBACK
from tests.conftest import TINY_HEAD, coloured_images

ROOT = Path(__file__).parent.parent
# What the rest of the tests, or whoever runs them, may have set to keep libraries quiet.
SWITCHES = (
    "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE", "HF_HUB_DISABLE_TELEMETRY", "DO_NOT_TRACK",
    "GRADIO_ANALYTICS_ENABLED", "GRADIO_TEMP_DIR", "DISABLE_TELEMETRY", "HTTP_PROXY", "HTTPS_PROXY", "http_proxy",
    "https_proxy", "all_proxy", "ALL_PROXY",
)  # fmt: skip

Audit = Callable[[str], list[str]]


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory, backbone_folder: Path) -> Audit:
    """Runs a part in a process of its own; what it noted."""
    folder = tmp_path_factory.mktemp("audited")
    table = coloured_images(5, 12)
    table.save_to_disk(str(folder / "images"))
    (folder / "album").mkdir()
    (folder / "temporary").mkdir()
    for row, record in enumerate(table.cast_column("image", ImageFeature(decode=False))):
        if row < 12:
            (folder / "album" / f"{row}.png").write_bytes(record["image"]["bytes"])
    (folder / "backbone").symlink_to(backbone_folder)
    training = {
        "epochs": 1,
        "batch_size": 8,
        "refit_every": 1,
        "prompt_warmup_epochs": 0,
        "replay_samples": 5,
    }
    recipe = {
        "data": {"dataset": str(folder / "images"), "class_blocks": [2, 1, 1, 1]},
        "views": {"image_size": 16, "resize_size": 18},
        "model": {"backbone": str(backbone_folder), **TINY_HEAD},
        "training": {"output_dir": str(folder / "run"), "kmeans_restarts": 2, **training},
    }
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe))

    def run(part: str) -> list[str]:
        environment = {name: value for name, value in os.environ.items() if name not in SWITCHES}
        homes = {"HOME": "", "HF_HOME": "hf", "XDG_CACHE_HOME": "cache", "TMPDIR": "temporary"}
        homes = {name: str(folder / place) for name, place in homes.items()}
        done = subprocess.run(
            [sys.executable, "-m", "tests.audited", part, str(folder)],
            cwd=ROOT, env=environment | homes, capture_output=True, text=True, timeout=240, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
        assert list((folder / "temporary").glob("promptccd-*")) == []  # what visitors gave is gone
        return json.loads(done.stdout.splitlines()[-1])

    return run


@pytest.mark.slow
@pytest.mark.fault(48)
def test_the_command_line(audited: Audit) -> None:
    assert audited("cli") == []


@pytest.mark.slow
@pytest.mark.fault(48)
def test_the_page(audited: Audit) -> None:
    pytest.importorskip("gradio", reason="the page needs gradio: pip install 'promptccd[space]'")
    assert audited("page") == []


def test_the_watch_sees_what_it_should() -> None:
    attempts = """
import pickle, socket, sys
from fractions import Fraction
from tests.audited import NOTED, watch
sys.addaudithook(watch)
for attempt in (
    lambda: socket.create_connection(("203.0.113.1", 443), timeout=1),
    lambda: socket.socket().connect(("203.0.113.1", 443)),
    lambda: socket.socket(type=socket.SOCK_DGRAM).sendto(b"", ("203.0.113.1", 53)),
    lambda: socket.getaddrinfo("huggingface.co", 443),
):
    try:
        attempt()
        raise SystemExit("not kept back")
    except PermissionError:
        pass
assert len(NOTED) == 4, NOTED
pickle.loads(pickle.dumps(Fraction(1, 2)))
assert len(NOTED) == 5, NOTED
"""
    subprocess.run([sys.executable, "-c", attempts], cwd=ROOT, check=True, timeout=60)
    assert "127.0.0.1" in LOOPBACK
