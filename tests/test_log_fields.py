"""Messages, and the texts that they are written as."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from logs import calls, examples, reasoning, text, words

from syncagent.log import Message
from syncagent.log import events as ev
from syncagent.log.fields import DEEPEST, Malformed, brief, decode, encode, is_visible
from syncagent.log.fields import read_fields, write_fields


@pytest.mark.parametrize("said", ["", " ", "\n\t\r", "\u00a0\u2003\u3000", "\x1c"])
def test_white_space_is_not_visible(said):
    assert not is_visible(said)


@pytest.mark.parametrize("said", [".", " x ", "\u200b", "\x00", "日", "\ufeff"])
def test_every_other_character_is_visible(said):
    assert is_visible(said)


def test_a_message_tells_its_text_and_its_calls():
    image = {"type": "image", "url": "x"}
    content = [text("a"), reasoning("hidden"), image, *calls("c2", "c1"), text("b")]
    message = Message.from_dict({**words("a", role="assistant"), "content": content})
    assert message.text == "ab" and message.visible
    assert [call["id"] for call in message.calls] == ["c2", "c1"]
    assert message.content[2] == image


@pytest.mark.parametrize("content, visible", [
    ([], False), ([text(" ")], False), ([{"type": "image", "text": "x"}], False), (calls("c1"), False),
    ([text(" "), reasoning("x")], True), ([text("x")], True),
])
def test_a_message_is_visible_by_text_or_reasoning(content, visible):
    assert Message(id="a", role="assistant", content=content).visible is visible


@pytest.mark.parametrize("more", [
    {}, {"source": "build"}, {"source": None}, {"meta": {"x": [None]}}, {"extra": 1}, {"name": ""},
])
def test_a_message_reads_back_with_all_its_keys(more):
    data = {**words("u"), **more}
    message = Message.from_dict(data)
    assert message.to_dict() == data
    assert message.source == more.get("source")
    assert Message.from_dict(message.to_dict()) == message


def test_odd_content_is_kept():
    odd = [text(""), {"type": "text", "text": "\x00", "cache": {"a": None}}, {"type": "hologram"}]
    for content in ([], odd, odd * 50):
        data = {"id": "", "role": "user", "content": content}
        assert Message.from_dict(data).to_dict() == data


@pytest.mark.parametrize("data", [
    {}, {"id": "u", "role": "user"}, words(None), words("u", None), words("u", role="system"),
    {"id": "u", "role": "user", "content": [None]}, words("u", source=0),
])
def test_what_is_no_message_is_malformed(data):
    with pytest.raises(Malformed):
        Message.from_dict(data)


def test_what_is_wrong_is_told_in_few_words():
    assert brief("x") == "'x'"
    assert len(brief("x" * 10_000)) <= 40
    assert brief("\ud800").encode()
    deep = []
    for _ in range(100_000):
        deep = [deep]
    assert len(brief(deep)) <= 40
    assert len(brief(10**6000)) <= 40

    class Secret:
        def __repr__(self):
            raise RuntimeError

    assert brief(Secret()) == "a Secret"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.text()
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)


@examples()
@given(JSON)
def test_what_can_be_written_reads_back_equal(value):
    assert json.dumps(decode(encode(value))) == json.dumps(value)
    assert decode(json.dumps(value)) == value  # escaped by another writer


@pytest.mark.parametrize("value", [
    math.nan, math.inf, [-math.inf], "\ud800", {"\udfff": 1}, {1, 2}, b"x", object(), {(1,): 2},
], ids=repr)
def test_what_is_no_json_is_not_written(value):
    with pytest.raises((TypeError, ValueError)):
        encode(value)


def test_depth_has_one_limit_for_writing_and_reading():
    def nested(depth):
        return "[" * depth + "]" * depth

    assert encode(decode(nested(DEEPEST))) == nested(DEEPEST)
    wide = [[1]] * (3 * DEEPEST)
    assert decode(encode(wide)) == wide
    deep = json.loads(nested(DEEPEST + 1))
    with pytest.raises(ValueError):
        encode(deep)
    with pytest.raises(ValueError):
        decode(nested(DEEPEST + 1))
    with pytest.raises((ValueError, RecursionError)):
        decode(nested(100_000))


def test_a_circle_is_not_written():
    circle = []
    circle.append(circle)
    with pytest.raises(ValueError):
        encode(circle)


def test_fields_that_equal_their_default_are_left_out_unless_they_are_always_written():
    values = read_fields(ev.CancelRequested, {"cause": "user", "scope": "turn"})
    assert values == {"cause": "user", "scope": "turn", "via": None, "keep_inbox": None, "extra": {}}
    assert write_fields(ev.CancelRequested(**values)) == {"cause": "user", "scope": "turn"}
    place = {"turn": 1, "step": 2}
    assert write_fields(ev.StepEnd(**place)) == place
    assert write_fields(ev.StepEnd(**place, synthetic=True)) == {**place, "synthetic": True}
