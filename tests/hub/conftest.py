"""A Hub of one's own for each test, for this process and for the ones it starts."""

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub.file_download
import huggingface_hub.utils._http
import pytest
from huggingface_hub import HfFileSystem, close_session

from promptccd.runs import RunDirectory
from tests.conftest import write_recipe
from tests.data.layouts import written
from tests.hub.server import TAKEN_OUT, Hub


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """An empty Hub that every client of this process uses too, with a cache of its own."""
    with Hub() as hub:
        home = tmp_path / "hf-home"
        for name in [name for name in os.environ if name.lower().startswith(TAKEN_OUT)]:
            monkeypatch.delenv(name)
        for name, value in hub.environment(home).items():
            monkeypatch.setenv(name, value)
        for place, name, value in hub.client_settings(home):
            monkeypatch.setattr(place, name, value)
        HfFileSystem.clear_instance_cache()
        close_session()
        yield hub
        close_session()
        HfFileSystem.clear_instance_cache()
    assert not hub.errors, hub.errors[0]


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that huggingface_hub would have slept before retrying; it sleeps none of them."""
    waits: list[float] = []
    clock = SimpleNamespace(monotonic=time.monotonic, sleep=waits.append)
    for module in (huggingface_hub.utils._http, huggingface_hub.file_download):
        monkeypatch.setattr(module, "time", clock)
    return waits


@pytest.fixture
def few_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Space gets a package of three files, one by LFS: to send all of ours takes a second."""
    names = ("__init__.py", "models/config.json", "picture.png", ".a/b", "__pycache__/c", "spaces/d")
    package = written(tmp_path / "package", {name: name for name in names})
    monkeypatch.setattr("promptccd.hub.space._PACKAGE", package)


@pytest.fixture
def run(trained_run: Path, tmp_path: Path) -> RunDirectory:
    """A finished run of four stages, to change."""
    return RunDirectory(Path(shutil.copytree(trained_run, tmp_path / "run")))


@pytest.fixture
def recipe(recipe_values: dict, tmp_path: Path) -> Path:
    """A file with a recipe of four stages."""
    return write_recipe(tmp_path / "recipe.json", recipe_values)
