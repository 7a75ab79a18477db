"""SOCKS: the negotiation works, its errors are ordinary, and what it waits for is woken."""

import socket
from typing import Any, Iterator, List

import pytest

import http_servers as servers
from http_servers import DEADLINE, Peer, Server
from syncagent.boundary.http import over_socks
from syncagent.boundary.http.client import HttpClient, TransportError
from syncagent.boundary.http.names import Names
from syncagent.cancel import CancellationToken, Cancelled

pytestmark = pytest.mark.concurrent

socks = pytest.importorskip("socks")


@pytest.fixture
def token() -> Iterator[CancellationToken]:
    with CancellationToken() as token:
        yield token


def via(server: Server, **more: Any) -> Any:
    described = {
        "socks_version": socks.PROXY_TYPE_SOCKS5,
        "proxy_host": "127.0.0.1",
        "proxy_port": str(server.port),
        "username": None,
        "password": None,
        "rdns": False,
    }
    return {**described, **more}


def connect(target: Any, proxy: Any, token: CancellationToken, attached: List[Any]) -> socket.socket:
    return over_socks.connect(
        target, proxy=proxy, token=token, attach=attached.append, names=Names(), timeout=DEADLINE
    )


def test_requests_go_through_the_proxy_and_reuse_its_connection(token: CancellationToken) -> None:
    with Server(servers.answering(servers.OK)) as server, Server(servers.socks_proxy) as proxy:
        client = HttpClient(trust_env=False, proxies={"all": f"socks5://{proxy.address}"})
        for _ in range(2):
            with client.stream("GET", server.url, token=token) as response:
                assert response.read() == b"ok"
        assert (proxy.connections, server.connections) == (1, 1)
        client.close()


def test_a_name_is_resolved_here_unless_the_proxy_shall_do_it(token: CancellationToken) -> None:
    asked: List[bytes] = []

    def script(peer: Peer) -> None:
        peer.receive()
        peer.send(b"\x05\x00")
        asked.append(peer.receive())
        peer.send(b"\x05\x00\x00\x01\x00\x00\x00\x00\x00\x00")
        peer.stall()

    with Server(script) as proxy:
        for remote in (False, True):
            attached: List[Any] = []
            with connect(("localhost", 80), via(proxy, rdns=remote), token, attached) as sock:
                assert attached == [sock]
                assert sock.gettimeout() == DEADLINE
    assert asked[0][3:4] in (b"\x01", b"\x04")  # an address
    assert asked[1][3:14] == b"\x03\x09localhost"


def test_socks4_takes_an_ipv4_address(token: CancellationToken) -> None:
    def script(peer: Peer) -> None:
        assert peer.receive()[:8] == b"\x04\x01\x00\x50\x7f\x00\x00\x01"
        peer.send(b"\x00\x5a" + bytes(6))
        peer.stall()

    with Server(script) as proxy:
        with connect(("127.0.0.1", 80), via(proxy, socks_version=socks.PROXY_TYPE_SOCKS4), token, []):
            pass
        with pytest.raises(socket.gaierror):
            connect(("::1", 80), via(proxy, socks_version=socks.PROXY_TYPE_SOCKS4), token, [])


def test_a_refusal_of_the_proxy_is_a_connection_error(token: CancellationToken) -> None:
    def script(peer: Peer) -> None:
        peer.receive()
        peer.send(b"\x05\x00")
        peer.receive()
        peer.send(b"\x05\x05\x00\x01\x00\x00\x00\x00\x00\x00")

    with Server(script) as proxy:
        client = HttpClient(trust_env=False, proxies={"http": f"socks5://user:s3cr3t@{proxy.address}"})
        with pytest.raises(TransportError, match="0x05: Connection refused") as caught:
            with client.stream("GET", "http://127.0.0.1:9/", token=token):
                pass
        assert (caught.value.code, caught.value.retryable) == ("connection", True)
        assert "s3cr3t" not in str(caught.value)


def test_a_proxy_that_falls_silent_is_a_time_out(token: CancellationToken) -> None:
    with Server(servers.silent) as proxy:
        client = HttpClient(
            trust_env=False, connect_timeout=0.2, proxies={"http": f"socks5://{proxy.address}"}
        )
        with pytest.raises(TransportError) as caught:
            with client.stream("GET", "http://127.0.0.1:9/", token=token):
                pass
        assert (caught.value.code, caught.value.retryable) == ("timeout", True)


def test_a_cancel_as_the_negotiation_ends_closes_the_socket(token: CancellationToken) -> None:
    before = servers.open_descriptors()
    with Server(servers.answering(servers.OK)) as server, Server(servers.socks_proxy) as proxy:
        with pytest.raises(Cancelled):
            over_socks.connect(
                ("127.0.0.1", server.port),
                proxy=via(proxy),
                token=token,
                attach=lambda sock: token.cancel(),
                names=Names(),
                timeout=DEADLINE,
            )
        proxy.wait_ended()
    token.close()
    assert servers.open_descriptors() == before
