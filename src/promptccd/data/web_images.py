"""A picture behind a web address: fetched within bounds, and only from machines of the public internet.

Whoever names an address makes this machine ask for it. So the name is resolved first, the resolved address is checked,
and the connection goes to that very address, anew for every redirection. Nothing that strangers reach may call this:
the page and the Space take files.
"""

import ipaddress
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from urllib.parse import SplitResult, urljoin, urlsplit

from promptccd.data.limits import IntakeLimits, SkippedFileError

SECONDS = 30.0
MOST_REDIRECTIONS = 3
_MOVED = (301, 302, 303, 307, 308)
_NAT64 = ipaddress.ip_network("64:ff9b::/96")  # public addresses that stand for others


def is_web_address(source: object) -> bool:
    """Whether something is a web address rather than a file's name."""
    return isinstance(source, str) and source.lower().startswith(("http://", "https://"))


def fetch_image(url: str, *, timeout: float | None = None, private_addresses: bool = False) -> bytes:
    """The bytes behind an address, unchecked.

    Args:
        url: ``https://...`` or ``http://...``, without user and password.
        timeout: seconds to wait for the whole answer, at each of at most `MOST_REDIRECTIONS` redirections; by default
            `SECONDS`.
        private_addresses: also ask machines of one's own network, and this one.

    Raises:
        SkippedFileError: there is no answer, the machine may not be asked, or the file exceeds a visitor's limit.
    """
    seconds = SECONDS if timeout is None else timeout
    for _ in range(MOST_REDIRECTIONS + 1):
        content, moved = _ask(url, seconds, private_addresses)
        if moved is None:
            return content
        url = urljoin(url, moved)
    raise SkippedFileError(f"{_shown(url)} is redirected more than {MOST_REDIRECTIONS} times")


def _ask(url: str, seconds: float, private_addresses: bool) -> tuple[bytes, str | None]:
    """The content behind an address, or where it has moved to."""
    parts = _parts(url)
    host = parts.hostname or ""
    port = parts.port or (443 if parts.scheme == "https" else 80)
    # mutant without operand 2: http.client asks for / by itself where there is no path
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    try:
        address = _address_of(host, port, private_addresses)
        with _connected(parts.scheme, host, address, port, seconds) as connection:
            connection.request("GET", target, headers={"Accept": "image/*", "User-Agent": "promptccd"})
            return _content(connection.getresponse(), url)
    except (OSError, HTTPException, ValueError) as error:
        reason = (
            "no answer in time" if isinstance(error, TimeoutError) else str(error) or type(error).__name__
        )
        raise SkippedFileError(f"{_shown(url)} cannot be fetched ({reason[:120]})") from error


def _parts(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        sound = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        sound = False
    if not sound or not url.isprintable() or " " in url:
        raise SkippedFileError(f"{_shown(url)} is no address of the web: write https://host/picture.jpg")
    if parts.username or parts.password:
        raise SkippedFileError(
            "an address with a user and a password is not asked: download the picture yourself"
        )
    return parts


def _address_of(host: str, port: int, private_addresses: bool) -> str:
    """The IP address of a host; every address that its name stands for must be allowed."""
    found = [str(each[4][0]) for each in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
    if not private_addresses and not all(map(_is_public, found)):
        raise SkippedFileError(
            f"{host} is a machine of this network, which is not asked for pictures: give private_addresses=True if it "
            "is yours and nobody else chooses the address"
        )
    return found[0]


def _is_public(number: str) -> bool:
    address = ipaddress.ip_address(number)
    if isinstance(address, ipaddress.IPv6Address) and (
        address.ipv4_mapped or address.sixtofour or address.teredo or address in _NAT64
    ):
        return False
    return address.is_global and not address.is_multicast


@contextmanager
def _connected(scheme: str, host: str, address: str, port: int, seconds: float) -> Iterator[HTTPConnection]:
    """A connection to this very address, under the host's name; it is cut when the time is over."""
    plain = socket.create_connection((address, port), timeout=seconds)
    over = threading.Event()

    def cut() -> None:
        over.set()
        with suppress(OSError):
            plain.shutdown(socket.SHUT_RDWR)

    clock = threading.Timer(seconds, cut)  # the socket's own timeout begins anew with every byte
    clock.daemon = True
    clock.start()
    try:
        connection = (HTTPSConnection if scheme == "https" else HTTPConnection)(host, port)
        if scheme == "https":
            context = ssl.create_default_context()
            plain = context.wrap_socket(plain, server_hostname=host, do_handshake_on_connect=False)
            plain.do_handshake()
        connection.sock = plain
        yield connection
        if over.is_set():  # a cut looks like the end of the answer
            raise TimeoutError
    except (OSError, HTTPException) as error:
        if over.is_set():
            raise TimeoutError from error
        raise
    finally:
        clock.cancel()
        plain.close()


def _content(response: HTTPResponse, url: str) -> tuple[bytes, str | None]:
    if response.status in _MOVED and (moved := response.getheader("Location")):
        return b"", moved
    if response.status != 200:
        raise SkippedFileError(f"{_shown(url)} answers {response.status} {response.reason[:80]}")
    most = IntakeLimits.for_visitors().max_file_bytes
    content = response.read(most + 1)
    if len(content) > most:
        raise SkippedFileError(f"{_shown(url)} sends more than {most} bytes")
    return content, None


def _shown(url: str) -> str:
    """An address in a message: without the query, which may hold a secret."""
    return repr(url.partition("?")[0][:200])
