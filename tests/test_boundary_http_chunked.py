"""The chunked coding's rules, whichever way the bytes are cut."""

from typing import Iterable, List

import pytest

from syncagent.boundary.http.chunked import Dechunker
from syncagent.boundary.http.failures import TransportError

BODY = b"data: 1\n\n" + b"x" * 300 + b"\r\n0\r\n\r\n" + b"end"
WIRES = {
    "plain": b"9\r\ndata: 1\n\n\r\n12C\r\n" + b"x" * 300 + b"\r\nA\r\n\r\n0\r\n\r\nend\r\n0\r\n\r\n",
    "lower case, zeros, blanks": (
        b"0009 \r\ndata: 1\n\n\r\n12c\r\n" + b"x" * 300 + b"\r\n\ta\r\n\r\n0\r\n\r\nend\r\n000\r\n\r\n"
    ),
    "bare line feeds": b"9\ndata: 1\n\n\n12C\n" + b"x" * 300 + b"\nA\n\r\n0\r\n\r\nend\n0\n\n",
    "extensions and a trailer": (
        b'9;a="b"\r\ndata: 1\n\n\r\n12C; q\r\n' + b"x" * 300 + b"\r\nA\r\n\r\n0\r\n\r\nend\r\n0;last\r\n"
        b"Digest: abc\r\nOther: 0\r\n\r\n"
    ),
}


def undone(pieces: Iterable[bytes]) -> bytes:
    chunks = Dechunker()
    found: List[bytes] = []
    for piece in pieces:
        assert not chunks.over
        found.append(chunks.feed(piece))
    assert chunks.over
    return b"".join(found)


@pytest.mark.parametrize("wire", WIRES.values(), ids=WIRES)
def test_each_way_of_cutting_the_bytes_gives_the_same_body(wire: bytes) -> None:
    for place in range(len(wire)):
        assert undone([wire[:place], wire[place:]]) == BODY
    assert undone(wire[i : i + 1] for i in range(len(wire))) == BODY


def test_all_chunks_of_a_piece_come_together_and_a_part_of_one_at_once() -> None:
    chunks = Dechunker()
    assert chunks.feed(b"2\r\nab\r\n2\r\ncd\r\n5\r\nef") == b"abcdef"
    assert chunks.feed(b"gh") == b"gh"
    assert not chunks.over


def test_what_follows_the_end_is_no_part_of_the_body() -> None:
    chunks = Dechunker()
    assert chunks.feed(b"2\r\nab\r\n0\r\n\r\nHTTP/1.1 200 OK\r\n") == b"ab"
    assert chunks.over and chunks.feed(b"2\r\ncd\r\n") == b""


@pytest.mark.parametrize(
    "wire",
    [b"no\r\n", b"\r\n", b"-1\r\n", b"+1\r\n", b"1_0\r\n", b"0x1\r\n", b"1" * 17 + b"\r\n", b"1\r\nabc\r\n",
     b"1\r\na1\r\n", b"1 1\r\n", b";\r\n", b"1" * 70000, b"0\r\n" + b"a" * 70000],
    ids=lambda wire: repr(wire[:12]),
)  # fmt: skip
def test_what_is_no_such_coding_is_an_error_that_shows_little_of_it(wire: bytes) -> None:
    with pytest.raises(TransportError) as caught:
        Dechunker().feed(wire)
    assert caught.value.code == "protocol" and len(str(caught.value)) < 120


def test_many_small_chunks_cost_time_in_proportion() -> None:
    """Each byte is moved a few times at most, however many chunks there are in a piece."""
    wire = b"1\r\na\r\n" * 200_000
    assert len(Dechunker().feed(wire)) == 200_000
