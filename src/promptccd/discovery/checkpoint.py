"""What a session leaves: a checkpoint with its registry, or beside other results the registry alone."""

import hashlib
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from promptccd.clustering import CountEstimate
from promptccd.discovery.embedding import feature_space
from promptccd.discovery.session import DiscoverySession
from promptccd.errors import DataError, RegistryError, RunError
from promptccd.registry import CategoryRegistry, has_registry, load_registry, save_registry
from promptccd.storage import make_folder, make_inside, newer_format, read_file, write_directory, write_file

logger = logging.getLogger(__name__)

FORMAT = 1  # of discovery.json, for the features beside it
MODEL_RECORD, FEATURES, BEFORE = "discovery.json", "features.safetensors", "before"


def save_checkpoint(
    session: DiscoverySession, folder: str | Path, add: Callable[[Path], None] = lambda staging: None
) -> Path:
    """The model with the categories of the session, its view and its registry, whole or not at all.

    ``from_pretrained``, ``promptccd predict`` and ``promptccd discover`` load it.

    Args:
        session: grouped.
        folder: must not exist.
        add: writes more files into the folder it is given.
    """
    session.update_model()
    session.model.config.count_estimate = session.estimate.to_dict() if session.estimate.is_estimate else None

    def fill(staging: Path) -> None:
        session.model.save_pretrained(staging)
        session.view.processor.save_pretrained(staging)
        save_registry(session.registry, staging)
        add(staging)

    make_folder(Path(folder).absolute().parent)
    write_directory(Path(folder), fill, needed=session.model.get_memory_footprint())
    return Path(folder)


def save_progress(session: DiscoverySession, out: Path, came_with: str) -> None:
    """The registry, the one before this stage, the features, and what all was made with.

    The registry is written last: a folder whose writer was killed holds what it held before.

    Args:
        session: its newest images are grouped.
        out: an existing folder.
        came_with: hash of the registry that the model came with.
    """
    record = {
        "format": FORMAT,
        "features": feature_space(session.model, session.view, ""),
        "came_with": came_with,
        "estimate": session.estimate.to_dict(),
        "images": images_hash(session),
    }
    keys = {"keys": json.dumps(session.current.keys)}
    write_file(out / FEATURES, save({"features": session.features.contiguous()}, keys))
    save_registry(session.current.before, make_inside(out, BEFORE))
    write_file(out / MODEL_RECORD, json.dumps(record, indent=1) + "\n")
    save_registry(session.registry, out)


def load_features(folder: Path) -> tuple[list[str], Tensor] | None:
    """Keys and unit features ``(N, D)`` of the newest stage's images, `None` where a discovery left none.

    Raises:
        RunError: the file is damaged.
    """
    if not (folder / FEATURES).is_file():
        return None
    try:
        with safe_open(folder / FEATURES, framework="pt") as file:
            keys, features = json.loads(file.metadata()["keys"]), file.get_tensor("features")
        if features.ndim != 2 or len(keys) != len(features):
            raise ValueError(f"{len(keys)} keys for features of shape {tuple(features.shape)}")
        return keys, features
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise RunError(f"{folder / FEATURES} is damaged ({error}): run promptccd discover again.") from error


@dataclass(frozen=True)
class EarlierDiscovery:
    """What an earlier discovery left in a folder.

    Attributes:
        registry: as it was left, corrections since included.
        before: as it was before the newest stage; `None` if it is lost.
        estimate: of the number of categories.
        images: hash of the newest stage's images, to which the estimate belongs.
    """

    registry: CategoryRegistry
    before: CategoryRegistry | None
    estimate: CountEstimate
    images: str

    def estimate_for(self, session: DiscoverySession) -> CountEstimate:
        """The estimate, where it is one of the session's images; otherwise the number of their categories as it is."""
        ours = self.estimate.is_estimate and self.images == images_hash(session)
        return (
            self.estimate
            if ours or not session.num_categories
            else CountEstimate.known(session.num_categories)
        )


def load_progress(session: DiscoverySession, out: Path) -> EarlierDiscovery | None:
    """What an earlier discovery left in a folder; `None` if there is none.

    Raises:
        RunError: it was made with another model, so that its prototypes mean nothing here, or by a newer version.
        RegistryError: its registry is damaged.
    """
    if not has_registry(out):
        return None
    try:
        record = json.loads(read_file(out / MODEL_RECORD))
        if (newer := newer_format(record.get("format", FORMAT), FORMAT)) is not None:
            raise RunError(f"{out / MODEL_RECORD} {newer}")
        made_with, came_with = record["features"], record["came_with"]
        estimate, images = CountEstimate.from_dict(record["estimate"]), record["images"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, DataError) as error:
        raise RunError(
            f"{out / MODEL_RECORD} is missing or damaged, so there is no telling which model the categories there "
            "belong to: give another --out."
        ) from error
    if made_with != feature_space(session.model, session.view, ""):
        if _was_trained_there(session, out):  # by a process that was killed before it could say so in `out`
            left = load_registry(out)
            before = left if left.stage < session.registry.stage else load_before(out)
            return EarlierDiscovery(session.registry.copy(), before, estimate, images)
        trained = stages_in(out)
        raise RunError(
            f"{out} holds categories that were found with another model. "
            + (f"Go on with the one that was trained there, {trained[-1]}" if trained else "Give that one")
            + ", or give another --out."
        )
    if came_with != session.registry.state_hash():
        logger.warning(
            "The categories of the model are not those that %s was begun with; it goes on with its own. Give another "
            "--out to go on with the model's.",
            out,
        )
    return EarlierDiscovery(load_registry(out), load_before(out), estimate, images)


def stages_in(out: Path) -> list[Path]:
    """Stages that were trained there, oldest first."""
    numbered = {each.name.removeprefix("stage"): each for each in out.glob("stage*") if has_registry(each)}
    return [numbered[number] for number in sorted(filter(str.isdecimal, numbered), key=int)]


def _was_trained_there(session: DiscoverySession, out: Path) -> bool:
    newest = stages_in(out)[-1:]
    return any(load_registry(each).state_hash() == session.registry.state_hash() for each in newest)


def images_hash(session: DiscoverySession) -> str:
    """SHA-256, in hexadecimal, of what the newest images are, whatever their names and order."""
    return hashlib.sha256("".join(sorted(session.current.keys)).encode()).hexdigest()


def load_before(out: Path) -> CategoryRegistry | None:
    """The state before the newest stage; it serves to say what changed, and nothing is lost with it."""
    try:
        return load_registry(out / BEFORE)
    except RegistryError as error:
        logger.warning("What changed since the last stage cannot be said: %s", error)
        return None
