"""The page for people: images in, groups out, corrected, and taken away. Needs ``promptccd[space]``.

Analytics of Gradio are off, and it is told so before it is imported.
"""

import os

os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"

from promptccd.app.limits import PageLimits
from promptccd.app.page import Page, build_app
from promptccd.app.site import Site
from promptccd.app.visit_lock import VisitOverError
from promptccd.app.visits import Visit, Visits

__all__ = ["Page", "PageLimits", "Site", "Visit", "VisitOverError", "Visits", "build_app"]
