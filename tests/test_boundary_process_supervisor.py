"""No death of a runtime, a guard or a supervisor leaves a tool behind or a call without an answer."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from typing import Iterator, List

import pytest
from processes import (
    DEADLINE,
    Mark,
    Running,
    bash,
    children_of,
    parent_of,
    run_host,
    start_host,
    state_of,
    until,
)

from syncagent.boundary.process import ProcessError, Processes, supervisor

pytestmark = pytest.mark.concurrent

#: A tree with all kinds of members; its leader says its pid last.
TREE = """
sleep 60 & sleep 60 | sleep 60 &
setsid sleep 60 & (setsid bash -c 'sleep 60; :' &)
(trap '' TERM HUP INT; while :; do sleep 0.05; done) &
setsid bash -c 'trap "" TERM; sleep 60; :' &
sleep 0.1; echo leader $$; sleep 60
"""

#: A host that runs that tree, in a thread, and says when it runs.
HOST = """
import os, sys, threading
from syncagent.boundary.process import Processes
from syncagent.cancel import CancellationToken
processes = Processes()
started = threading.Event()
def take(text):
    if "leader" in text:
        started.set()
def run():
    processes.run(["bash", "-c", sys.argv[1]], token=CancellationToken(), on_output=take)
threading.Thread(target=run, daemon=True).start()
started.wait()
"""


@pytest.fixture
def processes() -> Iterator[Processes]:
    with contextlib.closing(Processes()) as processes:
        yield processes


def leader_of(call: Running) -> int:
    call.wait_for("leader")
    return int(call.output.split("leader ")[1].split()[0])


# -- the runtime ----------------------------------------------------------------------------------


@contextlib.contextmanager
def host(program: str, mark: Mark, **options: object) -> "Iterator[subprocess.Popen[str]]":
    from processes import ROOT

    env = {**mark.env, "PYTHONPATH": ROOT}
    child = start_host(program, [TREE], env=env, **options)
    try:
        with child:
            assert child.stdout is not None
            yield child
            child.kill()
    finally:
        for pid in mark.pids():
            os.kill(pid, signal.SIGKILL)


def descendants(pid: int) -> List[int]:
    found = []
    with contextlib.suppress(OSError):
        for child in children_of(pid):
            found += [child, *descendants(child)]
    return found


def test_kill_9_of_the_runtime_takes_its_tools_along() -> None:
    mark = Mark()
    with host(HOST + "print('up', flush=True); threading.Event().wait()", mark) as child:
        assert child.stdout is not None and child.stdout.readline() == "up\n"
        until(lambda: len(mark.pids()) > 5, "all of them run")
        whole = descendants(child.pid)
        child.kill()
        child.wait()
        until(lambda: not mark.pids(), "all tools are dead")
        until(lambda: not any(state_of(pid) for pid in whole), "guard and supervisor are gone")


def test_a_forked_child_that_holds_copies_of_every_socket_delays_nothing() -> None:
    """The sockets' end never comes then; only the pidfd tells that the runtime is dead."""
    fork = """
if os.fork() == 0:
    threading.Event().wait()
print("up", flush=True)
threading.Event().wait()
"""
    mark = Mark()
    with host(HOST + fork, mark) as child:
        assert child.stdout is not None and child.stdout.readline() == "up\n"
        others = set(mark.pids())
        (copy,) = (pid for pid in children_of(child.pid) if pid in others)
        child.kill()
        child.wait()
        until(lambda: set(mark.pids()) <= {copy}, "all tools are dead")
        os.kill(copy, signal.SIGKILL)


def test_a_runtime_that_just_exits_takes_its_tools_along() -> None:
    mark = Mark()
    with host(HOST + "os._exit(0)", mark) as child:
        child.wait(DEADLINE)
        until(lambda: not mark.pids(), "all tools are dead")


def test_the_supervisor_and_then_the_runtime_killed_takes_the_tools_along() -> None:
    program = HOST + """
os.kill(processes.supervisor_pid, 9)
print("up", flush=True)
threading.Event().wait()
"""
    mark = Mark()
    with host(program, mark) as child:
        assert child.stdout is not None and child.stdout.readline() == "up\n"
        until(lambda: len(mark.pids()) > 5, "all of them run")
        child.kill()
        child.wait()
        until(lambda: not mark.pids(), "all tools are dead")


def test_a_terminal_s_signals_do_not_reach_supervisor_guard_or_tool(processes: Processes) -> None:
    call = Running(processes, "echo leader $$; read x < <(sleep 0.6); echo done")
    guard = parent_of(leader_of(call))
    assert processes.supervisor_pid == parent_of(guard)
    for pid in (guard, parent_of(guard)):
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
            os.kill(pid, signum)
        assert os.getsid(pid) == pid != os.getsid(0)
    assert call.join().exit_code == 0


# -- the guard ------------------------------------------------------------------------------------


def test_a_killed_guard_is_an_error_and_its_tree_is_killed(processes: Processes) -> None:
    call = Running(processes, TREE)
    other = Running(processes, "echo leader $$; read x < <(sleep 1); echo done")
    leader_of(other)
    os.kill(parent_of(leader_of(call)), signal.SIGKILL)
    with pytest.raises(ProcessError, match="guard ended unexpectedly") as caught:
        call.join()
    assert call.mark.pids() == []
    assert "leader" in caught.value.output
    assert other.join().output.endswith("done\n")
    assert bash(processes, "echo on").output == "on\n"


def test_a_guard_killed_while_its_call_is_being_cancelled_ends_as_cancelled(processes: Processes) -> None:
    script = "trap 'echo term' TERM; echo leader $$; while :; do sleep 0.05; done"
    call = Running(processes, script, grace=60.0)
    guard = parent_of(leader_of(call))
    call.token.cancel()
    call.wait_for("term")
    os.kill(guard, signal.SIGKILL)
    assert call.join().cancelled
    assert call.mark.pids() == []


def test_a_tool_that_kills_its_own_guard_gains_nothing(processes: Processes) -> None:
    """Many times, as a child that is handed on while the supervisor looks was missed one time in eighty."""
    mark = Mark()
    for _ in range(40):
        with pytest.raises(ProcessError, match="guard"):
            bash(processes, "setsid sleep 60 & kill -9 $PPID; sleep 60", env=mark.env)
        assert mark.pids() == []


# -- the supervisor -------------------------------------------------------------------------------


def test_a_call_outlives_a_killed_supervisor_and_the_next_one_starts_another(processes: Processes) -> None:
    """The guards don't need it: they watch the runtime themselves."""
    call = Running(processes, "echo leader $$; read x < <(sleep 0.5); echo done; exit 4")
    leader_of(call)
    first = processes.supervisor_pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    assert bash(processes, "echo next").output == "next\n"
    assert processes.supervisor_pid != first
    result = call.join()
    assert (result.exit_code, result.output.endswith("done\n")) == (4, True)


def test_a_call_can_be_cancelled_without_a_supervisor(processes: Processes) -> None:
    call = Running(processes, TREE, grace=0.2)
    leader_of(call)
    assert processes.supervisor_pid is not None
    os.kill(processes.supervisor_pid, signal.SIGKILL)
    assert call.stop().cancelled
    assert call.mark.pids() == []


def test_guard_and_supervisor_killed_is_an_error_and_not_a_hang(processes: Processes) -> None:
    call = Running(processes, "echo leader $$; exec sleep 60")
    leader = leader_of(call)
    guard = parent_of(leader)
    for pid in (parent_of(guard), guard):
        os.kill(pid, signal.SIGKILL)
    with pytest.raises(ProcessError, match="supervisor"):
        call.join()
    until(lambda: not call.mark.pids(), "the leader dies with its guard")


def test_a_supervisor_killed_before_it_took_the_call_is_replaced(processes: Processes) -> None:
    bash(processes, "true")
    first = processes.supervisor_pid
    assert first is not None
    os.kill(first, signal.SIGSTOP)
    call = Running(processes, "echo hi")
    time.sleep(0.1)  # orders nothing: killed before or after it was asked, the call succeeds
    os.kill(first, signal.SIGKILL)
    assert call.join().output == "hi\n"
    assert processes.supervisor_pid not in (None, first)


def test_the_child_program_loads_nothing_but_the_standard_library() -> None:
    program = f"""
import runpy, sys
sys.argv = ["supervisor.py"]
runpy.run_path({supervisor.__file__!r}, run_name="loaded")
import ctypes, encodings.latin_1
print(sys.flags.isolated, sys.flags.no_site)
for name, module in sorted(sys.modules.items()):
    file = getattr(module, "__file__", None) or ""
    if "site-packages" in file or "syncagent" in file:
        print(name)
"""
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-B", "-c", program], stdout=subprocess.PIPE, text=True, timeout=60
    )
    assert done.stdout == "1 1\nguard\nlookup\nproctree\n"


def test_the_host_inherits_no_strangers() -> None:
    """Only guards and the supervisor are subreapers: a daemon of the host's own goes past it."""
    program = HOST.replace("started.wait()", "started.wait(); processes.close()") + """
import ctypes, subprocess, time
value = ctypes.c_int(7)
ctypes.CDLL(None).prctl(37, ctypes.byref(value), 0, 0, 0)
print(value.value)
"""
    assert run_host(program, [TREE]) == "0\n"
