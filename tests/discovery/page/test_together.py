"""Two windows and the command line correct one project at once, and the server dies again and again."""

import errno
import http.client
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest

from promptccd import systems
from promptccd.cli.main import main
from promptccd.discovery.page import OpenPage, address_of, server
from promptccd.discovery.page.routes import WAITS_S
from promptccd.discovery.page.server import _address_file, listen
from promptccd.discovery.project import ProjectView, edits
from promptccd.errors import RegistryError, RunError
from promptccd.locks import FolderLock
from tests.discovery.conftest import EACH, KINDS, write_pictures
from tests.discovery.page.conftest import Window, served
from tests.discovery.stored import correct, registry_in
from tests.messages import TEXT
from tests.processes import eventually

N = KINDS * EACH
KILLS = int(os.environ.get("PROMPTCCD_KILLS", "4"))


def test_what_others_correct_is_there_at_once(page: OpenPage, window: Window, project: Path) -> None:
    """Also in a window that waits for news."""
    revision = window.get("state")["revision"]
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(Window(page).get, f"state?since={revision}")
        time.sleep(0.15)
        assert not waiting.done()
        correct(project, (edits.rename, 0, "heron"))
        reply = waiting.result(WAITS_S / 2)  # it would be answered at its end in any case
    assert [each["name"] for each in reply["groups"] if each["id"] == 0] == ["heron"]
    assert reply["undo"]["kind"] == "rename"
    assert window.do(do="undo", number=reply["undo"]["number"])[0] == 200
    assert registry_in(project).category(0).name != "heron"


def test_an_answer_says_what_changed_unless_others_corrected_meanwhile(project: Path) -> None:
    view = ProjectView(project)
    view.columns()
    first, second, group = *view.photos.keys[:2], view.active[0].id
    answer = view.corrected(lambda: view.confirm([first]))
    assert answer["changed"]["rows"] == [0]

    def both() -> None:
        correct(project, (edits.confirm, [second]))
        view.rename(group, "heron")

    answer = view.corrected(both)
    assert answer["changed"] is None  # the window reads all of it
    assert view.corrected(lambda: view.rename(group, "egret"))["changed"]["rows"] == []


@pytest.mark.slow
def test_a_correction_waits_for_a_writer_but_not_for_ever(window: Window, project: Path) -> None:
    lock = FolderLock(project / ".promptccd")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(window.do, do="rename", category=0, name="heron")
        time.sleep(0.3)
        assert not waiting.done()
        lock.close()
        assert waiting.result(10)[0] == 200
        lock = FolderLock(project / ".promptccd")
        status, reply = window.do(do="rename", category=0, name="egret")
        lock.close()
    assert (status, "is writing to" in reply["error"]) == (409, True)
    assert window.get("state")["groups"][0]["name"] == "heron"


def test_a_second_command_finds_the_page_that_is_open(page: OpenPage, project: Path, monkeypatch) -> None:
    monkeypatch.setattr("promptccd.locks._SHORTEST_WAIT_S", 0.02)
    assert address_of(project) == page.url
    # It is not in the project, which may be sent.
    assert _address_file(project).parent.stat().st_mode & 0o777 == 0o700
    with pytest.raises(RunError, match="is writing to"):
        OpenPage(project)
    _address_file(project).write_text("http://localhost:1/?token=of-last-week\nhere (process 0)")
    with pytest.raises(RunError, match="is writing to"):  # another person, or on another computer
        address_of(project)
    page.close()
    assert address_of(project) is None


@pytest.mark.moderate
def test_the_next_server_is_where_the_last_one_was_with_the_same_key(project: Path) -> None:
    with closing(listen("127.0.0.1", None)) as free:
        port = free.getsockname()[1]
    with served(project, port) as first:
        window = Window(first)
        assert urlsplit(first.url).port == port
    with served(project) as again:
        assert again.url == first.url
        assert window.get("state")["photos"] == N  # with the cookie from before
    with closing(listen("127.0.0.1", port)), served(project) as elsewhere:  # somebody else is there now
        assert urlsplit(elsewhere.url).port != port
        assert urlsplit(elsewhere.url).query == urlsplit(first.url).query


def test_ports_are_tried_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = list[tuple[Any, ...]]()

    def refuse(number: int, listening: socket.socket, address: tuple[str, int]) -> None:
        tried.append((listening.family, listening.proto, *address))
        raise OSError(number, "refused")

    for number in (errno.EADDRINUSE, errno.EACCES):  # Windows reserves some ports
        monkeypatch.setattr(systems, "bind_alone", partial(refuse, number))
        with pytest.raises(OSError, match=TEXT["ports-7860-to-7959-are-all"]):
            listen("127.0.0.1", None, 5000)
    ports = (5000, *range(7860, 7960))
    assert tried == [(socket.AF_INET, socket.IPPROTO_TCP, "127.0.0.1", port) for port in ports] * 2
    for number, port in ((errno.EADDRINUSE, 80), (errno.EADDRNOTAVAIL, None)):
        tried.clear()
        monkeypatch.setattr(systems, "bind_alone", partial(refuse, number))
        with pytest.raises(OSError, match="refused"):
            listen("[::1]", port)
        assert tried == [(socket.AF_INET6, socket.IPPROTO_TCP, "::1", port or 7860)]


def test_features_are_read_while_the_page_waits_and_what_runs_ends_with_it(page, window, monkeypatch) -> None:
    read, revision = list[object](), window.get("state")["revision"]
    monkeypatch.setattr(server, "_PRELOADS_AFTER_S", 0.0)
    monkeypatch.setattr(server, "_WAKES_EVERY_S", 0.02)
    monkeypatch.setattr(page.project, "rows_by_id", read.append)
    with ThreadPoolExecutor(2) as pool:
        waiting, asking = pool.submit(page.wait), pool.submit(window.get, f"state?since={revision}")
        assert eventually(lambda: len(read) == 1)
        assert not waiting.done() and not asking.done()
        page.project.closing = True
        assert asking.result(WAITS_S / 4)["photos"] == N
        status, _, content = window.ask("/api/export", {"kind": "folders"})
        assert (status, b"since the page was closed" in content) == (409, True)
        page.project.closing = False
        page.close()
        waiting.result(5)


def test_several_write_at_once_and_nothing_is_lost_or_done_twice(page: OpenPage, project: Path) -> None:
    """Each renames a group of its own to one name after another; every answered one is in the log, once."""

    def rename(group: int) -> list[str]:
        window, names = Window(page), [f"{group} {n}" for n in range(6)]
        for name in names:
            if group == 2:  # by a command, the others by windows
                correct(project, (edits.rename, group, name))
            else:
                assert window.do(do="rename", category=group, name=name)[0] == 200
        return names

    with ThreadPoolExecutor(4) as pool:
        said = [*pool.map(rename, range(4))]
    registry = registry_in(project)
    logged = [entry.what["name"] for entry in registry.log if entry.kind == "rename"]
    assert len(logged) == 4 * 6
    for names in said:
        assert [name for name in logged if name in names] == names
    groups = Window(page).get("state")["groups"]
    assert {each["id"]: each["name"] for each in groups} == {each.id: each.name for each in registry.active}


@contextmanager
def served_alone(project: Path, *options: str) -> Iterator[tuple[subprocess.Popen[bytes], Window]]:
    """The page of a project in a process of its own, as `promptccd open` starts it."""
    words = [sys.executable, "-m", "promptccd_command", "open", str(project), "--no-browser", *options]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    line = process.stdout.readline().decode()
    url = next(word for word in line.split() if "token=" in word)
    try:
        yield process, Window(SimpleNamespace(url=url))  # type: ignore[arg-type]
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.slow
def test_a_server_that_is_killed_at_any_moment_loses_nothing_and_does_nothing_twice(project: Path) -> None:
    """Two windows and the command line go on while it dies: what was answered is there, in order, each once."""
    draw, completed, asked = random.Random(1), list[str](), list[str]()
    for life in range(KILLS):
        with served_alone(project) as (process, window):

            def window_of(group: int, life: int = life, window: Window = window) -> None:
                for n in range(10_000):
                    name = f"{group} {life} {n}"
                    asked.append(name)
                    try:
                        status, _ = window.do(do="rename", category=group, name=name)
                    except (OSError, http.client.HTTPException):
                        return  # nobody was told
                    assert status == 200
                    completed.append(name)

            def command(life: int = life) -> None:
                for n in range(5):
                    name = f"command {life} {n}"
                    asked.append(name)
                    correct(project, lambda registry: edits.rename(registry, 3, name))  # noqa: B023
                    completed.append(name)

            with ThreadPoolExecutor(3) as pool:
                jobs = [pool.submit(window_of, 0), pool.submit(window_of, 1), pool.submit(command)]
                time.sleep(draw.uniform(0.05, 1.0))
                process.send_signal(signal.SIGKILL)
                for job in jobs:
                    job.result(30)
        logged = [entry.what["name"] for entry in registry_in(project).log if entry.kind == "rename"]
        assert len(set(logged)) == len(logged)
        assert set(completed) <= set(logged) <= set(asked)
        stored = registry_in(project)
        stored.require_whole()
        assert ProjectView(project).state_hash() == stored.state_hash()
    assert len(completed) > 10 * KILLS


@pytest.mark.slow
def test_photographs_that_came_since_are_looked_for_while_the_page_is_open(
    found_once: Path, project: Path, tiny_backbone: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    album = shutil.copytree(found_once / "album", tmp_path / "album")
    arguments = ["open", str(album), "--model", str(tiny_backbone), "--out", str(project), "--no-browser"]
    with served(project) as page:
        window = Window(page)
        before = window.get("state")
        shutil.copy(write_pictures(tmp_path / "more", [5]) / "5-000.png", album)
        assert main(arguments) == 0
        assert page.url in capsys.readouterr().out
        after = window.get("state")
    assert after["photos"] == before["photos"] + 1
    assert after["generation"] != before["generation"]  # windows load the page again


@pytest.mark.slow
def test_photographs_that_are_opened_are_grouped_first(found_once: Path, tmp_path: Path) -> None:
    album, out = found_once / "album", tmp_path / "kept"
    for _ in range(2):  # the second time finds all of it there
        with served_alone(album, "--out", str(out)) as (process, window):
            assert window.get("state")["photos"] == N
            window.do(do="rename", category=0, name="heron")
            process.terminate()
            assert process.wait(30) == 0
    assert registry_in(out).category(0).name == "heron"
    with pytest.raises(RegistryError, match="contains no project"):
        ProjectView(album)
