"""The event stream's rules, whichever way the bytes are cut."""

import time
from typing import Iterator, List

import pytest

from syncagent.boundary.http.failures import TransportError
from syncagent.boundary.http.sse import ServerSentEvent, read_batches, read_events


def data_of(*chunks: bytes) -> List[str]:
    return [event.data for event in read_events(chunks)]


def every_cut(stream: bytes) -> Iterator[List[bytes]]:
    """The stream in one piece, cut in two at every place, and byte by byte."""
    for place in range(len(stream) + 1):
        yield [stream[:place], stream[place:]]
    yield [stream[i : i + 1] for i in range(len(stream))]


RICH = (
    ": a comment\n"
    "event: delta\nid: 7\nretry: 250\ndata: first é\ndata: second €\ndata: third 🙂\n\n"
    "data\n\n"
    "data:\n\n"
    "event: nothing\n\n"
    "data: last\n\n"
    "data: cut off"
)
RICH_EVENTS = [
    ServerSentEvent(event="delta", data="first é\nsecond €\nthird 🙂", id="7", retry=250),
    ServerSentEvent(data="last", id="7"),
]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_each_way_of_cutting_the_bytes_gives_the_same_events(end: str) -> None:
    """A CRLF that is cut between its two bytes is one line end, and no character is torn."""
    stream = RICH.replace("\n", end).encode()
    empty = [ServerSentEvent(id="7"), ServerSentEvent(id="7")]
    expected = [RICH_EVENTS[0], *empty, RICH_EVENTS[1]]
    for chunks in every_cut(stream):
        assert list(read_events(chunks)) == expected, chunks


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("space", ["", " "])
def test_the_three_line_ends_and_an_optional_space_mean_the_same(end: str, space: str) -> None:
    stream = f"data:{space}x{end}data:{space}y{end}{end}data:{space}z{end}{end}".encode()
    assert data_of(stream) == ["x\ny", "z"]


def test_the_line_feed_of_a_cut_line_end_is_skipped_and_no_other() -> None:
    for chunks in every_cut(b"data: a\r\n\ndata: b\r\r\n"):
        assert data_of(*chunks) == ["a", "b"], chunks


def test_what_one_piece_completes_comes_together() -> None:
    batches = read_batches([b"data: a\n\nda", b"ta: b\n\ndata: c\n\n: d", b"\n\n", b"data: e\n\n"])
    assert [[event.data for event in batch] for batch in batches] == [["a"], ["b", "c"], ["e"]]


def test_what_came_before_an_error_comes_out_first() -> None:
    seen = []
    with pytest.raises(TransportError):
        for batch in read_batches([b"data: a\n\ndata: " + b"x" * 100 + b"\n\n"], limit=50):
            seen.append([event.data for event in batch])
    assert seen == [["a"]]


def test_only_one_space_after_the_colon_is_dropped() -> None:
    assert data_of(b"data:  two\n\ndata:\ttab\n\n") == [" two", "\ttab"]


@pytest.mark.parametrize("end", [b"\r", b"\r\n", b"\n"])
def test_an_event_is_there_with_the_byte_that_ends_it(end: bytes) -> None:
    """A line that CR ends is not held back until it's known whether a LF follows."""
    taken = []

    def chunks() -> Iterator[bytes]:
        yield b"data: 1" + end + end[:1]
        taken.append("more was asked for")
        yield end[1:] + b"data: 2" + end + end

    events = read_events(chunks())
    assert next(events).data == "1"
    assert taken == []
    assert [event.data for event in events] == ["2"]


def test_characters_of_two_three_and_four_bytes_survive_every_cut() -> None:
    text = "ä ß € 漢字 🙂 👩‍💻"
    for chunks in every_cut(f"data: {text}\n\n".encode()):
        assert data_of(*chunks) == [text]


def test_bytes_that_are_no_utf8_become_replacement_characters() -> None:
    assert data_of(b"data: a\xffb\xe2\x82\n\ndata: c\n\n") == ["a\ufffdb\ufffd", "c"]


def test_a_comment_is_neither_data_nor_an_end() -> None:
    """Before, between and inside an event of several lines."""
    stream = b": ping\n\n:\ndata: a\n: ping\ndata: b\n:ping\n\n: ping\n\ndata: c\n\n: ping\n"
    assert data_of(stream) == ["a\nb", "c"]


def test_several_data_lines_are_one_event_joined_by_line_feeds() -> None:
    """A JSON document over four lines is parsed as one."""
    lines = ["{", '  "choices": [', '    {"index": 0}', "  ]}"]
    stream = "".join(f"data: {line}\n" for line in lines) + "\n"
    assert data_of(stream.encode()) == ["\n".join(lines)]


def test_one_byte_order_mark_at_the_start_is_dropped() -> None:
    stream = "\ufeffdata: x\n\n\ufeffdata: y\n\n".encode()
    for chunks in every_cut(stream):
        assert data_of(*chunks) == ["x"]


def test_an_event_that_the_end_cuts_off_is_not_delivered() -> None:
    assert data_of(b"data: whole\n\ndata: half") == ["whole"]
    assert data_of(b"data: whole\n\ndata: no blank line\n") == ["whole"]


def test_the_id_lasts_and_one_with_a_null_is_ignored() -> None:
    events = list(read_events([b"id: 1\ndata: a\n\ndata: b\n\nid: 2\0\ndata: c\n\nid\ndata: d\n\n"]))
    assert [event.id for event in events] == ["1", "1", "1", ""]


def test_retry_takes_digits_only_and_holds_for_one_event() -> None:
    events = list(read_events([b"retry: 10\ndata: a\n\nretry: 1s\ndata: b\n\nretry: -1\ndata: c\n\n"]))
    assert [event.retry for event in events] == [10, None, None]
    (event,) = read_events([b"retry: " + b"9" * 5000 + b"\ndata: a\n\n"])
    assert event.retry is None


def test_fields_that_are_unknown_or_spelt_otherwise_are_ignored() -> None:
    assert data_of(b"Data: a\n data: b\nfoo: c\nbar\ndata: d\n\n") == ["d"]


def test_an_event_of_four_megabytes_in_small_chunks_takes_linear_time() -> None:
    payload = b"x" * (4 << 20)
    stream = b"data: " + payload + b"\n\n"
    began = time.monotonic()
    events = list(read_events(stream[i : i + 16] for i in range(0, len(stream), 16)))
    assert time.monotonic() - began < 30  # quadratic, it's minutes
    assert events == [ServerSentEvent(data=payload.decode())]


def test_many_events_in_one_chunk_all_come_out() -> None:
    assert data_of(b"data: 1\n\n" * 50_000) == ["1"] * 50_000


@pytest.mark.parametrize(
    "chunks",
    [
        [b"data: " + b"x" * 100 + b"\n\n"],
        [b"data: ", *[b"x"] * 100],
        [b"data: xxxxxxxxx\n"] * 10,
        [b":", *[b"x"] * 100],
    ],
    ids=["one chunk", "a line without end", "many data lines", "an endless comment"],
)
def test_an_event_beyond_the_limit_is_an_error_that_says_so(chunks: List[bytes]) -> None:
    with pytest.raises(TransportError, match="longer than 50 bytes") as caught:
        list(read_events(chunks, limit=50))
    assert (caught.value.code, caught.value.retryable) == ("protocol", False)


def test_comments_and_earlier_events_do_not_count_against_the_limit() -> None:
    stream = b"data: " + b"x" * 40 + b"\n" + b": keep-alive\n" * 100 + b"\n"
    assert len(list(read_events([stream] * 5, limit=50))) == 5
