"""What a client keeps of its lookups, and that a request is woken while it makes one."""

import pathlib
import socket
import threading
from typing import Any, Iterator, List

import pytest
from http_servers import OK, Server, answering
from lookups import NAME, hanging
from processes import DEADLINE, children_of
from test_boundary_process_client import in_fork

from syncagent.boundary.http import names as module
from syncagent.boundary.http.client import HttpClient, TransportError
from syncagent.boundary.http.names import KEPT, LARGEST, Names
from syncagent.boundary.models.chat import ChatModel
from syncagent.boundary.process import ProcessError, launcher, shared
from syncagent.cancel import CancellationToken, Cancelled

pytestmark = pytest.mark.concurrent


@pytest.fixture
def token() -> Iterator[CancellationToken]:
    with CancellationToken() as token:
        yield token


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> List[str]:
    """The names that are really looked up, by a lookup that sees to that."""
    seen: List[str] = []
    real = module.look_up

    def spy(host: str, port: int, **options: Any) -> Any:
        seen.append(host)
        return real("127.0.0.1" if host.startswith("host-") else host, port, **options)

    monkeypatch.setattr(module, "look_up", spy)
    return seen


def test_a_name_is_kept_for_a_while(
    token: CancellationToken, asked: List[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    names, now = Names(), [1000.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(module, "look_up", lambda host, port, **_: asked.append(host) or [(port,)])
    for moment, times in ((1000.0, 1), (1000.0 + KEPT - 0.1, 1), (1000.0 + KEPT, 2)):
        now[0] = moment
        names.resolve("localhost", 80, token=token)
        assert len(asked) == times
    names.resolve("localhost", 81, token=token)
    names.clear()
    names.resolve("localhost", 81, token=token)
    assert len(asked) == 4


def test_a_numeric_host_is_neither_looked_up_nor_kept(token: CancellationToken, asked: List[str]) -> None:
    names = Names()
    assert names.resolve("127.0.0.1", 80, token=token)[0][4] == ("127.0.0.1", 80)
    assert names.resolve("::1", 80, token=token)[0][0] == socket.AF_INET6
    assert asked == []


def test_a_failure_is_not_kept(token: CancellationToken, asked: List[str]) -> None:
    names = Names()
    for _ in range(2):
        with pytest.raises(socket.gaierror):
            names.resolve("a..b", 80, token=token)
    with pytest.raises(socket.gaierror):
        names.resolve("x" * 64, 80, token=token)


def test_no_more_names_are_kept_than_there_is_room_for(
    token: CancellationToken, asked: List[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = Names()
    monkeypatch.setattr(module, "look_up", lambda host, port, **_: asked.append(host) or [(port,)])
    for number in range(LARGEST + 1):
        names.resolve(f"host-{number}", 80, token=token)
    names.resolve(f"host-{LARGEST}", 80, token=token)
    names.resolve("host-1", 80, token=token)
    assert len(asked) == LARGEST + 1
    names.resolve("host-0", 80, token=token)  # the oldest
    assert len(asked) == LARGEST + 2


def test_an_address_where_nobody_is_met_is_forgotten(token: CancellationToken, asked: List[str]) -> None:
    names = Names()
    for _ in range(2):
        with pytest.raises(OSError):
            names.connect("host-1", 1, token=token, timeout=DEADLINE)
    assert asked == ["host-1", "host-1"]


def test_a_client_looks_a_name_up_once_and_its_fork_not_again(
    token: CancellationToken, asked: List[str]
) -> None:
    with Server(answering(OK)) as server:
        url = f"http://localhost:{server.port}/"
        client = HttpClient(trust_env=False)

        def get() -> None:
            with client.stream("GET", url, token=token) as response:
                assert response.read() == b"ok"
            client._session.close()  # type: ignore[union-attr]  # the next one connects anew

        get()
        get()
        assert in_fork(get) == 0
        assert asked == ["localhost"]
        client.close()


def test_inline_starts_no_child(token: CancellationToken, asked: List[str]) -> None:
    assert Names("inline").resolve("localhost", 80, token=token)
    assert asked == []


def test_another_word_is_refused() -> None:
    for make in (Names, lambda dns: HttpClient(dns=dns), lambda dns: ChatModel("x", dns=dns)):
        with pytest.raises(ValueError, match="dns is 'child' or 'inline', not 'thread'"):
            make("thread")


@pytest.mark.parametrize("options", [{}, {"proxies": {"http": f"http://{NAME}:3128"}}])
def test_a_cancel_wakes_a_request_in_its_lookup(
    options: Any, token: CancellationToken, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome: List[BaseException] = []
    client = HttpClient(trust_env=False, **options)
    host = "127.0.0.1" if options else NAME

    def work() -> None:
        try:
            with client.stream("GET", f"http://{host}/", token=token):
                pass
        except BaseException as exc:
            outcome.append(exc)

    with shared() as processes, hanging(tmp_path, monkeypatch) as pipe:
        thread = threading.Thread(target=work)
        thread.start()
        pipe.wait_entered()
        token.cancel()
        thread.join(DEADLINE)
        assert not thread.is_alive() and isinstance(outcome[0], Cancelled)
        assert processes.supervisor_pid is not None
        assert children_of(processes.supervisor_pid) == []
    client.close()


def test_the_connect_time_out_counts_for_the_lookup(
    token: CancellationToken, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = HttpClient(trust_env=False, connect_timeout=0.05)
    with hanging(tmp_path, monkeypatch), pytest.raises(TransportError) as caught:
        with client.stream("GET", f"http://{NAME}/", token=token):
            pass
    assert (caught.value.code, caught.value.retryable) == ("timeout", True)
    client.close()


def test_where_no_child_can_be_started_the_error_names_the_way_out(
    token: CancellationToken, monkeypatch: pytest.MonkeyPatch
) -> None:
    def embedded() -> str:
        raise ProcessError("no Python interpreter is known here")

    monkeypatch.setattr(launcher, "find_python", embedded)
    client = HttpClient(trust_env=False)
    with pytest.raises(TransportError, match="dns='inline'") as caught:
        with client.stream("GET", "http://localhost:1/", token=token):
            pass
    assert (caught.value.code, caught.value.retryable) == ("connection", False)
    client.close()
