"""The registry of methods, and the words for each."""

from dataclasses import replace

import pytest

from promptccd import methods
from promptccd.methods import METHODS, base, method_named, register
from promptccd.models import VARIANTS
from promptccd.training.methods import MethodWords, words_of_methods


def test_words_are_read_from_the_files_of_methods_without_running_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words = {
        name: MethodWords(name, each.title, each.summary, each.published) for name, each in METHODS.items()
    }
    assert words_of_methods() == words
    monkeypatch.setattr(methods, "METHODS", {})
    assert words_of_methods() == words
    own = replace(METHODS["simgcd"], name="own", title="Own", summary="words of its own", published={})
    monkeypatch.setattr(methods, "METHODS", {"own": own})
    assert words_of_methods() == {**words, "own": MethodWords("own", "Own", "words of its own", {})}


def test_a_name_stands_for_one_method() -> None:
    method = method_named("simgcd")
    assert register(method) is method
    with pytest.raises(ValueError, match="There is a method 'simgcd' already"):
        register(replace(method, title="another"))
    assert METHODS["simgcd"] is method


def test_a_method_that_is_registered_is_found_with_its_model(monkeypatch: pytest.MonkeyPatch) -> None:
    own = replace(METHODS["simgcd"], name="own")
    monkeypatch.setattr(base, "METHODS", {})
    for name in list(VARIANTS):
        monkeypatch.delitem(VARIANTS, name)
    assert register(own) is own
    assert dict(base.METHODS) == {"own": own}
    assert list(VARIANTS.values()) == [own.model]


def test_these_answer_with_a_classifier_of_their_own() -> None:
    natively = {name for name, each in METHODS.items() if each.answers_natively}
    assert natively == {"frost", "happy", "orca", "rankstats", "simgcd"}
