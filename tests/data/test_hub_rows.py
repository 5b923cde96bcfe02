"""A parquet file is read piece by piece, and each piece by few requests."""

import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from promptccd.data import hub_rows
from promptccd.data.hub_rows import _FORMAT, _batches

GROUPS, PER_GROUP = 6, 50


class Counted(io.BytesIO):
    """A file that counts what is asked of it."""

    reads = 0

    def read(self, size: int | None = -1) -> bytes:
        self.reads += 1
        return super().read(size)


@pytest.fixture
def file() -> Counted:
    rows = np.arange(GROUPS * PER_GROUP)
    wide = [bytes([row % 251]) * 900 for row in rows]
    table = pa.table({"row": rows, "image": wide, "aside": wide, "label": rows % 7})
    stream = io.BytesIO()
    pq.write_table(table, stream, row_group_size=PER_GROUP, use_dictionary=False, compression="none")
    return Counted(stream.getvalue())


@pytest.mark.parametrize("most", [1, 60_000, 2**25])
def test_rows_come_in_order_whatever_a_piece_holds(
    file: Counted, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(hub_rows, "_AT_ONCE_BYTES", most)
    monkeypatch.setattr(hub_rows, "_BATCH", 20)
    batches = list(_batches(_FORMAT.make_fragment(file), ["label", "row"]))
    assert [each.schema.names for each in batches] == [["label", "row"]] * len(batches)
    assert max(len(each) for each in batches) == 20
    found = pa.Table.from_batches(batches)
    assert found["row"].to_pylist() == list(range(GROUPS * PER_GROUP))
    assert found["label"].to_pylist() == [row % 7 for row in range(GROUPS * PER_GROUP)]


def test_columns_of_all_groups_of_a_piece_come_in_one_request(file: Counted) -> None:
    fragment = _FORMAT.make_fragment(file)
    assert len(fragment.row_groups) == GROUPS
    file.reads = 0
    list(_batches(fragment, ["row", "image", "label"]))
    assert file.reads <= 3  # it looks at the end again; column by column would be 18
