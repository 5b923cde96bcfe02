"""Every field of a recipe with values that cannot be, and files that are no recipe: one line."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from promptccd.cli.main import main
from promptccd.data.options import alternatives
from promptccd.errors import ConfigurationError
from promptccd.training.recipe import (
    Recipe,
    field_types,
    parse_value,
    section_types,
)

FIELDS = [
    (section, name, hint)
    for section, kind in section_types().items()
    for name, hint in field_types(kind).items()
]
NUMBERS = [(section, name) for section, name, hint in FIELDS if {int, float} & set(alternatives(hint))]
BAD = {
    "text": "text", "blank": " ", "nul": "a\0b", "-1": -1, "-0.5": -0.5, "1e400": 10**400, "nan": float("nan"),
    "inf": float("inf"), "list": [1], "mixed list": [1, "a"], "dict": {"a": 1}, "true": True,
}  # fmt: skip


# What a recipe that says nothing trains with: the paper's numbers, and ours where it has none.
DEFAULTS = {
    "data": {"max_megapixels": 300},
    "training": {
        "seed": 1, "epochs": 200, "batch_size": 128, "learning_rate": 0.1, "fall_factor": 0.1,
        "final_learning_rate_factor": 1e-3,
        "momentum": 0.9, "weight_decay": 5e-5, "temperature_unsupervised": 1.0, "temperature_supervised": 0.07,
        "supervised_weight": 0.35, "refit_every": 30, "prompt_warmup_epochs": 30, "replay_samples": 100,
        "exemplars_per_class": 0, "exemplar_share": 0.2,
        "mixture_floor": 0.01, "answer_floor": 1.0, "kmeans_restarts": 100, "init_components": 0,
        "feature_batch_size": 256, "save_minutes": 12.0,
    },
}  # fmt: skip
SWITCHES = {
    "data": {"accept_new_labels": False},
    "training": {
        "decay_vectors": True, "exemplar_labels": True, "push_to_hub": False, "hub_private": False, "compile": False,
        "deterministic": False,
    },
}  # fmt: skip


def test_numbers_that_nobody_gives_are_the_papers() -> None:
    recipe = Recipe.from_dict({})
    for section in ("data", "model", "training"):
        given = vars(getattr(recipe, section))
        named = {name: given[name] for other, name in NUMBERS if other == section and given[name] is not None}
        assert named == DEFAULTS.get(section, {})
        switches = {name: value for name, value in given.items() if type(value) is bool}
        assert switches == SWITCHES.get(section, {})


@pytest.mark.fault(55)
@pytest.mark.parametrize(("section", "name", "hint"), FIELDS, ids=lambda value: str(value)[:30])
def test_a_value_is_taken_or_refused_in_one_line(
    section: str, name: str, hint: Any, tmp_path: Path, capsys
) -> None:
    for label, value in BAD.items():
        path = tmp_path / f"{label}.yaml"
        path.write_text(yaml.safe_dump({section: {name: value}}))
        try:
            Recipe.from_yaml(path)
        except ConfigurationError as error:
            assert len(str(error).splitlines()) == 1, (label, error)
        else:
            assert any(_fits(value, option) for option in alternatives(hint)), (label, value)


@pytest.mark.parametrize("word", ["", " ", "a\0b"])
def test_a_name_has_letters(word: str) -> None:
    with pytest.raises(ConfigurationError, match="Expected data.dataset to be a name, got "):
        Recipe.from_dict({"data": {"dataset": word}})


def _fits(value: Any, option: Any) -> bool:
    kind = getattr(option, "__origin__", option)
    return isinstance(kind, type) and isinstance(value, kind)


@pytest.mark.fault(39, 55)
@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "is not YAML"),
        (b"training: {epochs: 3}\0", "is not YAML"),
        (b"\xff\xfet\0r\0", "is not YAML"),
        (b"PK\x03\x04" + bytes(2**20), "is larger than a recipe"),
        (b"training: {output_dir: caf\xe9}", "can't decode byte 0xe9"),
        (b"", "is empty"),
        (b" \n\n", "is empty"),
        (b"- a\n- b\n", "must consist of the sections"),
        (b"just words", "must consist of the sections"),
        (b"training: 5", "must consist of the sections"),
        (b"1: {a: 2}", "Unknown section 1"),
        (b"training: {epochs: 1}\ntraining: {seed: 2}", "'training' is given twice"),
        (b"training:\n  epochs: 1\n  epochs: 2", "'epochs' is given twice"),
        (b"training: {epochs: 2024-02-31}", "is not YAML"),
        (b"training: {epochs: " + b"9" * 5000 + b"}", "is not YAML"),
        (b"[" * 5000, "is not YAML"),
        (b"training: {epochs: !!python/object/apply:os.getcwd []}", "is not YAML"),
        (b"!!python/object/apply:os.system ['touch pwned']", "is not YAML"),
        (b"training: !!python/object/new:os.system ['touch pwned']", "is not YAML"),
        (b"training: {seed: !!python/name:os.system }", "is not YAML"),
        (b"training: &a [*a]", "training"),
        (b"trainer: {}", "Unknown section 'trainer'. Did you mean 'training'?"),
        (b"training: {epoch: 3}", "Unknown field of section 'training' 'epoch'. Did you mean 'epochs'?"),
        (b"? {a: b}\n: c", "is not YAML"),
    ],
    ids=lambda value: str(value)[:25],
)
def test_a_file_that_is_no_recipe_is_one_line(
    content: bytes, said: str, tmp_path: Path, capsys, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "recipe.yaml"
    path.write_bytes(content)
    assert main(["split", str(path)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert len(err.splitlines()) == 1
    assert len(err) < 1200
    assert not (tmp_path / "pwned").exists()


def test_numbers_without_a_dot_are_numbers_and_no_is_a_word(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(
        "training: {learning_rate: 1e-4, weight_decay: 0, mixed_precision: no}\nmodel: {prompts_at_test: True}\n"
    )
    recipe = Recipe.from_yaml(path)
    found = recipe.training.learning_rate, recipe.training.weight_decay, recipe.training.mixed_precision
    assert (found, recipe.model.options) == ((1e-4, 0.0, "no"), {"prompts_at_test": True})


def test_words_of_a_command_line_are_what_they_look_like() -> None:
    words = ["1e-4", "3", "[1, 2]", "true", "no", "promptccd-pp", "a: b: c"]
    assert [parse_value(word) for word in words] == [1e-4, 3, [1, 2], True, "no", "promptccd-pp", "a: b: c"]


@pytest.mark.fault(55)
@pytest.mark.parametrize("kind", ["missing", "folder", "no right"])
def test_a_place_that_holds_no_recipe_is_one_line(kind: str, tmp_path: Path, capsys) -> None:
    path = tmp_path / kind
    if kind == "folder":
        path.mkdir()
    elif kind == "no right":
        path = Path("/proc/self/mem")  # also for root
    assert main(["train", "--config", str(path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    if kind == "missing":
        assert line.endswith("No such file or directory. `promptccd recipes` lists the bundled ones.")


@pytest.mark.parametrize("word", ["none", "None", "null", "~"])
def test_none_is_none_in_a_file_as_on_the_command_line(word: str, tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(
        f"data: {{benchmark: {word}, dataset: {word}}}\nmodel: {{backbone: {word}, prompts_per_image: {word}}}\n"
    )
    recipe = Recipe.from_yaml(path)
    assert (recipe.data.benchmark, recipe.data.dataset) == (None, None)
    assert (recipe.model.backbone, recipe.model.options) == (None, {})
    path.write_text("training: {report_to: none}\n")
    assert Recipe.from_yaml(path).training.report_to == "none"
