"""Whatever a tool has started is gone with it: groups, escapes, daemons, and what TERM doesn't reach."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from typing import Any, Dict, Iterator

import pytest
from processes import DEADLINE, Mark, Running, bash, run_host, state_of, until

from syncagent.boundary.process import Processes, guard, proctree

pytestmark = pytest.mark.concurrent

#: A daemon: forked twice, in a session of its own, with the output still open.
DAEMON = "(setsid bash -c 'echo daemon $$; sleep 60; :' &)"


@pytest.fixture
def processes() -> Iterator[Processes]:
    with contextlib.closing(Processes()) as processes:
        yield processes


# -- stopping the whole tree ----------------------------------------------------------------------


@pytest.mark.parametrize("how", ["cancel", "timeout"])
def test_a_loop_in_the_background_stops_with_its_shell(processes: Processes, tmp_path: Any, how: str) -> None:
    file = tmp_path / "dates"
    loop = f"(while :; do date >> {file}; sleep 0.02; done) &"
    script = f"{loop} until [ -s {file} ]; do :; done; echo ready; wait"
    call = Running(processes, script, timeout=1.0 if how == "timeout" else None)
    call.wait_for("ready")
    result = call.stop() if how == "cancel" else call.join()
    assert (result.cancelled, result.timed_out) == (how == "cancel", how == "timeout")
    size = file.stat().st_size
    assert call.mark.pids() == []
    assert file.stat().st_size == size


@pytest.mark.parametrize(
    "script",
    [
        "sleep 60",
        "sleep 60 | sleep 60",
        "setsid sleep 60 & sleep 60",
        "setsid -f sleep 60; sleep 60",
        f"{DAEMON}; {DAEMON}; sleep 60",
        "nohup sleep 60 & disown; sleep 60",
        "trap '' TERM HUP INT QUIT; sleep 60 & setsid sleep 60 & while :; do sleep 0.05; done",
        "(sleep 60 & kill -STOP $!) ; kill -STOP $BASHPID",
        "for i in $(seq 20); do (sleep 60 & sleep 60 & wait) & done; wait",
    ],
)
def test_a_cancel_leaves_nothing_of_the_tree(processes: Processes, script: str) -> None:
    call = Running(processes, f"echo ready; {script}", grace=0.2)
    call.wait_for("ready")
    assert call.stop().cancelled
    assert call.mark.pids() == []


@pytest.mark.once
def test_a_fork_bomb_that_leaves_its_group_ends(processes: Processes) -> None:
    script = """
import os, time
print("ready", flush=True)
for _ in range(6):
    os.fork()
end = time.monotonic() + 60
while time.monotonic() < end:
    if os.fork() == 0:
        os.setsid()
        time.sleep(0.003)  # a short life: the tree never stands still
        if os.fork():
            os._exit(0)
        os.setsid()
        time.sleep(0.05)  # a longer one
        os._exit(0)
    os.wait()
"""
    call = Running(processes, f"exec {sys.executable} -I -S -c '{script}'", grace=0.0)
    call.wait_for("ready")
    assert call.stop().cancelled
    assert call.mark.pids() == []


def test_term_comes_before_kill(processes: Processes) -> None:
    script = """
trap 'echo leader; exit' TERM
bash -c 'trap "echo member; exit" TERM; echo ready; while :; do sleep 0.02; done' &
setsid bash -c 'trap "echo escaped; exit" TERM; echo ready; while :; do sleep 0.02; done' &
while :; do sleep 0.02; done
"""
    call = Running(processes, script, grace=DEADLINE)
    until(lambda: call.output.count("ready") == 2, "both are ready")
    words = call.stop().output.split()
    assert {"escaped", "leader", "member"} <= set(words)


def test_each_process_gets_term_once(processes: Processes) -> None:
    script = """
count() { trap "echo $1" TERM; echo ready; for i in $(seq 12); do sleep 0.05; done; exit; }
count member & setsid bash -c "$(declare -f count); count escaped" & count leader
"""
    call = Running(processes, script, grace=DEADLINE)
    until(lambda: call.output.count("ready") == 3, "all are ready")
    words = call.stop().output.split()
    assert [words.count(name) for name in ("escaped", "leader", "member")] == [1, 1, 1]


def test_term_reaches_what_is_first_seen_later(processes: Processes) -> None:
    script = """
late() { trap "echo late-term; exit" TERM; while :; do sleep 0.02; done; }
trap 'setsid bash -c "$(declare -f late); late" & wait; wait' TERM
echo ready
while :; do sleep 0.02; done
"""
    call = Running(processes, script, grace=DEADLINE)
    call.wait_for("ready")
    call.token.cancel()
    call.wait_for("late-term")
    processes.kill_now()
    call.join()


def test_a_stopped_process_takes_term(processes: Processes) -> None:
    call = Running(processes, "trap 'echo term; exit' TERM; echo ready; kill -STOP $$", grace=DEADLINE)
    call.wait_for("ready")
    assert call.stop().output == "ready\nterm\n"


def test_a_leader_whose_first_thread_has_ended_is_killed(processes: Processes) -> None:
    """To /proc such a process looks like a zombie, though its other threads run."""
    script = """
import ctypes, os, threading, time
def run():
    while open("/proc/self/stat").read().split()[2] != "Z": time.sleep(0.01)  # nobody announces it
    os.write(1, b"ready\\n"); time.sleep(60)  # until it is killed
threading.Thread(target=run).start()
ctypes.CDLL(None).pthread_exit(None)
"""
    call = Running(processes, f"setsid {sys.executable} -c '{script}' & wait; sleep 60", grace=0.2)
    call.wait_for("ready")
    call.stop()
    assert call.mark.pids() == []


# -- what a tool leaves in the background ---------------------------------------------------------


@pytest.mark.parametrize(
    "script, count",
    [
        ("sleep 60 & echo hi", 1),
        ("setsid sleep 60 & sleep 60 & echo hi", 2),
        ("(trap '' TERM; exec sleep 60) & echo hi", 1),
    ],
)
def test_a_silent_holder_of_the_output_is_stopped_and_counted(
    processes: Processes, script: str, count: int
) -> None:
    begin = time.monotonic()
    mark = Mark()
    result = bash(processes, script, grace=0.2, env=mark.env)
    assert (result.exit_code, result.output, result.stopped) == (0, "hi\n", count)
    assert not (result.cancelled or result.timed_out)
    assert time.monotonic() - begin < DEADLINE
    assert mark.pids() == []


def test_a_talking_holder_of_the_output_is_stopped(processes: Processes) -> None:
    result = bash(processes, "(while :; do echo x; sleep .1; done) & echo hi")
    assert "hi\n" in result.output
    assert (result.exit_code, result.stopped > 0) == (0, True)


def test_a_daemon_that_holds_the_output_cannot_hold_the_call(processes: Processes) -> None:
    call = Running(processes, f"{DAEMON}; echo leader $$", linger=DEADLINE)
    call.wait_for("daemon")
    call.wait_for("leader")
    pid, leader = (int(call.output.split(word)[1].split()[0]) for word in ("daemon", "leader"))
    until(lambda: state_of(leader) == "Z", "the leader has ended")
    assert state_of(pid) == "S"
    result = call.stop()
    assert (result.exit_code, result.cancelled) == (0, False)
    assert result.stopped >= 1
    assert state_of(pid) == ""


def test_what_ends_while_it_may_linger_is_not_stopped(processes: Processes) -> None:
    begin = time.monotonic()
    result = bash(processes, "(sleep 0.2; echo late) & echo hi", linger=DEADLINE)
    assert (result.output, result.stopped) == ("hi\nlate\n", 0)
    assert time.monotonic() - begin < DEADLINE / 2


def test_the_group_gets_kill_when_the_leader_is_long_gone(processes: Processes) -> None:
    script = "(trap '' TERM; echo ready; while :; do sleep 0.02; done) & read x < <(sleep 0.2); exit 3"
    mark = Mark()
    result = bash(processes, script, grace=0.3, env=mark.env)
    assert result.exit_code == 3
    assert result.stopped >= 1
    assert mark.pids() == []


def test_a_group_of_zombies_counts_as_gone(processes: Processes) -> None:
    script = """
import os, time
for _ in range(3):
    if os.fork() == 0: os._exit(0)
time.sleep(0.1)  # by then they are zombies, or die after us: it makes no difference
os._exit(6)
"""
    begin = time.monotonic()
    result = bash(processes, f"exec {sys.executable} -I -S -c '{script}'", linger=DEADLINE, grace=DEADLINE)
    assert (result.exit_code, result.stopped) == (6, 0)
    assert time.monotonic() - begin < DEADLINE / 2


def test_the_leader_is_not_reaped_before_its_group_is_gone(processes: Processes) -> None:
    """While anybody may be signalled through the group, its id can't become a stranger's."""
    script = "echo leader $$; (trap '' TERM; while :; do sleep 0.02; done) & exit 0"
    call = Running(processes, script, linger=0.1, grace=DEADLINE)
    call.wait_for("leader")
    pid = int(call.output.split()[1])
    until(lambda: state_of(pid) == "Z", "the leader has ended")
    time.sleep(0.3)  # orders nothing: linger is over, and the group got its TERM
    assert state_of(pid) == "Z"
    processes.kill_now()
    call.join()
    assert state_of(pid) == ""


# -- what the tool inherits -----------------------------------------------------------------------


def test_a_tool_has_no_descriptors_but_its_own(processes: Processes) -> None:
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    number = min(soft, 5000) - 1
    reader, writer = os.pipe()
    try:
        os.dup2(reader, number, inheritable=True)
        program = "import os; f = '/proc/self/fd'; print(sorted(os.listdir(f))[:-1], os.readlink(f + '/0'))"
        result = bash(processes, f'exec {sys.executable} -I -S -c "{program}"')
    finally:
        for fd in (reader, writer, number):
            os.close(fd)
    assert result.output == "['0', '1', '2'] /dev/null\n"


def test_blocked_and_ignored_signals_are_not_inherited() -> None:
    program = """
import signal
signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD, signal.SIGUSR1):
    signal.signal(s, signal.SIG_IGN)
from syncagent.boundary.process import Processes
from syncagent.cancel import CancellationToken
p = Processes()
r = p.run(["grep", "-E", "Sig(Blk|Ign)", "/proc/self/status"], token=CancellationToken())
print(r.output, r.exit_code)
p.close()
"""
    fields = run_host(program).split()
    # The C library's posix_spawn ignores its own two, 32 and 33, in what it starts.
    own = 1 << 31 | 1 << 32
    assert [int(fields[1], 16), int(fields[3], 16) & ~own] == [0, 0], fields
    assert fields[4] == "0"


# -- what can't be arranged with real processes ---------------------------------------------------


def a_guard() -> guard.Guard:
    it = guard.Guard([-1, -1, -1, -1], -1, None)
    it.reaped = True
    return it


def test_processes_that_refuse_kill_are_left_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of another user, as sudo starts them: waiting for them would have no end."""
    with open("/proc/self/stat", "rb") as file:
        stat = proctree.Stat(file.read())
    alive: Dict[proctree.Process, proctree.Stat] = {
        proctree.Process(1, 1): stat,
        proctree.Process(2, 2): stat,
    }
    refusing = {1, 2}
    monkeypatch.setattr(proctree, "send", lambda process, stat, signum: process.pid not in refusing)
    it = a_guard()
    assert not it.kill(alive, 100.0)
    assert it.kill(alive, 100.0 + guard.REFUSED_LIMIT + 1)
    refusing.discard(2)  # one takes it: it is worth waiting again
    assert not it.kill(alive, 200.0)
    assert it.refused_since is None


def test_a_reaped_leader_s_group_is_never_signalled(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(group: int, signum: int) -> None:
        raise AssertionError("signalled a group that may be a stranger's")

    monkeypatch.setattr(os, "killpg", refuse)
    it = a_guard()
    it.term({})
    it.kill({}, 1.0)
    it.signal_group(signal.SIGKILL)


def test_what_leaves_its_group_as_that_is_signalled_gets_term(monkeypatch: pytest.MonkeyPatch) -> None:
    """`setsid` starts like this: otherwise it would run on until the grace is over."""
    monkeypatch.setattr(os, "killpg", lambda group, signum: None)
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as child:
        seen = proctree.stat_of(child.pid)
        assert seen is not None
        it = a_guard()
        it.reaped = False
        it.leader = seen.group = os.getpgid(0)
        it.term({proctree.Process(child.pid, seen.start): seen})
        try:
            assert child.wait(DEADLINE) == -signal.SIGTERM
        finally:
            child.kill()
