"""Make the photographs of `make demo` from Caltech-101: ``python -m benchmarks.demo_photographs TRAIN.parquet``.

Only every fifth row of the parquet file is used: the bundled backbone ``photographs`` was trained on the others
(`HELD_OUT` of `benchmarks.photograph_backbone`).
"""

import sys
from io import BytesIO
from pathlib import Path

import pandas as pd
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
    table = pd.read_parquet(parquet).iloc[::HELD_OUT]
    for name, label in CATEGORIES.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        for row, image in table.loc[table["label"] == label, "image"][:MOST].items():
            picture = Image.open(BytesIO(image["bytes"])).convert("RGB")
            scale, (width, height) = SHORT_SIDE / min(picture.size), picture.size
            small = picture.resize((round(scale * width), round(scale * height)), Image.Resampling.LANCZOS)
            small.save(folder / name / f"{row:04d}.jpg", quality=85, optimize=True)


if __name__ == "__main__":
    make(Path(sys.argv[1]), FOLDER)
