"""The segments of a JPEG file: tables, frames, scans, and additional data of programs."""

import re
from collections.abc import Iterator

JPEG = b"\xff\xd8"  # begins a file
SCAN, END, JFIF, ADOBE = 0xDA, 0xD9, 0xE0, 0xEE
FRAMES = (0xC0, 0xC1, 0xC2)  # baseline, extended, progressive
_MARKER = re.compile(rb"\xff[^\x00\xd0-\xd7]")  # behind a scan, neither a stuffed byte nor a restart


def jpeg_segments(content: bytes) -> Iterator[tuple[int, bytes]]:
    """Marker and bytes of every segment up to the end of the picture; a scan with the data that follows it."""
    offset = len(JPEG)
    while offset + 4 <= len(content) and content[offset] == 0xFF:
        marker = content[offset + 1]
        if marker == 0xFF:  # a fill byte
            offset += 1
            continue
        size = 2 if marker == END else 2 + int.from_bytes(content[offset + 2 : offset + 4], "big")
        end = offset + size
        if marker == SCAN:
            following = _MARKER.search(content, end)
            end = following.start() if following else len(content)
        yield marker, content[offset:end]
        if marker == END:
            return
        offset = end
    if content[offset : offset + 2] == bytes([0xFF, END]):
        yield END, content[offset : offset + 2]
