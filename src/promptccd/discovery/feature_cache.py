"""Features that were computed once, by what they were computed from: image bytes, weights, view, precision.

A cache is a folder of small safetensors files, each written whole or not at all and each with the checksum of its
content. One that is damaged is deleted and computed anew; a cache that cannot be written is done without.
"""

import hashlib
import json
import logging
import os
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from promptccd.data.views import EvaluationView
from promptccd.errors import PromptCCDError
from promptccd.models import CategoryDiscoveryModel
from promptccd.storage import make_folder, make_inside, remove_leftovers, write_file

logger = logging.getLogger(__name__)

MAX_BYTES = 2**30
_DIGEST_BYTES = 32
_SUFFIX = ".safetensors"
_LONGEST_WRITE_S = 3600.0  # what lies under a temporary name for longer belongs to nobody any more
# Of a model's values, what no feature depends on: naming a category must not cost a second forward.
_NOT_IN_FEATURES = ("head.", "prototypes")
_NOT_IN_FEATURES_CONFIG = frozenset(
    {
        "_name_or_path", "architectures", "auto_map", "transformers_version", "stage", "num_known", "category_ids",
        "category_names", "count_estimate", "confidence_temperature", "initializer_range", "projection_hidden_size",
        "projection_bottleneck_size", "projection_output_size",
    }
)  # fmt: skip


def cache_folder() -> Path:
    """Where features are kept unless another folder is given: ``$XDG_CACHE_HOME/promptccd/features``."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "promptccd" / "features"


def model_fingerprint(model: CategoryDiscoveryModel) -> str:
    """SHA-256, in hexadecimal, of all weights and settings that features depend on."""
    digest = hashlib.sha256()
    config = {
        key: value for key, value in model.config.to_dict().items() if key not in _NOT_IN_FEATURES_CONFIG
    }
    digest.update(_json(config))
    for name, tensor in sorted(model.state_dict().items()):
        if not name.startswith(_NOT_IN_FEATURES):
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
            digest.update(_raw(tensor))
    return digest.hexdigest()


def view_fingerprint(view: EvaluationView) -> str:
    """SHA-256, in hexadecimal, of the settings of a view."""
    return hashlib.sha256(_json(view.processor.to_dict())).hexdigest()


class FeatureCache:
    """Features on disk.

    Args:
        folder: where they are kept; created when something is stored.
        max_bytes: the files that were written longest ago are deleted beyond it.
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None, max_bytes: int = MAX_BYTES):
        self.folder = cache_folder() if folder is None else Path(folder)
        self.max_bytes = max_bytes

    def load(self, space: str, hashes: list[str]) -> dict[str, Tensor]:
        """Stored features of some images.

        Args:
            space: what they were computed with, see `feature_space`.
            hashes: content hashes of the images.

        Returns:
            Feature ``(D,)`` float32 by content hash, of those that are stored.
        """
        wanted = set(hashes)
        found: dict[str, Tensor] = {}
        for path in sorted((self.folder / space).glob(f"*{_SUFFIX}")):
            if len(found) == len(wanted):
                break
            if not path.is_file():  # a pipe would be waited for
                continue
            try:
                digests, features = _read(path)
            except (
                Exception
            ) as error:  # safetensors, the disk and we ourselves have a dozen ways to find it damaged
                logger.warning("Cached features in %s are damaged and computed anew (%s).", path.name, error)
                _remove(path)
                continue
            for digest, feature in zip(digests, features, strict=True):
                if digest in wanted:
                    found[digest] = feature.clone()
        return found

    def store(self, space: str, hashes: list[str], features: Tensor) -> None:
        """Keep features; a disk that refuses them is only logged.

        Args:
            space: what they were computed with.
            hashes: content hashes of N images.
            features: ``(N, D)``.
        """
        rows = features.detach().float().cpu().contiguous()
        digests = torch.frombuffer(bytearray(bytes.fromhex("".join(hashes))), dtype=torch.uint8)
        tensors = {"digests": digests.view(-1, _DIGEST_BYTES).clone(), "features": rows}
        checksum = _checksum(**tensors)
        try:
            folder = make_inside(make_folder(self.folder), space)
            remove_leftovers(folder, _LONGEST_WRITE_S)
            write_file(folder / f"{checksum}{_SUFFIX}", save(tensors, {"sha256": checksum}))
            self._shrink()
        except (OSError, PromptCCDError) as error:
            logger.warning("Features could not be cached: %s", error)

    def clear(self) -> None:
        """Delete everything that is stored."""
        for path in self.folder.glob(f"*/*{_SUFFIX}"):
            _remove(path)

    def _shrink(self) -> None:
        stats = [(path.lstat(), path) for path in self.folder.glob(f"*/*{_SUFFIX}")]
        files = [(found.st_mtime_ns, found.st_size, path) for found, path in stats]
        excess = sum(size for _, size, _ in files) - self.max_bytes
        for _, size, path in sorted(files):
            if excess <= 0:
                break
            _remove(path)
            excess -= size


def feature_space(model: CategoryDiscoveryModel, view: EvaluationView, precision: str) -> str:
    """Name of what features are computed with: two equal names mean comparable features."""
    parts = f"1 {model_fingerprint(model)} {view_fingerprint(view)} {precision}"
    return hashlib.sha256(parts.encode()).hexdigest()[:32]


def _read(path: Path) -> tuple[list[str], Tensor]:
    with safe_open(path, framework="pt") as file:
        digests, features = file.get_tensor("digests"), file.get_tensor("features")
        expected = (file.metadata() or {}).get("sha256")
    if _checksum(digests, features) != expected:
        raise ValueError("its checksum differs")
    return [bytes(row).hex() for row in digests.numpy()], features


def _checksum(digests: Tensor, features: Tensor) -> str:
    digest = hashlib.sha256(_raw(digests))
    digest.update(_raw(features))
    return digest.hexdigest()


def _raw(tensor: Tensor) -> memoryview:
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data


def _json(values: Any) -> bytes:
    return json.dumps(values, sort_keys=True, default=str).encode()


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)
