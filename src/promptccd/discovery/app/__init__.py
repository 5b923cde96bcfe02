"""The page for people: images in, groups out, corrected, and taken away. Needs ``promptccd[space]``.

Analytics of Gradio are off, and it is told so before it is imported.
"""

import os

os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"

from promptccd.discovery.app.page import Page, build_app
from promptccd.discovery.app.store import PageLimits
from promptccd.discovery.site import Site

__all__ = ["Page", "PageLimits", "Site", "build_app"]
