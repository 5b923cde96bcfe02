"""Does a moment count once? Groups of photographs beside the same ones copied, re-saved, and shot in bursts.

Kinds are drawn from a data set of photographs. Each setting multiplies the images in its own way, as cameras and
programs do, and the groups are held against those of the plain images; beside known categories too, whose prototypes
and spread are measured on images of other kinds. ``--joins`` shows which photographs of the whole data set are called
one moment, for a person to look at; ``--cost`` times the search.

    python -m benchmarks.bench_moments caltech101/ --draws 1 2 3
    python -m benchmarks.bench_moments caltech101/ --joins joins/
    python -m benchmarks.bench_moments caltech101/ --cost
"""

import argparse
import io
import json
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, ImageEnhance
from torch import Tensor

from promptccd.clustering.spread import measure_spread
from promptccd.data.tables import load_images
from promptccd.data.views import EvaluationView, normalise
from promptccd.discovery.embedding import load_embedder
from promptccd.discovery.grouping.open_grouping import KnownCategories, group_images
from promptccd.discovery.near_duplicates.find import find_near_duplicates
from promptccd.discovery.options import NearDuplicateMode
from promptccd.evaluation import clustering_accuracy
from promptccd.images.decode import Decoding
from promptccd.images.identity import look_at
from promptccd.models import CategoryDiscoveryModel

SIZES = {4: 30, 5: 30, 8: 20, 20: 15}  # images of a kind, by the number of kinds
KNOWN, OF_KNOWN = 6, 40  # kinds that are known beside them, and their images
MOST_PIXELS = 50_000_000

Frames = Callable[[Image.Image, np.random.Generator], list[Image.Image]]


def resaved(image: Image.Image, quality: int) -> Image.Image:
    """The image as a JPEG of this quality shows it."""
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=quality)
    return Image.open(buffer).convert("RGB")


def moved(image: Image.Image, right: float, down: float) -> Image.Image:
    """The image moved by so many pixels; nothing, hence black, is behind it."""
    return image.transform(
        image.size, Image.Transform.AFFINE, (1, 0, right, 0, 1, down), Image.Resampling.BICUBIC
    )


def burst(frames: int, shift: int = 8, light: float = 0.04) -> Frames:
    """So many frames of a hand-held camera, re-lit and re-saved; the first one stays."""

    def shoot(image: Image.Image, rng: np.random.Generator) -> list[Image.Image]:
        shot = [image]
        for _ in range(frames - 1):
            frame = moved(image, *rng.integers(-shift, shift + 1, 2).tolist())
            frame = ImageEnhance.Brightness(frame).enhance(rng.uniform(1 - light, 1 + light))
            shot.append(resaved(frame, int(rng.integers(70, 92))))
        return shot

    return shoot


def cut_burst(frames: int, shift: int = 8) -> Frames:
    """A burst in which there is something behind the rim: windows of a larger picture."""

    def shoot(image: Image.Image, rng: np.random.Generator) -> list[Image.Image]:
        width, height = image.size
        shot = []
        for right, down in rng.integers(0, 2 * shift + 1, (frames, 2)).tolist():
            window = image.crop((right, down, width - 2 * shift + right, height - 2 * shift + down))
            shot.append(resaved(ImageEnhance.Brightness(window).enhance(rng.uniform(0.96, 1.04)), 85))
        return shot

    return shoot


def pan(step: float, frames: int = 4) -> Frames:
    """A camera that turns by this share of the picture from frame to frame."""

    def shoot(image: Image.Image, rng: np.random.Generator) -> list[Image.Image]:
        width, height = image.size
        window = round(width * (1 - step * (frames - 1)))
        starts = [round(step * number * width) for number in range(frames)]
        return [resaved(image.crop((start, 0, start + window, height)), 85) for start in starts]

    return shoot


def flicker(image: Image.Image, rng: np.random.Generator) -> list[Image.Image]:
    """Frames in light that comes and goes, with noise."""
    frames = []
    for _ in range(4):
        lit = ImageEnhance.Brightness(image).enhance(rng.uniform(0.75, 1.2))
        noisy = np.asarray(lit, dtype=float) + rng.normal(0, 6, (*lit.size[::-1], 3))
        frames.append(resaved(Image.fromarray(noisy.clip(0, 255).astype(np.uint8)), 85))
    return frames


def developed(image: Image.Image, rng: np.random.Generator) -> list[Image.Image]:
    """A camera's JPEG beside what a program makes of its RAW file: other tones, a slightly other cut."""
    width, height = image.size
    cut = image.crop((width // 100, height // 100, width - width // 100, height - height // 100))
    toned = cut.point([round(255 * (level / 255) ** 0.8) for level in range(256)] * 3)
    return [image, resaved(ImageEnhance.Color(ImageEnhance.Contrast(toned).enhance(1.15)).enhance(1.2), 92)]


def beside(change: Callable[[Image.Image], Image.Image]) -> Frames:
    """Each image beside a changed copy."""
    return lambda image, rng: [image, change(image)]


SETTINGS: dict[str, Frames] = {
    "doubled": lambda image, rng: [image, image],
    "tripled": lambda image, rng: [image, image, image],
    **{f"re-saved at {quality}": beside(partial(resaved, quality=quality)) for quality in (50, 60, 75, 90)},
    "half the size": beside(lambda image: resaved(image.resize((image.width // 2, image.height // 2)), 85)),
    "turned by 90": beside(lambda image: resaved(image.transpose(Image.Transpose.ROTATE_90), 90)),
    "re-lit": beside(lambda image: resaved(ImageEnhance.Brightness(image).enhance(1.3), 85)),
    "black and white": beside(lambda image: resaved(image.convert("L").convert("RGB"), 85)),
    "developed": developed,
    **{f"burst of {frames}": burst(frames) for frames in (2, 3, 5, 8)},
    "burst of 4, cut": cut_burst(4),
    "pan by 8 %": pan(0.08),
    "pan by 15 %": pan(0.15),
    "flicker": flicker,
}  # fmt: skip


@dataclass(frozen=True)
class Photographs:
    """Images as the search for moments and the grouping take them."""

    miniatures: np.ndarray
    thumbnails: Sequence[bytes]
    features: Tensor
    kinds: np.ndarray

    def moments(self, mode: NearDuplicateMode = "auto") -> np.ndarray:
        """As `DiscoverySession` finds them."""
        nothing_said = np.full(len(self.kinds), np.nan)
        return find_near_duplicates(
            self.miniatures,
            self.features,
            lambda rows: [self.thumbnails[row] for row in rows],
            nothing_said,
            mode=mode,
        ).first_of

    def repeated(self, count: int) -> "Photographs":
        """So many, the same again and again, turned a little in feature space."""
        rows = np.resize(np.arange(len(self.kinds)), count)
        noise = torch.randn(count, self.features.shape[1], generator=torch.Generator().manual_seed(0))
        features = F.normalize(self.features[rows] + 0.005 * noise, dim=1)
        thumbnails = [self.thumbnails[row] for row in rows.tolist()]
        return Photographs(self.miniatures[rows], thumbnails, features, self.kinds[rows])


class Album:
    """The photographs of a data set, and a model that embeds them."""

    def __init__(self, data: str, split: str, backbone: str):
        self._images = load_images(data, split)
        self._column = "image"
        self.labels = np.asarray(self._images["label"][:])
        self._model, self._view = load_embedder(backbone)

    def image(self, row: int) -> Image.Image:
        """One photograph."""
        found: Image.Image = self._images[row][self._column].convert("RGB")
        return found

    def look(self, rows: Sequence[int], shoot: Frames | None = None, seed: int = 0) -> Photographs:
        """These photographs, or the frames that are made of each."""
        rng, files, kinds = np.random.default_rng(seed), list[bytes](), list[int]()
        for row in rows:
            image = self.image(int(row))
            for frame in [image] if shoot is None else shoot(image, rng):
                buffer = io.BytesIO()
                frame.save(buffer, "PNG", compress_level=0)
                files.append(buffer.getvalue())
                kinds.append(int(self.labels[row]))
        return _seen(self._model, self._view, files, np.array(kinds))


def _seen(
    model: CategoryDiscoveryModel, view: EvaluationView, files: Sequence[bytes], kinds: np.ndarray
) -> Photographs:
    looks = [look_at(content, Decoding(MOST_PIXELS), view)[1] for content in files]
    seen = [look for look in looks if look is not None]
    features = []
    with torch.inference_mode():
        for start in range(0, len(seen), 64):
            pixels = torch.stack([look.view for look in seen[start : start + 64] if look.view is not None])
            features.append(model(normalise(pixels, view.mean, view.std)).features.float())
    return Photographs(
        np.stack([look.miniature for look in seen]),
        [look.thumbnail for look in seen],
        F.normalize(torch.cat(features), dim=1),
        kinds,
    )


def drawn(album: Album, kinds: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of photographs of so many kinds, and of those of known ones beside them."""
    rng = np.random.default_rng([32, kinds, seed])
    sizes = np.bincount(album.labels)
    chosen = rng.permutation(np.flatnonzero(sizes >= SIZES[kinds]))
    large = [kind for kind in chosen[kinds:] if sizes[kind] >= OF_KNOWN][:KNOWN]
    rows = [rng.permutation(np.flatnonzero(album.labels == kind))[: SIZES[kinds]] for kind in chosen[:kinds]]
    known = [rng.permutation(np.flatnonzero(album.labels == kind))[:OF_KNOWN] for kind in large]
    return np.sort(np.concatenate(rows)), np.sort(np.concatenate(known))


def known_of(photographs: Photographs) -> KnownCategories:
    """The kinds of labelled photographs as a finished stage knows them."""
    kinds, rows = np.unique(photographs.kinds, return_inverse=True)
    labels = torch.from_numpy(rows)
    prototypes = torch.stack([photographs.features[labels == row].mean(0) for row in range(len(kinds))])
    spread = measure_spread(photographs.features, labels, prototypes, seed=0)
    return KnownCategories(tuple(range(len(kinds))), prototypes, spread)


def grouped(
    photographs: Photographs, known: KnownCategories | None = None, once: bool = True
) -> tuple[int, float, int]:
    """Number of groups, accuracy in per cent, and number of moments.

    Args:
        photographs: to group.
        known: categories beside them.
        once: whether a moment counts once.
    """
    keys = [f"{row:08d}" for row in range(len(photographs.kinds))]
    beside = known or KnownCategories.none(photographs.features.shape[1])
    moments = photographs.moments() if once else np.arange(len(keys))
    found, _ = group_images(
        photographs.features, keys, beside, next_id=len(beside.ids), first_of=moments.tolist()
    )
    ids = found.category_ids.numpy()
    accuracy = clustering_accuracy(photographs.kinds, ids, photographs.kinds).all
    return len(np.unique(ids)), accuracy, len(np.unique(moments))


def settings(album: Album, kinds: int, seed: int, names: Sequence[str]) -> list[dict[str, Any]]:
    """What became of each setting, with the plain one beside it."""
    rows, of_known = drawn(album, kinds, seed)
    known, plain = known_of(album.look(of_known.tolist())), album.look(rows.tolist())
    results = []
    expected = {where: grouped(plain, beside) for where, beside in (("alone", None), ("beside known", known))}
    for name in names:
        frames = album.look(rows.tolist(), SETTINGS[name], seed)
        for where, beside in (("alone", None), ("beside known", known)):
            count, accuracy, moments = grouped(frames, beside)
            before, accurate, of = expected[where]
            results.append(
                {
                    "kinds": kinds, "draw": seed, "setting": name, "where": where, "plain": before, "groups": count,
                    "accuracy_plain": round(accurate, 1), "accuracy": round(accuracy, 1), "images": len(frames.kinds),
                    "moments": moments, "moments_plain": of,
                    "each_counted": grouped(frames, once=False)[0] if beside is None else None,
                }
            )  # fmt: skip
            print(json.dumps(results[-1]), flush=True)
    return results


def summary(results: Sequence[dict[str, Any]]) -> None:
    """Print the share of settings within one group and three points of the plain one."""
    by_name: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for each in results:
        for name in (each["setting"], each["where"], f"{each['kinds']} kinds", "all"):
            by_name[name].append(each)
    for name, rows in by_name.items():
        near = np.mean([abs(each["groups"] - each["plain"]) <= 1 for each in rows])
        accurate = np.mean([each["accuracy"] >= each["accuracy_plain"] - 3 for each in rows])
        counted = [each for each in rows if each["each_counted"] is not None]
        before = [abs(each["each_counted"] - each["plain"]) <= 1 for each in counted]
        print(
            f"{name:18s} {len(rows):4d} settings: number within 1 in {near:6.1%}, accuracy within 3 points in "
            f"{accurate:6.1%}" + (f"; were each image counted, {np.mean(before):6.1%}" if before else "")
        )


def joins(album: Album, folder: Path) -> None:
    """Write the photographs that are called one moment, side by side, with a picture for each moment."""
    photographs = album.look(range(len(album.labels)))
    moments = photographs.moments()
    several = np.flatnonzero(np.bincount(moments, minlength=len(moments)) > 1)
    folder.mkdir(parents=True, exist_ok=True)
    for first in several:
        tiles = [album.image(int(row)) for row in np.flatnonzero(moments == first)]
        for tile in tiles:
            tile.thumbnail((200, 200))
        sheet = Image.new("RGB", (200 * len(tiles), 200), "grey")
        for place, tile in enumerate(tiles):
            sheet.paste(tile, (200 * place, 0))
        sheet.save(folder / f"{first:05d}.jpg")
    joined = len(moments) - len(np.unique(moments))
    print(
        f"{len(moments)} photographs, {len(several)} moments of several, {joined} photographs joined to another"
    )


def cost(album: Album, images: Sequence[int]) -> None:
    """Print the seconds of reading and embedding one image, and of finding the moments of many."""
    some = list(range(0, len(album.labels), max(1, len(album.labels) // 500)))
    started = time.process_time()
    album.look(some)
    each = (time.process_time() - started) / len(some)
    photographs = album.look(range(len(album.labels)))
    for count in images:
        for name, found in (
            ("distinct ones first", photographs.repeated(count)),
            ("bursts of five", photographs.repeated(count // 5).repeated(count)),
        ):
            started = time.process_time()
            found.moments()
            seconds = time.process_time() - started
            print(
                f"{count} images, {name}: {seconds:.1f} s, {seconds / (count * each):.1%} of looking and embedding",
                flush=True,
            )


def main(argv: Sequence[str] | None = None) -> None:
    """Print every setting, then shares; or what is joined; or the cost."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_moments")
    parser.add_argument("data", help="photographs with categories, such as Caltech-101")
    parser.add_argument("--split", default="train")
    parser.add_argument("--backbone", default="photographs")
    parser.add_argument("--draws", type=int, nargs="+", default=[1, 2, 3], help="of the kinds")
    parser.add_argument("--kinds", type=int, nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    parser.add_argument("--joins", type=Path, help="write what is joined into this folder instead")
    parser.add_argument("--cost", type=int, nargs="*", help="time the search among so many images instead")
    options = parser.parse_args(argv)
    album = Album(options.data, options.split, options.backbone)
    if options.joins:
        joins(album, options.joins)
    elif options.cost is not None:
        cost(album, options.cost or [5_000, 20_000])
    else:
        results = []
        for kinds in options.kinds:
            for draw in options.draws:
                results += settings(album, kinds, draw, options.settings)
        summary(results)


if __name__ == "__main__":
    main()
