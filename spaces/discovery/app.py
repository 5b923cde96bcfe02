"""The Space: the page of the package, over the model that `PROMPTCCD_MODEL` names."""

import os

from promptccd.discovery.page.space import Site, Space

space = Space(os.environ.get("PROMPTCCD_MODEL", "facebook/dinov2-small"))

if __name__ == "__main__":  # the Space says where to listen; elsewhere it is this machine alone
    host, port = (
        os.environ.get("GRADIO_SERVER_NAME", "127.0.0.1"),
        os.environ.get("GRADIO_SERVER_PORT", "7860"),
    )
    space.serve(Site.of_environment(), host, int(port)).wait()
