"""HTML of the app, from templates that escape every name."""

from functools import cache
from importlib.resources import files
from typing import Any

import gradio as gr
from jinja2 import Environment

from promptccd.experiments.pages import templates_of


def render(template: str, **values: Any) -> str:
    """A part of the page from ``templates/``; every value is escaped, a missing one is an error."""
    return _environment().get_template(template).render(**values)


def percent(share: float) -> str:
    """A share of 1 as a whole number of percent, on one line."""
    return f"{round(100 * share)}\N{NO-BREAK SPACE}%"


def counted(number: int, noun: str, plural: str = "") -> str:
    """``1 image``, ``2 images``."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


@cache
def _environment() -> Environment:
    environment = templates_of("promptccd.discovery.app", "promptccd.experiments")
    environment.filters.update(percent=percent, counted=counted)
    return environment


# Fonts of the reader's own system: nothing is fetched from elsewhere.
THEME = gr.themes.Default(
    primary_hue="blue",
    neutral_hue="slate",
    font=["system-ui", "sans-serif"],
    font_mono=["ui-monospace", "monospace"],
    radius_size="lg",
).set(  # enough contrast for small text, in both themes
    button_primary_background_fill="*primary_700",
    button_primary_background_fill_hover="*primary_800",
    button_primary_background_fill_dark="*primary_700",
    button_primary_background_fill_hover_dark="*primary_600",
    button_cancel_background_fill="#b91c1c",
    button_cancel_background_fill_hover="#991b1b",
    button_cancel_background_fill_dark="#b91c1c",
    button_cancel_background_fill_hover_dark="#991b1b",
    body_text_color_subdued="*neutral_600",
    body_text_color_subdued_dark="*neutral_300",
    block_info_text_color="*neutral_600",
    block_info_text_color_dark="*neutral_300",
    block_label_text_color="*neutral_700",
    block_title_text_color="*neutral_700",
)
CSS = (files("promptccd.discovery.app") / "templates" / "app.css").read_text(encoding="utf-8")

LOOK: dict[str, Any] = {"theme": THEME, "css": CSS, "footer_links": []}
