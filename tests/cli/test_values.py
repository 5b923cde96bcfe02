"""Every field of a recipe with values that cannot be, and files that are no recipe: one line."""

from pathlib import Path
from typing import Any

import pytest

from promptccd.cli.main import main
from promptccd.data.options import alternatives, read_value
from promptccd.errors import ConfigurationError
from promptccd.training.recipe import Recipe, field_types

FIELDS = [
    (section, name, hint)
    for section, kind in field_types(Recipe).items()
    for name, hint in field_types(kind).items()
]
BAD = ["text", " ", "a\0b", -1, -0.5, 10**400, float("nan"), float("inf"), [1], [1, "a"], {"a": 1}, True]


@pytest.mark.fault(55)
@pytest.mark.parametrize(("section", "name", "hint"), FIELDS, ids=lambda value: str(value)[:30])
def test_a_value_is_taken_or_refused_in_one_line(section: str, name: str, hint: Any) -> None:
    for value in BAD:
        try:
            read = getattr(getattr(Recipe.from_dict({section: {name: value}}), section), name)
        except ConfigurationError as error:
            assert len(str(error).splitlines()) == 1, (value, error)
        else:
            kinds = [getattr(kind, "__origin__", kind) for kind in alternatives(hint)]
            assert any(isinstance(kind, type) and isinstance(read, kind) for kind in kinds), value


@pytest.mark.parametrize(
    ("words", "hint", "value"),
    [
        ("1e-4", float, 1e-4),
        (1, float | None, 1.0),
        ("3", int, 3),
        ("5", str, "5"),
        ("True", bool, True),
        ("none", str | None, None),
        ("~", int | None, None),
        ("85,100", list[int], [85, 100]),
        (["[85,100]"], list[int], [85, 100]),
        (["85", "100"], list[int], [85, 100]),
        ("[[0.7, 1.0], [1]]", list[list[float]] | None, [[0.7, 1.0], [1.0]]),
        (["2024", "a,b"], list[str] | None, ["2024", "a,b"]),
        ("week1", list[str], ["week1"]),
        (["none"], list[str] | None, None),
        (
            "{a: 1e-3, b: no, c: [1, {d: 2}], e: }",
            dict[str, Any],
            {"a": 1e-3, "b": "no", "c": [1, {"d": 2}], "e": None},
        ),
    ],
)
def test_words_are_read_by_the_type_of_their_field(words: object, hint: Any, value: object) -> None:
    read = read_value("field", words, hint)
    assert (read, type(read)) == (value, type(value))


@pytest.mark.fault(39, 55)
@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "is not YAML"),
        (b"\xff\xfet\0r\0", "is not YAML"),
        (b"PK\x03\x04" + bytes(2**20), "is too large to be a recipe"),
        (b"- a\n- b\n", "must consist of the sections"),
        (b"just words", "must consist of the sections"),
        (b"training: 5", "must consist of the sections"),
        (b"training: []", "must consist of the sections"),
        (b"# nothing", "is empty: leave --config out for the defaults"),
        (b"training:\n  epochs: 1\n  epochs: 2", "'epochs' is given twice, leave one out: in"),
        (b"training: {epochs: 1}\ntraining: {batch_size: 2}", "line 2, column 1"),
        (b"training: {epochs: }", "Expected training.epochs to be int, got None"),
        (b"training: {discovery_epochs: ''}", "Expected training.discovery_epochs to be int or none, got ''"),
        (b"training: {epochs: 2024-02-31}", "Expected training.epochs to be int"),
        (b"training: {epochs: " + b"9" * 5000 + b"}", "Expected training.epochs to be int"),
        (b"[\n" * 1500, "is not YAML"),
        (b"training: {epochs: !!python/object/apply:os.getcwd []}", "Expected training.epochs to be int"),
        (b"!!python/object/apply:os.system ['touch pwned']", "must consist of the sections"),
        (b"training: !!python/object/new:os.system ['touch pwned']", "must consist of the sections"),
        (b"training: &a [*a]", "training"),
        (b"trainer: {}", "Unknown section 'trainer'. Did you mean 'training'?"),
        (b"training: {epoch: 3}", "Unknown field 'epoch' of section 'training'. Did you mean 'epochs'?"),
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
