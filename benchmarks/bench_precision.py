"""Whether the checkpoints of runs group their stages alike in float32 and in bfloat16."""

import argparse
from collections.abc import Sequence
from typing import Literal

import numpy as np

from promptccd.evaluation.accuracy import clustering_accuracy
from promptccd.evaluation.continual import ContinualAccuracy
from promptccd.models import CategoryDiscoveryModel
from promptccd.runs import RunEvaluation

Precision = Literal["float32", "bfloat16"]
PRECISIONS: tuple[Precision, ...] = ("float32", "bfloat16")


class InPrecision(RunEvaluation):
    """A run whose features are computed in one precision, whichever it was trained in."""

    def __init__(self, path: str, precision: Precision):
        super().__init__(path)
        self.precision = precision

    def load_stage(self, stage: int) -> CategoryDiscoveryModel:
        """See the base class."""
        model = super().load_stage(stage)
        model.config.precision = self.precision
        return model

    def groups(self) -> list[np.ndarray]:
        """Category ids of the images of every unlabelled stage, each ``(N,)``."""
        training = self.recipe.training
        rule = ContinualAccuracy(
            self.true_ids(self.images[0]),
            self.stages.num_known,
            restarts=training.kmeans_restarts,
            seed=training.seed,
        )
        for stage in range(1, self.num_stages):
            features = self.features(stage, self.images[: stage + 1])
            rule.discover(features, self.count_of_stage(stage).count)
        return rule.assigned[1:]


def main(argv: Sequence[str] | None = None) -> None:
    """Print, per run and stage, the share of images that lie in the same group, in percent."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="+", metavar="RUN")
    for path in parser.parse_args(argv).runs:
        one, other = (InPrecision(path, precision).groups() for precision in PRECISIONS)
        shares = [clustering_accuracy(a, b, []).all for a, b in zip(one, other, strict=True)]
        print(f"{path}: " + " ".join(f"{share:.1f}" for share in shares), flush=True)


if __name__ == "__main__":
    main()
