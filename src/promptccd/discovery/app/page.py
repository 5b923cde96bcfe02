"""The whole page: the steps as tabs, and the button that ends a visit."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import gradio as gr

from promptccd.data.limits import IntakeLimits
from promptccd.discovery.app.desk import QUIET, Desk, Updates, errors_shown, render
from promptccd.discovery.app.panels.example import add_example
from promptccd.discovery.app.panels.groups import GroupsPanel
from promptccd.discovery.app.panels.images import ImagesPanel
from promptccd.discovery.app.panels.take_away import TakeAwayPanel
from promptccd.discovery.app.server import PageServer, guarded, keep_files_private
from promptccd.discovery.app.store import PageLimits, Quota, Store
from promptccd.discovery.app.visits import Visits, called, is_remote
from promptccd.discovery.site import Site
from promptccd.hub.space import parted
from promptccd.models.loading import find_model
from promptccd.models.stored_files import BACKBONE_TYPES
from promptccd.training.objectives import METHODS

MOST_WAITING = 32  # requests in the queue; more are asked to come back
TITLE = "What is in these images?"
HUB = "https://huggingface.co"
PAPER = "https://arxiv.org/abs/2407.19001"

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


@dataclass(frozen=True)
class Page:
    """The page: what it consists of, everybody who is here with their files, and limits on all of them together."""

    blocks: gr.Blocks
    visits: Visits
    limits: PageLimits

    def serve(self, site: Site, host: str = "127.0.0.1", port: int | None = None) -> PageServer:
        """Serve the page to a site's visitors, by default on the first free port from 7860 on; it answers already.

        Raises:
            OSError: it cannot listen there.
        """
        app = guarded(self.blocks, LOOK, site, self.visits, self.limits)
        server = PageServer(app, host, port, limits=self.limits)
        server.start()
        return server

    def close(self) -> None:
        """End all visits and delete all files, but leave the server running."""
        self.blocks.close(verbose=False)
        self.visits.close()
        self.visits.store.close()


def build_app(
    place: str, *, limits: IntakeLimits | None = None, page_limits: PageLimits | None = None
) -> Page:
    """The page, to be served with `Page.serve`.

    Args:
        place: the model that groups, a folder or a name on the Hub; it is loaded at the first visit.
        limits: on what a visitor brings; by default those for strangers.
        page_limits: on all visitors together; by default the usual ones.
    """
    together = page_limits or PageLimits()
    store = Store(Quota(together.disk_bytes, "files"), keep_files_private(), untaken_s=together.untaken_s)
    visits = Visits(place, store, limits or IntakeLimits.for_visitors(), together)
    return Page(_blocks(visits), visits, together)


def _blocks(visits: Visits) -> gr.Blocks:
    with gr.Blocks(title=TITLE, analytics_enabled=False, delete_cache=(300, int(visits.lifetime_s))) as app:
        visit_id = gr.State("", delete_callback=visits.forget)
        desk = Desk(visits, visit_id)
        gr.HTML(title_html(visits.place))
        with gr.Tabs(elem_id="pc-steps", overflow_behavior="wrap") as tabs:
            with gr.Tab("Example", id="example"):
                gr.HTML(render("intro.html.jinja"))
                add_example(tabs)
            with gr.Tab("Images", id="images"):
                images = ImagesPanel(desk)
            with gr.Tab("Groups", id="groups"):
                groups = GroupsPanel(desk)
            with gr.Tab("Take away", id="take-away"):
                take_away = TakeAwayPanel(desk)
        images.connect(tabs, [groups, take_away])
        groups.connect(take_away)
        _end(desk, tabs)
    return app.queue(max_size=MOST_WAITING)


def title_html(place: str, environment: Mapping[str, str] = os.environ) -> str:
    """Title, model and method, with links to the paper and to the cards of the model and of this Space."""
    (name, commit), shown = parted(place), called(place)
    try:
        _, raw = find_model(name, revision=commit or "main")
    except (OSError, ValueError):  # the first visit says that it cannot be loaded
        raw = {}
    kind, known, space = raw.get("model_type"), raw.get("category_ids"), environment.get("SPACE_ID")
    return render(
        "title.html.jinja",
        title=TITLE,
        name=shown,
        commit=(commit or "")[:8],
        is_bare=kind in BACKBONE_TYPES,
        method=METHODS.get(kind) if isinstance(kind, str) else None,
        num_known=len(known) if isinstance(known, list) else 0,
        card=f"{HUB}/{name}" if is_remote(place) else "",
        paper=PAPER,
        readme=f"{HUB}/spaces/{space}/blob/main/README.md" if space else "",
    )


def _end(desk: Desk, tabs: gr.Tabs) -> None:
    """The button that forgets everything, beside the promise that it happens by itself."""
    with gr.Row(elem_id="pc-end", equal_height=True):
        gr.HTML(render("end.html.jinja", minutes=round(desk.visits.lifetime_s / 60)), scale=4)
        button = gr.Button("Forget my data", variant="stop", size="sm", scale=1, elem_id="pc-forget")

    def forget(visit_id: str) -> Updates:
        with errors_shown():
            if visit_id:
                desk.visits.forget(visit_id)
        gr.Info("Your images, groups and files are deleted.")
        return {desk.visit_id: "", tabs: gr.Tabs(selected="images")}

    forgotten = button.click(forget, desk.visit_id, [desk.visit_id, tabs], **QUIET)
    # Whatever is still shown of the images goes with the page.
    forgotten.success(None, js="() => setTimeout(() => location.reload(), 1200)", api_visibility="private")
