"""Junk that is set aside once, on a data set.

A stream of 12 kinds with 30 images each and blurred patches of any images, 30, 60 or 80 % of it; then
`discover` with a bare backbone; every group that is mostly junk is set aside, once; `discover` again, then another such
stream. Real images right (each kind one group, the best match; what is set aside is wrong) are divided by those
right without junk.

    python -m benchmarks.bench_aside caltech101/ --seeds 1 2 3
"""

import argparse
import logging
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
from PIL import Image, ImageFilter
from scipy.optimize import linear_sum_assignment

from promptccd.data.tables import load_images
from promptccd.discovery import DiscoveryResult, DiscoverySession, Project, discover

KINDS, EACH = 12, 30
SHARES = (0.3, 0.6, 0.8)
JUNK = "junk"


class Streams:
    """Folders of real images and junk; no image is in two of them."""

    def __init__(self, data: str, split: str, seed: int):
        self.images, self.numbers = load_images(data, split), np.random.default_rng([7, seed])
        self.column = "image"
        labels = np.array(self.images["label"][:])
        sizes = np.bincount(labels)
        enough = np.flatnonzero((sizes >= 2 * EACH) & (sizes < 400))
        chosen = self.numbers.permutation(enough)[:KINDS]
        self.rows = {
            k: self.numbers.permutation(np.flatnonzero(labels == k))[: 2 * EACH] for k in chosen.tolist()
        }

    def write(self, folder: Path, part: int, share: float) -> Path:
        """Half of the real images, and as many junk ones as make up the share."""
        folder.mkdir(parents=True)
        for kind, rows in self.rows.items():
            for row in rows[part * EACH : (part + 1) * EACH].tolist():
                self.images[row][self.column].convert("RGB").save(folder / f"{kind}-{row}.png")
        for number in range(round(KINDS * EACH * share / (1 - share))):
            self._patch().save(folder / f"{JUNK}-{part}-{number}.png")
        return folder

    def _patch(self) -> Image.Image:
        image = self.images[int(self.numbers.integers(len(self.images)))][self.column].convert("RGB")
        side = int(self.numbers.integers(20, 45))
        left, top = (int(self.numbers.integers(0, max(1, each - side))) for each in image.size)
        patch = image.crop((left, top, left + side, top + side))
        return patch.filter(ImageFilter.GaussianBlur(self.numbers.uniform(0.5, 2)))


def right(found: DiscoveryResult) -> float:
    """Share of the real images in the group that is matched to their kind."""
    real = [row for row in found.rows if not row.file.startswith(JUNK) and row.status != "skipped"]
    kinds, groups = ({each: n for n, each in enumerate(dict.fromkeys(all_of))} for all_of in (
        [row.file.split("-")[0] for row in real], [row.category for row in real]
    ))  # fmt: skip
    shared = np.zeros((len(kinds), len(groups)))
    for row in real:
        if row.category is not None:
            shared[kinds[row.file.split("-")[0]], groups[row.category]] += 1
    return float(shared[linear_sum_assignment(shared, maximize=True)].sum() / len(real))


def mostly_junk(found: DiscoveryResult) -> list[int]:
    """Groups that a person would set aside after a look."""
    places = [(row.category, row.file.startswith(JUNK)) for row in found.rows if row.category is not None]
    ids = {home for home, _ in places}
    return [each for each in ids if np.mean([is_junk for home, is_junk in places if home == each]) > 0.5]


def with_junk(
    data: str, split: str, backbone: str, seed: int, share: float, place: Path
) -> tuple[float, float]:
    """Real images right in the first stream and in the next, with what is junk set aside once after the first."""
    streams, out = Streams(data, split, seed), place / "found"
    first = streams.write(place / "first", 0, share)
    found = discover(DiscoverySession.open(backbone), first, out)
    groups = len(mostly_junk(found)), found.estimate.count
    for each in mostly_junk(found):
        Project(out).set_aside(each)
    then = discover(DiscoverySession.open(backbone), first, out)
    after = discover(DiscoverySession.open(backbone), streams.write(place / "next", 1, share), out)
    by_itself = [row for row in after.rows if row.status == "aside"]
    print(
        f"seed {seed}, junk {share:.0%}: groups {groups[1]}, mostly junk {groups[0]}; without these {then.estimate}; "
        f"in the next stream {len(by_itself)} of {len(after.rows)} went aside by themselves, "
        f"{sum(not row.file.startswith(JUNK) for row in by_itself)} of them real; new groups {len(after.change.new)}",
        flush=True,
    )
    return right(then), right(after)


def main(argv: Sequence[str] | None = None) -> None:
    """Print every setting and its ratios."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_aside")
    parser.add_argument("data", help="a data set with 101 categories or more")
    parser.add_argument("--split", default="train")
    parser.add_argument("--backbone", default="photographs")
    parser.add_argument("--seeds", type=int, nargs="*", default=[1, 2, 3], help="of streams with junk")
    options = parser.parse_args(argv)
    logging.disable(logging.WARNING)
    for seed in options.seeds:
        bare = None
        for share in (0.0, *SHARES):
            with tempfile.TemporaryDirectory() as folder:
                found = with_junk(options.data, options.split, options.backbone, seed, share, Path(folder))
            bare = bare or found
            ratios = " and ".join(
                f"{one:.1%} ({one / other:.2f} x)" for one, other in zip(found, bare, strict=True)
            )
            print(
                f"seed {seed}, junk {share:.0%}: real images right, then and in the next stream: {ratios}",
                flush=True,
            )


if __name__ == "__main__":
    main()
