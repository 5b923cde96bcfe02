"""The groups, on the screens that `open` has, and how many there are."""

import gradio as gr

from promptccd.discovery.app.desk import Desk, Panel, Updates, counted, render
from promptccd.discovery.app.guard import SCREENS
from promptccd.discovery.app.screens import group_in
from promptccd.discovery.app.visits import Visit
from promptccd.errors import DataError


class GroupsPanel(Panel):
    """The element that shows groups, and another number of them.

    Args:
        desk: connects the buttons.
    """

    def __init__(self, desk: Desk):
        self._desk = desk
        self.screens = gr.HTML(render("groups.html.jinja", base=""), elem_id="pc-desk")
        with gr.Accordion("More or fewer groups", open=False, visible=False) as self.counts:
            self.number = gr.Number(
                None, label="Number of groups, known ones included", precision=0, elem_id="pc-number"
            )
            with gr.Row(elem_classes="pc-actions"):
                self.regroup = gr.Button("Group with this number", elem_id="pc-regroup")
                self.estimate = gr.Button("Use the estimate", elem_id="pc-estimate")
        self.outputs = [self.screens, self.counts, self.number]

    def connect(self, take_away: Panel) -> None:
        """Wire the buttons; files to take are out of date then."""
        on = self._desk.on
        on(self.regroup.click, _regroup_to, [self.number], panels=[take_away], model=True)
        on(self.estimate.click, lambda visit: _regroup(visit, None), panels=[take_away], model=True)

    def show(self, visit: Visit) -> Updates:
        """The screens of the newest groups."""
        if visit.bench is None:
            return {
                self.screens: render("groups.html.jinja", base=""),
                self.counts: gr.Accordion(visible=False),
            }
        session, base = visit.session, f"{SCREENS[1:]}{visit.address}/"
        return {
            self.screens: render(
                "groups.html.jinja", base=base, stage=session.current.stage, of=len(session.stages)
            ),
            self.counts: gr.Accordion(visible=True),
            self.number: session.num_categories,
        }


def _regroup_to(visit: Visit, count: float | None) -> str:
    if count is None:
        raise DataError("No number is given: type how many groups there shall be.")
    return _regroup(visit, int(count))


def _regroup(visit: Visit, count: int | None) -> str:
    group_in(visit, lambda items, total, label: iter(items), count)
    return f"Grouped again: {counted(visit.session.num_categories, 'category', 'categories')} in all."
