"""Tables as spreadsheets write them are read right, or refused in a line that names file, line and what to do."""

import logging
import sys
from pathlib import Path

import pytest
from PIL import Image as Pillow

from promptccd.data import StageStream, spreadsheets
from promptccd.data.labels import read_categories
from promptccd.data.spreadsheets import read_sheet
from promptccd.data.tables import load_images, open_images
from promptccd.errors import DataError
from tests.messages import TEXT

NAMES = ("a.png", "b.png", "c.png", "Möwe, 日本.png")
LABELS = ("heron", "Möwe", "heron", "鷺; | 'x'")
PLAIN = "path,label\na.png,heron\nb.png,Möwe\nc.png,heron\n\"Möwe, 日本.png\",鷺; | 'x'\n"


def divided(by: str, head: str = "path,label", behind: str = "") -> str:
    """The same table with other marks; texts that hold one are in quotes."""
    lines = [head.replace(",", by)]
    for cells in zip(NAMES, LABELS, strict=True):
        lines.append(by.join(f'"{cell}"' if by in cell else cell for cell in cells) + behind)
    return "\n".join(lines) + "\n"


def ended(text: str, end: str) -> str:
    return text.replace("\n", end)


RIGHT: dict[str, bytes] = {
    "commas": PLAIN.encode(),
    "semicolons, as Excel writes them in half of Europe": ended(divided(";"), "\r\n").encode("utf-8-sig"),
    "tabs": divided("\t").encode(),
    "bars": divided("|").encode(),
    "sep=; in front": b"sep=;\r\n" + ended(divided(";"), "\r\n").encode(),
    "sep=, in quotes": b'"sep=,"\r\n' + ended(PLAIN, "\r\n").encode(),
    "Unicode text of Excel": ended(divided("\t"), "\r\n").encode("utf-16"),
    "lines of Windows": ended(PLAIN, "\r\n").encode(),
    "lines of an old Mac": ended(PLAIN, "\r").encode(),
    "blanks around names": divided(";", " path , Label ").encode(),
    "other names": divided("\t", "File Name,Category").encode(),
    "the columns the other way round, and one between": (
        "label;seen at;path\n" + "\n".join(
            f'"{label}";"noon; or\nlater";{name}' for name, label in zip(NAMES, LABELS, strict=True)
        )
    ).encode(),
    "empty lines behind and between": divided(";").replace("\nc", "\n\n;\n;;;\n\nc").encode() + b";\n;;;\n\n\n",
    "empty columns behind": divided(";", "path,label;;;", ";;;").encode(),
    "empty columns behind the rows alone": divided("\t", behind="\t\t").encode(),
    "empty lines in front": b"\n;;\n" + divided(";").encode(),
    "a column of numbers without a name, as pandas writes": (
        ",path,label\n" + "\n".join(f"{row},{line}" for row, line in enumerate(PLAIN.splitlines()[1:]))
    ).encode(),
    "blanks behind the marks": PLAIN.replace(",", ", ").replace("Möwe,  日本", "Möwe, 日本").encode(),
    "a line break inside of a text": divided(";", "path,label;note").replace(
        "heron\n", 'heron;"first\r\nsecond\n\nfourth"\n'
    ).encode(),
    "paths of Windows": PLAIN.replace("a.png", ".\\a.png").replace("b.png", ".\\.\\b.png").encode(),
    "letters with accents apart, as a Mac writes them": PLAIN.replace("ö", "o\u0308").encode(),
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for shade, name in enumerate(NAMES):
        Pillow.new("RGB", (9, 9), (shade, 7, 7)).save(tmp_path / name)
    return tmp_path


@pytest.mark.parametrize("name", RIGHT)
def test_a_table_is_read_right(name: str, folder: Path) -> None:
    listed = folder / "list.txt"
    listed.write_bytes(RIGHT[name])
    table = load_images(str(listed))
    assert read_categories(table, "label")[1] == tuple(sorted(set(LABELS)))
    assert tuple(table["label"]) == LABELS
    assert [image.getpixel((0, 0))[0] for image in table["image"]] == [0, 1, 2, 3]


REFUSED: dict[str, tuple[bytes, str]] = {
    "cp1252": (
        ended("path;label\na.png;Reiher\nb.png;Möwe\n", "\r\n").encode("cp1252"),
        r"Line 3 of 'list.csv' is not UTF-8 \(byte 0xf6\): .*older code page.*'CSV UTF-8' in the spreadsheet",
    ),
    "a workbook": (b"PK\x03\x04" + bytes(26) + b"[Content_Types].xml\xff", r"an office file\).*CSV UTF-8"),
    "a picture": (b"\x89PNG\r\n\x1a\n" + bytes(50), r"no table of text \(starts like an image\)"),
    "a page": (b"<html><table><tr><td>path</td></tr></table>", "lists no image"),
    "zeros": (bytes(600), "no table of text"),
    "a comma in a path": (b"path,label\na.png,heron\nb, c.png,tit\n", "Line 3 of 'list.csv' has more columns"),
    "a comma in the last text": (b"path,label,\na.png,heron, grey\n", "Line 2 of 'list.csv' has more columns"),
    "an open quote": (b'path,label\na.png,x\nb.png,"y\nc.png,z\n', r"of 'list.csv' is no row \(unexpected end"),
    "a quote in a text in quotes": (b'path,label\n"a "x" b.png",y\n', "Line 2 of 'list.csv' is no row"),
    "no path": (b"Pfad;Path;Label\n;;x\n", "Row 1 of '.*list.csv' names no image"),
    "nothing": (b"", "lists no image: .*such as path,label"),
    "no rows": (b"path;label\r\n;\r\n", "'list.csv' lists no image"),
    "no heading": (b"a.png;heron\nb.png;tit\n", r"Which column .*Columns: a.png, heron"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_table_that_cannot_be_read_is_told_line_and_remedy(name: str, folder: Path) -> None:
    content, said = REFUSED[name]
    (folder / "list.csv").write_bytes(content)
    with pytest.raises(DataError, match=said) as refused:
        load_images(str(folder / "list.csv"))
    assert "\n" not in str(refused.value)
    assert "list.csv" in str(refused.value)


def excel(folder: Path, name: str = "list.xlsx", sheets: int = 1) -> Path:
    """A workbook of the plain table, with numbers as cells."""
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    for number in range(1, sheets):
        book.create_sheet(f"other {number}")
    book.active.append(["", "", ""])
    book.active.append(["Path", " Label ", "seen"])
    for file, label, seen in zip(NAMES, ("heron", 7, None, 2.5), (1, 2.5, "x", None), strict=True):
        book.active.append([file, label, seen])
    book.save(folder / name)
    return folder / name


@pytest.mark.parametrize("name", ["list.xlsx", "List.XLSX", "list.xlsm"])
def test_a_workbook_is_read_as_its_text_would_be(name: str, folder: Path, caplog) -> None:
    caplog.set_level(logging.INFO)
    table = load_images(str(excel(folder, name, sheets=2)))
    assert table["label"][:] == ["heron", "7", None, "2.5"]
    assert [image.getpixel((0, 0))[0] for image in table["image"]] == [0, 1, 2, 3]
    assert TEXT["its-first-sheet-sheet-is-read"] in caplog.text
    sheet = read_sheet(folder / name)
    assert sheet.index.tolist() == [3, 4, 5, 6]
    assert sheet["seen"].tolist() == ["1", "2.5", "x", ""]


def test_a_workbook_without_its_reader_names_the_extra(folder: Path, monkeypatch) -> None:
    file = excel(folder)
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    with pytest.raises(
        DataError, match=r"'list.xlsx' needs openpyxl: pip install 'promptccd\[excel\]'.*CSV UTF-8"
    ):
        load_images(str(file))


def test_a_workbook_that_is_damaged_or_too_large_is_refused(folder: Path, monkeypatch) -> None:
    file = excel(folder)
    monkeypatch.setattr(spreadsheets, "MOST_UNPACKED", 1000)
    with pytest.raises(DataError, match=TEXT["list-xlsx-is-no-workbook-unpacks"]):
        load_images(str(file))
    monkeypatch.undo()
    file.write_bytes(file.read_bytes()[:-200])
    with pytest.raises(DataError, match=TEXT["list-xlsx-is-no-workbook-that"]):
        load_images(str(file))


def test_what_was_taken_for_granted_is_said(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    listed = folder / "list.csv"
    listed.write_bytes("name;path;label;image\nx;a.png;heron;gone.png\ny;b.png;tit;\n".encode("utf-16"))
    assert load_images(str(listed))["label"][:] == ["heron", "tit"]
    assert caplog.messages == [
        "list.csv: UTF-16, divided by semicolons.",
        f"{listed}: column 'path' is read and not 'image'.",
        f"{listed}: column 'label' is read and not 'name'.",
    ]
    listed.write_text("path,label\na.png,heron\n")
    caplog.clear()
    load_images(str(listed))
    assert not caplog.messages  # what is as it is documented needs no word
    listed.write_text("path,label\na.png,heron\nx/gone.png,tit\ngone.png,tit\n")
    load_images(str(listed))
    assert caplog.messages[0].endswith("2 of 3 files are not there, the first is 'x/gone.png'.")
    caplog.clear()
    listed.write_text("path,label\na.png,heron\n")
    open_images(str(listed), labelled=False)
    assert caplog.messages == [f"{listed}: 'label' not looked at (--labels reads labels that came later)."]


def test_what_a_folder_holds_is_said(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    place = described(folder, b"file_name,label,label\na.png,heron,tit\n")
    open_images(str(place))
    assert caplog.messages == [
        "metadata.csv: of several columns 'label' the first is read.",
        f"{place}: 1 images that metadata files name; {len(NAMES) - 1} further images are left out.",
    ]
    caplog.clear()
    open_images(str(place), labelled=False)
    what = "not an image that can be read (starts like text)"
    (line,) = caplog.messages
    assert line.startswith(f"{place}: {len(NAMES) + 1} files found: {len(NAMES)} images; 1 left out: {what}")


def described(folder: Path, content: bytes, name: str = "metadata.csv") -> Path:
    place = folder / "set"
    place.mkdir()
    for file in NAMES:
        (folder / file).rename(place / file)
    (place / name).write_bytes(content)
    return place


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
@pytest.mark.parametrize("by", [",", ";", "\t"])
@pytest.mark.parametrize("name", ["metadata.csv", "Metadata.CSV"])
def test_metadata_is_read_as_lists_are(name: str, by: str, encoding: str, folder: Path) -> None:
    head = f"Size{by}File Name{by}Label"
    lines = [f'"1,5"{by}"{file}"{by}"{label}"' for file, label in zip(NAMES, LABELS, strict=True)]
    place = described(folder, ended("\n".join([head, *lines, by * 4, ""]), "\r\n").encode(encoding), name)
    opened = open_images(str(place))
    assert tuple(opened.table["label"]) == LABELS
    assert not opened.left_out
    assert len(StageStream.from_dataset(str(place), class_blocks=[2, 1])) == 2


@pytest.mark.parametrize("content", [b"\x00\x01\x02", b"when,where\n1,2\n"])
def test_metadata_of_another_program_says_nothing(content: bytes, folder: Path) -> None:
    place = described(folder, content)
    for name in NAMES:
        (place / name[0]).mkdir()
        (place / name).rename(place / name[0] / name)
    opened = open_images(str(place))
    assert len(opened.table) == 4
    assert list(opened.left_out) == ["metadata.csv"]
