"""The bounded output keeps both ends and every character whole; live pieces come batched."""

import codecs

import pytest

from syncagent.boundary.process.pump import HeadTail, LiveText


def filled(data: bytes, *, head: int, tail: int, step: int) -> HeadTail:
    buffer = HeadTail(head=head, tail=tail)
    for at in range(0, len(data), step):
        buffer.add(memoryview(data[at : at + step]))
    return buffer


@pytest.mark.parametrize("step", [1, 3, 7, 64, 1000])
@pytest.mark.parametrize("size", [0, 1, 9, 10, 29, 30, 31, 45, 61, 400])
def test_head_and_tail_are_kept_and_the_rest_is_counted(size: int, step: int) -> None:
    data = bytes(33 + at % 90 for at in range(size))
    buffer = filled(data, head=10, tail=20, step=step)
    assert buffer.total == size
    assert buffer.dropped == max(0, size - 30)
    if size <= 30:
        assert buffer.text() == data.decode()
    else:
        note = f"\n[... {size - 30} bytes left out ...]\n"
        assert buffer.text() == data[:10].decode() + note + data[-20:].decode()


@pytest.mark.parametrize("head", range(8, 13))
@pytest.mark.parametrize("tail", range(8, 13))
def test_a_character_cut_at_the_limit_leaves_no_half(head: int, tail: int) -> None:
    text = filled("😀".encode() * 50, head=head, tail=tail, step=5).text()
    first, _, last = text.split("\n")
    assert set(first) == {"😀"} and set(last) == {"😀"}


def test_what_is_no_utf8_becomes_replacement_characters() -> None:
    assert filled(b"a\xff\xfeb\xc3", head=10, tail=10, step=2).text() == "a\ufffd\ufffdb\ufffd"


@pytest.mark.parametrize("sizes", [(0, 0), (0, 5), (5, 0)])
def test_an_end_may_be_empty(sizes: "tuple[int, int]") -> None:
    buffer = filled(b"x" * 100, head=sizes[0], tail=sizes[1], step=9)
    assert buffer.dropped == 100 - sum(sizes)
    assert buffer.text().count("x") == sum(sizes)


def test_live_text_comes_at_once_after_a_pause_and_batched_in_a_burst() -> None:
    got: "list[str]" = []
    live = LiveText(got.append, pause=0.1)
    live.add(memoryview(b"a"), 1.0)
    assert got == ["a"] and live.due is None
    live.add(memoryview(b"b"), 1.01)
    live.add(memoryview(b"c"), 1.02)
    assert got == ["a"] and live.due == pytest.approx(1.1)
    live.flush(1.1)
    assert got == ["a", "bc"] and live.due is None
    live.add(memoryview(b"d"), 5.0)
    assert got[-1] == "d"


def test_live_text_flushes_what_grows_large() -> None:
    got: "list[str]" = []
    live = LiveText(got.append, pause=10, size=100)
    live.add(memoryview(b"a"), 1.0)
    live.add(memoryview(b"x" * 99), 1.0)
    assert got == ["a"]
    live.add(memoryview(b"y"), 1.0)
    assert got == ["a", "x" * 99 + "y"]


def test_live_text_puts_split_characters_together_and_ends_an_unfinished_one() -> None:
    got: "list[str]" = []
    live = LiveText(got.append, pause=0)
    for at, byte in enumerate("é😀".encode() + b"\xf0\x9f"):
        live.add(memoryview(bytes([byte])), float(at))
    live.finish(99.0)
    assert got == ["é", "😀", "\ufffd"]


def test_a_sink_that_returns_false_gets_no_more() -> None:
    got: "list[str]" = []

    def sink(text: str) -> bool:
        got.append(text)
        return len(got) < 2

    live = LiveText(sink, pause=0)
    for at in range(5):
        live.add(memoryview(b"x"), float(at))
    live.finish(9.0)
    assert got == ["x", "x"]


def test_the_decoder_is_the_one_that_the_result_uses() -> None:
    data = bytes(range(256)) * 3
    got: "list[str]" = []
    live = LiveText(got.append, pause=0)
    for at in range(0, len(data), 7):
        live.add(memoryview(data[at : at + 7]), float(at))
    live.finish(1e6)
    whole = codecs.decode(data, "utf-8", "replace")
    assert "".join(got) == whole == filled(data, head=9, tail=999, step=8).text()
