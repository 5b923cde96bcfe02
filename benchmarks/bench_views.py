"""Milliseconds from an encoded image to two training views, against the usual chain, in one run.

The usual chain decodes, resizes the shorter side, crops, flips and makes normalised float32 per view. Ours
decodes with all its checks, draws from a generator of its own and leaves uint8 for the device to normalise; from the
second epoch on it reads the copy of the image, resized and mapped from disk. All run on one thread, in turn; the
figures are the medians and the lowest of the rounds.

    python -m benchmarks.bench_views
"""

import io
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from datasets import Dataset, Features
from datasets import Image as ImageColumn
from PIL import Image

from benchmarks.measuring import options_of
from promptccd.data import Stage
from promptccd.data.image_rows import ImageRows
from promptccd.data.options import ViewOptions
from promptccd.data.randomness import numpy_generator
from promptccd.data.readable import ImageCache, StageImages
from promptccd.data.views import IMAGENET_MEAN, IMAGENET_STD, TrainingViews
from promptccd.images.decode import decode_image

LIMIT = 0.25  # milliseconds, of two views of a copy of a 500 px image
SIZES = ((32, 32, "PNG"), (300, 200, "JPEG"), (500, 375, "JPEG"), (1024, 768, "JPEG"))


def encoded_picture(width: int, height: int, codec: str) -> bytes:
    """A picture with the detail and the file size of a photograph."""
    rng = np.random.default_rng(0)
    picture = np.zeros((height, width, 3))
    for octave in range(1, 6):
        coarse = rng.integers(0, 256, (2 + (height >> octave), 2 + (width >> octave), 3), dtype=np.uint8)
        layer = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
        picture += np.asarray(layer, dtype=float) * 2.0 ** (octave - 6)
    buffer = io.BytesIO()
    Image.fromarray(picture.clip(0, 255).astype(np.uint8)).save(buffer, codec, quality=90)
    return buffer.getvalue()


def stored(content: bytes, folder: Path) -> StageImages:
    """The image with its copy on disk, as a training reads it."""
    table = Dataset.from_dict(
        {"image": [{"bytes": content, "path": None}]}, Features({"image": ImageColumn()})
    )
    stage = Stage(0, ImageRows(table), np.arange(1), 1)
    cache = ImageCache(ViewOptions(), folder)
    return StageImages.read(stage, 0, lambda items, total, label: iter(items), cache)


def usual_views(content: bytes, generator: np.random.Generator) -> torch.Tensor:
    """Two views as PIL-to-float chains make them, ``(2, 3, 224, 224)`` float32."""
    image = Image.open(io.BytesIO(content)).convert("RGB")
    mean, std = torch.tensor(IMAGENET_MEAN).view(3, 1, 1), torch.tensor(IMAGENET_STD).view(3, 1, 1)
    views = []
    for _ in range(2):
        scale = 256 / min(image.size)
        grid = image.resize([int(side * scale) for side in image.size], Image.Resampling.BICUBIC)
        top = int(generator.integers(grid.height - 223))
        left = int(generator.integers(grid.width - 223))
        view = grid.crop((left, top, left + 224, top + 224))
        if generator.random() < 0.5:
            view = view.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        pixels = torch.from_numpy(np.array(view)).permute(2, 0, 1).contiguous().float().div(255)
        views.append((pixels - mean) / std)
    return torch.stack(views)


def main(argv: list[str] | None = None) -> None:
    """Print one table."""
    arguments = options_of(__doc__.partition("\n")[0], argv, rounds=15, calls=20)
    torch.set_num_threads(1)
    folder = tempfile.TemporaryDirectory()
    views, shared = TrainingViews(ViewOptions()), np.random.default_rng(0)
    print(
        f"{'image':<18}{'path':<22}{'median ms':>10}{'lowest ms':>10}{'ratio':>7}{'KiB out':>9}{'limit ms':>10}"
    )
    for width, height, codec in SIZES:
        content = encoded_picture(width, height, codec)

        def ours(content: bytes = content) -> torch.Tensor:
            image = decode_image(content).image
            assert image is not None
            return views(image, numpy_generator("view", 1, 0, 0, 0))

        images = stored(content, Path(folder.name))

        def again(images: StageImages = images) -> torch.Tensor:
            return views(images.for_view(0, views.shorter_side), numpy_generator("view", 1, 0, 0, 0))

        assert torch.equal(again(), ours())
        chains: dict[str, Callable[[], torch.Tensor]] = {
            "two training views": ours,
            "  of a copy on disk": again,
            "  usual chain": partial(usual_views, content, shared),
        }
        times: dict[str, list[float]] = {name: [] for name in chains}
        for round_ in range(arguments.rounds + 1):
            for name, chain in chains.items():
                start = time.perf_counter()
                for _ in range(arguments.calls):
                    chain()
                if round_:  # the first one warms up
                    times[name].append((time.perf_counter() - start) / arguments.calls * 1e3)
        medians = {name: statistics.median(each) for name, each in times.items()}
        for name, chain in chains.items():
            ratio = medians["  usual chain"] / medians[name]
            limit = f"{LIMIT:>10.2f}" if chain is again and width == 500 else ""
            print(
                f"{f'{width} x {height} {codec}':<18}{name:<22}{medians[name]:>10.2f}{min(times[name]):>10.2f}"
                f"{ratio:>7.2f}{chain().nbytes / 1024:>9.0f}{limit}"
            )


if __name__ == "__main__":
    main()
