"""MetaGCD: GCD's model; what is its own is how it is trained."""

from huggingface_hub.dataclasses import strict

from .configuration_promptccd import GCDConfig
from .modeling_gcd import GCDModel


@strict
class MetaGCDConfig(GCDConfig):
    """MetaGCD.

    Attributes:
        neighbour_threshold: two images are neighbours whose embeddings have this cosine or more, in the pair of views
            where it is largest.
        neighbour_weight: share of the second term in the losses of unlabelled stages and of meta-training: of soft
            neighbours there, of true labels here.
        meta_episodes: how often the labelled classes are split into old and novel ones; 0 leaves meta-training out.
        meta_sessions: pseudo-sessions of an episode.
        meta_epochs: epochs that a session adapts for.
        meta_learning_rate: of the step that follows each session.
    """

    model_type = "metagcd"

    neighbour_threshold: float = 0.85
    neighbour_weight: float = 0.5
    meta_episodes: int = 20
    meta_sessions: int = 3
    meta_epochs: int = 10
    meta_learning_rate: float = 1e-5


class MetaGCDModel(GCDModel):
    """The last block and GCD's head."""

    config: MetaGCDConfig
