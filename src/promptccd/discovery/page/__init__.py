"""The page of one's own machine: a project that several windows and the command line correct at once.

It needs starlette and uvicorn, and no Gradio; what it shows is built from `frontend/`.
"""

from typing import TYPE_CHECKING

from promptccd.on_demand import give_names_on_demand

if TYPE_CHECKING:
    from promptccd.discovery.page.routes import build_routes
    from promptccd.discovery.page.server import OpenPage, address_of

__all__ = ["OpenPage", "address_of", "build_routes"]

give_names_on_demand(__name__)
