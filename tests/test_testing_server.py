"""The loopback server, seen by a client that knows nothing of ours."""

import contextlib
import http.client
import json
import socket
import struct
import threading

import pytest

from syncagent.boundary.models.protocol import Chunk
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

USER = {"role": "user", "content": "go"}


def body(*messages, **more):
    return {"model": "m", "stream": True, "messages": list(messages) or [USER], **more}


class Client:
    """One connection, and the raw bytes of its answers."""

    def __init__(self, server):
        host, port = server.url.split("/")[2].split(":")
        self.connection = http.client.HTTPConnection(host, int(port), timeout=20)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.connection.close()

    def post(self, value, path="/v1/chat/completions"):
        content = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.connection.request("POST", path, body=content, headers={"Authorization": "Bearer k"})
        return self.connection.getresponse()


def events(content):
    found = [part[len(b"data: ") :] for part in content.split(b"\n\n") if part]
    return [json.loads(part) if part != b"[DONE]" else "[DONE]" for part in found]


def asked(server, value=None):
    with Client(server) as client:
        response = client.post(value or body())
        return response.status, events(response.read())


def test_the_url_ends_with_v1():
    with ModelServer() as server:
        assert server.url.startswith("http://127.0.0.1:")
        assert server.url.endswith("/v1")
        assert server.url in repr(server)


def test_an_answer_is_streamed_as_the_dialect_has_it():
    script = [[reasoning("h"), "Hi", call("f", {"a": 1}, id="x"), usage(3, 4, cached_tokens=2)]]
    with ModelServer(script) as server:
        code, found = asked(server, body(stream_options={"include_usage": True}))
    assert code == 200
    deltas = [item["choices"][0]["delta"] for item in found[:6]]
    function = {"name": "f", "arguments": ""}
    assert deltas == [
        {"role": "assistant", "content": ""},
        {"reasoning_content": "h"},
        {"content": "Hi"},
        {"tool_calls": [{"index": 0, "id": "x", "type": "function", "function": function}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"a": 1}'}}]},
        {},
    ]
    assert [item["choices"][0]["finish_reason"] for item in found[4:6]] == [None, "tool_calls"]
    assert found[6]["choices"] == []
    assert found[6]["usage"]["prompt_tokens_details"] == {"cached_tokens": 2}
    assert found[7] == "[DONE]"


def test_usage_is_sent_only_to_who_asks_for_it():
    with ModelServer([["a", usage(3, 4)]]) as server:
        _, found = asked(server)
    assert not any(item.get("usage") for item in found[:-1])


@pytest.mark.parametrize(
    "item, last",
    [(finish("max_tokens"), "length"), (finish("content_filter"), "content_filter"), (finish(None), None)],
)
def test_the_script_says_how_an_answer_finishes(item, last):
    with ModelServer([["a", item]]) as server:
        _, found = asked(server)
    assert (found[-1] == "[DONE]") == (last is not None)
    reasons = [entry["choices"][0]["finish_reason"] for entry in found if entry != "[DONE]"]
    assert reasons[-1] == last


def test_chunks_data_and_raw_bytes_go_out_as_they_are():
    script = [[raw(b": ping\n\n"), data({"choices": []}), Chunk(kind="tool_call", text="{"), finish(None)]]
    with ModelServer(script) as server, Client(server) as client:
        content = client.post(body()).read()
    assert content.startswith(b': ping\n\ndata: {"choices": []}\n\n')
    delta = events(content[8:])[-1]["choices"][0]["delta"]
    assert delta == {"tool_calls": [{"function": {"arguments": "{"}}]}


def test_a_status_is_the_whole_answer_with_its_headers():
    with ModelServer([status(429, "slow", headers={"Retry-After": "3"})]) as server, Client(server) as client:
        response = client.post(body())
        assert (response.status, response.getheader("Retry-After")) == (429, "3")
        assert json.loads(response.read())["error"]["message"] == "slow"


def test_a_status_may_have_a_body_of_any_kind():
    script = [status(200, body={"a": 1}), status(500, body=b"\xff"), status(502, body="<p>")]
    with ModelServer(script) as server, Client(server) as client:
        assert [client.post(body()).read() for _ in range(3)] == [b'{"a": 1}', b"\xff", b"<p>"]


def test_an_error_inside_the_stream_ends_it():
    with ModelServer([["a", error("later", type="overloaded_error"), "b"]]) as server:
        code, found = asked(server)
    assert code == 200
    assert found[-1] == {"error": {"message": "later", "type": "overloaded_error", "code": None}}


def test_requests_are_recorded_with_headers_and_body_and_share_a_connection():
    with ModelServer(["a", "b"]) as server, Client(server) as client:
        client.post(body()).read()
        client.post(body(temperature=0)).read()
        assert server.connections == 1
        first, second = server.requests
        assert (first.method, first.path) == ("POST", "/v1/chat/completions")
        assert first.headers["authorization"] == "Bearer k"
        assert second.body["temperature"] == 0
        assert json.loads(second.raw) == second.body
        assert second.done.wait(10)
        assert not second.gone.is_set()


def test_an_entry_may_look_at_the_request():
    with ModelServer([lambda request: request["messages"][-1]["content"].upper()]) as server:
        assert asked(server)[1][1]["choices"][0]["delta"]["content"] == "GO"


def test_a_script_at_its_end_says_so():
    with ModelServer() as server, Client(server) as client:
        response = client.post(body())
        assert response.status == 400
        assert b"no entry left" in response.read()


@pytest.mark.parametrize("method, path", [("POST", "/v1/responses"), ("GET", "/v1/chat/completions")])
def test_another_address_is_not_found(method, path):
    with ModelServer(["a"]) as server, Client(server) as client:
        client.connection.request(method, path)
        response = client.connection.getresponse()
        assert response.status == 404
        response.read()


ASKING = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"id": "x", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
}


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x00\x05hello\n",
        b"GET\r\n\r\n",
        b"GET /v1 SPDY/3\r\n\r\n",
        b"POST /v1 HTTP/1.1\r\nContent-Length: many\r\n\r\n",
        b"POST /v1 HTTP/1.1\r\n" + b"a: b\r\n" * 200 + b"\r\n",
    ],
    ids=["TLS", "one word", "another protocol", "no length", "many headers"],
)
def test_what_is_no_http_is_hung_up_on(sent):
    with ModelServer(["unused"]) as server:
        with socket.create_connection(("127.0.0.1", server._port), timeout=30) as sock:
            sock.sendall(sent)
            with contextlib.suppress(ConnectionResetError):  # it left some of it unread
                assert sock.recv(1) == b""
        assert server.requests == []


def test_a_strict_server_refuses_a_broken_transcript_and_keeps_its_entry():
    with ModelServer(["a"]) as server, Client(server) as client:
        response = client.post(body(USER, ASKING))
        message = json.loads(response.read())["error"]["message"]
        assert response.status == 400
        assert "no result for" in message
        assert server.requests[0].refused == message
        client.post(body()).read()
        assert server.requests[1].refused is None


def test_a_server_that_is_not_strict_answers_anything():
    with ModelServer(["a"], strict=False) as server:
        assert asked(server, body(USER, ASKING))[0] == 200


def test_hold_stops_the_answer_until_its_point_is_released():
    with ModelServer([["a", hold("p"), "b"]]) as server, Client(server) as client:
        response = client.post(body())
        assert server.point("p").reached.wait(10)
        assert not server.requests[0].done.is_set()
        server.point("p").release()
        texts = [item["choices"][0]["delta"].get("content") for item in events(response.read())[:-1]]
        assert texts == ["", "a", "b", None]


def test_headers_can_go_out_before_anything_is_said():
    with ModelServer([[headers(x_id="7"), hold("p")]]) as server, Client(server) as client:
        response = client.post(body())
        assert response.getheader("x-id") == "7"
        server.point("p").release()
        response.read()


def test_a_delay_takes_its_time_and_then_goes_on():
    with ModelServer([[delay(0.01), "a"]]) as server:
        assert asked(server)[0] == 200


@pytest.mark.parametrize("item", [stall(), delay(1000), hold("p")], ids=["stall", "delay", "hold"])
@pytest.mark.parametrize("how", ["close", "reset"])
def test_a_client_that_leaves_is_seen_at_once(item, how):
    with ModelServer([["a", item, "b"]]) as server:
        with Client(server) as client:
            sock = client.connection
            response = client.post(body())
            response.read(10)
            if how == "reset":
                option = struct.pack("ii", 1, 0)
                response.fp.raw._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, option)
            response.close()
            sock.close()
        assert server.requests[0].gone.wait(10)
        assert server.requests[0].done.wait(10)


def test_a_client_that_leaves_while_it_is_written_to_is_seen():
    with ModelServer([["a" * 10_000_000] * 20]) as server:
        with Client(server) as client:
            client.post(body()).close()
        assert server.requests[0].gone.wait(20)


@pytest.mark.parametrize("reset", [False, True])
def test_cut_ends_the_connection_in_the_middle(reset):
    script = [[headers(), hold("read"), cut(reset=reset)]]
    with ModelServer(script) as server, Client(server) as client:
        response = client.post(body())
        server.point("read").release()
        with pytest.raises((http.client.IncompleteRead, ConnectionResetError)):
            response.read()


def test_cut_as_the_first_item_gives_no_answer_at_all():
    with ModelServer([cut()]) as server, Client(server) as client:
        with pytest.raises(http.client.RemoteDisconnected):
            client.post(body())


def test_without_chunks_the_answer_ends_with_its_connection():
    with ModelServer(["a"], chunked=False) as server, Client(server) as client:
        response = client.post(body())
        assert response.getheader("Transfer-Encoding") is None
        assert events(response.read())[-1] == "[DONE]"


def test_request_waits_for_a_request_and_says_when_none_came():
    with ModelServer(["a"]) as server:
        thread = threading.Thread(target=asked, args=(server,))
        thread.start()
        assert server.request(0).body["model"] == "m"
        thread.join(10)
        with pytest.raises(AssertionError, match="no request 1"):
            server.request(1, timeout=0.01)


def test_close_ends_idle_busy_and_waiting_connections():
    server = ModelServer(["a", ["b", stall()], ["c" * 10_000_000] * 20])
    with Client(server) as idle, Client(server) as waiting, Client(server) as busy:
        idle.post(body()).read()
        waiting.post(body())
        busy.post(body())
        server.request(2)
        server.close()
        server.close()
        assert server.connections == 0
        assert not server.requests[1].gone.is_set()


def test_many_clients_are_served_at_once():
    with ModelServer(["x"] * 40) as server:
        codes = []
        threads = [threading.Thread(target=lambda: codes.append(asked(server)[0])) for _ in range(40)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert codes == [200] * 40
