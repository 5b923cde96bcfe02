"""``CategoryDiscoveryPipeline``: the category of each image, known or discovered."""

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
from PIL import Image
from transformers import AutoModel, Pipeline
from transformers.image_utils import load_image
from transformers.pipelines import PIPELINE_REGISTRY
from transformers.pipelines.pt_utils import KeyDataset
from transformers.utils import ModelOutput

from promptccd.errors import shown
from promptccd.methods import METHODS  # noqa: F401 - registers every model
from promptccd.models import CategoryDiscoveryModel, CheckpointError, load_model
from promptccd.models.checkpoint import HUB_OPTIONS, PREPROCESSOR, load_processor

TASK = "category-discovery"
_PARAMETERS = ("top_k", "timeout", "batch_size", "num_workers")


class CategoryDiscoveryPipeline(Pipeline):
    """Assigns images to the categories of a finished stage; needs only its checkpoint.

    Images may be PIL images, paths, bytes, addresses of the web or uint8 arrays; one image gives one dictionary, a list
    or ``dataset["image"]`` a list, and a generator, a ``datasets.Dataset``, a stream of one, or a `KeyDataset` give
    results in sequence:
    ``category_id``, ``name``, ``known`` (labelled at stage 0), ``novel`` (more likely of no category) and
    ``confidence`` in 0..1. With ``top_k`` an image gives a list of that many, best first.

    Example:
        >>> from promptccd import CategoryDiscoveryPipeline
        >>> CategoryDiscoveryPipeline.from_pretrained("runs/promptccd-digits/stage3")(["a.png", "b.png"])

    ``transformers.pipeline("category-discovery", model=...)`` makes the same of a model of promptccd. Given another
    model that brings code, it asks whether to run it, before any code of this package is reached; `from_pretrained`
    never asks and never runs it.

    Web addresses are fetched by `transformers.image_utils.load_image` from any machine that this one can reach. A
    service that accepts addresses from its users must check them, or fetch the images itself.

    Raises:
        TypeError: an unknown argument.
        ValueError: an input is not a readable image; the reason is given.
    """

    # The processor saved with the model is read below: transformers would look for whatever class it names.
    _load_image_processor = _load_video_processor = False
    _load_tokenizer = _load_feature_extractor = _load_processor = False
    image_processor: Any

    def __init__(self, model: CategoryDiscoveryModel, **kwargs: Any):
        super().__init__(model, **kwargs)
        if self.image_processor is None:
            self.image_processor = load_processor(model.source) if model.source else None
        if self.image_processor is None:
            raise CheckpointError(
                f"{model.name_or_path or 'The model'} has no {PREPROCESSOR}, which says how images enter it: give "
                "image_processor."
            )

    @classmethod
    def from_pretrained(cls, name: str | os.PathLike[str], **kwargs: Any) -> "CategoryDiscoveryPipeline":
        """The pipeline of a checkpoint from anywhere, without running its code.

        Args:
            name: a folder or ``namespace/name``.
            kwargs: `HUB_OPTIONS` and ``max_model_bytes``, as in `CategoryDiscoveryModel.from_pretrained`; other
                keywords are for the pipeline (``device``, ``batch_size``).

        Raises:
            OSError: there is no such model.
            CheckpointError: a `ValueError`: it is no model of promptccd, or refused.
        """
        own = {key: kwargs.pop(key) for key in (*HUB_OPTIONS, "max_model_bytes") if key in kwargs}
        return cls(model=load_model(name, **own), task=TASK, **kwargs)

    def save_pretrained(self, save_directory: str | os.PathLike[str], **kwargs: Any) -> None:
        """Write what `from_pretrained` reads: the model and its image processor, without code of the pipeline."""
        self.model.save_pretrained(save_directory, **kwargs)
        self.image_processor.save_pretrained(save_directory)

    def __call__(self, inputs: Any, **kwargs: Any) -> Any:
        """The category of each image; see the class.

        Args:
            inputs: one image or many.
            kwargs: ``top_k`` for several results per image; ``timeout`` in seconds for images from the web;
                ``batch_size`` and ``num_workers``.
        """
        from datasets import Column, Dataset, IterableDataset

        from promptccd.data.labels import image_column_of

        if isinstance(inputs, list | Column) and not len(inputs):
            return []
        if isinstance(inputs, Column):  # a list whose images are read one by one
            return list(super().__call__((image for image in inputs), **kwargs))
        if isinstance(inputs, Dataset):
            inputs = KeyDataset(inputs, image_column_of(inputs))
        elif isinstance(inputs, IterableDataset) and inputs.features is not None:
            column = image_column_of(inputs)
            inputs = (row[column] for row in inputs)
        return super().__call__(inputs, **kwargs)

    def _sanitize_parameters(
        self, top_k: int | None = None, timeout: float | None = None, **unknown: Any
    ) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        if unknown:
            raise TypeError(f"Unknown arguments: {', '.join(unknown)}. Known: {', '.join(_PARAMETERS)}.")
        if top_k is not None and (type(top_k) is not int or top_k < 1):
            raise ValueError(f"Expected top_k to be a whole number >= 1, got {top_k!r}.")
        best = {} if top_k is None else {"top_k": top_k}
        return {} if timeout is None else {"timeout": timeout}, best, best

    def preprocess(self, image: Any, timeout: float | None = None) -> dict[str, Any]:
        """One image as `evaluate` and `predict` see it."""
        # Imported here, because this takes a second, and most users of a model read no data set.
        from promptccd.data.views import EvaluationView, normalise
        from promptccd.images.decode import Decoding, decode_image

        if isinstance(image, str) and image.startswith(("http://", "https://")):
            image = _fetched(image, timeout)
        view = EvaluationView(self.image_processor)
        decoding = Decoding(rendering=view.rendering)
        decoded = decoding.fitted(decode_image(_of_array(image), decoding))
        if decoded.image is None:
            raise ValueError(f"Cannot read {shown(image)}: {decoded.verdict.note}. Leave it out.")
        return {"pixel_values": normalise(view(decoded.image)[None], view.mean, view.std)}

    def _forward(self, inputs: dict[str, Any], top_k: int | None = None) -> ModelOutput:
        features = self.model.features_of(**inputs)
        ids, confidences = self.model.nearest(features, top_k or 1)
        novel = self.model.assign(features).novel
        return ModelOutput(category_ids=ids, confidences=confidences, novel=novel)

    def postprocess(
        self, outputs: Mapping[str, Any], top_k: int | None = None
    ) -> dict[str, Any] | list[dict[str, Any]]:
        """An image's category, or its best categories."""
        config = self.model.config
        ids, confidences = (outputs[name][0].tolist() for name in ("category_ids", "confidences"))
        found = [
            {
                "category_id": category,
                "name": config.id2label[category],
                "known": category < config.num_known,
                "novel": bool(outputs["novel"][0]),
                "confidence": confidence,
            }
            for category, confidence in zip(ids, confidences, strict=True)
        ]
        return found[0] if top_k is None else found


def _fetched(address: str, timeout: float | None) -> Image.Image:
    """The image at a web address; a `ValueError` without the address's query, which may contain a password."""
    shown = address.partition("?")[0]
    try:
        return load_image(address, timeout=timeout)
    except Exception as error:  # a dozen kinds of httpx and of Pillow
        raise ValueError(
            f"Cannot fetch the image {shown!r} ({type(error).__name__}). Check the address in a browser, or leave it "
            "out."
        ) from error


def _of_array(image: Any) -> Any:
    """An array of pixels as an image, anything else as it is; a `ValueError` for other arrays and for tensors."""
    is_bytes = isinstance(image, np.ndarray) and image.dtype == np.uint8
    if is_bytes and (image.ndim == 2 or image.shape[2:] in ((3,), (4,))):
        return Image.fromarray(image)
    if hasattr(image, "dtype"):
        raise ValueError(
            "Cannot read an image: expected an array of uint8 in the shape (H, W), (H, W, 3) or (H, W, 4), got "
            f"{image.dtype} in {tuple(image.shape)}. Give several images as a list."
        )
    return image


PIPELINE_REGISTRY.register_pipeline(
    TASK, pipeline_class=CategoryDiscoveryPipeline, pt_model=AutoModel, type="image"
)
