"""``pipeline("category-discovery", model=...)``: which category each image belongs to, known or discovered."""

from typing import Any

from transformers import AutoModel, Pipeline
from transformers.pipelines import PIPELINE_REGISTRY
from transformers.utils import ModelOutput

TASK = "category-discovery"


class CategoryDiscoveryPipeline(Pipeline):
    """Assigns images to the categories of a finished stage, from its checkpoint alone.

    Images may be PIL images, paths or bytes; one image gives one dictionary, a list gives a list:
    ``category_id``, ``name``, ``known`` (labelled at stage 0) and ``confidence`` in 0..1.

    Example:
        >>> import promptccd
        >>> from transformers import pipeline
        >>> pipeline("category-discovery", model="runs/promptccd-digits/stage3")(["a.png", "b.png"])

    Raises:
        ValueError: an input is no image that can be read; the reason is given.
    """

    _load_image_processor = True
    _load_tokenizer = _load_feature_extractor = _load_processor = False

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
        found = self.model.assign(self.model(**inputs).features)
        return ModelOutput(category_ids=found.category_ids, confidences=found.confidences)

    def postprocess(self, outputs: ModelOutput, **parameters: Any) -> dict[str, Any]:
        """One image's category."""
        config = self.model.config
        category = int(outputs["category_ids"][0])
        return {
            "category_id": category,
            "name": config.names_by_id[category],
            "known": category < config.num_known,
            "confidence": float(outputs["confidences"][0]),
        }


PIPELINE_REGISTRY.register_pipeline(
    TASK, pipeline_class=CategoryDiscoveryPipeline, pt_model=AutoModel, type="image"
)

__all__ = ["TASK", "CategoryDiscoveryPipeline"]
