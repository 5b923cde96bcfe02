"""The functions of the export formats: each fills a folder, and has the name of its format."""

import contextlib
import json
import os
import re
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from promptccd.discovery.exports.export_folder import (
    DIGITS,
    Export,
    ExportFolder,
    Item,
    link_or_copy,
    text_item,
)
from promptccd.discovery.exports.names import Names, folder_names
from promptccd.discovery.exports.rows import AssignmentRow, assignments_csv, grouped
from promptccd.discovery.options import TABLE
from promptccd.discovery.project.photos import Photos
from promptccd.errors import DataError
from promptccd.images.kinds import FIRST_BYTES, picture_kind


def folders(folder: ExportFolder, photos: Photos, rows: Sequence[AssignmentRow]) -> Export:
    """Write ``folders/<group>/<own name>``: links to the untouched files where the disk can, else copies."""
    inside, notes = grouped(rows)
    folder_of = folder_names({category: row.name for category, row in inside})
    names = {category: Names() for category in folder_of}
    places, linked = list[str](), 0
    for category, row in inside:
        path = photos.path(row.picture)  # none of a row of a data set
        above, name = os.path.split(path or row.file)
        marks = [os.path.basename(above)] if os.path.basename(above) else []
        unique = names[category].add(name, [*marks, row.sha256[:6]])
        make = partial(_write_original, photos, row.picture, needs_suffix=not path)
        place = f"{folder_of[category]}/{unique}"
        item = Item(place, row.sha256[:DIGITS], make, row.file, is_bare=not path, is_hashed=True)
        places.append(folder.add(item))
    found = folder.finish(sum(map(bool, places)), notes)
    if copies := sum(photos.copies_of(row.picture) for _, row in inside):
        found.notes.append(f"Further files with the same pictures, left out: {copies}.")
    for place, (_, row) in zip(places, inside, strict=True):
        path = photos.path(row.picture)
        with contextlib.suppress(OSError):
            linked += os.path.samefile(folder.path / place, path)
    if linked:
        note = f"{linked} of them are links to your files and use no space: do not edit a link in place."
        found.notes.append(note)
    return found


def _write_original(photos: Photos, key: str, target: Path, *, needs_suffix: bool) -> str:
    file = photos.file_of(key)
    if file is not None:
        link_or_copy(file, target)
        return ""
    content = photos.original(key)
    target.write_bytes(content)
    kind = picture_kind(content[:FIRST_BYTES]).lower() if needs_suffix else ""
    return {"": "", "jpeg": ".jpg", "tiff": ".tif"}.get(kind, f".{kind}")


_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_ORDINARY = (".jpg", ".jpeg", ".png", ".tif", ".tiff", ".webp", ".gif", ".bmp", ".avif", ".heic")
_XMP = """<?xpacket begin="\ufeff" id="W5M0MpCehiHzreSzNTczkc9d"?>
<x:xmpmeta xmlns:x="adobe:ns:meta/">
 <rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">
  <rdf:Description rdf:about="" xmlns:dc="http://purl.org/dc/elements/1.1/" \
xmlns:lr="http://ns.adobe.com/lightroom/1.0/">
   <dc:subject><rdf:Bag><rdf:li>{keyword}</rdf:li></rdf:Bag></dc:subject>
   <lr:hierarchicalSubject><rdf:Bag><rdf:li>{level}</rdf:li></rdf:Bag></lr:hierarchicalSubject>
  </rdf:Description>
 </rdf:RDF>
</x:xmpmeta>
<?xpacket end="w"?>
"""


def sidecars(folder: ExportFolder, photos: Photos, rows: Sequence[AssignmentRow]) -> Export:
    """Write ``sidecars/<folder of photographs>/<path in it>.xmp``.

    Every file that shows a picture gets one, copies included. None is written into the folder of photographs, which
    may contain side files of a person. Lightroom looks for ``IMG_1.xmp`` of camera RAW, so RAW also gets a file of that
    name.
    """
    inside, notes = grouped(rows)
    files = {row.picture: photos.files_of(row.picture) for _, row in inside}
    unique = Names()  # of each folder of photographs, in which the tree of its files is rebuilt
    found = sorted({root for each in files.values() for root, _ in each})
    roots = {root: unique.add(os.path.basename(root), []) for root in found}
    items = (item for _, row in inside for item in _side_files(row, files[row.picture], roots))
    for item in {each.place: each for each in items}.values():  # IMG_1.cr2 and IMG_1.dng share IMG_1.xmp
        folder.add(item)
    why = "it is not where it was, or lies in an archive or a data set"
    folder.export.missing += [(row.file, why) for _, row in inside if not files[row.picture]]
    return folder.finish(sum(map(bool, files.values())), notes)


def _side_files(
    row: AssignmentRow, files: Sequence[tuple[str, str]], roots: dict[str, str]
) -> Iterator[Item]:
    name = _NOT_XML.sub("\ufffd", row.name)
    text = _XMP.format(keyword=escape(name), level=escape(name.replace("|", "/")))
    for root, path in files:
        stem, suffix = os.path.splitext(path)
        for place in (path, *([] if suffix.lower() in _ORDINARY else [stem])):
            yield text_item(f"{roots[root]}/{place}.xmp", text, row.file)


HASH_DIGITS = 10  # of a file's hash in its name, so that no two files of a category collide
_SPLIT = "train"  # as which `datasets` reads all of it
# `datasets` interprets these, in lower case, as splits anywhere in a path.
_SPLIT_WORDS = re.compile("train|test|val|dev|eval")
_FACTS = ("category", "known", "confidence", "stage", "sha256")


def publish(folder: ExportFolder, photos: Photos, rows: Sequence[AssignmentRow]) -> Export:
    """Write ``publish/train/<group>/<hash>.jpg`` and ``metadata.jsonl``, an ImageFolder of `datasets`.

    The pixels are exactly as they were grouped, without metadata, see `promptccd.images.clean`. ``label`` is
    the name of the group, letter by letter; in names of folders the words that `datasets` takes for splits begin with a
    capital letter.
    """
    inside, notes = grouped(rows)
    names = {
        category: _SPLIT_WORDS.sub(lambda word: word[0].capitalize(), row.name) for category, row in inside
    }
    folder_of, listed = folder_names(names), list[dict[str, Any]]()
    for category, row in inside:
        if place := folder.add(_picture(photos, row, folder_of[category])):
            facts = {"label": row.name, **{name: getattr(row, name) for name in _FACTS}}
            listed.append({"file_name": place.removeprefix(f"{_SPLIT}/"), **facts})
    text = "".join(json.dumps(each, ensure_ascii=False, separators=(",", ":")) + "\n" for each in listed)
    metadata = f"{_SPLIT}/metadata.jsonl"
    folder.add(text_item(metadata, text, metadata))
    return folder.finish(len(listed), notes)


def _picture(photos: Photos, row: AssignmentRow, folder: str) -> Item:
    def make(target: Path) -> str:
        from promptccd.images.clean import clean_image

        clean = clean_image(photos.original(row.picture), photos.decoding)
        if clean is None:
            raise DataError("it could be decoded before and cannot be now")
        suffix, content = clean
        target.write_bytes(content)
        return suffix

    digits = row.sha256[:HASH_DIGITS]
    made_of = f"{photos.decoding.rendering} {digits}"  # the rule that pixels depend on
    return Item(f"{_SPLIT}/{folder}/{digits}", made_of, make, row.file, is_bare=True)


def table(folder: ExportFolder, photos: Photos, rows: Sequence[AssignmentRow]) -> Export:
    """Write ``table/assignments.csv`` of all images and items, also without a file."""
    folder.add(text_item(TABLE, assignments_csv(rows), TABLE))
    return folder.finish(len(rows))
