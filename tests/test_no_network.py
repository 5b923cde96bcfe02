"""Nothing calls anybody unasked, listens or unpickles, with every library's own switches left as users have them."""

import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
import yaml

from tests.conftest import coloured_images, quick_recipe
from tests.messages import TEXT
from tests.processes import ended

ROOT = Path(__file__).parent.parent
# What the rest of the tests, or whoever runs them, may have set to keep libraries quiet.
SWITCHES = (
    "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE", "HF_HUB_DISABLE_TELEMETRY", "DO_NOT_TRACK",
    "GRADIO_ANALYTICS_ENABLED", "GRADIO_TEMP_DIR", "DISABLE_TELEMETRY", "HTTP_PROXY", "HTTPS_PROXY", "http_proxy",
    "https_proxy", "all_proxy", "ALL_PROXY",
)  # fmt: skip


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory, backbone_folder: Path) -> Path:
    """A folder with a backbone, photographs and a recipe that trains in seconds."""
    folder = tmp_path_factory.mktemp("audited")
    table = coloured_images(5, 12)
    table.save_to_disk(str(folder / "images"))
    (folder / "album").mkdir()
    (folder / "temporary").mkdir()
    for row in range(12):
        table[row]["image"].save(folder / "album" / f"{row}.png")
    (folder / "backbone").symlink_to(backbone_folder)
    recipe = quick_recipe(folder / "images", backbone_folder, folder / "run")
    recipe["training"] |= {"epochs": 1, "refit_every": 1, "prompt_warmup_epochs": 0}
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    return folder


@pytest.mark.slow
@pytest.mark.fault(48)
@pytest.mark.parametrize("part", ["cli", "page"])
def test_nobody_is_called_and_nothing_unpickled(part: str, material: Path) -> None:
    if part == "page":
        pytest.importorskip("gradio", reason="the page needs gradio: pip install 'promptccd[space]'")
    environment = {name: value for name, value in os.environ.items() if name not in SWITCHES}
    folders = {"HOME": "", "HF_HOME": "hf", "XDG_CACHE_HOME": "cache", "TMPDIR": "temporary"}
    folders = {name: str(material / place) for name, place in folders.items()}
    command = [sys.executable, "-m", "tests.audited", part, str(material)]
    done = ended(*command, cwd=ROOT, env=environment | folders, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    assert list((material / "temporary").glob("promptccd-*")) == []  # what visitors gave is gone
    assert json.loads(done.stdout.splitlines()[-1]) == []


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
    lambda: socket.socket().bind(("127.0.0.1", 0)),
):
    try:
        attempt()
        raise SystemExit("not kept back")
    except PermissionError:
        pass
assert len(NOTED) == 5, NOTED
pickle.loads(pickle.dumps(Fraction(1, 2)))
assert len(NOTED) == 6, NOTED
"""
    subprocess.run([sys.executable, "-c", attempts], cwd=ROOT, check=True, timeout=60)


BINDS = """
import os, sys
def watch(event, values):
    if event == "socket.bind" and isinstance(values[1], tuple):
        with open(os.environ["BOUND"], "a") as bound:
            print(values[1], file=bound)
sys.addaudithook(watch)
"""


def ports_of(words: list[str], folder: Path) -> list[str]:
    """What a program of Python and all that it starts bind, and what they are seen to listen on, whoever opened it."""
    (folder / "sitecustomize.py").write_text(BINDS)
    (folder / "bound").write_text("")
    paths = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    environment = os.environ | {"PYTHONPATH": paths, "BOUND": str(folder / "bound")}
    with (folder / "said").open("w") as said:
        process = subprocess.Popen(
            [sys.executable, *words], cwd=ROOT, env=environment, stdout=said, stderr=said
        )
    seen, parent = set[str](), psutil.Process(process.pid)
    while process.poll() is None:
        with suppress(psutil.Error):
            for each in (parent, *parent.children(recursive=True)):
                opened = each.net_connections() if hasattr(each, "net_connections") else each.connections()
                seen |= {str(one.laddr) for one in opened if one.status == psutil.CONN_LISTEN}
        time.sleep(0.05)
    assert process.returncode == 0, (folder / "said").read_text()
    return [*sorted(seen), *(folder / "bound").read_text().splitlines()]


@pytest.mark.slow
def test_cells_in_processes_of_their_own_open_no_port(material: Path, tmp_path: Path) -> None:
    listens = "import socket, time; s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen(); time.sleep(1)"
    started = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {listens!r}])"
    assert len(ports_of(["-c", started], tmp_path)) == 2  # bound, and seen to listen
    sweep = ["sweep", "--config", str(material / "recipe.yaml"), "--seeds", "1", "2", "--jobs", "2"]
    assert ports_of(["-m", "promptccd", *sweep, "--out", str(tmp_path / "sweep")], tmp_path) == []


@pytest.mark.fault(48)
def test_only_the_pipeline_fetches_web_addresses() -> None:
    """The page, the Space and all commands are given files."""
    for path in [*(ROOT / "src").rglob("*.py"), *(ROOT / "spaces").rglob("*.py")]:
        text, name = path.read_text(encoding="utf-8"), path.relative_to(ROOT).as_posix()
        assert (TEXT["image-utils-import-load-image"] in text) == (name == "src/promptccd/pipeline.py"), path
        if "discovery" in name or "spaces" in name:
            assert "promptccd.pipeline" not in text and "CategoryDiscoveryPipeline" not in text, path
