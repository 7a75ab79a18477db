"""A neutral request on the wire of Chat Completions."""

import json

import pytest

from syncagent.boundary.models.chat_request import encode_request
from syncagent.boundary.models.protocol import ModelRequest
from syncagent.errors import ModelError
from syncagent.log import Message
from syncagent.testing.wire import refusal_of


def text(value):
    return {"type": "text", "text": value}


def call(call_id, arguments="{}", name="f"):
    return {"type": "tool_call", "id": call_id, "name": name, "arguments": arguments}


def user(*content):
    return Message(id="u", role="user", content=list(content) or [text("go")])


def assistant(*content):
    return Message(id="a", role="assistant", content=list(content))


def result(call_id, *content):
    block = {"type": "tool_result", "call_id": call_id, "content": list(content), "is_error": False}
    return Message(id="t", role="tool", content=[block])


def encoded(*messages, params=None, **more):
    request = ModelRequest(messages=list(messages) or [user()], **more)
    body = json.loads(encode_request(request, model="m", params=params or {}))
    assert refusal_of(body) is None
    return body


def test_a_request_streams_and_asks_for_usage():
    assert encoded() == {
        "model": "m",
        "messages": [{"role": "user", "content": "go"}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_the_system_prompt_comes_first():
    assert encoded(system="Be brief.")["messages"][0] == {"role": "system", "content": "Be brief."}


def test_tools_are_functions():
    spec = {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {}}}
    assert encoded(tools=[spec])["tools"] == [{"type": "function", "function": spec}]


def test_parameters_go_beside_and_the_requests_own_come_last():
    body = encoded(params={"temperature": 1, "top_p": 0.5}, **{"system": ""})
    assert (body["temperature"], body["top_p"]) == (1, 0.5)
    request = ModelRequest(messages=[user()], params={"temperature": 0})
    assert json.loads(encode_request(request, model="m", params={"temperature": 1}))["temperature"] == 0


def test_a_parameter_that_is_none_is_left_out():
    assert "stream_options" not in encoded(params={"stream_options": None})


@pytest.mark.parametrize("name", ["messages", "model", "stream", "tools"])
def test_a_parameter_may_not_take_the_place_of_a_part(name):
    with pytest.raises(ModelError, match=name) as caught:
        encoded(params={name: 1})
    assert caught.value.code == "bad_request"


@pytest.mark.parametrize("value", [float("nan"), object(), {1, 2}])
def test_a_parameter_that_is_no_json_is_refused(value):
    with pytest.raises(ModelError, match="no JSON") as caught:
        encoded(params={"x": value})
    assert caught.value.code == "bad_request"


def test_calls_and_results_go_back_with_text_instead_of_null():
    body = encoded(user(), assistant(call("x"), call("y")), result("x", text("1")), result("y"), user())
    assert body["messages"][1:4] == [
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {"id": "x", "type": "function", "function": {"name": "f", "arguments": "{}"}},
                {"id": "y", "type": "function", "function": {"name": "f", "arguments": "{}"}},
            ],
        },
        {"role": "tool", "tool_call_id": "x", "content": "1"},
        {"role": "tool", "tool_call_id": "y", "content": ""},
    ]


def test_blocks_of_text_are_joined_and_reasoning_is_not_sent_back():
    hidden = {"type": "reasoning", "text": "hm"}
    body = encoded(user(text("a"), text("b")), assistant(text("c"), hidden, text("d")), assistant(hidden))
    assert body["messages"] == [{"role": "user", "content": "ab"}, {"role": "assistant", "content": "cd"}]


def test_a_block_that_the_wire_has_no_form_for_is_refused():
    with pytest.raises(ModelError, match="'image'") as caught:
        encoded(user({"type": "image", "data": ""}))
    assert caught.value.code == "bad_request"


@pytest.mark.parametrize("raw", ["", "  ", "\n", "{}"])
def test_no_arguments_go_back_as_an_empty_object(raw):
    body = encoded(user(), assistant(call("x", raw)), result("x"))
    assert body["messages"][1]["tool_calls"][0]["function"]["arguments"] == "{}"


@pytest.mark.parametrize(
    "raw",
    ['{"city": "San Fra', "[1]", '"x"', "NaN", '{"a": NaN}', '{"a":1}{"b":2}', '{"a":' * 100_000, "null"],
    ids=lambda raw: raw[:12],
)
def test_arguments_that_are_no_object_go_back_inside_one(raw):
    body = encoded(user(), assistant(call("x", raw)), result("x"))
    sent = body["messages"][1]["tool_calls"][0]["function"]["arguments"]
    assert json.loads(sent) == {"invalid_arguments": raw}


def test_arguments_that_are_an_object_go_back_to_the_letter():
    raw = ' { "a" : 1.50, "n": ' + "9" * 10_000 + ' , "a":2 } '
    request = ModelRequest(messages=[user(), assistant(call("x", raw)), result("x")])
    body = json.loads(encode_request(request, model="m", params={}))
    assert body["messages"][1]["tool_calls"][0]["function"]["arguments"] == raw


def test_an_id_that_was_used_before_gets_a_number_that_never_changes():
    step = [assistant(call("X")), result("X")]
    messages = [user(), *step, user(), *step, *step, assistant(call("X_2")), result("X_2")]
    ids = [
        message["tool_calls"][0]["id"]
        for message in encoded(*messages)["messages"]
        if message["role"] == "assistant"
    ]
    assert ids == ["X", "X_2", "X_3", "X_2_2"]
    shorter = encoded(*messages[:6])["messages"]
    assert [message.get("tool_call_id") for message in shorter if message["role"] == "tool"] == ["X", "X_2"]


def test_lone_surrogates_are_replaced_and_pairs_joined():
    body = encoded(user(text("a\ud83db \ud83d\ude00 c\udcff")), system="\udc80")
    assert body["messages"][1]["content"] == "a\ufffdb \U0001f600 c\ufffd"
    assert body["messages"][0]["content"] == "\ufffd"


@pytest.mark.parametrize("made_up, sent", [("", "unnamed"), ("a.read", "a_read"), ("é" * 99, "_" * 64)])
def test_a_name_that_providers_refuse_spoils_no_later_request(made_up, sent):
    body = encoded(user(), assistant(call("x", name=made_up)), result("x"))
    assert body["messages"][1]["tool_calls"][0]["function"]["name"] == sent
