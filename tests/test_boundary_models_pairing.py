"""Calls and results pair up, or the check says where they don't."""

import pytest

from syncagent.boundary.models.pairing import check_pairing
from syncagent.errors import ModelError
from syncagent.log import Message


def user(text="go"):
    return Message(id="u", role="user", content=[{"type": "text", "text": text}])


def assistant(*ids):
    calls = [{"type": "tool_call", "id": call_id, "name": "f", "arguments": "{}"} for call_id in ids]
    return Message(id="a", role="assistant", content=[{"type": "text", "text": "x"}] + calls)


def result(call_id, count=1):
    block = {"type": "tool_result", "call_id": call_id, "content": [], "is_error": False}
    return Message(id="t", role="tool", content=[block] * count)


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
        ([user(), assistant("x"), result("x", count=2)], "message 2 .* holds 2"),
        ([user(), assistant("x"), result("x", count=0)], "message 2 .* holds 0"),
    ],
)
def test_a_broken_transcript_is_refused_and_the_place_is_named(messages, where):
    with pytest.raises(ModelError, match=where) as caught:
        check_pairing(messages)
    assert caught.value.code == "bad_request"
    assert not caught.value.retryable
