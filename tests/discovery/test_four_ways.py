"""Whoever corrects, the bytes are the same: command line, window of `open`, visitor of the Space, Python."""

import itertools
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from promptccd.cli.main import main
from promptccd.discovery import DiscoverySession, Project, discover
from tests.discovery.conftest import write_pictures
from tests.discovery.corrected import content_of, registry_in
from tests.discovery.page.conftest import Window, served

Do = Callable[..., None]
Way = Callable[[Path], AbstractContextManager[Do]]


@pytest.fixture(scope="module")
def three_stages(tiny_backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `discover` left of three albums, one after the other, and the albums beside it."""
    folder = tmp_path_factory.mktemp("three")
    for stage in range(3):
        write_pictures(folder / f"album{stage}", [2 * stage, 2 * stage + 1, 2 * stage + 2], 7)
        album = folder / f"album{stage}"
        discover(DiscoverySession.open(tiny_backbone), album, folder / "found", num_categories=3 + 2 * stage)
    return folder


@contextmanager
def by_command(out: Path) -> Iterator[Do]:
    """``promptccd categories``."""

    def do(what: str, **values: Any) -> None:
        named = {"None": "none", "True": "same", "False": "different"}
        listed = [each if isinstance(each, list) else [each] for each in values.values()]
        words = [named.get(word, word) for word in map(str, itertools.chain(*listed))]
        action = {"set_aside": "aside", "set_images_aside": "aside", "restore": "back"}.get(what, what)
        assert main(["categories", str(out), action, *words]) == 0

    yield do


@contextmanager
def by_python(out: Path) -> Iterator[Do]:
    """The methods of `Project`."""
    project = Project(out)
    yield lambda what, **values: getattr(project, what)(**values)


def asked(state: dict[str, Any], keys: Sequence[str], what: str, **values: Any) -> tuple[str, dict[str, Any]]:
    """Where a window sends a correction, and what."""
    sent: dict[str, Any] = {"do": what, "generation": state["generation"], **values}
    sent |= {name: keys.index(values[name]) for name in ("first", "second") if name in values}
    if "images" in values:
        sent["images"] = [keys.index(each) for each in values["images"]]
    if what in ("undo", "redo"):
        sent["number"] = state[what]["number"]
    if what == "regroup":
        return "api/regroup", {"count": values["num_categories"]}
    return "api/edit", sent


@contextmanager
def by_window(out: Path) -> Iterator[Do]:
    """A window of `open`, over HTTP."""
    with served(out) as page:
        window = Window(page)

        def do(what: str, **values: Any) -> None:
            place, sent = asked(window.get("state"), page.project.photos.keys, what, **values)
            status, _, reply = window.ask(f"/{place}", sent)
            assert status == 200, reply

        yield do


@contextmanager
def by_visitor(out: Path) -> Iterator[Do]:
    """A visitor's browser at a Space, over HTTP; `out` is where their groups lie."""
    from tests.spaces.conftest import serving

    with serving(Path("photographs"), out.parent) as server, server.visitor() as visitor:
        (visit,) = server.space.visits._open.values()
        shutil.copytree(out, visit.groups)
        visit.renew()
        keys = visit.project.photos.keys

        def do(what: str, **values: Any) -> None:
            place, sent = asked(visitor.get(f"{visitor.base}api/state").json(), keys, what, **values)
            reply = visitor.post(visitor.base + place, json=sent, headers={"origin": server.url[:-1]})
            assert reply.status_code == 200, reply.text

        yield do
        shutil.copytree(visit.groups, out, dirs_exist_ok=True)


def corrections(out: Path) -> list[dict[str, Any]]:
    """Every kind of correction, with images of all three stages among them."""
    registry = registry_in(out)
    by_stage = [[key for key, stage in sorted(registry.images.items()) if stage == each] for each in range(3)]
    newest = [each.id for each in registry.active if not each.is_fixed(registry.stage)]
    groups = sorted((each.id for each in registry.active), key=lambda each: -registry.category(each).size)
    old = [key for key in by_stage[0] + by_stage[1] if registry.members[key] not in newest]
    return [
        {"what": "rename", "category": groups[0], "name": "night heron"},
        {"what": "move", "to": newest[0], "images": [old[0], old[-1], by_stage[2][0]]},
        {"what": "move", "to": None, "images": [by_stage[2][1], old[1]]},
        {"what": "split", "category": groups[0]},
        {"what": "gather", "images": [by_stage[0][2], by_stage[1][2], by_stage[2][2]]},
        {"what": "undo"},
        {"what": "redo"},
        {"what": "answer", "first": by_stage[1][3], "second": by_stage[2][3], "same": False},
        {"what": "answer", "first": by_stage[0][4], "second": by_stage[2][4], "same": True},
        {"what": "confirm", "images": [by_stage[2][5]]},
        {"what": "set_images_aside", "images": [by_stage[0][6], by_stage[2][6]]},
        {"what": "set_images_aside", "images": [by_stage[1][6]]},
        {"what": "set_aside", "category": newest[-1]},
        {"what": "restore", "category": newest[-1]},
        {"what": "merge", "categories": groups[1:3]},
        {"what": "dissolve", "category": newest[-1]},
        {"what": "undo"},
        {"what": "regroup", "num_categories": 9},
    ]


@pytest.mark.moderate
@pytest.mark.parametrize("way", [by_command, by_window, by_visitor])
def test_every_way_leaves_the_bytes_of_python(way, three_stages, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(Project, "now", lambda project: "2026-01-01T00:00:00+00:00")
    left, todo = [], corrections(three_stages / "found")
    for name, make in (("a", by_python), ("b", way)):
        folder = Path(shutil.copytree(three_stages / "found", tmp_path / name / "found"))
        with make(folder) as do:
            for each in todo:
                do(**each)
        left.append(content_of(folder))
    assert left[0] == left[1]
    assert len(registry_in(tmp_path / "a/found").log) > 10
