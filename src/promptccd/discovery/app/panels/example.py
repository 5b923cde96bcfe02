"""A finished discovery to look at: handwritten digits, stage by stage, before anything is uploaded."""

from collections.abc import Sequence

import gradio as gr
import numpy as np

from promptccd.discovery.app.desk import QUIET, render
from promptccd.discovery.example import Example, ExampleStage, load_example
from promptccd.discovery.groups import GroupView

SIDE, MARGIN = 400, 16  # of the map, in units of the drawing


def add_example(tabs: gr.Tabs) -> None:
    """The map, the slider over stages, and the groups of the stage; the same for everybody."""
    example = load_example()

    def shown(number: float) -> tuple[str, str, str]:
        stage = example.stages[min(max(int(number), 0), len(example.stages) - 1)]
        return _map(example, stage), _story(stage), _cards(example, stage)

    with gr.Row(equal_height=False):
        with gr.Column(min_width=280, scale=6):
            drawing = gr.HTML(elem_id="pc-example-map")
        with gr.Column(min_width=280, scale=5):
            slider = gr.Slider(
                0, len(example.stages) - 1, 0, step=1, label="Stage", elem_id="pc-stage", buttons=[],
                info="Move it to see what came, and what was discovered.",
            )  # fmt: skip
            story = gr.HTML(elem_id="pc-example-story")
            with gr.Row(elem_classes="pc-actions"):
                start = gr.Button("Start with your own images", variant="primary", elem_id="pc-own")
    cards = gr.HTML(elem_id="pc-example-cards")
    drawing.value, story.value, cards.value = shown(0)
    slider.change(
        shown, slider, [drawing, story, cards],
        api_name="example", show_progress="hidden", trigger_mode="always_last",
    )  # fmt: skip
    start.click(lambda: gr.Tabs(selected="images"), None, tabs, **QUIET)


def _map(example: Example, stage: ExampleStage) -> str:
    """Every image so far as a dot; those of this stage stand out, and a group's name stands amid its dots."""
    low, extent = example.places.min(axis=0), float(np.ptp(example.places, axis=0).max())
    places = (example.places - low) * (SIDE - 2 * MARGIN) / extent + MARGIN
    places[:, 1] = SIDE - places[:, 1]
    names = {group.id: group.name for group in stage.groups}
    ids = example.category_ids[: stage.rows.stop]
    labels, earlier, now = [], [], []
    for identity in np.unique(ids).tolist():
        rows = np.flatnonzero(ids == identity)
        middle = np.median(places[rows], axis=0).round(1).tolist()
        labels.append((names.get(identity, str(identity)), *middle))
        is_now = rows >= stage.rows.start
        earlier.append((identity % 10, _dots(places[rows[~is_now]])))
        now.append((identity % 10, _dots(places[rows[is_now]])))
    return render("example_map.html.jinja", side=SIDE, earlier=earlier, now=now, labels=labels, stage=stage)


def _dots(places: np.ndarray) -> str:
    """A path whose round line caps are the dots: a tenth of the size of so many circles."""
    return "".join(f"M{x:.0f} {y:.0f}h0" for x, y in places.tolist())


def _story(stage: ExampleStage) -> str:
    return render(
        "example_story.html.jinja",
        stage=stage,
        new=[group for group in stage.groups if group.standing == "new"],
        known=[group for group in stage.groups if group.standing == "known"],
    )


def _cards(example: Example, stage: ExampleStage) -> str:
    def pictures(group: GroupView, what: str, keys: Sequence[str]) -> list[tuple[str, str]]:
        return [(f"a {what} group {group.name}", example.picture(key)) for key in keys]

    drawn = [
        (
            each,
            pictures(each, "digit from", each.typical),
            pictures(each, "doubtful digit in", each.borderline),
        )
        for each in stage.groups
        if each.size
    ]
    return render(
        "cards.html.jinja",
        sections=[
            ("New groups", [each for each in drawn if each[0].standing == "new"]),
            ("Known before", [each for each in drawn if each[0].standing != "new"]),
        ],
    )
