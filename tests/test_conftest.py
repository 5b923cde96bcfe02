"""What the tests' own setup promises."""

import execnet
import pytest

from tests.browsing import driver
from tests.conftest import sendable
from tests.messages import TEXT


def test_a_report_with_half_of_a_surrogate_pair_can_be_sent() -> None:
    report = {"name\udce9": ["half \udce9", ("whole", 1, None)], "outcome": "failed"}
    with pytest.raises(execnet.DumpError):
        execnet.dumps(report)
    sent = execnet.loads(execnet.dumps(sendable(report)))
    assert sent == {"name\\udce9": ["half \\udce9", ("whole", 1, None)], "outcome": "failed"}


def test_without_a_driver_of_browsers_tests_are_skipped_but_not_in_ci(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("PROMPTCCD_BROWSER", raising=False)
    assert driver("pathlib").Path
    with pytest.raises(pytest.skip.Exception, match=TEXT["no-nobody-has-it-is-installed-2"]):
        driver("nobody_has_it.sync_api")
    monkeypatch.setenv("PROMPTCCD_BROWSER", "required")
    with pytest.raises(pytest.fail.Exception, match=TEXT["no-nobody-has-it-is-installed"]):
        driver("nobody_has_it.sync_api")
