"""Every evaluation protocol of the paper in words, and the three parts of an accuracy.

For help and messages, without torch or NumPy; `promptccd.evaluation.protocols`
scores by them.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from promptccd.errors import ConfigurationError

EstimatorName = Literal["split_merge", "kmeans"]
# In tables: of a method's classifier, its own or a calibrated mixture.
NATIVE_PREDICTION = "native prediction"
ESTIMATORS: tuple[EstimatorName, ...] = ("split_merge", "kmeans")
OUTCOMES = ("consistent", "impossible", "undecided")  # of an audit of printed accuracies


class ClusteringAccuracy(NamedTuple):
    """Accuracies in percent; NaN where there is no image of the class.

    Attributes:
        all: over all images.
        old: over images of initially labelled categories.
        new: over all other categories.
    """

    all: float
    old: float
    new: float


PARTS = ClusteringAccuracy._fields


@dataclass(frozen=True)
class ProtocolTerms:
    """A protocol in words."""

    text: str
    counted: str = "categories"  # definition of the groups
    options: tuple[str, ...] = ()  # of `options_by_protocol` that it reads
    has_baselines: bool = True  # whether it can score features of another model


_SEEN = "test images of all categories seen so far"

PROTOCOLS = {
    "cacc": ProtocolTerms("continual accuracy, Algorithm 1: predicted labels accumulate"),
    "gcd": ProtocolTerms("GCD's accuracy at every stage: the labelled set stays as it was"),
    "inductive": ProtocolTerms(
        "continual accuracy on unseen images: stages cut by the same rule from the test split",
        options=("test_split",),
    ),
    "unknown": ProtocolTerms(
        "continual accuracy with an unknown number of categories, estimated at every stage",
        options=("estimator",),
    ),
    "pa-cgcd": ProtocolTerms(
        "PA-CGCD's setting: M_all, M_o, M_f and M_d on the unlabelled images of the stage"
    ),
    "pa-cgcd-test": ProtocolTerms(
        f"the same on {_SEEN}, each in the category of its nearest prototype", options=("test_split",)
    ),
    "metagcd": ProtocolTerms(
        f"MetaGCD's setting: {_SEEN}, plain k-means without labels", options=("test_split",)
    ),
    "native": ProtocolTerms(
        "the method's native prediction: of its classifier or mixture, else of a calibrated mixture over its features"
    ),
    "c-gcd": ProtocolTerms(
        f"C-GCD, the setting of Happy: native predictions on {_SEEN}; Old are all categories of earlier stages",
        counted="classes",
        options=("test_split",),
    ),
    "calibrated": ProtocolTerms(
        "a calibrated mixture over the same features: known categories from labels, new categories from streams"
    ),
    "part-routing": ProtocolTerms(
        "PromptCCD++: share of patches that are routed to the part they are labelled with",
        counted="parts",
        has_baselines=False,
    ),
}


def options_by_protocol(
    names: Iterable[str], test_split: str | None = None, estimator: str | None = None
) -> dict[str, dict[str, str]]:
    """The given options by protocol, as far as each reads them.

    Args:
        names: of protocols.
        test_split: split of the data set with the test images; by default the images that the run left out, else
            the benchmark's.
        estimator: of the number of categories; by default ``split_merge``.

    Raises:
        ConfigurationError: an unknown protocol or estimator, or an option without effect.
    """
    chosen, options = dict.fromkeys(names), {"test_split": test_split, "estimator": estimator}
    given = {name: value for name, value in options.items() if value is not None}
    if unknown := [name for name in chosen if name not in PROTOCOLS]:
        raise ConfigurationError(f"Expected protocol to be {' | '.join(PROTOCOLS)}, got {unknown[0]!r}.")
    if estimator not in (None, *ESTIMATORS):
        raise ConfigurationError(f"Expected estimator to be {' | '.join(ESTIMATORS)}, got {estimator!r}.")
    for option, value in given.items():
        readers = [name for name, each in PROTOCOLS.items() if option in each.options]
        if not {*readers} & {*chosen}:
            raise ConfigurationError(
                f"{option} {value!r} changes nothing for protocol {', '.join(chosen)}: leave it out, or choose "
                f"{' or '.join(readers)}."
            )
    return {
        name: {option: value for option, value in given.items() if option in PROTOCOLS[name].options}
        for name in chosen
    }
