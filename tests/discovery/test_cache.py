"""What one run of discover leaves to the next: it costs what is new, and whatever is lost or damaged is made again."""

import csv
import dataclasses
import hashlib
import io
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import Module
from torch.nn.modules.module import register_module_forward_pre_hook

from promptccd.cli.main import main
from promptccd.columns import sealed, unsealed
from promptccd.data.sources import Stamp
from promptccd.discovery import cache, seen_files, session
from promptccd.discovery.cache import FeatureCache, Packs
from promptccd.discovery.project import places
from promptccd.discovery.project.file_columns import Look
from promptccd.discovery.project.folder import COLUMNS, FEATURES, FILES, MINIATURES, PROJECT, THUMBS
from promptccd.discovery.project.places import pictures_in
from promptccd.discovery.seen_files import SeenFiles
from promptccd.images import identity
from promptccd.images.decode import Decoding, Status, Verdict
from promptccd.images.depth import Depth
from promptccd.models import CategoryDiscoveryModel
from promptccd.registry import columns
from tests.discovery.conftest import write_pictures
from tests.discovery.corrected import registry_in

_opened: list[str] | None = None


def _audit(event: str, arguments: tuple[object, ...]) -> None:
    if _opened is not None and event == "open" and isinstance(arguments[0], str):
        _opened.append(arguments[0])


sys.addaudithook(_audit)  # which nothing takes away again


class Cost:
    """How many images a run decoded and embedded, and what it opened below a folder."""

    def __init__(self) -> None:
        self.decoded, self.embedded, self.opened = 0, 0, list[str]()


@contextmanager
def costs(below: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cost]:
    global _opened
    cost, decode = Cost(), identity.decode_image

    def decoding(content: bytes, *how: object, **options: object) -> object:
        cost.decoded += 1
        return decode(content, *how, **options)

    def forward(module: Module, given: tuple[object, ...]) -> None:
        if isinstance(module, CategoryDiscoveryModel):
            cost.embedded += len(given[0])

    hook = register_module_forward_pre_hook(forward)
    _opened = []
    try:
        with monkeypatch.context() as patch:
            patch.setattr(identity, "decode_image", decoding)
            yield cost
    finally:
        hook.remove()
        cost.opened = sorted(
            os.path.relpath(path, below) for path in _opened or () if path.startswith(f"{below}/")
        )
        _opened = None


@pytest.fixture
def run(backbone_folder: Path, tmp_path: Path) -> Callable[..., None]:
    def discover(images: Path, out: str = "out", *options: str) -> None:
        assert (
            main(["discover", str(backbone_folder), str(images), "--out", str(tmp_path / out), *options]) == 0
        )

    return discover


@pytest.fixture
def album(tmp_path: Path) -> Path:
    folder = write_pictures(tmp_path / "album", [0, 1, 2, 3], per_category=4)
    (folder / "page.png").write_bytes(b"<html>")
    (folder / "z copy.png").write_bytes((folder / "0-000.png").read_bytes())
    pixels = np.random.default_rng(0).integers(0, 256, (400, 300, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(folder / "photograph.jpg")
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def rows_of(out: Path) -> dict[str, dict[str, str]]:
    with (out / "assignments.csv").open(encoding="utf-8", newline="") as stream:
        return {row["file"]: row for row in csv.DictReader(stream)}


@pytest.mark.slow
def test_a_second_run_opens_no_image_and_writes_the_same(run, album, tmp_path, monkeypatch):
    with costs(album, monkeypatch) as cost:
        run(album)
    assert (cost.decoded, cost.embedded, len(set(cost.opened))) == (18, 17, 19)
    before = contents(tmp_path / "out")
    with costs(album, monkeypatch) as cost:
        run(album)
    assert (cost.decoded, cost.embedded, cost.opened) == (0, 0, [])
    assert contents(tmp_path / "out") == before
    written = (tmp_path / "out" / "discovery.html").stat().st_ino
    run(album)
    assert (tmp_path / "out" / "discovery.html").stat().st_ino == written, "it was not drawn again"


@pytest.mark.slow
def test_what_is_added_is_the_next_stage_and_all_that_is_paid_for(run, album, tmp_path, monkeypatch):
    run(album)
    before = rows_of(tmp_path / "out")
    registry = registry_in(tmp_path / "out")
    new = write_pictures(tmp_path / "new", [4, 5], per_category=3, seed=9)
    for path in new.iterdir():
        shutil.move(path, album / f"new-{path.name}")
    with costs(album, monkeypatch) as cost:
        run(album)
    assert (cost.decoded, cost.embedded, len(set(cost.opened))) == (6, 6, 6)
    assert all(name.startswith("new-") for name in cost.opened)
    after = registry_in(tmp_path / "out")
    assert after.stage == registry.stage + 1
    assert registry.members.items() <= after.members.items()
    rows = rows_of(tmp_path / "out")
    for name, row in before.items():
        kept = ("category", "name", "sha256", "status", *(["stage"] if row["category"] else []))
        assert {each: rows[name][each] for each in kept} == {each: row[each] for each in kept}
    assert {row["stage"] for name, row in rows.items() if name.startswith("new-")} == {str(after.stage)}
    assert {row["known"] for name, row in rows.items() if name in before and row["category"]} == {"settled"}


@pytest.mark.slow
def test_the_next_folder_costs_its_new_images_and_lists_the_known_ones(run, album, tmp_path, monkeypatch):
    run(album)
    before = rows_of(tmp_path / "out")
    other = write_pictures(tmp_path / "other", [4, 5], per_category=3, seed=9)
    for name in ("0-000.png", "photograph.jpg", "page.png"):
        shutil.copy(album / name, other / f"again {name}")
    with costs(other, monkeypatch) as cost:
        run(other)
    assert (cost.decoded, cost.embedded, len(set(cost.opened))) == (6, 6, 9)  # a copy is read, to be known
    rows = rows_of(tmp_path / "out")
    assert len(rows) == 9
    assert rows["again 0-000.png"]["category"] == before["0-000.png"]["category"] != ""
    assert rows["again photograph.jpg"]["stage"] == before["photograph.jpg"]["stage"]
    assert rows["again page.png"]["note"] == before["page.png"]["note"] != ""
    with costs(album, monkeypatch) as cost:
        run(album)  # the first folder once more
    assert (cost.decoded, cost.embedded, cost.opened) == (0, 0, [])
    again = rows_of(tmp_path / "out")
    assert {name: row["category"] for name, row in again.items()} == {
        name: row["category"] for name, row in before.items()
    }
    sources = json.loads((tmp_path / "out" / PROJECT / "project.json").read_text())["sources"]
    assert sources == [str(album), str(other)]


@pytest.mark.slow
def test_corrections_of_every_kind_stay_when_images_are_added(run, album, tmp_path):
    out, kinds = tmp_path / "out", ([4, 5], [6, 4])
    run(album, "out", "--num_categories", "5")
    given = set(registry_in(out).categories)
    for stage, more in enumerate(kinds):
        registry = registry_in(out)
        first, second, third, *_ = sorted(
            (each.id for each in registry.active if each.size > 1), key=lambda each: -each
        )
        keys = registry.members_of(first)
        for words in (
            ("rename", second, f"heron {stage}"), ("split", third), ("move", second, keys[0]), ("merge", second, third),
            ("undo",), ("redo",), ("dissolve", first),
        ):  # fmt: skip
            assert main(["categories", str(out), *map(str, words)]) == 0
        before = registry_in(out)
        assert not (set(before.categories) - set(registry.categories)) & given
        given |= set(before.categories)
        for path in write_pictures(
            tmp_path / f"more {stage}", more, per_category=4, seed=20 + stage
        ).iterdir():
            shutil.move(path, album / f"{stage}-{path.name}")
        run(album)
        after = registry_in(out)
        assert before.members.items() <= after.members.items()
        assert all(after.categories[each].name == before.categories[each].name for each in before.categories)
        assert min(set(after.categories) - given, default=before.next_id) >= before.next_id
        assert [entry.what for entry in before.log if entry.time] == [
            entry.what for entry in after.log if entry.time
        ]
        given |= set(after.categories)


@pytest.mark.slow
def test_moved_renamed_and_touched_files_are_known_and_changed_ones_are_seen(
    run, album, tmp_path, monkeypatch
):
    run(album)
    before = rows_of(tmp_path / "out")
    (album / "deep").mkdir()
    one, two = min(album.glob("1-*")), min(album.glob("2-*"))
    one.rename(album / "deep" / "heron.png")
    os.utime(album / "photograph.jpg")
    with costs(album, monkeypatch) as cost:
        run(album)
    assert (cost.decoded, cost.embedded) == (0, 0)
    assert cost.opened == ["deep/heron.png", "photograph.jpg"]
    rows = rows_of(tmp_path / "out")
    assert rows["deep/heron.png"]["category"] == before[one.name]["category"]
    assert registry_in(tmp_path / "out").stage == 0
    found = two.stat()
    Image.new("RGB", (20, 20), "red").save(two)
    os.utime(two, ns=(found.st_atime_ns, found.st_mtime_ns + 1))
    with costs(album, monkeypatch) as cost:
        run(album)
    assert (cost.decoded, cost.embedded, set(cost.opened)) == (1, 1, {two.name})
    assert rows_of(tmp_path / "out")[two.name]["sha256"] != before[two.name]["sha256"]


@pytest.mark.slow
def test_members_of_an_archive_are_known_by_place_and_sum(run, album, tmp_path, monkeypatch):
    archive = Path(shutil.make_archive(str(tmp_path / "zipped" / "album"), "zip", album))
    run(archive)
    before = contents(tmp_path / "out")
    with costs(archive.parent, monkeypatch) as cost:
        run(archive)
    assert (cost.decoded, cost.embedded) == (0, 0)
    assert contents(tmp_path / "out") == before
    run(archive, "elsewhere")
    os.utime(archive)
    with costs(archive.parent, monkeypatch) as cost:
        run(archive)
    assert (cost.decoded, cost.embedded) == (0, 0)  # unpacked and hashed


@pytest.mark.slow
def test_links_are_known_by_what_they_lead_to(run, album, tmp_path, monkeypatch):
    (album / "a link.png").symlink_to(max(album.glob("1-*")))
    run(album)
    with costs(album, monkeypatch) as cost:
        run(album)
    assert cost.opened == []
    assert rows_of(tmp_path / "out")["a link.png"]["note"].startswith("same picture as 1-")


DAMAGES = {
    "empty": lambda found: b"",
    "cut short": lambda found: found[:-9],
    "half": lambda found: found[: len(found) // 2],
    "another": lambda found: b"x" * 99,
    "zeros": lambda found: bytes(len(found)),
    "a bit": lambda found: found[:-70] + bytes([found[-70] ^ 64]) + found[-69:],
}
QUICK = {(FILES, "cut short"), (FEATURES, "a bit")}


@pytest.mark.moderate
@pytest.mark.parametrize(
    ("which", "damage"),
    [
        pytest.param(which, damage, marks=() if (which, damage) in QUICK else pytest.mark.slow)
        for which in (FILES, COLUMNS, FEATURES, THUMBS, MINIATURES)
        for damage in DAMAGES
        if damage != "a bit" or which != FILES  # which holds a line for each, and no sum
    ],
)
def test_what_can_be_made_again_is(run, album, tmp_path, monkeypatch, damage, which):
    out = tmp_path / "out"

    def results() -> dict[str, bytes]:
        """All but small pictures that nothing asked for again."""
        return {name: content for name, content in contents(out).items() if THUMBS not in name}

    if which == COLUMNS:
        monkeypatch.setattr(seen_files, "LONGEST_LIST", 0)
    run(album)
    before = results()
    place = out / PROJECT / which
    for path in [place] if place.is_file() else place.rglob("*.safetensors"):
        path.write_bytes(DAMAGES[damage](path.read_bytes()))
    (out / "discovery.html").unlink()  # its pictures are asked for
    run(album)
    assert results() == before
    shutil.rmtree(place) if place.is_dir() else place.unlink()
    (out / "discovery.html").unlink()
    run(album)
    assert results() == before
    (out / "discovery.html").unlink()
    with costs(album, monkeypatch) as cost:
        run(album)
    assert (cost.decoded, cost.opened) == (0, [])


@pytest.mark.slow
def test_moments_are_found_once_for_the_same_pictures(run, album, tmp_path, monkeypatch):
    searched = []
    find = session.find_near_duplicates
    monkeypatch.setattr(
        session, "find_near_duplicates", lambda *given: searched.append(len(given[1])) or find(*given)
    )
    for _ in range(2):
        run(album, "out", "--num_categories", "3")
    run(album)
    assert searched == [17]
    write_pictures(album, [5], per_category=1)
    for _ in range(2):
        run(album)
    assert searched == [17, 18]


@pytest.mark.slow
def test_moments_are_found_again_where_pictures_were_taken_at_another_time(run, album, monkeypatch):
    searched = []
    find = session.find_near_duplicates
    monkeypatch.setattr(
        session, "find_near_duplicates", lambda *given: searched.append(given[3]) or find(*given)
    )
    first = sorted(album.glob("*.png"))[0]
    with Image.open(first) as image:
        image.load()
    image.save(first.with_suffix(".tif"))
    first.unlink()
    run(album)
    exif = Image.Exif()
    exif[0x0132] = "2024:05:06 07:08:09"
    image.save(first.with_suffix(".tif"), exif=exif)
    run(album)
    assert len(searched) == 2 and np.isnan(searched[0]).all() and not np.isnan(searched[1]).all()


def test_moments_that_fit_no_pictures_are_found_again(tmp_path):
    kept = FeatureCache(tmp_path)
    for number, wrong in enumerate(([0, 0, 3, 3], [0, 2, 2, 0], [0, 0, 1, 1], [0, 0, 2])):
        kept.store_moments(f"{number:064x}", np.array(wrong))
        assert kept.moments(f"{number:064x}", 4) is None
    assert kept.moments(f"{3:064x}", 3).tolist() == [0, 0, 2]
    kept.store_moments("cd" * 32, np.array([0, 0, 2, 0]))
    assert kept.moments("cd" * 32, 4).tolist() == [0, 0, 2, 0]
    assert kept.moments("cd" * 32, 3) is None
    assert kept.moments(f"{3:064x}", 3) is None, "only the newest are kept"


def test_pictures_that_follow_another_of_their_moment_are_remembered_over_all_stages(tmp_path):
    one, two, three, four = (f"{number:064x}" for number in range(4))
    FeatureCache(tmp_path).store_followers({two: one})
    FeatureCache(tmp_path).store_followers({four: three})
    assert FeatureCache(tmp_path).followers([one, two, four]) == {two: one, four: three}


@pytest.mark.slow
def test_a_list_of_files_torn_at_any_byte_is_gone_on_with(tmp_path):
    made_with, stamps = (
        {"enough": 5},
        [Stamp(f"/{number}\udcff.png", 9, number) for number in range(4)],
    )
    seen = SeenFiles(tmp_path, made_with)
    looks = [look_of(bytes([60 * number]) * 99) for number in range(3)]

    def fill(seen: SeenFiles) -> None:
        for number, stamp in enumerate(stamps):
            if not seen.content_of(stamp):
                seen.add_look(f"{number % 3:064x}", looks[number % 3])
                seen.add(stamp, f"{number % 3:064x}")
        seen.flush()

    fill(seen)
    content = (tmp_path / FILES).read_bytes()
    for length in range(0, len(content) + 1, 7):
        (tmp_path / FILES).write_bytes(content[:length])
        fill(SeenFiles(tmp_path, made_with))
        assert (tmp_path / FILES).read_bytes() == content
    again = SeenFiles(tmp_path, made_with)
    assert [again.content_of(stamp) for stamp in stamps] == [f"{number % 3:064x}" for number in range(4)]
    verdict, image = again.look(f"{1:064x}")
    assert (verdict, image.size) == (looks[1][0], looks[1][1].size)
    assert np.array_equal(again.miniatures([f"{1:064x}"])[f"{1:064x}"], looks[1][1].miniature)
    assert again.content_of(Stamp(stamps[0].path, 9, 5)) == ""
    assert SeenFiles(tmp_path, {"enough": 6}).content_of(stamps[0]) == "", "of another view"


def look_of(seed: bytes) -> Look:
    pixels = np.resize(np.frombuffer(seed, dtype=np.uint8), (30, 40, 3))
    return identity.look_at(_png(Image.fromarray(pixels)), Decoding(10**6), None)


def _png(image: Image.Image) -> bytes:
    stream = io.BytesIO()
    image.save(stream, "PNG")
    return stream.getvalue()


@pytest.mark.parametrize(
    "values",
    [
        {"sha256": "x"}, {"sha256": "a" * 64}, {"sha256": 7}, {"path": 5}, {"size": "1"}, {"mtime_ns": 1.5},
        {"look": {"note": "a\nb", "status": "skipped"}}, {"look": {"note": "", "status": "odd"}},
        {"look": {"note": "", "status": "used"}},
    ],
)  # fmt: skip
def test_a_list_that_a_stranger_wrote_is_not_believed(tmp_path, caplog, values):
    seen = SeenFiles(tmp_path, {})
    seen.add_look("b" * 64, look_of(b"1"))
    seen.add(Stamp("/a.png", 9, 9), "b" * 64)
    seen.flush()
    line = {"path": "/b.png", "size": 1, "mtime_ns": 1, "sha256": "b" * 64, **values}
    with (tmp_path / FILES).open("a") as stream:
        stream.write(json.dumps(line) + "\n")
    again = SeenFiles(tmp_path, {})
    assert "is not gone on with, and files are read again" in caplog.text
    assert again.content_of(Stamp("/a.png", 9, 9)) == ""


def filled(folder: Path) -> SeenFiles:
    """A list with all that there may be: a skipped file, notes, dates of all kinds, a depth, a row of a table."""
    seen = SeenFiles(folder, {"enough": 5})
    _, plain = look_of(b"3" * 99)
    dates = [
        "",
        "2024-05-01T10:11:12",
        "2024-05-01T10:11:12+02:00",
        "2024-13-01T10:11:12",
        "0001-01-01T00:00:00",
    ]
    for number, taken in enumerate(dates):
        image = dataclasses.replace(
            plain, key=f"{number % 4 + 16:064x}", taken=taken, size=(70_000, number + 1)
        )
        note = Verdict(Status.NOTED, "鷺 is shown") if number == 2 else Verdict(Status.USED)
        if number == 3:
            image = dataclasses.replace(image, depth=Depth("integer", 12, True, 11))
        seen.add_look(f"{number:064x}", (note, image))
    seen.add_look("9" * 64, (Verdict(Status.SKIPPED, "it is no image"), None))
    for number in (0, 1, 2, 4):  # 3 is a row of a table
        seen.add(Stamp(f"/{number}\udcff.png", 2**40 + number, 10**18 + number, 10**18, 2), f"{number:064x}")
    seen.add(Stamp("/no.txt", 5, 6), "9" * 64)
    seen.add(Stamp("/0\udcff.png", 7, 8), f"{1:064x}")  # now holds another one
    seen.forget("/no.txt")
    return seen


def told(seen: SeenFiles) -> list[object]:
    """All that it answers."""
    digests = [*(f"{number:064x}" for number in range(6)), "9" * 64]
    looks = [seen.look(each) for each in digests]
    paths = [f"/{number}\udcff.png" for number in range(5)]
    return [
        [look and (look[0], look[1] and dataclasses.replace(look[1], miniature=None)) for look in looks],
        [seen.held_by(path) for path in (*paths, "/no.txt")],
        [seen.content_of(Stamp(paths[each], 2**40 + each, 10**18 + each, 10**18, 2)) for each in range(5)],
        [seen.content_of(Stamp("/no.txt", 5, 6)), seen.content_of(Stamp("/no.txt", -1, 6))],
        {key: each.tolist() for key, each in seen.miniatures(digests).items()},
        seen.depths,
    ]  # fmt: skip


@pytest.mark.filterwarnings("error")  # of NumPy, for dates with an offset
def test_columns_say_what_the_lines_said(tmp_path, monkeypatch):
    seen = filled(tmp_path)
    seen.flush(last=True)
    assert not (tmp_path / COLUMNS).exists(), "a short list stays lines"
    lines = (tmp_path / FILES).read_bytes()
    before, pictures = told(SeenFiles(tmp_path, {"enough": 5})), pictures_in(tmp_path)
    assert (before[0][5], before[2][1], before[3][0]) == (None, f"{1:064x}", "")
    monkeypatch.setattr(seen_files, "LONGEST_LIST", 3)
    again = SeenFiles(tmp_path, {"enough": 5})
    again.flush(last=True)
    assert not (tmp_path / FILES).exists()
    assert told(again) == told(SeenFiles(tmp_path, {"enough": 5})) == before == told(seen)
    assert pictures_in(tmp_path) == pictures
    columns = (tmp_path / COLUMNS).read_bytes()
    (tmp_path / FILES).write_bytes(lines)  # as a writer leaves it that is killed before they are gone
    assert (told(SeenFiles(tmp_path, {"enough": 5})), pictures_in(tmp_path)) == (before, pictures)
    SeenFiles(tmp_path, {"enough": 5}).flush(last=True)
    assert (tmp_path / COLUMNS).read_bytes() == columns


def test_lines_overrule_columns_and_go_into_them(tmp_path, monkeypatch):
    monkeypatch.setattr(seen_files, "LONGEST_LIST", 3)
    filled(tmp_path).flush(last=True)
    later = SeenFiles(tmp_path, {"enough": 5})
    later.add(Stamp("/1\udcff.png", 1, 1), "9" * 64)
    later.flush(last=True)
    assert (tmp_path / FILES).read_bytes().count(b"\n") == 2, "one line after that of the settings"
    assert SeenFiles(tmp_path, {"enough": 5}).held_by("/1\udcff.png") == "9" * 64
    assert f"{4:064x}" not in str(pictures_in(tmp_path)[f"{17:064x}"].files)
    monkeypatch.setattr(seen_files, "MOST_LINES", 3)  # in the middle of reading
    later = SeenFiles(tmp_path, {"enough": 5})
    later.add(Stamp("/new.png", 1, 1), f"{2:064x}")
    later.add(Stamp("/other.png", 1, 1), f"{2:064x}")
    later.flush()
    assert not (tmp_path / FILES).exists()
    again = SeenFiles(tmp_path, {"enough": 5})
    assert (again.held_by("/new.png"), again.held_by("/1\udcff.png")) == (f"{2:064x}", "9" * 64)


def test_columns_of_other_settings_give_keys_and_go_with_what_was_made_of_them(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(seen_files, "LONGEST_LIST", 3)
    filled(tmp_path).flush(last=True)
    other = SeenFiles(tmp_path, {"enough": 6})
    assert "is not gone on with" in caplog.text
    _, image = look_of(b"4" * 99)
    assert (other.look(f"{1:064x}"), other.held_by("/1\udcff.png")) == (None, "")
    assert other.key_of(f"{1:064x}", "", image) == f"{17:064x}"
    assert other.key_of("9" * 64, "", image) == image.key, "it showed no picture"
    other.add_look(f"{1:064x}", (Verdict(Status.USED), image))
    other.flush()
    assert not (tmp_path / COLUMNS).exists()
    again = SeenFiles(tmp_path, {"enough": 6})
    assert np.array_equal(again.miniatures([f"{1:064x}"])[f"{1:064x}"], image.miniature)
    assert again.look(f"{2:064x}") is None


def forged(name: str, value: object, dtype: str = "int64") -> Callable[[dict[str, np.ndarray]], None]:
    def apply(tensors: dict[str, np.ndarray]) -> None:
        if isinstance(value, bytes):
            tensors[name] = np.frombuffer(value, np.uint8)
        else:
            tensors[name] = tensors[name].astype(dtype)
            tensors[name][0] = value

    return apply


FORGED = {
    "a file of nothing": forged("held", 3), "before the first": forged("held", -1),
    "half a row": forged("held", 0, "float32"),
    "no width": forged("widths", 0), "no height": forged("heights", 2**31), "a year": forged("dates", 2**50),
    "dates as floats": forged("dates", 1, "float64"), "a content twice": lambda tensors: tensors["contents"].fill(1),
    "wide contents": lambda tensors: tensors.update(contents=np.zeros((3, 33), np.uint8)),
    "flat keys": lambda tensors: tensors.update(keys=np.zeros(32, np.uint8)),
    "odd hashes": lambda tensors: tensors.update(once_held=np.zeros((1, 32))),
    "fewer keys": lambda tensors: tensors.update(keys=tensors["keys"][1:]),
    "fewer stamps": lambda tensors: tensors.update(mtime_ns=tensors["mtime_ns"][1:]),
    "nothing of links": lambda tensors: tensors.pop("links"), "no sum of it": lambda tensors: tensors.pop("lines"),
    "a path twice": forged("paths", b'["a","a","b"]'), "a number for a path": forged("paths", b"[1,2,3]"),
    "paths by name": forged("paths", b'{"a":1,"b":1,"c":1}'), "no JSON": forged("paths", b"\xff"),
    "deep": forged("paths", b"[" * 200_000), "an odd line": forged("lines", b"[]"),
    "a file of an unknown content": forged(
        "lines", b'{"ctime_ns":1,"links":1,"mtime_ns":1,"path":"a","sha256":"%s","size":1}' % (b"7" * 64)
    ),
}  # fmt: skip


@pytest.mark.parametrize("forge", FORGED.values(), ids=FORGED.keys())
def test_columns_that_a_stranger_wrote_are_not_believed(tmp_path, caplog, monkeypatch, forge):
    monkeypatch.setattr(seen_files, "LONGEST_LIST", 3)
    filled(tmp_path).flush(last=True)
    tensors = unsealed((tmp_path / COLUMNS).read_bytes())
    forge(tensors)
    (tmp_path / COLUMNS).write_bytes(sealed(tensors))
    again = SeenFiles(tmp_path, {"enough": 5})
    assert "is not gone on with, and files are read again" in caplog.text
    assert (again.look(f"{1:064x}"), again.held_by("/1\udcff.png")) == (None, "")
    assert not pictures_in(tmp_path) or forge in (
        FORGED["an odd line"],
        FORGED["a file of an unknown content"],
    )


def test_a_file_takes_a_hundred_bytes_and_its_path(tmp_path, monkeypatch):
    monkeypatch.setattr(seen_files, "LONGEST_LIST", 3)
    seen, (verdict, image) = SeenFiles(tmp_path, {}), look_of(b"5" * 99)
    for number in range(300):
        digest = hashlib.sha256(bytes(number)).hexdigest()
        taken = f"2024-05-01T10:{number // 60:02}:{number % 60:02}"
        seen.add_look(digest, (verdict, dataclasses.replace(image, key=digest[::-1], taken=taken)))
        seen.add(Stamp(f"/{number:04}.jpg", 4_000_000 + number, 10**18 + number, 10**18 + number), digest)
    seen.flush(last=True)
    paths = 300 * len('"/0000.jpg",')
    assert (tmp_path / COLUMNS).stat().st_size - paths < 300 * 105 + 1200


@pytest.mark.slow
def test_a_disk_that_takes_no_more_is_done_without(run, album, tmp_path, monkeypatch, caplog):
    def full(*given: object) -> None:
        raise cache.PromptCCDError("the disk is full")

    monkeypatch.setattr(seen_files, "append_to", full)
    monkeypatch.setattr(cache, "write_file", full)
    run(album)
    assert "could not be kept" in caplog.text
    assert len(rows_of(tmp_path / "out")) == 19
    monkeypatch.undo()
    run(album)
    run(album, "other")
    assert contents(tmp_path / "out" / PROJECT / FEATURES) == contents(
        tmp_path / "other" / PROJECT / FEATURES
    )


def test_adding_a_few_rewrites_no_more_than_one_file(tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "ROWS", 10)
    Packs(tmp_path, "packs").add({f"{number:064x}": bytes([number]) for number in range(95)})
    before = {path.name: path.stat().st_ino for path in (tmp_path / "packs").iterdir()}
    Packs(tmp_path, "packs").add({f"{number:064x}": bytes([number]) for number in range(90, 99)})
    after = {path.name: path.stat().st_ino for path in (tmp_path / "packs").iterdir()}
    assert [name for name in sorted(after) if after[name] != before.get(name)] == ["000009.safetensors"]
    packs = Packs(tmp_path, "packs")
    assert packs.load([f"{98:064x}", f"{3:064x}", f"{200:064x}"]) == {f"{98:064x}": b"b", f"{3:064x}": b"\3"}


def test_storing_more_opens_nothing_again_but_the_last_file(tmp_path, monkeypatch):
    """Else a million features took a thousand times what a thousand take."""
    monkeypatch.setattr(cache, "ROWS", 4)
    opened, read, digests_of = list[str](), cache.read_file, Packs._digests

    def reading(path: Path, most: int) -> bytes:
        opened.append(path.name)
        return read(path, most)

    def indexing(packs: Packs, path: Path) -> list[str]:
        opened.append(path.name)
        return digests_of(packs, path)

    monkeypatch.setattr(cache, "read_file", reading)
    monkeypatch.setattr(Packs, "_digests", indexing)
    kept = FeatureCache(tmp_path)
    keys = [f"{number:064x}" for number in range(30)]
    for start in range(0, 30, 3):
        kept.store("a", keys[start : start + 3], torch.full((3, 2), float(start)))
    assert len(opened) <= 10, "at most one to go on in, each time"
    assert {key: row.tolist() for key, row in kept.load("a", keys).items()} == {
        key: [float(number // 3 * 3)] * 2 for number, key in enumerate(keys)
    }
    whole = contents(tmp_path)
    shutil.rmtree(tmp_path / "a")
    FeatureCache(tmp_path).store(
        "a", keys, torch.arange(10.0).mul(3).repeat_interleave(3)[:, None].repeat(1, 2)
    )
    assert contents(tmp_path) == whole


def test_what_another_process_stored_or_took_away_is_seen(tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "ROWS", 2)
    one, other = Packs(tmp_path, "packs"), Packs(tmp_path, "packs")
    one.add({"a" * 64: b"1", "b" * 64: b"2", "c" * 64: b"3"})
    other.add({"d" * 64: b"4", "a" * 64: b"no"})
    other.discard(["b" * 64])
    one.add({"b" * 64: b"5", "d" * 64: b"no"})
    assert Packs(tmp_path, "packs").load(each * 64 for each in "abcd") == one.load(
        each * 64 for each in "abcd"
    )
    assert one.load(each * 64 for each in "abcd") == {
        "a" * 64: b"1", "b" * 64: b"5", "c" * 64: b"3", "d" * 64: b"4",
    }  # fmt: skip


def test_a_page_that_does_not_follow_takes_no_pack_away(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(cache, "ROWS", 2)
    rows = {f"{number:064x}": bytes([number]) for number in range(5)}
    writer, page = Packs(tmp_path, "packs"), Packs(tmp_path, "packs")
    writer.add(rows)
    assert page.row(f"{4:064x}") == b"\4"
    writer.discard([f"{1:064x}", f"{4:064x}"])
    writer.add({"a" * 64: b"5"})  # under the number of the last one
    assert [page.row(each) for each in (f"{1:064x}", f"{4:064x}", f"{0:064x}")] == [None, None, b"\0"]
    assert Packs(tmp_path, "packs").load(rows).keys() == {f"{number:064x}" for number in (0, 2, 3)}
    assert Packs(tmp_path, "packs").row("a" * 64) == b"5"
    assert not caplog.text


@pytest.mark.skipif(sys.platform != "linux", reason="which lists what is mapped")
def test_a_page_leaves_the_pack_that_grows_to_its_writer(tmp_path, monkeypatch):
    """Windows lets nobody replace a file that is mapped into memory."""
    monkeypatch.setattr(cache, "ROWS", 2)
    page = Packs(tmp_path, "packs")
    page.add({f"{number:064x}": bytes([number]) for number in range(3)})
    assert [page.row(f"{number:064x}") for number in range(3)] == [b"\0", b"\1", b"\2"]
    mapped = Path("/proc/self/maps").read_text()
    assert str(tmp_path / "packs" / "000000") in mapped
    assert str(tmp_path / "packs" / "000001") not in mapped


@pytest.mark.parametrize("ends", [[4.0], [-3], [[4]], [2**62]])
def test_a_pack_that_a_stranger_wrote_is_not_believed(tmp_path, caplog, ends):
    packs = Packs(tmp_path, "packs")
    packs.add({"a" * 64: b"1234"})
    pack = tmp_path / "packs" / "000000.safetensors"
    tensors = unsealed(pack.read_bytes(), cache._COLUMNS) | {"ends": np.array(ends)}
    pack.write_bytes(sealed(tensors, cache._COLUMNS))
    assert Packs(tmp_path, "packs").row("a" * 64) in (None, b"1234")


def test_moments_and_followers_that_a_stranger_wrote_are_none(tmp_path):
    Packs(tmp_path, "moments").add({"a" * 64: b"12345"})
    Packs(tmp_path, "followers").add({"a" * 64: b"\xff"})
    assert FeatureCache(tmp_path).moments("a" * 64, 1) is None
    assert FeatureCache(tmp_path).followers(["a" * 64]) == {"a" * 64: "\ufffd"}


@pytest.mark.slow
def test_more_images_than_are_read_again_are_refused_before_they_are_embedded(
    run, album, backbone_folder, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(columns, "MOST_IMAGES", 16)
    with costs(album, monkeypatch) as cost:
        assert main(["discover", str(backbone_folder), str(album), "--out", str(tmp_path / "out")]) == 2
    assert "may have 16 images, and these are 17, which could not be read again" in capsys.readouterr().err
    assert cost.embedded == 0 and not (tmp_path / "out" / PROJECT / "registry.json").exists()
    monkeypatch.setattr(columns, "MOST_IMAGES", 17)
    run(album)
    run(album)


@pytest.mark.moderate
def test_a_second_name_for_a_file_is_no_reason_to_read_it(run, album, tmp_path, monkeypatch):
    """As the export into folders gives it one, which the system takes for a touch."""
    run(album)
    for number, path in enumerate(sorted(album.iterdir())):
        os.link(path, tmp_path / f"link{number}")
    with costs(album, monkeypatch) as cost:
        run(album)
    assert (cost.decoded, cost.opened) == (0, [])


def test_the_key_of_a_picture_outlives_other_settings(tmp_path):
    """A photograph that was turned in its place has the key that it had; a model with larger views changes nothing."""
    verdict, image = look_of(b"2" * 99)
    kept = SeenFiles(tmp_path, {"enough": 5})
    kept.add_look("c" * 64, (verdict, dataclasses.replace(image, key="d" * 64)))
    kept.flush()
    again = SeenFiles(tmp_path, {"enough": 6})
    assert again.look("c" * 64) is None
    assert again.key_of("c" * 64, "", image) == "d" * 64
    assert again.key_of("e" * 64, "", image) == image.key


def test_the_key_of_a_picture_outlives_other_settings_and_a_kill(tmp_path, monkeypatch):
    """Whoever is interrupted has dropped the old list, and looked at some of its pictures."""
    monkeypatch.setattr(seen_files, "LONGEST_LIST", 1)
    verdict, image = look_of(b"2" * 99)
    for settings, is_last in ((5, True), (6, False), (6, True), (7, False), (8, False)):
        seen = SeenFiles(tmp_path, {"enough": settings})
        if settings == 5:
            seen.add_look("c" * 64, (verdict, dataclasses.replace(image, key="d" * 64)))
            seen.add(Stamp("/c.png", 1, 1), "c" * 64)
        else:
            assert seen.look("c" * 64) is None
            assert seen.key_of("c" * 64, "", image) == "d" * 64
        seen.add_look(f"{settings + is_last:064x}", (verdict, image))
        seen.flush(last=is_last)
        assert ("d" * 64 in pictures_in(tmp_path)) == (settings == 5), "of which file is not known any more"


def test_a_page_that_looks_while_a_list_becomes_columns_misses_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(seen_files, "LONGEST_LIST", 3)
    filled(tmp_path).flush()
    found, read = pictures_in(tmp_path), places.read_file

    def between(path: Path, most: int) -> bytes:
        content = read(path, most)
        SeenFiles(tmp_path, {"enough": 5}).flush(last=True)
        return content

    monkeypatch.setattr(places, "read_file", between)
    assert pictures_in(tmp_path) == found
    assert (tmp_path / COLUMNS).exists()


@pytest.mark.parametrize("mtime_ns", [2**63, -(2**70)])
def test_a_file_of_a_broken_clock_stays_a_line(tmp_path, monkeypatch, mtime_ns):
    monkeypatch.setattr(seen_files, "LONGEST_LIST", 3)
    seen = filled(tmp_path)
    seen.add(Stamp("/later.png", 1, mtime_ns), f"{1:064x}")
    seen.flush(last=True)
    assert (tmp_path / COLUMNS).exists()
    assert SeenFiles(tmp_path, {"enough": 5}).content_of(Stamp("/later.png", 1, mtime_ns)) == f"{1:064x}"
