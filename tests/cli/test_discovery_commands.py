"""`promptccd discover` and `promptccd categories` as a person types them."""

import json
import logging
import shutil
from pathlib import Path

import pytest

from promptccd.cli.main import main
from promptccd.cli.page_commands import _place_beside
from promptccd.discovery.page.server import OpenPage
from promptccd.errors import ConfigurationError
from tests.conftest import coloured_images
from tests.discovery.stored import registry_in
from tests.messages import TEXT


@pytest.fixture(scope="module")
def album(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("album")
    for row, record in enumerate(coloured_images(6, 5, seed=30)):
        record["image"].save(folder / f"{record['label']}-{row:03d}.png")
    (folder / "copy.png").write_bytes((folder / "0-000.png").read_bytes())
    (folder / "page.png").write_bytes(b"<html>")
    return folder


def test_a_tilde_is_home_for_images_and_results_and_else_a_part_of_the_name(
    trained_run, album, tmp_path, run, monkeypatch
) -> None:
    """A shell leaves that of ``--out=~/groups`` to the program; ``~holiday`` is nobody's home."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "~holiday").mkdir()
    shutil.copy(album / "copy.png", tmp_path / "~holiday")
    code, text, _ = run("discover", trained_run / "stage0", "~holiday", "--out=~/groups")
    assert code == 0
    assert text.startswith("1 file: 1 image, 0 copies, 0 skipped\n")
    assert (tmp_path / "groups/assignments.csv").is_file()
    assert run("categories", "~/groups", "list")[0] == 0


def test_groups_lie_beside_the_folder_however_it_is_named(tmp_path, monkeypatch) -> None:
    (tmp_path / "album/2023").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "album/2023")
    for named in ("..", ".", "../2023", "../../album"):
        place = _place_beside(Path(named), None)
        assert place.resolve() == Path(f"{Path(named).resolve()}-groups")
    with pytest.raises(ConfigurationError, match=TEXT["has-no-folder-next-to-it"]):
        _place_beside(Path("/"), None)
    assert _place_beside(Path("/"), "groups") == Path("groups")


def test_a_dissolved_category_is_retired_until_that_is_undone(trained_run, album, tmp_path, run) -> None:
    found = tmp_path / "out"
    assert run("discover", trained_run / "stage0", album, "--out", found, "--num_categories", 6)[0] == 0
    registry = registry_in(found)
    new = next(each.id for each in registry.active if not each.known)
    for action, is_retired in (("dissolve", True), ("undo", False)):
        assert run("categories", found, action, *[new] * is_retired)[0] == 0
        _, printed, _ = run("categories", found, "list", "--json")
        states = {each["id"]: each["state"] for each in json.loads(printed)}
        assert (states[new] == "retired") == is_retired
    assert registry_in(found).state_hash() == registry.state_hash()


@pytest.fixture
def linked(album: Path, tmp_path: Path) -> Path:
    """A folder of three photographs, and of links to all of an album elsewhere."""
    folder = tmp_path / "linked"
    folder.mkdir()
    for photograph in sorted(album.glob("?-*.png"))[:3]:
        shutil.copy(photograph, folder)
    (folder / "elsewhere").symlink_to(album)
    return folder


@pytest.mark.slow
def test_links_out_are_followed_where_a_person_allows_it(linked, album, trained_run, tmp_path, run) -> None:
    words = ("discover", trained_run / "stage0", linked, "--out", tmp_path / "out", "--export", "folders")
    code, text, _ = run(*words)
    assert code == 0
    assert TEXT["skipped-1-link-to-a-place"] in text
    code, text, err = run(*words, "--image_roots", album)
    assert code == 0, err
    assert TEXT["35-files-30-images"] in text
    assert "--image_roots" not in text
    exported = [path for path in (tmp_path / "out" / "folders").rglob("*.png")]
    assert len(exported) == 30  # the project knows where they lie
    code, text, _ = run(*words[:5], "--image_roots", album, "--json")
    assert (code, json.loads(text)["files"]["used"]) == (0, 30)


def test_a_folder_of_links_is_told_how_they_are_followed(album, trained_run, tmp_path, run) -> None:
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "a.png").symlink_to(album / "0-000.png")
    stage = trained_run / "stage0"
    code, _, err = run("discover", stage, tmp_path / "links", "--out", tmp_path / "out")
    assert code == 2
    assert TEXT["1-file-link-to-a-place"] in err
    assert TEXT["or-with-image-roots-place-links"] in err
    code, text, _ = run("predict", stage, tmp_path / "links", "--image_roots", album)
    assert code == 0
    assert text.startswith("a.png\t")


@pytest.mark.parametrize(
    ("allowed", "photographs"), [(False, 3), pytest.param(True, 30, marks=pytest.mark.moderate)]
)
def test_a_page_is_opened_once_and_shown_again(
    allowed, photographs, linked, album, trained_run, tmp_path, run, monkeypatch, caplog
) -> None:
    """Links are followed into the places that a person allows; Ctrl-C ends it."""
    caplog.set_level(logging.INFO)
    out, shown = tmp_path / "out", list[str]()

    def wait(page: OpenPage) -> None:
        assert main(["open", str(out)]) == 0
        raise KeyboardInterrupt

    monkeypatch.setattr(OpenPage, "wait", wait)
    monkeypatch.setattr("webbrowser.open", shown.append)
    words = ["open", linked, "--model", trained_run / "stage0", "--out", out]
    code, printed, _ = run(*words, *(["--image_roots", album] if allowed else []))
    first, second, last = printed.splitlines()
    (url,) = dict.fromkeys(shown)
    assert (code, last) == (0, "Closed.")
    assert first.startswith(f"{out} is open at {url} - Ctrl-C ends it")
    assert second == TEXT["is-open-already"].format(out, url)
    assert f"Photographs: {photographs} (" in caplog.text
    said = "link to a place outside: 1; with --image_roots PLACE, links into that place are followed."
    assert (said in caplog.messages) == (not allowed)
