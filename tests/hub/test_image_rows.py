"""Images of a data set of the Hub that a visitor names."""

import dataclasses

import pytest
from huggingface_hub import HfApi

from promptccd.data.image_rows import DatasetSource
from promptccd.discovery.intake.intake import IntakeLimits, read_intake
from promptccd.errors import DataError
from tests.conftest import coloured_images
from tests.data.test_images import PNG
from tests.discovery.conftest import image_of
from tests.hub.server import Hub

VISITORS = IntakeLimits.for_visitors()


def test_data_set_of_the_hub_is_read(hub: Hub) -> None:
    coloured_images(3, 4).push_to_hub("user/pictures")
    with read_intake(DatasetSource.from_hub("user/pictures", VISITORS), limits=VISITORS) as intake:
        assert intake.report().used == 12
        assert image_of(intake, intake.files[3]).size == (16, 16)


def test_folders_of_images_on_the_hub_are_read(hub: Hub) -> None:
    api = HfApi()
    api.create_repo("user/folder", repo_type="dataset")
    api.upload_file(
        path_or_fileobj=PNG, path_in_repo="train/a.png", repo_id="user/folder", repo_type="dataset"
    )
    with read_intake(DatasetSource.from_hub("user/folder", VISITORS), limits=VISITORS) as intake:
        assert [file.verdict.note for file in intake.files] == [""]
        assert intake.read_bytes(intake.files[0]) == PNG


def test_large_data_set_is_refused_before_it_is_downloaded(hub: Hub) -> None:
    coloured_images(3, 4).push_to_hub("user/pictures")
    hub.log.clear()
    with pytest.raises(DataError, match=r"has \d+ bytes; the limit is 1000"):
        DatasetSource.from_hub("user/pictures", dataclasses.replace(VISITORS, max_total_bytes=1000))
    assert hub.log
    assert not [request.path for request in hub.log if "resolve" in request.path]


def test_data_set_that_is_not_there_is_said(hub: Hub) -> None:
    with pytest.raises(DataError, match="Cannot ask the Hub for the data set 'user/nothing'"):
        DatasetSource.from_hub("user/nothing", VISITORS)
