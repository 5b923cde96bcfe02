"""The training a second time, as the paper prints it: plain torch in float64, slow and short.

It shares no code with `promptccd.training` or the models: losses, optimiser, schedule, warm-up, refits, replay and the
teacher are written out. What it takes from the package is held elsewhere: how images are cut, cropped and keyed by
position, and the fits of `clustering`.
"""

import math
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from sklearn.cluster import KMeans
from torch import Tensor
from transformers import Dinov2Model

from promptccd import clustering
from promptccd.data import views as viewing
from promptccd.data.randomness import numpy_generator, seed_of, torch_generator
from promptccd.data.stages import Stage
from tests.training.reference_networks import Networks, Weights, bottleneck, covariances, eq5, role, unit

NATIVE = "native answers"


def _of_fit(name: str, fit: tuple[Tensor, ...]) -> Weights:
    parts = [f"{name}.{part}" for part in ("means", "variances", "log_weights", "floor")]
    return dict(zip(parts, fit, strict=False))


class Reference:
    """One run, of which a step of fewer images than `least_share` of a batch, or of a lone one, is left out.

    Args:
        kind: the method's forward in `Networks`.
        backbone: the pretrained one.
        start: first values of all that learns, by the names of a checkpoint.
        options: how views are made.
        model: the recipe's section, for sizes and weights of prompts.
        training: the recipe's section.
    """

    least_share = 0.0

    def __init__(
        self,
        kind: str,
        backbone: Dinov2Model,
        start: Weights,
        options: viewing.ViewOptions,
        model: dict[str, Any],
        training: dict[str, Any],
    ):
        self.nets, self.t = Networks(backbone, SimpleNamespace(**model)), SimpleNamespace(**training)
        self.kind, self.forward, self.names = kind, getattr(self.nets, kind), list(start)
        self.extra: Weights = {}  # of what a method keeps beside what learns
        self.prediction: Weights = {}
        self.w = self.nets.pretrained | {name: value.double() for name, value in start.items()}
        self.training_views = viewing.TrainingViews(options)
        self.fixed_view = viewing.EvaluationView(viewing.build_image_processor(options))
        self.side = options.image_size // backbone.config.patch_size
        self.replay, self.known = torch.zeros(0, backbone.config.hidden_size), torch.zeros(0).long()

    def train(self, stage: Stage) -> Weights:
        """All that learns, and the mixture, after a stage."""
        t, images = self.t, [stage.decode(position).image for position in range(len(stage))]
        self.stage, self.labels = stage.index, torch.tensor(getattr(stage, "labels", []))
        self.fixed = torch.stack([viewing.normalise(self.fixed_view(image)).double() for image in images])
        if self.kind == "parts" and self.stage == 0:
            self.fit_parts()
        self.learning = [name for name in self.names if self.stage == 0 or not name.startswith("router.")]
        self.begin(stage.num_categories)
        velocities: Weights = {}
        for epoch in range(t.epochs if self.stage == 0 else t.discovery_epochs):
            self.epoch = epoch
            if self.kind.endswith("gaussians") and epoch % t.refit_every == 0:
                self.refit(epoch, stage.num_categories)
            order = numpy_generator("order", t.seed, self.stage, epoch).permutation(len(stage))
            for self.step, first in enumerate(range(0, len(order), t.batch_size)):
                rows = order[first : first + t.batch_size]
                if len(rows) < max(2, self.least_share * t.batch_size):
                    continue
                pixels = self.drawn([images[row] for row in rows], stage.sample_ids[rows], epoch)
                labels = self.labels[rows] if self.stage == 0 else None
                self.w |= {name: self.w[name].detach().requires_grad_() for name in self.learning}
                loss = self.loss(pixels, labels, epoch)
                found = torch.autograd.grad(loss, [self.w[name] for name in self.learning])
                for name, gradient in self.clipped(dict(zip(self.learning, found, strict=True))).items():
                    value = self.w[name].detach()
                    decay = t.weight_decay if value.ndim > 1 or t.decay_vectors else 0.0
                    rate = getattr(t, f"{role(name)}_learning_rate", t.learning_rate)
                    velocity = t.momentum * velocities.get(name, 0.0) + gradient + decay * value
                    velocities[name] = velocity
                    self.w[name] = value - self.share() * rate * velocity
        if self.kind == "gaussians":
            self.answer()
        if self.stage == 0:
            self.hand_on()
        self.end()
        ended = {name: self.w[name] for name in self.names} | self.extra
        return ended | _of_fit("mixture", self.nets.mixture) | self.prediction

    def begin(self, num_categories: int) -> None:
        """Before the first epoch of a stage."""

    def end(self) -> None:
        """After its last."""

    def share(self) -> float:
        """What is left of every rate in this epoch."""
        t = self.t
        shrunk = 1.0 if self.stage == 0 else t.discovery_learning_rate / t.learning_rate
        epochs, last = t.epochs if self.stage == 0 else t.discovery_epochs, t.final_learning_rate_factor
        return shrunk * (last + (1 - last) * (1 + math.cos(math.pi * self.epoch / epochs)) / 2)

    def clipped(self, gradients: Weights) -> Weights:
        """Gradients of a role shortened together where they are longer than allowed."""
        for kind in ("prompt", "key", "router"):
            names = [name for name in gradients if role(name) == kind]
            length = math.hypot(*(float(gradients[name].norm()) for name in names))
            shorter = min(1.0, getattr(self.t, f"{kind}_clip") / max(length, 1e-12))
            gradients |= {name: gradients[name] * shorter for name in names}
        return gradients

    def drawn(self, images: list[Any], sample_ids: Any, epoch: int) -> Tensor:
        """View 1 of all images, then view 2 of all: ``(2B, 3, S, S)``."""
        keys = [("view", self.t.seed, self.stage, epoch, int(sample)) for sample in sample_ids]
        generators = [numpy_generator(*key) for key in keys]
        pairs = [self.training_views(*drawing) for drawing in zip(images, generators, strict=True)]
        return viewing.normalise(torch.stack(pairs, dim=1).flatten(0, 1)).double()

    def loss(self, pixels: Tensor, labels: Tensor | None, epoch: int) -> Tensor:
        """What the gradient is of."""
        return self.terms(pixels, labels, epoch)["loss"]

    def terms(self, pixels: Tensor, labels: Tensor | None, epoch: int) -> Weights:
        """Eq. 5 with the other view as the positive, at stage 0 mixed with that of labels, and what prompts add."""
        features, added = self.forward(self.w, pixels, epoch >= self.t.prompt_warmup_epochs)
        z, rows = self.nets.project(self.w, features), torch.arange(len(pixels))
        alike = rows[:, None] == rows.roll(len(rows) // 2)
        terms = {"info_nce": eq5(z, alike, self.t.temperature_unsupervised)}
        loss, share = terms["info_nce"], self.t.supervised_weight
        if labels is not None:
            terms["supervised"] = self.supervised(z, labels)
            loss = (1 - share) * loss + share * terms["supervised"]
        return terms | added | {"loss": loss + sum(added.values())}

    def supervised(self, z: Tensor, labels: Tensor) -> Tensor:
        """Eq. 5 with the label as what is alike."""
        both = torch.cat([labels, labels])
        same = (both[:, None] == both) & ~torch.eye(len(z), dtype=torch.bool)
        return eq5(z, same, self.t.temperature_supervised)

    @torch.no_grad()
    def refit(self, epoch: int, count: int) -> None:
        """A new mixture of plain features and replay; PromptCCD-U estimates the count at later stages."""
        position = (self.t.seed, self.stage, epoch)
        features = torch.cat([unit(self.nets.plain(self.w, self.fixed)[0]).float(), self.replay])
        free = torch.full((len(self.fixed),), -1)
        fixed = torch.cat([free if self.stage else self.labels, self.known])
        if self.t.category_count == "split_merge" and self.stage > 0:
            start, seed = int(self.known.max()) + 1 + self.t.init_components, seed_of("count", *position)
            count = clustering.estimate_by_split_merge(features, start, fixed=fixed, seed=seed).count
        self.nets.mixture = self.fitted(features, count, fixed, self.t.mixture_floor, epoch)

    def fitted(
        self, features: Tensor, count: int, fixed: Tensor, floor: float, epoch: int
    ) -> tuple[Tensor, ...]:
        """Means, variances, weights and floor of a fit."""
        fit = clustering.fit_gaussian_mixture(
            features,
            count,
            fixed=fixed,
            covariance_type=self.nets.model.covariance_type,
            floor_share=floor,
            seed=seed_of("mixture", self.t.seed, self.stage, epoch),
        )
        return fit.means, fit.variances, fit.log_weights, fit.floor

    @torch.no_grad()
    def answer(self) -> None:
        """A last mixture that prompts nothing, and the likeliest component of every image of the stage."""
        own = unit(self.nets.plain(self.w, self.fixed)[0]).float()
        features, free = torch.cat([own, self.replay]), torch.full((len(own),), -1)
        fixed = torch.cat([free if self.stage else self.labels, self.known])
        count = len(self.nets.mixture[0])
        fit = self.fitted(features, count, fixed, self.t.answer_floor, self.epoch + 1)
        means, variances, log_weights, _ = fit
        densities = torch.distributions.MultivariateNormal(means, covariances(means, variances))
        likeliest = (log_weights + densities.log_prob(own[:, None])).argmax(1)
        self.prediction = _of_fit("native_mixture", fit) | {NATIVE: likeliest}

    @torch.no_grad()
    def hand_on(self) -> None:
        """What stage 0 leaves to the next one: a teacher, replay of its mixture, means of its categories."""
        self.nets.teacher = {name: value.detach() for name, value in self.w.items()}
        if self.nets.mixture:
            means, variances, _, floor = self.nets.mixture
            noise = torch_generator("replay", self.t.seed, self.stage + 1)
            noise = torch.randn(len(means), self.t.replay_samples, means.shape[1], generator=noise)
            deviations = (variances - floor).clamp(min=0).sqrt().expand_as(means)
            self.replay = (means[:, None] + deviations[:, None] * noise).flatten(0, 1)
            self.known = torch.arange(len(means)).repeat_interleave(self.t.replay_samples)

    @torch.no_grad()
    def fit_parts(self) -> None:
        """Parts of patches of the pretrained backbone."""
        chosen = clustering.sample_for_part_labels(self.labels.tolist(), self.side**2, seed=self.t.seed)
        tokens, grid = self.nets.embed(self.fixed[chosen]), (self.side, self.side)
        patches = self.nets.run(self.nets.pretrained, tokens)[0][:, 1:].float()
        count, seed = self.nets.model.num_parts, self.t.seed
        found = clustering.fit_part_labels(patches, grid, count, seed=seed)
        self.nets.parts_fit = SimpleNamespace(**found)


# Methods with a classifier


class ClassifierReference(Reference):
    """A classifier that grows when a stage begins."""

    least_share = 0.5  # the mean answer over fewer is noise

    def train(self, stage: Stage) -> Weights:
        """See the base class; and what the classifier says of the stage's images."""
        return super().train(stage) | {NATIVE: self.answers()}

    def begin(self, num_categories: int) -> None:
        """Rows of the new categories, as torch draws those of a linear layer."""
        old = self.w["classifier.weight"].detach()
        self.num_old = 0 if self.stage == 0 else len(old)
        if (more := num_categories - len(old)) > 0:
            width = self.nets.config.hidden_size
            generator = torch_generator("objective", self.t.seed, self.stage)
            rows = (2 * torch.rand(more, width, generator=generator) - 1) / math.sqrt(width)
            self.w["classifier.weight"] = torch.cat([old, self.placed(rows)])

    def placed(self, rows: Tensor) -> Tensor:
        """What new rows become."""
        return rows.double()

    def logits(self, raw: Tensor) -> Tensor:
        """Cosines of features as they come with every row."""
        return unit(raw) @ unit(self.w["classifier.weight"]).T

    def features(self) -> Tensor:
        """Unit features of all images of the stage, in the fixed view."""
        return unit(self.nets.plain(self.w, self.fixed)[0]).detach()

    def answers(self) -> Tensor:
        """Its own answer for each of them."""
        return self.logits(self.features()).argmax(1)


class SimGCDReference(ClassifierReference):
    """Self-distillation, an even mean answer and InfoNCE of the MLP; at stage 0 cross-entropy and SupCon besides."""

    def loss(self, pixels: Tensor, labels: Tensor | None, epoch: int) -> Tensor:
        """All terms."""
        raw = self.nets.plain(self.w, pixels)[0]
        z, n = bottleneck(self.w, raw), len(pixels) // 2
        logits = self.logits(raw)
        answers = (logits / 0.1).softmax(1)
        loss = self.spread(answers.mean(0))
        for own, other in ((slice(n), slice(n, None)), (slice(n, None), slice(n))):
            teacher = (logits[other].detach() / self.teacher_temperature(epoch)).softmax(1)
            loss = loss - (teacher * answers[own].log()).sum(1).mean() / 2
        rows = torch.arange(2 * n)
        loss = loss + eq5(z, rows[:, None] == rows.roll(n), self.t.temperature_unsupervised)
        if labels is not None:
            both, share = torch.cat([labels, labels]), self.t.supervised_weight
            taught = -answers[rows, both].log().mean() + self.supervised(z, labels)
            return (1 - share) * loss + share * taught
        return loss + self.kept(raw, pixels, epoch)

    def spread(self, mean: Tensor) -> Tensor:
        """epsilon times log K minus the entropy of the mean answer."""
        return self.nets.model.entropy_weight * (math.log(len(mean)) + (mean * mean.log()).sum())

    def teacher_temperature(self, epoch: int) -> float:
        """In a line over so many epochs, both ends included."""
        share = epoch / 29
        return 0.04 if share > 1 else 0.07 * (1 - share) + 0.04 * share

    def kept(self, raw: Tensor, pixels: Tensor, epoch: int) -> Tensor | float:
        """What a method adds so that nothing is forgotten."""
        return 0.0


class HappyReference(SimGCDReference):
    """New rows at far clusters, evenness group by group, features drawn around means, squared distance to before."""

    def begin(self, num_categories: int) -> None:
        """See the base class; what the stage before left is kept."""
        self.before = {name: value.detach() for name, value in self.w.items()}
        super().begin(num_categories)

    def placed(self, rows: Tensor) -> Tensor:
        """The centres with the least cosine to any old row, as long as drawn rows are on average."""
        old = self.w["classifier.weight"].detach()
        count = len(old) + len(rows)
        kmeans = KMeans(count, n_init="auto", random_state=0).fit(self.features().float().numpy())
        centres = torch.from_numpy(kmeans.cluster_centers_)
        similar = (unit(centres.double()) @ unit(old).T).max(1).values
        return rows.norm(dim=1).mean() * unit(centres.double())[similar.argsort()[: len(rows)]]

    def teacher_temperature(self, epoch: int) -> float:
        """Constant where nothing is labelled."""
        return super().teacher_temperature(epoch) if self.stage == 0 else 0.05

    def spread(self, mean: Tensor) -> Tensor:
        """Between old and new, within old, within new."""
        if self.stage == 0:
            return super().spread(mean)

        def even(shares: Tensor) -> Tensor:
            return math.log(len(shares)) + (shares * shares.log()).sum()

        old, new = mean[: self.num_old], mean[self.num_old :]
        groups = torch.stack([old.sum(), new.sum()])
        return even(groups) + even(old / old.sum()) + even(new / new.sum())

    def kept(self, raw: Tensor, pixels: Tensor, epoch: int) -> Tensor:
        """Both weigh 1."""
        cosines = self.means @ self.means.T
        others = torch.stack([(row.sum() - row[i]) / (len(row) - 1) for i, row in enumerate(cosines)])
        generator = torch_generator("objective", self.t.seed, self.stage, epoch, self.step)
        hard = (others / 0.1).softmax(0).float()
        drawn = torch.multinomial(hard, len(pixels), replacement=True, generator=generator)
        noise = torch.randn(len(pixels), raw.shape[1], generator=generator).double()
        logits = unit(self.means[drawn] + self.radius * noise) @ unit(self.w["classifier.weight"]).T
        rehearsed = F.cross_entropy(logits / 0.1, drawn)
        moved = unit(raw) - unit(self.nets.plain(self.before, pixels)[0])
        return rehearsed + (moved**2).sum(1).mean()

    def end(self) -> None:
        """Means of the classes that are new, and how far features of stage 0 lie from theirs."""
        rows = unit(self.w["classifier.weight"].detach())
        features = self.features()
        own = self.labels if self.stage == 0 else self.answers()
        members = [features[own == number] for number in range(self.num_old, len(rows))]
        means = [
            unit(each.mean(0)) if len(each) else rows[self.num_old + place]
            for place, each in enumerate(members)
        ]
        if self.stage == 0:
            self.means = torch.zeros(0, features.shape[1]).double()
            spreads = [((each - each.mean(0)) ** 2).sum(1).mean() for each in members]
            self.radius = float(torch.stack(spreads).mean() / features.shape[1]) ** 0.5
        self.means = torch.cat([self.means, torch.stack(means)])
        self.extra = {"class_means": self.means}
