"""Every variant through the same loop: interrupted anywhere, loaded from any stage, evaluated and explained."""

import json
import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModel

from promptccd.errors import InterruptedRunError
from promptccd.evaluation import ContinualScore
from promptccd.runs import RunDirectory, RunEvaluation, explain_image, load_model, load_view, train_run
from promptccd.runs.predict import Explanation
from promptccd.runs.stage import FROZEN, LEARNT
from promptccd.training.recipe import Recipe
from promptccd.training.stage_trainer import StageTrainer
from tests.conftest import coloured_images
from tests.models.finished import write_stage
from tests.processes import in_a_fork
from tests.runs.test_resume import changed, stage_hashes
from tests.test_golden_numbers import PLACED, require_kept

Values = dict[str, dict]
# So narrow a head gives tiny vectors before they are normalised, and any larger step makes them one.
RATE = 1e-5
AFTER_SIX_STEPS = (1, 2)  # of four an epoch; a state is saved after every second

VARIANTS: dict[str, Values] = {
    "gcd": {"model": {"variant": "promptccd-gcd"}},
    "replay": {"model": {"variant": "promptccd-gcd"}, "training": {"exemplars_per_class": 4}},
    "frozen blocks in bfloat16": {"training": {"frozen_precision": "bf16"}},
    "dualprompt": {"model": {"variant": "promptccd-b", "pool": "dualprompt"}},
    "mixture": {"model": {"prompts_at_test": True, "prompts_per_image": 2}},
    "moved prompts": {"model": {**PLACED, "prompts_at_test": True, "prompts_per_image": 1}},
    "one variance": {"model": {"covariance_type": "spherical", "random_prompts": True}},
    "split and merge": {"training": {"category_count": "split_merge"}},
    "parts, auto": {"model": {"variant": "promptccd-pp", "num_parts": "auto", "random_prompts": True}},
    "parts, unknown count": {
        "model": {"variant": "promptccd-pp", "num_parts": 2},
        "training": {"category_count": "split_merge"},
    },
}


@pytest.fixture(params=VARIANTS)
def variant(request: pytest.FixtureRequest, recipe_values: Values) -> Values:
    """A recipe of every variant, in pictures of 16 patches."""
    return merged(recipe_values, VARIANTS[request.param])


def merged(values: Values, changes: Values) -> Values:
    views = {"views": {"image_size": 32, "resize_size": 36}}
    for layer in (views, changes):
        values = {**values, **{section: {**values[section], **part} for section, part in layer.items()}}
    return values


@dataclass
class Signals:
    """Sends this process a signal after every so many steps of training, counted over all sittings."""

    every: int
    numbers: Sequence[signal.Signals]
    steps: int = 0
    sent: int = 0

    def after_a_step(self) -> None:
        self.steps += 1
        if self.steps % self.every == 0:
            signal.raise_signal(self.numbers[self.sent % len(self.numbers)])
            self.sent += 1


def listen(signals: Signals, monkeypatch: pytest.MonkeyPatch) -> None:
    save_where_due = StageTrainer._save_where_due

    def after_a_step(self: StageTrainer, *where: Any) -> None:
        signals.after_a_step()
        save_where_due(self, *where)

    monkeypatch.setattr(StageTrainer, "_save_where_due", after_a_step)


def train_through_signals(recipe: Recipe) -> tuple[ContinualScore, list[int]]:
    """Train until a run is let through; where inside an epoch it was stopped, 0 for the end of one."""
    stops: list[int] = []
    while True:
        try:
            return train_run(recipe), stops
        except InterruptedRunError as error:
            found = re.search(r"saved stage \d+, epoch \d+, step (\d+)", str(error))
            assert found, error
            stops.append(int(found[1]))


@pytest.mark.slow
def test_stages_are_the_same_however_a_run_is_interrupted_and_killed(
    variant: Values, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A kill inside an epoch loses the steps since the last state; a signal there loses none."""
    variant["training"]["learning_rate"] = RATE
    whole = train_run(changed(variant, "training", output_dir=str(tmp_path / "whole")))
    recipe = changed(variant, "training", output_dir=str(tmp_path / "interrupted"))

    def train_until_killed() -> None:
        listen(Signals(every=7, numbers=[signal.SIGKILL]), monkeypatch)
        train_run(recipe)

    assert in_a_fork(train_until_killed) == -signal.SIGKILL
    run = tmp_path / "interrupted"
    loaded = RunDirectory(run).load_state(0)
    assert loaded is not None
    assert (loaded[0].epoch, loaded[0].step) == AFTER_SIX_STEPS
    # Six steps are done; signals stop the run inside epochs, and one of them at the end of a stage.
    listen(Signals(every=7, numbers=[signal.SIGTERM, signal.SIGINT]), monkeypatch)
    again, stops = train_through_signals(recipe)
    assert stops[:2] == [1, 2] and 0 in stops
    assert "has collapsed" not in caplog.text  # else a state that is lost would not show
    assert again.to_dict() == whole.to_dict()
    assert stage_hashes(tmp_path / "interrupted") == stage_hashes(tmp_path / "whole")

    for stage in range(4):  # growing mixtures and part counts included
        folder = tmp_path / "whole" / f"stage{stage}"
        model = AutoModel.from_pretrained(folder)
        model.save_pretrained(tmp_path / f"again{stage}")
        copy = load_file(tmp_path / f"again{stage}" / "model.safetensors")
        kept = load_file(folder / FROZEN) | load_file(folder / LEARNT)
        assert copy.keys() == kept.keys()
        assert all(torch.equal(value, kept[name]) for name, value in copy.items())
        assert model.config.stage == stage
    scored = RunEvaluation(str(tmp_path / "whole")).evaluate().to_dict()["stages"]
    assert scored == whole.to_dict()["stages"]


def test_an_explanation_in_words_numbers_and_colours(tmp_path: Path) -> None:
    """Prompts by how often they acted, then by how well they fit; part 0 is the background and has no colour."""
    prompts, scores = np.array([[[0, 1], [4, 1]], [[7, 0], [4, 1]]]), np.arange(8)[::-1].reshape(2, 2, 2) / 8
    heat, parts = np.array([[[0.0, 0.1], [0.2, 0.3]]] * 2), np.array([[0, 1], [2, 1]])
    grey = np.full((4, 4, 3), 90, np.uint8)
    found = Explanation(grey, 7, "owl", 0.5, heat, parts, prompts, scores, prompts_per_part=3)
    listed = [("part 0, prompt 1", 3, 0.75), ("part 0, prompt 0", 2, 0.875)]
    listed += [("part 1, prompt 1", 2, 0.625), ("part 2, prompt 1", 1, 0.375)]
    assert found.to_dict() == {
        "category": 7, "name": "owl", "confidence": 0.5,
        "prompts": [{"prompt": name, "times": times, "best_score": best} for name, times, best in listed],
        "patches_per_part": {"0": 1, "1": 2, "2": 1},
    }  # fmt: skip
    shown = np.asarray(found.overlay()).astype(int)
    assert shown.shape == (336, 3 * 336, 3)
    assert (shown[:, :336] == 90).all() and (shown[:168, 672:840] == 90).all()
    assert shown[-9, 660].tolist() == pytest.approx([235, 64, 11], abs=2)  # nearly (255, 60, 0)
    assert shown[9, -9].tolist() == pytest.approx([167, 94, 41], abs=2)  # 140 of 255 of (230, 97, 1)
    alike = replace(found, attention=np.ones((2, 2, 2)), parts=None)
    assert (np.asarray(alike.overlay()) == 90).all()
    assert [path.name for path in found.save(tmp_path)] == ["explanation.json", "arrays.npz", "overlay.png"]
    assert json.loads((tmp_path / "explanation.json").read_text()) == found.to_dict()
    assert set(np.load(tmp_path / "arrays.npz")) == {"attention", "parts", "prompts", "scores"}


@pytest.mark.parametrize("method", ["promptccd", "promptccd-b", "promptccd-gcd", "promptccd-pp"])
def test_an_explanation_is_what_it_was(method: str, tmp_path: Path) -> None:
    """Of parts there is one for every patch, with prompts of it."""
    stage = write_stage(method, tmp_path / "stage")
    found = explain_image(load_model(stage), load_view(stage), coloured_images(1, 1, 20)[0]["image"])
    require_kept("explained", method, vars(found))
