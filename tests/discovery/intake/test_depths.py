"""Files with more than 8 bits a value are shown by one rule, from the first discovery to the last export."""

import io
from pathlib import Path

import datasets
import numpy as np
import pytest
from PIL import Image

from promptccd.data.image_rows import ImageRows
from promptccd.discovery import DiscoverySession, discover
from promptccd.discovery.intake.reading import Intake, read_intake
from promptccd.discovery.intake.seen import SeenFiles
from promptccd.discovery.project import ProjectView
from promptccd.images.clean import clean_image
from promptccd.images.decode import decode_image
from promptccd.images.rendering import Rendering
from tests.images.test_decode import deep_png, encoded, oriented, picture, raw_tiff
from tests.messages import TEXT


def ramp(top: int, seed: int = 0) -> np.ndarray:
    """Values up to a largest one, another picture for every seed."""
    coarse = np.random.default_rng(seed).integers(0, 256, (5, 7), dtype=np.uint8)
    smooth = np.asarray(Image.fromarray(coarse).resize((48, 36), Image.Resampling.BICUBIC)).astype(float)
    return np.rint((smooth - smooth.min()) / np.ptp(smooth) * top).astype(np.uint16)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    folder.mkdir()
    (folder / "dim.tif").write_bytes(raw_tiff(ramp(900, 1)))
    (folder / "bright.png").write_bytes(deep_png(np.stack([ramp(4000, 2)] * 3, axis=-1)))
    (folder / "plain.png").write_bytes(encoded(picture(), "PNG"))
    (folder / "said.tif").write_bytes(raw_tiff(ramp(900, 3), tags={281: 1023}))
    return folder


def brightest(intake: Intake) -> dict[str, int]:
    small = intake.thumbnails(intake.used)
    pictures = {file.name: Image.open(io.BytesIO(small[file.key])) for file in intake.used}
    return {name: int(np.asarray(shown).max()) for name, shown in pictures.items()}


@pytest.mark.parametrize("workers", [1, 3])
def test_the_smallest_depth_that_holds_all_values_is_that_of_all(photos: Path, workers: int) -> None:
    with read_intake(photos, workers=workers) as intake:
        assert intake.decoding.rendering == Rendering(integer=(0, 4095))
        assert TEXT["12-bits-window-0-to-4095"] in intake.report().rendering
        notes = {file.name: file.verdict.note for file in intake.used}
        assert notes == {
            "bright.png": TEXT["12-bits-scaled-to-8-bits"], "dim.tif": TEXT["12-bits-scaled-to-8-bits"],
            "plain.png": "", "said.tif": TEXT["10-bits-scaled-to-8-bits"],
        }  # fmt: skip
        shown = brightest(intake)
        assert abs(shown["dim.tif"] - 900 / 4095 * 255) < 6
        assert abs(shown["said.tif"] - 900 / 1023 * 255) < 8
    with read_intake(photos / "plain.png") as intake:
        assert intake.report().rendering == ""


def test_later_images_are_shown_by_the_first_rule_and_keep_their_keys(photos: Path, tmp_path: Path) -> None:
    (project := tmp_path / "project").mkdir()
    shown, keys, said = list[dict[str, int]](), list[dict[str, str]](), list[str]()

    def again(rendering: Rendering | None = None) -> None:
        seen = SeenFiles(project, {"enough": 1})
        with read_intake(photos, seen=seen, rendering=rendering) as intake:
            shown.append(brightest(intake))
            keys.append({file.name: file.key for file in intake.used})
            said.append(intake.report().rendering)
        seen.close()

    again()
    again()
    (photos / "new.tif").write_bytes(raw_tiff(ramp(65535, 4)))
    again()
    assert said[2].endswith("1 file has values beyond it, which are cut, such as new.tif")
    again(Rendering(given=(0, 1023)))
    again()
    assert shown[0] == shown[1]
    assert shown[0].items() <= shown[2].items()
    assert shown[3]["dim.tif"] > 200 > shown[2]["dim.tif"]
    assert shown[3] == shown[4], "what a person gave is kept"
    assert shown[3]["plain.png"] == shown[0]["plain.png"]
    assert keys[0].items() <= keys[2].items()
    assert keys[2] == keys[3] == keys[4]


@pytest.mark.slow
def test_features_page_and_exports_show_the_same_depth(photos: Path, out: Path, tiny_backbone: Path) -> None:
    features = []
    for name, content in {"": b"", "new.tif": raw_tiff(ramp(65535, 4))}.items():
        if name:
            (photos / name).write_bytes(content)
        session = DiscoverySession.open(tiny_backbone)
        discover(session, photos, out, num_categories=2, exports=["publish"])
        fresh = DiscoverySession.open(tiny_backbone, rendering=Rendering(integer=(0, 4095)))
        fresh.read(photos)
        assert np.allclose(session.current.features, fresh.current.features, atol=1e-5)
        names = [file.name for file in session.current.intake.used]
        features.append(dict(zip(names, session.current.features, strict=True)))
        shown = ProjectView(out).photos
        assert shown.decoding.rendering == session.current.intake.decoding.rendering == fresh.rendering
        row = shown.names.index("dim.tif")
        pixels = np.asarray(decode_image((photos / "dim.tif").read_bytes(), shown.decoding).image).astype(int)
        large, cell = (np.asarray(Image.open(io.BytesIO(shown.picture(row, side)))) for side in (1600, 320))
        assert np.abs(large - pixels).max() < 12
        assert np.abs(cell - pixels).mean() < 6
        exported = [np.asarray(Image.open(path)) for path in (out / "publish").rglob("*.webp")]
        assert any(np.array_equal(each, pixels) for each in exported)
        shown.close()
    for name in ("dim.tif", "plain.png"):
        assert np.array_equal(features[0][name], features[1][name])


def test_rows_that_are_trained_on_are_shown_by_one_rule(photos: Path) -> None:
    names = sorted(path.name for path in photos.iterdir())
    records = [{"bytes": (photos / name).read_bytes(), "path": None} for name in names]
    feature = datasets.Features({"image": datasets.Image(decode=False)})
    rows = ImageRows(datasets.Dataset.from_dict({"image": records}, features=feature))
    at = names.index("dim.tif")
    for shown, top in ((rows.with_one_rendering(), 4095), (rows, 1023)):
        image = shown.select(np.array([at])).decode(0).image
        assert image is not None
        assert np.asarray(image).max() == round(900 / top * 255)
    decoding = rows.with_one_rendering().decoding
    clean = clean_image((photos / "dim.tif").read_bytes(), decoding)
    assert clean is not None
    assert np.asarray(Image.open(io.BytesIO(clean[1]))).max() == round(900 / 4095 * 255)


def test_a_camera_raw_beside_its_picture_is_left_out_and_named(tmp_path: Path) -> None:
    raw = b"FUJIFILMCCD-RAW 0201" + bytes(300) + oriented("JPEG", 1, picture(1200, 900))
    (tmp_path / "one.RAF").write_bytes(raw)
    (tmp_path / "two.RAF").write_bytes(raw)
    (tmp_path / "stub.ARW").write_bytes(b"II*\0\x08\0\0\0" + bytes(400))
    (tmp_path / "one.jpg").write_bytes(encoded(picture(), "JPEG"))
    with read_intake(tmp_path) as intake:
        assert {file.name: file.verdict.note.partition(":")[0] for file in intake.files} == {
            "one.RAF": TEXT["camera-raw-beside-one-jpg-which"],
            "two.RAF": "camera RAW (RAF)",
            "stub.ARW": TEXT["camera-raw-arw-without-a-jpeg"],
            "one.jpg": "",
        }
        assert [file.name for file in intake.used] == ["one.jpg", "two.RAF"]
