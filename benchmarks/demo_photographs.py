"""Make the photographs of `make demo` from Caltech-101: ``python -m benchmarks.demo_photographs TRAIN.parquet``.

Only every fifth row of the parquet file is used: the bundled backbone ``photographs`` was trained on the others
(`HELD_OUT` of `benchmarks.photograph_backbone`).
"""

import sys
from io import BytesIO
from itertools import islice
from pathlib import Path

import pyarrow.parquet as pq
from PIL import Image

from benchmarks.photograph_backbone import HELD_OUT

FOLDER = Path(__file__).parents[1] / "src/promptccd/data/photographs"
SHORT_SIDE, MOST = 128, 20  # pixels; photographs of a category
# The name here, and the name and number in Caltech-101. Ids follow the names here: the first ten are labelled.
CATEGORIES = {
    "airplane": 5, "bonsai": 12, "butterfly": 16, "car": 19, "chandelier": 23, "crab": 26, "electric guitar": 35,
    "elephant": 36, "ewer": 39, "grand piano": 46, "helicopter": 50, "kangaroo": 54, "ketch": 55, "laptop": 57,
    "leopard": 2, "motorbike": 3, "sea turtle": 47, "starfish": 86, "sunflower": 90, "watch": 94,
}  # fmt: skip


def make(parquet: Path, folder: Path) -> None:
    """Write up to `MOST` photographs of each category into folders of their names."""
    table = pq.read_table(parquet)
    table = table.take(list(range(0, len(table), HELD_OUT)))
    labels, images = table["label"].to_pylist(), table["image"]
    for name, label in CATEGORIES.items():
        rows = islice((row for row, each in enumerate(labels) if each == label), MOST)
        (folder / name).mkdir(parents=True, exist_ok=True)
        for row in rows:
            picture = Image.open(BytesIO(images[row]["bytes"].as_py())).convert("RGB")
            scale = SHORT_SIDE / min(picture.size)
            size = tuple(round(scale * side) for side in picture.size)
            path = folder / name / f"{row * HELD_OUT:04d}.jpg"  # the row in the file
            picture.resize(size, Image.Resampling.LANCZOS).save(path, quality=85, optimize=True)


if __name__ == "__main__":
    make(Path(sys.argv[1]), FOLDER)
