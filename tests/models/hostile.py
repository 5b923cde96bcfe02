"""Hostile checkpoints: small functions that change a copy of an honest one, and the table of what is changed."""

import io
import json
import math
import os
import pickle
import random
import struct
import zipfile
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, wraps
from operator import methodcaller
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

Change = Callable[[Path], Any]
Tensors = dict[str, torch.Tensor]

CONFIG, WEIGHTS, PROCESSOR = "config.json", "model.safetensors", "preprocessor_config.json"
INDEX = "model.safetensors.index.json"
SHARDS = [f"model-0000{part}-of-00002.safetensors" for part in (1, 2)]
EVIL_MAP = {"AutoConfig": "evil.Evil", "AutoModel": "evil.Evil", "AutoImageProcessor": "evil.Evil"}
CANARY = "evil-ran"
# Keys that name code, a kernel, a quantiser, another file, or an attribute of the configuration itself; values that a
# field does not take; changes by the base and the name of their case; tensors in headers; names of shards
DATA: dict[str, Any] = json.loads(Path(__file__).with_suffix(".json").read_text())
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


def later(act: Callable[..., Any]) -> Callable[..., Change]:
    """A function of a place and words, as a function of the words alone that gives one of the place."""

    @wraps(act)
    def given(*words: Any, **named: Any) -> Change:
        return lambda folder: act(folder, *words, **named)

    return given


@later
def both(folder: Path, *changes: Change) -> None:
    """One change after the other."""
    for each in changes:
        each(folder)


@later
def write(folder: Path, name: str, content: str | bytes) -> None:
    """Replace a file, or add one, in a folder of its own if need be."""
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)


@later
def cut(folder: Path, name: str, length: int) -> None:
    """A file of another length."""
    os.truncate(folder / name, length)


def placed(make: Callable[..., Any]) -> Callable[..., Change]:
    """Something else in the place of a file."""

    def change(folder: Path, name: str, *words: str) -> None:
        (folder / name).unlink(missing_ok=True)
        make(folder / name, *words)

    return later(change)


gone = placed(lambda path: None)
as_pipe = placed(os.mkfifo)  # a pipe that nobody ever writes to
as_link = placed(Path.symlink_to)
as_folder = placed(Path.mkdir)


@later
def edited(folder: Path, name: str, edit: Callable[[dict[str, Any]], Any]) -> None:
    """Change the object of a JSON file."""
    held = json.loads((folder / name).read_text())
    edit(held)
    (folder / name).write_text(json.dumps(held))


def values(name: str, **changes: Any) -> Change:
    """Set keys of a JSON file; a key with two underscores lies in an object."""

    def edit(held: dict[str, Any]) -> None:
        for key, value in changes.items():
            outer, _, inner = key.partition("__")
            if inner and outer in held:
                held[outer][inner] = value
            else:
                held[key] = value

    return edited(name, edit)


config, processor = partial(values, CONFIG), partial(values, PROCESSOR)


def nested(depth: int) -> str:
    """Lists in lists."""
    return '{"model_type": ' + "[" * depth + "]" * depth + "}"


def save(held: Tensors, path: Path) -> None:
    """Write weights as transformers does."""
    save_file({key: value.contiguous() for key, value in held.items()}, path, {"format": "pt"})


@later
def tensors(folder: Path, edit: Callable[[Tensors], Any]) -> None:
    """Change the weights and save them whole."""
    held = load_file(folder / WEIGHTS)
    edit(held)
    save(held, folder / WEIGHTS)


def first(held: Tensors, word: str) -> str:
    """Name of the first tensor that holds a word."""
    return next(key for key in sorted(held) if word in key)


def every(act: Callable[[torch.Tensor], torch.Tensor]) -> Change:
    """All tensors, each through a function."""
    return tensors(lambda held: held.update({key: act(held[key]) for key in held}))


def one(word: str, act: Callable[[torch.Tensor], torch.Tensor]) -> Change:
    """The first tensor that holds a word, through a function."""
    return tensors(lambda held: held.update({(key := first(held, word)): act(held[key])}))


def filled(word: str, value: float, count: int | None = None) -> Change:
    """All values of one tensor, or so many."""
    return tensors(lambda held: held[first(held, word)].view(-1)[:count].fill_(value))


def with_header(text: str | bytes) -> bytes:
    """The beginning of weights: a header with its length."""
    text = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(text)) + text


@later
def header(folder: Path, edit: Callable[[dict[str, Any]], Any]) -> None:
    """Change the header and leave the values as they are."""
    content = (folder / WEIGHTS).read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    held = json.loads(content[8 : 8 + length])
    (folder / WEIGHTS).write_bytes(with_header(json.dumps(edit(held))) + content[8 + length :])


def raw_header(text: bytes, length: int | None = None, rest: bytes = b"") -> Change:
    """Weights of nothing but a header."""
    return write(WEIGHTS, (with_header(text) if length is None else struct.pack("<Q", length) + text) + rest)


@later
def sparse(folder: Path, shapes: dict[str, list[int]]) -> None:
    """Tensors of zeros that take no room on the disk."""
    held, end = {}, 0
    for key, shape in shapes.items():
        held[key] = {"dtype": "F32", "shape": shape, "data_offsets": [end, end := end + 4 * math.prod(shape)]}
    content = with_header(json.dumps(held))
    (folder / WEIGHTS).write_bytes(content)
    os.truncate(folder / WEIGHTS, len(content) + end)


@later
def without_room(folder: Path, width: int) -> None:
    """A head of this width with all its weights."""
    shapes = {key: list(value.shape) for key, value in load_file(folder / WEIGHTS).items()}
    shapes |= {"head.mlp.0.weight": [width, 32], "head.mlp.0.bias": [width], "head.mlp.2.bias": [width]}
    shapes |= {"head.mlp.2.weight": [width, width], "head.mlp.4.weight": [16, width]}
    sparse(shapes)(folder)
    config(projection_hidden_size=width)(folder)


@later
def sharded(folder: Path, edit: Callable[[dict[str, str]], Any] = dict, **more: Any) -> None:
    """Two honest shards and an index, which is then changed."""
    held = load_file(folder / WEIGHTS)
    (folder / WEIGHTS).unlink()
    placed = {key: SHARDS[number % 2] for number, key in enumerate(sorted(held))}
    for name in SHARDS:
        save({key: held[key] for key in held if placed[key] == name}, folder / name)
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": edit(placed)} | more))


def moved(target: str) -> Change:
    """An index whose first shard is named otherwise."""
    return sharded(
        lambda placed: {key: target if placed[key] == SHARDS[0] else placed[key] for key in placed}
    )


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
    (folder / SHARDS[0]).rename(folder.parent / f"{folder.name}-1.safetensors")


def in_both_shards(folder: Path) -> None:
    """A tensor of each shard that the other has too, with other numbers."""
    sharded()(folder)
    stored = [load_file(folder / name) for name in SHARDS]
    for name, own, other in zip(SHARDS, stored, stored[::-1], strict=True):
        key = next(iter(other))
        save({**own, key: other[key] + 1}, folder / name)


def renamed_twice(held: Tensors) -> None:
    """The same tensor by the name of `state_dict` and by the one of published files."""
    key = next(key for key in sorted(held) if ".attention.q_proj.weight" in key)
    held[key.replace("attention.q_proj", "attention.attention.query")] = held[key].clone()


def mutation(number: int) -> Case:
    """One to three values of one file set to something odd, keys deleted or added; drawn from the number."""
    draw = random.Random(number)
    base = draw.choice(["promptccd", "promptccd-pp", "promptccd-b", "promptccd-gcd", "backbone"])
    name = draw.choice([CONFIG, CONFIG, CONFIG, PROCESSOR])

    def edit(held: dict[str, Any]) -> None:
        for _ in range(draw.randint(1, 3)):
            part = held
            inner = [value for value in held.values() if isinstance(value, dict)]
            if inner and draw.random() < 0.5:
                part = draw.choice(inner)
            key = draw.choice([*part, "evil"])
            if draw.random() < 0.15:
                part.pop(key, None)
            else:
                part[key] = draw.choice(DATA["odd values"])

    return Case(f"mutation {number}", 37, edited(name, edit), base, alters=True)


# Changes by name: of a row of the fault table and a base; whether a checkpoint that loads may have other numbers
TABLE: dict[tuple[int, str, bool], dict[str, Change]] = defaultdict(dict)
CONFIGS, FILES = TABLE[37, "promptccd", False], TABLE[38, "promptccd", False]

KEYS, PROCESSORS = DATA["keys"], DATA["values of a processor"]
STEERING = "auto_map _attn_implementation attn_implementation quantization_config trust_remote_code"
CONFIGS |= {f"key {key}": config(**{key: value}) for key, value in KEYS.items()}
TABLE[37, "backbone", False] |= {
    f"backbone key {key}": config(**{key: KEYS[key]}) for key in STEERING.split()
}
CONFIGS |= {f"inner key {key}": config(**{f"vision_config__{key}": KEYS[key]}) for key in STEERING.split()}
CONFIGS |= {name: processor(**values) for name, values in DATA["changes of a processor"].items()}
for _base, _changes in DATA["changes"].items():
    TABLE[37, _base, False] |= {name: config(**values) for name, values in _changes.items()}

# Types that are not ours
KINDS = ("zzz", "llama", "timm_wrapper", "clip_vision_model", None, ["promptccd"], {"promptccd": 1}, 7)
CONFIGS |= {f"type {kind}": config(model_type=kind, auto_map=EVIL_MAP) for kind in KINDS}
CONFIGS |= {f"inner type {kind}": config(vision_config__model_type=kind) for kind in KINDS}
CONFIGS |= {"no type": edited(CONFIG, lambda held: held.pop("model_type"))}

# Values that a field does not take; of categories in a model without a mixture, which would refuse them first
SPREAD = {"typical": 1.0, "reach": 2.0, "border": 3.0, "slope": 4.0, "temperature": 0.1, "separation": 0.95}
COUNT = {"count": 2, "low": 1, "high": 3, "method": "x", "margin": "y"}
GAUSSIANS = {
    "ids": [0, 1, 4], "num_known": 2, "known_share": 0.9, "temperature": 0.9, "sharpness": 0.9, "balance": 0.9,
}  # fmt: skip
FIELDS: dict[str, list[Any]] = DATA["values"] | {
    "spread": [None, {}, 3, [1.0], *(SPREAD | each for each in ({"reach": 0.0}, {"slope": "steep"}, {"more": 1.0}))],
    "gaussians": [{}, 3, *(GAUSSIANS | each for each in (
        {"ids": []}, {"ids": [1, 1]}, {"ids": 1}, {"num_known": 4}, {"num_known": 0}, {"num_known": 1.0},
        {"known_share": 1.5}, {"temperature": 0}, {"sharpness": "hot"}, {"balance": -1}, {"more": 1},
        {"ids": [*range(100_001)]}, {"ids": [0, True, 4]},
    ))],
    "count_estimate": [{}, 3, COUNT | {"low": 3, "high": 1}, COUNT | {"low": 0}, COUNT | {"method": "x\ny"}],
}  # fmt: skip
OF_CATEGORIES: dict[str, list[Any]] = {
    "category_ids": [
        7, [0, 0], [0, -1], [0, 2**53], [0, 2**70], [0, "1"], [1.0, 5], [False, True], [5], list(range(100_001)),
    ],
    "category_names": [
        [0, 1], ["zero", "\u001b]0;owned\u0007"], ["zero", "x" * 10**6], ["zero", "x" * 1001], ["a", "b\u2028c"],
        ["a\0", "b"], ["a\x9f", "b"], ["a\u2029", "b"], ["zero", "one\n/etc/passwd\tzero\tknown\t1.000"],
    ],
}  # fmt: skip
for _base, _fields in (("promptccd", FIELDS), ("promptccd-gcd", OF_CATEGORIES)):
    TABLE[37, _base, False] |= {
        f"{key} {place}": config(**{key: value})
        for key, values_of_key in _fields.items()
        for place, value in enumerate(values_of_key)
    }
CONFIGS |= {
    "two million categories": config(category_ids=list(range(2 * 10**6))),
    "a width of four hundred digits": config(vision_config__hidden_size=10**400),
    "an epsilon of four hundred digits": config(vision_config__layer_norm_eps=10**400),
    "deep inside of the backbone": write(
        CONFIG, '{"model_type": "promptccd", "vision_config": ' + "[" * 10**5
    ),
}

# The text of JSON files
TEXTS: dict[str, bytes] = {
    "empty": b"",
    "list": b"[]",
    "word": b'"promptccd"',
    "words": b"model_type: promptccd",
    "binary": bytes(range(128, 256)),
    "utf-16": '{"model_type": "promptccd"}'.encode("utf-16"),
    "cut": b'{"model_type": "promptccd", ',
    "not finite": b'{"model_type": "promptccd", "confidence_temperature": NaN}',
    "infinite": b'{"model_type": "promptccd", "confidence_temperature": 1e999}',
    "digits": b'{"model_type": "promptccd", "stage": ' + b"9" * 5000 + b"}",
    "twice": b'{"model_type": "zzz", "model_type": "promptccd"}',
    "half a character": b'{"model_type": "promptccd", "category_names": ["\\ud800"]}',
    "deep": nested(100_000).encode(),
    "deep enough": nested(50).encode(),
    "long": b'{"model_type": "promptccd"' + b" " * 9 * 2**20 + b"}",
}
for _file in (CONFIG, PROCESSOR):
    CONFIGS |= {f"{_file} {name}": write(_file, text) for name, text in TEXTS.items()}

# What is no file of its own
for _file in (CONFIG, PROCESSOR, WEIGHTS):
    TABLE[38 if _file == WEIGHTS else 37, "promptccd", False] |= {
        f"{_file} gone": gone(_file),
        f"{_file} a pipe": as_pipe(_file),
        f"{_file} a folder": as_folder(_file),
        f"{_file} a dangling link": as_link(_file, "nowhere"),
        f"{_file} a link to a device": as_link(_file, "/dev/zero"),
        f"{_file} a link to a secret": as_link(_file, "/etc/passwd"),
    }

# Image processors
for _base in ("promptccd", "backbone"):
    TABLE[37, _base, False] |= {
        f"processor of a {_base}: {key} {place}": processor(**{key: value})
        for key, odd in PROCESSORS.items()
        for place, value in enumerate(odd)
        if _base == "promptccd" or place == 0
    }
CONFIGS |= {
    "a hundred megabytes": cut(CONFIG, 100 * 2**20),
    "another processor's file": write("processor_config.json", json.dumps({"auto_map": EVIL_MAP})),
}

# Headers of the weights
ONE = b'{"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}'
FILES |= {
    "weights in another folder": outside,
    "weights empty": write(WEIGHTS, b""),
    "weights of eight bytes": write(WEIGHTS, b"\0" * 8),
    "header without end": raw_header(b"{}", 2**63),
    "header longer than the file": raw_header(b"{}", 10**7),
    "header of nine megabytes": raw_header(b" " * 9 * 2**20),
    "header empty": raw_header(b"{}"),
    "header no JSON": raw_header(b"[[[[[[["),
    "header deep": raw_header(nested(100_000).encode()),
    "header binary": raw_header(bytes(range(128, 256))),
    "a hole": header(lambda held: {key: held[key] for key in list(held)[:-1]}),
    "overlapping": header(lambda held: {key: list(held.values())[1] for key in held}),
    "weights cut": cut(WEIGHTS, 40_000),
    "weights with a tail": cut(WEIGHTS, 2**20),
    "sixty gigabytes": sparse({"head.last_weight": [2**34]}),
    "sixty gigabytes of the right name": sparse({"head.last_weight": [2**17, 2**17]}),
    "a gigabyte that is all there": without_room(16_384),
    "four gigabytes that are all there": without_room(32_768),
    "a tensor twice in the header": raw_header(b'{"a": ' + ONE + b', "a": ' + ONE + b"}", rest=b"\0" * 4),
    "metadata of numbers": raw_header(b'{"__metadata__": {"format": 7}, "a": ' + ONE + b"}", rest=b"\0" * 4),
    "an offset of a hundred digits": raw_header(
        ONE.join((b'{"a": ', b"}")).replace(b"4]", b"9" * 100 + b"]")
    ),
    **{
        f"offsets {name}": raw_header(json.dumps({"a": part}).encode(), rest=b"\0" * 16)
        for name, part in DATA["offsets in a header"].items()
    },
}

# Tensors
DTYPES = ("int8", "uint8", "uint16", "int32", "int64", "bool", "float8_e4m3fn", "float8_e5m2", "complex64")
PLACES = ("layer.0", "last_weight", "prototypes", "mixture.means", "position_embeddings")
VALUES = ("nan", "inf", "-inf")
FILES |= {
    f"weights of {name}": one("last_weight", methodcaller("to", getattr(torch, name))) for name in DTYPES
}
FILES |= {f"{value} in {word}": filled(word, float(value), 1) for word in PLACES for value in VALUES}
FILES |= {
    "missing": tensors(lambda held: held.pop("head.last_weight")),
    "too many": tensors(lambda held: held.update(stranger=torch.zeros(3))),
    "of another size": tensors(lambda held: held.update(prototypes=torch.zeros(9, 32))),
    "of nothing": tensors(lambda held: held.update(prototypes=torch.zeros(0, 10**12))),
    "named like lines": tensors(lambda held: held.update({"a\nb\x1b[31m": torch.zeros(3)})),
    "by two names": tensors(renamed_twice),
    "prototypes without measure": filled("prototypes", 3e38),
    "spreads of zero": filled("spreads", 0.0),
    "a metric without measure": filled("whitener", 3e38),
    "variances below zero": filled("mixture.variances", -1.0),
    "variances of zero": filled("mixture.variances", 0.0),
    "variances of the one that answers": filled("native_mixture.variances", 0.0),
    "named like attributes": tensors(lambda held: held.update({"__class__": torch.zeros(1)})),
    "infinity in bfloat16": every(lambda held: held.bfloat16() * float("inf")),
    "double precision": every(torch.Tensor.double),
    "another method's weights": config(model_type="promptccd-b"),
}
TABLE[38, "backbone", False] |= {
    "bare int8": one("layernorm", torch.Tensor.char),
    "bare NaN": filled("layer.1", float("nan"), 1),
    "bare and without a block": tensors(lambda held: held.pop(first(held, "layer.0"))),
    "bare and without measure": filled("layer.0.attention.attention.value.weight", 3e38),
}

# Shards
FIRST = SHARDS[0]
FILES |= {f"a shard that is {name}": moved(target) for name, target in DATA["shards"].items()}
FILES |= {
    "honest shards": sharded(),
    "a shard above": beside,
    "a shard of no name": sharded(lambda placed: {"a": 7}),
    "index without a map": sharded(weight_map=None),
    "index of a list": sharded(weight_map=["a"]),
    "index of no tensors": sharded(weight_map={}),
    "ten thousand shards": sharded(weight_map={f"{n}": f"{n}.safetensors" for n in range(10**4)}),
    "index of more": sharded(lambda placed: placed | {"stranger": next(iter(placed.values()))}),
    "index of less": sharded(lambda placed: dict(list(placed.items())[1:])),
    "index deep": both(sharded(), write(INDEX, nested(10**5))),
    "index a pipe": both(sharded(), as_pipe(INDEX)),
    "a shard that leads out": both(sharded(), as_link(FIRST, "/etc/passwd")),
    "a shard of another kind": both(sharded(), write(FIRST, zipped())),
    "a shard that is a circle of links": both(sharded(), as_link(FIRST, FIRST)),
    "a shard with backslashes": moved("..\\model.safetensors"),
    "an index next to the whole": write(INDEX, '{"weight_map": {"a": "../../a.safetensors"}}'),
}

# Pickles
NAMES = "optimizer.pt TRAINING.PKL a.Pickle pytorch_model.bin x.npy x.npz x.joblib in/a.pkl"
TABLE[36, "promptccd", False] |= {f"pickle {name}": write(name, pickled()) for name in NAMES.split()} | {
    "pickle in a linked folder": linked_folder,
    "pickle called safetensors": write(WEIGHTS, pickled()),
    "archive called safetensors": write(WEIGHTS, zipped()),
}
TABLE[36, "backbone", False] |= {"pickle alone": both(gone(WEIGHTS), write("pytorch_model.bin", pickled()))}

# What else may lie there
CODE = ("modeling_promptccd.py", "configuration_promptccd.py", "__init__.py", "custom_generate/generate.py")
CONFIGS |= {f"code in {name}": write(name, EVIL_CODE) for name in CODE}
CONFIGS |= {
    "a generation configuration": write("generation_config.json", "[["),
    "sums that are a list": write("checksums.json", "[]"),
    "sums that are deep": write("checksums.json", nested(10**5)),
    "sums of nothing": write("checksums.json", "{}"),
    "sums that are a pipe": as_pipe("checksums.json"),
    "an adapter with weights": both(
        write("adapter_config.json", '{"peft_type": "LORA", "base_model_name_or_path": "evil/model"}'),
        write("adapter_model.safetensors", b"x"),
    ),
    "a configuration of every kind": write("tokenizer_config.json", json.dumps({"auto_map": EVIL_MAP})),
}

# Right numbers, though others than those of the honest checkpoint
TABLE[38, "promptccd", True] |= {
    "bfloat16": every(torch.Tensor.bfloat16),
    "a normalisation of nothing": filled("backbone.layernorm.weight", 0.0),
    "a tensor in both shards": in_both_shards,
    "a shard named with a line": moved("model-00001-of-00002.safetensors\n"),
    "a shard named with another alphabet": moved("m\u043edel-00001-of-00002.safetensors"),
    "a shard that is the index": moved(INDEX),
    "double precision beyond single": one("layer.0", lambda held: held.double().fill_(1e39)),
    "a metric in half precision": one("whitener", torch.Tensor.half),
    "prototypes in bfloat16 beyond measure": one("prototypes", lambda held: held.fill_(1e38).bfloat16()),
    "spreads of almost nothing": filled("spreads", 1e-45),
    "weights with a scalar": one("last_weight", lambda held: torch.tensor(1.0)),
    "an index with a byte order mark": both(sharded(), write(INDEX, b"\xef\xbb\xbf{}")),
    "weights that are another folder's index": both(sharded(), as_link(INDEX, "../model/" + FIRST)),
}
TABLE[37, "promptccd", True] |= {
    "a backbone of nothing": config(vision_config=None),
    "a backbone of a list": config(vision_config=[["model_type", "dinov2"]]),
    "a backbone within a backbone": config(vision_config__vision_config={"model_type": "promptccd"}),
    "layer names": config(vision_config__out_features=["stage99"], vision_config__stage_names=["evil"]),
    "a name that turns the line": config(category_names=["zero", "\u202eone"]),
    "a configuration with a byte order mark": write(CONFIG, b"\xef\xbb\xbf" + b'{"model_type": "promptccd"}'),
    "a rendering of nothing": processor(rendering={"window": "evil", "colours": 7}),
    "categories of another program": write("categories.sqlite", b"SQLite format 3\0" + b"\xff" * 4096),
    "a card that is a pipe": as_pipe("README.md"),
}

CASES = [
    Case(name, row, change, base, alters)
    for (row, base, alters), changes in TABLE.items()
    for name, change in changes.items()
]
