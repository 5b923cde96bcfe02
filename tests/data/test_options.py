"""What a number may be, and which numbers are taken for which."""

from promptccd.data.options import with_floats


def test_whole_numbers_become_floats_where_these_are_asked_for_and_truth_does_not() -> None:
    assert [type(with_floats(1, hint)) for hint in (float, float | None, int, str)] == [
        float,
        float,
        int,
        int,
    ]
    assert with_floats(True, float) is True
    assert list(map(type, with_floats([1, True, 2.5], list[float]))) == [float, bool, float]
    assert with_floats(2**64, float) == 2**64 and type(with_floats(2**64, float)) is int
    assert type(with_floats(2**64 - 1, float)) is float
