"""What `make peers` runs is well made; the whole table is for the network, and for a quarter of an hour."""

import types
import unittest

from tests.peers.__main__ import CASES, CONTROL, empty_module, made


class ModelTesterMixin:
    def test_a_batch_goes_in(self) -> None:
        config, batch = self.model_tester.prepare_config_and_inputs_for_common()
        model = self.all_model_classes[0](config).eval()
        assert len(model(**batch)[0]) == 5

    def test_that_is_left_out(self) -> None:
        raise NotImplementedError


def test_a_case_has_a_model_and_a_batch_and_no_test_that_is_left_out() -> None:
    common = types.SimpleNamespace(ModelTesterMixin=ModelTesterMixin)
    for name in (CONTROL, "simgcd finished", "promptccd-b-dualprompt on dinov3", "promptccd fresh"):
        found = unittest.TestResult()
        made(common, name, ["test_that_is"]).run(found)  # type: ignore[arg-type]
        assert (found.testsRun, found.wasSuccessful()) == (1, True)


def test_every_method_has_its_case_and_a_missing_module_has_no_test() -> None:
    assert len(CASES) == 31
    case = type("Case", (empty_module("somewhere").Mixin, unittest.TestCase), {})
    assert not unittest.defaultTestLoader.getTestCaseNames(case)
