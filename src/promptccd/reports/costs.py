"""What a run cost: seconds and memory per stage, as its manifest records them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class StageCost:
    """What a stage cost.

    Attributes:
        stage: index of the stage.
        seconds: from reading its images to its checkpoint, which is saved then.
        process_bytes: most memory of the process until the end of the stage; `None` where not recorded.
        accelerator_bytes: most memory of the GPU during the stage; `None` without one, or where not recorded.
    """

    stage: int
    seconds: float
    process_bytes: int | None = None
    accelerator_bytes: int | None = None


def stage_costs(manifest: Mapping[str, Any]) -> list[StageCost]:
    """The costs that a run's manifest records, by stage; stages trained elsewhere have none."""
    memory = manifest.get("peak_memory", {})
    costs = []
    for name, seconds in manifest.get("seconds", {}).items():
        peak = memory.get(name, {})
        stage = int(name.removeprefix("stage"))
        costs.append(StageCost(stage, seconds, peak.get("process"), peak.get("accelerator")))
    return sorted(costs, key=lambda cost: cost.stage)
