"""The Space: the app of the package, over the model that `PROMPTCCD_MODEL` names."""

import os

from promptccd.data.limits import MIB
from promptccd.discovery.app import PageLimits, Site, build_app

disk_bytes = int(os.environ.get("PROMPTCCD_DISK_MIB", PageLimits.disk_bytes // MIB)) * MIB
page = build_app(
    os.environ.get("PROMPTCCD_MODEL", "facebook/dinov2-small"), page_limits=PageLimits(disk_bytes=disk_bytes)
)

if __name__ == "__main__":
    # The Space says where to listen; elsewhere it is this machine alone.
    host, port = (
        os.environ.get("GRADIO_SERVER_NAME", "127.0.0.1"),
        os.environ.get("GRADIO_SERVER_PORT", "7860"),
    )
    server = page.serve(Site.of_environment(), host, int(port))
    server.wait()
