"""What `make peers` prints counts rightly; the whole table is for the network, and for a quarter of an hour."""

import types
import unittest

from tests.peers.__main__ import BY_DESIGN, CASES, CONTROL, run, sort_of, without


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
    case = type("Case", (without("somewhere").Mixin, unittest.TestCase), {})
    assert not unittest.defaultTestLoader.getTestCaseNames(case)
