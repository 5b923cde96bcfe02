"""What `make peers` prints counts rightly; the whole table is for the network, and for a quarter of an hour."""

import os
import re
import sys
import tarfile
import types
import unittest
from pathlib import Path

import pytest
import transformers

from tests.peers.__main__ import CACHE, NAME, _without, fetched, run, sort_of
from tests.peers.classes import BY_DESIGN, CASES, CONTROL


class _Common:
    class ModelTesterMixin:
        def test_a_batch_goes_in(self) -> None:
            config, batch = self.model_tester.prepare_config_and_inputs_for_common()
            model = self.all_model_classes[0](config).eval()
            assert len(model(**batch)[0]) == 5

        def test_that_is_skipped(self) -> None:
            self.skipTest("for want of a device")

        def test_with_a_part_that_fails(self) -> None:
            for number in range(2):
                with self.subTest(number=number):
                    self.assertEqual(number, 0, "one is not zero")


def test_every_test_of_a_case_is_counted_once() -> None:
    common = types.SimpleNamespace(ModelTesterMixin=_Common.ModelTesterMixin)
    for name in (CONTROL, "simgcd finished", "promptccd-b:dualprompt on dinov3", "promptccd fresh"):
        found = run(common, name)  # type: ignore[arg-type]
        assert found.pop("test_with_a_part_that_fails").endswith("one is not zero")
        assert found == {"test_a_batch_goes_in": "pass", "test_that_is_skipped": "skip"}


def test_a_failure_is_sorted_by_its_reason() -> None:
    control = {"test_one": "pass", "test_two": "RuntimeError: here too", "test_three": "skip"}
    named = next(iter(BY_DESIGN))
    sorts = [sort_of(each, "ValueError", control) for each in (*control, named, "test_new")]
    assert sorts == ["FAIL", "as the control", "FAIL", "by design", "FAIL"]
    assert [sort_of("test_one", said, control) for said in ("pass", "skip")] == ["pass", "skip"]


def test_every_method_has_its_case_and_a_missing_module_has_no_test() -> None:
    assert len(CASES) == 31
    mixin = _without("somewhere").Mixin
    assert isinstance(mixin, type) and not unittest.defaultTestLoader.getTestCaseNames(
        type("Case", (mixin, unittest.TestCase), {})
    )


@pytest.mark.slow
def test_a_source_that_cannot_be_fetched_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key, value in {"NO_INDEX": "1", "CONFIG_FILE": os.devnull, "DISABLE_PIP_VERSION_CHECK": "1"}.items():
        monkeypatch.setenv(f"PIP_{key}", value)
    place = tmp_path / transformers.__version__ / f"transformers-{transformers.__version__}.tar.gz"
    with pytest.raises(
        OSError, match=f"no source of transformers .*with a network, or .*{re.escape(str(place))}"
    ):
        fetched(tmp_path)
    (tmp_path / "there.py").write_text("")
    with tarfile.open(place, "w:gz") as archive:
        archive.add(
            tmp_path / "there.py", f"{place.name.removesuffix('.tar.gz')}/tests/test_modeling_common.py"
        )
    try:
        assert fetched(tmp_path).__name__ == f"{NAME}.test_modeling_common"
    finally:
        sys.path.remove(str(place.parent))
        for name in [each for each in sys.modules if each.partition(".")[0] == NAME]:
            sys.modules.pop(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["promptccd finished", "grow-merge finished", "promptccd-pp on dinov3"])
def test_nothing_fails_that_should_not(name: str) -> None:
    pytest.importorskip("parameterized", reason="their tests need parameterized")
    if not [*CACHE.glob(f"*/{NAME}")]:
        pytest.skip("transformers' tests were not fetched: `make peers` does")
    common = fetched()
    control = run(common, CONTROL)
    found = {test: sort_of(test, said, control) for test, said in run(common, name).items()}
    assert [test for test, sort in found.items() if sort == "FAIL"] == []
    assert len(found) > 100
