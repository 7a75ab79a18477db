"""What becomes of a tool's output: a bounded text for the result, and live pieces while it runs.

Pure: it is fed bytes and times, and knows no descriptor and no process.
"""

import codecs
from typing import Callable, List, Optional

__all__ = ["HeadTail", "LiveText"]


class HeadTail:
    """Keeps the first `head` and the last `tail` bytes of a stream and counts the rest."""

    def __init__(self, *, head: int, tail: int) -> None:
        self._head_size = head
        self._tail_size = tail
        self._head = bytearray()
        self._tail = bytearray()
        self.total = 0

    def add(self, data: memoryview) -> None:
        """Take the next bytes; they are copied."""
        self.total += len(data)
        room = self._head_size - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        if len(data) >= self._tail_size:
            self._tail[:] = data[len(data) - self._tail_size :]
        elif data:
            self._tail += data
            # Only now and then: cutting at each piece would move the whole tail each time.
            if len(self._tail) > 2 * self._tail_size:
                del self._tail[: -self._tail_size]

    @property
    def dropped(self) -> int:
        """How many bytes are left out between head and tail."""
        return self.total - len(self._head) - min(len(self._tail), self._tail_size)

    def text(self) -> str:
        """Head and tail as text, and a line between them that counts what was left out.

        What is no UTF-8 becomes U+FFFD, but no half of a character is left at the cut.
        """
        tail = bytes(self._tail[max(0, len(self._tail) - self._tail_size) :])
        if not self.dropped:
            return (bytes(self._head) + tail).decode("utf-8", "replace")
        head = codecs.getincrementaldecoder("utf-8")("replace").decode(bytes(self._head))
        start = 0
        while start < min(3, len(tail)) and tail[start] & 0xC0 == 0x80:
            start += 1
        note = f"\n[... {self.dropped} bytes left out ...]\n"
        return head + note + tail[start:].decode("utf-8", "replace")


class LiveText:
    """Decodes a stream as it comes and hands it on in pieces: at once after a pause, else batched.

    `sink` gets each piece; when it returns False it gets no more, and decoding stops.
    """

    def __init__(self, sink: Callable[[str], object], *, pause: float = 0.1, size: int = 8192) -> None:
        self._sink: Optional[Callable[[str], object]] = sink
        self._pause = pause
        self._size = size
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._pieces: List[str] = []
        self._length = 0
        self._last = float("-inf")

    @property
    def due(self) -> Optional[float]:
        """When `flush` wants to be called, on the clock that `add` was told; None if never."""
        return self._last + self._pause if self._pieces else None

    def add(self, data: memoryview, now: float) -> None:
        """Take the next bytes, at the time `now` in seconds."""
        if self._sink is None:
            return
        piece = self._decoder.decode(data)
        if piece:
            self._pieces.append(piece)
            self._length += len(piece)
            if self._length >= self._size or now - self._last >= self._pause:
                self.flush(now)

    def flush(self, now: float) -> None:
        """Hand on what is kept."""
        text, self._pieces, self._length = "".join(self._pieces), [], 0
        self._last = now
        if text and self._sink is not None and self._sink(text) is False:
            self._sink = None

    def finish(self, now: float) -> None:
        """Hand on the rest, an unfinished character as U+FFFD."""
        rest = self._decoder.decode(b"", True)
        if rest:
            self._pieces.append(rest)
        self.flush(now)
