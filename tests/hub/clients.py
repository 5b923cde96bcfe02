"""What clients that are imported already have to be told so that they use a Hub of one's own."""

from pathlib import Path
from typing import Any

import datasets.config
import huggingface_hub.constants
import huggingface_hub.hf_api
import transformers.utils.hub

from tests.hub.server import Hub


def client_settings(hub: Hub, home: Path) -> list[tuple[Any, str, object]]:
    """Where, under which name, what has to stand.

    Args:
        hub: the Hub to use.
        home: where clients keep what they fetch.
    """
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
    urls = hub.url + "/datasets/{repo_id}/resolve/{revision}/{path}"
    return [
        *((huggingface_hub.constants, name, value) for name, value in constants.items()),
        (huggingface_hub.hf_api.api, "endpoint", hub.url),
        (transformers.utils.hub, "_hf_api", None),  # a client it keeps
        (datasets.config, "HF_ENDPOINT", hub.url),
        (datasets.config, "HUB_DATASETS_URL", urls),
        (datasets.config, "HF_HUB_OFFLINE", False),
        (datasets.config, "HF_DATASETS_CACHE", home / "datasets"),  # where rows are looked for that were kept
    ]
