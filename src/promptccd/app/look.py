"""How the page looks."""

from importlib.resources import files
from typing import Any

import gradio as gr

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
CSS = (files("promptccd.app") / "templates" / "app.css").read_text(encoding="utf-8")

LOOK: dict[str, Any] = {"theme": THEME, "css": CSS, "footer_links": []}
