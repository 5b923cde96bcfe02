"""Does the mixture keep its categories over four stages of unit features with a falling spectrum?

Each stage fits to its own images, most of them new, and to replay of the last fit. Scored are the images of a stage
by their likeliest component, matched once to the true categories: ``old`` are those labelled at stage 0, ``later`` the
others. ``own_component`` is the share of the components there were before whose images are still of their category.

    python -m benchmarks.bench_mixture_stages --width 768 --power 0.8
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from promptccd.clustering import fit_gaussian_mixture
from promptccd.evaluation.accuracy import matched_categories
from promptccd.methods.promptccd import GaussianMixture

STAGE_0_IMAGES = 150  # of each category
REPLAY = 100
# Images of a category labelled at stage 0, found at an earlier stage, and new: the paper's cuts of 500.
STAGES = ((35, 100, 350), (15, 100, 450), (15, 100, 500))


@dataclass(frozen=True)
class Data:
    """Unit features around random directions.

    Attributes:
        centres: ``(C, D)``.
        scale: ``(D,)``, the spectrum; its squares sum to one.
        within: spread within a category, against that between them.
        generator: of all that is drawn.
    """

    centres: Tensor
    scale: Tensor
    within: float
    generator: torch.Generator

    def draw(self, sizes: Sequence[int], drift: Tensor) -> tuple[Tensor, Tensor]:
        """Features ``(N, D)`` after a drift ``(D, D)``, so many of each category, and their categories."""
        labels = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
        noise = torch.randn(len(labels), len(self.scale), generator=self.generator) * self.scale
        features = F.normalize(self.centres[labels] + self.within * noise, dim=-1)
        return F.normalize(features @ drift, dim=-1), labels


@dataclass(frozen=True)
class StageOutcome:
    """Shares in 0..1; see the module."""

    old: float
    later: float
    own_component: float


def stages(
    width: int,
    power: float,
    within: float,
    known: int,
    new: int,
    seed: int,
    drift: float,
    replay: int = REPLAY,
) -> dict[str, StageOutcome]:
    """The outcome of every unlabelled stage, with so many features drawn of every component of the last mixture."""
    generator = torch.Generator().manual_seed(seed)
    scale = torch.arange(1, width + 1).float() ** -power
    scale = (scale / scale.sum()).sqrt()
    total = known + len(STAGES) * new
    data = Data(torch.randn(total, width, generator=generator) * scale, scale, within, generator)
    moved = torch.eye(width)
    features, labels = data.draw([STAGE_0_IMAGES] * known, moved)
    mixture = fitted(features, labels, known, seed=0)
    owner = torch.arange(known)
    outcomes = {}
    for stage, (of_old, of_earlier, of_new) in enumerate(STAGES, start=1):
        moved = moved + drift * torch.randn(width, width, generator=generator) / width**0.5
        before = mixture.num_components
        sizes = [of_old] * known + [of_earlier] * (before - known) + [of_new] * new
        features, labels = data.draw(sizes, moved)
        drawn = mixture.sample(replay, torch.Generator().manual_seed(stage))
        fixed = torch.cat([torch.full_like(labels, -1), torch.arange(before).repeat_interleave(replay)])
        mixture = fitted(torch.cat([features, drawn]), fixed, before + new, seed=stage)
        best = mixture.log_joint(features).argmax(1)
        counts = torch.zeros(before + new, before + new, dtype=torch.int64)
        counts.index_put_((best, labels), torch.ones_like(best), accumulate=True)
        names = matched_categories(labels, best)
        right = torch.tensor([names.get(component, -1) for component in best.tolist()]) == labels
        old = labels < known
        now = counts.argmax(1).masked_fill(counts.sum(1) == 0, -1)
        kept = float((now[:before] == owner).float().mean())
        owner = now
        shares = [float(right[rows].float().mean()) for rows in (old, ~old)]
        outcomes[f"stage{stage}"] = StageOutcome(shares[0], shares[1], kept)
    return outcomes


def fitted(features: Tensor, fixed: Tensor, num_components: int, seed: int) -> GaussianMixture:
    """The mixture of a stage."""
    fit = fit_gaussian_mixture(features, num_components, fixed=fixed, seed=seed)
    mixture = GaussianMixture(num_components, features.shape[1], "diag")
    mixture.load(fit.means, fit.variances, fit.log_weights, fit.floor)
    return mixture


def main(argv: Sequence[str] | None = None) -> None:
    """Print the stages."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_mixture_stages")
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--power", type=float, default=0.8, help="the spectrum falls as i ** -power")
    parser.add_argument(
        "--within", type=float, default=0.7, help="spread within a category, against that between"
    )
    parser.add_argument("--known", type=int, default=30, help="categories of stage 0")
    parser.add_argument("--new", type=int, default=5, help="new categories per stage")
    parser.add_argument("--drift", type=float, default=0.0, help="how far features move from stage to stage")
    parser.add_argument("--replay", type=int, default=REPLAY, help="features drawn of every component")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    options = vars(parser.parse_args(argv))
    as_json = options.pop("json")
    outcomes = {stage: asdict(outcome) for stage, outcome in stages(**options).items()}
    if as_json:
        print(json.dumps(outcomes))
        return
    for stage, outcome in outcomes.items():
        shares = ", ".join(f"{name} {value:.1%}" for name, value in outcome.items())
        print(f"{stage}: {shares}")


if __name__ == "__main__":
    main()
