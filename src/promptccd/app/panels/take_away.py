"""Take everything away, push it under one's own login, or have it deleted."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gradio as gr
from datasets import Dataset
from gradio.processing_utils import hash_file
from gradio.utils import get_upload_folder

from promptccd.app.desk import MODEL, QUIET, Desk, Panel, Updates, told
from promptccd.app.html import render
from promptccd.app.visits import Visit
from promptccd.discovery.assignments import AssignmentRow, assignment_rows
from promptccd.discovery.checkpoint import save_checkpoint
from promptccd.discovery.exports import export_csv, export_dataset, export_image_folder
from promptccd.discovery.page import write_page
from promptccd.errors import DataError, HubError

Rows = list[AssignmentRow]
TO_THE_FILES = "() => document.querySelector('#pc-files a')?.focus()"


def _zipped(folder: Path) -> Path:
    return Path(shutil.make_archive(str(folder), "zip", root_dir=folder))


# What can be taken: the words on the page, and what makes the file.
OFFERS: dict[str, tuple[str, Callable[[Visit, Rows, Path], Path]]] = {
    "csv": (
        "Table of all files and their groups (CSV)",
        lambda visit, rows, out: export_csv(visit.session, rows, out),
    ),
    "images": (
        "Images, a folder for each group (zip)",
        lambda visit, rows, out: _zipped(export_image_folder(visit.session, rows, out)),
    ),
    "page": (
        "Report with pictures and a map (HTML)",
        lambda visit, rows, out: write_page(visit.session, rows, out / "discovery.html"),
    ),
    "checkpoint": (
        "Model with its categories and your corrections (zip)",
        lambda visit, rows, out: _zipped(save_checkpoint(visit.session, out / "checkpoint")),
    ),
}


class TakeAwayPanel(Panel):
    """What to take, the files, and the end of the visit.

    Args:
        desk: connects the buttons.
    """

    def __init__(self, desk: Desk):
        self._desk = desk
        gr.HTML(render("take_away.html.jinja"))
        self.what = gr.CheckboxGroup(
            [(words, name) for name, (words, _) in OFFERS.items()],
            value=["csv"],
            label="What to take",
            elem_id="pc-what",
        )
        with gr.Row(elem_classes="pc-actions"):
            self.prepare = gr.Button("Prepare the files", variant="primary", elem_id="pc-prepare")
        self.files = gr.File(
            label="Ready: click a size to download",
            file_count="multiple",
            interactive=False,
            visible=False,
            elem_id="pc-files",
        )
        if os.environ.get("OAUTH_CLIENT_ID"):
            self._offer_push()
        self.outputs = [self.files]

    def connect(self) -> None:
        """Wire the buttons."""
        made = self.prepare.click(
            self._prepare,
            [self._desk.visit_id, self.what],
            self.files,
            api_name="take_away",
            show_progress="hidden",
            **MODEL,
        )
        made.success(None, js=TO_THE_FILES, api_visibility="private")

    def show(self, visit: Visit) -> Updates:
        """No files: those of before are out of date."""
        return {self.files: gr.File(value=None, visible=False)}

    def _prepare(self, visit_id: str, what: list[str]) -> Any:
        with told():
            visit = self._desk.visit(visit_id)
            if not what:
                raise DataError("Nothing is ticked: tick what you want to take.")
            with visit.lock:
                out = take_away_folder(visit)
                rows = assignment_rows(visit.session)
                files = [OFFERS[name][1](visit, rows, out) for name in OFFERS if name in what]
                visit.taken.update(map(_served_from, files))
            return gr.File(value=[str(file) for file in files], visible=True)

    def _offer_push(self) -> None:
        """Push as a data set under the visitor's own login; only where the Space has one to offer."""
        with gr.Accordion("Push as a data set to your own account", open=False):
            gr.LoginButton()
            name = gr.Textbox(label="Name of the data set", placeholder="my-groups", max_length=96)
            private = gr.Checkbox(True, label="Private: only you can see it")
            button = gr.Button("Push")
            link = gr.HTML()

        def push(
            visit_id: str,
            name: str,
            private: bool,
            token: gr.OAuthToken | None,
            profile: gr.OAuthProfile | None,
        ) -> str:
            with told():
                if token is None or profile is None:
                    raise DataError("You are not logged in: log in with the button above first.")
                visit = self._desk.visit(visit_id)
                with visit.lock:
                    target = push_groups(visit, profile.username, name, token.token, private=bool(private))
                return render("pushed.html.jinja", target=target)

        button.click(push, [self._desk.visit_id, name, private], link, **QUIET)


def push_groups(visit: Visit, owner: str, name: str, token: str, *, private: bool) -> str:
    """Push the groups as a data set to the account of the visitor; returns its name there.

    Raises:
        DataError: no image is in a group.
        HubError: the Hub refuses, or cannot be reached.
    """
    rows = assignment_rows(visit.session)
    if all(row.category is None for row in rows):
        raise DataError("No image is in a group, so there is nothing to push: take a correction back first.")
    folder = export_dataset(visit.session, rows, take_away_folder(visit))
    table = Dataset.from_parquet(str(next(folder.glob("data/*.parquet"))), cache_dir=str(visit.folder))
    target = f"{owner}/{(name or '').strip() or 'discovered-groups'}"
    try:
        table.push_to_hub(target, private=private, token=token)
    except Exception as error:  # the Hub's own errors, and a dead connection
        raise HubError(
            f"The Hub did not take {target!r}: {(str(error).splitlines() or ['no answer'])[0]} Try again later, or "
            "take the images as a zip."
        ) from error
    return target


def take_away_folder(visit: Visit) -> Path:
    """A fresh folder for files to take, inside the private one."""
    folder = visit.folder / "take-away"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def _served_from(file: Path) -> Path:
    """Where Gradio keeps the copy that it serves; it files copies by their content."""
    return Path(get_upload_folder(), hash_file(file), file.name)
