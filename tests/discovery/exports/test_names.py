"""Names as people gave them, on every file system."""

import os
import unicodedata

import pytest

from promptccd.discovery.exports.names import MOST_BYTES, Names, folder_names, safe_name

ALLOWED = [
    "白鹭", "黑鹳", "🦉", "שלום.jpg", "Ästige Graslilie", "نورس.JPG", "-x.jpg", "=1+1.png", "heron & egret",
    "a'b;c $d.jpg", "console.jpg", "①.jpg",
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "made"),
    [
        *((name, name) for name in ALLOWED),
        (unicodedata.normalize("NFD", "Äsche"), "Äsche"),
        ('a/b\\c:d*e?f"g<h>i|j.jpg', "a_b_c_d_e_f_g_h_i_j.jpg"),
        ("new\nline\t.png", "new_line_.png"),
        ("ends. ", "ends__"),
        (" begins", "_begins"),
        ("CON", "_CON"),
        ("lpt1.jpg", "_lpt1.jpg"),
        ("..", "__"),
        (".hidden", "_.hidden"),
        ("", "_"),
        (os.fsdecode(b"caf\xe9.jpg"), "caf_.jpg"),
        ("é" * 200 + ".jpeg", "é" * 125 + ".jpeg"),
        ("x" * 300, "x" * MOST_BYTES),
        ("x" * 248 + ". .jpeg0", "x" * 248 + ".jpeg0"),
        ("x" * 240 + ".a" + "é" * 9, "x" * 235 + ".a" + "é" * 9),
        ("x" * 240 + ".b" + "é" * 10, "x" * 240 + ".b" + "é" * 6),
    ],
)
def test_what_a_file_system_refuses_is_replaced_and_nothing_else(name: str, made: str) -> None:
    assert safe_name(name) == made
    assert safe_name(made) == made
    assert len(made.encode()) <= MOST_BYTES


def test_two_of_one_name_are_told_apart() -> None:
    names = Names()
    assert [
        names.add("IMG_1.jpg", ["card A", "1a2b3c"]),
        names.add("IMG_1.jpg", ["card B", "4d5e6f"]),
        names.add("img_1.JPG", ["card B", "7a8b9c"]),
        names.add("IMG_1.jpg", ["card B", "4d5e6f"]),
        names.add("IMG_1.jpg", ["card B", "4d5e6f"]),
    ] == ["IMG_1.jpg", "IMG_1 (card B).jpg", "img_1 (7a8b9c).JPG", "IMG_1 (4d5e6f).jpg", "IMG_1 (2).jpg"]
    long = "ü" * 125 + ".jpg"
    first, second = names.add(long, ["card A"]), names.add(long, ["card A"])
    assert first == long and second.endswith(" (card A).jpg") and len(second.encode()) <= MOST_BYTES


def test_groups_of_one_name_get_folders_of_their_own() -> None:
    made = folder_names(
        {7: "Heron", 3: "heron", 9: "a/b", 12: "a:b", 4: unicodedata.normalize("NFD", "Ä"), 5: "ä"}
    )
    assert made == {3: "heron", 4: "Ä", 5: "ä (5)", 7: "Heron (7)", 9: "a_b", 12: "a_b (12)"}
