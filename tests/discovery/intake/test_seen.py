"""Files, pictures and features that were stored are found again, and nothing that a stranger wrote is executed."""

import contextlib
import dataclasses
import io
import os
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from promptccd.data.sources import Stamp
from promptccd.discovery.intake.seen import SEEN, DecodedFile, SeenFiles, pictures_in
from promptccd.errors import RunError
from promptccd.images import identity
from promptccd.images.decode import Decoding, Status, Verdict
from promptccd.images.rendering import Rendering
from tests.data.layouts import written
from tests.discovery.stored import alter
from tests.messages import TEXT

FIVE, SIX = {"enough": 5}, {"enough": 6}
DIGESTS = [f"{number:064x}" for number in range(5)]
KEYS = [f"{number % 4 + 16:064x}" for number in range(5)]
DATES = ["", "2024-05-01T10:11:12", "2024-05-01T10:11:12+02:00", "2024-13-01T10:11:12", "0001-01-01T00:00:00"]
NO_IMAGE = "9" * 64


def decoded(seed: bytes) -> DecodedFile:
    pixels, stream = np.resize(np.frombuffer(seed, dtype=np.uint8), (30, 40, 3)), io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    return identity.look_at(stream.getvalue(), Decoding(10**6), None)


def stamp(number: int, mtime_ns: int = 2**63) -> Stamp:
    """Of a broken clock; the path is no UTF-8."""
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
        seen.add(DIGESTS[number], (note, image), None if number == 3 else stamp(number))
    seen.add(NO_IMAGE, (Verdict(Status.SKIPPED, "it is no image"), None), Stamp("/no.txt", 5, 6))
    seen.add(DIGESTS[1], None, Stamp("/0\udcff.png", 7, 8))  # now has another content
    seen.forget("/no.txt")
    seen.store_features("space", KEYS[:4], torch.arange(12.0).reshape(4, 3))
    return seen


def test_everything_is_found_again(tmp_path: Path) -> None:
    filled(tmp_path).close()
    seen = SeenFiles(tmp_path, FIVE)
    known = [seen.known(stamp(each)) for each in range(5)]
    assert [each and each[0] for each in known] == [None, DIGESTS[1], DIGESTS[2], None, DIGESTS[4]]
    assert seen.known(dataclasses.replace(stamp(1), size=5)) is None
    assert seen.known(Stamp("/no.txt", 5, 6)) is None
    found = [seen.decoded(each) for each in (*DIGESTS, "f" * 64, NO_IMAGE)]
    assert [each and each[0].status for each in found] == [
        *[Status.USED] * 2, Status.NOTED, *[Status.USED] * 2, None, Status.SKIPPED
    ]  # fmt: skip
    assert found[1] is not None and found[1][1] is not None
    assert (found[1][1].key, found[1][1].taken, found[1][1].size) == (KEYS[1], DATES[1], (70_000, 2))
    assert seen.rendering == Rendering(integer=(0, 4095))
    rows, there = seen.vectors("space", [*KEYS[:4], "a" * 64])
    assert rows.tolist() == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11], [0, 0, 0]]
    assert there.tolist() == [True] * 4 + [False]
    assert not seen.vectors("other", KEYS)[1].any()
    assert set(seen.small("thumbnail", DIGESTS)) == set(seen.small("miniature", DIGESTS)) == set(DIGESTS)
    pictures = pictures_in(tmp_path)
    assert set(pictures) == set(KEYS)
    assert pictures[KEYS[1]].files == (("/0\udcff.png", DIGESTS[1]), ("/1\udcff.png", DIGESTS[1]))
    assert [pictures[KEYS[each]].has_rows for each in (0, 3)] == [False, True]
    assert pictures[KEYS[1]].dates == {DIGESTS[1]: DATES[1]}


def test_other_settings_read_files_again_and_keep_keys(tmp_path: Path) -> None:
    filled(tmp_path).close()
    seen, (verdict, image) = SeenFiles(tmp_path, SIX), decoded(b"4" * 99)
    assert image is not None
    assert [seen.decoded(each) for each in (*DIGESTS, NO_IMAGE)] == [None] * 6
    assert seen.known(stamp(1)) is None
    assert seen.add(NO_IMAGE, (verdict, image), None)[0] == image.key, "it showed no picture"
    assert seen.add(DIGESTS[1], (verdict, image), None)[0] == KEYS[1]
    assert seen.small("miniature", [DIGESTS[1]])[DIGESTS[1]] == image.miniature.tobytes()
    assert seen.known(stamp(1)) is not None


def test_pictures_that_another_rule_shows_are_decoded_again(tmp_path: Path) -> None:
    seen = filled(tmp_path)
    seen.use(Rendering(integer=(0, 4095)))
    assert seen.decoded(DIGESTS[3]) is not None
    seen.use(Rendering(given=(0, 255)))
    assert seen.decoded(DIGESTS[3]) is None
    assert seen.vectors("space", KEYS[:4])[1].tolist() == [True, True, True, False]
    assert SeenFiles(tmp_path, FIVE).rendering == Rendering(given=(0, 255))
    assert seen.known(stamp(1)) is not None


def test_followers_of_all_pictures_are_stored(tmp_path: Path) -> None:
    seen = SeenFiles(tmp_path)
    seen.store_followers(KEYS[:2], {KEYS[1]: KEYS[0]})
    seen.store_followers(KEYS[2:], {KEYS[3]: KEYS[2]})
    assert seen.followers([*KEYS, "row:7"]) == {KEYS[1]: KEYS[0], KEYS[3]: KEYS[2]}
    seen.store_followers(KEYS[:2], {})
    assert seen.followers(KEYS) == {KEYS[3]: KEYS[2]}, "the same images, grouped with --near_duplicates off"


@pytest.mark.parametrize(
    "damage",
    [
        "create trigger t after insert on file begin delete from content; end",
        "create view v as select * from file",
        "create index i on file(hash)",
        b"x" * 5000,
        b"",
        9000,
    ],
)
def test_a_database_of_a_stranger_is_made_again_and_a_reader_leaves_it(tmp_path, caplog, damage) -> None:
    filled(tmp_path).close()
    content = (tmp_path / SEEN).read_bytes()
    if isinstance(damage, str):
        alter(tmp_path, damage)
    else:
        (tmp_path / SEEN).write_bytes(damage if isinstance(damage, bytes) else content[:damage])
    content = (tmp_path / SEEN).read_bytes()
    assert pictures_in(tmp_path) == {}
    assert (tmp_path / SEEN).read_bytes() == content
    assert TEXT["is-damaged-and-files-are-read"] in caplog.text
    with closing(SeenFiles(tmp_path, FIVE)) as seen:
        assert (seen.decoded(DIGESTS[1]), seen.pictures()) == (None, {})
    filled(tmp_path).close()
    assert SeenFiles(tmp_path, FIVE).known(stamp(1)) is not None


@pytest.mark.parametrize(
    "statement",
    [
        "update content set status = 'odd'", "update content set width = 'wide'",
        "update or replace file set path = 7", "update file set stamp = '{}'",
        "update setting set value = '{\"integer\": 5}'", "update feature set vector = 'abcde'",
    ],
)  # fmt: skip
def test_values_of_a_stranger_end_in_one_sentence(tmp_path: Path, statement: str) -> None:
    filled(tmp_path).close()
    alter(tmp_path, statement)
    seen, refused = SeenFiles(tmp_path), 0
    for ask in (
        lambda: [seen.decoded(each) for each in DIGESTS], seen.pictures, lambda: seen.rendering,
        lambda: seen.known(stamp(1)), lambda: seen.vectors("space", KEYS),
    ):  # fmt: skip
        try:
            ask()
        except RunError as error:
            assert TEXT["delete-it-and-files-are-read"] in str(error)
            refused += 1
    assert refused


def test_dates_and_notes_of_a_stranger_are_plain(tmp_path: Path) -> None:
    filled(tmp_path).close()
    alter(tmp_path, "update content set taken = '<script>', note = 'a' || char(10, 27) || 'b'")
    seen = SeenFiles(tmp_path, FIVE)
    found = seen.decoded(DIGESTS[1])
    assert found is not None and found[1] is not None and found[1].taken == ""
    assert found[0].note.isprintable()
    assert set(seen.pictures()[KEYS[1]].dates.values()) == {""}
    alter(tmp_path, "update content set key = null")
    assert seen.decoded(DIGESTS[1]) == (found[0], None)


@pytest.mark.parametrize("name", [SEEN, f"{SEEN}-wal"])
def test_nothing_is_written_through_a_link_or_waits_for_a_pipe(tmp_path: Path, name: str) -> None:
    project = tmp_path / "project"
    written(tmp_path, {"elsewhere": b"", f"project/{name}": tmp_path / "elsewhere"})
    for is_reader in (True, False):
        with contextlib.suppress(RunError), closing(SeenFiles(project, is_reader=is_reader)) as seen:
            if not is_reader:
                seen.store_features("space", KEYS[:1], torch.ones(1, 3))
    assert (tmp_path / "elsewhere").read_bytes() == b""
    os.mkfifo(tmp_path / SEEN)
    with pytest.raises(RunError):
        SeenFiles(tmp_path)
    assert pictures_in(tmp_path) == pictures_in(tmp_path / "none") == {}
    assert not (tmp_path / "none").exists()


def test_a_full_disk_ends_in_one_sentence_and_leaves_what_was_stored(tmp_path: Path) -> None:
    seen = filled(tmp_path)
    seen._db.execute("pragma max_page_count = 1")
    with pytest.raises(RunError, match="full"):
        for number in range(300):
            seen.add(f"{number + 100:064x}", decoded(bytes([number % 250]) * 9), None)
    seen.add_cells(dict.fromkeys(DIGESTS, b"x" * 10**6))
    assert seen.decoded(DIGESTS[1]) is not None and not seen.small("cell", DIGESTS)


def test_writers_at_once_lose_nothing(tmp_path: Path) -> None:
    """A page stores pictures of its grid while a discovery stores files."""
    seen, page = filled(tmp_path), SeenFiles(tmp_path, is_reader=True)
    page.add_cells({DIGESTS[1]: b"one"})
    seen.add("e" * 64, decoded(b"6"), None)
    page.add_cells({DIGESTS[2]: b"two"})
    assert seen.small("cell", DIGESTS) == {DIGESTS[1]: b"one", DIGESTS[2]: b"two"}
    assert page.decoded("e" * 64) is not None
