"""The page of the metric in a real browser: paste, upload, mistakes, a phone, and nothing asked of the network."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.browsing import Visit, driver

if TYPE_CHECKING:
    from playwright.sync_api import Page

expect = driver("playwright.sync_api").expect
SPACE = Path(__file__).parents[2] / "spaces" / "cacc"
# Gradio 6.31 warns so at the end of every upload: its client follows it by an event stream of its own making, of
# which `close` does nothing but this.
GRADIOS_OWN = "warning: Method not implemented."
PATIENCE = 20_000  # milliseconds, for a machine that is busy otherwise
LINES = ["0,0,1", "0,0,1", "5,1,1", "5,1,1", "5,0,1"]
CSV = "\n".join(["prediction,reference,stage", *LINES])


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """`app.py` served on loopback as ``python app.py`` serves it; it has to refuse analytics by itself."""
    pytest.importorskip(
        "gradio", reason="the page of the metric needs gradio: pip install -c constraints.txt gradio"
    )
    spec = importlib.util.spec_from_file_location("cacc_page", SPACE / "app.py")
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRADIO_TEMP_DIR", str(tmp_path_factory.mktemp("gradio")))
        patch.setenv("GRADIO_ANALYTICS_ENABLED", "True")
        patch.syspath_prepend(str(SPACE))
        spec.loader.exec_module(module)
        app = module.build_app()
        _, address, _ = app.launch(
            prevent_thread_lock=True, server_name="127.0.0.1", quiet=True, **module.LAUNCH
        )
        yield address
        app.close()
    sys.modules.pop("cacc", None)


def score(page: Page, text: str | None = None) -> None:
    """Fill in a table, if any, and press the button."""
    if text is not None:
        page.get_by_label("CSV", exact=True).fill(text)
    page.get_by_role("button", name="Score").click()


def shown(page: Page, text: str) -> None:
    """Wait until a text can be seen; a data frame of Gradio keeps hidden copies of its cells."""
    expect(page.get_by_text(text, exact=True).filter(visible=True).first).to_be_visible(timeout=PATIENCE)


@pytest.mark.slow
def test_a_pasted_table_is_scored_and_mistakes_are_told(visit: Visit, url: str, tmp_path: Path) -> None:
    page = visit.page
    page.goto(url)
    score(page, CSV)
    for accuracy in ("80.00", "66.67", "100.00"):
        shown(page, accuracy)

    score(page, "prediction,reference,stage\n<img src=x onerror=document.title=1>,0,1")
    message = page.get_by_text("Expected prediction to be an integer from 0 on, got '<img src=x")
    expect(message).to_be_visible(timeout=PATIENCE)
    expect(message).to_contain_text("in line 2: correct it or leave the line out.")
    assert "Traceback" not in page.content()
    assert page.locator("img[src=x]").count() == 0
    assert page.title() == "cACC"

    path = tmp_path / "stages.csv"
    path.write_text(CSV + "\n3,2,2\n", encoding="utf-8")
    upload = page.get_by_role("button", name="Click to upload or drop files")
    upload.get_by_test_id("file-upload").set_input_files(path)
    # The row of the uploaded file, not the name in the progress bar, which is gone in an instant.
    expect(page.get_by_role("cell", name="stages.csv", exact=True)).to_be_visible(timeout=PATIENCE)
    score(page)
    shown(page, "90.00")
    assert [text for text in visit.complaints if text != GRADIOS_OWN] == []
    assert visit.foreign_requests == []
