"""Links that a stranger lays under the names that commands write: nothing that they lead to is changed or copied."""

import shutil
import sys
from pathlib import Path

import pytest

from promptccd.cli.main import main
from tests.discovery.conftest import write_pictures

KEY = b"-----BEGIN NOBODY'S KEY-----\n"


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(sys.platform == "win32", reason="Windows lets few people make links")
@pytest.mark.parametrize("written", ["found", "run"])
def test_no_link_in_a_folder_of_results_is_followed(
    written: str, trained_run: Path, tiny_backbone: Path, tmp_path: Path
) -> None:
    album, outside = write_pictures(tmp_path / "album", [0, 1], per_category=3), tmp_path / "outside"
    place = tmp_path / written
    if written == "found":
        discover = ["discover", str(tiny_backbone), str(album), "--out", str(place)]
        commands = [
            [*discover, "--export", "folders", "sidecars"],
            ["categories", str(place), "rename", "0", "owl"],
        ]
        assert [main(each) for each in commands] == [0, 0]
    else:
        shutil.copytree(trained_run, place)
        commands = [
            ["evaluate", str(place)],
            ["report", str(place), "--out", str(place / "report"), "--samples", "0"],
            ["categories", str(place / "stage1"), "rename", "0", "owl"],
        ]
    whole = Path(shutil.copytree(place, tmp_path / "whole"))
    names = [each.relative_to(whole) for pattern in ("*", ".promptccd/*") for each in whole.glob(pattern)]
    assert len(names) >= 5
    for name in sorted(names):
        for target in ("folder", "key", "absent"):
            shutil.rmtree(place)
            shutil.copytree(whole, place)
            shutil.rmtree(outside, ignore_errors=True)
            (outside / "folder").mkdir(parents=True)
            (outside / "key").write_bytes(KEY)
            is_folder = (place / name).is_dir()
            if target != "absent" and is_folder != (target == "folder"):
                continue
            shutil.rmtree(place / name) if is_folder else (place / name).unlink()
            (place / name).symlink_to(outside / target)
            codes = [main(each) for each in commands]
            assert {*codes} <= {0, 1, 2, 3}, (name, target, codes)
            assert sorted(each.name for each in outside.rglob("*")) == ["folder", "key"], (name, target)
            assert (outside / "key").read_bytes() == KEY, (name, target)
            copies = [each for each in place.rglob("*") if each.is_file() and not each.is_symlink()]
            assert not any(KEY in each.read_bytes() for each in copies), (name, target)
