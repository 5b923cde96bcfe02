"""The stage that an adaptation leaves, and how the same command knows it again.

With the stage's folder the training is over; what is beside it is written afterwards. A process that is killed in
between leaves a stage that says which command it comes from, and that command goes on with it.
"""

import json
import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from promptccd.clustering import CountEstimate
from promptccd.discovery.adapt import AdaptationOptions
from promptccd.discovery.checkpoint import (
    EarlierDiscovery,
    images_hash,
    load_before,
    load_progress,
    save_checkpoint,
    stages_in,
)
from promptccd.discovery.embedding import Precision
from promptccd.discovery.feature_cache import feature_space
from promptccd.discovery.session import DiscoverySession
from promptccd.errors import DataError, RunError
from promptccd.registry import CategoryRegistry, has_registry, load_registry
from promptccd.runs.prediction import load_model
from promptccd.storage import write_json

logger = logging.getLogger(__name__)

RECORD = "adaptation.json"


@dataclass(frozen=True)
class AdaptationCommand:
    """What an adaptation was asked to do, and to whom; equal ones give the same bytes.

    Attributes:
        asked: the model, its categories, and the options, as plain values.
        begun_with: hash of the categories that the folder of the results held, or else the model.
    """

    asked: Mapping[str, Any]
    begun_with: str

    @classmethod
    def of(
        cls,
        session: DiscoverySession,
        out: Path,
        options: AdaptationOptions,
        num_categories: int | None,
        precision: Precision,
    ) -> "AdaptationCommand":
        """The command that a fresh session is about to run."""
        came_with = session.registry.state_hash()
        asked = {
            "model": feature_space(session.model, session.view, ""),
            "came_with": came_with,
            "seed": session.seed,
            "num_categories": num_categories,
            "precision": precision,
            **asdict(options),
        }
        return cls(asked, load_registry(out).state_hash() if has_registry(out) else came_with)


@dataclass(frozen=True)
class AdaptedStage:
    """A stage in the folder of the results that a command trained.

    Attributes:
        folder: of the stage.
        images: hash of the images it was trained on.
        begun_with: hash of the categories it started from.
        estimate: of the number of categories, as it was found then.
    """

    folder: Path
    images: str
    begun_with: str
    estimate: CountEstimate

    @classmethod
    def left_by(cls, command: AdaptationCommand, out: Path) -> "AdaptedStage | None":
        """The newest stage of a folder, if this very command has trained it."""
        newest = stages_in(out)[-1:]
        if not newest or not (newest[0] / RECORD).is_file():
            return None
        try:
            record = json.loads((newest[0] / RECORD).read_text(encoding="utf-8"))
            if record["asked"] != command.asked:
                return None
            estimate = CountEstimate.from_dict(record["estimate"])
            return cls(newest[0], record["images"], record["begun_with"], estimate)
        except (ValueError, KeyError, TypeError, DataError) as error:
            raise RunError(f"{newest[0] / RECORD} is damaged: give another --out.") from error

    def take_up(self, session: DiscoverySession, out: Path, command: AdaptationCommand) -> EarlierDiscovery:
        """Let a session go on with the stage instead of training it again.

        Args:
            session: with the model that the stage was trained from; gets that of the stage, and its categories.
            out: the folder of the results.
            command: the command as it finds the folder now.

        Raises:
            RunError: the categories there were changed in between, so that the stage does not know the change.
        """
        logger.info("%s was trained by this very command: its results are written.", self.folder)
        own, came_with = load_registry(self.folder), session.registry
        session.model = load_model(self.folder).to(session.model.device).eval()
        session.registry = own.copy()
        left = load_registry(out) if has_registry(out) else None
        if left is not None and _comes_from(left, own):
            return load_progress(session, out) or EarlierDiscovery(left, None, self.estimate, self.images)
        if command.begun_with != self.begun_with:
            raise RunError(
                f"{self.folder} was trained before the categories in {out} were changed: go on with it as the model "
                "and without --adapt, or give another --out."
            )
        before = left or came_with
        if left is not None and left.stage == own.stage:  # the images were grouped there already
            before = load_before(out) or left
        return EarlierDiscovery(own, before, self.estimate, self.images)

    def require_images(self, session: DiscoverySession) -> None:
        """Refuse other images than the stage was trained on.

        Raises:
            RunError: they are others.
        """
        if images_hash(session) != self.images:
            raise RunError(
                f"{self.folder} was trained already, and on other images: go on with it as the model and without "
                "--adapt, or give another --out."
            )


def save_adapted(session: DiscoverySession, folder: Path, command: AdaptationCommand) -> None:
    """The session as a checkpoint that says which command it comes from, whole or not at all."""
    record = {
        "asked": dict(command.asked),
        "begun_with": command.begun_with,
        "images": images_hash(session),
        "estimate": session.estimate.to_dict(),
    }
    save_checkpoint(session, folder, lambda staging: write_json(staging / RECORD, record))


def _comes_from(registry: CategoryRegistry, earlier: CategoryRegistry) -> bool:
    """Whether all that happened to one for good happened to the other."""
    settled = [(entry.number, entry.kind, entry.what) for entry in earlier.log if entry.patch is None]
    return [(entry.number, entry.kind, entry.what) for entry in registry.log][: len(settled)] == settled
