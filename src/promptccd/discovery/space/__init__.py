"""The Space: a page of Gradio round the screens of `open`, a private project per visitor. Needs ``promptccd[space]``.

Analytics of Gradio are off, and it is told so before it is imported.
"""

import os

os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"

from promptccd.discovery.page.site import Site
from promptccd.discovery.space.page import Space, build_space
from promptccd.discovery.space.visits import Together

__all__ = ["Site", "Space", "Together", "build_space"]
