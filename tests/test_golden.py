"""What projects, exports, reports and tables look like on disk is held by files in ``tests/golden/written``.

Everything is made by commands as a person types them, and by what a window of ``promptccd open`` sends, so that the
classes underneath can be replaced. Text is compared letter by letter; numbers with a point come from matrix products,
which differ between processors, and may be off by a thousandth or by one in their last place. Pictures and tensors are
described in text (`described`) and compared as that. `normalised` says what is left blank.
"""

import csv
import difflib
import io
import json
import math
import re
import shutil
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet
import pytest
import yaml
from datasets import ClassLabel, Dataset, Features
from datasets import Image as ImageColumn
from PIL import Image
from safetensors.numpy import load_file
from transformers import Dinov2Config, Dinov2Model

from promptccd.cli.main import main
from promptccd.discovery.project import CategoryRegistry
from promptccd.images.decode import Decoding
from promptccd.images.identity import look_at
from tests.conftest import TINY_BACKBONE, quick_recipe
from tests.discovery.page.conftest import Window, served
from tests.kept import GOLDEN, IS_REWRITTEN, indented
from tests.messages import TEXT

NEAR = 1e-3
PICTURES = (".bmp", ".jpg", ".png", ".webp")
PLACES = 6  # of numbers that are kept; more are noise
COLOURS = [(220, 40, 40), (40, 200, 60), (50, 60, 220), (230, 210, 40), (200, 60, 200)]

Written = dict[str, str]


# ------------------------------------------------------------------------------------------------ comparing

_NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+(?:e-?\d+)?|e-\d+)(?![\w.]|-\w)")
_BLANKS: list[tuple[str, str]] = [
    (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\+00:00|Z)", "<time>"),
    (r"<style>.*?</style>", "<style>"),
    (r"<script\b.*?</script>", "<script>"),
    (r"data:image/[^\"']+", "<picture>"),
    (r'transform="translate\([^)]*\)"', 'transform="<place>"'),  # t-SNE: left to the last digits of features
    (r'(<figure class="map">\s*<svg viewBox=")[^"]*', r"\1<size>"),
    (r'("(?:sha256|registry)":)"[0-9a-f]{64}"', r'\1"<sum>"'),  # of prototypes; `registry_files` checks them
    (r"(?<=Made with: )[^\n]*", "<versions>"),
    (r"promptccd \d[\w.+]*, torch \d[\w.+]*", "<versions>"),
]


def normalised(text: str, here: Path) -> str:
    """Text without what differs between machines and days: places, times, versions, sums of floats, pictures."""
    text = text.replace(str(here.resolve()), "<here>").replace(str(here), "<here>")
    for pattern, blank in _BLANKS:
        text = re.sub(pattern, blank, text, flags=re.DOTALL)
    return _NUMBER.sub(lambda found: _short(found.group()), text)


def _short(number: str) -> str:
    if "e" not in number and places(number) <= PLACES:
        return number
    return f"{float(number):.{PLACES}f}"


def difference(got: str, wanted: str) -> str:
    """How two texts differ beyond what processors may differ in; empty if they do not."""
    frames = [_NUMBER.sub("<number>", text) for text in (got, wanted)]
    if frames[0] != frames[1]:
        found, kept = (re.sub(r"([,>])", r"\1\n", frame).splitlines() for frame in frames)
        return "\n".join(list(difflib.unified_diff(kept, found, "golden", "written", lineterm="", n=2))[:40])
    found_all, kept_all = (_NUMBER.findall(text) for text in (got, wanted))
    longest = [max((places(each) for each in texts), default=0) for texts in (found_all, kept_all)]
    if longest[0] != longest[1]:
        return f"numbers have up to {longest[0]} places, not {longest[1]}"
    pairs = zip(found_all, kept_all, strict=True)
    return "\n".join(f"{found}, not {kept}" for found, kept in pairs if not _near(found, kept))


def places(number: str) -> int:
    """How many digits a number has behind its point."""
    return len(number.partition(".")[2])


def _near(found: str, kept: str) -> bool:
    last = 10.0 ** -min(places(found), places(kept))
    return math.isclose(float(found), float(kept), rel_tol=NEAR, abs_tol=NEAR + 1.01 * last)


# ----------------------------------------------------------------------------------------reading what was written


def described(path: Path) -> str:
    """A file as text: tensors, tables and pictures by what is in them."""
    if path.suffix == ".safetensors":
        return _json({key: _tensor(value) for key, value in sorted(load_file(path).items())})
    if path.suffix == ".parquet":
        table = pyarrow.parquet.read_table(path)
        rows = table.to_pylist()
        for row in rows:
            row["image"] = _picture(row["image"]["bytes"], row["image"]["path"])
        kinds = {field.name: str(field.type) for field in table.schema}
        features = json.loads(table.schema.metadata[b"huggingface"])
        return _json({"columns": kinds, "features": features, "rows": rows})
    if path.suffix in PICTURES:
        return _json(_picture(path.read_bytes(), path.name))
    return path.read_text(encoding="utf-8")


def _json(value: Any) -> str:
    return f"{indented(value)}\n"


def _tensor(value: np.ndarray) -> dict[str, Any]:
    shown = "{:.4f}" if value.dtype.kind == "f" else "{}"
    is_key = value.dtype == np.uint8 and value.ndim == 2
    flat = value.reshape(len(value), -1)
    rows = [row.tobytes().hex() if is_key else " ".join(map(shown.format, row)) for row in flat]
    return {"dtype": str(value.dtype), "shape": list(value.shape), "rows": rows}


def _picture(content: bytes, name: str) -> dict[str, Any]:
    """Its size and the mean colour of every quarter."""
    with Image.open(io.BytesIO(content)) as image:
        halves = np.array_split(np.asarray(image.convert("RGB"), dtype=float), 2)
        quarters = [half.mean((0, 1)) for rows in halves for half in np.array_split(rows, 2, 1)]
        means = [" ".join(f"{value:.1f}" for value in quarter) for quarter in quarters]
        shown = {"name": name, "format": image.format, "mode": image.mode}
        return {**shown, "size": list(image.size), "means": means}


_COSTS = ("x", "y", "seconds", "process_mb", "gpu_mb")


def without_costs(text: str) -> str:
    """A report without seconds and bytes, curves of the loss, and places on the map."""
    if text.startswith("section,"):
        table = pd.read_csv(io.StringIO(text), dtype=str, keep_default_na=False)
        assert table.to_csv(index=False, lineterminator="\n") == text
        for name in table.columns.intersection(_COSTS):
            blank = "" if name == "gpu_mb" else "<cost>"  # not everybody has a GPU
            table[name] = table[name].mask(table[name] != "", blank)
        return table.to_csv(index=False, lineterminator="\n")
    if text.startswith("{"):
        return re.sub(rf'"({"|".join(_COSTS)})": (-?[\d.]+|null)', r'"\1": "<cost>"', text)
    cells, curves = r"<h2>Time and memory</h2>.*?</section>", r'<section id="learning">.*?</section>'
    blank = lambda found: re.sub(r"<td>[^<]*</td>", "<td><cost></td>", found.group())  # noqa: E731
    return re.sub(curves, _without_curves, re.sub(cells, blank, text, flags=re.DOTALL), flags=re.DOTALL)


def _without_curves(found: re.Match[str]) -> str:
    text = re.sub(r'<line class="grid".*?</text>\n', "", found.group(), flags=re.DOTALL)
    text = re.sub(r' (points|d)="[^"]*"', r' \1="<places>"', text)
    return re.sub(r"(<title>[^<]*: )[^<]*", r"\1<loss>", text)


def registry_files(kept: Path) -> Written:
    """The categories of a project: the rows of all tables, prototypes as numbers."""
    store = CategoryRegistry.open(kept / "categories.sqlite")
    tables = {
        "state": "num_known, stage, next_id, next_number from state",
        "category": "* from category order by id",
        "image": "lower(hex(key)), stage, category, confidence, pinned, reviewed, was, unseen from image "
        "order by key",
        "forbidden": "lower(hex(key)), forbidden.category from forbidden join image on image.id = image order by 1, 2",
        "link": "lower(hex(one.key)), lower(hex(two.key)) from link "
        "join image one on one.id = a join image two on two.id = b order by 1, 2",
        "log": "number, kind, what, stage, time, undone, final from log order by number",
    }
    rows = {name: [list(row) for row in store.run(f"select {query}")] for name, query in tables.items()}
    vectors = [np.frombuffer(value, "<f4") for (value,) in store.run("select value from vector order by id")]
    rows["vector"] = [[f"{number:.4f}" for number in vector] for vector in vectors]
    lines = [
        f'"{name}": [\n' + ",\n".join(json.dumps(row, ensure_ascii=False) for row in each)
        for name, each in rows.items()
    ]
    return {"categories.json": "{\n" + "\n],\n".join(lines) + "\n]\n}\n"}


def exported(folder: Path) -> Written:
    """Every file of an exported folder but its hidden records; of pictures what they show."""
    texts, pictures = Written(), []
    for path in sorted(each for each in folder.rglob("[!.]*") if each.is_file()):
        name = path.relative_to(folder).as_posix()
        if path.suffix in PICTURES:
            pictures.append({"file": name, **json.loads(described(path))})
        else:
            texts[f"{name}.json" if path.suffix in (".safetensors", ".parquet") else name] = described(path)
    if pictures:
        texts["pictures.json"] = _json(pictures)
    return texts


# ------------------------------------------------------------------------------------------------ commands


def said(*words: object, code: int = 0) -> str:
    """What a command prints."""
    with redirect_stdout(io.StringIO()) as printed:
        assert main([str(word) for word in words]) == code
    return printed.getvalue()


def picture(kind: int, number: int, side: int = 32) -> np.ndarray:
    """A noisy pattern of a colour; kinds are far apart."""
    noise = np.random.default_rng([kind, number]).integers(-20, 21, (side, side, 3))
    y, x = np.mgrid[:side, :side]
    disc = (x - side // 2) ** 2 + (y - side // 2) ** 2 < (side // 3) ** 2
    pattern = [x // 4 % 2, y // 4 % 2, (x // 8 + y // 8) % 2, (x + y) // 4 % 2, disc][kind]
    pixels = np.array(COLOURS[kind]) * (0.35 + 0.65 * pattern[..., None]) + noise
    return np.clip(pixels, 0, 255).astype(np.uint8)


def corrected(window: Window, do: str, *files: str, **more: Any) -> None:
    """A window of ``promptccd open`` sends a correction of the photographs of these names."""
    names, sent = window.get("names?from=0"), {"do": do, "generation": window.get("state")["generation"]}
    rows = [names.index(file) for file in files]
    images = dict(zip(("first", "second"), rows, strict=True)) if do == "answer" else {"images": rows}
    status, reply = window.do(**sent, **(images if files else {}), **more)
    assert status == 200, reply


# ------------------------------------------------------------------------------------------------ what is held


# Processors with products in bfloat16 disagree in the third digit.
SAME = ("--device", "cpu", "--precision", "fp32")


class Groups:
    """Photographs in albums below a folder, what commands do to their groups, and what is kept of it."""

    def __init__(self, here: Path):
        self.here, self.out, self.texts, self.keys = here, here / "found", Written(), dict[str, str]()

    def album(self, name: str, counts: dict[int, int], first: int) -> Path:
        """Photographs ``<kind>-<number>.bmp``, with spots of their own: no two are of one moment."""
        folder = self.here / name
        folder.mkdir()
        for kind, number in ((kind, first + each) for kind, count in counts.items() for each in range(count)):
            spots = np.random.default_rng([kind, number]).integers(-70, 71, (8, 8, 3))
            spots = spots.repeat(4, 0).repeat(4, 1)
            pixels = np.clip(picture(kind, number).astype(int) + spots, 0, 255).astype(np.uint8)
            # No library chooses the bytes of such a file, and so the key of the image.
            Image.fromarray(pixels).save(folder / f"{kind}-{number}.bmp", dpi=(72, 72))
        seen = {each.name: look_at(each.read_bytes(), Decoding(10**6), None)[1] for each in folder.iterdir()}
        self.keys |= {each: picture.key for each, picture in seen.items() if picture is not None}
        return folder

    def discover(self, images: Path, *more: object) -> str:
        return said("discover", "photographs", images, "--out", self.out, *SAME, *more)

    def correct(self, *words: object) -> None:
        said("categories", self.out, *words)

    def keep(self, name: str, found: Written) -> None:
        self.texts.update({f"{name}/{each}": text for each, text in found.items()})

    def keep_results(self, name: str) -> None:
        results = ("assignments.csv", "discovery.html")
        self.keep(name, {each: (self.out / each).read_text() for each in results})

    def table(self, window: Window) -> str:
        """What a window exports as a table."""
        assert window.ask("/api/export", {"kind": "table"})[0] == 200
        return (self.out / "table/assignments.csv").read_text()

    def home(self, name: str) -> int:
        """The category of a photograph."""
        return CategoryRegistry.open(self.out / ".promptccd/categories.sqlite").members[self.keys[name]]


def write_project(here: Path) -> Written:
    """Three stages of photographs with corrections by command and by window between them, and what is exported."""
    groups = Groups(here)
    texts, out, key, home = groups.texts, groups.out, groups.keys, groups.home
    correct, keep = groups.correct, groups.keep
    albums = [
        groups.album(f"album{stage}", counts, 10 * stage)
        for stage, counts in enumerate([{0: 5, 1: 5, 2: 5}, {2: 3, 3: 5}, {3: 2, 4: 5, 0: 2}], start=1)
    ]
    (albums[0] / "copy.bmp").write_bytes((albums[0] / "0-10.bmp").read_bytes())
    (albums[0] / "page.bmp").write_text("<html>")

    texts["stage1/discover.txt"] = groups.discover(albums[0], "--export", "folders", "--export", "publish")
    groups.keep_results("stage1")
    keep("stage1/folders", exported(out / "folders"))
    keep("stage1/publish", exported(out / "publish"))
    red, green, blue = (home(name) for name in ("0-10.bmp", "1-10.bmp", "2-10.bmp"))
    correct("rename", red, "=red & <stripes>")
    correct("move", green, key["0-11.bmp"])
    correct("undo")
    correct("redo")
    correct("split", green, key["1-10.bmp"], key["0-11.bmp"])
    keep("stage1/kept", registry_files(out / ".promptccd"))

    printed = json.loads(groups.discover(albums[1], "--json"))
    texts["stage2/discover.json"] = _json(printed)
    yellow = home("3-20.bmp")
    correct("move", yellow, key["2-11.bmp"])  # of the stage before
    correct("merge", red, yellow)
    correct("split", red)  # where the features suggest it
    keep("stage2", {"discovery.html": (out / "discovery.html").read_text()})
    keep("stage2/kept", registry_files(out / ".promptccd"))

    groups.discover(albums[2])
    with served(out) as page:
        window = Window(page)
        corrected(window, "gather", "2-12.bmp", "2-20.bmp", "3-30.bmp", name="chosen ones")
        corrected(window, "answer", "0-10.bmp", "4-30.bmp", same=False)
        corrected(window, "answer", "4-31.bmp", "0-30.bmp", same=True)
        corrected(window, "confirm", "4-32.bmp")
        homes = {row["file"]: row["category"] for row in csv.DictReader(io.StringIO(groups.table(window)))}
        corrected(window, "dissolve", category=int(homes["1-10.bmp"]))
        texts["window/groups.csv"] = groups.table(window)
        for kind in ("sidecars", "publish"):
            assert window.ask("/api/export", {"kind": kind})[0] == 200
    for kind in ("sidecars", "publish"):
        keep(f"window/{kind}", exported(out / kind))
    correct("merge", blue, red)
    correct("undo")
    correct("undo")
    correct("redo")
    keep("stage3/kept", registry_files(out / ".promptccd"))
    keep("stage3/kept", {"project.json": (out / ".promptccd/project.json").read_text()})
    texts["stage3/list.txt"] = said("categories", out, "list")
    texts["stage3/list.json"] = said("categories", out, "list", "--json")
    texts["stage3/discover.txt"] = groups.discover(albums[2])
    groups.keep_results("stage3")
    texts["stage3/discover1.txt"] = groups.discover(albums[0])
    return texts


VIEWS = ("about", "changed", "check", "questions", "right", "alike?rows=0,5", "halves/0", "why/0", "why/15")


def views(out: Path) -> str:
    """What a window of ``promptccd open`` reads."""
    with served(out) as page:
        window = Window(page)
        return _json({name: window.get(name) for name in VIEWS})


def brighter(path: Path) -> None:
    """A near-duplicate of a photograph, next to it."""
    with Image.open(path) as image:
        image.point(lambda value: min(255, value + 4)).save(path.with_stem(f"{path.stem} brighter"))


def write_ignored(here: Path) -> Written:
    """What a person ignores, near-duplicates, missing files, and photographs that are grouped again."""
    groups = Groups(here)
    texts, out, home, correct, key = groups.texts, groups.out, groups.home, groups.correct, groups.keys
    first = groups.album("first", {0: 5, 1: 5, 2: 5}, 10)
    brighter(first / "1-12.bmp")
    (first / "copy.bmp").write_bytes((first / "0-10.bmp").read_bytes())
    texts["first.json"] = groups.discover(first, "--num_categories", 3, "--json")
    correct("aside", home("0-10.bmp"))
    correct("aside", key["2-10.bmp"])
    texts["again.txt"] = groups.discover(first, "--num_categories", 2)
    groups.keep_results("again")

    more = groups.album("more", {0: 3, 1: 2, 3: 4}, 20)
    texts["more.txt"] = groups.discover(more, "--export", "folders")
    groups.keep_results("more")
    groups.keep("more/folders", exported(out / "folders"))
    texts["views.json"] = views(out)
    correct("regroup", 4)
    correct("undo")
    correct("redo")
    correct("back", home("0-10.bmp"))
    correct("gather", key["3-20.bmp"], key["1-12.bmp"])
    correct("answer", key["3-21.bmp"], key["3-22.bmp"], "same")
    correct("answer", key["2-12.bmp"], key["0-20.bmp"], "different")
    correct("confirm", key["2-13.bmp"])
    texts["views of corrections.json"] = views(out)
    (more / "1-20.bmp").unlink()
    texts["missing.txt"] = said("categories", out, "list")
    correct("forget")
    (out / ".promptccd/before.sqlite").unlink()
    texts["last.txt"] = groups.discover(more)
    groups.keep("last", registry_files(out / ".promptccd"))

    brighter(first / "2-11.bmp")
    correct("move", home("1-11.bmp"), key["2-11.bmp"])
    texts["later.txt"] = groups.discover(first)
    groups.keep_results("later")
    return texts


def write_reports(here: Path) -> Written:
    """Reports, comparisons and tables of two runs whose rate is so small that their features are the backbone's."""
    import torch

    with torch.random.fork_rng():
        torch.manual_seed(0)
        Dinov2Model(Dinov2Config(**TINY_BACKBONE)).save_pretrained(here / "backbone")
    labels = [kind for _ in range(12) for kind in range(5)]
    # Every eighth label is wrong.
    kinds = [(label + (number % 8 == 7)) % 5 for number, label in enumerate(labels)]
    images = [Image.fromarray(picture(kind, number, 16)) for number, kind in enumerate(kinds)]
    names = ["=red & <stripes>", "green", "blue", 'yellow, or "gold"', "violet disc"]
    columns = Features({"image": ImageColumn(), "Käfer": ClassLabel(names=names)})
    Dataset.from_dict({"image": images, "Käfer": labels}, features=columns).save_to_disk(str(here / "images"))
    training = {
        "epochs": 2, "batch_size": 32, "learning_rate": 1e-7, "refit_every": 2, "prompt_warmup_epochs": 1,
        "replay_samples": 5,
    }  # fmt: skip
    recipe = {**quick_recipe(here / "images", here / "backbone", here), "training": training}
    recipe["data"]["label_column"] = "Käfer"
    (here / "tiny.yaml").write_text(yaml.safe_dump(recipe))
    sweep = here / "sweep"
    plan = ["sweep", "--config", here / "tiny.yaml", "--seeds", 1, 2, "--out", sweep]
    plan += ["--set", "kmeans_restarts=3", "epochs=2"]
    cells = [row["cell"] for row in json.loads(said(*plan, "--dry-run", "--json"))]
    runs, counted = [sweep / cell for cell in cells], here / "counted"
    given, estimated = ("--kmeans_restarts", 3), ("--category_count", "split_merge")
    for run, seed, options in zip([*runs, counted], (1, 2, 1), (given, given, estimated), strict=True):
        said("train", "--config", here / "tiny.yaml", "--output_dir", run, "--seed", seed, *options)
    texts = {"sweep/said.txt": said(*plan), "evaluate.txt": said("evaluate", *runs)}
    texts["sweep/collected.json"] = said(*plan, "--collect", "--json")
    texts["sweep/collected.txt"] = said(*plan, "--seeds", 3, "--collect")

    def keep(name: str, folder: Path, *files: str) -> None:
        for each in files or ("report.csv", "report.json", "index.html"):
            texts[f"{name}/{each}"] = without_costs((folder / each).read_text(encoding="utf-8"))

    keep("sweep", sweep, "table.md")
    keep("sweep/report", sweep / "report")
    said("report", *runs, "--out", here / "report", "--samples", 2)
    keep("report", here / "report")
    said("report", *runs, counted, "--compare", "--out", here / "comparison")
    keep("comparison", here / "comparison")
    said("report", counted, "--out", here / "counted-report", "--samples", 0, "--baselines")
    keep("counted", here / "counted-report", "report.json", "index.html")
    texts["streams/evaluate.txt"] = write_streams(here, images, names, {**recipe, "data": {}})
    keep("streams", here / "streams-report", "report.json")
    table = ["--table", "main", "--methods", "orca", "--seeds", 1]
    table += ["--datasets", f"cifar100={here / 'nowhere'}"]
    texts["table/said.txt"] = said("sweep", *table, "--out", here / "table")
    texts["table/said.json"] = said("sweep", *table, "--out", here / "table", "--json")
    keep("table", here / "table", "table.md")
    keep("table/report", here / "table/report")
    return texts | write_uses(here, runs[0], counted)


def write_streams(here: Path, images: list[Image.Image], names: list[str], recipe: dict[str, Any]) -> str:
    """The report of a run over streams without labels, with labelled images held out; what ``evaluate`` prints."""
    for number, image in enumerate(images):
        kind = number % 5
        folder = f"labelled/{names[kind]}" if kind < 2 and number % 2 else f"week{1 + number % 2}"
        (here / folder).mkdir(parents=True, exist_ok=True)
        image.save(here / folder / f"{number:02d}.png")
    (here / "streams.yaml").write_text(yaml.safe_dump(recipe))
    run, weeks = here / "streams", [here / "week1", here / "week2"]
    data = [here / "labelled", "--unlabelled", *weeks, "--held_out", 0.2, "--seed", 1]
    said("train", "--config", here / "streams.yaml", *data, "--output_dir", run)
    said("report", run, "--out", here / "streams-report", "--samples", 1, "--baselines")  # it has none
    return said("evaluate", run)


def write_uses(here: Path, run: Path, counted: Path) -> Written:
    """The cards of three runs, and what other commands print of them."""
    stages = {"scored": run / "stage3", "counted": counted / "stage1", "streams": here / "streams/stage2"}
    stages["first"] = here / "streams/stage1"
    texts = {f"cards/{name}.md": (stage / "README.md").read_text() for name, stage in stages.items()}
    image, out, recipe = min((here / "labelled").rglob("*.png")), here / "explained", here / "tiny.yaml"
    (here / "labelled/page.png").write_text("<html>")
    said("categories", run / "stage3", "rename", 0, "=cmd()|' /C calc'!A0")
    for name, *words in (
        ("split.txt", "--config", recipe),
        ("split.json", "--config", recipe, "--seed", 5, "--json"),
        ("parameters.txt", "--config", recipe),
        *(
            (f"parameters.{each}.txt", f"{each}-cub")
            for each in ("promptccd", "promptccd-gcd", "promptccd-pp", "promptccd-b-l2p", "promptccd-b-dp")
        ),
        ("predict.txt", here / "streams", here / "labelled", "--top_k", 2),
        ("predict.json", run, image, "--json"),
        ("explain.txt", run / "stage3", image, "--out", out),
        ("recipes.txt", "frost-digits"),
        ("audit.txt", "--benchmark", "cub"),
        ("evaluate.streams.json", here / "streams", "--json"),
        ("evaluate.baselines.json", counted, "--baselines", "--json"),
        ("evaluate.protocols.json", run, "--protocol", "cacc", "--protocol", "gcd", "--json"),
        ("evaluate.both.txt", run, counted, "--protocol", "cacc", "--protocol", "gcd"),
        ("verify.counted.txt", counted),
    ):
        texts[f"uses/{name}"] = said(name.partition(".")[0], *words)
    (here / "streams/stage1/added").touch()
    texts["uses/verify.txt"] = said("verify", here / "streams", "--quick", code=1)
    texts |= {f"uses/{each}": described(out / each) for each in ("explanation.json", "overlay.png")}
    return texts


WRITERS: dict[str, Callable[[Path], Written]] = {
    "project": write_project,
    "ignored": write_ignored,
    "runs": write_reports,
}


# Some seconds each, and quick none the less: they see what no other does.
@pytest.mark.parametrize("name", WRITERS)
def test_what_is_written_is_what_was_written_before(name: str, tmp_path: Path) -> None:
    found = {each: normalised(text, tmp_path) for each, text in WRITERS[name](tmp_path).items()}
    folder = GOLDEN / "written" / name
    if IS_REWRITTEN:
        shutil.rmtree(folder)
        for each, text in found.items():
            (folder / each).parent.mkdir(parents=True, exist_ok=True)
            (folder / each).write_text(text, encoding="utf-8")
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    kept = {path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8") for path in files}
    assert sorted(found) == sorted(kept)
    differing = {each: why for each, text in kept.items() if (why := difference(found[each], text))}
    assert not differing, "\n\n".join(f"{name}/{each}\n{why}" for each, why in differing.items())


def test_only_the_last_digits_may_differ() -> None:
    assert not difference('{"a": 0.50001, "b": [1.25]}', '{"a": 0.50002, "b": [1.25]}')
    assert difference('{"a": 0.5}', '{"a": 0.9}') == "0.5, not 0.9"
    assert TEXT["numbers-have-up-to-2-places"] in difference("0.12", "0.123456")
    assert "+name" in difference("file,name", "file,title")
    text = normalised("at 2026-01-01T00:00:00+00:00 in /x/y: 0.12345678", Path("/x"))
    assert text == "at <time> in <here>/y: 0.123457"
