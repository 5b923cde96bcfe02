"""VB-CGCD (Dai and Chauhan, ICML 2025): a Gaussian for each class over features that only stage 0 trains.

A stream is clustered into as many clusters as there are new classes. Each cluster gets a Gaussian, images that an
earlier class explains better leave, and the new Gaussians are fitted again. Those of earlier classes never change.

Departures: stage 0 trains the last block as in Happy, not all blocks by BOFT, and k-means clusters, not a mixture. The
default estimate is ours: a covariance in closed form, shrunk towards that within labelled classes, by a weight chosen
on 20 classes of CIFAR-100 and Caltech-101. ``svi`` is the paper's, with rates and stopping of the released code.
"""

import logging
import math
from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from huggingface_hub.dataclasses import strict
from torch import Tensor
from torch.distributions import MultivariateNormal

from promptccd.clustering import AnchoredKMeans
from promptccd.data.randomness import seed_of
from promptccd.methods.base import Method
from promptccd.methods.classifier import ClassifierConfig, ClassifierModel, ClassifierObjective
from promptccd.methods.processes import Rows, exact_device, same_on_all
from promptccd.models.configuration import bounded

logger = logging.getLogger(__name__)

SHARED_SHRINKAGE = 0.1  # of the shared covariance towards one variance in all directions
LEAST_VARIANCE = 1e-6  # of directions whose mean variance is 1
LOGIT_TEMPERATURE = 0.1  # of the classifier of stage 0, as in Happy
CONTRAST_WEIGHT = 0.35  # of InfoNCE at stage 0; cross-entropy of labels has the other part of 1
MOST_DIRECTIONS = 384  # principal directions of the labelled features, as in the paper
SVI_STEPS, SVI_BATCH = 1_000, 128  # of the released code


@strict
class VBCGCDConfig(ClassifierConfig):
    """VB-CGCD.

    Attributes:
        estimate: ``shrunk``, a covariance in closed form, or ``svi``, the paper's gradient steps from N(0, I).
        prior_weight: images per direction that the shared covariance counts for in ``shrunk``.
        early_stop: whether ``svi`` stops where new covariances differ in size from earlier covariances.
        relabel: whether images that an earlier class explains better leave their cluster.
        num_gaussians: classes with a Gaussian; sizes the buffer.
        num_directions: principal directions in use; sizes the buffers.
    """

    model_type = "vb-cgcd"

    estimate: Literal["shrunk", "svi"] = "shrunk"
    prior_weight: float = bounded(16.0, 1e-3, 1e12)  # 0 makes covariances of few images singular
    early_stop: bool = True
    relabel: bool = True
    num_gaussians: int = bounded(0, 0, 100_000, stored=True)
    num_directions: int = bounded(0, 0, 8_192, stored=True)


class VBCGCDModel(ClassifierModel):
    """The last block and a Gaussian for each class; the classifier of stage 0 predicts nothing later.

    `class_gaussians`, ``(K, d, 1 + d)``, are mean and covariance of each class along d principal directions. The
    directions are columns of `axes`, ``(1 + D, d)``, scaled to a mean variance of 1, after a row that centres.
    `shared`, ``(d, d)``, is the covariance within labelled classes.
    """

    config: VBCGCDConfig
    axes: Tensor
    shared: Tensor
    class_gaussians: Tensor

    def __init__(self, config: VBCGCDConfig):
        super().__init__(config)
        size = config.num_directions
        self.register_buffer("axes", torch.zeros(1 + config.vision_config.hidden_size, size))
        self.register_buffer("shared", torch.zeros(size, size))
        self.register_buffer("class_gaussians", torch.zeros(config.num_gaussians, size, 1 + size))

    def project(self, features: Tensor) -> Tensor:
        """Unit features ``(N, D)`` along the principal directions: ``(N, d)`` in float64."""
        points = features.to(exact_device(features.device)).double()
        return points @ self.axes[1:].to(points) + self.axes[0].to(points)

    @torch.no_grad()
    def assign_natively(self, features: Tensor) -> Tensor:
        """Class ``(N,)`` of the largest density for features ``(N, D)``."""
        points = self.project(features)
        return log_densities(points, self.class_gaussians.to(points)).argmax(1).to(features.device)


class VBCGCDObjective(ClassifierObjective):
    """Cross-entropy of labels and InfoNCE at stage 0; later nothing learns, and the end of a stage adds Gaussians."""

    model: VBCGCDModel

    def losses(self, rows: Rows) -> dict[str, Tensor]:
        """``classification`` and ``info_nce`` at stage 0; later 0."""
        if rows.labelled is None:
            return {"loss": 0 * (rows.bottleneck.sum() + self.model.classifier(rows.features).sum())}
        which, labels = rows.labelled
        logits = self.model.classifier(rows.features[:, which]).flatten(0, 1) / LOGIT_TEMPERATURE
        classification = F.cross_entropy(logits, labels.repeat(len(rows.features)))
        info_nce = self.contrast(rows)["info_nce"]
        loss = torch.lerp(classification, info_nce, CONTRAST_WEIGHT)
        return {"loss": loss, "classification": classification, "info_nce": info_nce}

    def adjust_gradients(self, epoch: int) -> None:
        """Keep every parameter after stage 0."""
        if self.stage.labels is None:
            self.model.zero_grad()

    @torch.no_grad()
    def end_stage(self) -> None:
        """Fit the principal directions and the Gaussians of labelled classes, or the Gaussians of new classes."""
        features, model, labels = self.plain_features("features of Gaussians"), self.model, self.stage.labels
        if labels is not None:
            self._fit_directions(features, labels)
        points, count = model.project(features), self.stage.count - len(model.class_gaussians)
        if count > 0:
            new = (
                self._discovered(points, count) if labels is None else self._estimated(points, labels, count)
            )
            new = same_on_all(new).to(model.class_gaussians)
            model.class_gaussians = torch.cat([model.class_gaussians, new])
            model.config.num_gaussians = len(model.class_gaussians)

    def _fit_directions(self, features: Tensor, labels: Tensor) -> None:
        """Principal directions of the labelled features, and the covariance within their classes."""
        model, points = self.model, features.to(exact_device(features.device)).double()
        size = max(1, min(MOST_DIRECTIONS, points.shape[1], len(points) - 1))
        values, directions = torch.linalg.eigh(torch.cov(points.T, correction=0))
        axes = directions[:, -size:] * values[-size:].mean().clamp(min=LEAST_VARIANCE**2).rsqrt()
        model.axes = same_on_all(torch.cat([-points.mean(0, keepdim=True) @ axes, axes])).to(model.prototypes)
        points, own = model.project(features), F.one_hot(labels).to(points)
        rest = points - own @ (own.T @ points / own.sum(0)[:, None].clamp(min=1))
        within = rest.T @ rest / len(rest)
        spherical = (within.trace() / size).clamp(min=LEAST_VARIANCE) * torch.eye(size).to(within)
        shared = torch.lerp(within, spherical, SHARED_SHRINKAGE)
        model.shared, model.config.num_directions = same_on_all(shared).to(model.prototypes), size
        model.class_gaussians = model.shared.new_zeros(0, size, 1 + size)

    def _discovered(self, points: Tensor, count: int) -> Tensor:
        """Gaussians of the new classes of a stream."""
        seed = seed_of("vb-cgcd", self.arguments.seed, self.stage.images.stage.index) % 2**32
        kmeans = AnchoredKMeans(min(count, len(points)), self.arguments.kmeans_restarts, random_state=seed)
        clusters = kmeans.fit_predict(points)
        found, old = self._estimated(points, clusters, count), self.model.class_gaussians.to(points)
        if self.config.relabel:
            stays = log_densities(points, torch.cat([old, found])).argmax(1) >= len(old)
            logger.info("%d of %d images look like earlier classes.", int((~stays).sum()), len(stays))
            again = self._estimated(points[stays], clusters[stays], count, second=True)
            enough = clusters[stays].bincount(minlength=count) > 1  # else the first Gaussian stays
            found[enough] = again[enough]
        return found

    def _estimated(self, points: Tensor, groups: Tensor, count: int, second: bool = False) -> Tensor:
        """A Gaussian for each group ``(N,)`` of points ``(N, d)``."""
        config, old = self.model.config, self.model.class_gaussians.to(points)
        groups = groups.to(points.device)
        if config.estimate == "shrunk":
            weight = config.prior_weight * points.shape[1]
            return shrunk_estimate(points, groups, count, self.model.shared.to(points), weight)
        stop, generator = None, self.generator(int(second))
        if config.early_stop and self.stage.labels is None:
            ratio = math.sqrt(count / (len(old) + count)) if second else (len(old) + count) / config.num_known
            stop = stopping_rule(old if second else old[: config.num_known], ratio)
        return svi_estimate(points, groups, count, SVI_STEPS, SVI_BATCH, generator, stop)


def log_densities(points: Tensor, gaussians: Tensor) -> Tensor:
    """Log densities ``(N, K)`` of points ``(N, d)``, class by class, which saves memory."""
    classes = [MultivariateNormal(each[:, 0], each[:, 1:], validate_args=False) for each in gaussians]
    return torch.stack([each.log_prob(points) for each in classes], dim=1)


def shrunk_estimate(points: Tensor, groups: Tensor, count: int, shared: Tensor, weight: float) -> Tensor:
    """Mean, and ``(Q + nu S) / (n + nu)`` of squared deviations Q of n points and the shared covariance S.

    A group without points gets no image: its mean is far away.
    """
    found = torch.cat([torch.full_like(shared[:, :1], 1e3), shared], dim=1).repeat(count, 1, 1)
    for group in range(count):
        members = points[groups == group]
        if len(members):
            rest = members - members.mean(0)
            found[group, :, 0] = members.mean(0)
            found[group, :, 1:] = (rest.T @ rest + weight * shared) / (len(members) + weight)
    return found


def svi_estimate(
    points: Tensor, groups: Tensor, count: int, steps: int, batch: int, generator: torch.Generator,
    stop: Callable[[Tensor], bool] | None = None,
) -> Tensor:  # fmt: skip
    """Adam on the likelihood of all groups together, from mean 0 and covariance I.

    It ends before a covariance is no longer positive definite. After a third of the steps, it also ends when `stop`
    is true, with the step before.
    """
    state = torch.eye(1 + points.shape[1])[1:].to(points).repeat(count, 1, 1).requires_grad_()
    adam = torch.optim.Adam([state], lr=1.0, maximize=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(adam, svi_rate)
    before = state.detach().clone()
    for step in range(steps if len(points) else 0):
        if stop is not None and step >= steps // 3 and stop(state.detach()):
            return before
        before = state.detach().clone()
        rows = torch.randint(len(points), (batch,), generator=generator).to(points.device)
        adam.zero_grad()
        for group in groups[rows].unique().tolist():
            with torch.enable_grad():
                log_densities(points[rows[groups[rows] == group]], state[group, None]).sum().backward()
        adam.step()
        schedule.step()
        if bool(torch.linalg.cholesky_ex(state.detach()[..., 1:]).info.any()):
            return before
    return state.detach()


def svi_rate(step: int) -> float:
    """Adam's rate in a step: it rises for 100 steps, and then falls by 15 % in every 500."""
    return min(4e-6 + 3.6e-5 * step / 100, 4e-5 * 0.85 ** ((step - 100) / 500))


def stopping_rule(old: Tensor, ratio: float) -> Callable[[Tensor], bool]:
    """Whether the mean determinant of new Gaussians differs too much from old Gaussians."""
    size = mean_determinant(old)
    border = size + math.copysign(1, size) * math.log(ratio)
    return lambda new: mean_determinant(new) > border if size > 0 else mean_determinant(new) < border


def mean_determinant(gaussians: Tensor) -> float:
    """Log of the mean determinant of the covariances."""
    return float(torch.linalg.slogdet(gaussians[..., 1:]).logabsdet.logsumexp(0)) - math.log(len(gaussians))


METHOD = Method(
    name="vb-cgcd",
    model=VBCGCDModel,
    objective=VBCGCDObjective,
    title="VB-CGCD",
    summary="a Gaussian for each class over features of stage 0",
    parts={"classifier": "cosine classifier of stage 0"},
    losses={"classification": "cross-entropy of labels"},
    predicts_natively=True,
)
