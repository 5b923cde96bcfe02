"""What makes an honest checkpoint a hostile one: small functions that change a copy of it."""

import io
import json
import math
import os
import pickle
import random
import struct
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

Change = Callable[[Path], None]

CONFIG, WEIGHTS, PROCESSOR = "config.json", "model.safetensors", "preprocessor_config.json"
INDEX = "model.safetensors.index.json"
EVIL_MAP = {"AutoConfig": "evil.Evil", "AutoModel": "evil.Evil", "AutoImageProcessor": "evil.Evil"}
CANARY = "evil-ran"
EVIL_CODE = f"open({CANARY!r}, 'w').write('code')\n\nclass Evil: pass\n"


@dataclass(frozen=True)
class Case:
    """A checkpoint and what must become of it.

    Attributes:
        name: of the case.
        row: of the fault table that it belongs to.
        change: makes an honest copy hostile.
        base: the honest checkpoint: a variant, or ``backbone``.
        alters: whether other numbers than those of the honest checkpoint are right, if it loads.
    """

    name: str
    row: int
    change: Change
    base: str
    alters: bool = False


def write(name: str, content: str | bytes) -> Change:
    """Replace a file."""

    def change(folder: Path) -> None:
        (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)

    return change


def gone(name: str) -> Change:
    """Delete a file."""
    return lambda folder: (folder / name).unlink()


def both(*changes: Change) -> Change:
    """One change after the other."""

    def change(folder: Path) -> None:
        for each in changes:
            each(folder)

    return change


def values(name: str, **changes: Any) -> Change:
    """Set keys of a JSON file; a key with two underscores lies in an object."""

    def change(folder: Path) -> None:
        held = json.loads((folder / name).read_text())
        for key, value in changes.items():
            outer, _, inner = key.partition("__")
            if inner and outer in held:
                held[outer][inner] = value
            else:
                held[key] = value
        (folder / name).write_text(json.dumps(held))

    return change


def config(**changes: Any) -> Change:
    """Set keys of the configuration."""
    return values(CONFIG, **changes)


def processor(**changes: Any) -> Change:
    """Set keys of the image processor's file."""
    return values(PROCESSOR, **changes)


def without(name: str, key: str) -> Change:
    """Delete a key of a JSON file."""

    def change(folder: Path) -> None:
        held = json.loads((folder / name).read_text())
        del held[key]
        (folder / name).write_text(json.dumps(held))

    return change


def as_pipe(name: str) -> Change:
    """A named pipe that nobody ever writes to."""
    return lambda folder: ((folder / name).unlink(missing_ok=True), os.mkfifo(folder / name))[1]


def as_link(name: str, target: str) -> Change:
    """A link in the place of a file."""
    return lambda folder: ((folder / name).unlink(missing_ok=True), (folder / name).symlink_to(target))[1]


def as_folder(name: str) -> Change:
    """A folder in the place of a file."""
    return lambda folder: ((folder / name).unlink(missing_ok=True), (folder / name).mkdir())[1]


def nested(depth: int) -> str:
    """Lists in lists."""
    return '{"model_type": ' + "[" * depth + "]" * depth + "}"


def tensors(edit: Callable[[dict[str, torch.Tensor]], Any], name: str = WEIGHTS) -> Change:
    """Change the weights and save them whole."""

    def change(folder: Path) -> None:
        held = load_file(folder / name)
        edit(held)
        save_file({key: value.contiguous() for key, value in held.items()}, folder / name, {"format": "pt"})

    return change


def first(held: dict[str, torch.Tensor], word: str) -> str:
    """Name of the first tensor that holds a word."""
    return next(key for key in sorted(held) if word in key)


def put(word: str, value: float) -> Change:
    """One value of one tensor."""

    def edit(held: dict[str, torch.Tensor]) -> None:
        held[first(held, word)].view(-1)[0] = value

    return tensors(edit)


def filled(word: str, value: float) -> Change:
    """All values of one tensor."""
    return tensors(lambda held: held[first(held, word)].fill_(value))


def cast(word: str, dtype: torch.dtype) -> Change:
    """One tensor in another type."""

    def edit(held: dict[str, torch.Tensor]) -> None:
        key = first(held, word)
        held[key] = held[key].to(dtype)

    return tensors(edit)


def header(edit: Callable[[dict[str, Any]], Any]) -> Change:
    """Change the header and leave the values as they are."""

    def change(folder: Path) -> None:
        content = (folder / WEIGHTS).read_bytes()
        (length,) = struct.unpack("<Q", content[:8])
        held = json.loads(content[8 : 8 + length])
        text = json.dumps(edit(held) or held).encode()
        (folder / WEIGHTS).write_bytes(struct.pack("<Q", len(text)) + text + content[8 + length :])

    return change


def raw_header(text: bytes, length: int | None = None, rest: bytes = b"") -> Change:
    """Weights of nothing but a header."""
    return write(WEIGHTS, struct.pack("<Q", len(text) if length is None else length) + text + rest)


def sparse(shape: list[int]) -> Change:
    """A tensor of gigabytes that takes no room on the disk."""

    def change(folder: Path) -> None:
        size = 4 * math.prod(shape)
        text = json.dumps(
            {"head.last_weight": {"dtype": "F32", "shape": shape, "data_offsets": [0, size]}}
        ).encode()
        with (folder / WEIGHTS).open("wb") as stream:
            stream.write(struct.pack("<Q", len(text)) + text)
            stream.truncate(8 + len(text) + size)

    return change


def sharded(edit: Callable[[dict[str, str]], Any] = lambda placed: None, **more: Any) -> Change:
    """Two honest shards and an index, which is then changed."""

    def change(folder: Path) -> None:
        held = load_file(folder / WEIGHTS)
        (folder / WEIGHTS).unlink()
        names = [f"model-0000{part}-of-00002.safetensors" for part in (1, 2)]
        placed = {key: names[number % 2] for number, key in enumerate(sorted(held))}
        for name in names:
            save_file(
                {key: held[key] for key in held if placed[key] == name}, folder / name, {"format": "pt"}
            )
        index = {"metadata": {}, "weight_map": edit(placed) or placed} | more
        (folder / INDEX).write_text(json.dumps(index))

    return change


def without_room(width: int) -> Change:
    """A head of this width with all its weights, zeros that take no room on the disk."""

    def change(folder: Path) -> None:
        shapes = {key: list(value.shape) for key, value in load_file(folder / WEIGHTS).items()}
        shapes |= {"head.mlp.0.weight": [width, 32], "head.mlp.0.bias": [width], "head.mlp.2.bias": [width]}
        shapes |= {"head.mlp.2.weight": [width, width], "head.mlp.4.weight": [16, width]}
        held, end = {}, 0
        for key, shape in shapes.items():
            held[key] = {"dtype": "F32", "shape": shape, "data_offsets": [end, end + 4 * math.prod(shape)]}
            end += 4 * math.prod(shape)
        text = json.dumps(held).encode()
        with (folder / WEIGHTS).open("wb") as stream:
            stream.write(struct.pack("<Q", len(text)) + text)
            stream.truncate(8 + len(text) + end)
        config(projection_hidden_size=width)(folder)

    return change


def moved(target: str) -> Change:
    """An index whose first shard is named otherwise."""

    def edit(placed: dict[str, str]) -> dict[str, str]:
        return {key: target if name.startswith("model-00001") else name for key, name in placed.items()}

    return sharded(edit)


def pickled() -> bytes:
    """A pickle that writes the canary when it is opened."""

    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return (exec, (f"open({CANARY!r}, 'w').write('pickle')",))

    return pickle.dumps(Evil())


def zipped() -> bytes:
    """The same as torch writes it."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("archive/data.pkl", pickled())
    return stream.getvalue()


def linked_folder(folder: Path) -> None:
    """A folder of pickles elsewhere, which is not ours to look into."""
    aside = folder.parent / f"{folder.name}-aside"
    aside.mkdir()
    (aside / "a.pkl").write_bytes(pickled())
    (folder / "more").symlink_to(aside)


def outside(folder: Path) -> None:
    """The weights themselves, but not in the folder."""
    aside = folder.parent / f"{folder.name}.safetensors"
    (folder / WEIGHTS).rename(aside)
    (folder / WEIGHTS).symlink_to(aside)


def beside(folder: Path) -> None:
    """A shard that lies in the folder above."""
    moved(f"../{folder.name}-1.safetensors")(folder)
    (folder / "model-00001-of-00002.safetensors").rename(folder.parent / f"{folder.name}-1.safetensors")


def in_both_shards(folder: Path) -> None:
    """A tensor of each shard that the other has too, with other numbers."""
    sharded()(folder)
    names = [f"model-0000{part}-of-00002.safetensors" for part in (1, 2)]
    stored = [load_file(folder / name) for name in names]
    for name, own, other in zip(names, stored, stored[::-1], strict=True):
        key = next(iter(other))
        save_file({**own, key: other[key] + 1}, folder / name, {"format": "pt"})


def renamed_twice(held: dict[str, torch.Tensor]) -> None:
    """The same tensor by the name of `state_dict` and by the one of published files."""
    key = next(key for key in sorted(held) if ".attention.q_proj.weight" in key)
    held[key.replace("attention.q_proj", "attention.attention.query")] = held[key].clone()


def cut(name: str, length: int) -> Change:
    """A file of another length."""
    return lambda folder: os.truncate(folder / name, length)


def appended(name: str, tail: bytes) -> Change:
    """A file with something behind its end."""

    def change(folder: Path) -> None:
        with (folder / name).open("ab") as stream:
            stream.write(tail)

    return change


def added(name: str, content: str | bytes) -> Change:
    """A file more, in a folder of its own if need be."""

    def change(folder: Path) -> None:
        (folder / name).parent.mkdir(exist_ok=True)
        write(name, content)(folder)

    return change


_ODD: tuple[Any, ...] = (
    0, 1, -1, 2, 3, 7, 8, 64, 1000, 10**5, 10**9, 2**63, 10**30, 0.0, -0.5, 0.5, 1e-30, 1e30, True, False, None,
    "", "x", "32", [], [1], [1, 2], {}, {"a": 1}, "../..", "evil.Evil", [[]], "\u202e", "gelu", "float16", "dinov2",
    "vit",
)  # fmt: skip


def mutation(number: int) -> Case:
    """One to three values of one file set to something odd, keys deleted or added; drawn from the number."""
    draw = random.Random(number)
    base = draw.choice(["promptccd", "promptccd-pp", "promptccd-b", "promptccd-gcd", "backbone"])
    name = draw.choice([CONFIG, CONFIG, CONFIG, PROCESSOR])

    def change(folder: Path) -> None:
        held = json.loads((folder / name).read_text())
        for _ in range(draw.randint(1, 3)):
            part = held
            inner = [value for value in held.values() if isinstance(value, dict)]
            if inner and draw.random() < 0.5:
                part = draw.choice(inner)
            key = draw.choice([*part, "evil"])
            if draw.random() < 0.15:
                part.pop(key, None)
            else:
                part[key] = draw.choice(_ODD)
        (folder / name).write_text(json.dumps(held))

    return Case(f"mutation {number}", 37, change, base, alters=True)
