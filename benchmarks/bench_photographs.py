"""Photographs of 12 megapixels in ``promptccd discover``: reading and viewing as it was and is, beside the forward.

As it was: every file decoded whole, its view cut by the saved processor, two at once; and again, one at a time, of
the images beyond the first 1,780, whose views were not kept. A random ViT-S/14 at 224 px computes features. All take
turns over the same files, so that a machine that slows down slows all; compare the ratios, not the seconds.

    python -m benchmarks.bench_photographs --pictures train.parquet    # of Caltech-101, say; drawn detail without
"""

import argparse
import hashlib
import io
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import repeat
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

import numpy as np
import pyarrow.parquet  # type: ignore[import-untyped]
import torch
from PIL import Image

from benchmarks.bench_discovery import forward, views_of, write_model
from benchmarks.bench_views import encoded_picture
from promptccd.data.views import EvaluationView
from promptccd.discovery.embedding import Embedder, Precision, load_embedder
from promptccd.images.decode import decode_image
from promptccd.images.identity import THUMBNAIL_SIDE, miniature_of

WIDTH, HEIGHT, TILE = 4000, 3000, 250
THREADS = 2
CHUNK = 8
LABELS = {
    "first": "reading and viewing as it was",
    "twice": "  of images beyond 1,780",
    "now": "reading and viewing now",
    "forward": "forward",
}
Result = TypeVar("Result")


def write_photographs(folder: Path, count: int, pictures: Path | None) -> list[Path]:
    """JPEG files of 12 megapixels: walls of pictures from a table, each at about its own size, or drawn detail."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    tiles: list[Image.Image] = []
    if pictures is not None:
        table = pyarrow.parquet.read_table(pictures)["image"]
        chosen = (table[int(row)].as_py()["bytes"] for row in rng.integers(0, len(table), 400))
        tiles = [Image.open(io.BytesIO(content)).convert("RGB").resize((TILE, TILE)) for content in chosen]
    drawn = np.asarray(Image.open(io.BytesIO(encoded_picture(WIDTH, HEIGHT, "JPEG"))))
    paths = [folder / f"{number:03d}.jpg" for number in range(count)]
    for path in paths:
        wall = Image.fromarray(np.roll(drawn, rng.integers(0, TILE, 2), (0, 1)))
        for place in range((WIDTH // TILE) * (HEIGHT // TILE)) if tiles else ():
            row, column = divmod(place, WIDTH // TILE)
            wall.paste(tiles[int(rng.integers(len(tiles)))], (column * TILE, row * TILE))
        wall.save(path, quality=90)
    return paths


def decoded_whole(path: Path, view: EvaluationView) -> Image.Image:
    """One pass as it was: read, hashed, decoded whole, viewed by the processor."""
    content = path.read_bytes()
    hashlib.sha256(content).hexdigest()
    image = decode_image(content).image
    assert image is not None
    view.processor(image, do_rescale=False, do_normalize=False, return_tensors="pt")
    return image


def looked_at_whole(path: Path, view: EvaluationView) -> None:
    """The first pass as it was, with what finds moments and is shown."""
    small = decoded_whole(path, view)
    small.thumbnail((THUMBNAIL_SIDE, THUMBNAIL_SIDE))
    small.save(io.BytesIO(), "JPEG", quality=80)
    miniature_of(small)


def all_of(each: Callable[..., Iterable[object]], work: object, paths: Sequence[Path], view: object) -> None:
    """Do something with every photograph."""
    for _ in each(work, paths, repeat(view)):
        pass


def take_turns(model_folder: Path, paths: Sequence[Path], precision: Precision) -> dict[str, np.ndarray]:
    """Seconds per photograph, of the wall and of all cores, by what is done."""
    model, view = load_embedder(model_folder)
    seconds = {what: np.zeros(2) for what in LABELS}

    def timed(what: str, work: Callable[[], Result]) -> Result:
        wall, cores = time.perf_counter(), time.process_time()
        result = work()
        seconds[what] += (time.perf_counter() - wall, time.process_time() - cores)
        return result

    Embedder(model, view).embed(paths[:1])  # the first forward prepares things
    for start in range(0, len(paths), CHUNK):
        chunk = paths[start : start + CHUNK]
        with ThreadPoolExecutor(THREADS) as pool:
            timed("first", partial(all_of, pool.map, looked_at_whole, chunk, view))
        timed("twice", partial(all_of, map, decoded_whole, chunk, view))
        views = timed("now", partial(views_of, chunk, view, THREADS))
        timed("forward", partial(forward, Embedder(model, view, precision=precision), views))
    seconds["twice"] += seconds["first"]
    return {what: found / len(paths) for what, found in seconds.items()}


def report(each: dict[str, np.ndarray]) -> None:
    """Milliseconds and ratios, of the wall and of all cores."""
    for what, label in LABELS.items():
        print("  {:36s} {:7.0f} {:7.0f} ms".format(label, *(1e3 * each[what])))
    for what, label in (("first", "reading and viewing now"), ("twice", "  of images beyond 1,780")):
        print("  {:36s} {:7.2f} {:7.2f} x what it was".format(label, *(each["now"] / each[what])))
    share = each["forward"] / (each["forward"] + each["now"])
    print("  {:36s} {:7.0%} {:7.0%} of the time".format("forward", *share), flush=True)


def main(argv: Sequence[str] | None = None) -> None:
    """Make photographs, then take turns."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--photographs", type=int, default=16)
    parser.add_argument("--pictures", type=Path, help="a Parquet file whose column image holds real pictures")
    parser.add_argument("--precision", choices=["auto", "fp32", "bf16"], default="auto")
    arguments = parser.parse_args(argv)
    torch.set_num_threads(THREADS)
    with TemporaryDirectory() as name:
        folder = Path(name)
        paths = write_photographs(folder / "photographs", arguments.photographs, arguments.pictures)
        size = sum(path.stat().st_size for path in paths) / len(paths) / 1e6
        print(f"{len(paths)} photographs of {size:.1f} MB, {THREADS} threads: of the wall, of all cores")
        report(take_turns(write_model(folder / "model"), paths, arguments.precision))


if __name__ == "__main__":
    main()
