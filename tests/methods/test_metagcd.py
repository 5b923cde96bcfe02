"""MetaGCD's soft neighbours against the obvious loops, its pseudo-sessions, and its meta-training."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from promptccd.data import StageStream
from promptccd.data.randomness import numpy_generator, torch_generator
from promptccd.data.readable import StageImages
from promptccd.methods import Rows, StageContext, metagcd
from promptccd.methods.metagcd import NEIGHBOUR_COSINE, MetaGCDModel, MetaGCDObjective, pseudo_sessions
from promptccd.training.options import TrainingArguments
from promptccd.training.progress import progress_bar
from promptccd.training.stage_trainer import TrainingState
from tests.conftest import TINY_HEAD, fresh
from tests.methods.steps import objective_of
from tests.training.test_stage_trainer import trainer_of


@pytest.fixture
def meta_model(backbone_folder: Path) -> MetaGCDModel:
    model = fresh(MetaGCDModel, backbone_folder, meta_episodes=2, meta_epochs=1, **TINY_HEAD)
    model.head.reset_parameters(torch_generator("test"), std=0.3)
    return model


@torch.no_grad()
def test_soft_neighbours_are_the_obvious_loops(meta_model: MetaGCDModel) -> None:
    """Images 0 and 1 are neighbours by two views alone."""
    width, images = meta_model.config.projection_bottleneck_size, 4
    views = F.normalize(torch.randn(2, images, width, generator=torch_generator("views")), dim=-1)
    noise = torch.randn(width, generator=torch_generator("noise"))
    views[1, 1] = F.normalize(views[0, 0] + 0.02 * noise, dim=-1)
    objective = objective_of(MetaGCDObjective, meta_model, count=4, temperature_supervised=0.3)
    found = objective.losses(SimpleNamespace(labels=None, bottleneck=views))
    cosines = meta_model.head.similarities(views.flatten(0, 1))
    every = [(view, image) for view in range(2) for image in range(images)]
    closest = torch.full((images, images), -1.0)
    for one, (_, image) in enumerate(every):
        for other, (_, another) in enumerate(every):
            closest[image, another] = max(closest[image, another], cosines[one, other])
    pairs = {(one, other) for one in range(images) for other in range(images) if one != other}
    assert {pair for pair in pairs if closest[pair] >= NEIGHBOUR_COSINE} == {(0, 1), (1, 0)}
    inside = [row for row, (_, image) in enumerate(every) if image < 2]
    losses = []
    for row in inside:
        rest = [other for other in inside if other != row]
        chances = (cosines[row, rest] / 0.3).log_softmax(0)
        weights = torch.tensor([float(closest[every[row][1], every[other][1]] - 1) for other in rest]).exp()
        losses.append(-float((weights * chances).mean()))  # each of the rest is a neighbour or a view
    assert float(found["soft_neighbours"]) == pytest.approx(sum(losses) / len(losses), rel=1e-5)
    both = float(found["info_nce"] + found["soft_neighbours"])
    assert float(found["loss"]) == pytest.approx(both / 2, rel=1e-5)
    assert (float(found["with_neighbours"]), float(found["neighbours"])) == (0.5, 0.5)


@pytest.mark.parametrize(
    ("known", "old", "novel"), [(70, 52, 18), (130, 97, 33), (140, 104, 36), (71, 53, 18)]
)
def test_pseudo_sessions_are_those_of_the_table(known: int, old: int, novel: int) -> None:
    labels = np.repeat(np.arange(known), 16)
    sessions = list(pseudo_sessions(labels, 3, numpy_generator("test")))
    assert len(sessions) == 3
    for number, session in enumerate(sessions, 1):
        come = novel // 3 * number
        # A quarter of four images is dealt over the sessions, of twelve that are left a novel class shows six.
        counts = np.bincount(np.bincount(labels[session.images], minlength=known), minlength=7)
        assert counts[6] == come
        assert counts[1] + counts[2] == old
        assert np.bincount(labels[session.held_out]).max() == 4
        assert len(session.held_out) == 4 * (old + come)
        assert not set(session.images) & set(session.held_out)
    last = np.bincount(labels[sessions[-1].images], minlength=known)
    dealt = np.concatenate([each.images[last[labels[each.images]] < 6] for each in sessions])
    assert len(np.unique(dealt)) == len(dealt) == 4 * old, "no image of an old class comes twice"


class Walked(MetaGCDObjective):
    """Goes through its sessions and learns nothing."""

    def _add_gradient(self, loss: torch.Tensor, share: float) -> None:
        pass


def test_meta_training_draws_views_that_no_epoch_of_stage_0_and_no_other_session_had(meta_model) -> None:
    """Also where unlabelled stages are shorter: two episodes of three sessions, each seen once and judged once.

    Sessions adapt to 6, 4 and 6 images and are judged by 5, 6 and 7, in fours; a lone image is left out.
    """
    labels = torch.arange(7).repeat_interleave(5)
    seen: list[int] = []
    sizes: list[list[int]] = []

    def forward_rows(what: str, batches: list[tuple[int, np.ndarray]]) -> Iterator[Rows]:
        seen.extend(dict.fromkeys(epoch for epoch, _ in batches))
        sizes.append([len(batch) for _, batch in batches])
        for epoch, batch in batches:
            rows = torch.randn(2, len(batch), 16, generator=torch_generator("rows", epoch))
            yield Rows(None, F.normalize(rows, dim=-1), labels[batch], torch.from_numpy(batch), epoch)

    arguments = TrainingArguments(epochs=10, discovery_epochs=3, batch_size=4)
    here = SimpleNamespace(is_main_process=False)
    Walked(meta_model, StageContext(None, labels), arguments, here, None, forward_rows).end_stage()
    assert seen == list(range(10, 22))
    assert sizes == 2 * [[4, 2], [4], [4], [4, 2], [4, 2], [4, 3]]


@pytest.mark.slow
def test_meta_training_is_of_the_first_order_and_repeats_itself_after_an_interruption(
    meta_model: MetaGCDModel, stages: StageStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = {name: value.clone() for name, value in meta_model.state_dict().items()}
    images, states = StageImages.read(stages[0], 0, progress_bar), list[TrainingState]()
    context = StageContext(images, torch.from_numpy(stages[0].labels[images.positions]))
    arguments = TrainingArguments(
        epochs=1, batch_size=8, learning_rate=0.01, momentum=0.0, weight_decay=0.0, save_minutes=0
    )

    def again(rate: float, resumed: TrainingState | None = None, **options: int) -> torch.Tensor:
        """What the last block and the head are after stage 0, as one vector."""
        monkeypatch.setattr(metagcd, "META_LEARNING_RATE", rate)
        meta_model.load_state_dict(start)
        vars(meta_model.config).update(options)
        trainer_of(meta_model.train(), context, MetaGCDObjective, arguments, states.append).train(resumed)
        learnt = [each for each in meta_model.parameters() if each.requires_grad]
        return torch.cat([each.detach().flatten().double() for each in learnt])

    without = again(0.0, meta_episodes=0)
    kept = again(0.0, meta_episodes=1)
    assert torch.equal(kept, without), "what a session adapted is put back"
    once, twice = (again(rate) - without for rate in (1e-3, 2e-3))
    assert float(once.abs().max()) > 1e-6
    torch.testing.assert_close(twice, 2 * once, rtol=1e-2, atol=1e-6)
    plain = again(1e-3, meta_epochs=0) - without
    assert not torch.allclose(plain, once, rtol=1e-4, atol=0), "the gradient is of the adapted weights"
    assert torch.equal(again(1e-3, states[-1], meta_epochs=1) - without, once)
