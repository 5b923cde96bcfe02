"""What panels say, without a browser: names are escaped, models of all kinds are explained, undo steps are whole."""

from pathlib import Path

import pytest

pytest.importorskip("gradio", reason="the page needs gradio: pip install -c constraints.txt gradio")

import gradio as gr

from promptccd.app.desk import Desk, told
from promptccd.app.html import counted, percent, render
from promptccd.app.page import build_app
from promptccd.app.panels.changes import ChangesPanel
from promptccd.app.panels.group import GroupPanel
from promptccd.app.panels.groups import GroupsPanel, _redo, _undo
from promptccd.app.panels.questions import MOST, QuestionsPanel
from promptccd.app.panels.take_away import push_groups
from promptccd.app.panels.why import why_html
from promptccd.app.visits import Visit, Visits
from promptccd.data.limits import IntakeLimits
from promptccd.errors import DataError, HubError
from promptccd.registry import Rename
from tests.conftest import coloured_images

HOSTILE = '"><img src=x onerror=alert(1)>{{7*7}}${7*7}'


@pytest.fixture
def visits(backbone_folder: Path) -> Visits:
    made = Visits(str(backbone_folder), limits=IntakeLimits.for_visitors())
    yield made
    made.close()


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
    with pytest.raises(gr.Error) as shown, told():
        raise DataError("No file <img src=x>: give another.")
    assert shown.value.message == "No file &lt;img src=x&gt;: give another."
    with pytest.raises(gr.Error) as shown, told():
        raise KeyError("secret")
    assert "secret" not in shown.value.message
    assert "try again" in shown.value.message
    assert "secret" in caplog.text  # for whoever runs the server


def test_a_model_without_prompts_is_explained(visit: Visit) -> None:
    text = why_html(visit.session, visit.session.current.keys[0])
    assert "no prompts that could fire" in text
    assert "It is nearest to" in text
    assert "does not prove" in text


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
    app = build_app(str(backbone_folder))
    assert "Push" not in {block.value for block in app.blocks.values() if isinstance(block, gr.Button)}


def test_a_push_that_fails_says_so_and_leaves_the_groups(visit: Visit) -> None:
    before = visit.session.registry.state_hash()
    with pytest.raises(HubError, match="The Hub did not take 'somebody/my-groups': .*Try again later"):
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
