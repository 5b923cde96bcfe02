"""A Hub of one's own for each test, for this process and for the ones it starts."""

import os
from collections.abc import Iterator
from pathlib import Path

import datasets.config
import huggingface_hub.constants
import huggingface_hub.file_download
import huggingface_hub.hf_api
import huggingface_hub.utils._http
import pytest
import transformers.utils.hub
from huggingface_hub import HfFileSystem, close_session

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
        constants = {
            "ENDPOINT": hub.url,
            "HUGGINGFACE_CO_URL_TEMPLATE": hub.url + "/{repo_id}/resolve/{revision}/{filename}",
            "HF_URL_HOSTS": huggingface_hub.constants.HF_URL_HOSTS | {"127.0.0.1"},
            "HF_HOME": str(home),
            "HF_HUB_CACHE": str(home / "hub"),
            "HF_ASSETS_CACHE": str(home / "assets"),
            "HF_TOKEN_PATH": str(home / "token"),
            "HF_STORED_TOKENS_PATH": str(home / "stored_tokens"),
            "HF_HUB_OFFLINE": False,
            "HF_HUB_DISABLE_XET": True,
        }
        for name, constant in constants.items():
            monkeypatch.setattr(huggingface_hub.constants, name, constant)
        monkeypatch.setattr(huggingface_hub.hf_api.api, "endpoint", hub.url)
        monkeypatch.setattr(transformers.utils.hub, "_hf_api", None)  # a client it keeps
        monkeypatch.setattr(datasets.config, "HF_ENDPOINT", hub.url)
        monkeypatch.setattr(
            datasets.config, "HUB_DATASETS_URL", hub.url + "/datasets/{repo_id}/resolve/{revision}/{path}"
        )
        monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
        HfFileSystem.clear_instance_cache()
        close_session()
        yield hub
        close_session()
        HfFileSystem.clear_instance_cache()
    assert not hub.errors, hub.errors[0]


class _Waits:
    def __init__(self, waits: list[float]) -> None:
        self.sleep = waits.append


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that huggingface_hub would have slept before retrying; it sleeps none of them."""
    waits: list[float] = []
    for module in (huggingface_hub.utils._http, huggingface_hub.file_download):
        monkeypatch.setattr(module, "time", _Waits(waits))
    return waits
