"""Events become rows and come back, character by character."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from logs import Log, examples, lines, random_log, valid_logs

from syncagent.boundary.store import rows
from syncagent.boundary.store.rows import DamagedRow, pack, unpack
from syncagent.log import Event


def there_and_back(events):
    packed = pack(events)
    back = [event for seq, n, type, time, _, data in packed for event in unpack(seq, n, type, time, data)]
    assert [event.text for event in back] == [event.text for event in events]
    assert lines(back) == lines(events) and back == list(events)
    return packed


def chunk(log, said, later):
    """A chunk that came `later` ms after the event before it."""
    log.time += later - 1
    return log.chunk(said)


@given(valid_logs())
@examples(60)
def test_any_log_comes_back_character_by_character(events):
    there_and_back(events)


@given(st.lists(st.text(), max_size=12), st.integers(0, 9))
@examples(60)
def test_any_text_of_a_chunk_comes_back(texts, later):
    log = Log().asking()
    for index, said in enumerate(texts):
        chunk(log, said.encode("utf-8", "replace").decode(), index * later)
    packed = there_and_back(log.events)
    assert len(packed) == 5 + min(1, len(texts))


def test_chunks_of_one_block_share_a_row_and_keep_their_times():
    log = chunk(chunk(Log().asking().chunk("Hel"), "lo", 12), "!", 0)
    row = there_and_back(log.events)[-1]
    assert row[:2] == (6, 3)
    assert row[5] == (
        '{"turn":1,"step":1,"attempt":1,"chunk":{"kind":"text","text":["Hel","lo","!"]},"ms":[12,0]}'
    )


def test_chunks_that_came_at_one_time_keep_no_times():
    row = there_and_back(chunk(Log().asking().chunk("a"), "b", 0).events)[-1]
    assert '"ms"' not in row[5]


@pytest.mark.parametrize(
    "second",
    [
        {"kind": "reasoning"},
        {"kind": "text", "index": 0},
        {"kind": "text", "usage": {"input_tokens": 1}},
        {"kind": "text", "odd": True},
    ],
)
def test_another_block_or_an_extra_word_begins_another_row(second):
    packed = there_and_back(Log().asking().chunk("a").chunk("b", **second).chunk("c").events)
    assert [row[1] for row in packed[-3:]] == [1, 1, 1]


def test_pieces_of_one_calls_arguments_share_a_row():
    log = Log().asking().chunk("{", "tool_call", index=0, id="c1", name="bash")
    log.chunk('"a"', "tool_call", index=0).chunk(":1}", "tool_call", index=0).chunk("{", "tool_call", index=1)
    assert [row[1] for row in there_and_back(log.events)[-3:]] == [1, 2, 1]


def test_a_row_has_a_bound():
    log = Log().asking()
    for _ in range(rows.MAX_RUN + 1):
        log.chunk("x")
    for _ in range(4):
        log.chunk("y" * (rows.MAX_TEXT // 2))
    sizes = [row[1] for row in there_and_back(log.events)]
    assert sizes[5] == rows.MAX_RUN and len(sizes) == 8


def test_texts_that_another_program_escaped_stay_as_they_are():
    text = '{"turn":1,"step":1,"attempt":1,"chunk":{"kind":"text","text":"\\u00e9\\/\\ud83d\\ude00"}}'
    events = [Event.from_text(seq, 5, "assistant/chunk", text) for seq in (1, 2)]
    assert len(there_and_back(events)) == 1


def test_only_rows_that_make_messages_are_on_the_surface():
    packed = pack(Log().whole().events)
    found = [row[2] for row in packed if row[4]]
    assert found == ["user/message", "assistant/message", "step/end", "turn/end"]


GOOD = pack(Log().asking().chunk("a").chunk("b").events)[-1]


@pytest.mark.parametrize(
    "column, value",
    [
        (0, "6"),
        (0, None),
        (1, 0),
        (1, "2"),
        (1, 3),
        (1, None),
        (2, "tool/chunk"),
        (2, 5),
        (3, "x"),
        (5, None),
        (5, b"\0\0\0"),
        (5, ""),
        (5, "\0" * 90),
        (5, GOOD[5][:-5]),
        (5, GOOD[5].replace('"ms":[1]', '"ms":[1,1]')),
        (5, GOOD[5].replace('"kind":"text"', '"kind":"smell"')),
        (5, GOOD[5].replace('"a"', '"\\q"')),
    ],
)
def test_a_damaged_row_says_where_it_is(column, value):
    row = list(GOOD)
    row[column] = value
    with pytest.raises(DamagedRow) as caught:
        unpack(*row[:4], row[5])
    assert caught.value.seq == (6 if column != 0 else 0)


@pytest.mark.parametrize("data", ["", "[]", "null", "{", "\0\0", '{"turn":"one"}'])
def test_a_damaged_row_of_one_event_says_where_it_is(data):
    with pytest.raises(DamagedRow) as caught:
        unpack(3, 1, "turn/start", 5, data)
    assert caught.value.seq == 3


def test_damage_at_random_is_an_error_or_a_log_never_anything_else():
    rng = random.Random(7)
    for row in pack(random_log(rng, turns=5)):
        data = bytearray(row[5].encode())
        for _ in range(3):
            data[rng.randrange(len(data))] = rng.randrange(256)
        try:
            unpack(*row[:4], data.decode("utf-8", "replace"))
        except DamagedRow as exc:
            assert exc.seq == row[0]
