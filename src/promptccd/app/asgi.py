"""Words of ASGI, the protocol between a server and what answers."""

from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

from starlette.responses import PlainTextResponse

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]


@dataclass(frozen=True)
class Refusal:
    """An answer of one line in place of the one that was asked for."""

    status: int
    text: str

    def answer(self, headers: Mapping[str, str] | None = None) -> App:
        """What gives it."""
        return PlainTextResponse(self.text, self.status, headers)


def header(scope: Message, name: bytes) -> str:
    """The value of a header that occurs once, or ``""``; names are in lower case."""
    found = [value for key, value in scope["headers"] if key == name]
    return found[0].decode("latin-1") if len(found) == 1 else ""
