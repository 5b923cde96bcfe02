"""``promptccd discover`` on a random ViT-S/14 at 224 px: what it adds to the bare model, and what a second run costs.

Weights are random and so is what the features say; the cost is that of real ones. Chunks of the bare forward and of
embedding take turns, so that a machine that slows down slows both; compare the ratios, not the seconds.

    python -m benchmarks.bench_discovery --images 1000
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import torch
from PIL import Image
from sklearn.metrics import adjusted_rand_score
from torch import Tensor
from transformers import Dinov2Config, Dinov2Model

from benchmarks.creatures import NUM_CATEGORIES, draw_creature
from benchmarks.measuring import options_of, timed
from promptccd.data.views import EvaluationView, normalise
from promptccd.discovery.embedding import Embedder, load_embedder, resolve_precision
from promptccd.discovery.intake.reading import IntakeFile, read_intake
from promptccd.systems import available_cores

CHUNK = 32


def write_model(folder: Path) -> Path:
    """A random backbone of ViT-S size in the published format."""
    torch.manual_seed(0)
    config = Dinov2Config(
        hidden_size=384, num_hidden_layers=12, num_attention_heads=6, patch_size=14, image_size=224
    )
    Dinov2Model(config).save_pretrained(folder)
    return folder


def write_images(folder: Path, count: int) -> Path:
    """Drawn creatures as JPEG files of 256 x 256 pixels."""
    folder.mkdir()
    with ProcessPoolExecutor(available_cores(), get_context("spawn")) as pool:
        for _ in pool.map(partial(_write_image, folder), range(count), chunksize=32):
            pass
    return folder


def _write_image(folder: Path, position: int) -> None:
    category, index = position % NUM_CATEGORIES, position // NUM_CATEGORIES
    creature = draw_creature(category, index, size=256)
    Image.fromarray(creature.pixels).save(folder / f"{position:05d}.jpg", quality=90)


def report_features(model_folder: Path, images: Path) -> None:
    """Embedding against the bare forward on pixels that are in memory already."""
    model, view = load_embedder(model_folder)
    bare = Dinov2Model.from_pretrained(model_folder).eval()
    is_lowered = resolve_precision("auto", model.device) == "bf16"
    precisions: list[Literal["fp32", "bf16"]] = ["fp32", "bf16"] if is_lowered else ["fp32"]
    seconds = dict.fromkeys(["bare", *precisions], 0.0)
    files = sorted(images.iterdir())
    for start in range(0, len(files), CHUNK):
        views = views_of(files[start : start + CHUNK], view)
        values = normalise(torch.stack([pixels for _, pixels in views]), view.mean, view.std)
        with torch.no_grad():
            seconds["bare"] += timed(partial(bare, values))[0]
        for precision in precisions:
            embedder = Embedder(model, view, precision=precision)
            seconds[precision] += timed(partial(forward, embedder, views))[0]
    print(f"{len(files)} images\n  bare forward in fp32          {seconds['bare']:7.1f} s")
    for precision in precisions:
        ratio = seconds[precision] / seconds["bare"]
        print(
            f"  Embedder in     {precision}          {seconds[precision]:7.1f} s   {ratio:.3f} x", flush=True
        )


def views_of(
    files: Sequence[Path], view: EvaluationView, workers: int = 2
) -> list[tuple[IntakeFile, Tensor]]:
    """The images of some files, read and viewed."""
    views = list[tuple[IntakeFile, Tensor]]()
    read_intake(files, view=view, workers=workers, use=lambda *each: views.append(each)).close()
    return views


def forward(embedder: Embedder, views: Sequence[tuple[IntakeFile, Tensor]]) -> None:
    """Features of views that are in memory."""
    for file, view in views:
        embedder.add(file, view)
    embedder.finish(len(views))


def report_discover(model: Path, images: Path, folder: Path) -> None:
    """The whole command: first, again with nothing new, and in float32; and whether the groups are the same."""
    groups, peak = {}, 0.0
    for label, out, options in (
        ("discover", "auto", []),
        ("again, with nothing new", "auto", []),
        ("in fp32", "fp32", ["--precision", "fp32"]),
    ):
        command = [sys.executable, "-m", "promptccd", "discover", str(model), str(images)]
        command += ["--out", str(folder / out), "--json", *options]
        wall, (content, largest) = timed(partial(answer_of, command))
        found, peak = json.loads(content), max(peak, largest)
        groups[out] = [row["category"] for row in found["assignments"]]
        print(f"  {label:28s}  {wall:7.1f} s in all", flush=True)
    agreement = adjusted_rand_score(groups["fp32"], groups["auto"])
    print(f"  peak memory {peak:.2f} GiB; adjusted Rand index of the groups against fp32's {agreement:.4f}")


def answer_of(command: list[str]) -> tuple[bytes, float]:
    """What a process prints, and the most memory that it takes in GiB."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        content = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return content, usage.ru_maxrss / 2**20


def main(argv: Sequence[str] | None = None) -> None:
    """Time embedding, then the whole command."""
    arguments = options_of(__doc__.splitlines()[0], argv, images=200)
    with TemporaryDirectory() as name:
        folder = Path(name)
        model, images = write_model(folder / "model"), write_images(folder / "images", arguments.images)
        report_features(model, images)
        report_discover(model, images, folder)


if __name__ == "__main__":
    main()
