"""The groups, on the screens that `open` has, and how many there are."""

import gradio as gr

from promptccd.discovery.app.desk import MODEL, Desk, Panel, Updates, counted, render
from promptccd.discovery.app.guard import SCREENS
from promptccd.discovery.app.screens import group_in
from promptccd.discovery.app.visits import Visit
from promptccd.errors import DataError

INFO_S = 5  # that a message stays in view


class GroupsPanel:
    """The element that shows groups, and another number of them."""

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

        def regroup(visit_id: str, count: float | None, *, estimated: bool = False) -> Updates:
            with self._desk.at(visit_id) as visit:
                if count is None and not estimated:
                    raise DataError("No number is given: type how many groups there shall be.")
                gr.Info(_regroup(visit, None if count is None else int(count)), duration=INFO_S)
                return take_away.show(visit)

        def estimate(visit_id: str) -> Updates:
            return regroup(visit_id, None, estimated=True)

        options = {**MODEL, "api_visibility": "private"}
        self.regroup.click(regroup, [self._desk.visit_id, self.number], take_away.outputs, **options)
        self.estimate.click(estimate, self._desk.visit_id, take_away.outputs, **options)

    def show(self, visit: Visit) -> Updates:
        """The screens of the newest groups."""
        session, base = visit.session, f"{SCREENS[1:]}{visit.address}/"
        stage, of = session.current.stage, len(session.stages)
        return {
            self.screens: render("groups.html.jinja", base=base, stage=stage, of=of),
            self.counts: gr.Accordion(visible=True),
            self.number: session.num_categories,
        }


def _regroup(visit: Visit, count: int | None) -> str:
    group_in(visit, lambda items, total, label: iter(items), count)
    return f"Grouped again: {counted(visit.session.num_categories, 'category', 'categories')} in all."
