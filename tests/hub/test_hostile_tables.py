"""Whatever a data set names that is not its own is neither read nor sent."""

import io
import json
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import datasets.config
import pyarrow.parquet
import pytest

from promptccd.cli.main import main
from promptccd.data import StageStream
from promptccd.data.tables import load_images
from promptccd.errors import DataError
from promptccd.hub import publish_stages
from tests.conftest import coloured_images, quick_recipe, write_recipe
from tests.hub.hostile_tables import CARD, MARKER, TABLES, Places, foreign, secret_files, write_parquet
from tests.hub.server import Fault, Hub
from tests.messages import TEXT

WATCHED: list[str] = []
SEEN: list[str] = []


def _watch(event: str, values: tuple) -> None:
    """Audit hook: note whatever opens a watched place, and every call to the address that tables name."""
    if not WATCHED:
        return
    if event == "open" and isinstance(values[0], str | os.PathLike):
        place = os.path.realpath(values[0])
        if any(place == watched or place.startswith(watched + os.sep) for watched in WATCHED):
            SEEN.append(place)
    elif event == "socket.connect" and isinstance(values[1], tuple) and values[1][1] == 9:
        SEEN.append(f"{values[1]}")


sys.addaudithook(_watch)


@pytest.fixture
def places(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Places]:
    """An empty place for a data set, secrets beside it, and an eye on who opens them."""
    places = Places(tmp_path / "data", tmp_path / "secret")
    secret_files(places.secret)
    monkeypatch.setenv("HOME", str(places.secret))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    before = signal.signal(signal.SIGALRM, lambda *_: pytest.fail("it waits for a pipe"))
    signal.alarm(60)
    yield places
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)
    WATCHED.clear()
    SEEN.clear()


def watch(places: Places) -> None:
    beside = places.data.with_name(places.data.name + "-secret")
    WATCHED[:] = [os.path.realpath(places.secret), os.path.realpath(beside), "/dev/zero"]


def left_behind(places: Places, hub: Hub) -> list[str]:
    """Where the marker of the secrets is, besides where it was put."""
    root = places.data.parent
    own = {places.secret, places.data.with_name(places.data.name + "-secret"), places.data}
    files = [path for path in root.rglob("*") if path.is_file() and not own & set(path.parents)]
    found = [str(path) for path in files if MARKER in path.read_bytes()]
    return found + [name for name, data in hub.sent() if MARKER in data]


def refused(capsys) -> str:
    """The one line that says why, the last of what is said after bars of `datasets`."""
    said = capsys.readouterr().err
    lines = [line for line in said.splitlines() if line.startswith("promptccd: ")]
    assert said.endswith("\n")
    assert said.splitlines()[-1:] == lines, said
    return lines[0]


LEFT_OUT = {"an image that is a link": "link to a place outside", "a pipe": "not a regular file"}


@pytest.mark.slow
@pytest.mark.fault(17, 42)
@pytest.mark.parametrize("way", TABLES)
def test_nothing_outside_is_read_or_sent(
    way: str, places: Places, hub: Hub, backbone_folder: Path, trained_run: Path, capsys
) -> None:
    TABLES[way](places)
    recipe = places.data.parent / "recipe.json"
    recipe.write_text(json.dumps(quick_recipe(places.data, backbone_folder, places.data.parent / "run")))
    watch(places)
    for command in (
        ["train", "--config", str(recipe)],
        ["split", str(recipe)],
        ["split", str(recipe), "--push", "user/stages"],
    ):
        if way in LEFT_OUT:  # as any other image that cannot be read
            assert main(command) == 0, command
            continue
        assert main(command) == 2, command
        print(refused(capsys))
    if way in LEFT_OUT:
        listed = json.loads((places.data.parent / "run" / "images.json").read_text())
        groups = [listed["left_out"], *(each["skipped"] for each in listed["stages"])]
        assert [reason for group in groups for reason in group.values()] == [LEFT_OUT[way]]
    else:
        assert not [request for request in hub.requests("POST") if "validate" not in request.path]
        assert not (places.data.parent / "run").exists()
    stage = str(trained_run / "stage1")
    for command in (
        ["predict", stage, str(places.data), "--json"],
        ["discover", stage, str(places.data), "--out", str(places.data.parent / "found"), "--json"],
    ):
        assert main(command) in (0, 2), command
        assert "Traceback" not in capsys.readouterr().err
    assert SEEN == []
    assert left_behind(places, hub) == []


def test_the_watch_sees_what_it_should(places: Places, hub: Hub) -> None:
    watch(places)
    (places.data.parent / "link").symlink_to(places.image)
    assert MARKER in (places.data.parent / "link").read_bytes()
    assert [os.path.realpath(places.image)] == SEEN
    shutil.copy(places.image, places.data.parent / "copy.png")
    hub.add("user/leak", {"a.png": Path(places.image).read_bytes()})
    assert len(left_behind(places, hub)) == 4  # the copy, the link; on the Hub the object and the file


@pytest.mark.parametrize("way", ["an absolute path", "a link", "a device", "a null byte"])
def test_the_row_and_the_path_are_named(way: str, places: Places, capsys) -> None:
    TABLES[way](places)
    assert main(["split", str(places.data), "--class_blocks", "2", "1", "1", "1"]) == 2
    said = capsys.readouterr().err
    named = {"a link": str(places.data / "link.png"), "a device": "/dev/zero"}.get(way, places.image)
    assert "Row 37 of" in said
    assert named in said
    assert "\0" not in said


def card_of(data_files: str) -> bytes:
    return f"---\nconfigs:\n- config_name: default\n  data_files: {data_files}\n---\n".encode()


@pytest.mark.slow
@pytest.mark.parametrize(
    "where", ["row", "line", "{secret}/*.parquet", "http://127.0.0.1:9/a.csv", "hf://datasets/user/own/*"]
)
def test_a_repository_names_nothing_but_its_own(
    where: str, places: Places, hub: Hub, backbone_folder: Path, trained_run: Path, capsys, tmp_path: Path
) -> None:
    """Neither in a row of a table, nor in a line of JSON, nor in its card."""
    hub.add("user/own", places.secret, kind="dataset")
    write_parquet(foreign(places.image if where == "row" else ""), tmp_path / "t.parquet")
    files = {"train.parquet": (tmp_path / "t.parquet").read_bytes()}
    if where == "line":
        line = json.dumps({"image": {"path": places.image}, "label": 0}) + "\n"
        files = {"train.jsonl": line.encode(), "README.md": f"---\n{CARD}---\n".encode()}
    elif where != "row":
        files["README.md"] = card_of(where.format(secret=places.secret))
    hub.add("user/foreign", files, kind="dataset")
    values = quick_recipe(places.data, backbone_folder, tmp_path / "run")
    values["data"]["dataset"] = "user/foreign"
    recipe = write_recipe(tmp_path / "recipe.json", values)
    hub.log.clear()
    watch(places)
    for command in (["train", "--config", str(recipe)], ["split", str(recipe), "--push", "user/stages"]):
        assert main(command) == 2
        assert "names" in refused(capsys)
    out = str(tmp_path / "found")
    assert main(["discover", str(trained_run / "stage1"), "user/foreign", "--out", out]) in (0, 2)
    assert SEEN == []
    assert not hub.requests("", "user/own")
    assert not hub.requests("POST", "commit")


@pytest.mark.parametrize("where", ["{secret}/*.parquet", "hf://datasets/user/own/*"])
@pytest.mark.parametrize("fault", [Fault(die="before"), Fault(status=404)], ids=["no answer", "not there"])
def test_a_card_that_could_not_be_looked_at_is_not_believed(
    fault: Fault, where: str, places: Places, hub: Hub, waits, tmp_path: Path
) -> None:
    """There is no card when it is asked for, and there is one when `datasets` asks for it."""
    hub.add("user/own", places.secret, kind="dataset")
    hub.add("user/foreign", {"README.md": card_of(where.format(secret=places.secret))}, kind="dataset")
    for times in range(1, 12):
        hub.plan(lambda request: "README.md" in request.path, fault, times=times)
        watch(places)
        with pytest.raises(DataError):
            load_images("user/foreign")
        WATCHED.clear()
        hub.clear_plans()
    assert SEEN == []
    assert not [request for request in hub.requests("GET", "user/own") if "/resolve/" in request.path]


@pytest.mark.slow
def test_published_stages_name_nothing_but_their_own(places: Places, hub: Hub) -> None:
    publish_stages(StageStream.from_dataset(coloured_images(5, 12), class_blocks=[2, 1, 1, 1]), "user/stages")
    name = "stage_1/train-00000-of-00001.parquet"
    table = pyarrow.parquet.read_table(io.BytesIO(hub.files("user/stages", "dataset")[name]))
    rows = table.to_pylist()
    rows[1]["image"] = {"bytes": None, "path": places.image}
    stream = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows, schema=table.schema), stream)
    hub.add("user/stages", {name: stream.getvalue()}, kind="dataset")
    watch(places)
    with pytest.raises(DataError, match=TEXT["row-of-names-secret-png"]):
        StageStream.from_hub("user/stages")
    assert SEEN == []
