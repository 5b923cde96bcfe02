"""Ids, names and corrections outlive stages, repetitions and new processes; whatever was done can be taken back."""

import numpy as np
import pytest
import torch
from PIL import Image

from promptccd.discovery import DiscoverySession, save_checkpoint
from promptccd.discovery.exports.rows import assignment_rows
from promptccd.discovery.project import edits, load_registry, save_registry
from promptccd.discovery.report import group_views, write_page
from promptccd.errors import DataError, RegistryError
from promptccd.runs import load_model
from tests.conftest import sum_again
from tests.discovery.conftest import grouped, write_pictures
from tests.messages import TEXT


def largest_new(session: DiscoverySession) -> list[int]:
    """Ids of unsettled categories, largest first."""
    return [view.id for view in group_views(session) if view.origin == "new" and view.size]


def test_the_same_images_again_change_nothing_and_a_number_that_is_given_later_no_estimate(session, albums):
    estimate = grouped(session, albums[0]).estimate
    assert estimate.is_estimate
    state, rows = session.registry.state_hash(), assignment_rows(session)
    grouped(session, albums[0])
    assert session.current.stage == 1
    assert session.registry.state_hash() == state
    assert assignment_rows(session) == rows
    assert session.change.new, "what changed is told from before the stage, not from before the repetition"
    session.group(session.num_categories)
    assert session.estimate == estimate


def test_features_are_of_the_precision_that_is_asked_for(session, albums):
    found = []
    for precision in ("fp32", "bf16"):
        session.precision = precision
        session.read(albums[0])
        found.append(session.current.features)
    assert not torch.equal(*found)


def test_a_named_category_is_fixed_for_the_next_grouping_and_a_saved_session_predicts_like_it(
    session, albums, tmp_path
):
    grouped(session, albums[0])
    new = largest_new(session)[0]
    assert new not in session.grouping.fixed
    edits.rename(session.registry, new, "heron")
    assert new in session.grouping.fixed
    prototype = session.registry.prototypes[session.registry.category(new).prototype_row].copy()
    session.group()
    kept = session.registry.category(new)
    assert kept.name == "heron"
    assert not kept.dormant
    assert np.abs(session.registry.prototypes[kept.prototype_row] - prototype).max() < 1e-5
    with pytest.raises(DataError, match=TEXT["expected-3-num-categories"]):
        session.group(2)
    folder = save_checkpoint(session, tmp_path / "saved")
    model = load_model(folder)
    assert "heron" in model.config.category_names
    assert model.config.stage == 1
    assert model.config.num_known == 2
    placed = session.assignment()
    found = model.assign(placed.features)
    nearest = [int(i) for i in found.category_ids]
    agreeing = np.mean(np.array(nearest) == placed.category_ids.numpy())
    assert agreeing > 0.9  # k-means may stop one image short
    same = torch.tensor(nearest) == placed.category_ids
    # In spreads of a category, by the model in single and by the session in double precision.
    torch.testing.assert_close(found.distances[same], placed.distances[same], rtol=1e-4, atol=1e-5)
    assert load_registry(folder).state_hash() == session.registry.state_hash()


def test_a_named_category_keeps_its_images_when_the_stage_is_grouped_again(session, albums):
    """A Space groups again with a trained model."""
    new, _ = largest_new(grouped(session, albums[2], num_categories=4))
    images = session.registry.members_of(new)
    edits.rename(session.registry, new, "herons of two kinds")
    session.group(7)
    assert set(session.registry.members_of(new)) >= set(images)
    for identity in largest_new(session)[1:]:
        edits.rename(session.registry, identity, f"bird {identity}")
    with pytest.raises(DataError, match=TEXT["all-24-images-are-ignored-named"]):
        session.group(9)


@pytest.mark.fault(28)
@pytest.mark.parametrize("count", [1, 2, 3])
def test_very_few_images(session, tmp_path, count):
    for number in range(count):
        Image.new("RGB", (20, 20), (80 * number, 255, 9)).save(tmp_path / f"{number}.png")
    grouped(session, tmp_path)
    assert len(assignment_rows(session)) == count
    assert sum(view.size for view in group_views(session)) == count
    assert session.estimate.count >= 2


@pytest.mark.fault(29)
def test_more_categories_than_images_and_fewer_than_known_are_refused(session, tmp_path):
    Image.new("RGB", (20, 20), "red").save(tmp_path / "a.png")
    session.read(tmp_path)
    for count in (1, 4):
        with pytest.raises(DataError, match=TEXT["expected-2-num-categories-3-got"].format(count)):
            session.group(count)
    session.group(3)
    assert len(session.registry.active) == 3


@pytest.mark.fault(25)
def test_a_group_like_one_that_is_none_counts_for_no_category(backbone_folder, tmp_path):
    """It was counted, and said to be a category images that are not here."""
    session = DiscoverySession.open(str(backbone_folder))
    write_pictures(tmp_path / "first", [1, 4, 7], per_category=8)
    grouped(session, tmp_path / "first", num_categories=3)
    edits.dissolve(session.registry, session.registry.active[0].id)
    write_pictures(tmp_path / "more", [1, 4, 7], per_category=8, seed=1)
    grouped(session, tmp_path / "more", num_categories=3)
    assert session.change.unassigned
    assert session.estimate.count == session.num_categories == 2


def test_steps_out_of_order_and_nothing_usable_leave_the_session_as_it_was(session, albums, tmp_path):
    (tmp_path / "a.png").write_bytes(b"<html>")
    with pytest.raises(DataError, match=TEXT["holds-no-image-that-can-be-3"]):
        session.read(tmp_path)
    with pytest.raises(DataError, match="No images yet"):
        session.current  # noqa: B018
    session.read(albums[0])
    with pytest.raises(DataError):
        session.read(tmp_path)
    with pytest.raises(DataError, match=TEXT["nothing-is-grouped-yet"]):
        session.assignment()
    session.read(albums[1])  # the first was never grouped: it is as if it had not been read
    assert session.current.stage == 1
    session.group(2)
    before = session.registry.state_hash()
    session.read(albums[0])
    assert (session.current.stage, session.current.before.state_hash()) == (2, before)


def test_without_any_category_images_stand_nowhere(backbone_folder, tmp_path):
    session = DiscoverySession.open(backbone_folder)
    grouped(session, write_pictures(tmp_path / "album", [0]), num_categories=1)
    state = session.registry.state_hash()
    edits.dissolve(session.registry, 0)
    assert not session.assignment().keys
    assert group_views(session) == []
    assert {row.category for row in assignment_rows(session)} == {None}
    page = write_page(session, assignment_rows(session), tmp_path / "page.html").read_text()
    assert TEXT["no-groups-in-8-images"] in page
    assert TEXT["in-no-category-strong-dt-dd"] in page
    with pytest.raises(DataError, match=TEXT["there-are-no-groups"]):  # such a model cannot be loaded
        save_checkpoint(session, tmp_path / "saved")
    session.registry.undo()
    assert session.registry.state_hash() == state
    session.registry.redo()
    grouped(session, write_pictures(tmp_path / "next", [1, 2], seed=6), num_categories=2)
    assert sum(view.size for view in group_views(session)) == len(session.assignment().keys) > 0


def test_a_registry_of_another_width_is_refused(stage0):
    registry = load_registry(stage0)
    registry = type(registry).from_categories([0, 1], ["a", "b"], 2, np.ones((2, 5), np.float32))
    save_registry(registry, stage0)
    sum_again(stage0)
    with pytest.raises(RegistryError, match=TEXT["prototypes-of-5-values-its-model"]):
        DiscoverySession.open(stage0)
