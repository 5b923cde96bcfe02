"""PA-CGCD (Kim et al., ICCV 2023): a proxy for every class; a stage splits its images into old and new."""

import itertools
import warnings
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from huggingface_hub.dataclasses import strict
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture
from torch import Tensor, nn

from promptccd.methods.base import Method
from promptccd.methods.classifier import ClassifierConfig, ClassifierModel, ClassifierObjective, drawn_around
from promptccd.methods.exemplars import NO_LABEL
from promptccd.methods.processes import Rows, same_on_all, sent
from promptccd.models.backbone import UnitHead


@strict
class PACGCDConfig(ClassifierConfig):
    """PA-CGCD."""

    model_type = "pa-cgcd"


class PACGCDModel(ClassifierModel):
    """The last block and the proxies, and the standard deviation ``(D,)`` of stage 0's unit features."""

    config: PACGCDConfig
    head_class: ClassVar = UnitHead
    feature_deviations: Tensor

    def __init__(self, config: PACGCDConfig):
        super().__init__(config)
        self.register_buffer("feature_deviations", torch.zeros(config.vision_config.hidden_size))


# Values of the released code, except the learning rate of the net that tells old from new.
PROXY_SCALE, PROXY_MARGIN = 32.0, 0.1  # alpha; own cosines rise above the margin, others fall below minus it
DISTILL_WEIGHT = 10.0  # of the distance to the previous stage's features
# Of the epochs of stage 0 and of later stages; only the proxies learn in them.
WARMUP_SHARES = 5 / 60, 10 / 60
LARGEST_GRADIENT = 10.0  # at stage 0
CLEAR_SIMILARITY = 0.03  # to the nearest old proxy: an image starts as old above it, as new below minus it
CLEAR_CHANCE = 0.95  # of being old, above which an image is clearly old; below one minus it, clearly new
SPLIT_ROUNDS, SPLIT_EPOCHS, SPLIT_RATE = 3, 5, 0.01  # of the net that tells old from new
SPLIT_WIDTH, SPLIT_BATCH, SPLIT_DECAY = 32, 64, 5e-3
HARDLY_ANY = 0.05  # share of all images; fewer teach that net nothing
LEAST_SQUARE = 1e-12  # a squared distance whose root still has a gradient


class PACGCDObjective(ClassifierObjective):
    """The proxy-anchor loss, at stage 0 of the labels, later of pseudo-labels.

    A later stage begins by splitting its images into old and new and giving each a class. The loss then reads these
    pseudo-labels and features drawn around old proxies, as many as the batch has old images. A further term keeps
    images that count as new near their features of the previous stage; that looks inverted, but the released code
    does so.

    Our decisions: the loss reads the first view alone, since theirs has one; the number of new classes is given, where
    their code asks affinity propagation; all proxies are old after a stage, where their code has one stage only; and
    the first new class counts as new, where their code counts it as old.
    """

    model: PACGCDModel
    least_batch = 0.0
    keeps_last_block = True

    def begin_stage(self) -> None:
        """Draw proxies; at an unlabelled stage keep the last block and the proxies, and find pseudo-labels."""
        self.old_proxies = self.model.classifier.weight.detach()  # `grow` makes another
        if self.stage.labels is None:
            self.old_labels, self.new_labels, self.new_proxies = same_on_all(self.pseudo_labels())
        super().begin_stage()

    def new_rows(self, count: int) -> Tensor:
        """First values of further proxies."""
        return self.drawn_rows(count) if self.stage.labels is not None else self.new_proxies

    def drawn_rows(self, count: int) -> Tensor:
        """Proxies of length ``sqrt(2 D / K)`` or so."""
        width = self.config.vision_config.hidden_size
        return (2 / self.stage.count) ** 0.5 * torch.randn(count, width, generator=self.generator())

    def pseudo_labels(self) -> tuple[Tensor, Tensor, Tensor]:
        """The old class and the new class of every image, ``(N,)``, or -1, and the new proxies ``(n, D)``.

        An image that is not clearly old or new has both.
        """
        features = self.plain_features("features to tell old from new").cpu()
        cosines = features @ F.normalize(self.old_proxies.cpu()).T
        similarity, old_labels = cosines.max(1)
        new_labels = torch.full_like(old_labels, NO_LABEL)
        num_old = len(self.old_proxies)
        count = self.stage.count - num_old
        if count < 1:
            return old_labels, new_labels, self.drawn_rows(0)
        clearly_old, clearly_new = split_old_and_new(features, similarity, self.generator())
        is_new = ~clearly_old
        least = similarity.argsort(stable=True)[: max(2, count)]
        is_new[least] = True  # so that new classes have images (ours)
        own, centres = new_classes(features[is_new], count)
        old_labels[clearly_new] = NO_LABEL
        new_labels[is_new] = num_old + own
        return old_labels, new_labels, torch.cat([centres, self.drawn_rows(count - len(centres))])

    def losses(self, rows: Rows) -> dict[str, Tensor]:
        """``anchor``, and at unlabelled stages ``drift``."""
        features = rows.features[0]
        if rows.labelled is not None:
            anchor = proxy_anchor_loss(self.model.classifier(features), rows.labelled[1])
            return {"loss": anchor, "anchor": anchor}
        old, new = self.old_labels[rows.positions], self.new_labels[rows.positions]
        is_old, is_new = old != NO_LABEL, new != NO_LABEL
        drawn, classes = self.draw(int(is_old.sum()), rows)
        chosen = rows.places(is_new)
        together = torch.cat([features[rows.places(is_old)], features[chosen], drawn])
        own = torch.cat([old[is_old], new[is_new], classes])
        anchor = proxy_anchor_loss(self.model.classifier(together), sent(own, together.device))
        drift = DISTILL_WEIGHT * self.drift(rows, chosen)
        return {"loss": anchor + drift, "anchor": anchor, "drift": drift}

    def draw(self, count: int, rows: Rows) -> tuple[Tensor, Tensor]:
        """Features ``(count, D)`` around the old proxies of the previous stage (ours), and their classes."""
        generator = self.generator(rows.epoch, rows.step)
        classes = torch.randint(self.num_old, (count,), generator=generator)
        proxies = self.old_proxies[sent(classes, self.old_proxies.device)]
        return drawn_around(proxies, self.model.feature_deviations, generator), classes

    def drift(self, rows: Rows, new: Tensor) -> Tensor:
        """Root mean squared distance of the unit features of new images to the earlier features.

        (The code has the norm of the difference of two normalised, flattened matrices: the same for unit rows.)
        """
        squared = self.moved(rows)[0, new]
        if len(squared) < 2:
            return squared.new_zeros(())
        return squared.mean().clamp(min=LEAST_SQUARE).sqrt()  # nothing has moved at the first step

    def adjust_gradients(self, epoch: int) -> None:
        """Proxies alone learn in the first epochs; at stage 0 gradients are clipped value by value."""
        labelled = self.stage.labels is not None
        epochs = self.arguments.epochs_of(self.stage.images.stage.index)
        warmup = round(WARMUP_SHARES[not labelled] * epochs)
        for role, parameters in self.model.learning().items():
            if epoch < warmup and role != "classifier":
                for parameter in parameters:
                    parameter.grad = None
            elif labelled:
                nn.utils.clip_grad_value_(parameters, LARGEST_GRADIENT)

    @torch.no_grad()
    def end_stage(self) -> None:
        """After stage 0 keep how far features spread; later stages do not change it (ours)."""
        if self.stage.labels is not None:
            features = self.plain_features("features for their spread")
            self.model.feature_deviations.copy_(same_on_all(features.std(0)))


def proxy_anchor_loss(cosines: Tensor, labels: Tensor) -> Tensor:
    """Every proxy that has images pulls distant images, and every proxy pushes other near images.

    Cosines ``(N, K)`` are float32: exponents reach 35.
    """
    own = F.one_hot(labels, cosines.shape[1]).bool()

    def log_one_and_sum(exponents: Tensor, which: Tensor) -> Tensor:
        """``log(1 + sum exp)`` over some of the rows, ``(K,)``; the 1 is a row of zeros."""
        return F.pad(exponents.masked_fill(~which, float("-inf")), (0, 0, 1, 0)).logsumexp(0)

    pulls = log_one_and_sum(PROXY_SCALE * (PROXY_MARGIN - cosines), own)
    pushes = log_one_and_sum(PROXY_SCALE * (PROXY_MARGIN + cosines), ~own)
    return pulls.sum() / own.any(0).sum().clamp(min=1) + pushes.mean()


def split_old_and_new(
    features: Tensor, similarity: Tensor, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Clearly old and clearly new images, ``(N,)`` both; no image is both, some are neither.

    The first split is by similarity, or, where that finds hardly any old or new images, by two Gaussians of it (ours:
    their code has one stage, and after one everything lies nearer to some proxy). Then, round by round, a small net
    learns the split of the clear images, and judges all images again. The released code trains a copy of the whole
    model with the net; ours reads features alone, which saves a second training and needs a higher rate.

    Unit features ``(N, D)`` and their similarity ``(N,)`` with the nearest old proxy are on the CPU.
    """
    old, new = similarity >= CLEAR_SIMILARITY, similarity < -CLEAR_SIMILARITY
    if min(old.float().mean(), new.float().mean()) < HARDLY_ANY:
        old, new = clear(chance_of_low(-similarity))
    net = split_net(features.shape[1], generator)
    optimizer = torch.optim.AdamW(net.parameters(), lr=SPLIT_RATE, weight_decay=SPLIT_DECAY)
    for _ in range(SPLIT_ROUNDS):
        seen = (old | new).nonzero().squeeze(1)
        if not (old.any() and new.any()):
            break  # there is nothing to tell apart
        for _ in range(SPLIT_EPOCHS):
            order = seen[torch.randperm(len(seen), generator=generator)]
            size = min(SPLIT_BATCH, len(order))
            for batch in order[: len(order) // size * size].split(size):
                optimizer.zero_grad()
                F.cross_entropy(net(features[batch]), new[batch].long()).backward()
                optimizer.step()
        net.eval()
        with torch.no_grad():
            losses = -net(features).log_softmax(1)[:, 0]  # as old ones
        net.train()
        old, new = clear(chance_of_low(losses))
    return old, new


def clear(chance: Tensor) -> tuple[Tensor, Tensor]:
    """Clearly old and clearly new images, by the chance ``(N,)`` of being old."""
    return chance >= CLEAR_CHANCE, chance < 1 - CLEAR_CHANCE


def split_net(width: int, generator: torch.Generator) -> nn.Sequential:
    """D -> 32 -> 32 -> 2 (old, new), with batch norm and sigmoid between; initialised as torch does."""
    sizes = [width, SPLIT_WIDTH, SPLIT_WIDTH, 2]
    layers: list[nn.Module] = []
    for entering, leaving in itertools.pairwise(sizes):
        linear = nn.utils.skip_init(nn.Linear, entering, leaving)  # own init draws from the global generator
        for parameter in linear.parameters():
            nn.init.uniform_(parameter, -(entering**-0.5), entering**-0.5, generator=generator)
        layers += [linear, nn.BatchNorm1d(leaving), nn.Sigmoid()]
    return nn.Sequential(*layers[:-2])


def chance_of_low(values: Tensor) -> Tensor:
    """Chance ``(N,)`` of each value under the lower of two Gaussians that are fitted to all values."""
    low, high = values.double().aminmax()
    scaled = ((values.double() - low) / (high - low).clamp(min=LEAST_SQUARE))[:, None].numpy()
    mixture = GaussianMixture(2, max_iter=10, tol=1e-2, reg_covar=5e-4, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # ten steps, converged or not
        mixture.fit(scaled)
    return torch.from_numpy(mixture.predict_proba(scaled)[:, mixture.means_.argmin()])


def new_classes(features: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Classes ``(N,)`` of new images ``(N, D)`` by a Gaussian mixture, and the unit means of these classes.

    There are `count` classes, or as many as images. Covariances are full, or diagonal if a class that the mixture
    starts with has fewer than D images (ours).
    """
    points, count = features.double().numpy(), min(count, len(features))
    start = KMeans(count, random_state=0).fit_predict(points)
    is_full = np.bincount(start, minlength=count).min() >= points.shape[1]
    mixture = GaussianMixture(
        count, covariance_type="full" if is_full else "diag", tol=1e-4, max_iter=1000, random_state=0
    )
    own = torch.from_numpy(mixture.fit_predict(points)).long()
    return own, F.normalize(torch.from_numpy(mixture.means_).to(features.dtype))


METHOD = Method(
    name="pa-cgcd",
    model=PACGCDModel,
    objective=PACGCDObjective,
    title="PA-CGCD",
    summary="a proxy per class; a net tells old from new by features alone, which is ours",
    parts={"classifier": "proxies"},
    losses={"anchor": "proxy-anchor", "drift": "distance of new images to the features before"},
)
