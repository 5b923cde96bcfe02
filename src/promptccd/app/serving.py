"""A page of Gradio behind the guard.

It is served by a server of ours: that of Gradio has no time-outs, and its CORS answers before anything of ours could.
"""

import atexit
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gradio as gr
from fastapi import FastAPI

from promptccd.app.asgi import App
from promptccd.app.guard import RequestGuard
from promptccd.app.limits import PageLimits
from promptccd.app.site import Site
from promptccd.app.store import Store
from promptccd.data.limits import IntakeLimits

FOLDER = "GRADIO_TEMP_DIR"  # Gradio serves files below it, and nothing else


def keep_files_private() -> Path:
    """A folder where no other user of this machine can look, and nothing is left behind.

    It is what ``GRADIO_TEMP_DIR`` names, where that is set already.
    """
    if not os.environ.get(FOLDER):
        folder = tempfile.mkdtemp(prefix="promptccd-uploads-")  # mode 0700
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        os.environ[FOLDER] = folder
    return Path(os.environ[FOLDER])


def guarded(
    blocks: gr.Blocks,
    look: Mapping[str, Any],
    site: Site,
    store: Store,
    intake: IntakeLimits,
    limits: PageLimits,
) -> App:
    """What answers requests to a page.

    Args:
        blocks: the page.
        look: how it looks, as options of Gradio.
        site: whose requests are answered.
        store: of the files.
        intake: limits on an upload.
        limits: on all requests together.
    """
    blocks.state_session_capacity = limits.pages
    blocks.has_launched = True  # so that Gradio checks where a file lies that it is to serve
    app = gr.mount_gradio_app(
        FastAPI(docs_url=None, redoc_url=None, openapi_url=None),
        blocks,
        path="/",
        run_history=False,
        enable_monitoring=False,
        allowed_paths=[],
        max_file_size=intake.max_total_bytes,  # a zip may be as large as all files together
        ssr_mode=False,
        show_error=False,
        pwa=False,
        **look,
    )
    return RequestGuard(app, site, store, intake, limits)


def forget_page(request: gr.Request) -> Callable[[], None]:
    """What makes Gradio forget what a page shows: it keeps the last value of every component, pictures included.

    Args:
        request: of that page.

    Returns:
        To be called when the visit is over.
    """
    holder, session = request.request.app.state_holder, request.session_hash

    def forget() -> None:
        with holder.lock:
            holder.session_data.pop(session, None)
            holder.time_last_used.pop(session, None)

    return forget
