"""Files, pictures and features that were stored are found again, and nothing that a stranger wrote is believed."""

import contextlib
import dataclasses
import io
import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from promptccd.data.sources import Stamp
from promptccd.discovery.intake import seen as module
from promptccd.discovery.intake.locations import SeenPicture
from promptccd.discovery.intake.seen import FEATURES, SEEN, DecodedFile, SeenFiles, pictures_in
from promptccd.errors import RunError
from promptccd.images import identity
from promptccd.images.decode import Decoding, Status, Verdict
from promptccd.images.rendering import Rendering
from tests.discovery.stored import stored_in

FIVE, SIX = {"enough": 5}, {"enough": 6}
DIGESTS = [f"{number:064x}" for number in range(5)]
KEYS = [f"{number % 4 + 16:064x}" for number in range(5)]
DATES = ["", "2024-05-01T10:11:12", "2024-05-01T10:11:12+02:00", "2024-13-01T10:11:12", "0001-01-01T00:00:00"]
NO_IMAGE = "9" * 64


def decoded(seed: bytes) -> DecodedFile:
    pixels, stream = np.resize(np.frombuffer(seed, dtype=np.uint8), (30, 40, 3)), io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    return identity.look_at(stream.getvalue(), Decoding(10**6), None)


def stamp(number: int, mtime_ns: int = 10**18) -> Stamp:
    return Stamp(f"/{number}\udcff.png", 2**40 + number, mtime_ns + number, 10**18, 2)


def filled(folder: Path, settings: dict[str, int] = FIVE) -> SeenFiles:
    """All that there may be: a skipped file, notes, dates of all kinds, a depth, a row of a table, features."""
    seen = SeenFiles(folder, settings)
    seen.use(Rendering(integer=(0, 4095)))
    _, plain = decoded(b"3" * 99)
    for number, taken in enumerate(DATES):
        image = dataclasses.replace(plain, key=KEYS[number], taken=taken, size=(70_000, number + 1))
        if number == 3:
            image = dataclasses.replace(image, is_rendered=True)
        note = Verdict(Status.NOTED, "\u9dfa is shown") if number == 2 else Verdict(Status.USED)
        seen.add_decoded(DIGESTS[number], (note, image))
    seen.add_decoded(NO_IMAGE, (Verdict(Status.SKIPPED, "it is no image"), None))
    for number in (0, 1, 2, 4):  # 3 is a row of a table
        seen.add_file(stamp(number), DIGESTS[number])
    seen.add_file(Stamp("/no.txt", 5, 6), NO_IMAGE)
    seen.flush()
    seen.add_file(Stamp("/0\udcff.png", 7, 8), DIGESTS[1])  # now has another content
    seen.forget("/no.txt")
    seen.store_features("space", KEYS[:4], torch.arange(12.0).reshape(4, 3))
    return seen


def answers(seen: SeenFiles) -> list[object]:
    """Everything that it returns."""
    found = [seen.decoded(each) for each in (*DIGESTS, f"{5:064x}", NO_IMAGE)]
    paths = [f"/{number}\udcff.png" for number in range(5)]
    rows, there = seen.features("space", [*KEYS[:4], "a" * 64])
    plain = {"miniature": None, "thumbnail": b""}
    return [
        [each and (each[0], each[1] and dataclasses.replace(each[1], **plain)) for each in found],
        [seen.hash_at(path) for path in (*paths, "/no.txt")],
        [seen.content_of(stamp(each)) for each in range(5)],
        [seen.content_of(Stamp("/no.txt", 5, 6)), seen.content_of(Stamp("/no.txt", -1, 6))],
        {key: each.tolist() for key, each in sorted(seen.miniatures(DIGESTS).items())},
        sorted(seen.thumbnails(DIGESTS).items()),
        seen.rendering,
        (rows.tolist(), there.tolist()),
        seen.pictures(),
    ]


def test_everything_is_found_again_before_and_after_it_is_written(tmp_path: Path) -> None:
    seen = filled(tmp_path)
    before = answers(seen)
    seen.close()
    again = SeenFiles(tmp_path, FIVE)
    after = answers(again)
    assert before == after
    assert after[2] == ["", DIGESTS[1], DIGESTS[2], "", DIGESTS[4]]
    assert (after[0][5], after[3]) == (None, ["", NO_IMAGE])
    assert after[6] == Rendering(integer=(0, 4095))
    assert after[7] == ([[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11], [0, 0, 0]], [True] * 4 + [False])
    assert after[8][KEYS[1]].files == (("/0\udcff.png", DIGESTS[1]), ("/1\udcff.png", DIGESTS[1]))
    assert [after[8][KEYS[each]].has_rows for each in (0, 3)] == [False, True]
    assert set(after[8]) == set(KEYS)
    assert pictures_in(tmp_path) == after[8]
    assert again.has_feature("space", KEYS[0]) and not again.has_feature("other", KEYS[0])


@pytest.mark.parametrize("mtime_ns", [2**63, -(2**70)])
def test_a_file_of_a_broken_clock_is_known(tmp_path: Path, mtime_ns: int) -> None:
    with closing(SeenFiles(tmp_path)) as seen:
        seen.add_decoded(DIGESTS[1], decoded(b"1"))
        seen.add_file(Stamp("/a.png", 1, mtime_ns), DIGESTS[1])
    assert SeenFiles(tmp_path).content_of(Stamp("/a.png", 1, mtime_ns)) == DIGESTS[1]
    assert SeenFiles(tmp_path).content_of(Stamp("/a.png", 2, mtime_ns)) == ""


def test_other_settings_read_files_again_and_keep_keys(tmp_path: Path) -> None:
    filled(tmp_path).close()
    seen, (verdict, image) = SeenFiles(tmp_path, SIX), decoded(b"4" * 99)
    assert image is not None
    assert [seen.decoded(each) for each in (*DIGESTS, NO_IMAGE)] == [None] * 6
    assert seen.content_of(stamp(1)) == ""
    assert seen.key_of(DIGESTS[1], "", image) == KEYS[1]
    assert seen.key_of(NO_IMAGE, "", image) == image.key, "it showed no picture"
    assert seen.key_of("e" * 64, "", image) == image.key
    seen.add_decoded(DIGESTS[1], (verdict, dataclasses.replace(image, key=KEYS[1])))
    seen.close()
    again = SeenFiles(tmp_path, SIX)
    assert np.array_equal(again.miniatures([DIGESTS[1]])[DIGESTS[1]], image.miniature)
    assert again.content_of(stamp(1)) == DIGESTS[1]
    assert again.decoded(DIGESTS[2]) is None
    assert SeenFiles(tmp_path, FIVE).decoded(DIGESTS[1]) is None


@pytest.mark.parametrize("settings", [FIVE, SIX])
def test_another_folder_is_imported_under_the_keys_that_are_known(
    tmp_path: Path, settings: dict[str, int]
) -> None:
    """Of a content that both have decoded with the same settings, nothing is replaced."""
    (verdict, image), other = decoded(b"4" * 99), filled(tmp_path / "part", settings)
    assert image is not None
    other.add_decoded("e" * 64, (verdict, image))
    other.store_features("space", [image.key], torch.full((1, 3), 7.0))
    other.close()
    with closing(SeenFiles(tmp_path / "here", FIVE)) as here:
        here.add_decoded(DIGESTS[1], (verdict, dataclasses.replace(image, key="d" * 64)))
        here.import_from(tmp_path / "part")
    with closing(SeenFiles(tmp_path / "here", settings)) as here:
        assert [here.known_key(each) for each in (DIGESTS[1], DIGESTS[2], "e" * 64)] == [
            "d" * 64,
            KEYS[2],
            image.key,
        ]
        rows, there = here.features("space", ["d" * 64, KEYS[1], KEYS[2], image.key])
        assert (rows[:, 0].tolist(), there.tolist()) == ([3, 0, 6, 7], [True, False, True, True])
        assert here.content_of(stamp(1)) == DIGESTS[1]
        assert here.pictures()[KEYS[3]].has_rows
        mine = np.array_equal(here.miniatures([DIGESTS[1]])[DIGESTS[1]], image.miniature)
        assert mine == (settings == FIVE)
    whole = stored_in(tmp_path / "here")
    with closing(SeenFiles(tmp_path / "here", settings)) as here:
        here.import_from(tmp_path / "part")
    assert stored_in(tmp_path / "here") == whole


def test_features_that_a_killed_writer_left_do_not_count(tmp_path: Path) -> None:
    filled(tmp_path).close()
    with (tmp_path / FEATURES).open("ab") as stream:
        stream.write(b"half a row")
    seen = SeenFiles(tmp_path, FIVE)
    seen.store_features("other", KEYS[:2], torch.ones(2, 5))
    assert seen.features("other", KEYS[:2])[0].tolist() == [[1] * 5] * 2
    assert (tmp_path / FEATURES).stat().st_size == 4 * (12 + 10)
    seen.store_features("space", KEYS[:1], torch.full((1, 3), 5.0))  # computed again
    assert seen.features("space", KEYS[:2])[0].tolist() == [[5, 5, 5], [3, 4, 5]]


def test_what_is_decoded_in_another_way_is_replaced_and_what_was_made_of_it_goes(tmp_path: Path) -> None:
    seen = filled(tmp_path)
    seen.add_cells({DIGESTS[3]: b"one", DIGESTS[2]: b"two"})
    seen.use(Rendering(integer=(0, 4095)))
    assert seen.decoded(DIGESTS[3]) is not None
    seen.use(Rendering(given=(0, 255)))
    assert seen.decoded(DIGESTS[3]) is None
    assert seen.known_key(DIGESTS[3]) == KEYS[3]
    assert seen.cells(DIGESTS) == {DIGESTS[2]: b"two"}
    assert seen.features("space", KEYS[:4])[1].tolist() == [True, True, True, False]
    assert SeenFiles(tmp_path, FIVE).rendering == Rendering(given=(0, 255))
    assert seen.content_of(stamp(1)) == DIGESTS[1]


def test_near_duplicate_groups_that_fit_no_pictures_are_found_again(tmp_path: Path) -> None:
    seen = SeenFiles(tmp_path)
    for number, wrong in enumerate(([0, 0, 3, 3], [0, 2, 2, 0], [0, 0, 1, 1], [0, 0, 2])):
        seen.store_near_duplicates(f"{number:064x}", np.stack([np.arange(len(wrong)), wrong]))
        assert seen.near_duplicates(f"{number:064x}", 4) is None
    found = seen.near_duplicates(f"{3:064x}", 3)
    assert found is not None and found.tolist() == [[0, 1, 2], [0, 0, 2]]
    seen.store_near_duplicates("cd" * 32, np.zeros((2, 4), np.int64))
    assert seen.near_duplicates("cd" * 32, 3) is None
    assert seen.near_duplicates(f"{3:064x}", 3) is None, "only the newest are stored"
    seen.store_followers(KEYS[:2], {KEYS[1]: KEYS[0]})
    seen.store_followers(KEYS[2:], {KEYS[3]: KEYS[2]})
    assert seen.followers([*KEYS, "row:7"]) == {KEYS[1]: KEYS[0], KEYS[3]: KEYS[2]}
    seen.store_followers(KEYS[:2], {})
    assert seen.followers(KEYS) == {KEYS[3]: KEYS[2]}, "the same images, grouped with --near_duplicates off"


def altered(statement: str) -> Callable[[Path], None]:
    def alter(folder: Path) -> None:
        with closing(sqlite3.connect(folder / SEEN)) as database:
            database.executescript(statement)

    return alter


STRANGE = {
    "a trigger": altered("create trigger t after insert on file begin delete from content; end"),
    "a view": altered("create view v as select * from file"),
    "a table": altered("create table t(a)"),
    "another table": altered(
        "drop table near_duplicate; create table near_duplicate(source blob primary key, first_of text)"
    ),
    "an index": altered("create index i on file(hash)"),
    "no database": lambda folder: (folder / SEEN).write_bytes(b"x" * 5000),
    "half": lambda folder: (folder / SEEN).write_bytes((folder / SEEN).read_bytes()[:9000]),
}


@pytest.mark.parametrize("change", STRANGE.values(), ids=STRANGE.keys())
def test_a_database_of_a_stranger_is_made_again_and_a_reader_leaves_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, change: Callable[[Path], None]
) -> None:
    filled(tmp_path).close()
    change(tmp_path)
    content = (tmp_path / SEEN).read_bytes()
    assert pictures_in(tmp_path) == {}
    assert (tmp_path / SEEN).read_bytes() == content
    assert "is damaged, and files are read again" in caplog.text
    seen = SeenFiles(tmp_path, FIVE)
    assert (seen.decoded(DIGESTS[1]), seen.hash_at("/1\udcff.png")) == (None, "")
    assert not (tmp_path / FEATURES).exists()
    seen.close()
    filled(tmp_path).close()
    assert SeenFiles(tmp_path, FIVE).content_of(stamp(1)) == DIGESTS[1]


VALUES = {
    "a status": "update content set status = 'odd'", "a key": "update content set key = 7",
    "a width": "update content set width = 'wide'", 
    "a rule": "update origin set name = '{\"integer\": 5}' where id = 0",
    "a hash": "update file set hash = 3.5", "a path": "update file set path = 7 where path like '/1%'",
    "a date": "update content set taken = 5", "an origin": "update origin set id = 'x' where id = 9",
}  # fmt: skip


@pytest.mark.parametrize("statement", VALUES.values(), ids=VALUES.keys())
def test_values_of_a_stranger_end_in_one_sentence(tmp_path: Path, statement: str) -> None:
    filled(tmp_path).close()
    altered(statement)(tmp_path)
    seen = SeenFiles(tmp_path, FIVE)
    for ask in (
        lambda: [seen.decoded(each) for each in DIGESTS], seen.pictures, lambda: seen.rendering,
        lambda: seen.content_of(stamp(1)), lambda: seen.features("space", KEYS),
        lambda: [seen.known_key(each) for each in DIGESTS],
    ):  # fmt: skip
        try:
            ask()
        except RunError as error:
            assert "Delete it, and files are read again" in str(error)


def test_dates_and_notes_of_a_stranger_are_plain(tmp_path: Path) -> None:
    filled(tmp_path).close()
    altered("update content set taken = '<script>', note = 'a' || char(10, 27) || 'b'")(tmp_path)
    seen = SeenFiles(tmp_path, FIVE)
    found = seen.decoded(DIGESTS[1])
    assert found is not None and found[1] is not None and found[1].taken == ""
    assert found[0].note.isprintable()
    assert set(seen.pictures()[KEYS[1]].dates.values()) == {""}


def test_features_of_a_stranger_are_missing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    seen = filled(tmp_path)
    for change in ("start = -8", f"start = {2**62}", "width = 2", "sum = 5", "start = 'x'"):
        altered(f"update feature set {change} where key = x'{KEYS[1]}'")(tmp_path)
        try:
            assert seen.features("space", KEYS[:2])[1].tolist() == [True, False]
        except RunError as error:
            assert change == "start = 'x'" and "damaged" in str(error)


@pytest.mark.parametrize("name", [SEEN, f"{SEEN}-wal", FEATURES])
def test_nothing_is_written_through_a_link(tmp_path: Path, name: str) -> None:
    (tmp_path / "elsewhere").write_bytes(b"")
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / name).symlink_to(tmp_path / "elsewhere")
    for is_reader in (True, False):
        with (
            contextlib.suppress(RunError),
            closing(SeenFiles(tmp_path / "project", is_reader=is_reader)) as seen,
        ):
            if not is_reader:
                seen.store_features("space", KEYS[:1], torch.ones(1, 3))
    assert (tmp_path / "elsewhere").read_bytes() == b""


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / SEEN)
    with pytest.raises(RunError, match="is no file"):
        SeenFiles(tmp_path)
    assert pictures_in(tmp_path) == {}


def test_a_full_disk_is_logged_and_costs_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*given: object) -> None:
        raise RunError("the disk is full")

    seen = filled(tmp_path)
    monkeypatch.setattr(module, "append_to", full)
    seen.store_features("space", ["a" * 64], torch.ones(1, 3))
    assert "results could not be kept, and are computed again: the disk is full" in caplog.text
    monkeypatch.undo()
    assert seen.features("space", [KEYS[0], "a" * 64])[1].tolist() == [True, False]
    seen._db.execute("pragma max_page_count = 1")
    for number in range(300):
        seen.add_decoded(f"{number + 100:064x}", decoded(bytes([number % 250]) * 9))
    seen.flush()
    assert "full" in caplog.records[-1].getMessage()
    assert seen.decoded(DIGESTS[1]) is not None


def test_a_folder_that_is_not_there_or_read_only_can_be_looked_at(tmp_path: Path) -> None:
    assert pictures_in(tmp_path / "none") == {}
    assert not (tmp_path / "none").exists()
    filled(tmp_path / "here").close()
    before = pictures_in(tmp_path / "here")
    (tmp_path / "here").chmod(0o555)
    try:
        found: dict[str, SeenPicture] = pictures_in(tmp_path / "here")
    finally:
        (tmp_path / "here").chmod(0o755)
    assert found == before != {}


def test_writers_at_once_lose_nothing(tmp_path: Path) -> None:
    """A page stores pictures of its grid while a discovery stores files."""
    seen, page = filled(tmp_path), SeenFiles(tmp_path, is_reader=True)
    page.add_cells({DIGESTS[1]: b"one"})
    seen.add_decoded("e" * 64, decoded(b"6"))
    seen.flush()
    page.add_cells({DIGESTS[2]: b"two"})
    assert seen.cells(DIGESTS) == {DIGESTS[1]: b"one", DIGESTS[2]: b"two"}
    assert page.known_key("e" * 64) != ""
