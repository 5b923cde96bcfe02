"""A stage trained on a person's images, from a checkpoint alone: loadable, repeatable, and no worse."""

import hashlib
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from promptccd.discovery import AdaptationOptions, DiscoveryResult, DiscoverySession, adapt, discover
from promptccd.discovery.adapt import _learnt, _require_images, _stage_of, carry_prototypes
from promptccd.discovery.checkpoint import newest_stage_in
from promptccd.discovery.intake.seen import SEEN
from promptccd.discovery.project import CategoryRegistry, edits, save_registry
from promptccd.discovery.project.record import PROJECT
from promptccd.disk import problems_of
from promptccd.errors import ConfigurationError, DataError, InterruptedRunError, RunError
from promptccd.evaluation.accuracy import clustering_accuracy
from promptccd.runs import load_model
from promptccd.training.progress import StopRequest
from tests.discovery.conftest import at_forward, grouped, write_pictures
from tests.discovery.stored import content_of, contents, correct, registry_in
from tests.messages import TEXT
from tests.test_golden_numbers import require_kept

QUICK = AdaptationOptions(epochs=1, batch_size=16)
REGISTRY = f"{PROJECT}/categories.sqlite"


def hash_of(folder: Path) -> str:
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()


def discovered(
    model: Path, album: Path, out: Path, options: AdaptationOptions | None = QUICK, **more: int
) -> DiscoveryResult:
    """A discovery that trains, unless there are no options."""
    return discover(DiscoverySession.open(model), album, out, adaptation=options, **more)


@pytest.fixture(scope="module")
def once(trained_run, albums, tmp_path_factory) -> tuple[Path, Path, Path]:
    """A labelled stage, an album, and what an adaptation to the album leaves."""
    out = tmp_path_factory.mktemp("adapted") / "out"
    discovered(trained_run / "stage0", albums[0], out)
    return trained_run / "stage0", albums[0], out


@pytest.fixture
def out(once, tmp_path) -> Path:
    """A copy of it, to be changed at will."""
    return Path(shutil.copytree(once[2], tmp_path / "out"))


@pytest.mark.slow
def test_an_adaptation_leaves_the_next_stage(trained_run, albums, tmp_path):
    """Of other methods `tests/test_own_method.py` sees that they are trained on."""
    session = DiscoverySession.open(trained_run / "stage0")
    before = {name: value.clone() for name, value in session.model.state_dict().items()}
    result = discover(session, albums[0], tmp_path / "out", adaptation=QUICK, num_categories=4)
    folder = tmp_path / "out/stage1"
    assert problems_of(folder) == []
    model = load_model(folder)
    assert type(model) is type(session.model)
    assert model.config.stage == 1
    after = model.state_dict()
    shared = before.keys() & after.keys() - {"prototypes"}
    trained = [name for name in shared if not torch.equal(before[name], after[name])]
    assert any(name.startswith("backbone") for name in trained)
    assert registry_in(folder).state_hash() == registry_in(tmp_path / "out").state_hash()
    assert [row.category for row in result.rows] == session.assignment().category_ids.tolist()

    again = DiscoverySession.open(folder)  # the stage is the next run's model
    repeated = discover(again, albums[0], tmp_path / "out")
    assert again.current.stage == 1
    assert [row.category for row in repeated.rows] == [row.category for row in result.rows]
    assert discovered(folder, albums[1], tmp_path / "elsewhere", None).change.stage == 2


def test_what_is_set_aside_is_not_learnt_and_its_prototype_moves_along(session, albums):
    grouped(session, albums[0], 4)
    junk = max((each for each in session.registry.active if not each.known), key=lambda each: each.size)
    edits.set_aside(session.registry, junk.id)
    kept = {file.key for file in _learnt(session)}
    assert kept == set(session.current.keys) - set(session.registry.members_of(junk.id))
    assert len(_stage_of(session).sample_ids) == len(kept) < len(session.current.keys)
    before = session.registry.prototypes[session.registry.category(junk.id).prototype_row].copy()
    found = session.assignment()
    carry_prototypes(session.registry, found, found.features + 0.25)
    after = session.registry.prototypes[session.registry.category(junk.id).prototype_row]
    np.testing.assert_allclose(after, before + 0.25, atol=1e-6)
    carry_prototypes(session.registry, found.select(torch.arange(0)), found.features[:0])
    last = session.registry.prototypes[session.registry.category(junk.id).prototype_row]
    assert np.array_equal(last, after)
    edits.move(session.registry, sorted(kept)[4:], junk.id)
    _require_images(session)
    edits.move(session.registry, sorted(kept)[3:], junk.id)
    with pytest.raises(DataError, match=TEXT["at-least-4-images-to-train"]):
        adapt(session, QUICK)


@pytest.mark.slow
def test_training_twice_gives_equal_bytes_and_sane_groups(stage0, albums, tmp_path):
    options = AdaptationOptions(epochs=4)
    for name in ("a", "b"):
        result = discovered(stage0, albums[0], tmp_path / name, options, num_categories=4)
    assert hash_of(tmp_path / "a/stage1") == hash_of(tmp_path / "b/stage1")
    for name in ("assignments.csv", "discovery.html"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert content_of(tmp_path / "a") == content_of(tmp_path / "b")
    truth = np.array([int(row.file[0]) for row in result.rows])
    plain = discovered(stage0, albums[0], tmp_path / "c", None, num_categories=4)
    found = (np.array([row.category for row in each.rows]) for each in (result, plain))
    adapted, before = (clustering_accuracy(truth, each, range(2)).all for each in found)
    assert adapted >= before - 10
    assert adapted > 40


def test_names_and_corrections_survive(session, albums, tmp_path):
    album = Path(shutil.copytree(albums[0], tmp_path / "album"))
    grouped(session, album, num_categories=5)
    new = [each.id for each in session.registry.active if not each.known and each.size > 2]
    edits.rename(session.registry, new[0], "heron")
    moved = session.registry.members_of(new[0])[:2]
    edits.move(session.registry, moved, 0)
    out = session.registry.members_of(new[1])[:1]
    edits.move(session.registry, out, None)  # an image in no category does not shift the others
    features, keys = session.current.features.clone(), session.current.keys
    prototypes = session.registry.prototypes
    write_pictures(album, [6], seed=99)  # come while it trains, and are of the next stage
    before = session.model.head.state_dict()
    adapt(session, QUICK)
    learnt = session.model.head.state_dict()
    moved_by = {name: 1e6 * float((learnt[name] - value).abs().sum()) for name, value in before.items()}
    require_kept("groups", "adapted", moved_by)
    assert not np.array_equal(session.registry.prototypes, prototypes)
    assert session.current.keys == keys and not torch.equal(session.current.features, features)
    session.group(session.num_categories)
    assert session.registry.category(new[0]).name == "heron"
    assert session.registry.category(new[0]).size > 0
    assert [session.registry.members[key] for key in moved] == [0, 0]


@pytest.mark.slow
def test_what_was_trained_is_not_trained_over(once, out, albums):
    stage0, before = once[0], hash_of(out / "stage1")
    longer = AdaptationOptions(epochs=3, batch_size=16)
    for model, album, options in (
        (stage0, 0, longer), (out / "stage1", 0, QUICK), (stage0, 1, QUICK)
    ):  # fmt: skip
        with pytest.raises(RunError, match=TEXT["stage1-was-trained-already-or-give"]):
            discovered(model, albums[album], out, options)
    assert hash_of(out / "stage1") == before
    discovered(out / "stage1", albums[1], out)
    assert registry_in(out / "stage2").stage == 2
    assert hash_of(out / "stage1") == before
    with pytest.raises(RunError, match="stage2"):
        discovered(stage0, albums[0], out)


@pytest.mark.slow
def test_the_same_command_again_trains_nothing_and_keeps_corrections(once, out):
    stage0, album, _ = once
    before, state = contents(out), registry_in(out).state_hash()
    discovered(stage0, album, out)
    assert contents(out) == before
    correct(out, lambda registry: edits.rename(registry, 2, "heron"))
    result = discovered(stage0, album, out)
    assert registry_in(out).category(2).name == "heron"
    assert "heron" in {row.name for row in result.rows}
    assert result.change.renamed == {} and 2 in result.change.new
    correct(out, lambda registry: registry.undo())
    discovered(stage0, album, out)
    assert {**contents(out), REGISTRY: b""} == {**before, REGISTRY: b""}
    assert registry_in(out).state_hash() == state


@pytest.mark.slow
def test_a_correction_that_the_trained_stage_does_not_know_is_not_passed_over(once, tmp_path):
    """Made between a kill and the same command: neither is thrown away in silence."""
    stage0, album, trained = once
    discovered(stage0, album, tmp_path / "spare", None)
    shutil.copytree(trained / "stage1", tmp_path / "spare/stage1")
    correct(tmp_path / "spare", lambda registry: edits.rename(registry, 0, "heron"))
    with pytest.raises(RunError, match=TEXT["were-changed-after-a-stage-was"]):
        discovered(stage0, album, tmp_path / "spare")
    assert registry_in(tmp_path / "spare").category(0).name == "heron"


def test_too_few_images_are_refused_before_they_are_grouped(session, backbone_folder, tmp_path):
    with pytest.raises(ConfigurationError):
        adapt(DiscoverySession.open(backbone_folder), QUICK)
    write_pictures(tmp_path / "few", [0, 1, 2], per_category=1)
    with pytest.raises(DataError, match=TEXT["expected-at-least-4-images-to"]):
        discover(session, tmp_path / "few", tmp_path / "out", num_categories=99, adaptation=QUICK)


def test_the_newest_stage_has_the_greatest_number(tmp_path):
    for name in ("stage2", "stage10", "stages"):
        (tmp_path / name).mkdir()
        save_registry(CategoryRegistry(), tmp_path / name)
    (tmp_path / "stage11").mkdir()  # without categories
    assert newest_stage_in(tmp_path) == tmp_path / "stage10"


def test_an_interrupted_training_leaves_the_session_as_it_was(session, albums):
    grouped(session, albums[0])
    model, state, features = session.model, session.registry.state_hash(), session.current.features
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    stop = StopRequest()

    def send(model: Any, _: Any) -> None:  # the student's first step in training
        stop.received = signal.SIGTERM if model.training else None

    with at_forward(send), pytest.raises(InterruptedRunError, match="Interrupted") as raised:
        adapt(session, QUICK, stop=stop)
    assert raised.value.exit_code == 143
    assert session.model is model
    assert session.current.features is features
    assert session.registry.state_hash() == state
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())


@pytest.mark.slow
@pytest.mark.fault(1)
@pytest.mark.parametrize("grouped_before", [0, 1], ids=["another-stage", "the-same-stage"])
def test_the_same_command_resumes_after_a_stage_of_a_killed_one(stage0, albums, tmp_path, grouped_before):
    out, spare = tmp_path / "out", tmp_path / "spare"
    discovered(stage0, albums[grouped_before], out, None)
    shutil.copytree(out, spare)
    whole = discovered(stage0, albums[1], out)
    newest = next(out.glob("stage*"))
    # As after a kill between the stage and the rest: features were kept before it.
    shutil.copytree(newest, spare / newest.name)
    shutil.copyfile(out / PROJECT / SEEN, spare / PROJECT / SEEN)
    result = discovered(stage0, albums[1], spare)
    assert contents(spare) == contents(out)
    assert result.change == whole.change
