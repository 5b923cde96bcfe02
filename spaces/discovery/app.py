"""The Space: the app of the package, over the model that `PROMPTCCD_MODEL` names."""

import os

from promptccd.app import LAUNCH, build_app

app = build_app(os.environ.get("PROMPTCCD_MODEL", "facebook/dinov2-small"))

if __name__ == "__main__":
    app.launch(
        **LAUNCH | {"server_name": None}
    )  # the Space says where to listen; elsewhere it is this machine alone
