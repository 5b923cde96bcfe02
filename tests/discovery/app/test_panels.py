"""What panels say, without a browser: names are escaped, models of all kinds are named, whoever waits is not left."""

from pathlib import Path

import pytest

pytest.importorskip("gradio", reason="the page needs gradio: pip install -c constraints.txt gradio")

import gradio as gr

from promptccd.discovery.app.desk import Desk, Updates, counted, errors_shown, percent
from promptccd.discovery.app.page import build_app, title_html
from promptccd.discovery.app.panels.groups import GroupsPanel, _regroup
from promptccd.discovery.app.panels.images import ImagesPanel
from promptccd.discovery.app.panels.take_away import push_groups
from promptccd.discovery.app.screens import group_in, read_into
from promptccd.discovery.app.visits import Visit, Visits
from promptccd.discovery.registry_edits import correct
from promptccd.errors import DataError, HubError
from promptccd.registry import Confirm, Move, Rename
from tests.conftest import coloured_images

HOSTILE = '"><img src=x onerror=alert(1)>{{7*7}}${7*7}'


def pictures_in(folder: Path, count: int, kinds: int = 1) -> list[Path]:
    folder.mkdir()
    for row, record in enumerate(coloured_images(kinds, count, seed=3)):
        record["image"].save(folder / f"{row:02d}.png")
    return sorted(folder.iterdir())


def grouped(visit: Visit, pictures: list[Path], count: int | None = None) -> Visit:
    with visit.lock:
        read_into(visit, pictures, lambda items, total, label: iter(items))
        group_in(visit, lambda items, total, label: iter(items), count)
    return visit


@pytest.fixture
def visit(visits: Visits, tmp_path: Path) -> Visit:
    """A visit over a bare backbone with 20 grouped images of four kinds."""
    return grouped(visits.open(), pictures_in(tmp_path / "twenty", 5, kinds=4), 4)


@pytest.fixture
def one_group(visits: Visits, tmp_path: Path) -> Visit:
    """A visit over a bare backbone with two images in one group."""
    return grouped(visits.open(), pictures_in(tmp_path / "two", 2), 1)


@pytest.fixture
def desk(visits: Visits) -> Desk:
    with gr.Blocks():
        return Desk(visits, gr.State(""))


@pytest.mark.fault(41)
def test_no_name_of_a_visitor_is_in_what_the_page_shows_of_groups(visit: Visit, desk: Desk) -> None:
    """Names are text of the element's, see `tests.discovery.workbench.test_page`."""
    visit.bench.edit(lambda registry: correct(registry, Rename(registry.active[0].id, HOSTILE)))
    with gr.Blocks():
        panel = GroupsPanel(desk)
    shown = panel.show(visit)
    assert "onerror" not in shown[panel.screens]
    assert f'base="desk/{visit.address}/"' in shown[panel.screens]
    assert shown[panel.number] == 4


def test_a_message_is_escaped_and_a_bug_is_not_shown(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(gr.Error) as shown, errors_shown():
        raise DataError("No file <img src=x>: give another.")
    assert shown.value.message == "No file &lt;img src=x&gt;: give another."
    with pytest.raises(gr.Error) as shown, errors_shown():
        raise KeyError("secret")
    assert "secret" not in shown.value.message
    assert "try again" in shown.value.message
    assert "secret" in caplog.text  # for whoever runs the server


def test_the_page_names_model_and_method_and_links_paper_and_cards(
    trained_run: Path, backbone_folder: Path
) -> None:
    of_stage = title_html(str(trained_run / "stage3"), {"SPACE_ID": "team/page"})
    assert "<strong>stage3</strong>: PromptCCD, prompted by the components of a Gaussian mixture" in of_stage
    assert "it knows 5 categories" in of_stage
    assert 'href="https://arxiv.org/abs/2407.19001"' in of_stage
    assert 'href="https://huggingface.co/spaces/team/page/blob/main/README.md"' in of_stage
    assert str(trained_run.parent) not in of_stage  # visitors need not know where it lies
    assert "was taught no categories: every group is a new one" in title_html(str(backbone_folder), {})
    unknown = title_html(f'team/"><img src=x>@{"a1" * 20}', {})  # tests are offline
    assert "<img" not in unknown and "(a1a1a1a1)" in unknown
    assert 'href="https://huggingface.co/team/model"' in title_html("team/model@main", {})


def test_no_login_is_offered_where_none_is_configured(
    backbone_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OAUTH_CLIENT_ID", raising=False)
    page = build_app(str(backbone_folder))
    buttons = [block for block in page.blocks.blocks.values() if isinstance(block, gr.Button)]
    assert "Push" not in {button.value for button in buttons}
    page.close()


def test_a_push_that_fails_says_so_and_leaves_the_groups(visit: Visit) -> None:
    before = visit.bench.registry.state_hash()
    with pytest.raises(HubError, match="Not pushed: .*Try again later"):
        push_groups(visit, "somebody", " my-groups ", "no token", private=True)  # tests are offline
    assert visit.bench.registry.state_hash() == before


def test_without_any_group_nothing_is_pushed_and_grouping_again_says_so(one_group: Visit) -> None:
    category = one_group.bench.registry.active[0].id
    one_group.bench.edit(lambda registry: correct(registry, one_group.bench.dissolve(category)))
    assert one_group.bench.summary()["groups"] == []
    with pytest.raises(DataError, match="No image is in a group"):
        push_groups(one_group, "somebody", "my-groups", "no token", private=True)
    assert "0 categories in all" in _regroup(one_group, None)  # what is no category stays none
    one_group.bench.edit(lambda registry: registry.undo())
    while not one_group.bench.summary()["groups"]:
        one_group.bench.edit(lambda registry: registry.undo())
    assert one_group.bench.summary()["groups"][0]["size"] == 2


def test_who_presses_too_early_is_told(visit: Visit, desk: Desk) -> None:
    with pytest.raises(gr.Error) as shown, desk.at(""):
        pass
    assert "No images yet" in shown.value.message
    visit.busy = True
    with pytest.raises(gr.Error) as shown, desk.at(visit.id):
        pass
    assert "being worked on" in shown.value.message
    visit.busy = False
    desk.visits.forget(visit.id)
    with pytest.raises(gr.Error) as shown, desk.at(visit.id):
        pass
    assert "is over" in shown.value.message


def test_words() -> None:
    assert counted(1, "image") == "1 image"
    assert counted(1200, "category", "categories") == "1,200 categories"
    assert percent(0.796) == "80\N{NO-BREAK SPACE}%"


def test_one_image_alone_is_grouped(visits: Visits, tmp_path: Path) -> None:
    visit = visits.open()
    for stage, path in enumerate(pictures_in(tmp_path / "pictures", 2)):
        grouped(visit, [path])
        told = visit.bench.summary()
        assert (told["stage"], told["photos"]) == (stage, stage + 1)


def test_a_grouping_that_was_cancelled_goes_on_without_another_upload(
    visits: Visits, desk: Desk, tmp_path: Path
) -> None:
    visit = visits.open()
    with gr.Blocks():
        images, groups = ImagesPanel(desk), GroupsPanel(desk)
        images.connect(gr.Tabs(), [groups])
    with visit.lock:
        read_into(visit, pictures_in(tmp_path / "two", 2), lambda items, total, label: iter(items))
    assert list(images._read(visit.id, None, "", None))[-1][images.status] == ""
    *_, last = images._find(visit.id)
    assert visit.address in last[groups.screens]
    with pytest.raises(gr.Error, match="No images yet"):  # they are grouped
        list(images._read(visit.id, None, "", None))


def test_reading_that_was_cancelled_is_not_gone_on_with(one_group: Visit, desk: Desk) -> None:
    """The browser asks for groups whenever reading has ended without an error."""
    with gr.Blocks():
        images, groups = ImagesPanel(desk), GroupsPanel(desk)
        images.connect(gr.Tabs(), [groups])
    bench, before = one_group.bench, one_group.bench.registry.state_hash()
    assert list(images._find(one_group.id)) == [{images.status: ""}]
    assert (one_group.bench, bench.registry.state_hash()) == (bench, before)


def test_a_page_that_cannot_be_shown_is_not_left_waiting(
    one_group: Visit, desk: Desk, tmp_path: Path
) -> None:
    class Broken:
        outputs = ()

        def show(self, visit: Visit) -> Updates:
            raise KeyError("a bug")

    with gr.Blocks():
        images = ImagesPanel(desk)
        images.connect(gr.Tabs(), [Broken()])
    with one_group.lock:
        read_into(one_group, pictures_in(tmp_path / "more", 3), lambda items, total, label: iter(items))
    steps, last = images._find(one_group.id), {}
    with pytest.raises(gr.Error, match="went wrong"):
        for last in steps:  # noqa: B007 - the newest one is looked at below
            pass
    assert last[images.status] == ""
    assert not last[images.cancel].visible


def test_a_message_calls_images_by_their_names(one_group: Visit, desk: Desk) -> None:
    keys = one_group.session.current.keys
    with pytest.raises(gr.Error) as shown, desk.at(one_group.id) as visit:
        session = visit.take_up()
        session.edit(Move(keys, None))
        session.edit(Confirm(keys))
    assert "is in no category" in shown.value.message
    assert one_group.session.file_of(keys[0])[1].name in shown.value.message
    assert keys[0] not in shown.value.message
