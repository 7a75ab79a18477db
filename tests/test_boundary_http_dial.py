"""Connecting: to whichever address accepts, within the limit, and until the token says stop."""

import errno
import socket
import threading
from typing import Any, Iterator, List

import pytest

import http_servers as servers
from http_servers import DEADLINE, Server
from syncagent.boundary.http import dial
from syncagent.cancel import CancellationToken, Cancelled

pytestmark = pytest.mark.concurrent


@pytest.fixture
def token() -> Iterator[CancellationToken]:
    with CancellationToken() as token:
        yield token


def address_of(port: int) -> Any:
    return (socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", port))


def test_a_numeric_host_is_not_looked_up(token: CancellationToken, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: List[Any] = []
    real = socket.getaddrinfo

    def spy(*arguments: Any) -> Any:
        asked.append(arguments)
        return real(*arguments)

    monkeypatch.setattr(socket, "getaddrinfo", spy)
    assert dial.resolve("127.0.0.1", 80, token=token)[0][4] == ("127.0.0.1", 80)
    assert dial.resolve("::1", 80, token=token)[0][4][0] == "::1"
    assert [arguments[5] for arguments in asked] == [socket.AI_NUMERICHOST] * 2


def test_a_name_of_the_hosts_file_is_found(token: CancellationToken) -> None:
    assert any(item[4][0] in ("127.0.0.1", "::1") for item in dial.resolve("localhost", 80, token=token))


@pytest.mark.parametrize("host", ["a..b", "x" * 64 + ".example", ""])
def test_what_cannot_be_a_name_is_an_unknown_name(host: str, token: CancellationToken) -> None:
    with pytest.raises(socket.gaierror):
        dial.resolve(host or ".", 80, token=token)


def test_a_cancel_during_the_look_up_is_noticed_after_it(
    token: CancellationToken, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = socket.getaddrinfo

    def cancelling(*arguments: Any) -> Any:
        token.cancel()
        return real(*arguments)

    monkeypatch.setattr(socket, "getaddrinfo", cancelling)
    with pytest.raises(Cancelled):
        dial.resolve("localhost", 80, token=token)


def test_the_next_address_is_tried_when_one_refuses_or_its_family_is_missing(
    token: CancellationToken,
) -> None:
    with Server(servers.silent) as server:
        missing = (65000, socket.SOCK_STREAM, 0, "", ("::1", server.port))
        addresses = [missing, address_of(1), address_of(server.port)]
        with dial.connect(addresses, token=token, timeout=DEADLINE) as sock:
            assert sock.getpeername()[1] == server.port
            assert sock.gettimeout() == DEADLINE


def test_the_last_address_gives_the_error(token: CancellationToken) -> None:
    with pytest.raises(ConnectionRefusedError):
        dial.connect([address_of(1), address_of(1)], token=token, timeout=DEADLINE)
    with pytest.raises(OSError) as caught:
        dial.connect([], token=token)
    assert caught.value.errno == errno.EADDRNOTAVAIL


def test_a_host_that_lets_nobody_in_is_a_time_out(token: CancellationToken) -> None:
    before = servers.open_descriptors()
    with servers.full_backlog() as port:
        with pytest.raises(socket.timeout):
            dial.connect([address_of(port)], token=token, timeout=0.05)
    token.close()
    assert servers.open_descriptors() == before


def test_a_cancel_ends_the_wait_and_tries_no_further_address(token: CancellationToken) -> None:
    outcome: List[BaseException] = []

    def work() -> None:
        try:
            dial.connect([address_of(port), address_of(server.port)], token=token)
        except BaseException as exc:
            outcome.append(exc)

    with servers.full_backlog() as port, Server(servers.silent) as server:
        thread = threading.Thread(target=work)
        thread.start()
        servers.wait_blocked(thread)
        token.cancel()
        thread.join(DEADLINE)
        assert not thread.is_alive()
        assert server.connections == 0
    assert isinstance(outcome[0], Cancelled)


def test_a_cancelled_token_makes_no_socket(token: CancellationToken) -> None:
    token.cancel()
    with pytest.raises(Cancelled):
        dial.connect([address_of(1)], token=token, make=lambda *kind: pytest.fail("made one"))


def test_options_and_the_source_address_are_applied(token: CancellationToken) -> None:
    options = [(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)]
    with Server(servers.silent) as server:
        with dial.connect(
            [address_of(server.port)], token=token, options=options, source_address=("127.0.0.1", 0)
        ) as sock:
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0
            assert sock.getsockname()[0] == "127.0.0.1"
            assert sock.gettimeout() is None
