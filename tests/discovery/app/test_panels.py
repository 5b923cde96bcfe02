"""What panels say, without a browser: names are escaped, models of all kinds are explained, undo steps are whole."""

import re
from pathlib import Path

import pytest

pytest.importorskip("gradio", reason="the page needs gradio: pip install -c constraints.txt gradio")

import gradio as gr

from promptccd.discovery.app.desk import Desk, Panel, Updates, errors_shown
from promptccd.discovery.app.html import counted, percent, render
from promptccd.discovery.app.page import build_app, title_html
from promptccd.discovery.app.panels.changes import ChangesPanel
from promptccd.discovery.app.panels.group import GroupPanel, _dissolve, _merge, _move, _why, why_html
from promptccd.discovery.app.panels.groups import NO_CATEGORY, GroupsPanel, _open, _redo, _regroup, _undo
from promptccd.discovery.app.panels.images import ImagesPanel
from promptccd.discovery.app.panels.questions import MOST, NOTHING_LEFT, QuestionsPanel
from promptccd.discovery.app.panels.take_away import push_groups
from promptccd.discovery.app.visits import Visit, Visits
from promptccd.errors import DataError, HubError, PromptCCDError
from promptccd.registry import Confirm, Rename
from tests.conftest import coloured_images

HOSTILE = '"><img src=x onerror=alert(1)>{{7*7}}${7*7}'


@pytest.fixture
def visit(visits: Visits, tmp_path: Path) -> Visit:
    """A visit over a bare backbone with 20 grouped images of four kinds."""
    for row, record in enumerate(coloured_images(4, 5)):
        record["image"].save(tmp_path / f"{row:02d}.png")
    opened = visits.open()
    opened.session.read(sorted(tmp_path.iterdir()))
    opened.session.embed()
    opened.session.group(4)
    return opened


@pytest.fixture
def desk(visits: Visits) -> Desk:
    with gr.Blocks():
        return Desk(visits, gr.State(""))


def pictures_in(folder: Path, count: int) -> list[Path]:
    """Pictures of one kind."""
    folder.mkdir()
    for row, record in enumerate(coloured_images(1, count, seed=3)):
        record["image"].save(folder / f"{row}.png")
    return sorted(folder.iterdir())


@pytest.fixture
def one_group(visits: Visits, tmp_path: Path) -> Visit:
    """A visit over a bare backbone with two images in one group."""
    opened = visits.open()
    opened.session.read(pictures_in(tmp_path / "two", 2))
    opened.session.embed()
    opened.session.group(1)
    return opened


@pytest.mark.fault(41)
def test_names_are_text_in_every_panel(visit: Visit, desk: Desk) -> None:
    opened = visit.session.registry.active[0].id
    visit.session.edit(Rename(opened, HOSTILE))
    with gr.Blocks():
        panels = [GroupsPanel(desk), QuestionsPanel(desk), ChangesPanel(desk), GroupPanel(desk)]
    shown = [
        value
        for panel in panels
        for component, value in panel.show(visit).items()
        if isinstance(component, gr.HTML)
    ]
    visit.opened = opened
    shown += [value for component, value in panels[3].show(visit).items() if isinstance(component, gr.HTML)]
    visit.session.update_model()
    shown.append(why_html(visit.session, visit.session.registry.members_of(opened)[0]))
    together = "".join(shown)
    assert "<img src=x" not in together
    assert together.count("&lt;img src=x onerror=alert(1)&gt;") >= 4


def test_a_step_opened_too_early_stays_as_it_is(visits: Visits) -> None:
    with gr.Blocks() as blocks:
        desk, tab = Desk(visits, gr.State("")), gr.Tab()
        panel = QuestionsPanel(desk)
        desk.on_select(tab, panel)
    (event,) = blocks.fns.values()
    answer = event.fn("")
    assert set(answer) == set(panel.outputs)  # an empty answer would be shown as a value
    assert all(each == gr.skip() for each in answer.values())


def test_a_message_is_escaped_and_a_bug_is_not_shown(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(gr.Error) as shown, errors_shown():
        raise DataError("No file <img src=x>: give another.")
    assert shown.value.message == "No file &lt;img src=x&gt;: give another."
    with pytest.raises(gr.Error) as shown, errors_shown():
        raise KeyError("secret")
    assert "secret" not in shown.value.message
    assert "try again" in shown.value.message
    assert "secret" in caplog.text  # for whoever runs the server


def test_a_model_without_prompts_is_explained(visit: Visit) -> None:
    text = why_html(visit.session, visit.session.current.keys[0])
    assert "no prompts that could fire" in text
    assert "It is nearest to" in text
    assert "does not prove" in text


def test_the_page_names_model_and_method_and_links_paper_and_cards(
    trained_run: Path, backbone_folder: Path
) -> None:
    of_stage = title_html("Title", str(trained_run / "stage3"), {"SPACE_ID": "team/page"})
    assert "<strong>stage3</strong>: PromptCCD, prompted by the components of a Gaussian mixture" in of_stage
    assert "it knows 5 categories" in of_stage
    assert 'href="https://arxiv.org/abs/2407.19001"' in of_stage
    assert 'href="https://huggingface.co/spaces/team/page/blob/main/README.md"' in of_stage
    assert str(trained_run.parent) not in of_stage  # visitors need not know where it lies
    assert "was taught no categories: every group is a new one" in title_html(
        "Title", str(backbone_folder), {}
    )
    unknown = title_html("Title", f'team/"><img src=x>@{"a1" * 20}', {})  # tests are offline
    assert "<img" not in unknown and "(a1a1a1a1)" in unknown
    assert 'href="https://huggingface.co/team/model"' in title_html("Title", "team/model@main", {})


def test_other_groups_are_chosen_by_pictures_the_likest_first(visit: Visit, desk: Desk) -> None:
    with gr.Blocks():
        panel = GroupPanel(desk)
    session = visit.session
    visit.opened = session.registry.active[0].id
    found = session.assignment()
    others = re.findall(r'value="(-?\d+)"><(\w+)', panel.show(visit)[panel.others])
    apart = {row: (found.prototypes[0] - found.prototypes[row]).norm() for row in range(1, 4)}
    assert [(int(value), tag) for value, tag in others] == [
        *((found.ids[row], "img") for row in sorted(apart, key=apart.get)),
        (NO_CATEGORY, "i"),
    ]
    with pytest.raises(DataError, match="No other group is chosen"):
        _merge(visit, "")
    survivor, merged = sorted([visit.opened, int(others[0][0])])
    assert f"(No. {survivor})" in _merge(visit, others[0][0])
    assert session.registry.resolve(merged) == survivor


def test_a_group_that_nobody_offered_is_no_group_to_merge_with(visit: Visit) -> None:
    visit.opened = visit.session.registry.active[0].id
    before = visit.session.registry.state_hash()
    for chosen in ("", None, [1], "x", "1.5", "-1", "99", "9" * 40, "9" * 9000, str(visit.opened)):
        with pytest.raises(PromptCCDError):
            _merge(visit, chosen)
    assert visit.session.registry.state_hash() == before


def test_parts_are_explained() -> None:
    prompts = [{"prompt": "part 2, prompt 1", "times": 3, "best_score": 0.5}]
    text = render(
        "why.html.jinja", name="a.png", picture="data:,", has_parts=True, prompts=prompts, stands=None
    )
    assert "then the parts it made of it" in text
    assert "part 2, prompt 1 (3 patches)" in text
    assert "It is in no group" in text


def test_one_undo_takes_an_answer_back_with_its_grouping(visit: Visit, desk: Desk) -> None:
    with gr.Blocks():
        panel = QuestionsPanel(desk)
    registry = visit.session.registry
    changed = None
    while changed is None and len(visit.asked) < MOST:  # until an answer moves an image
        before, entries = registry.state_hash(), len(registry.log)
        pair = panel.show(visit)[panel.pair]
        panel._answer(visit, pair, True)
        if len(registry.log) == entries + 2:
            changed = registry.state_hash()
    assert changed is not None
    assert _undo(visit) == "Undone: answer."
    assert registry.state_hash() == before
    assert _redo(visit) == "Redone: answer."
    assert registry.state_hash() == changed


def test_an_answer_to_another_question_is_not_taken(visit: Visit, desk: Desk) -> None:
    with gr.Blocks():
        panel = QuestionsPanel(desk)
    before = visit.session.registry.state_hash()
    first, second = visit.session.current.keys[:2]
    for pair in ("", "no such pair", f"{second} {second}", f"{first} x"):
        assert panel._answer(visit, pair, True) is None
    assert visit.session.registry.state_hash() == before


def test_at_most_ten_questions(visit: Visit, desk: Desk) -> None:
    with gr.Blocks():
        panel = QuestionsPanel(desk)
    for number in range(MOST):
        pair = panel.show(visit)[panel.pair]
        if not pair:
            pytest.fail(f"Only {number} questions about 20 images.")
        panel._answer(visit, pair, None)
    assert panel.show(visit)[panel.pair] == ""
    assert "That was the last one" in panel.show(visit)[panel.question]


def test_no_login_is_offered_where_none_is_configured(
    backbone_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OAUTH_CLIENT_ID", raising=False)
    page = build_app(str(backbone_folder))
    buttons = [block for block in page.blocks.blocks.values() if isinstance(block, gr.Button)]
    assert "Push" not in {button.value for button in buttons}
    page.close()


def test_a_push_that_fails_says_so_and_leaves_the_groups(visit: Visit) -> None:
    before = visit.session.registry.state_hash()
    with pytest.raises(HubError, match="Not pushed: .*Try again later"):
        push_groups(visit, "somebody", " my-groups ", "no token", private=True)  # tests are offline
    assert visit.session.registry.state_hash() == before


def test_who_presses_too_early_is_told(visit: Visit, desk: Desk) -> None:
    with pytest.raises(gr.Error) as shown:
        desk.run("", lambda visit: None, [])
    assert "No images yet" in shown.value.message
    visit.busy = True
    with pytest.raises(gr.Error) as shown:
        desk.run(visit.id, lambda visit: None, [])
    assert "being worked on" in shown.value.message
    visit.busy = False
    desk.visits.forget(visit.id)
    with pytest.raises(gr.Error) as shown:
        desk.run(visit.id, lambda visit: None, [])
    assert "is over" in shown.value.message


def test_words() -> None:
    assert counted(1, "image") == "1 image"
    assert counted(1200, "category", "categories") == "1,200 categories"
    assert percent(0.796) == "80\N{NO-BREAK SPACE}%"


def test_one_image_alone_is_grouped(visits: Visits, desk: Desk, tmp_path: Path) -> None:
    visit = visits.open()
    with gr.Blocks():
        images, questions = ImagesPanel(desk), QuestionsPanel(desk)
        images.connect(gr.Tabs(), [GroupsPanel(desk), questions])
    for stage, path in enumerate(pictures_in(tmp_path / "pictures", 2)):
        visit.session.read([path])
        *_, last = images._find(visit.id)
        assert visit.session.registry.stage == stage
        assert last[images.status] == ""
        assert NOTHING_LEFT[0] in last[questions.question]


def test_a_page_that_cannot_be_shown_is_not_left_waiting(one_group: Visit, desk: Desk) -> None:
    class Broken(Panel):
        outputs = ()

        def show(self, visit: Visit) -> Updates:
            raise KeyError("a bug")

    with gr.Blocks():
        images = ImagesPanel(desk)
        images.connect(gr.Tabs(), [Broken()])
    steps, last = images._find(one_group.id), {}
    with pytest.raises(gr.Error, match="went wrong"):
        for last in steps:  # noqa: B007 - the newest one is looked at below
            pass
    assert last[images.status] == ""
    assert not last[images.cancel].visible
    assert last[images.find].visible


def test_without_any_group_the_page_says_so_and_undo_works(one_group: Visit, desk: Desk) -> None:
    with gr.Blocks():
        groups, questions, panels = GroupsPanel(desk), QuestionsPanel(desk), [GroupPanel(desk)]
    one_group.opened = one_group.session.registry.active[0].id
    assert "are in no group now" in _dissolve(one_group)
    shown = groups.show(one_group)
    assert "No groups in 2 images" in shown[groups.summary]
    assert "2 images are in no group" in shown[groups.summary]
    assert (shown[groups.slider].minimum, shown[groups.slider].value) == (1, 1)
    assert shown[groups.undo].interactive
    assert NOTHING_LEFT[0] in questions.show(one_group)[questions.question]

    one_group.opened = NO_CATEGORY
    keys = one_group.session.current.keys
    assert panels[0].show(one_group)[panels[0].members].count("<img") == len(keys)
    with pytest.raises(DataError, match="There are no groups"):
        _why(one_group, keys)
    with pytest.raises(DataError, match="No image is in a group"):
        push_groups(one_group, "somebody", "my-groups", "no token", private=True)

    assert "0 categories in all" in _regroup(one_group, None)  # what is no category stays none
    assert "No groups in 2 images" in groups.show(one_group)[groups.summary]
    while not one_group.session.registry.active:
        _undo(one_group)
    assert "2 images in 1 group" in groups.show(one_group)[groups.summary]


def test_a_group_that_a_step_took_away_is_closed(visit: Visit, desk: Desk) -> None:
    with gr.Blocks():
        panel = GroupPanel(desk)
    four = {each.id for each in visit.session.registry.active}
    _regroup(visit, 2)
    gone = (four - {each.id for each in visit.session.registry.active}).pop()
    _undo(visit)
    _open(visit, gone)
    assert panel.show(visit)[panel.box].visible
    _redo(visit)
    assert visit.opened is None
    assert not panel.show(visit)[panel.box].visible
    _open(visit, gone)  # from a card that was still on the page
    assert visit.opened is None


def test_different_is_taken_where_there_is_one_group(one_group: Visit, desk: Desk) -> None:
    with gr.Blocks():
        panel = QuestionsPanel(desk)
    before = one_group.session.registry.state_hash()
    assert "1 image changed groups" in panel._answer(one_group, panel.show(one_group)[panel.pair], False)
    assert len({*one_group.session.registry.members.values()}) == 2
    assert _undo(one_group) == "Undone: answer."
    assert one_group.session.registry.state_hash() == before


def test_a_message_calls_images_by_their_names(one_group: Visit, desk: Desk) -> None:
    keys = one_group.session.current.keys

    def confirm(visit: Visit) -> None:
        _move(visit, keys, NO_CATEGORY)
        visit.session.edit(Confirm(keys))

    with pytest.raises(gr.Error) as shown:
        desk.run(one_group.id, confirm, [])
    assert "is in no category" in shown.value.message
    assert one_group.session.file_of(keys[0])[1].name in shown.value.message
    assert keys[0] not in shown.value.message
