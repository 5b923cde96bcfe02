"""What a page may use of the machine that serves it, for all visitors together."""

from dataclasses import dataclass

from promptccd.data.limits import MIB


@dataclass(frozen=True)
class Patience:
    """How long is waited for a request.

    Attributes:
        request_s: seconds until the head of a request is there; until a body goes on after it paused; and by how much
            a body may fall behind `slowest`.
        slowest: bytes a second that a body has to bring on the average.
        upload_s: seconds until a body is complete, however steadily it arrives.
        unread_s: seconds until somebody reads on who is sent an answer.
    """

    request_s: float = 15.0
    slowest: int = 16 * 1024
    upload_s: float = 900.0
    unread_s: float = 30.0


@dataclass(frozen=True)
class PageLimits:
    """Limits on all visitors together; those on what one of them brings are `IntakeLimits`.

    Attributes:
        disk_bytes: of all files that visitors bring, keep and take away, half of an upload included.
        memory_bytes: of what is kept of their images in memory.
        request_bytes: of requests, other than uploads, that are being read.
        visits: at once.
        pages: that Gradio remembers, at about half a megabyte each; it drops the one unused the longest.
        connections: open at once.
        per_address: requests that one address may have under way; this machine itself is not counted.
        untaken_s: seconds until an upload is deleted that no visit has taken.
        patience: with slow requests.
    """

    disk_bytes: int = 4096 * MIB
    memory_bytes: int = 2048 * MIB
    request_bytes: int = 64 * MIB
    visits: int = 50
    pages: int = 256
    connections: int = 512
    per_address: int = 128
    untaken_s: float = 600.0
    patience: Patience = Patience()
