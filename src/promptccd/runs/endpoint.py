"""The handler of Inference Endpoints: images in, categories out. Every stage stores this file as handler.py."""

import base64
import io
from typing import Any

import torch
from PIL import Image

from promptccd.pipeline import CategoryDiscoveryPipeline


class EndpointHandler:
    """Answers requests with `CategoryDiscoveryPipeline`.

    Args:
        path: the folder of the stage.
    """

    def __init__(self, path: str = "") -> None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
        self.pipeline = CategoryDiscoveryPipeline.from_pretrained(path, device=device)

    def __call__(self, data: dict[str, Any]) -> Any:
        """The category of an image, or a list of categories for a list of images.

        Args:
            data: ``inputs`` is an image or a list of images: a PIL image, the bytes of a file, or these in base64.

        Raises:
            ValueError: an input is no image.
        """
        inputs = data.get("inputs", data)
        images = [_decoded(each) for each in (inputs if isinstance(inputs, list) else [inputs])]
        answers = self.pipeline(images)
        return answers if isinstance(inputs, list) else answers[0]


def _decoded(image: Any) -> Image.Image:
    try:
        if isinstance(image, str):
            image = base64.b64decode("".join(image.split()), validate=True)  # programs write it in lines
        opened = Image.open(io.BytesIO(image)) if isinstance(image, bytes) else image
        return opened.convert("RGB")
    except (AttributeError, OSError, ValueError) as error:
        kind = type(image).__name__
        raise ValueError(
            f"Expected an image, or the bytes of its file in base64, got {kind}: {error}"
        ) from error
