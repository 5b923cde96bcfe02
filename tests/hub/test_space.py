"""The Space is there whole or not at all, says which model it works with at which commit, and starts."""

import io
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import yaml
from huggingface_hub import snapshot_download

from promptccd.cli.main import main
from promptccd.errors import ConfigurationError
from promptccd.hub import push_run, push_space
from promptccd.models.checkpoint import find_model
from promptccd.runs import RunDirectory
from tests.conftest import coloured_images
from tests.hub.server import Hub
from tests.messages import TEXT
from tests.spaces.conftest import Visitor, address_in

MODEL = "user/run-stage3"


@pytest.fixture
def stage(trained_run: Path, hub: Hub) -> str:
    """A stage on the Hub, as its place with its commit."""
    (pushed,) = push_run(RunDirectory(trained_run), stages=[3])
    return f"{MODEL}@{pushed.commit}"


def settings_of(hub: Hub) -> dict:
    return yaml.safe_load(hub.files("user/page", "space")["README.md"].decode().split("---\n")[1])


@pytest.mark.moderate
def test_one_command_makes_a_space_over_a_checkpoint_at_its_commit(stage: str, hub: Hub, capsys) -> None:
    assert main(["space", "push", "page", "--model", MODEL, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["repo_id"], printed["model"]) == ("user/page", stage)
    assert printed["url"] == f"{hub.url}/spaces/user/page"
    repo = hub.repo("user/page", "space")
    assert repo.variables["PROMPTCCD_MODEL"]["value"] == stage
    assert not repo.private
    titles = [commit.title for commit in repo.history]
    assert titles == [TEXT["the-page-over"].format(stage), "initial commit"]
    settings = settings_of(hub)
    assert (settings["sdk"], settings["app_file"], settings["models"]) == ("gradio", "app.py", [MODEL])
    files = hub.files("user/page", "space")
    assert b"gradio==" + settings["sdk_version"].encode() in files["requirements.txt"]
    example = "promptccd/discovery/page/example/project/categories.sqlite"
    assert {"app.py", "promptccd/__init__.py", example} <= set(files)
    assert not [
        path for path in files if "__pycache__" in path or "hub_configs" in path or path.endswith(".pyc")
    ]


@pytest.mark.moderate
@pytest.mark.usefixtures("few_files")
def test_what_is_pushed_to_the_model_later_waits_for_the_next_push_of_the_space(stage: str, hub: Hub) -> None:
    push_space("page", MODEL)
    newer = hub.add(MODEL, {"notes.md": b"later"}).sha
    assert hub.repo("user/page", "space").variables["PROMPTCCD_MODEL"]["value"] == stage
    assert f"{MODEL}@{find_model(stage).revision}" == stage
    again = push_space("page", MODEL)
    assert again.model == f"{MODEL}@{newer}"
    assert push_space("page", stage).model == stage  # and back


@pytest.mark.usefixtures("few_files")
def test_a_dry_run_leaves_the_model_of_a_space(stage: str, hub: Hub, capsys) -> None:
    push_space("page", MODEL)
    assert main(["space", "push", "page", "--model", "photographs", "--dry-run"]) == 0
    assert capsys.readouterr().out.startswith("would send user/page (space, public): ")
    assert hub.repo("user/page", "space").variables["PROMPTCCD_MODEL"]["value"] == stage


@pytest.mark.moderate
@pytest.mark.usefixtures("few_files")
def test_what_its_owner_wrote_stays_and_what_left_the_package_goes(stage: str, hub: Hub) -> None:
    push_space("page", MODEL)
    card = hub.files("user/page", "space")["README.md"].decode()
    card = card.replace("title: What is in these photographs?", "title: Herbarium\nhf_oauth: true")
    changed = {"README.md": f"{card}\nOurs.\n".encode(), "promptccd/old.py": b"", "logo.svg": b"<svg/>"}
    hub.add("user/page", changed, kind="space")
    push_space("page", MODEL)
    settings, files = settings_of(hub), hub.files("user/page", "space")
    assert (settings["title"], settings["hf_oauth"]) == ("Herbarium", True)
    assert files["README.md"].endswith(b"Ours.\n")
    assert "logo.svg" in files and "promptccd/old.py" not in files
    assert not push_space("page", MODEL).sent


def test_another_space_is_left_alone(stage: str, hub: Hub) -> None:
    hub.add("user/page", {"README.md": b"---\nsdk: docker\n---\n", "Dockerfile": b"FROM x"}, kind="space")
    with pytest.raises(ConfigurationError, match=TEXT["user-page-is-another-space-with"]):
        push_space("page", MODEL)
    assert len(hub.repo("user/page", "space").history) == 2
    assert not hub.repo("user/page", "space").variables


@pytest.mark.usefixtures("few_files")
def test_a_model_and_a_space_may_share_a_name_and_an_empty_space_is_filled(stage: str, hub: Hub) -> None:
    hub.add(MODEL, {"README.md": b"---\ntitle: Mine\nsdk: gradio\n---\n"}, kind="space")
    assert push_space(MODEL, MODEL).sent
    assert b"title: Mine" in hub.files(MODEL, "space")["README.md"]
    assert "app.py" not in hub.repo(MODEL).at("main").files


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("user/nothing", "A Space needs a model of the Hub. No model 'user/nothing'"),
        (f"{MODEL}@nowhere", "A Space needs a model of the Hub. No model 'user/run-stage3@nowhere'"),
        ("user/words", "user/words is a model of type 'bert': give a finished stage or a DINO backbone"),
        ("{run}", "is a local folder, which a Space cannot read. First `promptccd push RUN --stage N`"),
    ],
)
def test_a_model_that_a_space_cannot_work_with_is_one_line(
    stage: str, trained_run: Path, hub: Hub, capsys, model: str, said: str
) -> None:
    hub.add("user/words", {"config.json": b'{"model_type": "bert"}'})
    assert main(["space", "push", "page", "--model", model.format(run=trained_run)]) == 2
    assert said in capsys.readouterr().err
    assert ("space", "user/page") not in hub.repos


@pytest.mark.usefixtures("few_files")
def test_a_private_model_is_not_given_away_by_a_public_space(stage: str, hub: Hub, caplog) -> None:
    hub.repo(MODEL).private = True
    with pytest.raises(ConfigurationError, match=TEXT["visitors-of-a-public-space-could"]):
        push_space("page", MODEL)
    assert ("space", "user/page") not in hub.repos
    push_space("page", MODEL, private=True)
    assert hub.repo("user/page", "space").private
    assert TEXT["add-a-secret-hf-token"] in caplog.text


@contextmanager
def started(folder: Path, environment: dict[str, str]) -> Iterator[str]:
    """Run a Space's app.py as the Hub does; its address, once it answers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    listens = {
        "GRADIO_SERVER_NAME": "127.0.0.1",
        "GRADIO_SERVER_PORT": str(port),
        "SPACE_HOST": "user-page.hf.space",
    }
    process = subprocess.Popen([sys.executable, "app.py"], cwd=folder, env={**environment, **listens})
    try:
        for _ in range(1200):
            assert process.poll() is None, "it has ended"
            try:
                if httpx.get(f"http://127.0.0.1:{port}/", trust_env=False).status_code == 200:
                    break
            except httpx.TransportError:
                time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


@pytest.mark.slow
def test_what_was_pushed_starts_as_a_space_and_groups_with_its_model(
    stage: str, hub: Hub, tmp_path: Path
) -> None:
    push_space("page", MODEL)
    hub.add(MODEL, {"model.safetensors": b"nothing that loads"})  # later: the Space stays with its commit
    folder = Path(snapshot_download("user/page", repo_type="space", local_dir=tmp_path / "space"))
    page = folder / "promptccd" / "discovery" / "page" / "space.py"
    page.write_text(page.read_text().replace("What is in these photographs?", "Ours alone"))
    set_there = {key: each["value"] for key, each in hub.repo("user/page", "space").variables.items()}
    environment = {**hub.environment(tmp_path / "home", token=None), **set_there, "TMPDIR": str(tmp_path)}
    environment.pop("PYTHONPATH", None)
    with started(folder, environment) as url, Visitor(url) as visitor:
        assert "Ours alone" in visitor.get("/").text, "the package beside app.py is the one that runs"
        assert httpx.get(url, headers={"Host": "elsewhere.example"}, trust_env=False).status_code != 200
        files = []
        for row, record in enumerate(coloured_images(5, 4)):
            record["image"].save(stream := io.BytesIO(), "PNG")
            files.append((f"{row}.png", stream.getvalue()))
        assert visitor.get(f"{visitor.enter()}api/state").json()["photos"] == 44  # the example
        assert visitor.get(f"{address_in(visitor.give(files))}api/state").json()["photos"] == 20
