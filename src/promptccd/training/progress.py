"""Progress with an estimate of the time left: bars on a terminal, log lines elsewhere."""

import logging
import time
from collections.abc import Iterable, Iterator
from typing import Any

from huggingface_hub.utils import tqdm

logger = logging.getLogger(__name__)

SECONDS_BETWEEN_LINES = 10.0


def progress_bar(items: Iterable[Any], total: int, label: str) -> Iterator[Any]:
    """Iterate under a bar; silent where stderr is no terminal or ``HF_HUB_DISABLE_PROGRESS_BARS`` is set."""
    return iter(tqdm(items, total=total, desc=label, leave=False, disable=None))


class EpochProgress:
    """A bar over the epochs of a stage and, inside it, one over the steps of the epoch.

    Off a terminal it logs a line every few seconds instead.

    Args:
        stage: index of the stage.
        epochs: epochs of the stage.
        first_epoch: where a resumed stage goes on.
        steps: steps of an epoch.
    """

    def __init__(self, stage: int, epochs: int, first_epoch: int, steps: int):
        self._stage, self._epochs, self._first = stage, epochs, first_epoch
        self._started = self._logged = time.monotonic()
        self._outer = tqdm(
            total=epochs, initial=first_epoch, desc=f"stage {stage}", unit="epoch", position=0, disable=None
        )
        self._inner = tqdm(total=steps, desc="  epoch", unit="step", position=1, leave=False, disable=None)

    def begin_epoch(self, step: int) -> None:
        """Set the inner bar to the step an epoch begins or goes on with."""
        self._inner.reset()
        self._inner.update(step)

    def end_step(self) -> None:
        """One step is done."""
        self._inner.update()

    def end_epoch(self, epoch: int, loss: float) -> None:
        """An epoch is done; `loss` is its mean."""
        self._outer.set_postfix(loss=f"{loss:.3f}")
        self._outer.update()
        done, now = epoch + 1, time.monotonic()
        if self._outer.disable and (done == self._epochs or now - self._logged >= SECONDS_BETWEEN_LINES):
            self._logged = now
            per_epoch = (now - self._started) / (done - self._first)
            logger.info(
                "stage %d: epoch %d/%d, loss %.3f, %.2f s per epoch, %.0f s left",
                self._stage, done, self._epochs, loss, per_epoch, per_epoch * (self._epochs - done),
            )  # fmt: skip

    def close(self) -> None:
        """Take the bars down."""
        self._inner.close()
        self._outer.close()
