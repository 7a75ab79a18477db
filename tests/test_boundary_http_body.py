"""Decoding a body: early, bounded, and whatever way it is cut."""

import gzip
import http.client
import io
import zlib
from typing import Dict, List

import pytest

from syncagent.boundary.http.body import Body
from syncagent.boundary.http.failures import TransportError


class Raw:
    """What urllib3 hands over, of which each read brings one given piece."""

    length_remaining = None

    def __init__(self, coding: str, *pieces: bytes) -> None:
        self.headers = {"content-encoding": coding}
        self._pieces = list(pieces)

    def read1(self, size: int, decode_content: bool) -> bytes:
        assert not decode_content
        return self._pieces.pop(0) if self._pieces else b""


def decoded(coding: str, *pieces: bytes) -> bytes:
    return b"".join(Body(Raw(coding, *pieces)))


def bytewise(data: bytes) -> List[bytes]:
    return [data[i : i + 1] for i in range(len(data))]


def raw_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush()


TEXT = b"data: hello\n\n" * 40


@pytest.mark.parametrize(
    "coding, packed",
    [
        ("", TEXT),
        ("identity", TEXT),
        ("gzip", gzip.compress(TEXT)),
        ("GZip", gzip.compress(TEXT[:100]) + gzip.compress(TEXT[100:])),
        ("x-gzip", gzip.compress(TEXT) + bytes(20)),
        ("deflate", zlib.compress(TEXT)),
        ("deflate", raw_deflate(TEXT)),
        ("deflate, gzip", gzip.compress(zlib.compress(TEXT))),
    ],
    ids=["none", "identity", "gzip", "two members", "padding", "deflate", "deflate without header", "both"],
)
def test_every_coding_is_undone_whole_and_byte_by_byte(coding: str, packed: bytes) -> None:
    assert decoded(coding, packed) == TEXT
    assert decoded(coding, *bytewise(packed)) == TEXT


def test_what_was_flushed_by_the_server_comes_out_at_once() -> None:
    packer = zlib.compressobj(wbits=31)
    first = packer.compress(b"data: 1\n\n") + packer.flush(zlib.Z_SYNC_FLUSH)
    pieces = iter(Body(Raw("gzip", first, packer.compress(b"data: 2\n\n") + packer.flush())))
    assert next(pieces) == b"data: 1\n\n"
    assert next(pieces) == b"data: 2\n\n"


@pytest.mark.parametrize("size", [65535, 65536, 65537, 1 << 20])
def test_pieces_are_bounded_and_none_is_held_back(size: int) -> None:
    """Wherever the data is cut, all that it can give is there, in pieces of at most 64 KiB."""
    packer = zlib.compressobj(wbits=31)
    packed = packer.compress(b"x" * size) + packer.flush(zlib.Z_SYNC_FLUSH)
    for cut in range(max(11, len(packed) - 40), len(packed) + 1):
        pieces = list(Body(Raw("gzip", packed[:cut])))
        assert b"".join(pieces) == zlib.decompressobj(31).decompress(packed[:cut])
        assert all(0 < len(piece) <= 65536 for piece in pieces)


@pytest.mark.parametrize("coding, data", [("gzip", b"no gzip at all"), ("deflate", b"\xff\xff\xff\xff")])
def test_a_body_that_cannot_be_decompressed_is_an_error(coding: str, data: bytes) -> None:
    with pytest.raises(TransportError) as caught:
        decoded(coding, data)
    assert (caught.value.code, caught.value.retryable) == ("protocol", False)


def test_a_coding_that_nobody_asked_for_is_an_error_that_names_it() -> None:
    with pytest.raises(TransportError, match="'br'"):
        Body(Raw("br", b"x"))


def test_a_length_that_is_not_reached_is_an_error_without_urllib3s_own_count() -> None:
    """The older versions take a body that was cut off for a whole one."""

    class File(io.BytesIO):
        def isclosed(self) -> bool:
            return self.closed

    class Old:
        length_remaining = 10
        headers: Dict[str, str] = {}
        released = 0

        def __init__(self, data: bytes) -> None:
            self._fp = File(data)

        def release_conn(self) -> None:
            self.released += 1

    with pytest.raises(http.client.IncompleteRead):
        list(Body(Old(b"12345")))
    raw = Old(b"1234567890")
    assert b"".join(Body(raw)) == b"1234567890"
    assert raw._fp.closed and raw.released == 1
