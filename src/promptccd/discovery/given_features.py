"""Features that another model computed: read from a file, and joined to images, or to items without a picture.

A session with such features needs no model. Items become entries of a source, whose pictures show their ids and texts.
"""

import hashlib
import io
import json
import os
import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from PIL import Image, ImageDraw, ImageFont
from safetensors import safe_open
from torch import Tensor

from promptccd.data.names import display_name
from promptccd.data.sources import Entry, ImageSource, Stamp
from promptccd.data.spreadsheets import read_sheet
from promptccd.discovery.intake.reading import Intake, read_intake
from promptccd.discovery.intake.seen import SeenFiles, item_path
from promptccd.errors import DataError, nothing_at, one_line
from promptccd.images.files import within_limit
from promptccd.images.limits import ByteBudget, IntakeLimits

FORMATS = (".parquet", ".npy", ".npz", ".safetensors")
IDS = (
    "id", "file", "file_name", "filename", "filepath", "path", "image", "name", "item", "sha256",
    "ids", "files", "names", "paths",
)  # fmt: skip
TEXTS = ("text", "title", "transcript", "description", "sentence")
VECTORS = ("features", "feature", "embedding", "embeddings", "vector", "vectors", "emb")
MOST_WIDE = 65_536
_LISTED = 20  # columns in a message
_NOT_PLAIN = (  # NumPy would advise to load it with `allow_pickle`, which runs code in it
    "it contains no plain arrays. Write numbers, and ids as text (astype(str)), with numpy.save or numpy.savez."
)
TILE_SIDE, _LINE, _LINES = 256, 26, 9  # pixels, characters, lines


@dataclass(frozen=True, eq=False)
class GivenFeatures:
    """Features by id.

    Attributes:
        ids: of the images or items, distinct.
        rows: ``(N, D)`` unit features, float32.
        texts: shown in place of a picture; may be empty.
        place: the file that lists the items; `None` for arrays.
        model: name of the model that computed them, if the file has it.
    """

    ids: tuple[str, ...]
    rows: Tensor
    texts: tuple[str, ...] = ()
    place: Path | None = None
    model: str = ""

    @classmethod
    def of(
        cls,
        vectors: Any,
        ids: Sequence[str] | None = None,
        texts: Sequence[str] | None = None,
        *,
        place: Path | None = None,
        model: str = "",
    ) -> "GivenFeatures":
        """Check vectors ``(N, D)`` and normalise them; without `ids`, their numbers from 0 are the ids.

        Raises:
            DataError: vectors are not finite, zero, or of several widths, or ids are missing, empty or not distinct.
        """
        what = "The features" if place is None else f"{display_name(place.name)!r}"
        try:
            rows = torch.from_numpy(np.array(vectors, dtype=np.float32))
        except (TypeError, ValueError) as error:
            raise DataError(f"{what}: expected numbers, as many for each item. {one_line(error)}") from error
        if rows.ndim != 2 or not len(rows) or not 1 <= rows.shape[1] <= MOST_WIDE:
            raise DataError(
                f"{what}: expected one vector of 1 to {MOST_WIDE} numbers an item, got {list(rows.shape)}."
            )
        named = tuple(str(row) for row in range(len(rows))) if ids is None else tuple(map(str, ids))
        if len(named) != len(rows) or (texts is not None and len(texts) != len(rows)):
            raise DataError(f"{what}: {len(named)} ids for {len(rows)} vectors. Give one id for each vector.")
        first = dict[str, int]()
        for row, each in enumerate(named):
            if not each.strip() or first.setdefault(each, row) != row:
                raise DataError(
                    f"{what}: the id {each!r} of vector {row} is empty, or that of vector {first.get(each)}."
                )
        norms = rows.norm(dim=1, keepdim=True)
        if len(bad := (~(norms[:, 0].isfinite() & (norms[:, 0] > 0))).nonzero()):
            raise DataError(
                f"{what}: the vector of {named[int(bad[0])]!r} is zero or not finite. Leave the item out."
            )
        return cls(named, rows / norms, tuple(texts or ()), place, model)

    @classmethod
    def read(cls, file: str | Path, items: str | Path | None = None) -> "GivenFeatures":
        """Read a ``.parquet``, ``.npy``, ``.npz`` or ``.safetensors`` file; nothing in it is run.

        Args:
            file: contains vectors, and ids where the format has room for them.
            items: table of ids, and texts if it has them: in the order of vectors without ids, in any order otherwise.

        Raises:
            DataError: the file contains no vectors, or several arrays that may be.
        """
        place = _existing(file, f"Give a file of features: {', '.join(FORMATS)}.")
        try:
            vectors, sheet = _contents_of(place)
        except DataError:
            raise
        except Exception as error:  # a damaged file raises any exception
            why = _NOT_PLAIN if "pickle" in str(error) else one_line(error)
            raise DataError(f"{display_name(place.name)!r} cannot be read: {why}") from error
        ids, model = _column(sheet, IDS), str(sheet.attrs.get("model", ""))
        if items is not None:
            place = _existing(items, "Give a table of items, such as CSV with a column id.")
            sheet = read_sheet(place, (*IDS, *TEXTS))
            if (listed := _column(sheet, IDS)) is None:
                raise DataError(f"{display_name(place.name)!r} has no column of ids. Give a column id.")
            row_of = {each: row for row, each in enumerate(ids or listed)}
            if missing := [each for each in listed if each not in row_of]:
                raise DataError(
                    f"{len(missing)} items have no features in {display_name(Path(file).name)}, such as {missing[0]!r}."
                )
            vectors = vectors if ids is None else np.asarray(vectors)[[row_of[each] for each in listed]]
            ids = listed
        return cls.of(vectors, ids, _column(sheet, TEXTS), place=place, model=model)

    @cached_property
    def space(self) -> str:
        """Name of the feature space, 32 hexadecimal digits: that of features of equal width and model."""
        return hashlib.sha256(f"given features {self.rows.shape[1]} {self.model}".encode()).hexdigest()[:32]

    def embed(self, source: Any, seen: SeenFiles, **options: Any) -> tuple[Intake, Tensor]:
        """Read images, or these items if the source is their own file or `None`; and features, as `Embedder.embed`.

        An id is the path, the name with or without its ending, or the SHA-256 of a file.

        Raises:
            DataError: as `read_intake`; or an image has no feature.
        """
        is_own = source is None or (self.place is not None and Path(str(source)).expanduser() == self.place)
        intake = read_intake(ItemsSource(self) if is_own else source, seen=seen, **options)
        forms = [(form, row) for row, each in enumerate(self.ids) for form in _short(each)]
        times = Counter(form for form, _ in forms)
        row_of = {form: row for form, row in forms if times[form] == 1}
        row_of |= {each: row for row, each in enumerate(self.ids)}
        names = ((file.name, file.content_hash, *_short(file.name)) for file in intake.used)
        rows = [next((row_of[each] for each in named if each in row_of), None) for named in names]
        if missing := [file.name for file, row in zip(intake.used, rows, strict=True) if row is None]:
            intake.close()
            raise DataError(
                f"{len(missing)} of {len(rows)} images have no features, such as {missing[0]!r}; an id is "
                f"{self.ids[0]!r}. Give the path, name or SHA-256 of each image as its id."
            )
        features = self.rows[[row for row in rows if row is not None]]
        seen.store_features(self.space, [file.key for file in intake.used], features)
        return intake, features


def _short(name: str) -> dict[str, None]:
    """The last part of a name, and the same without its ending."""
    last = name.replace("\\", "/").rpartition("/")[2]
    return dict.fromkeys((last, Path(last).stem))


class ItemsSource(ImageSource):
    """Items without pictures: each is shown as a tile with its id and text."""

    shows_images = False

    def __init__(self, given: GivenFeatures):
        self._given, place = given, given.place
        self.name = f"The items in {display_name(place.name)!r}" if place else "The list of items"

    def entries(self, limits: IntakeLimits) -> list[Entry]:
        """The items, in the order of their features."""
        limits.require_files(len(self._given.ids), self.name)
        return [Entry(display_name(each), row) for row, each in enumerate(self._given.ids)]

    def read(self, entry: Entry, budget: ByteBudget) -> bytes:
        """A PNG of the item."""
        texts = self._given.texts
        return within_limit(tile(self._given.ids[entry.key], texts[entry.key] if texts else ""), budget)

    def stamp(self, entry: Entry) -> Stamp:
        """The id and text of the item, as a place in the folder of its table."""
        given, text = self._given, (self._given.texts or {entry.key: ""})[entry.key]
        digest = hashlib.sha256(f"{given.ids[entry.key]}\0{text}".encode(errors="replace")).hexdigest()
        folder = "" if given.place is None else os.path.dirname(os.path.abspath(given.place))
        return Stamp(item_path(folder, digest, entry.name), 1, 0)


def tile(identity: str, text: str = "") -> bytes:
    """A PNG that shows an id and a text; no two ids have equal pixels."""
    image = Image.new("L", (TILE_SIDE, TILE_SIDE), "white")
    draw, font = ImageDraw.Draw(image), ImageFont.load_default(18)
    lines = [*textwrap.wrap(display_name(text), _LINE)[:_LINES], "", display_name(identity)[-_LINE:]]
    draw.text((8, 6), "\n".join(lines if text else lines[1:]), fill="black", font=font)
    digest = np.frombuffer(hashlib.sha256(identity.encode(errors="replace")).digest(), np.uint8)
    bits = Image.fromarray(np.unpackbits(digest)[None].repeat(2, 0) * np.uint8(24) + np.uint8(231))
    image.paste(bits, (0, TILE_SIDE - 2))
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


# Files


def _existing(file: str | Path, remedy: str) -> Path:
    place = Path(file).expanduser()
    if not place.is_file():
        raise DataError(f"{nothing_at(str(file))} {remedy}")
    return place


def _column(sheet: pd.DataFrame, usual: Sequence[str]) -> list[str] | None:
    """The cells of the first column with a usual name."""
    by_name = {str(each).strip().lower(): each for each in sheet.columns}
    return next(([*map(str, sheet[by_name[each]])] for each in usual if each in by_name), None)


def _contents_of(file: Path) -> tuple[np.ndarray, pd.DataFrame]:
    """The vectors in a file, and columns with ids or texts; their ``attrs`` may name the ``model``."""
    suffix, sheet = file.suffix.lower(), pd.DataFrame()
    if suffix not in FORMATS:
        raise DataError(
            f"{display_name(file.name)!r} is no file of features. Give one of {', '.join(FORMATS)}."
        )
    if suffix == ".npy":
        return np.load(file, allow_pickle=False), sheet
    if suffix == ".npz":
        with np.load(file, allow_pickle=False) as stored:
            arrays = dict(stored)
        sheet = pd.DataFrame({name: each.astype(str) for name, each in arrays.items() if each.ndim == 1})
        sheet.attrs = {name: each.item() for name, each in arrays.items() if each.ndim == 0}
    elif suffix == ".safetensors":  # ids are in the metadata, as a JSON list
        with safe_open(file, "pt") as stored:
            arrays = {name: stored.get_tensor(name).float().numpy() for name in stored.keys()}  # noqa: SIM118
            metadata = stored.metadata() or {}
        listed = json.loads(metadata.get("ids", "[]"))
        sheet = pd.DataFrame({"id": listed} if listed else {})
        sheet.attrs = metadata
    else:  # a column of lists, or else all columns of decimals
        sheet = pd.read_parquet(file)
        sheet = sheet if sheet.index.name is None else sheet.reset_index()
        lists = [name for name in sheet.columns if len(sheet) and isinstance(sheet[name].iloc[0], np.ndarray)]
        lists = [name for name in lists if name.lower() in VECTORS] or lists
        decimals = sheet.select_dtypes("floating")
        if not lists and len(decimals.columns):
            return decimals.to_numpy(), sheet
        arrays = {name: np.stack([*sheet[name]]) for name in lists}
    tables = [name for name, each in arrays.items() if each.ndim == 2 and each.dtype.kind in "fiu"]
    found = [name for name in tables if name.lower() in VECTORS] or tables
    if len(found) != 1:
        there = ", ".join(display_name(str(each)) for each in [*(arrays or sheet.columns)][:_LISTED])
        raise DataError(
            f"{display_name(file.name)!r} contains {len(tables)} tables of numbers; its columns or arrays: "
            f"{there or 'none'}. Give one table, or one column of vectors, called features."
        )
    return arrays[found[0]], sheet
