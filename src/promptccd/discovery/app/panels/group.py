"""One group, with all its images: name it, correct it, and ask why an image is in it."""

import base64
import io
import json
from collections.abc import Callable, Sequence
from typing import Any

import gradio as gr

from promptccd.discovery.app.desk import Desk, Panel, Updates
from promptccd.discovery.app.html import counted, render, thumbnail_uri
from promptccd.discovery.app.panels.groups import NO_CATEGORY, unassigned_keys
from promptccd.discovery.app.panels.images import has_groups
from promptccd.discovery.app.visits import Visit
from promptccd.discovery.feature_edits import dissolve_category, move_images, split_category
from promptccd.discovery.groups import group_views
from promptccd.discovery.session import DiscoverySession
from promptccd.errors import DataError
from promptccd.registry import Confirm, Merge, Rename
from promptccd.runs.explanation import Explanation

MOST_PROMPTS = 5


def why_html(session: DiscoverySession, key: str) -> str:
    """What the model looked at in an image, which of its prompts fired, and the nearest categories.

    Raises:
        DataError: there is no such image in this session, or no group that it could be nearest to.
    """
    found = session.why(key)
    assigned = session.assignment()
    stands = None
    if key in assigned.keys:
        row = assigned.keys.index(key)
        second = int(assigned.second_ids[row])
        stands = {
            "category": session.registry.category(int(assigned.category_ids[row])),
            "confidence": float(assigned.confidences[row]),
            "distance": float(assigned.distances[row]),
            "second": session.registry.category(second) if second >= 0 else None,
            "second_distance": float(assigned.second_distances[row]),
            "pinned": key in session.registry.constraints().pinned,
        }
    return render(
        "why.html.jinja",
        name=session.file_of(key)[1].name,
        picture=_overlay_uri(found),
        has_parts=found.parts is not None,
        prompts=found.to_dict().get("prompts", [])[:MOST_PROMPTS],
        stands=stands,
    )


def _overlay_uri(found: Explanation) -> str:
    stream = io.BytesIO()
    found.overlay().save(stream, "JPEG", quality=88)
    return f"data:image/jpeg;base64,{base64.b64encode(stream.getvalue()).decode()}"


# Selected are native checkboxes and radio buttons; the browser hands their values over when a button is pressed.
_BOXES = """JSON.stringify(
    [...document.querySelectorAll("#pc-members input:checked")].map((box) => box.value))"""
_RADIO = """document.querySelector("#pc-others input:checked")?.value ?? \"\""""
PICKED = f"(visit) => [visit, {_BOXES}]"
CHOSEN = f"(visit) => [visit, {_RADIO}]"
PICKED_AND_CHOSEN = f"(visit) => [visit, {_BOXES}, {_RADIO}]"
COUNTS = """element.addEventListener("change", () => {
    const count = element.querySelectorAll("input:checked").length;
    const line = element.querySelector(".pc-count");
    if (line) line.textContent = count ? `${count} selected` : "none selected";
});"""
TO_THE_CARDS = "() => document.querySelector('#pc-overview')?.scrollIntoView()"
TO_THE_REASONS = "() => document.querySelector('#pc-why h3')?.focus()"


class GroupPanel(Panel):
    """The opened group.

    Args:
        desk: connects the buttons.
    """

    def __init__(self, desk: Desk):
        self._desk = desk
        with gr.Column(visible=False, elem_id="pc-group") as self.box:
            with gr.Row(elem_classes="pc-actions"):
                self.back = gr.Button("← All groups", size="sm", elem_id="pc-back")
            self.head = gr.HTML()
            with gr.Row(elem_id="pc-naming", equal_height=True) as self.whole:
                self.name = gr.Textbox(
                    label="Name", max_lines=1, max_length=100, scale=4, min_width=180, elem_id="pc-name"
                )
                self.rename = gr.Button("Save name", scale=1, min_width=120, elem_id="pc-rename")
            self.members = gr.HTML(js_on_load=COUNTS, elem_id="pc-members")
            self.picked, self.chosen = gr.Textbox(visible=False), gr.Textbox(visible=False)
            gr.HTML(render("heading.html.jinja", text="With the selected images"))
            with gr.Row(elem_classes="pc-actions"):
                self.why = gr.Button("Why is it here?", variant="primary", elem_id="pc-why-button")
                self.confirm = gr.Button("They belong here", elem_id="pc-confirm")
                self.part = gr.Button("Make them a group of their own", elem_id="pc-part")
            self.others = gr.HTML(elem_id="pc-others")
            with gr.Row(elem_classes="pc-actions"):
                self.move = gr.Button("Move selected there", elem_id="pc-move")
                self.merge = gr.Button("Merge: both are one", elem_id="pc-merge")
            with gr.Column() as self.rest:
                gr.HTML(render("heading.html.jinja", text="With the whole group"))
                with gr.Row(elem_classes="pc-actions"):
                    self.split = gr.Button("Split in two", elem_id="pc-split")
                    self.dissolve = gr.Button("Not a category", variant="stop", elem_id="pc-dissolve")
            self.reasons = gr.HTML(elem_id="pc-why")
        self.outputs = [
            self.box, self.head, self.whole, self.name, self.members, self.confirm, self.part, self.others, self.merge,
            self.rest, self.dissolve, self.reasons,
        ]  # fmt: skip

    def connect(self, groups: Panel) -> None:
        """Wire the buttons; `groups` is the panel of all groups."""
        desk, panels = self._desk, [groups, self]
        closed = desk.on(self.back.click, _close, panels=panels)
        closed.success(None, js=TO_THE_CARDS, api_visibility="private")
        desk.on(self.rename.click, _rename, [self.name], panels=panels)
        desk.on(self.name.submit, _rename, [self.name], panels=panels)
        desk.on(self.merge.click, _merge, [self.chosen], panels=panels, js=CHOSEN)
        desk.on(self.split.click, _split, panels=panels)
        desk.on(self.dissolve.click, _dissolve, panels=panels)
        picked = [self.picked]
        both = [self.picked, self.chosen]
        desk.on(self.move.click, _on_picked(_move_there), both, panels=panels, js=PICKED_AND_CHOSEN)
        desk.on(self.part.click, _on_picked(_part), picked, panels=panels, js=PICKED)
        desk.on(self.confirm.click, _on_picked(_confirm), picked, panels=panels, js=PICKED)
        asked = desk.on(
            self.why.click,
            _on_picked(_why),
            picked,
            panels=[_Reasons(self.reasons)],
            js=PICKED,
            model=True,
        )
        asked.success(None, js=TO_THE_REASONS, api_visibility="private")

    def show(self, visit: Visit) -> Updates:
        """The opened group; hidden if none is."""
        if visit.opened is None or not has_groups(visit):
            return {self.box: gr.Column(visible=False), self.members: "", self.others: "", self.reasons: ""}
        session, opened = visit.session, visit.opened
        real = opened != NO_CATEGORY
        name = session.registry.category(opened).name if real else ""
        return {
            self.box: gr.Column(visible=True),
            self.head: _head(session, opened),
            self.whole: gr.Row(visible=real),
            self.name: name,
            self.rest: gr.Column(visible=real),
            self.dissolve: gr.Button(interactive=real and not session.registry.category(opened).known),
            self.members: _members(session, opened),
            self.others: _others(session, opened),
            self.merge: gr.Button(visible=real),
            self.part: gr.Button(visible=real),
            self.confirm: gr.Button(visible=real),
            self.reasons: "",
        }


class _Reasons(Panel):
    """Where reasons are shown; they were found already and wait with the visit."""

    def __init__(self, place: gr.HTML):
        self._place, self.outputs = place, [place]

    def show(self, visit: Visit) -> Updates:
        return {self._place: visit.reasons}


def _on_picked(act: Callable[..., str | None]) -> Callable[..., str | None]:
    """Hand over the selected images as keys.

    Raises:
        DataError: there are none, or what came is no list of them.
    """

    def acted(visit: Visit, picked: str, *values: Any) -> str | None:
        try:
            keys = [str(key) for key in json.loads(picked or "[]")]
        except (ValueError, TypeError) as error:
            raise DataError("The selection could not be read: select the images again.") from error
        if not keys:
            raise DataError("No image is selected: select one or more of the images above first.")
        return act(visit, keys, *values)

    return acted


def _group_chosen(chosen: str) -> int:
    """The other group that is meant.

    Raises:
        DataError: none is.
    """
    try:
        return int(chosen)
    except (ValueError, TypeError) as error:
        raise DataError("No other group is chosen: choose one of the pictures of groups first.") from error


def _opened(visit: Visit) -> int:
    if visit.opened is None or visit.opened == NO_CATEGORY:
        raise DataError("No group is open: open one first.")
    return visit.opened


def _close(visit: Visit) -> None:
    visit.opened = None


def _rename(visit: Visit, name: str) -> str:
    visit.session.edit(Rename(_opened(visit), name))
    return f"No. {visit.opened} is called {name.strip()} now."


def _merge(visit: Visit, chosen: str) -> str:
    visit.session.edit(Merge([_opened(visit), _group_chosen(chosen)]))
    visit.opened = visit.session.registry.resolve(_opened(visit))
    survivor = visit.session.registry.category(_opened(visit))
    return f"Both are {survivor.name} (No. {survivor.id}) now."


def _split(visit: Visit) -> str:
    return _split_off(visit, None)


def _part(visit: Visit, keys: Sequence[str]) -> str:
    return _split_off(visit, keys)


def _split_off(visit: Visit, keys: Sequence[str] | None) -> str:
    session, fresh = visit.session, visit.session.registry.next_id
    session.edit(split_category(session.assignment(), _opened(visit), keys, seed=session.seed))
    part = session.registry.category(fresh)
    return f"{counted(part.size, 'image')} became the new group {part.name} (No. {part.id})."


def _dissolve(visit: Visit) -> str:
    session, identity = visit.session, _opened(visit)
    session.edit(dissolve_category(session.assignment(), identity))
    visit.opened = None
    where = "went to the nearest other groups" if session.registry.active else "are in no group now"
    return f"Group {identity} is gone; its images {where}, and it will not come back."


def _move_there(visit: Visit, keys: Sequence[str], chosen: str) -> str:
    return _move(visit, keys, _group_chosen(chosen))


def _move(visit: Visit, keys: Sequence[str], to: int) -> str:
    session, target = visit.session, None if to == NO_CATEGORY else to
    session.edit(move_images(session.assignment(), keys, target))
    where = "no group" if target is None else session.registry.category(target).name
    if visit.opened not in (None, NO_CATEGORY) and not session.registry.members_of(_opened(visit)):
        visit.opened = None
    return f"{counted(len(keys), 'image')} moved to {where}; later groupings leave them there."


def _confirm(visit: Visit, keys: Sequence[str]) -> str:
    visit.session.edit(Confirm(tuple(keys)))
    return f"{counted(len(keys), 'image')} will stay here, whatever is grouped again."


def _why(visit: Visit, keys: Sequence[str]) -> None:
    visit.reasons = why_html(visit.session, keys[0])


def _head(session: DiscoverySession, opened: int) -> str:
    if opened == NO_CATEGORY:
        return render("group_head.html.jinja", group=None, born=0, size=len(unassigned_keys(session)))
    group = next(each for each in group_views(session) if each.id == opened)
    return render(
        "group_head.html.jinja", group=group, born=session.registry.category(opened).born, size=group.size
    )


def _members(session: DiscoverySession, opened: int) -> str:
    """Every image of the group, the most typical first, each with a checkbox."""
    found, registry = session.assignment(), session.registry
    pinned = registry.constraints().pinned
    if opened == NO_CATEGORY:
        rows: list[tuple[str, float | None]] = [(key, None) for key in unassigned_keys(session)]
    else:
        order = sorted(found.rows_of(opened), key=lambda row: float(found.distances[row]))
        rows = [(found.keys[row], float(found.confidences[row])) for row in order]
    pictures = [
        (key, session.file_of(key)[1].name, thumbnail_uri(session, key), confidence, key in pinned)
        for key, confidence in rows
    ]
    return render("members.html.jinja", pictures=pictures)


def _others(session: DiscoverySession, opened: int) -> str:
    """The other groups by a typical picture, those that are likest to the opened one first."""
    found = session.assignment()
    groups = [each for each in group_views(session) if each.id != opened]
    if opened in found.ids:
        apart = (found.prototypes - found.prototypes[found.ids.index(opened)]).norm(dim=1).tolist()
        groups.sort(key=lambda group: apart[found.ids.index(group.id)])
    pictures = [
        (group.id, group.name, thumbnail_uri(session, group.typical[0]) if group.typical else "")
        for group in groups
    ]
    return render(
        "others.html.jinja", others=pictures, outside=None if opened == NO_CATEGORY else NO_CATEGORY
    )
