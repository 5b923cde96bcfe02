"""A project of any size for `bench_page`: real photographs as files, and what `discover` would have left.

The first ten thousand are grouped by the backbone that comes along. Beyond them a photograph takes the feature of one
of these, with a little noise, and its group: the page costs what their number makes it cost, however they came there.
"""

import io
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow.parquet  # type: ignore[import-untyped]
import torch
from PIL import Image, ImageOps

from promptccd.data.randomness import numpy_generator
from promptccd.discovery import DiscoverySession, discover
from promptccd.discovery.embedding import load_embedder
from promptccd.discovery.intake.reading import read_intake
from promptccd.discovery.intake.seen import SeenFiles
from promptccd.discovery.project import CategoryRegistry
from promptccd.discovery.project.project import features_of
from promptccd.discovery.project.record import CATEGORIES, PROJECT, read_record
from promptccd.discovery.project.store import stored_key
from promptccd.images.limits import IntakeLimits

BACKBONE, EMBEDDED = "photographs", 10_000
NOISE = 0.05  # of a feature that is repeated, in its length
_CROPPED = 0.9  # of the sides of a picture that is shown again


def make_project(folder: Path, tables: Sequence[Path], count: int) -> Path:
    """Photographs in ``album``, and the project ``found`` beside it; what is there already is kept.

    Args:
        folder: where both go.
        tables: Parquet files whose first column of images holds pictures.
        count: of photographs.
    """
    album, found = folder / "album", folder / "found"
    if (folder / "made").exists():
        return found
    album.mkdir(parents=True, exist_ok=True)
    pictures = _pictures(tables)
    _write(album, pictures, range(min(count, EMBEDDED)))
    discover(DiscoverySession.open(BACKBONE), album, found)
    if count > EMBEDDED:
        _write(album, pictures, range(EMBEDDED, count))
        _grow(album, found)
    (folder / "made").touch()
    return found


def _pictures(tables: Sequence[Path]) -> Iterator[bytes]:
    """Encoded pictures, all of them once, then again and again, each time another one mirrored and cut."""
    again = 0
    while True:
        for path in tables:
            for batch in pyarrow.parquet.ParquetFile(path).iter_batches(1000):
                column = next(name for name in batch.schema.names if name in ("image", "img"))
                for row in batch[column]:
                    content = row.as_py()["bytes"]
                    yield content if not again else _altered(content, again)
        again += 1


def _altered(content: bytes, times: int) -> bytes:
    picture = Image.open(io.BytesIO(content)).convert("RGB")
    width, height = (max(8, round(side * _CROPPED**times)) for side in picture.size)
    buffer = io.BytesIO()
    ImageOps.mirror(picture).crop((0, 0, width, height)).save(buffer, "JPEG", quality=90)
    return buffer.getvalue()


def _write(album: Path, pictures: Iterator[bytes], numbers: range) -> None:
    for number, content in zip(numbers, pictures, strict=False):
        suffix = "png" if content.startswith(b"\x89PNG") else "jpg"
        (album / f"IMG_{number:06d}.{suffix}").write_bytes(content)


def _grow(album: Path, found: Path) -> None:
    """Let a project hold all of an album, as if the rest of it had been grouped too."""
    project, record = found / PROJECT, read_record(found)
    made_with = {"max_pixels": IntakeLimits().max_pixels, "enough": load_embedder(BACKBONE)[1].enough}
    seen = SeenFiles(project, made_with)
    intake = read_intake(album, seen=seen)
    registry = CategoryRegistry.open(project / CATEGORIES)
    members, sure = registry.members, registry.confidences
    draw = numpy_generator("photographs that are repeated")
    known, vectors = features_of(found, sorted(members)).of(sorted(members))
    features = torch.from_numpy(vectors)
    fresh = [file.key for file in intake.used if file.key not in registry.images]
    intake.close()
    chosen = draw.integers(len(known), size=len(fresh))
    noise = torch.from_numpy(draw.normal(size=(len(fresh), features.shape[1]))).float()
    made = features[chosen] + NOISE * torch.nn.functional.normalize(noise, dim=1)
    made = torch.nn.functional.normalize(made, dim=1)
    seen.store_features(record["features"], fresh, made)
    seen.close()
    like = [known[row] for row in chosen.tolist()]
    rows = [
        (
            stored_key(key),
            registry.stage,
            members[other],
            sure.get(other, 1.0) * float(draw.uniform(0.9, 1.0)),
        )
        for key, other in sorted(zip(fresh, like, strict=True))
    ]
    with registry.transaction():
        registry.run_each(
            "insert into image(key, stage, category, confidence, pinned, unseen) values(?, ?, ?, ?, 0, 0)",
            rows,
        )
        registry.run(
            "update category set size = (select count(*) from image where image.category = category.id)"
        )
        registry.run("update state set revision = revision + 1, forgotten = revision + 1")
