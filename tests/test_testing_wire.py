"""The wire of the scripted server: what it says, and what a strict provider refuses."""

import json

import pytest

from syncagent.boundary.models.protocol import Chunk
from syncagent.testing.wire import delta_of, event, refusal_of, usage_of

USER = {"role": "user", "content": "go"}


def body(*messages, **more):
    return {"model": "m", "stream": True, "messages": list(messages) or [USER], **more}


def test_an_event_is_one_line_of_data():
    assert event({"a": "b\nc"}) == b'data: {"a": "b\\nc"}\n\n'
    assert json.loads(event("é")[6:]) == "é"


@pytest.mark.parametrize(
    "chunk, delta",
    [
        (Chunk(text="a"), {"content": "a"}),
        (Chunk(kind="reasoning", text="a"), {"reasoning_content": "a"}),
        (Chunk(kind="tool_call", text="{"), {"tool_calls": [{"function": {"arguments": "{"}}]}),
        (Chunk(kind="tool_call", index=1, id="", name="f"), {
            "tool_calls": [
                {"index": 1, "id": "", "type": "function", "function": {"name": "f", "arguments": ""}}
            ]
        }),
    ],
)
def test_a_delta_says_what_the_chunk_says(chunk, delta):
    assert delta_of(chunk) == delta


def test_counts_have_the_names_of_the_wire():
    assert usage_of({"input_tokens": 1, "output_tokens": 2, "cached_tokens": 3, "reasoning_tokens": 4}) == {
        "prompt_tokens": 1,
        "completion_tokens": 2,
        "total_tokens": 3,
        "prompt_tokens_details": {"cached_tokens": 3},
        "completion_tokens_details": {"reasoning_tokens": 4},
    }


CALL = {"id": "x", "type": "function", "function": {"name": "f", "arguments": "{}"}}
ASKING = {"role": "assistant", "content": "", "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "x", "content": "1"}


def changed(**more):
    return {**ASKING, "tool_calls": [{**CALL, **more}]}


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "system", "content": "s"}, USER, ASKING, RESULT, USER],
        [USER, USER, {"role": "assistant", "content": "a"}, USER],
    ],
    ids=["calls", "no calls"],
)
def test_a_strict_provider_takes_a_balanced_transcript(messages):
    assert refusal_of(body(*messages)) is None


@pytest.mark.parametrize(
    "value, why",
    [
        ([], "no JSON object"),
        (None, "no JSON object"),
        (body(stream=False), "only streams"),
        (body(model=""), "model"),
        ({**body(), "messages": []}, "messages"),
        (body({"role": "user", "content": "\ud800"}), "surrogate"),
        (body(tools=[]), "empty list"),
        (body(tools=[{"type": "function", "function": {}}]), "no function with a name"),
        (body(tools=[{"type": "function", "function": {"name": "f"}}] * 2), "same name"),
        (body("text"), "no object"),
        (body({"role": "assistant", "content": "a"}, USER), "first message"),
        (body({"role": "robot", "content": "a"}), "first message"),
        (body(USER, {"role": "robot", "content": "a"}), "role"),
        (body({"role": "user", "content": None}), "content"),
        (body(USER, {**ASKING, "content": None}, RESULT), "content"),
        (body(USER, ASKING), "no result for"),
        (body(USER, ASKING, USER), "no result for"),
        (body(USER, RESULT), "multiple or misplaced"),
        (body(USER, ASKING, RESULT, RESULT), "multiple or misplaced"),
        (body(USER, ASKING, {**RESULT, "tool_call_id": "y"}), "expected 'x'"),
        (body(USER, ASKING, RESULT, ASKING, RESULT), "used before"),
        (body(USER, changed(id=""), RESULT), "empty"),
        (body(USER, changed(type="custom"), RESULT), "no function"),
        (body(USER, changed(function={"name": "f", "arguments": ""}), RESULT), "no JSON object"),
        (body(USER, changed(function={"name": "f", "arguments": "[1]"}), RESULT), "no JSON object"),
        (body({**USER, "tool_calls": [CALL]}), "no assistant"),
    ],
)
def test_a_strict_provider_refuses(value, why):
    assert why in refusal_of(value)
