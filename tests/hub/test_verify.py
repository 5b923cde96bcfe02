"""`promptccd verify` believes nothing it can recompute; and a stage on the Hub is the stage that was trained."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from promptccd.cli.main import main
from promptccd.hub import push_run, verify
from promptccd.hub.verify import Check, stage_checks
from promptccd.runs import RunDirectory, load_model, train_run
from promptccd.training.recipe import Recipe
from tests.conftest import quick_recipe, sum_again
from tests.hub.server import Hub
from tests.messages import TEXT


@pytest.fixture
def run(trained_run: Path, tmp_path: Path) -> RunDirectory:
    return RunDirectory(shutil.copytree(trained_run, tmp_path / "run"))


@pytest.mark.moderate
def test_a_run_and_its_repository_agree_with_themselves(run: RunDirectory, hub: Hub, capsys) -> None:
    assert main(["verify", str(run.path)]) == 0
    out = capsys.readouterr().out
    assert "MISMATCH" not in out
    assert "recomputed" in out
    push_run(run, stages=[2])
    assert main(["verify", "user/run-stage2"]) == 0
    assert main(["verify", "user/nothing"]) == 5


@pytest.mark.moderate
def test_a_calibrated_mixture_is_pushed_verified_and_loaded_with_equal_predictions(
    image_folder: Path, tiny_backbone: Path, hub: Hub, tmp_path: Path
) -> None:
    run = RunDirectory(tmp_path / "run")
    train_run(Recipe.from_dict(quick_recipe(image_folder, tiny_backbone, run.path, variant="promptccd-gcd")))
    push_run(run, stages=[3])
    assert main(["verify", "user/run-stage3"]) == 0
    local, fetched = load_model(run.stage(3)), load_model("user/run-stage3")
    features = fetched(torch.randn(20, 3, 16, 16)).features
    assert torch.equal(fetched.gaussians.log_joint(features), local.gaussians.log_joint(features))
    assert torch.equal(fetched.assign_natively(features), local.assign_natively(features))


def change_results(run: RunDirectory) -> None:
    path = run.path / "results.json"
    values = json.loads(path.read_text())
    values["stages"][1]["all"] += 1.5
    path.write_text(json.dumps(values))


def change_weights(run: RunDirectory) -> None:
    path = run.stage(1) / "model-00002-of-00002.safetensors"
    path.write_bytes(path.read_bytes()[:-3] + b"abc")


def change_card(run: RunDirectory) -> None:
    path = run.stage(3) / "README.md"
    text = path.read_text()
    value = json.loads((run.path / "results.json").read_text())["stages"][2]["all"]
    assert f"value: {value}" in text
    path.write_text(text.replace(f"value: {value}", "value: 99.99"))


def change_split(run: RunDirectory) -> None:
    path = run.path / "split.json"
    path.write_text(path.read_text().replace('"fingerprint": "', '"fingerprint": "0', 1))


@pytest.mark.slow
def test_a_run_whose_data_has_moved_is_verified_where_they_are(
    recipe_values: dict, image_folder: Path, tmp_path: Path, capsys
) -> None:
    before, after = tmp_path / "photos", tmp_path / "moved"
    shutil.copytree(image_folder, before)
    recipe_values["data"]["dataset"] = str(before)
    train_run(Recipe.from_dict(recipe_values))
    before.rename(after)
    assert main(["verify", str(tmp_path / "run")]) == 1
    assert "--dataset" in capsys.readouterr().err
    assert main(["verify", str(tmp_path / "run"), "--dataset", str(after)]) == 0
    out = capsys.readouterr().out
    assert "recomputed" in out
    assert "MISMATCH" not in out


@pytest.mark.parametrize(("stage", "more"), [("stage1", []), ("", ["--quick"])])
def test_data_that_nothing_is_read_from_are_refused(
    trained_run: Path, stage: str, more: list[str], capsys
) -> None:
    assert main(["verify", str(trained_run / stage), "--dataset", "photos", *more]) == 2
    assert TEXT["no-image-is-read"] in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "named"),
    [
        (change_results, "results.json"),
        (change_weights, "model-00002-of-00002.safetensors was altered"),
        (change_card, "stage3: numbers on the card"),
        (change_split, "split.json has another fingerprint"),
    ],
)
def test_whatever_was_altered_is_named(run: RunDirectory, change, named: str, capsys) -> None:
    change(run)
    assert main(["verify", str(run.path)]) == 1
    captured = capsys.readouterr()
    assert named in captured.err
    assert "MISMATCH" in captured.out


@pytest.mark.parametrize(
    ("name", "change", "named"),
    [
        ("split.json", lambda text: text[:20], "split.json in"),
        ("split.json", lambda text: "{}", "split.json has another fingerprint"),
        ("manifest.json", lambda text: "{}", "it has no format, split_fingerprint, data_fingerprint"),
        ("manifest.json", lambda text: text.replace('"versions"', '"v"'), "it has no versions"),
        ("results.json", lambda text: text[:20], "results.json in"),
        ("results.json", lambda text: "{}", "is damaged: it has no 'protocol'"),
        ("results.json", lambda text: text.replace('"all": 1', '"all": "1', 1)[:-1], "is damaged"),
        ("results.json", lambda text: text.replace('"all"', '"al"', 1), "results.json in"),
        ("results.json", lambda text: text.replace('"stage": 3', '"stage": 1', 1), "not for stage 3"),
        ("results.json", lambda text: text.replace('"stage": 3', '"stage": 4', 1), "not for stage 3"),
        ("stage2/README.md", lambda text: text.replace("value: ", "value: x"), "README.md is no card any more"),
        ("stage2/README.md", lambda text: "---\na: [\n---\n", "README.md is no card any more"),
        ("stage2/assignments.json", lambda text: "[1]", "assignments.json is damaged"),
        ("stage2/assignments.json", lambda text: text.replace("category_ids", "ids"), "it has no 'category_ids'"),
        ("stage2/assignments.json", lambda text: text.replace("[", "[1, ", 1), "columns differ in length"),
    ],
)  # fmt: skip
def test_a_damaged_record_is_named(trained_run: Path, tmp_path: Path, name: str, change, named: str) -> None:
    run = RunDirectory(shutil.copytree(trained_run, tmp_path / "run"))
    path = run.path / name
    path.write_text(change(path.read_text()))
    if path.parent != run.path:
        sum_again(path.parent)
    checks = verify(str(run.path), recompute=False)
    assert any(named in check.problem for check in checks), checks


@pytest.mark.moderate
def test_a_row_is_written_before_its_stage(trained_run: Path, tmp_path: Path) -> None:
    """A run that was killed in between is whole all the same."""
    run = RunDirectory(shutil.copytree(trained_run, tmp_path / "run"))
    shutil.rmtree(run.stage(3))
    assert not [check for check in verify(str(run.path)) if check.problem]


@pytest.fixture
def stage(trained_run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained_run / "stage1", tmp_path / "stage"))


def test_a_whole_stage_agrees_with_itself(stage: Path) -> None:
    checks = list(stage_checks(stage, "s"))
    assert [check.problem for check in checks] == [""] * len(checks)
    assert [check.what for check in checks] == [
        "s: sums of all files",
        "s: the model loads",
        "s: its categories are those of its registry",
        "s: images were assigned to its own categories",
        "s: a prototype for every category",
    ]


def test_after_a_sum_or_a_model_that_is_wrong_nothing_more_is_looked_at(stage: Path) -> None:
    config = json.loads((stage / "config.json").read_text())
    (stage / "config.json").write_text(json.dumps({**config, "model_type": "other"}))
    (sums,) = stage_checks(stage, "s")
    assert (sums.what, "config.json" in sums.problem) == ("s: sums of all files", True)
    sum_again(stage)
    sums, loads = stage_checks(stage, "s")
    assert sums == Check("s: sums of all files")
    assert loads.what == "s: the model loads"
    assert "other" in loads.problem


def test_images_of_a_category_that_is_none_are_named(stage: Path) -> None:
    path = stage / "assignments.json"
    table = json.loads(path.read_text())
    table["category_ids"][:2] = [77, 78]
    path.write_text(json.dumps(table))
    sum_again(stage)
    assert [check for check in stage_checks(stage, "s") if check.problem] == [
        Check("s: images were assigned to its own categories", "[77, 78] are no category ids")
    ]
