"""Names in side files: keywords that digiKam, Immich and Lightroom read with photographs."""

import os
import re
from collections.abc import Iterator, Sequence
from xml.sax.saxutils import escape

from promptccd.discovery.exports.export_folder import Export, ExportFolder, Item, text_item
from promptccd.discovery.exports.names import Names
from promptccd.discovery.exports.rows import AssignmentRow, grouped
from promptccd.discovery.project.photos import Photos

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


def fill(folder: ExportFolder, photos: Photos, rows: Sequence[AssignmentRow]) -> Export:
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
    items = (item for _, row in inside for item in _items(row, files[row.picture], roots))
    for item in {each.place: each for each in items}.values():  # IMG_1.cr2 and IMG_1.dng share IMG_1.xmp
        folder.add(item)
    why = "it is not where it was, or lies in an archive or a data set"
    folder.export.missing += [(row.file, why) for _, row in inside if not files[row.picture]]
    return folder.finish(sum(map(bool, files.values())), notes)


def _items(row: AssignmentRow, files: Sequence[tuple[str, str]], roots: dict[str, str]) -> Iterator[Item]:
    name = _NOT_XML.sub("\ufffd", row.name)
    text = _XMP.format(keyword=escape(name), level=escape(name.replace("|", "/")))
    for root, path in files:
        stem, suffix = os.path.splitext(path)
        for place in (path, *([] if suffix.lower() in _ORDINARY else [stem])):
            yield text_item(f"{roots[root]}/{place}.xmp", text, row.file)
