"""The segments of a JPEG file: tables, frames, scans, and additional data of programs."""

from collections.abc import Iterator

JPEG = b"\xff\xd8"  # begins a file
SCAN, END, JFIF, ADOBE = 0xDA, 0xD9, 0xE0, 0xEE
FRAMES = (0xC0, 0xC1, 0xC2)  # baseline, extended, progressive


def jpeg_segments(content: bytes) -> Iterator[tuple[int, bytes]]:
    """Marker and bytes of every segment up to the end of the picture; a scan with the data that follows it."""
    offset = len(JPEG)
    while offset + 4 <= len(content) and content[offset] == 0xFF:
        marker = content[offset + 1]
        if marker == 0xFF:  # a fill byte
            offset += 1
            continue
        size = 2 if marker == END else 2 + int.from_bytes(content[offset + 2 : offset + 4], "big")
        end = offset + size if marker != SCAN else _end_of_scan(content, offset + size)
        yield marker, content[offset:end]
        if marker == END:
            return
        offset = end
    if content[offset : offset + 2] == bytes([0xFF, END]):
        yield END, content[offset : offset + 2]


def _end_of_scan(content: bytes, offset: int) -> int:
    """Where the next marker stands that is neither a stuffed byte nor a restart."""
    while (offset := content.find(b"\xff", offset)) >= 0 and offset + 1 < len(content):
        if content[offset + 1] != 0 and not 0xD0 <= content[offset + 1] <= 0xD7:
            return offset
        offset += 2
    return len(content)
