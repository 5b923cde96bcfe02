"""Directories that are there whole or not at all."""

import json
import os
import stat
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from promptccd.errors import DiskError
from promptccd.training import checkpoints
from promptccd.training.checkpoints import (
    problems_of,
    remove_leftovers,
    trusted,
    write_directory,
    write_file,
)


def fill(folder: Path) -> None:
    save_file({"weight": torch.arange(6.0)}, folder / "tensors.safetensors")
    (folder / "position.json").write_text("{}")
    (folder / "README.md").write_text("card")


def test_a_written_directory_is_whole_and_readable_by_a_colleague(tmp_path: Path) -> None:
    write_directory(tmp_path / "one", fill)
    assert problems_of(tmp_path / "one") == []
    assert sorted(item.name for item in tmp_path.iterdir()) == ["one"]
    umask = os.umask(0)
    os.umask(umask)
    for file in (tmp_path / "one").iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o666 & ~umask


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize("name", ["tensors.safetensors", "position.json"])
@pytest.mark.parametrize(
    "damage",
    [flip, lambda file: file.write_bytes(file.read_bytes()[:-1]), Path.unlink],
    ids=["flipped", "cut short", "missing"],
)
def test_a_damaged_file_is_refused_by_name(tmp_path: Path, name: str, damage, caplog) -> None:
    write_directory(tmp_path / "one", fill)
    damage(tmp_path / "one" / name)
    assert not trusted(tmp_path / "one")
    assert name in caplog.text
    assert not (tmp_path / "one").exists()
    assert (tmp_path / ".refused-one").exists()  # nothing is lost


def test_a_stranger_and_a_missing_manifest_are_refused(tmp_path: Path) -> None:
    write_directory(tmp_path / "one", fill)
    (tmp_path / "one" / "extra.bin").write_bytes(b"?")
    assert problems_of(tmp_path / "one") == ["extra.bin does not belong there"]
    (tmp_path / "one" / "checksums.json").unlink()
    assert "checksums.json" in problems_of(tmp_path / "one")[0]


def test_a_person_may_edit_the_card(tmp_path: Path) -> None:
    write_directory(tmp_path / "one", fill)
    (tmp_path / "one" / "README.md").write_text("my own words")
    assert trusted(tmp_path / "one")


def test_order_of_writes_survives_a_power_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every file, then its folder, reaches the disk before the rename; the parent folder after it."""
    calls: list[str] = []
    flush, rename = checkpoints._fsync, Path.rename
    monkeypatch.setattr(checkpoints, "_fsync", lambda path: (calls.append(path.name), flush(path)))
    monkeypatch.setattr(Path, "rename", lambda self, to: (calls.append("rename"), rename(self, to))[1])
    write_directory(tmp_path / "one", fill)
    before, after = calls[: calls.index("rename")], calls[calls.index("rename") + 1 :]
    assert set(before) >= {"tensors.safetensors", "position.json", "checksums.json", ".tmp-one"}
    assert before[-1] == ".tmp-one"
    assert after == [tmp_path.name]


def test_a_full_disk_leaves_the_old_one_and_no_litter(tmp_path: Path) -> None:
    write_directory(tmp_path / "one", fill)

    def too_much(folder: Path) -> None:
        fill(folder)
        raise OSError(28, "No space left on device")

    with pytest.raises(DiskError, match="two.*free some space"):
        write_directory(tmp_path / "two", too_much)
    assert sorted(item.name for item in tmp_path.iterdir()) == ["one"]
    assert trusted(tmp_path / "one")


def test_a_bug_in_the_writer_is_not_called_a_disk_error(tmp_path: Path) -> None:
    def wrong(folder: Path) -> None:
        raise KeyError("bug")

    with pytest.raises(KeyError):
        write_directory(tmp_path / "two", wrong)
    assert list(tmp_path.iterdir()) == []


def test_leftovers_of_a_killed_writer_go(tmp_path: Path) -> None:
    (tmp_path / ".tmp-stage1").mkdir()
    (tmp_path / ".tmp-stage1" / "half").write_text("half")
    (tmp_path / ".tmp-manifest.json").write_text("{")
    write_file(tmp_path / "manifest.json", json.dumps({"seed": 1}))
    remove_leftovers(tmp_path)
    assert [item.name for item in tmp_path.iterdir()] == ["manifest.json"]
