"""A request is woken by its token wherever it waits, and takes nothing else down with it."""

import contextlib
import os
import random
import socket
import subprocess
import sys
import threading
import time
from typing import Any, Callable, Iterator, List, Optional

import pytest

import http_servers as servers
from http_places import EVENTS, PLACES, Attempt
from http_servers import DEADLINE, Authority, Peer, Server
from test_boundary_store_forks import in_child

from syncagent.boundary.http import adapter
from syncagent.boundary.http.adapter import Lease
from syncagent.boundary.http.client import HttpClient, TransportError
from syncagent.cancel import CancellationToken, Cancelled

pytestmark = pytest.mark.concurrent


@pytest.fixture(scope="module")
def authority(tmp_path_factory: Any) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.mark.parametrize("name", PLACES)
def test_a_cancel_ends_the_request_wherever_it_waits_and_leaves_nothing(
    name: str, authority: Authority
) -> None:
    """The waiting thread raises `Cancelled`, the server sees the end, no descriptor is left or pooled."""
    if "socks" in name:
        pytest.importorskip("socks")
    with PLACES[name](authority) as case:
        client = HttpClient(
            connect_timeout=60,
            idle_timeout=60,
            verify=authority.bundle,
            trust_env=False,
            proxies=case.proxies,
        )
        before = servers.open_descriptors()
        if case.warm:
            assert get(client, case.url) == b"ok"
        with CancellationToken() as token:
            attempt = Attempt(client, token, case)
            case.wait()
            if case.partial:
                servers.wait_until(lambda: attempt.pieces, "the first piece arrives")
            if not case.busy:
                servers.wait_blocked(attempt.thread)
            assert attempt.thread.is_alive(), attempt.outcome
            token.cancel("user")
            attempt.join()
        assert isinstance(attempt.outcome, Cancelled), attempt.outcome
        assert attempt.outcome.token is token
        for server in case.servers:
            server.wait_ended()
        assert servers.open_descriptors() == before
        client.close()


# -- before, after and beside -----------------------------------------------------------------------


def get(client: HttpClient, url: str, token: Optional[CancellationToken] = None) -> bytes:
    with contextlib.ExitStack() as stack:
        token = token or stack.enter_context(CancellationToken())
        return stack.enter_context(client.stream("GET", url, token=token)).read()


def local_client(**options: Any) -> "contextlib.closing[HttpClient]":
    return contextlib.closing(HttpClient(trust_env=False, **options))


def test_a_token_that_is_cancelled_before_makes_no_connection_and_spoils_none() -> None:
    with Server(servers.answering(servers.OK)) as server, local_client() as client:
        with CancellationToken() as token:
            token.cancel()
            for connections in (0, 1):
                with pytest.raises(Cancelled):
                    get(client, server.url, token)
                assert server.connections == connections
                assert get(client, server.url) == b"ok"
        assert server.connections == 1


def test_a_body_that_was_read_to_its_end_leaves_its_connection_to_the_next_request() -> None:
    """For each of the framings that allow it."""
    for answer in (servers.OK, servers.CHUNKED + servers.chunk(b"ok") + b"0\r\n\r\n"):
        with Server(servers.answering(answer)) as server, local_client() as client:
            assert [get(client, server.url) for _ in range(3)] == [b"ok"] * 3
            assert server.connections == 1


def test_a_body_that_was_not_read_to_its_end_takes_its_connection_with_it() -> None:
    with Server(servers.answering(servers.OK)) as server, local_client() as client:
        with CancellationToken() as token, client.stream("GET", server.url, token=token):
            pass
        server.wait_ended()
        assert get(client, server.url) == b"ok"
        assert server.connections == 2


def first_piece(client: HttpClient, server: Server, token: CancellationToken, **drained: float) -> bytes:
    """The first piece of an answer, whose server may send the rest then, and a drain of that."""
    with client.stream("GET", server.url, token=token) as response:
        piece = next(response.iter_bytes())
        server.event("rest").set()
        response.drain(**drained)
        return piece


@pytest.mark.parametrize("secure", [False, True], ids=["http", "https"])
@pytest.mark.parametrize("rest", [[], [b"more"], [b"more"] * 50], ids=["nothing", "a piece", "many"])
def test_a_drained_connection_is_left_to_the_next_request(
    rest: List[bytes], secure: bool, authority: Authority
) -> None:
    """With the time-outs of that request, not of the drain: its server thinks before it speaks."""
    released = threading.Event()

    def script(peer: servers.Peer) -> None:
        peer.request()
        peer.send(servers.CHUNKED, servers.chunk(EVENTS))
        peer.await_go("rest")
        peer.send(*map(servers.chunk, rest), b"0\r\n\r\n")
        peer.request()
        released.wait(DEADLINE)
        peer.send(servers.CHUNKED + servers.chunk(EVENTS) + b"0\r\n\r\n")

    with Server(script, tls=authority.context() if secure else None) as server:
        with local_client(verify=authority.bundle) as client, CancellationToken() as token:
            assert first_piece(client, server, token, seconds=DEADLINE) == EVENTS
            timer = threading.Timer(0.2, released.set)
            timer.start()
            assert first_piece(client, server, token, seconds=0.05) == EVENTS
            timer.join()
            assert server.connections == 1


@pytest.mark.parametrize(
    "tail", [b"", b"5\r\nhal", servers.chunk(b"more")], ids=["silence", "half", "a piece"]
)
def test_a_body_that_does_not_end_in_time_takes_its_connection_with_it(tail: bytes) -> None:
    def script(peer: servers.Peer) -> None:
        peer.request()
        peer.send(servers.CHUNKED, servers.chunk(EVENTS))
        peer.await_go("rest")
        peer.send(tail)
        peer.stall()

    with Server(script) as server, local_client(idle_timeout=None) as client, CancellationToken() as token:
        assert first_piece(client, server, token) == EVENTS
        server.wait_ended()


def test_a_drain_knows_the_socket_under_a_proxys_tls_and_the_servers(authority: Authority) -> None:
    script = servers.stalling(servers.CHUNKED, servers.chunk(EVENTS))
    with Server(script, tls=authority.context()) as server:
        with Server(servers.connect_proxy, tls=authority.context()) as proxy:
            options = {"verify": authority.bundle, "proxies": {"https": proxy.url}}
            with local_client(idle_timeout=60.0, **options) as client, CancellationToken() as token:
                began = time.monotonic()
                assert first_piece(client, server, token) == EVENTS
                assert time.monotonic() - began < DEADLINE


def test_a_body_that_never_stops_is_not_drained_for_ever() -> None:
    def script(peer: servers.Peer) -> None:
        peer.request()
        peer.send(servers.CHUNKED)
        while True:
            peer.send(servers.chunk(EVENTS))

    with Server(script) as server, local_client() as client, CancellationToken() as token:
        assert first_piece(client, server, token)[:9] == EVENTS[:9]
        server.wait_ended()


def test_a_cancel_ends_a_drain() -> None:
    outcome: List[BaseException] = []

    def work() -> None:
        try:
            first_piece(client, server, token, seconds=60.0)
        except BaseException as exc:
            outcome.append(exc)

    script = servers.stalling(servers.CHUNKED, servers.chunk(EVENTS))
    with Server(script) as server, local_client() as client, CancellationToken() as token:
        thread = threading.Thread(target=work)
        thread.start()
        server.wait("stalled")
        servers.wait_blocked(thread)
        token.cancel()
        thread.join(DEADLINE)
        assert not thread.is_alive()
        server.wait_ended()
    assert isinstance(outcome[0], Cancelled) and outcome[0].token is token


def test_a_connection_that_was_idle_for_long_is_not_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """What stands between may have forgotten it, and would tell nobody."""
    with Server(servers.answering(servers.OK)) as server, local_client() as client:
        assert [get(client, server.url) for _ in range(2)] == [b"ok"] * 2
        assert server.connections == 1
        monkeypatch.setattr(adapter, "_KEPT", -1.0)
        assert get(client, server.url) == b"ok"
        assert server.connections == 2


def test_a_cancelled_connection_is_never_used_again() -> None:
    with Server(servers.stalling(servers.CHUNKED, servers.chunk(EVENTS))) as server, local_client() as client:
        before = servers.open_descriptors()
        for _ in range(20):
            with CancellationToken() as token, pytest.raises(Cancelled):
                with client.stream("GET", server.url, token=token) as response:
                    for _piece in response.iter_bytes():
                        token.cancel()
        server.wait_ended()
        assert server.connections == 20
        assert servers.open_descriptors() == before


def test_a_body_that_ends_well_while_the_token_is_cancelled_is_cancelled() -> None:
    """The whole body has come, and its connection is back: it's the token that decides."""
    with Server(servers.answering(servers.OK)) as server, local_client() as client:
        with CancellationToken() as token, pytest.raises(Cancelled):
            with client.stream("GET", server.url, token=token) as response:
                assert response.read() == b"ok"
                token.cancel()
        assert get(client, server.url) == b"ok"
        assert server.connections == 1


def test_an_end_that_a_shutdown_made_is_not_taken_for_the_end_of_the_body() -> None:
    """Reading itself raises: the code that reads has nothing to keep for a whole answer."""
    ends: List[object] = []
    with Server(servers.stalling(servers.UNTIL_CLOSE, EVENTS)) as server, local_client() as client:
        with CancellationToken() as token, pytest.raises(Cancelled):
            with client.stream("GET", server.url, token=token) as response:
                pieces = response.iter_bytes()
                assert next(pieces) == EVENTS
                timer = threading.Thread(target=lambda: (servers.wait_blocked(reader), token.cancel()))
                reader = threading.current_thread()
                timer.start()
                try:
                    ends.append(next(pieces, "the end"))
                except Cancelled:
                    ends.append(Cancelled)
                timer.join()
    assert ends == [Cancelled]


# The pool takes a connection back as soon as its body has ended, before the code that read it runs on.


def handed_over() -> "tuple[object, int]":
    """Cancel request A when B has checked A's connection out of the pool; return what B got."""

    def script(peer: servers.Peer) -> None:
        peer.request()
        peer.send(servers.OK)
        peer.request()
        peer.reached("B is waiting")
        peer.await_go("answer B")
        peer.send(servers.OK)
        peer.stall()

    got: List[object] = []

    def request_b() -> None:
        try:
            got.append(get(client, server.url))
        except TransportError as exc:
            got.append(exc.code)

    with Server(script) as server, local_client() as client:
        with CancellationToken() as token, pytest.raises(Cancelled):
            with client.stream("GET", server.url, token=token) as response:
                assert response.read() == b"ok"
                thread = threading.Thread(target=request_b)
                thread.start()
                server.wait("B is waiting")
                token.cancel()
        server.go("answer B")
        thread.join(DEADLINE)
        assert not thread.is_alive()
        return got[0], server.connections


def test_a_late_cancel_does_not_reach_the_request_that_has_the_connection_by_then() -> None:
    assert handed_over() == (b"ok", 1)


def test_untying_the_connection_after_the_pool_has_it_would_kill_that_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The test above sees the rule: without it, B fails."""
    monkeypatch.delattr(adapter._LeasedPool, "_put_conn")
    assert handed_over() == ("connection", 1)


def test_a_connection_that_was_shut_down_as_its_body_ended_is_not_pooled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The cancel comes between the last byte and the pool."""
    put = adapter._LeasedPool._put_conn

    def cancel_first(pool: Any, conn: Any) -> None:
        token.cancel()
        put(pool, conn)

    with Server(servers.answering(servers.OK)) as server, local_client() as client:
        before = servers.open_descriptors()
        monkeypatch.setattr(adapter._LeasedPool, "_put_conn", cancel_first)
        with CancellationToken() as token, pytest.raises(Cancelled):
            get(client, server.url, token)
        server.wait_ended()
        assert servers.open_descriptors() == before
        assert get(client, server.url) == b"ok"
        assert server.connections == 2


def test_cancels_at_any_moment_disturb_no_other_request_of_the_client(authority: Authority) -> None:
    """Threads share one client, others reuse descriptor numbers; what isn't cancelled succeeds."""
    end = time.monotonic() + DEADLINE
    failures: List[BaseException] = []
    counts = {"innocent": 0, "cancelled": 0}
    script = servers.answering(servers.with_length(1 << 16) + b"y" * (1 << 16))

    def busy() -> bool:
        return not failures and min(counts.values()) < 60 and time.monotonic() < end

    def innocent(url: str) -> None:
        while busy():
            assert get(client, url) == b"y" * (1 << 16)
            counts["innocent"] += 1

    def cancelled(url: str) -> None:
        while busy():
            with CancellationToken() as token:
                timer = threading.Timer(random.random() * 0.01, token.cancel)
                timer.start()
                with contextlib.suppress(Cancelled):
                    while True:
                        get(client, url, token)
                counts["cancelled"] += 1
                timer.join()

    def churn(url: str) -> None:
        while busy():
            pairs = [socket.socketpair() for _ in range(8)]
            for one, other in pairs:
                one.sendall(b"x")
                assert other.recv(1) == b"x"
            for one, other in pairs:
                one.close()
                other.close()

    def guarded(work: Callable[[str], None], url: str) -> None:
        try:
            work(url)
        except BaseException as exc:
            failures.append(exc)

    with Server(script) as plain, Server(script, tls=authority.context()) as secure:
        with local_client(verify=authority.bundle) as client:
            work = [(churn, plain), *((fn, at) for fn in (innocent, cancelled) for at in (plain, secure))]
            threads = [threading.Thread(target=guarded, args=(fn, at.url)) for fn, at in work]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(DEADLINE)
                assert not thread.is_alive()
    assert failures == []
    assert min(counts.values()) >= 60, counts


# -- the lease --------------------------------------------------------------------------------------


@pytest.fixture
def pair() -> Iterator[List[socket.socket]]:
    pair = socket.socketpair()
    yield list(pair)
    for sock in pair:
        sock.close()


def test_a_socket_that_is_attached_after_the_cancel_is_shut_down_at_once(pair: List[socket.socket]) -> None:
    token = CancellationToken()
    with Lease(token) as lease:
        token.cancel()
        lease.attach(pair[0])
        assert pair[1].recv(1) == b""
        assert not lease.detach()


def test_a_detached_socket_is_out_of_reach(pair: List[socket.socket]) -> None:
    token = CancellationToken()
    with Lease(token) as lease:
        lease.attach(pair[0])
        assert lease.detach()
        token.cancel()
        pair[0].sendall(b"x")
        assert pair[1].recv(1) == b"x"


def test_attaching_another_socket_lets_go_of_the_one_before(pair: List[socket.socket]) -> None:
    token = CancellationToken()
    others = socket.socketpair()
    with others[0], others[1], Lease(token) as lease:
        lease.attach(pair[0])
        lease.attach(others[0])
        token.cancel()
        assert others[1].recv(1) == b""
        pair[0].sendall(b"x")
        assert pair[1].recv(1) == b"x"


def test_a_lease_keeps_a_descriptor_of_its_own_and_gives_it_back(pair: List[socket.socket]) -> None:
    """The socket may be closed and its number reused: the lease still means its connection."""
    token = CancellationToken()
    before = len(os.listdir("/proc/self/fd"))
    with Lease(token) as lease:
        lease.attach(pair[0])
        number = pair[0].fileno()
        pair[0].close()
        reused = socket.socketpair()
        assert number in (reused[0].fileno(), reused[1].fileno())
        token.cancel()
        assert pair[1].recv(1) == b""
        reused[0].sendall(b"x")
        assert reused[1].recv(1) == b"x"
        for sock in reused:
            sock.close()
    assert len(os.listdir("/proc/self/fd")) == before - 1


@pytest.mark.parametrize("timeout", [None, 5.0])
def test_attaching_leaves_the_blocking_mode_alone(
    pair: List[socket.socket], timeout: Optional[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mode belongs to the connection and not to the descriptor, and a default would change it."""
    socket.setdefaulttimeout(3.0)
    try:
        pair[0].settimeout(timeout)
        mode = os.get_blocking(pair[0].fileno())
        with Lease(CancellationToken()) as lease:
            lease.attach(pair[0])
            assert os.get_blocking(pair[0].fileno()) == mode
    finally:
        socket.setdefaulttimeout(None)


def test_the_modules_can_be_imported_where_there_is_no_poll() -> None:
    code = (
        "import select; del select.poll\n"
        "import syncagent.boundary.http.adapter, syncagent.boundary.http.client"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_importing_the_client_loads_no_requests() -> None:
    code = (
        "import sys, syncagent.boundary.http.client, syncagent.boundary.http.sse\n"
        "assert not {'requests', 'urllib3'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_cancel_in_a_forked_child_leaves_the_connection_to_its_parent() -> None:
    go = threading.Event()

    def script(peer: Peer) -> None:
        peer.request()
        peer.send(servers.with_length(2), b"o")
        go.wait(DEADLINE)
        peer.send(b"k")

    with Server(script) as server, local_client() as client, CancellationToken() as token:
        with client.stream("GET", server.url, token=token) as response:
            pieces = response.iter_bytes()
            assert next(pieces) == b"o"
            assert in_child(token.cancel) == 0
            go.set()
            assert next(pieces) == b"k"
