"""Milliseconds from an encoded image to two training views, against the usual chain, in one run.

The usual chain decodes, resizes the shorter side, crops, flips and makes normalised float32 per view. Ours
decodes with all its checks, draws from a generator of its own and leaves uint8 for the device to normalise.
Both run on one thread, alternately; the figures are the medians and the lowest of the rounds.

    python -m benchmarks.bench_views
"""

import io
import statistics
import time
from collections.abc import Callable, Mapping

import numpy as np
import torch
from PIL import Image

from benchmarks.measuring import options_of
from promptccd.data.images import decode_image
from promptccd.data.randomness import numpy_generator
from promptccd.data.views import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    EvaluationView,
    TrainingViews,
    ViewOptions,
    build_image_processor,
)


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


def alternate(
    functions: Mapping[str, Callable[[], object]], rounds: int, calls: int
) -> dict[str, list[float]]:
    """Milliseconds per call of every function in every round."""
    times: dict[str, list[float]] = {name: [] for name in functions}
    for round_ in range(rounds + 1):
        for name, function in functions.items():
            start = time.perf_counter()
            for _ in range(calls):
                function()
            if round_:  # the first one warms up
                times[name].append((time.perf_counter() - start) / calls * 1e3)
    return times


def main(argv: list[str] | None = None) -> None:
    """Print one table."""
    arguments = options_of(__doc__.partition("\n")[0], argv, rounds=15, calls=20)
    torch.set_num_threads(1)

    views = TrainingViews(ViewOptions())
    processor = build_image_processor(ViewOptions())
    evaluation = EvaluationView(processor)
    shared = np.random.default_rng(0)
    print(f"{'image':<18}{'path':<22}{'median ms':>10}{'lowest ms':>10}{'ratio':>7}{'KiB out':>9}")
    for width, height, codec in ((32, 32, "PNG"), (224, 224, "JPEG"), (500, 375, "JPEG")):
        content = encoded_picture(width, height, codec)

        def ours(content: bytes = content) -> torch.Tensor:
            image = decode_image(content).image
            assert image is not None
            return views(image, numpy_generator("view", 1, 0, 0, 0))

        def usual(content: bytes = content) -> torch.Tensor:
            return usual_views(content, shared)

        def fixed(content: bytes = content) -> torch.Tensor:
            image = decode_image(content).image
            assert image is not None
            return evaluation(image)

        def fixed_float(content: bytes = content) -> torch.Tensor:
            image = Image.open(io.BytesIO(content)).convert("RGB")
            return processor(image, return_tensors="pt")["pixel_values"][0]

        def decode(content: bytes = content) -> object:
            return decode_image(content)

        def bare(content: bytes = content) -> object:
            return Image.open(io.BytesIO(content)).convert("RGB")

        pairs = {
            "two training views": (ours, usual),
            "evaluation view": (fixed, fixed_float),
            "decoding alone": (decode, bare),
        }
        functions = {f"{name}/{side}": f for name, pair in pairs.items() for side, f in enumerate(pair)}
        times = alternate(functions, arguments.rounds, arguments.calls)
        for name, (mine, other) in pairs.items():
            medians = [statistics.median(times[f"{name}/{side}"]) for side in (0, 1)]
            for side, function in enumerate((mine, other)):
                out = function()
                size = f"{out.nbytes / 1024:.0f}" if isinstance(out, torch.Tensor) else "-"
                ratio = f"{medians[1] / medians[0]:.2f}" if side == 0 else "1"
                lowest = min(times[f"{name}/{side}"])
                label = name if side == 0 else "  usual chain"
                print(
                    f"{f'{width} x {height} {codec}':<18}{label:<22}{medians[side]:>10.2f}{lowest:>10.2f}"
                    f"{ratio:>7}{size:>9}"
                )


if __name__ == "__main__":
    main()
