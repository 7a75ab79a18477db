"""Reads server-sent events from bytes. It knows no socket, no HTTP and no provider.

Lines are split as bytes and decoded whole, so that neither a line end nor a character that is cut in
two by a chunk is ever seen in parts.
"""

import re
from typing import Iterable, Iterator, List, Optional

import attrs

from syncagent.boundary.http.failures import TransportError

__all__ = ["DEFAULT_LIMIT", "ServerSentEvent", "read_events"]

#: Bytes of one event that are held at most.
DEFAULT_LIMIT = 16 * 1024 * 1024

_LINE_END = re.compile(rb"\r\n?|\n")
_BOM = b"\xef\xbb\xbf"


@attrs.frozen(kw_only=True)
class ServerSentEvent:
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
    event, last_id = "", ""
    data: List[str] = []
    retry: Optional[int] = None
    held = 0
    for line in _lines(chunks, limit):
        if not line:
            if data:
                yield ServerSentEvent(event=event or "message", data="\n".join(data), id=last_id, retry=retry)
            event, data, retry, held = "", [], None, 0
            continue
        name, _, value = line.partition(b":")
        if value[:1] == b" ":
            value = value[1:]
        if name == b"data":
            # Only data is counted: keep-alive comments may come for hours without an event's end.
            held += len(value) + 1
            _check(held, limit)
            data.append(value.decode("utf-8", "replace"))
        elif name == b"event":
            event = value.decode("utf-8", "replace")
        elif name == b"id" and b"\0" not in value:
            last_id = value.decode("utf-8", "replace")
        elif name == b"retry" and value.isdigit() and len(value) < 19:
            retry = int(value)


def _lines(chunks: Iterable[bytes], limit: int) -> Iterator[bytes]:
    """The complete lines, without their ends. Each byte is looked at once, however long a line is."""
    parts: List[bytes] = []
    held = 0
    skip_lf = False
    first = True
    for chunk in chunks:
        if not chunk:
            continue
        start = 1 if skip_lf and chunk[:1] == b"\n" else 0
        for end in _LINE_END.finditer(chunk, start):
            parts.append(chunk[start : end.start()])
            _check(held + len(parts[-1]), limit)
            line = b"".join(parts)
            parts, held, start = [], 0, end.end()
            if first:
                first = False
                line = line[3:] if line.startswith(_BOM) else line
            # A CR at the chunk's end ends the line now: the LF of a CRLF, if it comes, is skipped.
            yield line
        skip_lf = chunk[-1:] == b"\r"
        if start < len(chunk):
            parts.append(chunk[start:])
            held += len(parts[-1])
            _check(held, limit)


def _check(held: int, limit: int) -> None:
    if held > limit:
        raise TransportError(f"an event of the stream is longer than {limit} bytes", code="protocol")
