"""PA-CGCD a second time, as its paper prints it: plain torch in float64 over `Reference`.

Old is told from new by a net on features, as `docs/lab/baselines.md` says, where the paper's also trains the model.
"""

import math
import warnings

import torch
import torch.nn.functional as F
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture
from torch import Tensor, nn

from promptccd.data.randomness import torch_generator
from promptccd.data.stages import Stage
from tests.training.reference_classifiers import ClassifierReference
from tests.training.reference_networks import Weights, role, unit


class ProxyReference(ClassifierReference):
    """The proxy-anchor loss of labels, later of pseudo-labels and drawn features; AdamW."""

    def train(self, stage: Stage) -> Weights:
        """See the base class. No soft-max sees the bias of keys: its gradient is rounding, its steps are not."""
        return {
            name: value for name, value in super().train(stage).items() if not name.endswith("k_proj.bias")
        }

    @property
    def least_rows(self) -> int:
        """No term is a mean over a batch that fewer would spoil."""
        return 2

    def begin(self, num_categories: int) -> None:
        """Pseudo-labels of all images by the proxies there are, then a proxy for each of the new classes."""
        if self.stage == 0:
            return
        self.before = {name: value.detach() for name, value in self.w.items()}
        self.proxies = self.before["classifier.weight"]
        self.num_old, features = len(self.proxies), self.features()
        cosines = features @ unit(self.proxies).T
        similarity, self.old = cosines.max(1)
        is_old, is_new = self.split(features, similarity)
        count = num_categories - self.num_old
        asked = ~is_old
        asked[similarity.argsort()[: max(2, count)]] = True
        points = features[asked].numpy()
        start = KMeans(count, n_init=1, random_state=0).fit_predict(points)
        fewest = min((start == number).sum() for number in range(count))
        kind = "full" if fewest >= points.shape[1] else "diag"
        mixture = GaussianMixture(count, covariance_type=kind, max_iter=1000, tol=1e-4, random_state=0)
        self.new = torch.full_like(self.old, -1)
        self.new[asked] = self.num_old + torch.from_numpy(mixture.fit_predict(points))
        self.old[is_new] = -1
        centres = unit(torch.from_numpy(mixture.means_))
        self.w["classifier.weight"] = torch.cat([self.proxies, centres])

    def split(self, features: Tensor, similarity: Tensor) -> tuple[Tensor, Tensor]:
        """Who is clearly old and who clearly new, by a net that learns what is clear already, round by round."""
        options, generator = self.nets.model, torch_generator("objective", self.t.seed, self.stage)
        old, new = similarity >= options.clear_similarity, similarity < -options.clear_similarity
        if min(old.double().mean(), new.double().mean()) < 0.05:
            old, new = self.clear(-similarity)
        net, kept = net_of_three(features.shape[1], generator), {}
        for _ in range(options.split_rounds):
            seen = (old | new).nonzero()[:, 0]
            for _ in range(options.split_epochs):
                order = seen[torch.randperm(len(seen), generator=generator)]
                size = min(64, len(order))
                for first in range(0, len(order) - size + 1, size):
                    batch = order[first : first + size]
                    loss = F.cross_entropy(net(features[batch]), new[batch].long())
                    found = torch.autograd.grad(loss, list(net.parameters()))
                    for (name, value), gradient in zip(net.named_parameters(), found, strict=True):
                        value.data = adamw(
                            kept, name, value.data, gradient, options.split_learning_rate, 5e-3
                        )
            with torch.no_grad():
                old, new = self.clear(-net.eval()(features).log_softmax(1)[:, 0])
            net.train()
        return old, new

    def clear(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """By the chance that a value is of the lower of two Gaussians."""
        scaled = ((values - values.min()) / (values.max() - values.min()))[:, None].numpy()
        mixture = GaussianMixture(2, max_iter=10, tol=1e-2, reg_covar=5e-4, random_state=0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            chance = torch.from_numpy(mixture.fit(scaled).predict_proba(scaled)[:, mixture.means_.argmin()])
        return chance >= self.nets.model.clear_chance, chance < 1 - self.nets.model.clear_chance

    def loss(self, pixels: Tensor, labels: Tensor | None, epoch: int) -> Tensor:
        """Of the first view alone."""
        pixels = pixels[: len(pixels) // 2]
        raw = self.nets.plain(self.w, pixels)[0]
        if labels is not None:
            return self.anchor(unit(raw), labels)
        old, new = self.old[self.positions], self.new[self.positions]
        count = int((old >= 0).sum())
        generator = torch_generator("objective", self.t.seed, self.stage, self.epoch, self.step)
        classes = torch.randint(self.num_old, (count,), generator=generator)
        noise = torch.randn(count, raw.shape[1], generator=generator).double()
        drawn = self.proxies[classes] + self.deviations * noise
        features = torch.cat([raw[old >= 0], raw[new >= 0], drawn])
        loss = self.anchor(unit(features), torch.cat([old[old >= 0], new[new >= 0], classes]))
        if (new >= 0).sum() < 2:
            return loss
        moved = unit(self.nets.plain(self.before, pixels)[0])[new >= 0] - unit(raw)[new >= 0]
        return loss + self.nets.model.distill_weight * moved.norm() / math.sqrt(len(moved))

    def anchor(self, features: Tensor, labels: Tensor) -> Tensor:
        """Proxy-anchor: the proxies that have images pull them, all proxies push all others."""
        alpha, margin = self.nets.model.proxy_scale, self.nets.model.proxy_margin
        cosines, pulls, pushes = features @ unit(self.w["classifier.weight"]).T, [], []
        for proxy, column in enumerate(cosines.T):
            own, others = column[labels == proxy], column[labels != proxy]
            pushes.append((1 + (alpha * (others + margin)).exp().sum()).log())
            if len(own):
                pulls.append((1 + (-alpha * (own - margin)).exp().sum()).log())
        return torch.stack(pulls).mean() + torch.stack(pushes).mean()

    def clipped(self, gradients: Weights) -> Weights:
        """Of proxies alone in the first epochs; at stage 0 no value larger than allowed."""
        options = self.nets.model
        share, epochs = options.discovery_warmup_share, self.t.discovery_epochs
        if self.stage == 0:
            share, epochs = options.warmup_share, self.t.epochs
            most = options.largest_gradient
            gradients = {name: each.clamp(-most, most) for name, each in gradients.items()}
        waits = self.epoch < round(share * epochs)
        return {name: each for name, each in gradients.items() if role(name) == "classifier" or not waits}

    def moved(self, name: str, value: Tensor, gradient: Tensor, rate: float, decay: float) -> Tensor:
        """AdamW's."""
        return adamw(self.kept_by_optimizer, name, value, gradient, rate, decay)

    def end(self) -> None:
        """How far features of stage 0 spread."""
        if self.stage == 0:
            self.deviations = self.features().std(0)
        self.extra = {"feature_deviations": self.deviations}


def adamw(kept: Weights, name: str, value: Tensor, gradient: Tensor, rate: float, decay: float) -> Tensor:
    """A parameter after a step of AdamW, betas .9 and .999, eps 1e-8."""
    count, mean, square = kept.get(name, (0, 0.0, 0.0))
    count, mean, square = count + 1, 0.9 * mean + 0.1 * gradient, 0.999 * square + 0.001 * gradient**2
    kept[name] = (count, mean, square)
    steep = (square / (1 - 0.999**count)).sqrt() + 1e-8
    return (1 - rate * decay) * value - rate * (mean / (1 - 0.9**count)) / steep


def net_of_three(width: int, generator: torch.Generator) -> nn.Sequential:
    """D to 32 to 32 to 2, batch norm and sigmoid between, as torch draws it."""
    layers: list[nn.Module] = []
    for entering, leaving in ((width, 32), (32, 32), (32, 2)):
        linear = nn.Linear(entering, leaving).double()
        for values in (linear.weight, linear.bias):
            drawn = torch.empty(values.shape).uniform_(-(entering**-0.5), entering**-0.5, generator=generator)
            values.data = drawn.double()
        layers += [linear, nn.BatchNorm1d(leaving).double(), nn.Sigmoid()]
    return nn.Sequential(*layers[:-2])
