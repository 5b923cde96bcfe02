"""Take everything away, or push it under one's own login."""

import os
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gradio as gr

from promptccd.data.limits import MIB
from promptccd.discovery import exports
from promptccd.discovery.app.desk import MODEL, QUIET, Desk, Updates, errors_shown, render
from promptccd.discovery.app.store import Shelf, blocks, size_of
from promptccd.discovery.app.visits import Visit
from promptccd.discovery.checkpoint import save_checkpoint
from promptccd.discovery.page import write_page
from promptccd.discovery.session import DiscoverySession
from promptccd.errors import DataError
from promptccd.hub import publish_groups

BYTES_PER_PIXEL = 4  # of a picture of noise, encoded without loss, and some more
ROOM = MIB  # for what is small beside a picture: names, tables, the head of a file
TABLE_BYTES = 4096  # of a file in a table, its name included
PAGE_BYTES = 32 * MIB  # of a report; its pictures are at most 12 MB, and written in base 64


class Rationed:
    """Originals for an export: before one is given, there is room on the shelf for its picture, or the export ends."""

    def __init__(self, session: DiscoverySession, shelf: Shelf):
        self._session, self._shelf = session, shelf
        self._written = 0

    def original(self, key: str) -> bytes:
        """The bytes of an image.

        Raises:
            DataError: the export becomes too much for one visitor.
            FullError: there is no room.
        """
        written = size_of(self._shelf.folder)
        if written != self._written:  # pictures may wait in memory until there are enough of them
            self._shelf.settle()
            self._written = written
        width, height = self._session.file_of(key)[1].image_size or (0, 0)
        self._shelf.reserve(BYTES_PER_PIXEL * width * height + ROOM)
        return self._session.original(key)


def zipped(folder: Path, shelf: Shelf) -> Path:
    """A zip archive in the place of a folder; every file goes as soon as it is packed.

    Raises:
        DataError: it becomes too much for one visitor.
        FullError: there is no room.
    """
    target = folder.with_name(f"{folder.name}.zip")
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            shelf.settle()
            shelf.reserve(blocks(path.stat().st_size) + ROOM)
            archive.write(path, path.relative_to(folder))
            path.unlink()
    shutil.rmtree(folder)
    shelf.settle()
    return target


def _images(session: DiscoverySession, rows: list[exports.AssignmentRow], shelf: Shelf, names: bool) -> Path:
    return zipped(exports.export_image_folder(Rationed(session, shelf), rows, shelf.folder, names), shelf)


def _checkpoint(
    session: DiscoverySession, rows: list[exports.AssignmentRow], shelf: Shelf, names: bool
) -> Path:
    tensors = [*session.model.parameters(), *session.model.buffers()]
    shelf.reserve(sum(each.nbytes for each in tensors) + 8 * ROOM)
    return zipped(save_checkpoint(session, shelf.folder / "checkpoint"), shelf)


# What can be taken: the words on the page, and what makes the file, with or without the names of the visitor's files.
OFFERS: dict[
    str, tuple[str, Callable[[DiscoverySession, list[exports.AssignmentRow], Shelf, bool], Path]]
] = {
    "csv": (
        "Table of all files and their groups (CSV)",
        lambda session, rows, shelf, names: exports.export_csv(session, rows, shelf.folder, names),
    ),
    "images": ("Images, a folder for each group (zip)", _images),
    "page": (
        "Report with pictures and a map (HTML)",
        lambda session, rows, shelf, names: write_page(
            session, rows, shelf.folder / "discovery.html", file_names=names
        ),
    ),
    "checkpoint": ("Model with its categories and your corrections (zip)", _checkpoint),
}
NAMES = "names"  # may be ticked beside them
TO_THE_FILES = "() => document.querySelector('#pc-files a')?.focus()"


class TakeAwayPanel:
    """What to take, and the files."""

    def __init__(self, desk: Desk):
        self._desk = desk
        gr.HTML(render("take_away.html.jinja"))
        offers = [(words, name) for name, (words, _) in OFFERS.items()]
        offers.append(("And in all of these, the names of your files", NAMES))
        what = gr.CheckboxGroup(offers, value=["csv"], label="What to take", elem_id="pc-what")
        with gr.Row(elem_classes="pc-actions"):
            button = gr.Button("Prepare the files", variant="primary", elem_id="pc-prepare")
        self.files = gr.File(
            label="Ready: click a size to download", file_count="multiple", interactive=False, visible=False,
            elem_id="pc-files",
        )  # fmt: skip
        if os.environ.get("OAUTH_CLIENT_ID"):
            self._offer_push()
        self.outputs = [self.files]
        made = button.click(self._prepare, [desk.visit_id, what], self.files, api_name="take_away", **MODEL)
        made.success(None, js=TO_THE_FILES, api_visibility="private")

    def show(self, visit: Visit) -> Updates:
        """No files: those of before are out of date."""
        return {self.files: gr.File(value=None, visible=False)}

    def _prepare(self, visit_id: str, what: list[str]) -> Any:
        with self._desk.at(visit_id) as visit:
            if not set(what) - {NAMES}:
                raise DataError("Nothing is ticked: tick what you want to take.")
            shelf, names = visit.prepare(), NAMES in what
            rows = exports.assignment_rows(visit.take_up(), file_names=names)
            files = []
            for offer in [make for name, (_, make) in OFFERS.items() if name in what]:
                shelf.reserve(TABLE_BYTES * len(rows) + PAGE_BYTES)
                files.append(str(offer(visit.session, rows, shelf, names)))
                shelf.settle()
            return gr.File(value=files, visible=True)

    def _offer_push(self) -> None:
        """Push as a data set under the visitor's own login; only where the Space has one to offer."""
        with gr.Accordion("Push as a data set to your own account", open=False):
            gr.LoginButton()
            name = gr.Textbox(label="Name of the data set", placeholder="my-groups", max_length=96)
            private = gr.Checkbox(True, label="Private: only you can see it")
            button = gr.Button("Push")
            link = gr.HTML()

        def push(
            visit_id: str, name: str, private: bool,
            token: gr.OAuthToken | None, profile: gr.OAuthProfile | None,
        ) -> str:  # fmt: skip
            with errors_shown():
                if token is None or profile is None:
                    raise DataError("You are not logged in: log in with the button above first.")
            with self._desk.at(visit_id) as visit:
                target = push_groups(visit, profile.username, name, token.token, private=bool(private))
                return render("pushed.html.jinja", target=target)

        button.click(push, [self._desk.visit_id, name, private], link, **QUIET)


def push_groups(visit: Visit, owner: str, name: str, token: str, *, private: bool) -> str:
    """Push the groups as a data set to the account of the visitor; returns its name there.

    Raises:
        DataError: no image is in a group.
        FullError: there is no room for a copy of the images.
        HubError: the Hub refuses, or cannot be reached.
    """
    rows = exports.assignment_rows(visit.take_up())
    if all(row.category is None for row in rows):
        raise DataError("No image is in a group, so there is nothing to push: take a correction back first.")
    shelf = visit.prepare()
    folder = exports.export_dataset(Rationed(visit.session, shelf), rows, shelf.folder)
    shelf.settle()
    target = f"{owner}/{(name or '').strip() or 'discovered-groups'}"
    publish_groups(folder, target, private=private, token=token)
    return target
