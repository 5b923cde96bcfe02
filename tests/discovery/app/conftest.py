"""What tests of the page share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from promptccd.data.limits import MIB, IntakeLimits
from promptccd.discovery.app.store import PageLimits, Quota, Store
from promptccd.discovery.app.visits import Visits


@pytest.fixture
def visits(backbone_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Visits]:
    """Visits over a bare backbone, with a gigabyte for their files."""
    store = Store(Quota(1024 * MIB, "files"), tmp_path_factory.mktemp("visits"))
    made = Visits(str(backbone_folder), store, IntakeLimits.for_visitors(), PageLimits())
    yield made
    made.close()
    store.close()
