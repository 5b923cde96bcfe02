"""``CategoryDiscoveryPipeline``: which category each image belongs to, known or discovered."""

import os
from typing import Any

from transformers import AutoModel, Pipeline
from transformers.pipelines import PIPELINE_REGISTRY
from transformers.utils import ModelOutput

from promptccd.models import CategoryDiscoveryModel, CheckpointError, stored_model
from promptccd.models.loading import WHERE_TO_LOOK
from promptccd.models.stored_files import PREPROCESSOR, stored_processor

TASK = "category-discovery"


class CategoryDiscoveryPipeline(Pipeline):
    """Assigns images to the categories of a finished stage, from its checkpoint alone.

    Images may be PIL images, paths or bytes; one image gives one dictionary, a list gives a list:
    ``category_id``, ``name``, ``known`` (labelled at stage 0) and ``confidence`` in 0..1.

    Example:
        >>> from promptccd import CategoryDiscoveryPipeline
        >>> CategoryDiscoveryPipeline.from_pretrained("runs/promptccd-digits/stage3")(["a.png", "b.png"])

    ``transformers.pipeline("category-discovery", model=...)`` makes the same of a model of ours. Given another model
    that brings code, it asks whether to run it, before any code of this package is reached; `from_pretrained` never
    asks and never runs it.

    Raises:
        ValueError: an input is no image that can be read; the reason is given.
    """

    # The one beside the model is read here: transformers would look for whatever class it names.
    _load_image_processor = _load_video_processor = False
    _load_tokenizer = _load_feature_extractor = _load_processor = False
    image_processor: Any

    def __init__(self, model: CategoryDiscoveryModel, **kwargs: Any):
        super().__init__(model, **kwargs)
        if self.image_processor is None:
            place = model.name_or_path
            patch_size = model.config.vision_config.patch_size
            self.image_processor = stored_processor(place, patch_size, **model.looked) if place else None
        if self.image_processor is None:
            raise CheckpointError(
                f"{model.name_or_path or 'The model'} has no {PREPROCESSOR}, which says how images enter it: give "
                "image_processor."
            )

    @classmethod
    def from_pretrained(cls, name: str | os.PathLike[str], **kwargs: Any) -> "CategoryDiscoveryPipeline":
        """The pipeline of a checkpoint from anywhere; nothing is asked, and no code of it is run.

        Args:
            name: a folder, ``namespace/name`` or a bare name.
            kwargs: where to look and ``max_model_bytes``, as `CategoryDiscoveryModel.from_pretrained` takes them; the
                rest is for the pipeline (``device``, ``batch_size``).

        Raises:
            OSError: there is no such model.
            CheckpointError: a `ValueError`: it is none of ours, or refused.
        """
        own = {key: kwargs.pop(key) for key in (*WHERE_TO_LOOK, "max_model_bytes") if key in kwargs}
        return cls(model=stored_model(name, **own), task=TASK, **kwargs)

    def _sanitize_parameters(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        return {}, {}, {}

    def preprocess(self, image: Any, **parameters: Any) -> dict[str, Any]:
        """One image as `evaluate` and `predict` see it."""
        # Here, because reading data sets takes a second to import and most who load a model read none.
        from promptccd.data.images import decode_image
        from promptccd.data.views import EvaluationView, normalise

        decoded = decode_image(image)
        if decoded.image is None:
            raise ValueError(f"Cannot read an image: {decoded.verdict.note}. Leave it out.")
        view = EvaluationView(self.image_processor)
        return {"pixel_values": normalise(view(decoded.image)[None], view.mean, view.std)}

    def _forward(self, inputs: dict[str, Any], **parameters: Any) -> ModelOutput:
        found = self.model.assign(self.model.features_of(**inputs))
        return ModelOutput(
            category_ids=found.category_ids, confidences=found.confidences, strange=found.strange
        )

    def postprocess(self, outputs: ModelOutput, **parameters: Any) -> dict[str, Any]:
        """One image's category."""
        config = self.model.config
        category = int(outputs["category_ids"][0])
        return {
            "category_id": category,
            "name": config.names_by_id[category],
            "known": category < config.num_known,
            "strange": bool(outputs["strange"][0]),
            "confidence": float(outputs["confidences"][0]),
        }


PIPELINE_REGISTRY.register_pipeline(
    TASK, pipeline_class=CategoryDiscoveryPipeline, pt_model=AutoModel, type="image"
)

__all__ = ["TASK", "CategoryDiscoveryPipeline"]
