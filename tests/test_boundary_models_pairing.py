"""Calls and results pair up, or the check says where they don't."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syncagent.boundary.models.chat_request import encode_request
from syncagent.boundary.models.pairing import check_pairing
from syncagent.boundary.models.protocol import ModelRequest
from syncagent.errors import ModelError
from syncagent.log import Message
from syncagent.testing.wire import refusal_of


def user(text="go"):
    return Message(id="u", role="user", content=[{"type": "text", "text": text}])


def assistant(*ids):
    calls = [{"type": "tool_call", "id": call_id, "name": "f", "arguments": "{}"} for call_id in ids]
    return Message(id="a", role="assistant", content=[{"type": "text", "text": "x"}] + calls)


def result(call_id, count=1):
    block = {"type": "tool_result", "call_id": call_id, "content": [], "is_error": False}
    return Message(id="t", role="tool", content=[block] * count)


def of(role, *blocks):
    return Message(id="m", role=role, content=list(blocks))


TEXT = {"type": "text", "text": "x"}
CALL = {"type": "tool_call", "id": "x", "name": "f", "arguments": "{}"}
RESULT = {"type": "tool_result", "call_id": "x", "content": [], "is_error": False}


@pytest.mark.parametrize(
    "messages",
    [
        [user()],
        [user(), user(), assistant(), user()],
        [user(), assistant("x"), result("x")],
        [user(), assistant("x", "y"), result("x"), result("y"), user()],
        [user(), assistant("x"), result("x"), assistant("x"), result("x"), assistant()],
    ],
    ids=["a user", "no calls", "one call", "two calls", "an id again in another step"],
)
def test_a_balanced_transcript_passes(messages):
    check_pairing(messages)


@pytest.mark.parametrize(
    "messages, where",
    [
        ([], "message 0 of the request: there is no message"),
        ([assistant()], "message 0 of the request: the first message must be a user's"),
        ([user(), assistant("x")], "message 2 of the request: the transcript ends, and call 'x'"),
        ([user(), assistant("x"), user()], "message 2 of the request: call 'x' has no result"),
        ([user(), assistant("x", "y"), result("x"), assistant()], "message 3 of the request: call 'y'"),
        ([user(), assistant("x", "y"), result("y"), result("x")], "message 2 .* for call 'y', .* is 'x'"),
        ([user(), assistant("x"), result("x"), result("x")], "message 3 .* call 'x', and no call is open"),
        ([user(), result("x")], "message 1 .* no call is open here"),
        ([user(), assistant("x"), result("x"), user(), result("x")], "message 4 .* no call is open"),
        ([user(), assistant("x", "x"), result("x"), result("x")], "message 1 .* two calls"),
        ([user(), assistant(""), result("")], "message 1 .* has no id"),
        ([user(), assistant("x"), result("x", count=2)], "message 2 .* holds tool_result, tool_result"),
        ([user(), assistant("x"), result("x", count=0)], "message 2 .* holds nothing"),
        ([user(), assistant("x"), of("tool", TEXT, RESULT)], "message 2 .* holds text, tool_result"),
        ([of("user", TEXT, RESULT)], "message 0 .* a tool_result block stands in a message of role 'user'"),
        ([of("user", CALL)], "message 0 .* a tool_call block stands in a message of role 'user'"),
        ([user(), of("assistant", {"text": "x"})], "message 1 .* a block whose type is not a string"),
        ([user(), of("assistant", {**CALL, "id": 7})], "message 1 .* whose id is not a string"),
        ([user(), assistant("x"), of("tool", {**RESULT, "content": "done"})], "message 2 .* not a list"),
        ([user(), {"role": "assistant", "content": "hello"}], "message 1 .* is a dict, not a Message"),
        ([user(), of("system", TEXT)], "message 1 .* no message has the role 'system'"),
    ],
)
def test_a_broken_transcript_is_refused_and_the_place_is_named(messages, where):
    with pytest.raises(ModelError, match=where) as caught:
        check_pairing(messages)
    assert caught.value.code == "bad_request"
    assert not caught.value.retryable


BLOCKS = st.sampled_from(
    [
        *(TEXT, CALL, {**CALL, "id": "y"}, {**CALL, "id": ""}, {**CALL, "name": "a.b"}),
        *(RESULT, {**RESULT, "call_id": "y"}, {**RESULT, "content": [TEXT]}),
        *({**RESULT, "content": [{"type": "text"}]}, {"type": "reasoning"}, {}, None),
    ]
)
MESSAGES = st.builds(
    lambda role, blocks: of(role, *blocks),
    st.sampled_from(["user", "assistant", "tool"]),
    st.lists(BLOCKS, max_size=3),
)
GOOD = st.sampled_from(
    [[user()], [assistant()], [assistant("x"), result("x")], [assistant("y", "x"), result("y"), result("x")]]
)


@given(st.lists(st.one_of(GOOD, GOOD, GOOD, MESSAGES.map(lambda message: [message])), max_size=6))
def test_whatever_a_hook_puts_together_is_refused_here_or_accepted_by_a_strict_server(pieces):
    messages = [message for piece in pieces for message in piece]
    try:
        check_pairing(messages)
    except ModelError as exc:
        assert exc.code == "bad_request" and str(exc).startswith("message ")
        return
    body = json.loads(encode_request(ModelRequest(messages=messages), model="m", params={}))
    assert refusal_of(body) is None
