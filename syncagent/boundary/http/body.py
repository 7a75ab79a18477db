"""Reads an answer's body as it arrives, whatever its framing and coding. It knows no token.

`read(n)` and `iter_content(n)` of the libraries below wait for n bytes unless the body is chunked.
A read here returns what one read of the socket brings.
"""

import http.client
import zlib
from typing import Any, Iterator, List

from syncagent.boundary.http.chunked import Dechunker
from syncagent.boundary.http.failures import TransportError

__all__ = ["Body"]

_SIZE = 65536


class Body:
    """The body of one answer; `raw` is urllib3's response, made without preloading."""

    def __init__(self, raw: Any) -> None:
        self._raw = raw
        self._left = raw.length_remaining
        fp: Any = getattr(raw, "_fp", None)
        self._chunks = Dechunker() if getattr(fp, "chunked", False) and not fp.isclosed() else None
        self._decoders = [_decoder(name) for name in reversed(_codings(raw.headers))]

    def __iter__(self) -> Iterator[bytes]:
        """Yield non-empty pieces of at most 64 KiB of the decoded body until its end.

        Raises what the libraries below raise, and `TransportError` for a coding that is unknown or
        can't be decoded.
        """
        while True:
            data = self._read()
            if not data:
                return
            yield from self._decode(data, self._decoders)

    def _read(self) -> bytes:
        """The next bytes of the body, at least one; b"" at its end."""
        if self._chunks is not None:
            return self._read_chunks(self._chunks)
        if hasattr(self._raw, "read1"):
            return self._raw.read1(_SIZE, decode_content=False) or b""
        return self._read1()

    def _read_chunks(self, chunks: Dechunker) -> bytes:
        """The same where the body comes in chunks: all of them that one read of the socket has brought."""
        fp = self._raw._fp
        found = b""
        while not found and not chunks.over:
            data = fp.fp.read1(_SIZE)
            if not data:
                raise http.client.IncompleteRead(b"")
            found = chunks.feed(data)
        if chunks.over and not fp.isclosed():
            fp.close()
            self._raw.release_conn()
        return found

    def _read1(self) -> bytes:
        """The same for a urllib3 without `read1`, through http.client's.

        What urllib3's would do beside it is done here: count the content-length, and give the
        connection back as soon as the last byte has come.
        """
        fp = self._raw._fp
        if fp.isclosed():
            return b""
        data: bytes = fp.read1(_SIZE if self._left is None else min(_SIZE, self._left))
        if self._left is not None:
            if not data and self._left:
                raise http.client.IncompleteRead(b"", self._left)
            self._left -= len(data)
        if not data or self._left == 0:
            fp.close()
            self._raw.release_conn()
        return data

    def _decode(self, data: bytes, decoders: List["_Inflater"]) -> Iterator[bytes]:
        if not decoders:
            yield data
            return
        for piece in decoders[0].feed(data):
            yield from self._decode(piece, decoders[1:])


def _codings(headers: Any) -> List[str]:
    names = [name.strip().lower() for name in headers.get("content-encoding", "").split(",")]
    return [name for name in names if name not in ("", "identity")]


def _decoder(name: str) -> "_Inflater":
    if name in ("gzip", "x-gzip", "deflate"):
        return _Inflater(name)
    raise TransportError(
        f"the server sent the body in the coding {name[:40]!r}, which wasn't asked for", code="protocol"
    )


class _Inflater:
    """gzip or deflate, in pieces of a bounded size, each as early as the data allows."""

    def __init__(self, name: str) -> None:
        self._gzip = name != "deflate"
        self._inflate = zlib.decompressobj(zlib.MAX_WBITS | 16)
        self._head = b""
        self._begun = self._gzip
        self._members = 0
        self._done = False

    def feed(self, data: bytes) -> Iterator[bytes]:
        if not self._begun:
            data = self._begin_deflate(data)
        try:
            while data and not self._done:
                yield from self._pieces(data)
                data = self._after_end() if self._inflate.eof else b""
        except zlib.error as exc:
            if self._members == 0:
                raise TransportError(f"the body can't be decompressed: {exc}", code="protocol") from exc
            self._done = True  # padding after the last member of a gzip file

    def _pieces(self, data: bytes) -> Iterator[bytes]:
        full = True
        # A full piece may leave output inside zlib even when all input has been taken.
        while data or full:
            piece = self._inflate.decompress(data, _SIZE)
            data, full = self._inflate.unconsumed_tail, len(piece) == _SIZE
            if piece:
                yield piece
            if self._inflate.eof:
                return

    def _after_end(self) -> bytes:
        """What follows the end of a stream: in gzip's case another member may."""
        rest = self._inflate.unused_data
        self._members += 1
        if self._gzip:
            self._inflate = zlib.decompressobj(zlib.MAX_WBITS | 16)
            return rest
        self._done = True
        return b""

    def _begin_deflate(self, data: bytes) -> bytes:
        """Tell "deflate" with the zlib header it should have from the kind that leaves it out."""
        self._head += data
        if len(self._head) < 2:
            return b""
        first, second = self._head[0], self._head[1]
        headed = first & 15 == 8 and (first * 256 + second) % 31 == 0
        self._inflate = zlib.decompressobj(zlib.MAX_WBITS if headed else -zlib.MAX_WBITS)
        self._begun = True
        data, self._head = self._head, b""
        return data
