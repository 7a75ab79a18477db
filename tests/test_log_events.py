"""The vocabulary: what each event looks like in JSON, and what is no event."""

import copy
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from logs import Log, calls, examples, reasoning, text, valid_logs, words

from syncagent.errors import InvalidLog
from syncagent.log import Event, Message
from syncagent.log import events as ev
from syncagent.log.fields import DEEPEST

#: One event of each type with all its fields, by type.
SAMPLES = {
    item["type"]: item
    for item in (
        Log().put("u-1", message=words("u-1", source="build")).turn().taken("u-1").step().user("u-1")
        .header(tools=[{"name": "bash"}]).chunk(usage={"output_tokens": 1}).retry()
        .says("x", reasoning("y"), *calls("c1"), interrupted=True).asked("c1").decided("c1").call("c1")
        .output("c1").result("c1", "ABORTED").child("started").child("ended", reason={"kind": "aborted"})
        .cancel().settled(boundaries=[{"boundary": "model m-1", "ms": 1.0}]).gap().end_step(synthetic=True)
        .add("turn/end", turn=1, reason={"kind": "error", "error": {"code": "x", "message": "y"}}).dicts
    )
}
#: What may be left out, by type.
OPTIONAL = {
    "cancel/requested": {"via", "keep_inbox", "scope"},
    "cancel/settled": {"ignorable"},
    "assistant/message": {"interrupted"},
    "tool/result": {"error"},
    "subagent/ended": {"mode"},
    "log/gap": {"step", "synthetic"},
    "step/end": {"synthetic"},
}


def exact(value):
    """JSON text in which True is not 1 and 1.0 is not 1."""
    return json.dumps(value, sort_keys=True)


def refused(item):
    with pytest.raises(InvalidLog) as caught:
        Event.from_dict(item)
    assert caught.value.rule == "L1"
    str(caught.value).encode()
    return caught.value


def test_there_is_a_sample_of_every_type():
    assert sorted(SAMPLES) == sorted(ev.VOCABULARY)


@pytest.mark.parametrize("type", SAMPLES)
def test_an_event_reads_back_as_what_it_was(type):
    item = SAMPLES[type]
    event = Event.from_dict(item)
    assert isinstance(event.body, ev.VOCABULARY[type])
    assert exact(event.to_dict()) == exact(item)
    assert (event.seq, event.time, event.type) == (item["seq"], item["time"], type)
    assert exact(event.data) == exact(item["data"])
    assert Event.from_text(event.seq, event.time, type, event.text) == event


@pytest.mark.parametrize(
    "chunk",
    [
        {"kind": kind, "text": said}
        for kind in ("text", "reasoning", "tool_call")
        for said in ("", " ", 'a "quoted" one', "\\ud800", "a\nb\t\0\x1f\x7f", "é€🙂\u2028", "x" * 5000)
    ]
    + [{"text": "x", "kind": "text"}, {"kind": "text", "text": "x", "usage": {"output_tokens": 1}}],
    ids=repr,
)
def test_the_short_way_to_a_chunks_text_gives_what_the_long_one_gives(chunk):
    from syncagent.log import fields

    body = ev.AssistantChunk(turn=1, step=2, attempt=3, chunk=chunk)
    text = Event(seq=1, time=1, body=body).text
    assert text == fields.encode(body.to_dict())
    assert Event.from_text(1, 1, body.type, text).body == body


@pytest.mark.parametrize(
    "wrong",
    [{"chunk": {"kind": "text", "text": "\ud800"}}, {"chunk": {"kind": "audio", "text": ""}}, {"turn": -1},
     {"turn": True}, {"step": 1.0}, {"attempt": 2**63}, {"chunk": {"kind": "text", "text": 1}}],
    ids=repr,
)  # fmt: skip
def test_the_short_way_takes_nothing_that_the_long_one_refuses(wrong):
    right = {"turn": 1, "step": 1, "attempt": 1, "chunk": {"kind": "text", "text": ""}}
    body = ev.AssistantChunk(**{**right, **wrong})
    with pytest.raises(InvalidLog) as caught:
        Event(seq=1, time=1, body=body).text
    assert caught.value.rule == "L1"


@pytest.mark.parametrize("type", SAMPLES)
def test_keys_of_other_builds_survive(type):
    extra = {"extra": {"a": [1, None]}, "name": "n", "type": None, "_text": "t", "self": 1, "ключ": ""}
    item = copy.deepcopy(SAMPLES[type])
    for key, value in extra.items():
        item["data"].setdefault(key, value)
    if "message" in item["data"]:
        item["data"]["message"].update({"extra": 1, "meta": None})
    if "content" in item["data"]:
        item["data"]["content"][0]["cache"] = {"ttl": 5}
    event = Event.from_dict(item)
    assert exact(event.to_dict()) == exact(item)
    assert exact(json.loads(event.text)) == exact(item["data"])


@pytest.mark.parametrize("type", SAMPLES)
def test_what_says_nothing_survives_when_it_is_said(type):
    """`"synthetic": false`, `"error": null` and their like read back as they were written."""
    item = copy.deepcopy(SAMPLES[type])
    said = {"synthetic": False, "interrupted": False, "error": None, "mode": None, "step": None}
    for key in {"synthetic", *OPTIONAL.get(type, ())} & set(said):
        item["data"][key] = said[key]
    assert exact(Event.from_dict(item).to_dict()) == exact(item)
    assert exact(json.loads(Event.from_dict(item).text)) == exact(item["data"])


@pytest.mark.parametrize("type, key", [(type, key) for type in SAMPLES for key in SAMPLES[type]["data"]])
def test_a_field_that_is_missing_is_named(type, key):
    item = copy.deepcopy(SAMPLES[type])
    del item["data"][key]
    if key in OPTIONAL.get(type, ()):
        assert exact(Event.from_dict(item).to_dict()) == exact(item)
    else:
        assert key in refused(item).text


@pytest.mark.parametrize("type, key", [(type, key) for type in SAMPLES for key in SAMPLES[type]["data"]])
def test_a_field_of_another_kind_is_named(type, key):
    """Nothing takes an unprintable number, and what takes a string takes nothing else."""
    for wrong in (10**5000, -1, 1.0, 1.5, object(), {1}, math.nan, ["\ud800"], [[]], nested(2000)):
        item = copy.deepcopy(SAMPLES[type])
        item["data"][key] = wrong
        try:
            Event.from_dict(item).text
        except InvalidLog as exc:
            assert exc.rule == "L1" and exc.seq == item["seq"]
            str(exc).encode()
        else:
            assert (key, wrong) in (("tools", [[]]), ("ms", 1.0), ("ms", 1.5))
    for wrong in (None, True, 0, "", [], {}):
        item = copy.deepcopy(SAMPLES[type])
        item["data"][key] = wrong
        if type_of(wrong) != type_of(SAMPLES[type]["data"][key]) and not excused(type, key, wrong):
            assert key in refused(item).text


def type_of(value):
    return type(value).__name__


def excused(type, key, value):
    """Fields that take values of more than one kind."""
    if (type, key, value) == ("cancel/settled", "ms", 0):
        return True
    return value is None and (key in ("call_id", "error") or (type, key) == ("log/gap", "step")) or (
        type == "subagent/ended" and (key, value) in (("mode", None), ("reason", ""))
    ) or (type.startswith("subagent/") and key == "call_id" and value == "")


def nested(depth):
    value = []
    for _ in range(depth):
        value = [value]
    return value


WRONG_INSIDE = {
    "an unknown target": Log().put("u", target="now"),
    "an unknown outcome": Log().taken("u", outcome="dropped"),
    "an id that is no string": Log().add("inbox/taken", ids=["u", 1], outcome="claimed"),
    "an unknown kind of chunk": Log().asking().chunk(kind="audio"),
    "a chunk without text": Log().asking()._in_step("assistant/chunk", attempt=1, chunk={"kind": "text"}),
    "a chunk with a list as usage": Log().asking().chunk(usage=[]),
    "an unknown effect": Log().acting("c1").call("c1", effect="none"),
    "an unknown decision": Log().acting("c1").decided("c1", "maybe"),
    "an error without a code": Log().acting("c1").result("c1", error={"message": "x"}),
    "an error code that is a number": Log().acting("c1").result("c1", error={"code": 1}),
    "a reason without a kind": Log().turn().add("turn/end", turn=1, reason={}),
    "an unknown reason": Log().turn().end_turn("done"),
    "a reason that is a word": Log().turn().add("turn/end", turn=1, reason="aborted"),
    "a reason with an error that is a word":
        Log().turn().add("turn/end", turn=1, reason={"kind": "error", "error": "x"}),
    "a child's ending without a kind": Log().child("ended", reason={"error": {"code": "x"}}),
    "a child's ending that is a number": Log().child("ended", reason=1),
    "a message without an id": Log().put("u", message={"role": "user", "content": []}),
    "a message without a role": Log().put("u", message={"id": "u", "content": []}),
    "a message without content": Log().put("u", message={"id": "u", "role": "user"}),
    "a message that is a string": Log().put("u", message="hello"),
    "a message of an unknown role": Log().put("u", message=words("u", role="system")),
    "content that is a string": Log().put("u", message={"id": "u", "role": "user", "content": "hello"}),
    "content that is an object": Log().put("u", message={"id": "u", "role": "user", "content": text("x")}),
    "a block that is a string": Log().put("u", message={"id": "u", "role": "user", "content": ["x"]}),
    "a block without a type": Log().put("u", message={"id": "u", "role": "user", "content": [{"text": "x"}]}),
    "a block whose type is null": Log().asking().says({"type": None}),
    "a text block without text": Log().asking().says({"type": "text"}),
    "a text block whose text is null": Log().asking().says({"type": "text", "text": None}),
    "a reasoning block whose text is a list": Log().asking().says({"type": "reasoning", "text": []}),
    "a call without an id": Log().asking().says({"type": "tool_call", "name": "x", "arguments": ""}),
    "a call without arguments": Log().asking().says({"type": "tool_call", "id": "c", "name": "x"}),
    "a call whose arguments are parsed": Log().asking().says(*calls("c1", arguments={"command": "ls"})),
    "a source that is a number": Log().put("u", message=words("u", source=1)),
    "a result whose content is null": Log().acting("c1").result("c1", content=None),
}


@pytest.mark.parametrize("name", WRONG_INSIDE)
def test_what_is_wrong_deep_inside_is_no_event(name):
    refused(WRONG_INSIDE[name].dicts[-1])


@pytest.mark.parametrize("item", [
    None, 1, "x", [], {}, {"seq": 1}, {"seq": "1", "time": 1, "type": "turn/start", "data": {"turn": 1}},
    {"seq": True, "time": 1, "type": "turn/start", "data": {"turn": 1}},
    {"seq": 1, "time": 1.0, "type": "turn/start", "data": {"turn": 1}},
    {"seq": 1, "time": None, "type": "turn/start", "data": {"turn": 1}},
    {"seq": 1, "time": 1, "type": None, "data": {"turn": 1}},
    {"seq": 1, "time": 1, "type": ["turn/start"], "data": {"turn": 1}},
    {"seq": 1, "time": 1, "type": "turn/start", "data": None},
    {"seq": 1, "time": 1, "type": "turn/start", "data": '{"turn":1}'},
    {"seq": 10**5000, "time": {}, "type": "turn/start", "data": {}},
])
def test_what_is_no_event_at_all(item):
    refused(item)


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
    | st.sampled_from([2**64, "\ud83d", "text", "tool_call", "user", "interrupted", "claimed", b"x"]),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.sampled_from(["type", "text", "id", "kind", "code", "role"]), inner, max_size=4),
    max_leaves=8,
)


def survives(item):
    """Reading an event ends in an event that keeps what it read, or in L1: never in another exception."""
    try:
        event = Event.from_dict(item)
        written = event.text
    except InvalidLog as exc:
        assert exc.rule == "L1"
        str(exc).encode()
        return
    assert exact(event.to_dict()) == exact({key: item[key] for key in ("seq", "time", "type", "data")})
    assert exact(Event.from_text(event.seq, event.time, event.type, written).data) == exact(item["data"])


@examples(150)
@given(st.data())
def test_no_value_in_any_field_is_more_than_refused(data):
    item = copy.deepcopy(SAMPLES[data.draw(st.sampled_from(sorted(SAMPLES)))])
    for _ in range(data.draw(st.integers(1, 2))):
        key = data.draw(st.sampled_from([*item["data"], "synthetic", "interrupted", "error", "usage", "new"]))
        item["data"][key] = data.draw(ANY)
    survives(item)


@examples()
@given(st.data())
def test_no_data_of_any_type_is_more_than_refused(data):
    type = data.draw(st.sampled_from([*sorted(SAMPLES), "weather/changed", ""]) | st.text(max_size=3))
    survives({"seq": 1, "time": 1, "type": type, "data": data.draw(ANY)})
    survives({"seq": data.draw(ANY), "time": data.draw(ANY), "type": type, "data": {"turn": 1}})


@examples()
@given(st.text() | ANY.map(lambda value: json.dumps(value, default=str)), st.sampled_from(sorted(SAMPLES)))
def test_no_text_is_more_than_refused(written, type):
    try:
        event = Event.from_text(3, 4, type, written)
    except InvalidLog as exc:
        assert (exc.rule, exc.seq) == ("L1", 3)
    else:
        assert event.text == written
        event.to_dict()


@pytest.mark.parametrize("written", [
    "", "{", "null", "[]", "1", '{"x": NaN}', '{"x": Infinity}', '{"x": -Infinity}', '{"x": 1e999}',
    '{"x": "\\ud83d"}', '{"x": "\\uDE00"}', '{"\\udfff": 1}', "[" * 100_000,
    '{"x": ' + "[" * DEEPEST + "1" + "]" * DEEPEST + "}", '{"x": 1} 2', "{'x': 1}", "\ufeff{}",
])
def test_a_row_whose_text_is_no_json_of_ours_is_refused(written):
    with pytest.raises(InvalidLog) as caught:
        Event.from_text(7, 8, "weather/changed", written)
    assert (caught.value.rule, caught.value.seq) == ("L1", 7)


@pytest.mark.parametrize("written", [
    '{"x": "\\ud83d\\ude42"}', '{"x": "\\\\ud83d"}', '{"x": -0.0, "y": 1e300}', '{ "x" :\n1 }',
    '{"x": ' + "[" * (DEEPEST - 1) + "]" * (DEEPEST - 1) + "}", '{"x": [' + "[]," * 500 + "1]}",
])
def test_a_row_keeps_its_text_as_it_is(written):
    event = Event.from_text(1, 2, "weather/changed", written)
    assert event.text is written
    assert exact(event.data) == exact(json.loads(written))


@examples(50)
@given(valid_logs())
def test_a_log_reads_back_from_its_rows_and_from_its_lines(events):
    rows = [(event.seq, event.time, event.type, event.text) for event in events]
    assert [Event.from_text(*row) for row in rows] == events
    written = [json.dumps(event.to_dict()) for event in events]
    again = [Event.from_dict(json.loads(line)) for line in written]
    assert again == events
    assert [event.text for event in again] == [event.text for event in events]
    assert [json.dumps(event.to_dict()) for event in again] == written


def test_text_is_made_once_and_is_compact_utf_8():
    event = Event.from_dict(Log().put("u", "日本\x00\u202e").dicts[0])
    assert event.text is event.text
    assert "日本" in event.text and "\\u0000" in event.text and ": " not in event.text


def test_the_record_of_a_stop_always_says_where_it_came_from():
    assert ev.CancelRequested(cause="user").to_dict() == {
        "cause": "user", "via": "api", "keep_inbox": False, "scope": "tree"
    }


def test_a_childs_ending_that_nobody_knows_can_be_read():
    for reason in ("completed", "evaporated", {"kind": "evaporated", "more": 1}):
        body = Event.from_dict(Log().child("ended", reason=reason).dicts[0]).body
        assert body.reason == reason


def test_a_type_that_this_build_does_not_know_is_kept_as_it_is():
    item = Log().unknown("weather/changed", synthetic=None, turn="x").dicts[0]
    event = Event.from_dict(item)
    assert event.type == "weather/changed" and event.body.ignorable and not event.body.synthetic
    assert exact(event.to_dict()) == exact(item)
    assert Event.from_dict(Log().unknown(synthetic=True).dicts[0]).body.synthetic
    for said in (False, 1, "true", None):
        assert not Event.from_dict(Log().unknown(ignorable=said).dicts[0]).body.ignorable


def test_events_are_equal_by_what_they_say():
    one, other = Log().turn().events[0], Log().turn().events[0]
    one.text
    assert one == other and one != Log().turn(odd=1).events[0]


def test_a_body_made_by_hand_reads_back_as_it_is():
    body = ev.ToolResult(
        turn=1, step=1, call_id="c", content=[text("x")], is_error=True, error={"code": "TIMEOUT"}
    )
    assert body.code == "TIMEOUT"
    event = Event(seq=1, time=2, body=body)
    assert Event.from_dict(json.loads(json.dumps(event.to_dict()))) == event
    plain = ev.ToolResult(turn=1, step=1, call_id="c", content=[], is_error=False)
    assert plain.code is None and "error" not in plain.to_dict()
    message = Message(id="u", role="user", content=[text("x")])
    assert ev.InboxPut(target="next_turn", message=message, wake=True).to_dict()["message"] == words("u", "x")
