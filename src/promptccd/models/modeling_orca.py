"""ORCA: a cosine classifier on the features, with a margin that slows down labelled categories."""

from huggingface_hub.dataclasses import strict
from torch import Tensor

from .modeling_classifier import ClassifierConfig, HeadlessClassifierModel
from .untrusted import bounded


@strict
class ORCAConfig(ClassifierConfig):
    """ORCA.

    Attributes:
        logit_scale: factor of the cosines.
        largest_margin: upper bound of the margin, the mean uncertainty, that is added to the cosine of the true class.
    """

    model_type = "orca"

    logit_scale: float = bounded(10.0, 1e-6, 1e6)
    largest_margin: float = bounded(0.5, 0, 1e3)


class ORCAModel(HeadlessClassifierModel):
    """The last block and a cosine classifier; the margin of the epoch is saved for a stage that resumes inside it."""

    config: ORCAConfig
    margin: Tensor

    def __init__(self, config: ORCAConfig):
        super().__init__(config)
        self.add_buffer("margin")
