"""Reads server-sent events from bytes. It knows no socket, no HTTP and no provider.

Lines are split as bytes and decoded whole, so that neither a line end nor a character that is cut in
two by a chunk is ever seen in parts.
"""

import re
from typing import Iterable, Iterator, List, NamedTuple, Optional

from syncagent.boundary.http.failures import TransportError

__all__ = ["DEFAULT_LIMIT", "ServerSentEvent", "read_batches", "read_events"]

#: Bytes of one event that are held at most.
DEFAULT_LIMIT = 16 * 1024 * 1024

_LINE_END = re.compile(rb"\r\n?|\n")
_BOM = b"\xef\xbb\xbf"


class ServerSentEvent(NamedTuple):
    """One event: `event` is its type, `data` its data lines joined by line feeds.

    `id` is the last event id that the stream has named, `retry` the reconnection time in milliseconds
    if this event set one.
    """

    event: str = "message"
    data: str = ""
    id: str = ""
    retry: Optional[int] = None


def read_events(chunks: Iterable[bytes], *, limit: int = DEFAULT_LIMIT) -> Iterator[ServerSentEvent]:
    """Yield the events in `chunks`, each as soon as the line that ends it is there.

    The rules are those of the HTML standard, section "Server-sent events": lines end in LF, CRLF or
    CR; one space after the colon is dropped; a line that begins with a colon is a comment; an event
    without data is none; an event that the stream's end cuts off is not delivered. Bytes that are no
    UTF-8 become U+FFFD. Raises `TransportError` with code "protocol" when one event, or one line,
    holds more than `limit` bytes.
    """
    for batch in read_batches(chunks, limit=limit):
        yield from batch


def read_batches(
    chunks: Iterable[bytes], *, limit: int = DEFAULT_LIMIT
) -> Iterator[List[ServerSentEvent]]:
    """The same events, those together that one chunk has completed; a list is never empty."""
    lines = _Lines(limit)
    reader = _Reader(limit)
    for chunk in chunks:
        try:
            for line in lines.feed(chunk):
                reader.take(line)
        finally:
            batch, reader.batch = reader.batch, []
            if batch:
                yield batch


class _Reader:
    """Lines in, events out; `batch` are those that are whole."""

    def __init__(self, limit: int) -> None:
        self.batch: List[ServerSentEvent] = []
        self._limit = limit
        self._event, self._id = "", ""
        self._data: List[str] = []
        self._retry: Optional[int] = None
        self._held = 0

    def take(self, line: bytes) -> None:
        if not line:
            if self._data:
                data = self._data[0] if len(self._data) == 1 else "\n".join(self._data)
                self.batch.append(ServerSentEvent(self._event or "message", data, self._id, self._retry))
                self._data = []
            self._event, self._retry, self._held = "", None, 0
            return
        name, _, value = line.partition(b":")
        if value[:1] == b" ":
            value = value[1:]
        if name == b"data":
            # Only data is counted: keep-alive comments may come for hours without an event's end.
            self._held += len(value) + 1
            _check(self._held, self._limit)
            self._data.append(value.decode("utf-8", "replace"))
        elif name == b"event":
            self._event = value.decode("utf-8", "replace")
        elif name == b"id" and b"\0" not in value:
            self._id = value.decode("utf-8", "replace")
        elif name == b"retry" and value.isdigit() and len(value) < 19:
            self._retry = int(value)


class _Lines:
    """Bytes in, complete lines out, without their ends. Each byte is looked at once, however long a line."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._parts: List[bytes] = []
        self._held = 0
        self._skip_lf = False
        self._first = True

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        if not chunk:
            return
        if self._skip_lf and chunk[:1] == b"\n":
            chunk = chunk[1:]
        # A CR at the chunk's end ends the line now: the LF of a CRLF, if it comes, is skipped.
        self._skip_lf = chunk[-1:] == b"\r"
        lines = chunk.split(b"\n") if b"\r" not in chunk else _LINE_END.split(chunk)
        rest = lines.pop()
        for line in lines:
            _check(self._held + len(line), self._limit)
            if self._parts:
                line = b"".join([*self._parts, line])
                self._parts, self._held = [], 0
            if self._first:
                self._first = False
                line = line[3:] if line.startswith(_BOM) else line
            yield line
        if rest:
            self._parts.append(rest)
            self._held += len(rest)
            _check(self._held, self._limit)


def _check(held: int, limit: int) -> None:
    if held > limit:
        raise TransportError(f"an event of the stream is longer than {limit} bytes", code="protocol")
