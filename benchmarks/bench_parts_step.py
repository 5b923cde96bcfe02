"""A PromptCCD++ training step at an unlabelled stage on a ViT-B/14 at 224 px, against two plainer ways to do it.

Three ways to the same loss and gradients: everything in the graph; the straightforward step in which frozen
parameters need no gradient (student and teacher each run the unmodified backbone twice, once for attention); and
ours, which runs the frozen prefix of the query once for both and computes [CLS] alone in the last block. Work is
counted by torch's own counter, in units of one block's forward of one image. Weights are random, which changes no
cost.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode
from transformers import Dinov2Config

from benchmarks.measuring import median_seconds, options_of
from promptccd import PromptCCDPlusPlusConfig, PromptCCDPlusPlusModel
from promptccd.methods.base import info_nce_loss
from promptccd.methods.promptccd_pp import PartPools, PartPromptOutput, Teacher, log_shares, modulate
from promptccd.models.backbone import blocks_of, embed, patch_count
from promptccd.training.devices import has_bf16
from promptccd.training.fast import FastBlocks


def build(depth: int = 12) -> PromptCCDPlusPlusModel:
    """The paper's sizes at stage 1, the last block a step away from its teacher's; the head is small."""
    vision = Dinov2Config(image_size=518, patch_size=14, num_hidden_layers=depth, layerscale_value=0.5)
    config = PromptCCDPlusPlusConfig(vision_config=vision, projection_output_size=2048)
    config.stage = 0
    model = PromptCCDPlusPlusModel(config)
    first = PromptCCDPlusPlusModel(config)
    first.load_state_dict(model.state_dict())
    model.begin_discovery(lambda: first)
    with torch.no_grad():
        for parameter in blocks_of(model.backbone)[-1].parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
    model.backbone.fast_blocks = FastBlocks(model.backbone)
    return model.train()


def our_output(model: PromptCCDPlusPlusModel, pixels: Tensor) -> PartPromptOutput:
    """The step as training takes it."""
    output = model(pixels, project=True)
    assert isinstance(output, PartPromptOutput)
    return output


def plain_output(model: PromptCCDPlusPlusModel, pixels: Tensor) -> PartPromptOutput:
    """The same by the book: whole forwards of the unmodified backbone, once for attention and once for features."""
    teacher = model._teacher
    assert teacher is not None
    logits, features, cosines = _whole_forward(model, pixels, model.pools, None)
    output = PartPromptOutput(
        features=features,
        bottleneck=model.head(features),
        scores=cosines,
        part_logits=logits,
    )
    with torch.no_grad():
        logits, features, _ = _whole_forward(model, pixels, teacher.pools, teacher)
        output.teacher_features, output.teacher_bottleneck = features, teacher.head(features)
        output.teacher_log_shares = log_shares(logits)
    return output


def _whole_forward(
    model: PromptCCDPlusPlusModel, pixels: Tensor, pools: PartPools, teacher: Teacher | None
) -> tuple[Tensor, Tensor, Tensor]:
    backbone = model.backbone
    blocks: list[Any] = [
        *blocks_of(backbone)[:-1],
        teacher.last_block if teacher else blocks_of(backbone)[-1],
    ]
    tokens, _ = embed(backbone, pixels)
    patches = patch_count(backbone, tokens)
    hidden = tokens
    for block in blocks[:-1]:
        hidden = block(hidden)
    hidden = hidden.detach()  # the anchor reaches the last block alone
    attention = _full_attention(blocks[-1], hidden)[:, :, 0, -patches:].transpose(1, 2)
    with torch.no_grad():
        blocks[-1](hidden)  # an unmodified forward does not stop at the attention
    contextual, logits = model.router(tokens[:, -patches:], attention)
    selection = pools.select(contextual.detach(), pools=logits.argmax(-1))
    hidden = modulate(tokens, pools(selection.indices))
    for block in blocks:
        hidden = block(hidden)
    return logits, backbone.layernorm(hidden)[:, 0], selection.cosines


def _full_attention(block: Any, hidden: Tensor) -> Tensor:
    attention = block.attention
    normed = block.norm1(hidden)
    query, key = (
        projection(normed).unflatten(-1, (attention.num_attention_heads, -1)).transpose(1, 2)
        for projection in (attention.q_proj, attention.k_proj)
    )
    return torch.softmax(query @ key.transpose(-1, -2) * attention.scaling, dim=-1)


def loss_of(model: PromptCCDPlusPlusModel, output: PartPromptOutput) -> Tensor:
    """The loss of an unlabelled stage."""
    assert output.bottleneck is not None
    loss = info_nce_loss(model.head.similarities(output.bottleneck.float()))
    return loss + sum(value.mean() for value in model.auxiliary_losses(output).values())


def gradients(
    model: PromptCCDPlusPlusModel, output_of: Callable, pixels: Tensor
) -> tuple[Tensor, dict[str, Tensor]]:
    """Loss and gradients of the parameters that learn at an unlabelled stage."""
    model.zero_grad(set_to_none=True)
    loss = loss_of(model, output_of(model, pixels))
    loss.backward()
    return loss.detach(), {
        name: parameter.grad.clone()
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
        and not name.endswith("k_proj.bias")  # soft-max is blind to it: its gradient is rounding alone
        and name.startswith(
            ("pools.", "head.", f"backbone.encoder.layer.{len(blocks_of(model.backbone)) - 1}.")
        )
    }


def block_forwards(
    model: PromptCCDPlusPlusModel, output_of: Callable, pixels: Tensor, anchored: bool = True
) -> float:
    """Work of forward and backward per image, in forwards of one block; head and contrastive loss left out.

    The anchor's gradient crosses the two layers of the frozen router; `anchored` says whether to count it.
    """
    with FlopCounterMode(display=False) as unit, torch.no_grad():
        blocks_of(model.backbone)[0](embed(model.backbone, pixels)[0])
    with FlopCounterMode(display=False) as embedding, torch.no_grad():
        embed(model.backbone, pixels)
    with FlopCounterMode(display=False) as whole:
        output = output_of(model, pixels)
        losses = model.auxiliary_losses(output)
        loss = output.features.sum() + losses["cos"].sum()
        (loss + losses["anchor"].sum() if anchored else loss).backward()
    model.zero_grad(set_to_none=True)
    block = unit.get_total_flops() - embedding.get_total_flops()
    return whole.get_total_flops() / block


def measure(images: int, repeats: int, depth: int = 12) -> dict[str, tuple[float, ...]]:
    """Seconds per image and block-forwards per image of the three ways, printed beside each other."""
    torch.manual_seed(0)
    model = build(depth)
    pixels = torch.randn(images, 3, 224, 224)
    wanted_loss, wanted = gradients(model, plain_output, pixels)
    loss, got = gradients(model, our_output, pixels)
    apart = max(float((got[name] - value).norm() / value.norm()) for name, value in wanted.items())
    print(
        f"PromptCCD++ step at t > 0, ViT-B/14, 224 px, {images} views, {torch.get_num_threads()} threads, "
        f"medians of {repeats}; loss {float(loss):.6f} and {float(wanted_loss):.6f}, largest relative "
        f"difference of a gradient {apart:.1e}"
    )
    print(f"{'':28}{'s/view':>8}{'ratio':>8}{'block-forwards':>16}{'without anchor':>16}")
    rows: dict[str, tuple[float, ...]] = {}
    ways = [
        ("everything in the graph", plain_output, True, False),
        ("straightforward", plain_output, False, False),
        ("ours", our_output, False, False),
    ]
    if has_bf16(model.device):  # other processors take minutes for it
        ways.append(("ours, bf16 autocast", our_output, False, True))
    for name, output_of, learns_all, bf16 in ways:
        model.requires_grad_(True) if learns_all else model.freeze()

        def step(output_of: Callable = output_of, bf16: bool = bf16) -> None:
            model.zero_grad(set_to_none=True)
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
                loss = loss_of(model, output_of(model, pixels))
            loss.backward()

        work = [block_forwards(model, output_of, pixels, anchored) for anchored in (True, False)]
        rows[name] = (median_seconds(step, repeats) / images, *work)
    base = rows["straightforward"][0]
    for name, (time_, *work) in rows.items():
        print(f"{name:28}{time_:8.2f}{time_ / base:8.2f}{work[0]:16.1f}{work[1]:16.1f}")
    return rows


def main(argv: list[str] | None = None) -> None:
    """Run from the command line."""
    options = options_of(__doc__, argv, images=2, repeats=3)
    measure(options.images, options.repeats)


if __name__ == "__main__":
    main()
