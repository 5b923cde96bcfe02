"""What a session leaves: a checkpoint with its registry, or beside other results the registry alone."""

import json
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from promptccd.clustering import CountEstimate
from promptccd.discovery.exports import make_folder
from promptccd.discovery.feature_cache import feature_space
from promptccd.discovery.session import DiscoverySession
from promptccd.errors import DataError, RunError
from promptccd.registry import CategoryRegistry, has_registry, load_registry, save_registry
from promptccd.training.checkpoints import write_directory, write_file

MODEL_RECORD, FEATURES = "discovery.json", "features.safetensors"


def save_checkpoint(session: DiscoverySession, folder: str | Path) -> Path:
    """The model with the categories of the session, its view and its registry, whole or not at all.

    ``from_pretrained``, ``promptccd predict`` and ``promptccd discover`` load it.
    """
    session.update_model()
    session.model.config.count_estimate = session.estimate.to_dict() if session.estimate.is_estimate else None

    def fill(staging: Path) -> None:
        session.model.save_pretrained(staging)
        session.view.processor.save_pretrained(staging)
        save_registry(session.registry, staging)

    make_folder(Path(folder).absolute().parent)
    write_directory(Path(folder), fill)
    return Path(folder)


def save_progress(session: DiscoverySession, out: Path) -> None:
    """The registry, and which model's features it was made with."""
    record = {
        "features": feature_space(session.model, session.view, ""),
        "stage": session.registry.stage,
        "estimate": session.estimate.to_dict(),
    }
    write_file(out / MODEL_RECORD, json.dumps(record, indent=1) + "\n")
    keys = {"keys": json.dumps(session.current.keys)}
    write_file(out / FEATURES, save({"features": session.features.contiguous()}, keys))
    save_registry(session.registry, out)


def load_features(folder: Path) -> tuple[list[str], Tensor] | None:
    """Keys and unit features ``(N, D)`` of the newest stage's images, `None` where a discovery left none.

    Raises:
        RunError: the file is damaged.
    """
    if not (folder / FEATURES).exists():
        return None
    try:
        with safe_open(folder / FEATURES, framework="pt") as file:
            return json.loads(file.metadata()["keys"]), file.get_tensor("features")
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise RunError(f"{folder / FEATURES} is damaged ({error}): run promptccd discover again.") from error


@dataclass(frozen=True)
class EarlierDiscovery:
    """What an earlier discovery left in a folder."""

    registry: CategoryRegistry
    estimate: CountEstimate


def load_progress(session: DiscoverySession, out: Path) -> EarlierDiscovery | None:
    """The registry that an earlier discovery left in a folder, and its estimate; `None` if there is none.

    Raises:
        RunError: it was made with another model, so that its prototypes mean nothing here.
        RegistryError: it is damaged.
    """
    if not has_registry(out):
        return None
    try:
        record = json.loads((out / MODEL_RECORD).read_text(encoding="utf-8"))
        made_with, estimate = record["features"], CountEstimate.from_dict(record["estimate"])
    except (OSError, ValueError, KeyError, TypeError, DataError):
        made_with, estimate = None, None
    if estimate is None or made_with != feature_space(session.model, session.view, ""):
        raise RunError(
            f"{out} holds categories that were found with another model. Give that model again, or another --out."
        )
    return EarlierDiscovery(load_registry(out), estimate)
