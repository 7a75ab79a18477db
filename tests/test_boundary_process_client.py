"""The supervisor comes with the first call and goes with `close`; threads and forks are no trouble."""

import contextlib
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any, Iterator, List

import pytest
from processes import Mark, Running, bash, children_of, run_host, state_of, until

from syncagent.boundary.process import ProcessError, Processes, launcher
from syncagent.cancel import CancellationToken, Cancelled

pytestmark = pytest.mark.concurrent


@pytest.fixture
def processes() -> Iterator[Processes]:
    with contextlib.closing(Processes()) as processes:
        yield processes


def test_the_supervisor_starts_with_the_first_call_and_is_reaped_at_the_end() -> None:
    processes = Processes()
    assert processes.supervisor_pid is None
    assert bash(processes, "echo hi").output == "hi\n"
    pid = processes.supervisor_pid
    assert pid is not None
    bash(processes, "true")
    assert processes.supervisor_pid == pid
    processes.close()
    assert state_of(pid) == ""
    assert processes.supervisor_pid is None
    processes.close()
    with pytest.raises(ProcessError, match="closed"):
        bash(processes, "true")


def test_after_a_call_not_even_its_guard_is_left(processes: Processes) -> None:
    for _ in range(5):
        bash(processes, "true")
        assert processes.supervisor_pid is not None
        assert children_of(processes.supervisor_pid) == []


def test_close_ends_what_runs(processes: Processes) -> None:
    script = "trap '' TERM; setsid sleep 60 & echo ready; while :; do sleep 0.05; done"
    call = Running(processes, script, grace=60.0)
    call.wait_for("ready")
    processes.close()
    assert call.mark.pids() == []
    assert call.join().cancelled


def test_closing_an_unused_one_starts_nothing() -> None:
    processes = Processes()
    processes.close()
    assert processes.supervisor_pid is None


# -- a cancel at the worst moment -----------------------------------------------------------------


def test_a_cancel_as_the_supervisor_s_start_returns_starts_no_tool(
    processes: Processes, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    token = CancellationToken()
    popen = subprocess.Popen

    def start(*args: Any, **kwargs: Any) -> Any:
        child = popen(*args, **kwargs)
        token.cancel()
        return child

    monkeypatch.setattr(subprocess, "Popen", start)
    with pytest.raises(Cancelled):
        processes.run(["touch", str(tmp_path / "made")], token=token)
    processes.close()
    assert os.listdir(tmp_path) == []


def test_a_cancel_right_after_the_call_was_handed_over_leaves_nothing(
    processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = launcher.Supervisor.send
    mark = Mark()

    def send_and_cancel(self: Any, fds: Any, token: CancellationToken) -> None:
        send(self, fds, token)
        token.cancel()

    monkeypatch.setattr(launcher.Supervisor, "send", send_and_cancel)
    with CancellationToken() as token, pytest.raises(Cancelled):
        processes.run(["sleep", "60"], token=token, env=mark.env)
    processes.close()
    assert mark.pids() == []


def test_a_cancel_at_any_moment_of_the_start_leaves_nothing(processes: Processes) -> None:
    bash(processes, "true")
    begin = time.monotonic()
    bash(processes, "true")
    span = 2 * (time.monotonic() - begin)
    mark = Mark()
    chance = random.Random(7)
    started = 0
    for _ in range(20):
        with CancellationToken() as token:
            timer = threading.Timer(chance.random() * span, token.cancel)
            timer.start()
            with contextlib.suppress(Cancelled):
                result = processes.run(["sleep", "60"], token=token, env=mark.env)
                assert result.cancelled
                started += 1
            timer.join()
        assert mark.pids() == []
    assert 0 < started


# -- threads --------------------------------------------------------------------------------------


def test_many_threads_run_at_once_and_get_their_own_results(processes: Processes) -> None:
    calls = [Running(processes, f"echo {at}; read x < <(sleep 0.2); exit {at}") for at in range(24)]
    for at, call in enumerate(calls):
        result = call.join()
        assert (result.exit_code, result.output) == (at, f"{at}\n")


@pytest.mark.once
def test_half_of_many_calls_are_cancelled_and_the_others_do_not_notice(processes: Processes) -> None:
    script = "setsid sleep 60 & echo go; read x < <(sleep 1); exit"
    calls = [Running(processes, f"{script} {at}") for at in range(16)]
    for call in calls:
        call.wait_for("go")
    for call in calls[::2]:
        call.token.cancel()
    for at, call in enumerate(calls):
        result = call.join()
        assert (result.cancelled, result.exit_code) == ((True, None) if at % 2 == 0 else (False, at))
        assert call.mark.pids() == []


def test_threads_that_start_together_share_one_supervisor() -> None:
    for _ in range(5):
        with contextlib.closing(Processes()) as processes:
            calls = [Running(processes, "echo hi") for _ in range(6)]
            assert [call.join().output for call in calls] == ["hi\n"] * 6
            assert processes.supervisor_pid is not None
            mine = [pid for pid in children_of(os.getpid()) if state_of(pid) != "Z"]
            assert mine == [processes.supervisor_pid]


# -- forks ----------------------------------------------------------------------------------------


def in_fork(work: Any) -> int:
    """Run it in a forked child and return the child's exit status."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            work()
            status = 0
        except BaseException as exc:  # the child must not run the tests on
            os.write(2, f"in the fork: {exc!r}\n".encode())
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_forked_child_starts_its_own_and_leaves_the_parent_s_alone(processes: Processes) -> None:
    call = Running(processes, "echo ready; read x < <(sleep 1); echo done")
    call.wait_for("ready")
    parent_s = processes.supervisor_pid

    def work() -> None:
        assert processes.supervisor_pid is None
        assert bash(processes, "echo child").output == "child\n"
        assert processes.supervisor_pid not in (None, parent_s)
        processes.close()

    assert in_fork(work) == 0
    assert processes.supervisor_pid == parent_s
    assert call.join().output == "ready\ndone\n"


def test_a_fork_while_the_lock_is_held_is_no_trouble(processes: Processes) -> None:
    bash(processes, "true")

    def work() -> None:
        assert bash(processes, "echo child").output == "child\n"
        processes.close()

    with processes._state().lock:
        assert in_fork(work) == 0


def test_a_forked_child_that_only_exits_disturbs_nothing(processes: Processes) -> None:
    bash(processes, "true")
    assert in_fork(lambda: None) == 0
    assert in_fork(processes.close) == 0
    assert bash(processes, "echo on").output == "on\n"


def test_a_forked_child_that_lives_on_does_not_delay_close(processes: Processes) -> None:
    bash(processes, "true")
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.read(reader, 1)
        os._exit(0)
    try:
        supervisor = processes.supervisor_pid
        processes.close()
        assert supervisor is not None and state_of(supervisor) == ""
    finally:
        os.write(writer, b"x")
        os.waitpid(pid, 0)
        os.close(reader)
        os.close(writer)


def test_prefork_workers_each_run_their_own() -> None:
    program = """
import os, threading
from syncagent.boundary.process import Processes
from syncagent.cancel import CancellationToken
assert threading.active_count() == 1
processes = Processes()
processes.run(["true"], token=CancellationToken())
pids = []
for n in range(4):
    pid = os.fork()
    if pid == 0:
        r = processes.run(["bash", "-c", f"echo {n}"], token=CancellationToken())
        processes.close()
        os._exit(0 if r.output == f"{n}\\n" else 1)
    pids.append(pid)
print([os.waitpid(pid, 0)[1] for pid in pids])
processes.close()
"""
    assert run_host(program) == "[0, 0, 0, 0]\n"


# -- hosts of other kinds -------------------------------------------------------------------------


def test_standard_input_of_the_host_keeps_its_bytes() -> None:
    program = """
import sys
from syncagent.boundary.process import Processes
from syncagent.cancel import CancellationToken
p = Processes()
for script in ("cat", "read x; echo got:$x", "head -c1 </dev/stdin"):
    print(repr(p.run(["bash", "-c", script], token=CancellationToken()).output))
p.close()
print(repr(sys.stdin.read()))
"""
    out = run_host(program, input="kept\n")
    assert out == "''\n'got:\\n'\n''\n'kept\\n'\n"


def test_a_terminal_of_the_host_is_out_of_reach() -> None:
    pexpect = pytest.importorskip("pexpect")
    program = (
        "from syncagent.boundary.process import Processes\n"
        "from syncagent.cancel import CancellationToken\n"
        "print(open('/dev/tty').isatty(), flush=True)\n"
        "p = Processes()\n"
        "r = p.run(['bash', '-c', 'head -c1 </dev/tty; ps -o tty= $$'], token=CancellationToken())\n"
        "print(r.output)\n"
        "p.close()\n"
    )
    from processes import ROOT

    host = pexpect.spawn(sys.executable, ["-c", program], env={**os.environ, "PYTHONPATH": ROOT}, timeout=20)
    host.expect(pexpect.EOF)
    host.close()
    assert host.before.startswith(b"True")
    assert b"No such device or address" in host.before
    assert b"?" in host.before


def test_without_posix_it_can_be_imported_and_says_so_when_used(monkeypatch: pytest.MonkeyPatch) -> None:
    program = """
import os, select, signal, socket, sys
for module, names in ((os, ["fork", "readv", "set_blocking", "waitid", "killpg", "setsid"]),
                      (select, ["poll"]), (signal, ["SIGPIPE", "pthread_sigmask"]),
                      (socket, ["SCM_RIGHTS", "AF_UNIX", "MSG_NOSIGNAL"])):
    for name in names:
        if hasattr(module, name):
            delattr(module, name)
sys.modules["fcntl"] = None
import syncagent.boundary.process as process, syncagent.boundary.tools.bash
from syncagent.cancel import CancellationToken
os.name = "nt"
with process.shared() as processes:
    try:
        processes.run(["true"], token=CancellationToken())
    except process.ProcessError as exc:
        print(exc)
"""
    assert run_host(program) == "child processes need a POSIX system; this one isn't\n"


def test_a_host_out_of_descriptors_gets_an_error_and_leaks_none(processes: Processes) -> None:
    bash(processes, "true")
    program = """
import os, resource
from syncagent.boundary.process import ProcessError, Processes
from syncagent.cancel import CancellationToken
p, token = Processes(), CancellationToken()
p.run(["true"], token=token)
count = len(os.listdir("/proc/self/fd"))
errors = 0
for limit in range(count, count + 9):
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, 4096))
    try:
        p.run(["true"], token=token)
    except ProcessError as exc:
        assert "Too many open files" in str(exc)
        errors += 1
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
    assert len(os.listdir("/proc/self/fd")) == count
print(errors > 3, p.run(["true"], token=token).exit_code)
p.close()
"""
    assert run_host(program) == "True 0\n"


def test_a_program_gets_the_descriptor_that_is_shared_and_no_other(processes: Processes) -> None:
    with tempfile.TemporaryFile() as file:
        result = bash(processes, "echo shared >&3; sleep 600 & ls /proc/self/fd", share=file.fileno())
        assert os.pread(file.fileno(), 100, 0) == b"shared\n"
    assert result.output.split() == ["0", "1", "2", "3", "4"]  # the last one is what `ls` reads
    assert result.stopped == 1
    assert bash(processes, "ls /proc/self/fd").output.split() == ["0", "1", "2", "3"]


def test_a_descriptor_that_is_shared_and_not_open_is_a_clear_error(processes: Processes) -> None:
    with pytest.raises(ProcessError, match="cannot start a child process: .*Bad file descriptor"):
        bash(processes, "true", share=100_000)
    assert bash(processes, "echo hi").output == "hi\n"


def test_a_folder_that_was_removed_under_the_host_is_a_clear_error() -> None:
    program = """
import os, tempfile
from syncagent.boundary import process
from syncagent.cancel import CancellationToken
os.chdir(tempfile.mkdtemp())
os.rmdir(os.getcwd())
with process.shared() as processes:
    try:
        processes.run(["true"], token=CancellationToken())
    except process.ProcessError as exc:
        print(exc)
"""
    assert "cannot start a child process: [Errno 2]" in run_host(program)


def test_the_environment_of_the_host_stays_out_of_the_supervisor(
    processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_API_KEY", "k-123")
    assert bash(processes, "echo $SOME_API_KEY").output == "k-123\n"
    with open(f"/proc/{processes.supervisor_pid}/environ", "rb") as file:
        assert b"k-123" not in file.read()


def test_nothing_is_polled_while_a_tool_is_silent(processes: Processes) -> None:
    """Neither the call nor the guard wakes up while nothing happens."""
    call = Running(processes, "echo leader $$; exec sleep 60")
    call.wait_for("leader")
    assert processes.supervisor_pid is not None
    watched: List[int] = [processes.supervisor_pid, *children_of(processes.supervisor_pid)]

    def wakeups() -> int:
        count = 0
        for pid in watched:
            with open(f"/proc/{pid}/status") as file:
                count += sum(int(line.split()[1]) for line in file if line.startswith("voluntary_ctxt"))
        return count

    until(lambda: all(state_of(pid) == "S" for pid in watched), "they are at rest")
    before = wakeups()
    threading.Event().wait(0.5)
    assert wakeups() - before < 4  # looking around every 50 ms would be 20
    call.stop()
