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
    """A function of a folder and words, as a function of the words alone that gives the change of a folder."""

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
def values(folder: Path, name: str, **changes: Any) -> None:
    """Set keys of a JSON file; a key with two underscores lies in an object."""
    held = json.loads((folder / name).read_text())
    for key, value in changes.items():
        outer, _, inner = key.partition("__")
        if inner and outer in held:
            held[outer][inner] = value
        else:
            held[key] = value
    (folder / name).write_text(json.dumps(held))


config, processor = partial(values, CONFIG), partial(values, PROCESSOR)


@later
def without(folder: Path, name: str, key: str) -> None:
    """Delete a key of a JSON file."""
    held = json.loads((folder / name).read_text())
    del held[key]
    (folder / name).write_text(json.dumps(held))


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


def filled(word: str, value: float, count: int | None = None) -> Change:
    """All values of one tensor, or so many."""
    return tensors(lambda held: held[first(held, word)].view(-1)[:count].fill_(value))


def cast(word: str, dtype: torch.dtype) -> Change:
    """One tensor in another type."""
    return tensors(lambda held: held.update({(key := first(held, word)): held[key].to(dtype)}))


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
    text = json.dumps(edit(held) or held)
    (folder / WEIGHTS).write_bytes(with_header(text) + content[8 + length :])


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
def sharded(folder: Path, edit: Callable[[dict[str, str]], Any] = lambda placed: None, **more: Any) -> None:
    """Two honest shards and an index, which is then changed."""
    held = load_file(folder / WEIGHTS)
    (folder / WEIGHTS).unlink()
    placed = {key: SHARDS[number % 2] for number, key in enumerate(sorted(held))}
    for name in SHARDS:
        save({key: held[key] for key in held if placed[key] == name}, folder / name)
    index = {"metadata": {}, "weight_map": edit(placed) or placed} | more
    (folder / INDEX).write_text(json.dumps(index))


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


# Changes by name: of a row of the fault table and a base; whether a checkpoint that loads may have other numbers
TABLE: dict[tuple[int, str, bool], dict[str, Change]] = defaultdict(dict)
CONFIGS, FILES = TABLE[37, "promptccd", False], TABLE[38, "promptccd", False]

# Keys that name code, a kernel, a quantiser, another file, or an attribute of the configuration itself
KEYS: dict[str, Any] = {
    "auto_map": EVIL_MAP,
    "_attn_implementation": "evil/kernel",
    "attn_implementation": "evil/kernel",
    "_attn_implementation_internal": "evil/kernel",
    "experts_implementation": "evil/kernel",
    "kernel_config": {"Linear": "evil/kernel:Linear"},
    "trust_remote_code": True,
    "quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True},
    "custom_pipelines": {"category-discovery": {"impl": "evil.Evil", "pt": ["AutoModel"]}},
    "transformers_weights": "../../elsewhere.safetensors",
    "configuration_files": ["config.5.0.0.json"],
    "fusion_config": {"patch_embeddings": True},
    "distributed_config": {"tp_size": 8},
    "base_model_tp_plan": {"head": "colwise"},
    "per_layer_config": [{}],
    "from_pretrained": "x",
    "__class__": "evil.Evil",
    "names_by_id": {"0": "x"},
    "sub_configs": {"vision_config": "evil"},
    "image_processor_type": "evil.Evil",
}
STEERING = "auto_map _attn_implementation attn_implementation quantization_config trust_remote_code"
CONFIGS |= {f"key {key}": config(**{key: value}) for key, value in KEYS.items()}
TABLE[37, "backbone", False] |= {
    f"backbone key {key}": config(**{key: KEYS[key]}) for key in STEERING.split()
}
CONFIGS |= {f"inner key {key}": config(**{f"vision_config__{key}": KEYS[key]}) for key in STEERING.split()}
CONFIGS |= {
    "own code of another repository": config(auto_map__AutoModel="evil/repo--evil.Evil"),
    "own code and a processor": config(auto_map__AutoImageProcessor="evil.Evil"),
    "inner key use_timm_backbone": config(vision_config__use_timm_backbone=True),
    "a name for a backbone": config(vision_config="facebook/dinov2-base"),
    "unknown key": config(hidden_sise=32, note={"deep": ["text"]}),
    "path for a name": config(_name_or_path="/etc/passwd", transformers_version="9.9.9"),
    "a billion labels": config(num_labels=10**9),
    "labels and a class": config(id2label={"x": 1}, architectures=["evil.Evil"], return_dict=False),
}

# Types that are not ours
KINDS = ("zzz", "llama", "timm_wrapper", "clip_vision_model", None, ["promptccd"], {"promptccd": 1}, 7)
CONFIGS |= {f"type {kind}": config(model_type=kind, auto_map=EVIL_MAP) for kind in KINDS}
CONFIGS |= {f"inner type {kind}": config(vision_config__model_type=kind) for kind in KINDS}
CONFIGS |= {
    "no type": without(CONFIG, "model_type"),
    "a stage called a backbone": config(model_type="dinov2"),
}

# Values that a field does not take; of categories in a model without a mixture, which would refuse them first
SPREAD = {"typical": 1.0, "reach": 2.0, "border": 3.0, "slope": 4.0, "temperature": 0.1, "separation": 0.95}
COUNT = {"count": 2, "low": 1, "high": 3, "method": "x", "margin": "y"}
GAUSSIANS = {
    "ids": [0, 1, 4], "num_known": 2, "known_share": 0.9, "temperature": 0.9, "sharpness": 0.9, "balance": 0.9,
}  # fmt: skip
FIELDS: dict[str, list[Any]] = {
    "vision_config__hidden_size": [10**7, 8_196, 0, -32, 32.0, "32", True, None, [32]],
    "vision_config__num_hidden_layers": [10**12, 129, -1],
    "vision_config__num_attention_heads": [0, 5],
    "vision_config__mlp_ratio": [10**7, 65, -4],
    "vision_config__image_size": [10**6, 4, [16, 16]],
    "vision_config__patch_size": [0, -8],
    "vision_config__num_channels": [10**9, 4],
    "vision_config__layer_norm_eps": [0, -1.0],
    "vision_config__drop_path_rate": [7],
    "vision_config__hidden_act": ["__import__", ["gelu"]],
    "vision_config__qkv_bias": ["yes"],
    **{f"vision_config__{name}": [-1001] for name in (
        "intermediate_size", "num_register_tokens", "hidden_dropout_prob", "attention_probs_dropout_prob",
        "attention_dropout", "initializer_range", "layerscale_value", "rope_theta", "pos_embed_shift",
        "pos_embed_jitter", "pos_embed_rescale",
    )},
    **{f"projection_{name}_size": [0] for name in ("hidden", "bottleneck", "output")},
    "confidence_temperature": [0.0],
    "initializer_range": [-1.0],
    "num_known": [-1],
    "native_categories": [7, [0, 1, 4, 9, 0, 0], [2**70], ["0"]],
    "spread": [None, {}, 3, [1.0], *(SPREAD | each for each in ({"reach": 0.0}, {"slope": "steep"}, {"more": 1.0}))],
    "gaussians": [{}, 3, *(GAUSSIANS | each for each in (
        {"ids": []}, {"ids": [1, 1]}, {"ids": 1}, {"num_known": 4}, {"num_known": 0}, {"num_known": 1.0},
        {"known_share": 1.5}, {"temperature": 0}, {"sharpness": "hot"}, {"balance": -1}, {"more": 1},
        {"ids": [*range(100_001)]}, {"ids": [0, True, 4]},
    ))],
    "stage": ["newest", -1],
    "dtype": ["int8", "os.system", {"": "float32"}],
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
    "an id without a name": config(category_ids=[0]),
    "two million categories": config(category_ids=list(range(2 * 10**6))),
    "patches": config(vision_config__image_size=4096, vision_config__patch_size=1),
    "a head": config(projection_output_size=1_048_576, projection_bottleneck_size=16_384),
    "a mixture": config(num_components=10**6, vision_config__hidden_size=4096),
    "a large backbone": config(vision_config__hidden_size=8192, vision_config__num_hidden_layers=128),
    "more blocks than weights": config(vision_config__num_hidden_layers=100),
}
TABLE[37, "promptccd-pp", False] |= {"pools": config(pool_size=65_536, prompt_length=4_096, num_parts=1_024)}
TABLE[37, "promptccd-b", False] |= {
    "more prompts than there are": config(prompts_per_image=11),
    "a foreign pool": config(pool="evil"),
}
TABLE[37, "backbone", False] |= {
    "a backbone called a stage": config(model_type="promptccd"),
    "a wide bare backbone": config(hidden_size=10**12),
    "a deep bare backbone": config(num_hidden_layers=10**12),
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
KIND = "image_processor_type"
PROCESSORS: dict[str, list[Any]] = {
    "auto_map": [{"AutoImageProcessor": "evil.Evil"}],
    KIND: ["Evil", "CLIPImageProcessor", ["BitImageProcessor"], None, "BitImageProcessorEvil", 3],
    "feature_extractor_type": ["evil.Evil"],
    "size": [
        {"shortest_edge": 200_000}, {"shortest_edge": 0}, -4, True, "224", {"longest_edge": 18}, {"height": 18},
        0, 2049, 18.0, {},
    ],
    "crop_size": [
        {"height": 200_000, "width": 200_000}, {"height": 16.5, "width": 16}, {"height": 2049, "width": 16},
        {"height": 7, "width": 16},
    ],
    "do_center_crop": ["yes", 0, False],
    "do_resize": [False],
    "do_normalize": [False],
    "do_rescale": [7],
    "do_pad": [True],
    "rescale_factor": [0.0, 1e30],
    "resample": [99, -1, 6, "evil"],
    "image_mean": [
        "grey", [0.5], [0.5, "x", 0.5], [0.5, 1e30, 0.5], [0, 0, -1000.5], [1e3 + 1, 0, 0], [True, 0, 0], [0.5] * 4,
    ],
    "image_std": [
        [0.5, 0.0, 0.5], [0.5, -1.0, 0.5], [0.5, 1e-30, 0.5], [True, True, True], [0.0009, 1, 1], [1, 1, 1000.5],
        [0.5, 0.5],
    ],
    "trust_remote_code": [True],
    "__call__": ["evil"],
}  # fmt: skip
for _base in ("promptccd", "backbone"):
    TABLE[37, _base, False] |= {
        f"processor of a {_base}: {key} {place}": processor(**{key: value})
        for key, odd in PROCESSORS.items()
        for place, value in enumerate(odd)
        if _base == "promptccd" or place == 0
    }
CONFIGS |= {
    "a hundred megabytes": cut(CONFIG, 100 * 2**20),
    "processor with code": processor(
        image_processor_type="Evil", auto_map={"AutoImageProcessor": "evil.Evil"}
    ),
    "processor of two edges": processor(size={"shortest_edge": 18, "longest_edge": 10**9}),
    "processor below a patch": processor(crop_size={"height": 4, "width": 16}),
    "processor of many patches": processor(crop_size={"height": 2048, "width": 2048}),
    "processor without a crop": processor(do_center_crop=False),
    "another processor's file": write("processor_config.json", json.dumps({"auto_map": EVIL_MAP})),
    "processor of another version": processor(processor_class=None, _valid_processor_keys=["x"]),
}

# Headers of the weights
OFFSETS: dict[str, dict[str, Any]] = {
    "beyond the end": {"dtype": "F32", "shape": [2**20], "data_offsets": [0, 2**22]},
    "overflowing": {"dtype": "F32", "shape": [2**40, 2**40], "data_offsets": [0, 16]},
    "negative": {"dtype": "F32", "shape": [-4], "data_offsets": [0, 16]},
    "backwards": {"dtype": "F32", "shape": [4], "data_offsets": [16, 0]},
    "words": {"dtype": "F32", "shape": "4", "data_offsets": "16"},
    "of a foreign type": {"dtype": "O", "shape": [4], "data_offsets": [0, 16]},
}
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
    **{
        f"offsets {name}": raw_header(json.dumps({"a": part}).encode(), rest=b"\0" * 16)
        for name, part in OFFSETS.items()
    },
}

# Tensors
DTYPES = ("int8", "uint8", "uint16", "int32", "int64", "bool", "float8_e4m3fn", "float8_e5m2", "complex64")
PLACES = ("layer.0", "last_weight", "prototypes", "mixture.means", "position_embeddings")
VALUES = ("nan", "inf", "-inf")
FILES |= {f"weights of {name}": cast("last_weight", getattr(torch, name)) for name in DTYPES}
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
}
TABLE[38, "backbone", False] |= {
    "bare int8": cast("layernorm", torch.int8),
    "bare NaN": filled("layer.1", float("nan"), 1),
    "bare and without a block": tensors(lambda held: held.pop(first(held, "layer.0"))),
    "bare and without measure": filled("layer.0.attention.attention.value.weight", 3e38),
}

# Shards
TARGETS = {
    "absolute": "/etc/passwd",
    "a pickle": "model.bin",
    "gone": "model-00007-of-00002.safetensors",
    "in a folder": "inner/model.safetensors",
    "an address": "https://example.org/model.safetensors",
    "a dot": ".safetensors",
    "a null": "a\0.safetensors",
}
FIRST = SHARDS[0]
FILES |= {f"a shard that is {name}": moved(target) for name, target in TARGETS.items()}
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
}

# More of each kind
ONE = b'{"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}'
FILES |= {
    "a tensor twice in the header": raw_header(b'{"a": ' + ONE + b', "a": ' + ONE + b"}", rest=b"\0" * 4),
    "metadata of numbers": raw_header(b'{"__metadata__": {"format": 7}, "a": ' + ONE + b"}", rest=b"\0" * 4),
    "an offset of a hundred digits": raw_header(
        ONE.join((b'{"a": ', b"}")).replace(b"4]", b"9" * 100 + b"]")
    ),
    "named like attributes": tensors(lambda held: held.update({"__class__": torch.zeros(1)})),
    "infinity in bfloat16": tensors(
        lambda held: held.update({key: held[key].bfloat16() * float("inf") for key in held})
    ),
    "a shard that is a circle of links": both(sharded(), as_link(FIRST, FIRST)),
    "a shard with backslashes": moved("..\\model.safetensors"),
    "another method's weights": config(model_type="promptccd-b"),
    "an index next to the whole": write(INDEX, '{"weight_map": {"a": "../../a.safetensors"}}'),
    "double precision": tensors(lambda held: held.update({key: held[key].double() for key in held})),
}
CONFIGS |= {
    "a width of four hundred digits": config(vision_config__hidden_size=10**400),
    "an epsilon of four hundred digits": config(vision_config__layer_norm_eps=10**400),
    "deep inside of the backbone": write(
        CONFIG, '{"model_type": "promptccd", "vision_config": ' + "[" * 10**5
    ),
    "types by part": config(dtype={"vision_config": "int8"}),
    "heads without a width": config(vision_config__num_attention_heads=256),
    "an adapter with weights": both(
        write("adapter_config.json", '{"peft_type": "LORA", "base_model_name_or_path": "evil/model"}'),
        write("adapter_model.safetensors", b"x"),
    ),
    "a configuration of every kind": write("tokenizer_config.json", json.dumps({"auto_map": EVIL_MAP})),
}

# Right numbers, though others than those of the honest checkpoint
TABLE[38, "promptccd", True] |= {
    "bfloat16": tensors(lambda held: held.update({key: held[key].bfloat16() for key in held})),
    "a normalisation of nothing": filled("backbone.layernorm.weight", 0.0),
    "a tensor in both shards": in_both_shards,
    "a shard named with a line": moved("model-00001-of-00002.safetensors\n"),
    "a shard named with another alphabet": moved("m\u043edel-00001-of-00002.safetensors"),
    "a shard that is the index": moved(INDEX),
    "double precision beyond single": tensors(
        lambda held: held.update({first(held, "layer.0"): held[first(held, "layer.0")].double().fill_(1e39)})
    ),
    "a metric in half precision": cast("whitener", torch.float16),
    "prototypes in bfloat16 beyond measure": both(
        filled("prototypes", 1e38), cast("prototypes", torch.bfloat16)
    ),
    "spreads of almost nothing": filled("spreads", 1e-45),
    "weights with a scalar": tensors(
        lambda held: held.update({first(held, "last_weight"): torch.tensor(1.0)})
    ),
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
