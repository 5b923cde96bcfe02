"""Images of a data set of the Hub."""

from huggingface_hub import HfApi

from promptccd.discovery.intake.reading import read_intake
from promptccd.discovery.intake.sources import DatasetSource
from tests.conftest import coloured_images
from tests.discovery.conftest import image_of
from tests.hub.server import Hub
from tests.images.test_decode import PNG


def test_data_set_of_the_hub_is_read(hub: Hub) -> None:
    coloured_images(3, 4).push_to_hub("user/pictures")
    with read_intake(DatasetSource.load("user/pictures")) as intake:
        assert intake.report().used == 12
        assert image_of(intake, intake.files[3]).size == (16, 16)


def test_folders_of_images_on_the_hub_are_read(hub: Hub) -> None:
    api = HfApi()
    api.create_repo("user/folder", repo_type="dataset")
    api.upload_file(
        path_or_fileobj=PNG, path_in_repo="train/a.png", repo_id="user/folder", repo_type="dataset"
    )
    with read_intake(DatasetSource.load("user/folder")) as intake:
        assert [file.verdict.note for file in intake.files] == [""]
        assert intake.read_bytes(intake.files[0]) == PNG
