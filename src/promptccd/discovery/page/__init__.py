"""The page of a project, which several windows and the command line correct at once.

It needs starlette and uvicorn, but not Gradio. Its screens are built from `frontend/`.
"""

from typing import TYPE_CHECKING

from promptccd.on_demand import give_names_on_demand

if TYPE_CHECKING:
    from promptccd.discovery.page.server import OpenPage, address_of

__all__ = ["OpenPage", "address_of"]

give_names_on_demand(__name__)
