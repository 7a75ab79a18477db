"""The supervisor's start says clearly why it fails, and handing over a call can be cancelled."""

import contextlib
import os
import signal
import sys
import threading
from typing import Any, Iterator

import pytest
from processes import bash, until

from syncagent.boundary.process import ProcessError, Processes, launcher
from syncagent.boundary.process.run import NeverStarted
from syncagent.cancel import CancellationToken, Cancelled

pytestmark = pytest.mark.concurrent


@pytest.fixture
def supervisor() -> Iterator[launcher.Supervisor]:
    supervisor = launcher.Supervisor.start()
    yield supervisor
    supervisor.end()


def embedded(monkeypatch: pytest.MonkeyPatch, executable: Any) -> None:
    monkeypatch.setattr(sys, "executable", executable)
    monkeypatch.setattr(sys, "_base_executable", executable, raising=False)


@pytest.mark.parametrize("executable", [None, "", "/usr/sbin/uwsgi", "/no/such/python3", "/etc", "/bin/true"])
def test_an_embedded_python_is_found_by_its_prefix(monkeypatch: pytest.MonkeyPatch, executable: Any) -> None:
    embedded(monkeypatch, executable)
    path = launcher.find_python()
    assert os.path.basename(path).startswith("python3.")
    with contextlib.closing(Processes()) as processes:
        assert bash(processes, "echo hi").output == "hi\n"


@pytest.mark.parametrize("executable", [None, "", "/usr/sbin/uwsgi", "/no/such/python3"])
def test_an_embedded_python_without_an_interpreter_is_a_clear_error(
    monkeypatch: pytest.MonkeyPatch, executable: Any
) -> None:
    embedded(monkeypatch, executable)
    monkeypatch.setattr(sys, "exec_prefix", "/no/such")
    monkeypatch.setattr(sys, "base_exec_prefix", "/no/such")
    with contextlib.closing(Processes()) as processes:
        with pytest.raises(ProcessError, match=r"no Python interpreter is known here .*sys\.executable"):
            bash(processes, "true")


def test_a_python_that_is_none_is_a_clear_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    fake = tmp_path / "python3"
    fake.write_text("#!/bin/sh\necho no such module: os >&2\nexit 3\n")
    fake.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(fake))
    with contextlib.closing(Processes()) as processes:
        with pytest.raises(ProcessError, match="doesn't run: no such module: os"):
            bash(processes, "true")


def test_a_python_that_cannot_be_executed_is_a_clear_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    fake = tmp_path / "python3"
    fake.write_bytes(b"\x7fELF, but no")
    fake.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(fake))
    with contextlib.closing(Processes()) as processes:
        with pytest.raises(ProcessError, match="cannot start the supervisor"):
            bash(processes, "true")


def test_a_zipped_package_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "__file__", "/app.zip/syncagent/boundary/process/launcher.py")
    with pytest.raises(ProcessError, match="is no file"):
        launcher.Supervisor.start()


def test_a_full_socket_waits_and_can_be_cancelled(supervisor: launcher.Supervisor) -> None:
    os.kill(supervisor.child.pid, signal.SIGSTOP)
    sent = 0
    try:
        null = os.open(os.devnull, os.O_RDONLY)
        with CancellationToken() as token:
            done = threading.Event()

            def fill() -> None:
                nonlocal sent
                with contextlib.suppress(Cancelled):
                    while sent < 1_000_000:
                        supervisor.send([null], token)  # one instead of four: it starts nothing
                        sent += 1
                done.set()

            thread = threading.Thread(target=fill)
            thread.start()
            until(lambda: thread_waits(thread), "the socket is full")
            token.cancel()
            assert done.wait(10)
            thread.join()
        os.close(null)
    finally:
        os.kill(supervisor.child.pid, signal.SIGCONT)
    assert 0 < sent < 1_000_000


def thread_waits(thread: threading.Thread) -> bool:
    with contextlib.suppress(OSError):
        with open(f"/proc/self/task/{thread.native_id}/wchan") as file:
            if "poll" in file.read():
                return True
        with open(f"/proc/self/task/{thread.native_id}/syscall") as file:
            return file.read().split()[0] in ("7", "73", "271")  # poll, ppoll
    return False


def test_handing_over_to_a_dead_supervisor_is_noticed(supervisor: launcher.Supervisor) -> None:
    os.kill(supervisor.child.pid, signal.SIGKILL)
    supervisor.child.wait()
    with CancellationToken() as token, pytest.raises(NeverStarted):
        supervisor.send([0], token)


def test_handing_over_to_a_supervisor_that_another_thread_has_ended_is_noticed() -> None:
    supervisor = launcher.Supervisor.start()
    supervisor.end()
    with CancellationToken() as token, pytest.raises(NeverStarted) as caught:
        supervisor.send([0], token)
    assert caught.value.again


def test_a_supervisor_that_does_not_end_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "END_LIMIT", 0.1)
    supervisor = launcher.Supervisor.start()
    os.kill(supervisor.child.pid, signal.SIGSTOP)
    supervisor.end()
    assert supervisor.child.returncode == -signal.SIGKILL


def test_a_supervisor_is_ended_also_when_its_file_was_finalized_first() -> None:
    """So it goes at the end of an interpreter, in a script that has never closed its agent."""
    supervisor = launcher.Supervisor.start()
    assert supervisor.child.stderr is not None
    supervisor.child.stderr.close()
    assert supervisor.end() == ""
    assert supervisor.child.returncode is not None
