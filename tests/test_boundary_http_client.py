"""What a caller of the client gets: the answer as it arrives, or one kind of error that keeps secrets."""

import contextlib
import os
import threading
import time
import traceback
import zlib
from typing import Any, Callable, Dict, Iterator, List

import pytest

import http_servers as servers
from http_servers import DEADLINE, Authority, Peer, Server
from syncagent.boundary.http.client import HttpClient, TransportError
from syncagent.boundary.http.sse import read_events
from syncagent.cancel import CancellationToken, Cancelled

pytestmark = pytest.mark.concurrent

SECRET = "s3cr3t-9f"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: Any) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def token() -> Iterator[CancellationToken]:
    with CancellationToken() as token:
        yield token


@contextlib.contextmanager
def client_of(**options: Any) -> Iterator[HttpClient]:
    options = {"trust_env": False, "idle_timeout": 20.0, **options}
    with contextlib.closing(HttpClient(**options)) as client:
        yield client


def get(client: HttpClient, url: str, token: CancellationToken, **options: Any) -> bytes:
    with client.stream("GET", url, token=token, **options) as response:
        return b"".join(response.iter_bytes())


def failing(url: str, token: CancellationToken, *, client: Any = None, **options: Any) -> TransportError:
    with client_of(**(client or {})) as made, pytest.raises(TransportError) as caught:
        get(made, url, token, **options)
    return caught.value


# -- framings and codings ---------------------------------------------------------------------------


def in_chunks(peer: Peer) -> Iterator[Callable[[bytes], None]]:
    peer.send(servers.CHUNKED)
    yield lambda data: peer.send(servers.chunk(data))
    peer.send(b"0\r\n\r\n")


def in_gzip_chunks(peer: Peer) -> Iterator[Callable[[bytes], None]]:
    peer.send(servers.GZIP_CHUNKED)
    yield peer.send_gzip
    peer.end_gzip()


def with_length(peer: Peer) -> Iterator[Callable[[bytes], None]]:
    peer.send(servers.with_length(3 * len(b"data: 0\n\n")))
    yield peer.send


def until_close(peer: Peer) -> Iterator[Callable[[bytes], None]]:
    peer.send(servers.UNTIL_CLOSE)
    yield peer.send


FRAMINGS = [in_chunks, in_gzip_chunks, with_length, until_close]


@pytest.mark.parametrize("secure", [False, True], ids=["http", "https"])
@pytest.mark.parametrize("framing", FRAMINGS)
def test_each_event_is_there_before_the_next_is_sent(
    framing: Any, secure: bool, authority: Authority, token: CancellationToken
) -> None:
    """Nothing is held back to fill a buffer: the server sends on when the event before was read."""

    def script(peer: Peer) -> None:
        peer.request()
        with contextlib.contextmanager(framing)(peer) as send:
            for number in range(3):
                send(b"data: %d\n\n" % number)
                peer.await_go(f"event {number} was read")

    with Server(script, tls=authority.context() if secure else None) as server:
        with client_of(verify=authority.bundle) as client:
            with client.stream("GET", server.url, token=token) as response:
                seen = []
                for event in read_events(response.iter_bytes()):
                    seen.append(event.data)
                    server.go(f"event {event.data} was read")
        assert seen == ["0", "1", "2"]


@pytest.mark.parametrize("framing", FRAMINGS)
def test_every_framing_gives_the_same_bytes_without_urllib3s_read1(
    framing: Any, token: CancellationToken, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The older versions have none; their way works with the newer ones as well."""
    import urllib3

    for kind in urllib3.HTTPResponse.__mro__:
        if "read1" in vars(kind):
            monkeypatch.delattr(kind, "read1")

    def script(peer: Peer) -> None:
        peer.request()
        with contextlib.contextmanager(framing)(peer) as send:
            for number in range(3):
                send(b"data: %d\n\n" % number)

    with Server(script) as server, client_of() as client:
        assert get(client, server.url, token) == b"data: 0\n\ndata: 1\n\ndata: 2\n\n"


@pytest.mark.parametrize(
    "method, answer", [("HEAD", servers.with_length(9)), ("GET", b"HTTP/1.1 204 No\r\n\r\n")]
)
def test_an_answer_without_a_body_ends_at_once(method: str, answer: bytes, token: CancellationToken) -> None:
    with Server(servers.answering(answer)) as server, client_of() as client:
        for _ in range(2):
            with client.stream(method, server.url, token=token) as response:
                assert response.read() == b""
        assert server.connections == 1


@pytest.mark.parametrize(
    "pieces",
    [
        (servers.with_length(10), b"short"),
        (servers.with_length(10),),
        (servers.CHUNKED, servers.chunk(b"whole")),
        (servers.CHUNKED, servers.chunk(b"whole"), b"5\r\nhal"),
        (servers.CHUNKED, servers.chunk(b"whole"), b"5"),
        (),
    ],
    ids=["length", "length, nothing", "no last chunk", "in a chunk", "in a chunk's size", "no answer"],
)
def test_an_answer_that_is_cut_off_is_an_error_and_may_be_retried(
    pieces: Any, token: CancellationToken
) -> None:
    with Server(servers.cut(*pieces)) as server:
        error = failing(server.url, token)
        assert (error.code, error.retryable) == ("connection", True)


@pytest.mark.parametrize(
    "answer", [b"SSH-2.0-OpenSSH\r\n", b"HTTP/1.1 abc OK\r\n\r\n", b"x" * 100_000 + b"\n"]
)
def test_an_answer_that_is_no_http_is_an_error(answer: bytes, token: CancellationToken) -> None:
    with Server(servers.cut(answer)) as server:
        error = failing(server.url, token)
        assert (error.code, error.retryable) == ("protocol", False)


def test_compression_is_not_asked_for_unless_the_caller_does(token: CancellationToken) -> None:
    with Server(servers.answering(servers.OK)) as server, client_of() as client:
        get(client, server.url, token)
        get(client, server.url, token, headers={"accept-encoding": "gzip"})
        assert [request.headers["accept-encoding"] for request in server.requests] == ["identity", "gzip"]


def test_headers_are_found_in_any_case_and_a_body_is_sent_as_it_is(token: CancellationToken) -> None:
    with Server(servers.answering(servers.OK)) as server, client_of() as client:
        with client.stream(
            "POST", f"{server.url}/v1?q=1", token=token, headers={"X-One": "1"}, body=b'{"a": 1}'
        ) as response:
            assert (response.status, response.reason, response.headers["CONTENT-length"]) == (200, "OK", "2")
            assert response.url.endswith("/v1?q=1")
        (request,) = server.requests
        assert (request.method, request.target, request.body) == ("POST", "/v1?q=1", b'{"a": 1}')
        assert request.headers["x-one"] == "1"


def test_an_error_status_is_an_answer_and_its_body_can_be_read_in_part(token: CancellationToken) -> None:
    answer = servers.with_length(10, status="500 Oops") + b"0123456789"
    with Server(servers.answering(answer)) as server, client_of() as client:
        with client.stream("GET", server.url, token=token) as response:
            assert response.status == 500
            assert response.read(4) == b"0123"
            assert response.read() == b"456789"
            assert response.read() == b""


@pytest.mark.once
def test_a_large_body_is_sent_whole_though_it_takes_longer_than_the_connect_time_out(
    token: CancellationToken,
) -> None:
    """The limit is on standing still: a server that takes its time is no failure."""
    body = os.urandom(1 << 20) * 16

    def script(peer: Peer) -> None:
        for pause in (0.8, 0.1, 0.1, 0.1):  # the buffers fill up and empty again
            time.sleep(pause)  # the server that takes its time
            peer.receive_some(1 << 20)
        assert peer.request().body == body
        peer.send(servers.OK)

    with Server(script, receive_buffer=65536) as server, client_of(connect_timeout=0.4) as client:
        with client.stream("POST", server.url, token=token, body=body) as response:
            assert response.read() == b"ok"


# -- limits -----------------------------------------------------------------------------------------


def test_silence_within_a_stream_is_a_retryable_error_and_what_came_was_delivered(
    token: CancellationToken,
) -> None:
    script = servers.stalling(servers.CHUNKED, *(servers.chunk(b"data: %d\n\n" % i) for i in range(3)))
    with Server(script) as server, client_of(idle_timeout=0.4) as client:
        seen, began = [], time.monotonic()
        with pytest.raises(TransportError) as caught:
            with client.stream("GET", server.url, token=token) as response:
                for event in read_events(response.iter_bytes()):
                    seen.append(event.data)
        assert seen == ["0", "1", "2"]
        assert 0.4 <= time.monotonic() - began < DEADLINE
        assert (caught.value.code, caught.value.retryable) == ("timeout", True)
        server.wait_ended()


def test_silence_before_the_headers_is_limited_too(token: CancellationToken) -> None:
    with Server(servers.no_headers) as server:
        error = failing(server.url, token, client={"idle_timeout": 0.2})
        assert (error.code, error.retryable) == ("timeout", True)


@pytest.mark.parametrize("piece", [b"data: x\n\n", b": ping\n"], ids=["deltas", "comments"])
def test_a_slow_stream_may_last_longer_than_the_idle_limit(piece: bytes, token: CancellationToken) -> None:
    """Silence is limited, not duration; a keep-alive comment is a sign of life."""

    def script(peer: Peer) -> None:
        peer.request()
        peer.send(servers.CHUNKED, servers.chunk(b"data: first\n\n"))
        for _ in range(12):
            time.sleep(0.05)  # each shorter than the limit, all together longer
            peer.send(servers.chunk(piece))
        peer.send(servers.chunk(b"data: last\n\n"), b"0\r\n\r\n")

    with Server(script) as server, client_of(idle_timeout=0.5) as client:
        with client.stream("GET", server.url, token=token) as response:
            seen = [event.data for event in read_events(response.iter_bytes())]
        assert seen == ["first", *(["x"] * 12 if piece.startswith(b"data") else []), "last"]


def test_a_consumer_that_takes_its_time_is_not_the_servers_silence(token: CancellationToken) -> None:
    script = servers.cut(servers.UNTIL_CLOSE, b"x" * 200_000)
    with Server(script) as server, client_of(idle_timeout=0.2) as client:
        length = 0
        with client.stream("GET", server.url, token=token) as response:
            for piece in response.iter_bytes():
                if not length:
                    time.sleep(0.5)  # the reader that takes its time
                length += len(piece)
        assert length == 200_000


def test_connecting_is_limited(token: CancellationToken) -> None:
    with servers.full_backlog() as port:
        error = failing(f"http://127.0.0.1:{port}", token, client={"connect_timeout": 0.2})
        assert (error.code, error.retryable) == ("timeout", True)
    with Server(servers.silent) as server:
        error = failing(f"https://{server.address}", token, client={"connect_timeout": 0.2})
        assert (error.code, error.retryable) == ("timeout", True)


# -- what is refused --------------------------------------------------------------------------------


@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "303 Other", "307 Again", "308 Forever"])
def test_a_redirect_is_an_error_and_not_followed(status: str, token: CancellationToken) -> None:
    """Not even its body is read, which may never end."""
    with Server(servers.no_headers) as elsewhere:
        location = f"{elsewhere.url}/there?key={SECRET}"
        head = f"HTTP/1.1 {status}\r\nLocation: {location}\r\nContent-Length: 10\r\n\r\n"
        with Server(servers.stalling(head.encode())) as server:
            error = failing(server.url, token, headers={"Authorization": f"Bearer {SECRET}"})
            assert (error.code, error.retryable) == ("redirect", False)
            assert f"{elsewhere.url}/there" in str(error)
            assert SECRET not in str(error)
            server.wait_ended()
        assert elsewhere.connections == 0


def test_a_certificate_that_cannot_be_trusted_is_not_retryable(
    authority: Authority, token: CancellationToken, tmp_path: Any
) -> None:
    other = Authority(tmp_path)
    with Server(servers.answering(servers.OK), tls=authority.context()) as server:
        error = failing(server.url, token, client={"verify": other.bundle})
        assert (error.code, error.retryable) == ("certificate", False)
        assert "certificate was refused" in str(error)
        with client_of(verify=authority.bundle) as client:
            assert get(client, server.url, token) == b"ok"


def test_a_certificate_for_another_host_is_not_retryable(
    authority: Authority, token: CancellationToken
) -> None:
    with Server(servers.answering(servers.OK), tls=authority.context("example.org")) as server:
        error = failing(server.url, token, client={"verify": authority.bundle})
        assert (error.code, error.retryable) == ("certificate", False)


def test_verify_false_takes_any_certificate(authority: Authority, token: CancellationToken) -> None:
    with Server(servers.answering(servers.OK), tls=authority.context("example.org")) as server:
        with client_of(verify=False) as client, pytest.warns(Warning, match="Unverified HTTPS request"):
            assert get(client, server.url, token) == b"ok"


def test_a_bundle_that_is_missing_or_no_bundle_is_a_certificate_error(
    token: CancellationToken, tmp_path: Any
) -> None:
    empty = tmp_path / "empty.pem"
    empty.write_text("nothing")
    with Server(servers.silent) as server:
        for path in (tmp_path / "missing.pem", empty):
            error = failing(f"https://{server.address}", token, client={"verify": str(path)})
            assert (error.code, error.retryable) == ("certificate", False)


def test_tls_to_a_server_that_speaks_none_is_a_protocol_error(token: CancellationToken) -> None:
    with Server(lambda peer: peer.send(b"HTTP/1.1 400 No\r\n\r\n")) as server:
        error = failing(f"https://{server.address}", token)
        assert (error.code, error.retryable) == ("protocol", False)


@pytest.mark.parametrize(
    "url", ["no url", "ftp://127.0.0.1/", "http://", "http://[::1", "http://127.0.0.1:x/"]
)
def test_a_url_that_cannot_be_used_is_a_protocol_error(url: str, token: CancellationToken) -> None:
    error = failing(url, token)
    assert (error.code, error.retryable) == ("protocol", False)


def test_a_refused_connection_is_retryable_and_an_unknown_name_is_not(token: CancellationToken) -> None:
    error = failing("http://127.0.0.1:1/", token)
    assert (error.code, error.retryable) == ("connection", True)
    assert "refused" in str(error)
    error = failing("http://a..b/", token)
    assert (error.code, error.retryable) == ("connection", False)


@pytest.mark.parametrize(
    "value", [f"Bearer {SECRET}\n", f" {SECRET}", f"{SECRET}\0", f"{SECRET}’", f"{SECRET}\r\nX: y"]
)
def test_a_header_that_cannot_be_sent_is_named_but_its_value_is_not_shown(
    value: str, token: CancellationToken
) -> None:
    with Server(servers.answering(servers.OK)) as server:
        error = failing(server.url, token, headers={"Authorization": value})
        assert (error.code, error.retryable) == ("protocol", False)
        assert "'Authorization'" in str(error)
        assert SECRET not in "".join(traceback.format_exception(type(error), error, error.__traceback__))
        assert server.connections == 0


# -- secrets ----------------------------------------------------------------------------------------


def dead_proxy(peer: Peer) -> None:
    peer.request()
    peer.send(f"HTTP/1.1 407 No {SECRET}\r\nContent-Length: 0\r\n\r\n".encode())


@pytest.mark.parametrize(
    "end", ["refused", "cut", "silent", "garbage", "no scheme", "redirect", "proxy", "no TLS"]
)
def test_no_error_shows_a_key_wherever_it_was_put(end: str, token: CancellationToken) -> None:
    """Not in the text, its repr, or the traceback that a log would keep."""
    scripts: Dict[str, Any] = {
        "cut": servers.cut(servers.with_length(9)),
        "silent": servers.no_headers,
        "garbage": servers.cut(SECRET.encode() + b"\r\n"),
        "redirect": servers.cut(f"HTTP/1.1 302 Go\r\nLocation: /?{SECRET}\r\n\r\n".encode()),
        "no TLS": lambda peer: peer.send(SECRET.encode()),
    }
    with Server(scripts.get(end, servers.silent)) as server, Server(dead_proxy) as proxy:
        host = "127.0.0.1:1" if end == "refused" else server.address
        scheme = {"no scheme": "", "proxy": "https://", "no TLS": "https://"}.get(end, "http://")
        options: Dict[str, Any] = {"idle_timeout": 0.2}
        if end == "proxy":
            options["proxies"] = {"https": f"http://user:{SECRET}@{proxy.address}"}
        error = failing(
            f"{scheme}user:{SECRET}@{host}/v1/{end.replace(' ', '-')}?key={SECRET}",
            token,
            client=options,
            headers={"Authorization": f"Bearer {SECRET}", "x-api-key": SECRET},
        )
        lines = traceback.format_exception(type(error), error, error.__traceback__)
        # The lines of code in a traceback are this test's own.
        shown = "".join(line for line in lines if not line.lstrip().startswith("File"))
        assert SECRET not in shown + str(error) + repr(error), shown
        assert end in ("no scheme",) or host.split(":")[0] in str(error)


def test_the_text_of_an_answer_shows_no_query(token: CancellationToken) -> None:
    with Server(servers.answering(servers.OK)) as server, client_of() as client:
        with client.stream("GET", f"{server.url}/v1?key={SECRET}", token=token) as response:
            assert repr(response) == f"<Response 200 OK of {server.url}/v1>"
        assert SECRET not in repr(client)


# -- the environment --------------------------------------------------------------------------------


def test_proxies_come_from_the_environment_only_if_it_is_trusted(
    token: CancellationToken, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Server(servers.answering(servers.OK)) as proxy, Server(servers.answering(servers.OK)) as server:
        monkeypatch.setenv("http_proxy", proxy.url)
        monkeypatch.setenv("no_proxy", "")
        with client_of(trust_env=True) as client:
            get(client, server.url, token)
        assert (proxy.connections, server.connections) == (1, 0)
        assert proxy.requests[0].target == f"{server.url}/"
        with client_of(trust_env=False) as client:
            get(client, server.url, token)
        with client_of(trust_env=True, proxies={}) as client:
            get(client, server.url, token)
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        with client_of(trust_env=True) as client:
            get(client, server.url, token)
        assert (proxy.connections, server.connections) == (1, 3)


def test_the_bundle_of_the_environment_is_used_unless_one_is_given(
    authority: Authority, token: CancellationToken, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    other = Authority(tmp_path)
    with Server(servers.answering(servers.OK), tls=authority.context()) as server:
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", authority.bundle)
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        with client_of(trust_env=True) as client:
            assert get(client, server.url, token) == b"ok"
        for options in ({"trust_env": True, "verify": other.bundle}, {}):
            assert failing(server.url, token, client=options).code == "certificate"


def test_a_netrc_file_replaces_no_header(
    token: CancellationToken, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login someone password else\n")
    monkeypatch.setenv("NETRC", str(netrc))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with Server(servers.answering(servers.OK)) as server, client_of(trust_env=True) as client:
        get(client, server.url, token, headers={"Authorization": "Bearer key"})
        get(client, server.url, token)
        get(client, f"http://user:pw@{server.address}/", token)
        sent = [request.headers.get("authorization") for request in server.requests]
        assert sent == ["Bearer key", None, "Basic dXNlcjpwdw=="]


@pytest.mark.parametrize("status, retryable", [(407, False), (403, False), (429, True), (502, True)])
def test_a_proxy_that_refuses_is_named_by_its_status(
    status: int, retryable: bool, token: CancellationToken
) -> None:
    script = servers.cut(f"HTTP/1.1 {status} No\r\nContent-Length: 0\r\n\r\n".encode())
    with Server(script) as proxy:
        error = failing("https://127.0.0.1:9/", token, client={"proxies": {"https": proxy.url}})
        assert (error.code, error.retryable) == ("connection", retryable)
        assert f"the proxy answered {status}" in str(error)


def test_a_proxy_that_cannot_be_reached_is_a_connection_error_that_names_it(token: CancellationToken) -> None:
    for proxy in ("http://127.0.0.1:1", "https://127.0.0.1:1", "socks5://127.0.0.1:1", "127.0.0.1:1"):
        proxies = {"https": proxy.replace("//", f"//user:{SECRET}@")}
        error = failing("https://127.0.0.1:9/", token, client={"proxies": proxies})
        assert (error.code, error.retryable) == ("connection", True), proxy
        shown = proxy if "//" in proxy else f"http://{proxy}"
        assert f"GET https://127.0.0.1:9/ by the proxy at {shown}: the connection failed" in str(error)
        assert SECRET not in str(error)


def test_a_proxy_whose_address_is_wrong_is_called_that(token: CancellationToken) -> None:
    error = failing("https://127.0.0.1:9/", token, client={"proxies": {"https": f"http://{SECRET}@[x"}})
    assert error.code == "protocol" and " by the proxy at an invalid URL: " in str(error)
    assert SECRET not in str(error)


def test_cookies_are_not_kept(token: CancellationToken) -> None:
    answer = b"HTTP/1.1 200 OK\r\nSet-Cookie: a=b\r\nContent-Length: 0\r\n\r\n"
    with Server(servers.answering(answer)) as server, client_of() as client:
        get(client, server.url, token)
        get(client, server.url, token)
        assert "cookie" not in server.requests[1].headers


# -- the block and the token ------------------------------------------------------------------------


def test_a_body_cannot_be_read_outside_the_block(token: CancellationToken) -> None:
    """It doesn't look like an empty one."""
    with Server(servers.answering(servers.OK)) as server, client_of() as client:
        with client.stream("GET", server.url, token=token) as response:
            pass
        with pytest.raises(ValueError, match="block"):
            response.read()


def test_an_error_of_the_callers_own_goes_through_as_it_is(token: CancellationToken) -> None:
    with Server(servers.answering(servers.OK)) as server, client_of() as client:
        with pytest.raises(KeyError):
            with client.stream("GET", server.url, token=token):
                raise KeyError("mine")


def test_an_error_of_the_callers_own_in_a_cancelled_request_is_the_cancel(token: CancellationToken) -> None:
    with Server(servers.answering(servers.OK)) as server, client_of() as client:
        with pytest.raises(Cancelled) as caught:
            with client.stream("GET", server.url, token=token):
                token.cancel()
                raise KeyError("mine")
        assert isinstance(caught.value.__cause__, KeyError)


def test_a_generator_around_a_stream_can_be_closed_after_the_cancel(token: CancellationToken) -> None:
    with Server(servers.stalling(servers.CHUNKED, servers.chunk(b"x"))) as server, client_of() as client:

        def pieces() -> Iterator[bytes]:
            with client.stream("GET", server.url, token=token) as response:
                yield from response.iter_bytes()

        generator = pieces()
        assert next(generator) == b"x"
        token.cancel()
        generator.close()  # raises nothing
        server.wait_ended()


def test_the_error_that_is_being_handled_is_not_taken_for_the_cause(
    authority: Authority, token: CancellationToken
) -> None:
    """A request made while handling another's failure is judged by its own."""
    with Server(servers.answering(servers.OK), tls=authority.context()) as server, client_of() as client:
        try:
            get(client, server.url, token)
        except TransportError as first:
            assert first.code == "certificate"
            with pytest.raises(TransportError) as caught:
                get(client, "http://127.0.0.1:1/", token)
            assert caught.value.code == "connection"
        else:
            pytest.fail("the certificate was accepted")


def test_a_closed_client_makes_new_connections(token: CancellationToken) -> None:
    """The old ones end at once, even if something that belongs to them is still held."""
    with Server(servers.answering(servers.OK)) as server, client_of() as client:
        with client.stream("GET", server.url, token=token) as response:
            held = response.iter_bytes()
            assert next(held) == b"ok"
        client.close()
        server.wait_ended()
        assert get(client, server.url, token) == b"ok"
        assert server.connections == 2


def test_closing_the_client_leaves_a_running_request_alone(token: CancellationToken) -> None:
    def script(peer: Peer) -> None:
        peer.request()
        peer.send(servers.CHUNKED, servers.chunk(b"one"))
        peer.await_go("closed")
        peer.send(servers.chunk(b"two"), b"0\r\n\r\n")

    with Server(script) as server, client_of() as client:
        with client.stream("GET", server.url, token=token) as response:
            pieces = response.iter_bytes()
            assert next(pieces) == b"one"
            client.close()
            server.go("closed")
            assert b"".join(pieces) == b"two"


def test_many_threads_share_a_client_and_each_gets_its_own_answer() -> None:
    def script(peer: Peer) -> None:
        while True:
            body = peer.request().body
            peer.send(servers.with_length(len(body)) + body)

    wrong: List[object] = []

    def work(number: int) -> None:
        with CancellationToken() as token:
            for round_ in range(20):
                body = b"%d/%d" % (number, round_) * 50
                with client.stream("POST", server.url, token=token, body=body) as response:
                    if response.read() != body:
                        wrong.append(body)

    with Server(script) as server, client_of() as client:
        threads = [threading.Thread(target=work, args=(number,)) for number in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(DEADLINE)
            assert not thread.is_alive()
        assert wrong == []
        assert len(server.requests) == 320
        assert server.connections <= 16


def test_a_forked_child_does_not_write_to_its_parents_connection(token: CancellationToken) -> None:
    with Server(servers.answering(servers.OK)) as server, client_of() as client:
        assert get(client, server.url, token) == b"ok"
        child = os.fork()
        if child == 0:
            status = 1
            with contextlib.suppress(BaseException):
                with CancellationToken() as own:
                    status = 0 if get(client, server.url, own) == b"ok" else 2
            os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        assert get(client, server.url, token) == b"ok"
        assert server.connections == 2


def test_a_compressed_body_is_decompressed_whatever_its_size(token: CancellationToken) -> None:
    """Also one of a thousand times the size that comes in one piece: it's handed out in bounded pieces."""
    body = b"x" * (8 << 20)
    packed = zlib.compress(body)
    head = servers.with_length(len(packed))[:-2] + b"Content-Encoding: deflate\r\n\r\n"
    with Server(servers.answering(head + packed)) as server, client_of() as client:
        with client.stream("GET", server.url, token=token) as response:
            pieces = list(response.iter_bytes())
        assert b"".join(pieces) == body
        assert max(map(len, pieces)) <= 65536
