"""The model without a network."""

import itertools
import threading

import pytest

from syncagent.boundary.models.assemble import Assembly
from syncagent.boundary.models.protocol import Chunk, ModelRequest
from syncagent.cancel import CancellationToken, Cancelled
from syncagent.errors import ModelError
from syncagent.log import Message
from syncagent.testing import (
    ScriptedModel,
    call,
    cut,
    delay,
    error,
    finish,
    hold,
    raw,
    reasoning,
    stall,
    status,
    text,
    usage,
)


def asking(words="go"):
    return ModelRequest(
        messages=[Message(id="u", role="user", content=[{"type": "text", "text": words}])]
    )


def answer(model, token=None, request=None):
    assembly = Assembly()
    for chunk in model.stream(request or asking(), token=token or CancellationToken()):
        assembly.add(chunk)
    return assembly


def test_each_request_gets_the_next_entry_of_the_script():
    model = ScriptedModel(["one", ["t", "wo"], text("th", "ree")])
    assert [answer(model).text for _ in range(3)] == ["one", "two", "three"]
    with pytest.raises(ModelError) as caught:
        answer(model)
    assert caught.value.code == "script_ended"
    assert len(model.requests) == 4


def test_text_reasoning_calls_and_usage_come_as_written():
    model = ScriptedModel(
        [[reasoning("h", "m"), "Look.", call("bash", {"command": "ls"}), call("f", id="x"), usage(7, 3)]]
    )
    assembly = answer(model)
    assert assembly.blocks() == [
        {"type": "reasoning", "text": "hm"},
        {"type": "text", "text": "Look."},
        {"type": "tool_call", "id": "call_1", "name": "bash", "arguments": '{"command": "ls"}'},
        {"type": "tool_call", "id": "x", "name": "f", "arguments": "{}"},
    ]
    assert assembly.usage == {"input_tokens": 7, "output_tokens": 3}
    assert assembly.finish == "tool_calls"


def test_an_answer_finishes_as_a_providers_would_unless_it_says_how():
    model = ScriptedModel(["a", [call("f")], ["a", finish("max_tokens")], ["a", finish(None)], []])
    finishes = [answer(model).finish for _ in range(5)]
    assert finishes == ["stop", "tool_calls", "max_tokens", None, "stop"]


def test_a_providers_own_word_means_what_a_client_makes_of_it():
    model = ScriptedModel([["a", finish("length")], [call("f"), finish("stop")], ["a", finish("abort")]])
    assert [answer(model).finish for _ in range(2)] == ["max_tokens", "tool_calls"]
    with pytest.raises(ModelError) as caught:
        answer(model)
    assert caught.value.code == "provider_aborted"


def test_chunks_and_raw_arguments_are_passed_on():
    model = ScriptedModel([[Chunk(kind="tool_call", index=3, id="", text="{"), call("f", "{bad", id="")]])
    found = [(block["id"], block["arguments"]) for block in answer(model).blocks()]
    assert found == [("call_1", "{"), ("call_2", "{bad")]


def test_an_entry_may_be_a_function_of_the_request_and_the_script_endless():
    model = ScriptedModel(itertools.repeat(lambda request: request.messages[-1].text.upper()))
    assert [answer(model, request=asking(words)).text for words in ("a", "b")] == ["A", "B"]


def test_a_script_that_is_no_list_of_entries_is_refused():
    with pytest.raises(TypeError):
        ScriptedModel("hello")


def test_an_exception_in_the_script_is_raised_after_what_came_before():
    model = ScriptedModel([["a", KeyError("b")]])
    stream = model.stream(asking(), token=CancellationToken())
    assert next(stream).text == "a"
    with pytest.raises(KeyError):
        next(stream)


@pytest.mark.parametrize(
    "item, code, retryable, wait",
    [
        (status(429, headers={"Retry-After": "2"}), "rate_limit", True, 2.0),
        (status(401), "authentication", False, None),
        (status(500, body="<html>"), "server_error", True, None),
        (error("later", type="overloaded_error"), "overloaded", True, None),
        (cut(), "connection", True, None),
    ],
    ids=["429", "401", "500", "error in the stream", "cut"],
)
def test_failures_are_what_a_client_would_make_of_them(item, code, retryable, wait):
    with pytest.raises(ModelError) as caught:
        answer(ScriptedModel([["a", item]]))
    assert (caught.value.code, caught.value.retryable, caught.value.retry_after) == (code, retryable, wait)


def test_bytes_are_refused_because_there_is_no_wire():
    with pytest.raises(TypeError, match="ModelServer"):
        answer(ScriptedModel([raw(b"x")]))


def test_a_transcript_that_does_not_pair_up_is_refused_unless_told():
    block = {"type": "tool_call", "id": "x", "name": "f", "arguments": "{}"}
    request = ModelRequest(messages=[*asking().messages, Message(id="a", role="assistant", content=[block])])
    with pytest.raises(ModelError) as caught:
        answer(ScriptedModel(["a"]), request=request)
    assert caught.value.code == "bad_request"
    assert answer(ScriptedModel(["a"], strict=False), request=request).text == "a"


def test_a_cancelled_token_asks_for_nothing():
    model = ScriptedModel(["a"])
    with CancellationToken() as token:
        token.cancel()
        with pytest.raises(Cancelled):
            answer(model, token)
    assert model.requests == []


def test_a_cancel_between_two_chunks_is_seen_at_the_next():
    model = ScriptedModel([["a", "b"]])
    with CancellationToken() as token:
        stream = model.stream(asking(), token=token)
        next(stream)
        token.cancel()
        with pytest.raises(Cancelled):
            next(stream)


def test_a_cancel_after_the_last_chunk_is_seen_at_the_end():
    with CancellationToken() as token:
        stream = ScriptedModel(["a"]).stream(asking(), token=token)
        next(stream)
        assert next(stream).finish == "stop"
        token.cancel()
        with pytest.raises(Cancelled):
            next(stream)


@pytest.mark.concurrent
@pytest.mark.parametrize("item", [stall(), delay(1000), hold("p")], ids=["stall", "delay", "hold"])
def test_a_cancel_ends_every_wait_of_the_script(item):
    model = ScriptedModel([["a", item, "b"]])
    with CancellationToken() as token:
        seen = []

        def read():
            try:
                for chunk in model.stream(asking(), token=token):
                    seen.append(chunk.text)
                    reading.set()
            except Cancelled as exc:
                seen.append(exc.token)

        reading = threading.Event()
        thread = threading.Thread(target=read)
        thread.start()
        assert reading.wait(10)
        token.cancel()
        thread.join(10)
        assert seen == ["a", token]


@pytest.mark.concurrent
def test_hold_stops_the_stream_until_its_point_is_released():
    model = ScriptedModel([["a", hold("p"), "b"], [hold("p"), "c"]])
    seen = []
    thread = threading.Thread(target=lambda: seen.append(answer(model).text))
    thread.start()
    assert model.point("p").reached.wait(10)
    assert seen == []
    model.point("p").release()
    thread.join(10)
    assert seen == ["ab"]
    assert answer(model).text == "c"  # a point that was released once stops nobody


def test_a_stall_on_a_token_that_nobody_can_cancel_is_an_error():
    token = CancellationToken()
    token.close()
    with pytest.raises(ModelError):
        answer(ScriptedModel([stall()]), token)


def test_it_says_what_the_runtime_reads_of_a_model():
    model = ScriptedModel([], name="m", params={"temperature": 0}, max_retries=2, retry_after_output=True)
    assert (model.name, model.provider, model.params) == ("m", "scripted", {"temperature": 0})
    assert (model.max_retries, model.retry_after_output) == (2, True)
    assert "'m'" in repr(model)
