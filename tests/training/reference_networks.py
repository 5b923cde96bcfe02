"""The networks a second time, as the paper prints them: plain torch, every token through every block.

Nothing is shared with the models but the names of the weights. There is no row of [CLS] alone, no frozen prefix, and
the wide outputs of the head are formed. Letters as everywhere; T tokens, S those attended to.
"""

import math
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import Dinov2Model

Weights = dict[str, Tensor]
Added = dict[str, Tensor]  # what prompts add to the loss, by name
# Small sizes of prompts, and weights that show.
POOL = {"pool_size": 6, "prompt_length": 3, "prompts_per_image": 2}
PARTS = {
    "num_parts": 3,
    "pool_size": 5,
    "prompt_length": 2,
    "prompts_per_patch": 2,
    "distill_weight": 0.4,
    "anchor_on": "projection",
}
ROUTER_EPS = 1e-5  # of the router's norms; the backbone's is 1e-6


class Networks:
    """The forward of every method, of weights that are handed in.

    Args:
        backbone: the pretrained one.
        model: sizes and weights of the prompts.

    Attributes:
        mixture: means, variances and log weights; empty before the first fit.
        parts_fit: what `fit_part_labels` found.
        teacher: weights of stage 0, from stage 1 on.
    """

    def __init__(self, backbone: Dinov2Model, model: SimpleNamespace):
        self.embed, self.config, self.model = backbone.double().embeddings, backbone.config, model
        self.pretrained = {f"backbone.{name}": value for name, value in backbone.state_dict().items()}
        self.mixture: tuple[Tensor, ...] = ()
        self.parts_fit: Any = None
        self.teacher: Weights = {}

    def project(self, w: Weights, x: Tensor) -> Tensor:
        """phi: three layers to a unit vector, a layer of unit rows, a unit vector."""
        return unit(bottleneck(w, x) @ unit(w["head.last_weight"]).T)

    def held(self, w: Weights, x: Tensor) -> Tensor:
        """What the teacher holds: phi(x), or x as a unit vector."""
        return unit(x) if self.model.anchor_on == "cls" else self.project(w, x)

    def run(
        self, w: Weights, tokens: Tensor, prefixes: dict[int, Any] | None = None
    ) -> tuple[Tensor, Tensor]:
        """Tokens after the final norm ``(B, T, D)``; attention of the last block ``(B, H, T, S)``."""
        heads, attention = self.config.num_attention_heads, tokens
        for number in range(self.config.num_hidden_layers):
            at = f"backbone.encoder.layer.{number}."
            x = norm(w, f"{at}norm1", tokens)
            query, key, value = (linear(w, f"{at}attention.{each}_proj", x) for each in "qkv")
            if prefixes:
                more_keys, more_values = prefixes[number]
                key, value = torch.cat([more_keys, key], dim=1), torch.cat([more_values, value], dim=1)
            mixed, attention = attend(query, key, value, heads)
            tokens = tokens + w[f"{at}layer_scale1.lambda1"] * linear(w, f"{at}attention.o_proj", mixed)
            x = F.gelu(linear(w, f"{at}mlp.fc1", norm(w, f"{at}norm2", tokens)))
            tokens = tokens + w[f"{at}layer_scale2.lambda1"] * linear(w, f"{at}mlp.fc2", x)
        return norm(w, "backbone.layernorm", tokens), attention

    def plain(self, w: Weights, pixels: Tensor, prompted: bool = False) -> tuple[Tensor, Added]:
        """GCD: [CLS] of the backbone."""
        return self.run(w, self.embed(pixels))[0][:, 0], {}

    def with_tokens(self, w: Weights, pixels: Tensor, prompts: Tensor) -> Tensor:
        """[CLS] with prompts ``(B, P, D)`` behind it, each at the position of [CLS]."""
        tokens, place = self.embed(pixels), w["backbone.embeddings.position_embeddings"][:, :1]
        return self.run(w, torch.cat([tokens[:, :1], prompts + place, tokens[:, 1:]], dim=1))[0][:, 0]

    def nearest_keys(self, w: Weights, pixels: Tensor) -> tuple[Tensor, Added]:
        """Top-k keys for the pretrained [CLS], and their cosine distance (Eq. 8)."""
        cosines = unit(self.plain(self.pretrained, pixels)[0]) @ unit(w["pool.keys"]).T
        top = cosines.topk(self.model.prompts_per_image)
        return top.indices, {"cos": 0.1 * (1 - top.values).sum(1).mean()}

    def l2p(self, w: Weights, pixels: Tensor, prompted: bool) -> tuple[Tensor, Added]:
        """PromptCCD-B: chosen prompts are tokens."""
        best, added = self.nearest_keys(w, pixels)
        return self.with_tokens(w, pixels, w["pool.prompts"][best].flatten(1, 2)), added

    def dualprompt(self, w: Weights, pixels: Tensor, prompted: bool) -> tuple[Tensor, Added]:
        """PromptCCD-B: further keys and values, in blocks 0 and 1 the same for all images, in block 2 chosen ones."""
        best, added = self.nearest_keys(w, pixels)
        prefixes = {
            block: w["pool.general"][block][:, None].expand(-1, len(pixels), -1, -1) for block in (0, 1)
        }
        prefixes[2] = w["pool.experts"][0][:, best].flatten(2, 3)
        return self.run(w, self.embed(pixels), prefixes)[0][:, 0], added

    def gaussians(self, w: Weights, pixels: Tensor, prompted: bool) -> tuple[Tensor, Added]:
        """PromptCCD: the means of the likeliest components are tokens, from the epoch on that warm-up ends with."""
        if not prompted:
            return self.plain(w, pixels)
        means, variances, log_weights = (value.double() for value in self.mixture[:3])
        query = unit(self.plain(w, pixels)[0].detach())[:, None]
        density = torch.distributions.MultivariateNormal(means, covariances(means, variances)).log_prob(query)
        best = (log_weights + density).topk(min(self.model.prompts_per_image, len(means))).indices
        return self.with_tokens(w, pixels, means[best]), {}

    def part_labels(self, tokens: Tensor) -> Tensor:
        """Nearest centre of every pretrained patch ``(B, L)``; what scores 0.6 or less is set to zero."""
        fit, patches = self.parts_fit, self.run(self.pretrained, tokens)[0][:, 1:].float()
        low, high = fit.object_range
        masked = patches * ((patches @ fit.object_direction - low) / (high - low) > 0.6)[..., None]
        points = (masked @ fit.projection - fit.projection_mean) / fit.projection_scale
        return (points[:, :, None] - fit.centres).norm(dim=-1).argmin(-1)

    def routed(self, w: Weights, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Eqs. 9 to 11: contextual patches ``(B, L, D)`` and routing logits ``(B, L, P)``."""
        alpha = self.run(w, tokens)[1][:, :, 0, 1:].transpose(1, 2)  # [CLS] to patches, (B, L, H)
        if not self.teacher:  # the anchor, which reads the logits, reaches the attention
            alpha = alpha.detach()
        alpha = norm(w, "router.attention_projection.0", alpha, ROUTER_EPS)
        x = tokens[:, 1:] + F.gelu(linear(w, "router.attention_projection.1", alpha))
        x = norm(w, "router.norm", x, ROUTER_EPS)
        for at in ("router.encoder.0.", "router.encoder.1."):
            y = norm(w, f"{at}layernorm_before", x, ROUTER_EPS)
            query, key, value = (linear(w, f"{at}attention.{name}_proj", y) for name in "qkv")
            mixed = attend(query, key, value, self.config.num_attention_heads)[0]
            x = x + linear(w, f"{at}attention.o_proj", mixed)
            y = F.gelu(linear(w, f"{at}mlp.fc1", norm(w, f"{at}layernorm_after", x, ROUTER_EPS)))
            x = x + linear(w, f"{at}mlp.fc2", y)
        logits = linear(w, "router.mlp.2", F.gelu(linear(w, "router.mlp.0", x)))
        return x, logits + x @ w["router.part_queries"].T / math.sqrt(x.shape[-1])

    def modulated(self, w: Weights, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Eqs. 12 and 13: [CLS] of scaled patches, routing logits, and how far patches are from their keys (Eq. 8)."""
        x, logits = self.routed(w, tokens)
        part = logits.argmax(-1)
        top = torch.einsum("bld,blmd->blm", unit(x.detach()), unit(w["pools.keys"])[part]).topk(
            self.model.prompts_per_patch
        )
        pool = torch.zeros(*part.shape, w["pools.keys"].shape[1], dtype=x.dtype)
        chosen = pool.scatter(-1, top.indices, 1.0) / self.model.prompts_per_patch
        bias = torch.einsum("blm,blmsd->blsd", chosen, w["pools.values"][part]).mean(2)
        scaled = torch.cat([tokens[:, :1], tokens[:, 1:] * (1 + bias)], dim=1)
        return self.run(w, scaled)[0][:, 0], logits, (1 - top.values).sum(-1)

    def parts(self, w: Weights, pixels: Tensor, prompted: bool) -> tuple[Tensor, Added]:
        """PromptCCD++ (Eqs. 14 to 16)."""
        tokens, share = self.embed(pixels), lambda logits: logits.softmax(-1).mean(1)
        features, logits, distances = self.modulated(w, tokens)
        cos = {"cos": distances.mean()}
        if not self.teacher:
            route = F.cross_entropy(logits.flatten(0, 1), self.part_labels(tokens).flatten())
            return features, {**cos, "route": 0.1 * route}
        theirs, their_logits, _ = self.modulated(self.teacher, tokens)
        distill = (self.held(w, features) - self.held(self.teacher, theirs)).square().sum(1)
        anchor = (share(logits) * (share(logits) / share(their_logits)).log()).sum(1)
        held = {"distill": distill, "anchor": anchor}  # the divergence of ours from theirs
        weight = self.model.distill_weight
        return features, cos | {name: weight * value.mean() for name, value in held.items()}


def attend(query: Tensor, key: Tensor, value: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    query, key, value = (each.unflatten(-1, (heads, -1)).transpose(1, 2) for each in (query, key, value))
    weights = torch.softmax(query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1]), dim=-1)
    return (weights @ value).transpose(1, 2).flatten(2), weights


def covariances(means: Tensor, variances: Tensor) -> Tensor:
    return variances.expand_as(means).diag_embed()


def linear(w: Weights, name: str, x: Tensor) -> Tensor:
    return F.linear(x, w[f"{name}.weight"], w[f"{name}.bias"])


def norm(w: Weights, name: str, x: Tensor, eps: float = 1e-6) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], w[f"{name}.weight"], w[f"{name}.bias"], eps)


def bottleneck(w: Weights, x: Tensor) -> Tensor:
    x = F.gelu(linear(w, "head.mlp.2", F.gelu(linear(w, "head.mlp.0", x))))
    return unit(linear(w, "head.mlp.4", x))


def unit(x: Tensor) -> Tensor:
    return x / x.norm(dim=-1, keepdim=True)


def role(name: str) -> str:
    """What a parameter is, for rates of its own."""
    if name.startswith("classifier."):
        return "classifier"
    kinds = {"keys": "key", "prompts": "prompt", "general": "prompt", "experts": "prompt", "values": "prompt"}
    return "router" if name.startswith("router.") else kinds.get(name.split(".")[-1], "model")


def eq5(z: Tensor, positive: Tensor, temperature: float) -> Tensor:
    """Eq. 5: minus the log of a positive's share among all other rows, mean over positives, mean over rows."""
    similar = (z @ z.T / temperature).exp() * (1 - torch.eye(len(z)))
    logs = torch.where(positive, similar / similar.sum(1, keepdim=True), 1.0).log()
    return -(logs.sum(1) / positive.sum(1)).mean()
