"""The chunked transfer coding undone: bytes of the wire in, bytes of the body out. It knows no socket.

Many providers send each event in a chunk of its own. The libraries below read one chunk at a time,
whatever one read of the socket has brought; here all of them come out together.
"""

import re
from typing import List

from syncagent.boundary.http.failures import TransportError

__all__ = ["Dechunker"]

#: Bytes that the line of a size, with its extensions, or one of the trailer may have.
_LINE_LIMIT = 65536
_SIZE = re.compile(rb"[ \t]*([0-9A-Fa-f]{1,16})[ \t]*(?:;[^\n]*)?\r?\n")


class Dechunker:
    """One body. `over` says that its end has come; what follows that is no part of it."""

    def __init__(self) -> None:
        self.over = False
        self._rest = b""  # the beginning of a line
        self._left = 0  # bytes of the open chunk that haven't come yet
        self._open = False  # the line end behind a chunk hasn't come yet
        self._trailer = False

    def feed(self, data: bytes) -> bytes:
        """The bytes of the body in the next bytes of the wire; b"" if there are none yet.

        Raises `TransportError` with code "protocol" for what is no such coding.
        """
        data = self._rest + data if self._rest else data
        self._rest = b""
        found: List[bytes] = []
        place = 0
        while place < len(data) and not self.over:
            if self._left:
                piece = data[place : place + self._left]
                found.append(piece)
                place += len(piece)
                self._left -= len(piece)
                continue
            end = data.find(b"\n", place) + 1
            if not end:
                self._rest = data[place:]
                if len(self._rest) > _LINE_LIMIT:
                    raise _garbled(self._rest)
                break
            self._line(data, place, end)
            place = end
        return found[0] if len(found) == 1 else b"".join(found)

    def _line(self, data: bytes, start: int, end: int) -> None:
        if self._open:
            if data[start:end] not in (b"\r\n", b"\n"):
                raise _garbled(data[start:end])
            self._open = False
        elif self._trailer:
            self.over = data[start:end] in (b"\r\n", b"\n")
        else:
            match = _SIZE.fullmatch(data, start, end)
            if match is None:
                raise _garbled(data[start:end])
            self._left = int(match[1], 16)
            self._open = self._left > 0
            self._trailer = not self._open


def _garbled(line: bytes) -> TransportError:
    return TransportError(f"the body's chunks are garbled: {line[:40]!r} is no size", code="protocol")
