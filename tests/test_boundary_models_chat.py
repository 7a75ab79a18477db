"""ChatModel against a real server on the loopback interface."""

import logging
import socket
import threading
import traceback

import pytest

import http_servers as servers
from syncagent.boundary.models.assemble import Assembly
from syncagent.boundary.models.chat import ChatModel
from syncagent.boundary.models.protocol import Chunk, ModelRequest
from syncagent.cancel import CancellationToken, Cancelled
from syncagent.errors import ModelError
from syncagent.log import Message
from syncagent.testing import (
    ModelServer,
    call,
    cut,
    data,
    delay,
    error,
    finish,
    headers,
    hold,
    raw,
    reasoning,
    stall,
    status,
    usage,
)

pytestmark = pytest.mark.concurrent

KEY = "sk-not-for-anybodys-eyes"


def asking(*more):
    user = Message(id="u", role="user", content=[{"type": "text", "text": "go"}])
    return ModelRequest(messages=[user, *more])


def connect(server, **more):
    options = {"base_url": server.url, "api_key": KEY, "connect_timeout": 20.0, "idle_timeout": 20.0}
    return ChatModel("m", **{**options, **more})


def assembled(model, request=None, token=None):
    assembly = Assembly()
    with CancellationToken() as own:
        for chunk in model.stream(request or asking(), token=token or own):
            assembly.add(chunk)
    return assembly


@pytest.fixture
def token():
    with CancellationToken() as token:
        yield token


def answered(*entry, **more):
    """What the model makes of one scripted answer."""
    with ModelServer([list(entry)], **more) as server, connect(server) as model:
        return assembled(model)


def failing(*entry, **more):
    """The failure that it makes of one, and the text that came before."""
    seen = []
    with ModelServer([list(entry)]) as server, connect(server, **more) as model:
        with pytest.raises(ModelError) as caught, CancellationToken() as token:
            for chunk in model.stream(asking(), token=token):
                seen.append(chunk.text)
    return caught.value, "".join(seen)


def calls(assembly):
    return [(block["id"], block["name"], block["arguments"]) for block in assembly.blocks() if "id" in block]


def part(text="", **more):
    return Chunk(kind="tool_call", text=text, **more)


# -- an answer ------------------------------------------------------------------------------------


def test_an_answer_comes_as_chunks_and_the_last_says_how_it_finished(token):
    script = [[reasoning("hm"), "Hel", "lo", call("f", {"a": 1}), usage(9, 4, cached_tokens=5)]]
    with ModelServer(script) as server:
        with connect(server) as model:
            found = list(model.stream(asking(), token=token))
    assert [(chunk.kind, chunk.text) for chunk in found] == [
        ("reasoning", "hm"),
        ("text", "Hel"),
        ("text", "lo"),
        ("tool_call", ""),
        ("tool_call", '{"a": 1}'),
        ("text", ""),
        ("text", ""),
    ]
    assert [chunk.finish for chunk in found] == [None] * 6 + ["tool_calls"]
    assert found[5].usage == {"input_tokens": 9, "output_tokens": 4, "cached_tokens": 5}


def test_the_request_has_key_parameters_and_headers_of_our_own():
    with ModelServer(["a"]) as server:
        options = {"params": {"temperature": 0}, "headers": {"User-Agent": "mine", "X-Org": "o"}}
        with connect(server, **options) as model:
            assembled(model)
        request = server.requests[0]
    assert request.headers["Authorization"] == f"Bearer {KEY}"
    assert request.headers["User-Agent"] == "mine"
    assert request.headers["X-Org"] == "o"
    assert request.body["temperature"] == 0
    assert request.body["stream_options"] == {"include_usage": True}


def test_without_a_key_no_authorization_is_sent():
    with ModelServer(["a"]) as server, connect(server, api_key=None) as model:
        assembled(model)
        assert "Authorization" not in server.requests[0].headers


def test_the_base_url_may_have_a_slash_a_query_or_the_whole_address():
    with ModelServer(["a"] * 3) as server:
        for more in ("/", "?v=1", "/chat/completions"):
            with connect(server, base_url=server.url + more) as model:
                assembled(model)
        paths = [request.path for request in server.requests]
    assert paths == ["/v1/chat/completions", "/v1/chat/completions?v=1", "/v1/chat/completions"]


def test_a_transcript_that_does_not_pair_up_is_refused_before_anything_is_sent():
    block = {"type": "tool_call", "id": "x", "name": "f", "arguments": "{}"}
    with ModelServer(["a"]) as server, connect(server) as model:
        with pytest.raises(ModelError, match="no result") as caught:
            assembled(model, asking(Message(id="a", role="assistant", content=[block])))
        assert caught.value.code == "bad_request"
        assert server.requests == []


def test_an_empty_answer_is_whole_if_it_says_so():
    assembly = answered()
    assert (assembly.blocks(), assembly.finish) == ([], "stop")


@pytest.mark.parametrize("chunked", [True, False], ids=["chunked", "ends with its connection"])
def test_the_first_delta_is_there_before_the_second_is_sent(chunked, token):
    with ModelServer([["one", hold("p"), "two"]], chunked=chunked) as server, connect(server) as model:
        stream = model.stream(asking(), token=token)
        assert next(stream).text == "one"
        assert server.point("p").reached.wait(10)
        server.point("p").release()
        assert next(stream).text == "two"
        assert next(stream).finish == "stop"
        assert next(stream, None) is None


def test_an_answer_that_is_not_streamed_is_read_all_the_same():
    message = {"role": "assistant", "content": "Hello", "tool_calls": None}
    body = {
        "object": "chat.completion",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 2},
    }
    assembly = answered(status(200, body=body))
    assert (assembly.text, assembly.finish) == ("Hello", "stop")
    assert assembly.usage == {"input_tokens": 1, "output_tokens": 2}


def test_a_stream_that_is_called_json_and_begins_with_blank_lines_is_read_as_a_stream():
    body = b'\n\r\ndata: {"choices": [{"delta": {"content": "a"}, "finish_reason": "stop"}]}\n\n'
    assert answered(headers(content_type="application/json"), raw(body)).text == "a"


def test_an_answer_that_has_ended_leaves_its_connection_to_the_next_request():
    body = b'data: {"choices": [{"delta": {"content": "a"}, "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n'
    answer = servers.CHUNKED + servers.chunk(body)

    def script(peer):
        for number in range(3):
            peer.request()
            peer.send(answer)
            peer.send(b"0\r\n\r\n")  # in a packet of its own

    with servers.Server(script) as server, connect(server) as model:
        assert [assembled(model).text for _ in range(3)] == ["a"] * 3
        assert server.connections == 1


@pytest.mark.parametrize("end", [stall(), cut()], ids=["silence", "cut"])
def test_after_done_nothing_more_is_needed(end):
    with ModelServer([["Hello", last_of("stop"), raw(b"data: [DONE]\n\n"), end]]) as server:
        with connect(server, idle_timeout=None) as model:
            assert (assembled(model).text, server.requests[0].done.wait(10)) == ("Hello", True)


def last_of(reason):
    return data({"choices": [{"delta": {}, "finish_reason": reason}]})


# -- tool calls -----------------------------------------------------------------------------------


def test_two_entries_with_the_same_index_in_the_first_chunk_are_one_call():
    entries = [
        {"index": 0, "id": "x", "type": "function", "function": {"name": "f"}},
        {"index": 0, "function": {"arguments": ' {"'}},
    ]
    first = data({"choices": [{"index": 0, "delta": {"tool_calls": entries}}]})
    assert calls(answered(first, part('a": 1}', index=0))) == [("x", "f", ' {"a": 1}')]


def test_interleaved_calls_whose_id_comes_only_once():
    heads = [part(index=0, id="x", name="f"), part(index=1, id="y", name="g")]
    rest = [part(letters, index=index) for letters in ('{"a"', ": 1", "}") for index in (0, 1)]
    assert calls(answered(*heads, *rest)) == [("x", "f", '{"a": 1}'), ("y", "g", '{"a": 1}')]


@pytest.mark.parametrize("raw_text", ["", "  ", None, "{}", "absent"])
def test_arguments_that_are_empty_blank_null_or_absent_go_back_as_an_empty_object(raw_text):
    function = {"name": "f"} if raw_text == "absent" else {"name": "f", "arguments": raw_text}
    entry = {"index": 0, "id": "x", "type": "function", "function": function}
    script = [[data({"choices": [{"delta": {"tool_calls": [entry]}}]}), finish("tool_calls")], "done"]
    with ModelServer(script) as server, connect(server) as model:
        blocks = assembled(model).blocks()
        assert assembled(model, with_results(blocks)).text == "done"
        sent = server.requests[1].body["messages"][1]["tool_calls"][0]["function"]
    assert sent == {"name": "f", "arguments": "{}"}


def with_results(blocks):
    """The request after a step whose calls have all been answered."""
    results = [
        {"type": "tool_result", "call_id": block["id"], "content": [], "is_error": False}
        for block in blocks
        if block["type"] == "tool_call"
    ]
    answer = Message(id="a", role="assistant", content=blocks)
    return asking(answer, *[Message(id="t", role="tool", content=[result]) for result in results])


@pytest.mark.parametrize("given", [["X", "X"], ["", ""], ["X", ""]])
def test_ids_that_are_used_twice_or_empty_become_unique_and_a_strict_server_takes_them(given):
    script = [[call("f", id=call_id) for call_id in given], "done"]
    with ModelServer(script) as server, connect(server) as model:
        blocks = assembled(model).blocks()
        assert assembled(model, with_results(blocks)).text == "done"
    assert len({block["id"] for block in blocks}) == len(given)


def test_one_id_in_three_steps_is_three_calls_to_a_strict_server():
    script = [[call("f", id="X")], [call("f", id="X")], [call("f", id="X")], "done"]
    with ModelServer(script) as server, connect(server) as model:
        transcript = []
        for _ in range(3):
            transcript += with_results(assembled(model, asking(*transcript)).blocks()).messages[1:]
        assert assembled(model, asking(*transcript)).text == "done"


@pytest.mark.parametrize(
    "bad",
    ['{"city": "San Fra', "[1]", '"x"', "NaN", '{"a":1}{"b":2}', "[" * 100_000],
    ids=lambda bad: bad[:9],
)
def test_arguments_that_are_not_valid_do_not_spoil_the_next_request(bad):
    with ModelServer([[call("f", bad)], "done"]) as server, connect(server) as model:
        blocks = assembled(model).blocks()
        assert blocks[0]["arguments"] == bad
        assert assembled(model, with_results(blocks)).text == "done"


def test_empty_choices_first_and_last_are_no_crash_and_usage_is_taken():
    assembly = answered(data({"choices": [], "prompt_filter_results": []}), "Hello", usage(3, 2))
    assert (assembly.text, assembly.usage) == ("Hello", {"input_tokens": 3, "output_tokens": 2})


# -- the end of the stream ------------------------------------------------------------------------

HALF = part('{"command": "to', index=0, id="x", name="bash")
WHOLE = part('{"command": "touch x"}', index=0, id="x", name="bash")


@pytest.mark.parametrize("last", [HALF, WHOLE], ids=["half the arguments", "all of the arguments"])
@pytest.mark.parametrize(
    "end, code",
    [
        ([finish(None)], "truncated"),
        ([raw(b"data: [DONE]\n\n"), finish(None)], "truncated"),
        ([cut()], "connection"),
        ([delay(0.05), cut(reset=True)], "connection"),
    ],
    ids=["the stream ends", "done without a reason", "cut", "reset"],
)
def test_an_answer_without_a_finish_reason_is_not_whole_and_can_be_tried_again(last, end, code):
    failure, text = failing("Let me.", last, *end)
    assert (failure.code, failure.retryable) == (code, True)
    assert text.startswith("Let me.")


def test_an_empty_stream_is_an_error_and_no_empty_answer():
    failure, text = failing(raw(b""), finish(None))
    assert (failure.code, failure.retryable, text) == ("truncated", True, "")


@pytest.mark.parametrize("end", [finish(None), cut(), stall()], ids=["no [DONE]", "cut", "silence"])
def test_after_the_finish_reason_nothing_more_is_needed(end):
    with ModelServer([["Hello", last_of("length"), end]]) as server:
        with connect(server, idle_timeout=0.5) as model:
            assembly = assembled(model)
    assert (assembly.text, assembly.finish) == ("Hello", "max_tokens")


@pytest.mark.parametrize("before", [[], ["Hel", "lo"]], ids=["first", "after two deltas"])
def test_an_error_inside_the_stream_is_the_error_that_its_status_would_be(before):
    failure, text = failing(*before, error("busy", type="overloaded_error"))
    assert (failure.code, failure.retryable, text) == ("overloaded", True, "".join(before))
    assert "busy" in str(failure)


@pytest.mark.parametrize(
    "body",
    [
        b"event: error\ndata: busy\n\n",
        b'event: error\ndata: {"message": "busy", "type": "overloaded_error"}\n\n',
        b'data: {"object": "error", "message": "busy", "code": 503}\n\n',
        b'data: {"type": "error", "error": {"type": "overloaded_error", "message": "busy"}}\n\n',
        b'[{"error": {"code": 503, "message": "busy", "status": "UNAVAILABLE"}}]',
        b'{"error": "busy"}',
    ],
)
def test_an_error_in_another_form_is_seen(body):
    failure, text = failing(raw(body), finish(None))
    assert failure.retryable
    assert failure.code in ("overloaded", "server_error")
    assert "busy" in str(failure)


def test_a_content_filter_is_an_error_of_its_own():
    failure, text = failing("Hel", finish("content_filter"))
    assert (failure.code, failure.retryable, text) == ("content_filter", False, "Hel")


@pytest.mark.parametrize(
    "body, retryable",
    [(b"<html>Welcome</html>", False), (b"data: {\n\n", True), (b"data: 7\n\n", True), (b"{", True)],
)
def test_an_answer_that_is_no_answer_is_an_error(body, retryable):
    failure, _ = failing(raw(body), finish(None))
    assert (failure.code, failure.retryable) == ("bad_response", retryable)


def test_each_attempt_has_its_own_assembly():
    script = [["Hel", HALF, cut()], ["Hello", WHOLE]]
    with ModelServer(script) as server, connect(server) as model:
        with pytest.raises(ModelError):
            assembled(model)
        assembly = assembled(model)
    assert assembly.text == "Hello"
    assert calls(assembly) == [("x", "bash", '{"command": "touch x"}')]


# -- failures -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "item, code, retryable",
    [
        (status(400, "no"), "bad_request", False),
        (status(400, "no", type="context_length_exceeded"), "context_overflow", False),
        (status(401), "authentication", False),
        (status(404), "not_found", False),
        (status(429), "rate_limit", True),
        (status(429, type="insufficient_quota"), "insufficient_quota", False),
        (status(500, body="<html>"), "server_error", True),
        (status(503, body=b""), "overloaded", True),
        (status(302, headers={"Location": "/elsewhere"}), "redirect", False),
        (cut(), "connection", True),
    ],
)
def test_failures_say_code_and_whether_to_try_again(item, code, retryable):
    failure, _ = failing(item)
    assert (failure.code, failure.retryable) == (code, retryable)


def test_what_is_not_found_says_where_it_was_looked_for():
    with ModelServer([]) as server, connect(server, base_url=f"{server.url}/other?key={KEY}") as model:
        with pytest.raises(ModelError) as caught:
            assembled(model)
    assert str(caught.value).startswith(f"POST {server.url}/other/chat/completions: HTTP 404 Not Found: ")
    assert KEY not in str(caught.value)


@pytest.mark.parametrize(
    "value, seconds",
    [("2", 2), ("1.5", 1.5), ("-5", 0), ("Fri, 02 Jan 2015 00:00:00 GMT", 0)]
    + [(value, None) for value in ("abc", "", "Fri, 31 Dec 99999 23:59:59 GMT", "NaN", "inf")],
)
def test_the_wait_that_the_provider_asks_for(value, seconds):
    failure, _ = failing(status(429, headers={"Retry-After": value}))
    assert failure.retry_after == seconds


def test_silence_longer_than_the_idle_limit_is_a_timeout():
    failure, text = failing("Hel", stall(), idle_timeout=0.3)
    assert (failure.code, failure.retryable, text) == ("timeout", True, "Hel")


def test_comments_count_as_life():
    pings = [item for _ in range(6) for item in (delay(0.2), raw(b": ping\n\n"))]
    with ModelServer([["a", *pings, "b"]]) as server, connect(server, idle_timeout=0.8) as model:
        assert assembled(model).text == "ab"


def test_a_refused_connection_can_be_tried_again():
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with ChatModel("m", base_url=f"http://127.0.0.1:{port}/v1") as model:
        with pytest.raises(ModelError) as caught:
            assembled(model)
    assert (caught.value.code, caught.value.retryable) == ("connection", True)


@pytest.mark.parametrize(
    "url",
    ["127.0.0.1:80", "ftp://host/v1", "http://", "/v1", "http://[::1", "http://u:p4ss/", "http://..../"]
    + [f"http://host:{port}/v1" for port in ("0", "99999", "-1", "9x")]
    + ["http://a b/", "http://host/v1\nX: y", "http://host/\x7f"],
)
def test_an_address_that_is_no_http_address_is_refused(url):
    with pytest.raises(ValueError, match="base_url"):
        ChatModel("m", base_url=url)


@pytest.mark.parametrize("name", ["", " ", None, 5])
def test_a_name_that_is_none_is_refused(name):
    with pytest.raises(ValueError, match="name of the model"):
        ChatModel(name)


def test_a_parameter_that_takes_the_place_of_a_part_is_refused():
    with pytest.raises(ValueError, match="messages"):
        ChatModel("m", params={"messages": []})


# -- secrets --------------------------------------------------------------------------------------


def assert_no_secret(exc, *secrets):
    """Neither in the text nor in anything that a traceback would print."""
    shown = "".join(traceback.format_exception(type(exc), exc, exc.__traceback__))
    while exc is not None:
        shown += repr(exc) + str(exc) + repr(vars(exc))
        exc = exc.__cause__ or exc.__context__
    for secret in secrets:
        assert secret not in shown


@pytest.mark.parametrize(
    "item",
    [
        status(401, f"Incorrect API key provided: {KEY}."),
        status(500, body=f"<p>{KEY}</p>"),
        status(400, "y" * 480 + KEY),
        status(302, headers={"Location": f"/login/{KEY}"}),
        error(f"bad key {KEY}", type=KEY),
        finish(KEY),
        raw(b"data: " + KEY.encode() + b"\n\n"),
        raw(b'{"' + KEY.encode()),
        raw(b"event: error\ndata: " + KEY.encode() + b"\n\n"),
        cut(),
    ],
)
def test_the_key_is_in_no_exception_even_when_the_server_echoes_it(item, caplog):
    caplog.set_level(logging.DEBUG)
    failure, _ = failing(item)
    assert_no_secret(failure, KEY, KEY[:12])
    assert KEY not in caplog.text


def test_other_headers_and_passwords_are_secrets_too():
    odd = 'p"ä/s s'
    echo = status(403, f"no {odd} and p%C3%A4ss and sesame1 and t0ken")
    with ModelServer([echo]) as server:
        url = server.url.replace("http://", "http://me:p%C3%A4ss@") + "?token=t0ken"
        with connect(server, base_url=url, headers={"X-Auth": "Basic sesame1", "X-Odd": odd}) as model:
            assert "me" not in repr(model) and "t0ken" not in repr(model)
            with pytest.raises(ModelError) as caught:
                assembled(model)
    assert_no_secret(caught.value, "p%C3%A4ss", "sesame1", "t0ken", odd)
    assert str(caught.value).count("[redacted]") == 4


def test_the_key_is_not_in_the_repr():
    assert KEY not in repr(ChatModel("m", api_key=KEY))
    assert repr(ChatModel("m")) == "<ChatModel 'm' at https://api.openai.com/v1/chat/completions>"


@pytest.mark.parametrize("key", ["", "  ", "sk-\nx", "sk x", "sk-é"])
def test_a_key_that_no_header_can_carry_is_refused_without_showing_it(key):
    with pytest.raises(ValueError, match="api_key") as caught:
        ChatModel("m", api_key=key)
    assert "sk" not in str(caught.value)
    with pytest.raises(ValueError, match="X-Key") as caught:
        ChatModel("m", headers={"X-Key": f"{key}\n"})
    with pytest.raises(ValueError, match="a header's name is not valid"):
        ChatModel("m", headers={f"X-Key: {key}": "x"})
    assert "sk" not in str(caught.value)


def test_white_space_around_a_key_is_not_part_of_it():
    with ModelServer(["a"]) as server, connect(server, api_key=f" {KEY}\n") as model:
        assembled(model)
        assert server.requests[0].headers["Authorization"] == f"Bearer {KEY}"


# -- stopping -------------------------------------------------------------------------------------


def test_a_cancelled_token_sends_nothing():
    with ModelServer(["a"]) as server, connect(server) as model, CancellationToken() as token:
        token.cancel()
        with pytest.raises(Cancelled) as caught:
            assembled(model, token=token)
        assert caught.value.token is token
        assert server.requests == []


@pytest.mark.parametrize(
    "before", [[], [headers()], ["Hel"]], ids=["before the headers", "before the first delta", "after it"]
)
@pytest.mark.parametrize("chunked", [True, False])
def test_a_cancel_in_mid_stream_ends_the_connection(before, chunked):
    with ModelServer([[*before, stall()]], chunked=chunked) as server, connect(server) as model:
        with CancellationToken() as token:
            request = {}

            def cancel():
                request["it"] = server.request(0)
                if before == ["Hel"]:
                    seen.wait(10)
                token.cancel()

            seen = threading.Event()
            thread = threading.Thread(target=cancel)
            thread.start()
            found = []
            with pytest.raises(Cancelled) as caught:
                for chunk in model.stream(asking(), token=token):
                    found.append(chunk.text)
                    seen.set()
            thread.join(10)
            assert caught.value.token is token
            assert found == [text for text in before if text == "Hel"]
            assert request["it"].gone.wait(10)


def test_closing_the_iterator_ends_the_connection(token):
    with ModelServer([["Hel", stall()]]) as server, connect(server) as model:
        stream = model.stream(asking(), token=token)
        next(stream)
        stream.close()
        assert server.requests[0].gone.wait(10)


def test_a_cancel_after_the_last_delta_is_no_whole_answer():
    with ModelServer(["Hello"]) as server, connect(server) as model, CancellationToken() as token:
        stream = model.stream(asking(), token=token)
        assert next(stream).text == "Hello"
        token.cancel()
        with pytest.raises(Cancelled):
            next(stream)


def test_a_cancel_while_the_answer_ends_leaves_as_cancelled():
    with ModelServer(["Hello"]) as server, connect(server) as model, CancellationToken() as token:
        stream = model.stream(asking(), token=token)
        assert [next(stream).text, next(stream).finish] == ["Hello", "stop"]
        token.cancel()
        with pytest.raises(Cancelled):
            next(stream)


def test_one_model_serves_several_threads_and_a_cancel_stops_only_its_own():
    script = [lambda body: [body["messages"][0]["content"], hold("all"), " end"]] * 8
    with ModelServer(script) as server, connect(server) as model:
        tokens = [CancellationToken() for _ in range(8)]
        found = {}

        def ask(number):
            user = Message(id="u", role="user", content=[{"type": "text", "text": str(number)}])
            try:
                request = ModelRequest(messages=[user])
                found[number] = assembled(model, request, tokens[number]).text
            except Cancelled:
                found[number] = None

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        server.request(7)
        tokens[3].cancel()
        threads[3].join(10)
        server.point("all").release()
        for thread in threads:
            thread.join(10)
        for token in tokens:
            token.close()
    assert found == {number: f"{number} end" if number != 3 else None for number in range(8)}


def test_close_frees_the_connections_and_the_model_can_be_used_again():
    with ModelServer(["a", "b"]) as server:
        model = connect(server)
        assert assembled(model).text == "a"
        model.close()
        assert assembled(model).text == "b"
        model.close()


def test_what_the_runtime_reads():
    model = ChatModel("m", max_retries=2, retry_after_output=True, params={"seed": 1})
    assert (model.name, model.provider, model.params) == ("m", "openai", {"seed": 1})
    assert (model.max_retries, model.retry_after_output) == (2, True)
