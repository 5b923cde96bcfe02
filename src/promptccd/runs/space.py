"""How much disk a training takes, before it begins: what its stages and its resumable states will hold."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from promptccd.errors import PromptCCDError
from promptccd.models import CategoryDiscoveryModel
from promptccd.runs.models import model_on_meta
from promptccd.runs.run_directory import KEPT_STATES, RunDirectory
from promptccd.training.recipe import Recipe


@dataclass(frozen=True)
class TrainingSpace:
    """Bytes of what a training writes; JSON, cards and logs beside it are small change.

    Attributes:
        backbone: of one that is pretrained here; 0 for another.
        stage: of a stage's checkpoint.
        state: of a state inside a stage.
    """

    backbone: int
    stage: int
    state: int

    @classmethod
    def of(cls, recipe: Recipe) -> "TrainingSpace":
        """Counted on models of the first stage, where most is learnt, and of the last; nothing is allocated or loaded.

        Raises:
            ConfigurationError: there is no such model.
        """
        blocks = recipe.data.resolved.class_blocks
        models = [model_on_meta(recipe, stage, sum(blocks[: stage + 1])) for stage in (0, len(blocks) - 1)]
        made_here = 0 if recipe.model.backbone is not None else _bytes_of(models[0].backbone.parameters())
        return cls(made_here, max(map(checkpoint_bytes, models)), max(map(_state_bytes, models)))

    def left(self, run: RunDirectory, num_stages: int) -> int:
        """What is still to be written of a run, and of one that was not begun all of it.

        Stages are never replaced, and of states one more than are kept is there while the oldest goes.
        """
        stages = sum(not run.stage(index).exists() for index in range(num_stages))
        states = max(0, KEPT_STATES + 1 - sum(1 for _ in run.path.glob("resume/stage*"))) if stages else 0
        backbone = 0 if run.backbone.exists() else self.backbone
        return backbone + stages * self.stage + states * self.state


def checkpoint_bytes(model: CategoryDiscoveryModel) -> int:
    """Bytes of a checkpoint's weights."""
    return _bytes_of(model.state_dict().values())


def space_of_all(recipes: Iterable[Recipe]) -> int:
    """What trainings into folders of their own still write; 0 for one that says what is wrong when its turn comes."""
    needed = 0
    for recipe in recipes:
        run = RunDirectory(Path(recipe.training.output_dir))
        try:
            needed += TrainingSpace.of(recipe).left(run, len(recipe.data.resolved.class_blocks))
        except PromptCCDError:
            continue
    return needed


def _state_bytes(model: CategoryDiscoveryModel) -> int:
    """Bytes of what learns, of its momentum, and of what is fitted."""
    learnt = _bytes_of(value for value in model.parameters() if value.requires_grad)
    return checkpoint_bytes(model) - _bytes_of(model.parameters()) + 2 * learnt


def _bytes_of(values: Iterable[Tensor]) -> int:
    return sum(value.numel() * value.element_size() for value in values)
