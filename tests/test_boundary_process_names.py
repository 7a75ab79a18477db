"""A lookup in a child answers as `getaddrinfo` does, is killed at once, and leaves nothing."""

import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import Any, Iterator, List, Optional

import pytest
from lookups import NAME, hanging
from processes import DEADLINE, ROOT, children_of, start_host, state_of, until
from test_boundary_process_client import in_fork

from syncagent.boundary.process import ProcessError, Processes, launcher, shared
from syncagent.boundary.process.names import look_up
from syncagent.cancel import CancellationToken, Cancelled

pytestmark = pytest.mark.concurrent


@pytest.fixture
def token() -> Iterator[CancellationToken]:
    with CancellationToken() as token:
        yield token


@pytest.fixture
def processes() -> Iterator[Processes]:
    """The supervisor of an agent, started."""
    with shared() as processes, CancellationToken() as token:
        processes.run(["true"], token=token)
        yield processes


class Lookup:
    """One in a thread of its own."""

    def __init__(self, token: CancellationToken, timeout: Optional[float] = None) -> None:
        self.error: Optional[BaseException] = None
        self.ended = 0.0
        self._thread = threading.Thread(target=self._work, args=(token, timeout), daemon=True)
        self._thread.start()

    def _work(self, token: CancellationToken, timeout: Optional[float]) -> None:
        try:
            look_up(NAME, 80, token=token, timeout=timeout)
        except BaseException as exc:
            self.error, self.ended = exc, time.perf_counter()

    def join(self) -> Optional[BaseException]:
        self._thread.join(DEADLINE)
        assert not self._thread.is_alive(), "the lookup hangs"
        return self.error


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "::1", "fe80::1%lo", socket.gethostname()])
def test_the_answer_is_that_of_getaddrinfo(host: str, token: CancellationToken) -> None:
    try:
        expected: Any = socket.getaddrinfo(host, 443, 0, socket.SOCK_STREAM)
    except socket.gaierror:
        pytest.skip(f"this machine doesn't know {host}")
    found = look_up(host, 443, token=token)
    assert found == expected
    assert [tuple(map(type, item)) for item in found] == [tuple(map(type, item)) for item in expected]


@pytest.mark.parametrize("host", ["a..b", "x" * 64 + ".example", "-.invalid\x7f"])
def test_the_error_is_that_of_getaddrinfo(host: str, token: CancellationToken) -> None:
    with pytest.raises(socket.gaierror) as caught:
        look_up(host, 80, token=token)
    try:
        socket.getaddrinfo(host, 80, 0, socket.SOCK_STREAM)
    except socket.gaierror as exc:
        assert caught.value.args == exc.args
    except UnicodeError:
        assert caught.value.errno == socket.EAI_NONAME


def test_a_lookup_shares_the_supervisor_of_an_agent(processes: Processes, token: CancellationToken) -> None:
    pid = processes.supervisor_pid
    look_up("localhost", 80, token=token)
    assert pid is not None and processes.supervisor_pid == pid
    assert children_of(pid) == []


def test_without_an_agent_no_supervisor_is_left(token: CancellationToken) -> None:
    before = children_of(os.getpid())
    look_up("localhost", 80, token=token)
    assert children_of(os.getpid()) == before


def test_a_cancel_kills_the_child(
    processes: Processes, token: CancellationToken, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hanging(tmp_path, monkeypatch) as pipe:
        lookup = Lookup(token)
        pipe.wait_entered()
        begun = time.perf_counter()
        token.cancel()
        assert isinstance(lookup.join(), Cancelled)
        assert processes.supervisor_pid is not None
        assert children_of(processes.supervisor_pid) == []
        assert lookup.ended - begun < 2.0  # milliseconds on an idle machine; the resolver would take for ever


def test_a_cancelled_token_starts_nothing(token: CancellationToken) -> None:
    token.cancel()
    before = children_of(os.getpid())
    with pytest.raises(Cancelled):
        look_up("localhost", 80, token=token)
    assert children_of(os.getpid()) == before


def test_the_time_out_kills_the_child(
    processes: Processes, token: CancellationToken, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hanging(tmp_path, monkeypatch):
        with pytest.raises(socket.timeout):
            look_up(NAME, 80, token=token, timeout=0.05)
        assert processes.supervisor_pid is not None
        assert children_of(processes.supervisor_pid) == []


def test_a_killed_guard_is_an_error_that_may_pass(
    processes: Processes, token: CancellationToken, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hanging(tmp_path, monkeypatch) as pipe:
        lookup = Lookup(token)
        pipe.wait_entered()
        assert processes.supervisor_pid is not None
        [guard] = children_of(processes.supervisor_pid)
        [child] = children_of(guard)
        os.kill(guard, signal.SIGKILL)
        error = lookup.join()
        assert isinstance(error, socket.gaierror) and error.errno == socket.EAI_AGAIN
        assert state_of(child) == ""


def test_a_killed_child_is_an_error_that_may_pass(
    processes: Processes, token: CancellationToken, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hanging(tmp_path, monkeypatch) as pipe:
        lookup = Lookup(token)
        pipe.wait_entered()
        assert processes.supervisor_pid is not None
        [guard] = children_of(processes.supervisor_pid)
        os.kill(children_of(guard)[0], signal.SIGKILL)
        error = lookup.join()
        assert isinstance(error, socket.gaierror) and error.errno == socket.EAI_AGAIN
        assert "signal 9" in str(error)


HOST = f"""
from syncagent.boundary.process.names import look_up
from syncagent.cancel import CancellationToken
with CancellationToken() as token:
    look_up({NAME!r}, 80, token=token)
"""


def test_a_runtime_that_is_killed_leaves_nothing(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hanging(tmp_path, monkeypatch) as pipe:
        host = start_host(HOST)
        pipe.wait_entered()
        [supervisor] = children_of(host.pid)
        [guard] = children_of(supervisor)
        [child] = children_of(guard)
        host.send_signal(signal.SIGKILL)
        host.communicate()
        for pid in (child, guard, supervisor):
            until(lambda pid=pid: state_of(pid) in ("", "Z"), "it is gone")


def test_many_threads_at_once(processes: Processes) -> None:
    answers: List[Any] = []

    def work() -> None:
        with CancellationToken() as token:
            answers.append(look_up("localhost", 80, token=token))

    threads = [threading.Thread(target=work) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE)
    assert len(answers) == 16 and all(answer == answers[0] for answer in answers)


def test_a_forked_child_looks_up_by_its_own_supervisor(
    processes: Processes, token: CancellationToken
) -> None:
    look_up("localhost", 80, token=token)

    def work() -> None:
        with CancellationToken() as own:
            assert look_up("localhost", 80, token=own)

    assert in_fork(work) == 0
    assert look_up("localhost", 80, token=token)


def test_where_no_child_can_be_started_it_says_so(
    token: CancellationToken, monkeypatch: pytest.MonkeyPatch
) -> None:
    def embedded() -> str:
        raise ProcessError("no Python interpreter is known here")

    monkeypatch.setattr(launcher, "find_python", embedded)
    with pytest.raises(ProcessError, match="interpreter"):
        look_up("localhost", 80, token=token)


#: In namespaces of its own: a name server that it is root enough to run, on port 53 of its own loopback.
SERVER = """
import fcntl, socket, struct, subprocess, sys, threading
from syncagent.boundary.process.names import look_up
from syncagent.cancel import CancellationToken, Cancelled

probe = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
fcntl.ioctl(probe, 0x8914, struct.pack("16sh14x", b"lo", 0x49))  # SIOCSIFFLAGS: up, loopback, running
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(("127.0.0.1", 53))
asked = threading.Event()

def serve():
    while True:
        query, peer = server.recvfrom(512)
        asked.set()
        if b"silent" in query:
            continue
        end = query.index(b"\\0", 12) + 5
        kind = query[end - 3]
        data = {1: [bytes([10, 0, 0, n]) for n in (1, 2, 3)], 28: [bytes([253]) + bytes(14) + b"\\7"]}[kind]
        answers = [b"\\xc0\\x0c" + struct.pack(">HHIH", kind, 1, 60, len(item)) + item for item in data]
        head = query[:2] + b"\\x81\\x80\\0\\1" + struct.pack(">H", len(answers)) + bytes(4)
        server.sendto(head + query[12:end] + b"".join(answers), peer)

threading.Thread(target=serve, daemon=True).start()
with CancellationToken() as token:
    found = look_up("many.example.test", 80, token=token)
    inline = socket.getaddrinfo("many.example.test", 80, 0, socket.SOCK_STREAM)
    assert [item[:4] for item in found] == [item[:4] for item in inline]
    assert sorted(item[4] for item in found) == sorted(item[4] for item in inline)
    assert len(found) == 4 and socket.AF_INET6 in [item[0] for item in found], found
    asked.clear()
    threading.Thread(target=lambda: (asked.wait(), token.cancel()), daemon=True).start()
    try:
        look_up("silent.example.test", 80, token=token)
    except Cancelled:
        print("woken")
"""


def test_several_addresses_and_a_silent_name_server(tmp_path: pathlib.Path) -> None:
    (tmp_path / "resolv.conf").write_text("nameserver 127.0.0.1\n")
    mount = f"mount --bind {tmp_path}/resolv.conf /etc/resolv.conf"
    alone = ["unshare", "-Urmn", "sh", "-c"]
    try:
        able = subprocess.run([*alone, mount], capture_output=True).returncode == 0
    except OSError:
        able = False
    if not able:
        pytest.skip("no namespaces here: /etc/resolv.conf can't be replaced for one process")
    done = subprocess.run(
        [*alone, f'{mount} && exec "$0" -c "$1"', sys.executable, SERVER],
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        env={**os.environ, "PYTHONPATH": ROOT},
    )
    assert done.stdout == "woken\n", done
