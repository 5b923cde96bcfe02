"""What Inference Endpoints call: pictures in, categories out.

It is part of every stage as handler.py, and needs `promptccd` on the endpoint (a ``requirements.txt`` with that line).
"""

import base64
import io
from typing import Any

import torch
from PIL import Image
from transformers import AutoImageProcessor, AutoModel

import promptccd  # noqa: F401 - makes the models known to AutoModel


class EndpointHandler:
    """Answers as `CategoryDiscoveryPipeline` does.

    Args:
        path: the folder of the stage.
    """

    def __init__(self, path: str = "") -> None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
        self.model = AutoModel.from_pretrained(path).to(device).eval()
        self.processor = AutoImageProcessor.from_pretrained(path, backend="pil")

    @torch.no_grad()
    def __call__(self, data: dict[str, Any]) -> Any:
        """The category of a picture, or a list of them.

        Args:
            data: ``inputs`` is a picture or a list of some: a PIL image, the bytes of a file, or those in base64.

        Raises:
            ValueError: an input is none of these, or no picture.
        """
        given = data.get("inputs", data)
        pictures = [_opened(each) for each in (given if isinstance(given, list) else [given])]
        pixels = self.processor(pictures, return_tensors="pt")["pixel_values"].to(self.model.device)
        found, config = self.model.assign(self.model.features_of(pixels)), self.model.config
        names = config.names_by_id
        answers = [
            {
                "category_id": category,
                "name": names[category],
                "known": category < config.num_known,
                "strange": strange,
                "confidence": confidence,
            }
            for category, strange, confidence in zip(
                found.category_ids.tolist(), found.strange.tolist(), found.confidences.tolist(), strict=True
            )
        ]
        return answers if isinstance(given, list) else answers[0]


def _opened(given: Any) -> Image.Image:
    try:
        if isinstance(given, str):
            given = base64.b64decode(given, validate=True)
        picture = Image.open(io.BytesIO(given)) if isinstance(given, bytes) else given
        return picture.convert("RGB")
    except (AttributeError, OSError, ValueError) as error:
        raise ValueError(
            f"Expected a picture, or the bytes of its file in base64, got a {type(given).__name__}: {error}"
        ) from error
