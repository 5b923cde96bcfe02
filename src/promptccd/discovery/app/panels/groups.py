"""All groups at a glance: known ones first, then new ones, and how many there are."""

from collections.abc import Callable, Sequence
from typing import Any

import gradio as gr

from promptccd.discovery.app.desk import QUIET, Desk, Panel, Updates
from promptccd.discovery.app.html import counted, render, thumbnail_uri
from promptccd.discovery.app.panels.images import has_groups
from promptccd.discovery.app.visits import Visit
from promptccd.discovery.groups import group_views
from promptccd.discovery.session import DiscoverySession
from promptccd.registry import GROUPING, Answer, LogEntry

MARGIN = 5  # counts on either side of the estimate's range that the slider offers
NO_CATEGORY = -1  # stands for the images that were taken out of every category
WORDS = {
    "rename": "rename", "merge": "merge", "split": "split", "move": "move", "not_a_category": "not a category",
    "answer": "answer", "confirm": "confirmation", GROUPING: "grouping",
}  # fmt: skip
OPENS = """element.addEventListener("click", (event) => {
    const button = event.target.closest("button[data-category]");
    if (button) trigger("click", {category: Number(button.dataset.category)});
});"""


class GroupsPanel(Panel):
    """Cards of all groups, the slider, undo and redo.

    Args:
        desk: connects the buttons.
    """

    def __init__(self, desk: Desk):
        self._desk = desk
        with gr.Row(elem_classes="pc-actions", visible=False) as self.history:
            self.undo = gr.Button("Undo", size="sm", interactive=False, elem_id="pc-undo")
            self.redo = gr.Button("Redo", size="sm", interactive=False, elem_id="pc-redo")
        with gr.Column(elem_id="pc-overview") as self.overview:
            self.summary = gr.HTML(render("no_groups.html.jinja"), elem_id="pc-summary")
            with gr.Accordion("More or fewer groups", open=False, visible=False) as self.counts:
                self.scale = gr.HTML()
                self.slider = gr.Slider(
                    1, 2, 1, step=1, label="Number of categories", elem_id="pc-slider", buttons=[]
                )
                with gr.Row(elem_classes="pc-actions"):
                    self.regroup = gr.Button("Group with this number", elem_id="pc-regroup")
                    self.estimate = gr.Button("Use the estimate", elem_id="pc-estimate")
            self.cards = gr.HTML(js_on_load=OPENS, elem_id="pc-cards")
        self.outputs = [
            self.history, self.undo, self.redo, self.overview, self.summary, self.counts, self.scale,
            self.slider, self.cards,
        ]  # fmt: skip

    def connect(self, group: Panel) -> None:
        """Wire the buttons; `group` is the panel of the opened group."""
        desk, panels = self._desk, [self, group]

        def opened(visit_id: str, event: gr.EventData) -> Updates:
            return desk.run(visit_id, lambda visit: _open(visit, event.category), panels)

        outputs = [each for panel in panels for each in panel.outputs]
        self.cards.click(opened, desk.visit_id, outputs, **QUIET).success(
            None, js="() => document.querySelector('#pc-group h2')?.focus()", api_visibility="private"
        )
        desk.on(self.undo.click, _undo, panels=panels)
        desk.on(self.redo.click, _redo, panels=panels)
        desk.on(
            self.regroup.click, lambda visit, count: _regroup(visit, int(count)), [self.slider], panels=panels
        )
        desk.on(self.estimate.click, lambda visit: _regroup(visit, None), panels=panels)

    def show(self, visit: Visit) -> Updates:
        """Cards of the newest groups, unless one of them is open."""
        if not has_groups(visit):
            return {
                self.summary: render("no_groups.html.jinja", waiting=bool(visit.session.stages)),
                self.cards: "",
                self.counts: gr.Accordion(visible=False),
                self.history: gr.Row(visible=False),
                self.overview: gr.Column(visible=True),
            }
        session = visit.session
        history = {
            self.history: gr.Row(visible=True),
            self.undo: _history_button("Undo", _undone_next(session)),
            self.redo: _history_button("Redo", _redone_next(session)),
            self.overview: gr.Column(visible=visit.opened is None),
        }
        if visit.opened is not None:
            return history
        least, most, count = _bounds(session)
        return history | {
            self.summary: _summary(session),
            self.cards: _cards(session),
            self.counts: gr.Accordion(visible=most > least),
            self.scale: _scale(session, least, most),
            self.slider: gr.Slider(minimum=least, maximum=max(most, least + 1), value=count, step=1),
        }


def unassigned_keys(session: DiscoverySession) -> list[str]:
    """Newest images that are in no category."""
    return [key for key in session.current.keys if key not in session.registry.members]


def follow_opened(visit: Visit) -> None:
    """Go on with the group that holds what the opened one held; all groups are shown where none does now."""
    registry, opened = visit.session.registry, visit.opened
    if opened is not None and opened != NO_CATEGORY:
        held_by = registry.resolve(opened) if opened in registry.categories else None
        visit.opened = held_by if held_by in {each.id for each in registry.active} else None


def _open(visit: Visit, category: Any) -> None:
    visit.opened = int(category)
    if visit.opened != NO_CATEGORY:
        visit.session.registry.category(visit.opened)
        follow_opened(visit)


def _undone_next(session: DiscoverySession) -> Sequence[LogEntry]:
    """What one press of "undo" takes back: an answer goes with the grouping that followed it."""
    entries = [entry for entry in session.registry.log[-2:] if entry.patch is not None]
    return entries if [entry.kind for entry in entries] == [Answer.kind, GROUPING] else entries[-1:]


def _redone_next(session: DiscoverySession) -> Sequence[LogEntry]:
    entries = session.registry.redo_stack[:-3:-1]
    return entries if [entry.kind for entry in entries] == [Answer.kind, GROUPING] else entries[:1]


def _undo(visit: Visit) -> str:
    return _step(visit, visit.session.undo, _undone_next(visit.session), "Undone")


def _redo(visit: Visit) -> str:
    return _step(visit, visit.session.redo, _redone_next(visit.session), "Redone")


def _step(visit: Visit, act: Callable[[], None], entries: Sequence[LogEntry], word: str) -> str:
    for _ in range(max(len(entries), 1)):  # with nothing to step over, the registry says so
        act()
    follow_opened(visit)
    return f"{word}: {_kind(entries)}."


def _regroup(visit: Visit, count: int | None) -> str:
    visit.session.group(count)
    visit.opened = None
    return f"Grouped again: {counted(visit.session.num_categories, 'category', 'categories')} in all."


def _history_button(word: str, entries: Sequence[LogEntry]) -> gr.Button:
    return gr.Button(f"{word}: {_kind(entries)}" if entries else word, interactive=bool(entries))


def _kind(entries: Sequence[LogEntry]) -> str:
    return WORDS.get(entries[0].kind, entries[0].kind)


def _bounds(session: DiscoverySession) -> tuple[int, int, int]:
    """Fewest and most categories the slider offers, and where it stands: where there are none, at one."""
    fixed, count, estimate = len(session.fixed), max(session.num_categories, 1), session.estimate
    least = max(1, fixed, min(estimate.low - MARGIN, count))
    most = min(fixed + len(session.current.keys), max(estimate.high + MARGIN, count))
    return least, max(most, count), count


def _scale(session: DiscoverySession, least: int, most: int) -> str:
    estimate, span = session.estimate, max(most - least, 1)

    def place(count: int) -> float:
        return round(100 * (min(max(count, least), most) - least) / span, 2)

    return render(
        "scale.html.jinja",
        estimate=estimate,
        least=least,
        most=most,
        settled=len(session.settled),
        low=place(estimate.low),
        high=place(estimate.high),
        at=place(estimate.count),
    )


def _summary(session: DiscoverySession) -> str:
    groups = group_views(session)
    return render(
        "summary.html.jinja",
        images=len(session.current.keys),
        stage=session.current.stage,
        old=[group for group in groups if group.standing != "new" and group.size],
        new=[group for group in groups if group.standing == "new"],
        estimate=session.estimate,
        count=session.num_categories,
        unassigned=len(unassigned_keys(session)),
    )


def _cards(session: DiscoverySession) -> str:
    groups = group_views(session)

    def pictures(keys: Sequence[str]) -> list[tuple[str, str]]:
        return [(session.file_of(key)[1].name, thumbnail_uri(session, key)) for key in keys]

    drawn = [(group, pictures(group.typical), pictures(group.borderline)) for group in groups if group.size]
    rest = unassigned_keys(session)
    return render(
        "cards.html.jinja",
        sections=[
            ("Known before", [each for each in drawn if each[0].standing != "new"]),
            ("New groups", [each for each in drawn if each[0].standing == "new"]),
        ],
        empty=[group for group in groups if not group.size],
        unassigned=pictures(rest[:12]),
        num_unassigned=len(rest),
        no_category=NO_CATEGORY,
        can_open=True,
    )
