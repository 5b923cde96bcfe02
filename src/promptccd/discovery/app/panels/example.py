"""A finished discovery to look at: handwritten digits, stage by stage, before anything is uploaded."""

from collections.abc import Sequence
from typing import Any

import gradio as gr
import numpy as np

from promptccd.discovery.app.desk import QUIET, render
from promptccd.discovery.example import Example, ExampleStage, load_example
from promptccd.discovery.groups import GroupView

SIDE, MARGIN = 400, 16  # of the map, in units of the drawing


class ExamplePanel:
    """The map, the slider over stages, and the groups of the stage; the same for everybody."""

    def __init__(self) -> None:
        self._example = load_example()
        newest = len(self._example.stages) - 1
        with gr.Row(equal_height=False):
            with gr.Column(min_width=280, scale=6):
                self._map = gr.HTML(elem_id="pc-example-map")
            with gr.Column(min_width=280, scale=5):
                self._slider = gr.Slider(
                    0,
                    newest,
                    0,
                    step=1,
                    label="Stage",
                    info="Move it to see what came, and what was discovered.",
                    elem_id="pc-stage",
                    buttons=[],
                )
                self._story = gr.HTML(elem_id="pc-example-story")
                with gr.Row(elem_classes="pc-actions"):
                    self._start = gr.Button("Start with your own images", variant="primary", elem_id="pc-own")
        self._cards = gr.HTML(elem_id="pc-example-cards")
        self._outputs = [self._map, self._story, self._cards]
        for component, value in zip(self._outputs, self._shown(0), strict=True):
            component.value = value

    def connect(self, tabs: gr.Tabs) -> None:
        """Wire the slider and the way to one's own images."""
        self._slider.change(
            self._shown,
            self._slider,
            self._outputs,
            api_name="example",
            show_progress="hidden",
            trigger_mode="always_last",
        )
        self._start.click(lambda: gr.Tabs(selected="images"), None, tabs, **QUIET)

    def _shown(self, number: float) -> tuple[str, str, str]:
        """Map, text and cards of a stage."""
        stage = self._example.stages[min(max(int(number), 0), len(self._example.stages) - 1)]
        return _map(self._example, stage), _story(stage), _cards(self._example, stage)


def _map(example: Example, stage: ExampleStage) -> str:
    """Every image so far as a dot; those of this stage stand out, and the names stand at the middle of their dots."""
    low, extent = example.places.min(axis=0), float(np.ptp(example.places, axis=0).max())
    places = (example.places - low) * (SIDE - 2 * MARGIN) / extent + MARGIN
    places[:, 1] = SIDE - places[:, 1]
    names = {group.id: group.name for group in stage.groups}
    clouds: list[dict[str, Any]] = []
    labels = []
    so_far = example.category_ids[: stage.rows.stop]
    for identity in sorted(set(so_far.tolist())):
        rows = np.flatnonzero(so_far == identity)
        labels.append(
            (names.get(identity, str(identity)), *np.median(places[rows], axis=0).round(1).tolist())
        )
        for came_now in (False, True):
            chosen = rows[(rows >= stage.rows.start) == came_now]
            clouds.append({"style": identity % 10, "now": came_now, "d": _dots(places[chosen])})
    return render(
        "example_map.html.jinja",
        side=SIDE,
        clouds=sorted(clouds, key=lambda cloud: cloud["now"]),
        labels=labels,
        stage=stage,
    )


def _dots(places: np.ndarray) -> str:
    """A path whose round line caps are the dots: a tenth of the size of so many circles."""
    return "".join(f"M{x:.0f} {y:.0f}h0" for x, y in places.tolist())


def _story(stage: ExampleStage) -> str:
    return render(
        "example_story.html.jinja",
        stage=stage,
        old=[group for group in stage.groups if group.standing != "new"],
        new=[group for group in stage.groups if group.standing == "new"],
        known=[group for group in stage.groups if group.standing == "known"],
    )


def _cards(example: Example, stage: ExampleStage) -> str:
    def drawn(groups: Sequence[GroupView]) -> list[tuple[Any, ...]]:
        return [
            (
                group,
                [(f"a digit from group {group.name}", example.picture(key)) for key in group.typical],
                [
                    (f"a doubtful digit in group {group.name}", example.picture(key))
                    for key in group.borderline
                ],
            )
            for group in groups
            if group.size
        ]

    return render(
        "cards.html.jinja",
        sections=[
            ("New groups", drawn([group for group in stage.groups if group.standing == "new"])),
            ("Known before", drawn([group for group in stage.groups if group.standing != "new"])),
        ],
    )
