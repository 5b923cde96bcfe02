"""Every field of a recipe with values that cannot be, and files that are no recipe: one line."""

import os
import shutil
from dataclasses import fields
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
    recipe_folder,
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


def test_every_number_has_a_range() -> None:
    """A field that is added later and has none is found here."""
    assert len(NUMBERS) > 50
    held = {
        (section, item.name)
        for section, kind in section_types().items()
        for item in fields(kind)
        if "range" in item.metadata
    }
    assert set(NUMBERS) <= held


@pytest.mark.fault(55)
@pytest.mark.parametrize(("section", "name"), NUMBERS, ids=lambda value: str(value))
def test_a_number_that_cannot_be_is_refused(section: str, name: str) -> None:
    for label in ("text", "blank", "-1", "-0.5", "1e400", "nan", "inf", "list", "dict", "true"):
        said = rf"(Expected |Wrong type for {section}\.){name}"
        with pytest.raises(ConfigurationError, match=said) as error:
            Recipe.from_dict({section: {name: BAD[label]}})
        assert len(str(error.value).splitlines()) == 1
        assert len(str(error.value)) < 300


RATIOS = {"category_ratio": 0.5, "sample_ratio": 0.5}  # go together
MAY_BE_ZERO = {
    "data": ["held_out"],
    "training": [
        "seed", "learning_rate", "discovery_learning_rate", "prompt_learning_rate", "key_learning_rate",
        "router_learning_rate", "classifier_learning_rate", "fall_factor", "final_learning_rate_factor", "momentum",
        "weight_decay", "supervised_weight",
        "prompt_warmup_epochs", "replay_samples", "init_components", "max_categories", "num_workers",
    ],
}  # fmt: skip
MUST_BE_ABOVE_ZERO = {
    "data": ["category_ratio", "sample_ratio"],
    "training": [
        "prompt_clip", "key_clip", "router_clip", "temperature_unsupervised", "temperature_supervised",
        "mixture_floor", "answer_floor",
    ],
}  # fmt: skip
LEAST = {
    ("data", "num_classes"): 2, ("data", "images_per_class"): 1, ("data", "discovery_stages"): 1,
    ("model", "max_model_bytes"): 1, ("training", "epochs"): 1, ("training", "batch_size"): 2,
    ("training", "refit_every"): 1, ("training", "kmeans_restarts"): 1, ("training", "feature_batch_size"): 1,
}  # fmt: skip
GREATEST = {
    ("data", "held_out"): 1.0, ("data", "discovery_stages"): 2, ("training", "final_learning_rate_factor"): 1.0,
    ("training", "momentum"): 1.0, ("training", "supervised_weight"): 1.0, ("training", "mixture_floor"): 1.0,
    ("training", "answer_floor"): 10.0,
    ("training", "epochs"): 999_999,  # states have six digits for it
    ("training", "discovery_epochs"): 999_999, ("training", "fall_factor"): 1.0,
    ("data", "category_ratio"): 1.0, ("data", "sample_ratio"): 1.0, ("training", "seed"): 10**18 - 1,
    ("training", "batch_size"): 2**20, ("training", "feature_batch_size"): 2**20, ("training", "num_workers"): 512,
    ("training", "kmeans_restarts"): 10**6, ("training", "replay_samples"): 10**6,
    ("training", "init_components"): 10**6, ("training", "max_categories"): 10**6,
}  # fmt: skip


def is_taken(section: str, name: str, value: float) -> bool:
    more = RATIOS if section == "data" and name in (*RATIOS, "discovery_stages") else {}
    try:
        Recipe.from_dict({section: {**more, name: value}})
    except ConfigurationError as error:
        assert f"Expected {name}" in str(error)
        return False
    return True


def test_numbers_reach_to_their_borders() -> None:
    """Rates and weights may be nothing, what is divided by may not; shares end at 1, counts begin with 1 or 2."""
    kinds = {(section, name): float if float in alternatives(hint) else int for section, name, hint in FIELDS}
    for section, names in MAY_BE_ZERO.items():
        for name in names:
            assert is_taken(section, name, kinds[section, name](0)), name
    for section, names in MUST_BE_ABOVE_ZERO.items():
        for name in names:
            assert not is_taken(section, name, 0.0), name
            assert is_taken(section, name, 0.1), name
    for (section, name), least in LEAST.items():
        assert is_taken(section, name, least), name
        assert not is_taken(section, name, least - 1), name
    for (section, name), most in GREATEST.items():
        if name not in RATIOS:  # a stage of all categories or images leaves none to discover
            assert is_taken(section, name, most), name
        assert not is_taken(section, name, most + 1), name


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


@pytest.mark.parametrize("number", [2, 2**63, -(2**64) + 1])
def test_whole_numbers_are_floats_where_floats_are_wanted(number: int) -> None:
    """As long as 64 bits hold them."""
    values = {"cuts": [[number, 1], [1]]}
    (cut, one), _ = Recipe.from_dict({"data": values}).data.cuts
    assert (cut, one) == (float(number), 1.0)
    assert (type(cut), type(one)) == (float, float)
    with pytest.raises(ConfigurationError, match="cuts"):
        Recipe.from_dict({"data": {"cuts": [[2**64, 1], [1]]}})


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
        (b"PK\x03\x04" + bytes(2**20), "is larger than a recipe. If it lists images: give their folder"),
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


def test_a_list_of_images_that_is_taken_for_a_recipe_is_told_how_to_end(tmp_path: Path) -> None:
    for name, told in (("birds.txt", True), ("birds.yaml", False), ("birds.yml", False)):
        (tmp_path / name).write_text("a.png: b: c")
        with pytest.raises(ConfigurationError, match="is not YAML") as error:
            Recipe.from_yaml(tmp_path / name)
        assert (
            str(error.value).endswith(
                "give their folder, or a table of path,label called .csv, .tsv or .txt."
            )
            == told
        )


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


@pytest.mark.parametrize(
    "content",
    [
        "- promptccd-pp/cub\n",
        "promptccd-pp/cub: 3\n",
        "promptccd-pp/cub:\n",
        "promptccd-pp/cub: {training: 3}\n",
    ],
)
def test_what_is_said_of_a_pair_must_be_sections(content: str, tmp_path: Path, capsys) -> None:
    shutil.copytree(recipe_folder(), tmp_path, dirs_exist_ok=True)
    (tmp_path / "pairs.yaml").write_text(content)
    assert main(["split", str(tmp_path / "promptccd-pp-cub.yaml")]) == 2
    assert "pairs.yaml' must consist of the sections" in capsys.readouterr().err


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


def test_a_recipe_may_come_from_a_shells_pipe() -> None:
    reader, writer = os.pipe()
    os.write(writer, b"training: {epochs: 7}")
    os.close(writer)
    try:
        assert Recipe.from_yaml(f"/dev/fd/{reader}").training.epochs == 7
    finally:
        os.close(reader)


def test_aliases_and_comments_are_read(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text("# all defaults\n")
    assert Recipe.from_yaml(path) == Recipe()
    path.write_text("training: &t {epochs: 3}\npretraining: {<<: *t, batch_size: 8}\n")
    recipe = Recipe.from_yaml(path)
    assert (recipe.pretraining.epochs, recipe.pretraining.batch_size) == (3, 8)


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
