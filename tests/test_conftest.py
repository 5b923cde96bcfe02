"""What the tests' own setup promises."""

import execnet
import pytest

from tests.conftest import sendable


def test_a_report_with_half_of_a_surrogate_pair_can_be_sent() -> None:
    report = {"name\udce9": ["half \udce9", ("whole", 1, None)], "outcome": "failed"}
    with pytest.raises(execnet.DumpError):
        execnet.dumps(report)
    sent = execnet.loads(execnet.dumps(sendable(report)))
    assert sent == {"name\\udce9": ["half \\udce9", ("whole", 1, None)], "outcome": "failed"}
