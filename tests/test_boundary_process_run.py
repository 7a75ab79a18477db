"""One call: its output, its input, how it ended, and which of the stops came first."""

import contextlib
import os
import signal
import sys
import time
from typing import Any, Iterator, List

import pytest
from processes import DEADLINE, Mark, Running, bash, run_host
from test_boundary_store_forks import in_child

from syncagent.boundary.process import ProcessError, Processes, ProcessResult
from syncagent.cancel import CancellationToken, Cancelled

pytestmark = pytest.mark.concurrent

#: Says "ready" and then "term" for the first TERM, and lives on until it is killed.
STUBBORN = "trap 'echo term' TERM; echo ready; while :; do sleep 0.05; done"


@pytest.fixture
def processes() -> Iterator[Processes]:
    with contextlib.closing(Processes()) as processes:
        yield processes


def warm(processes: Processes) -> None:
    """Start the supervisor, so that a short time-out is all the program's."""
    bash(processes, "true")


# -- endings --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "script, words",
    [
        ("true", "exit code 0"),
        ("exit 7", "exit code 7"),
        ("kill -SEGV $$", "killed by signal 11 (SIGSEGV)"),
        ("kill -40 $$", "killed by signal 40"),
    ],
)
def test_an_ending_has_words(processes: Processes, script: str, words: str) -> None:
    assert bash(processes, script).ending == words


def test_what_never_started_has_an_ending_too() -> None:
    assert ProcessResult(exit_code=None, timed_out=True).ending == "nothing was started"


def test_output_of_both_streams_and_the_exit_code_are_reported(processes: Processes) -> None:
    result = bash(processes, "echo out; echo err >&2; exit 7")
    assert (result.output, result.exit_code, result.signal) == ("out\nerr\n", 7, None)
    assert not (result.timed_out or result.cancelled or result.stopped or result.left or result.dropped)


def test_a_signal_is_reported_as_such(processes: Processes) -> None:
    result = bash(processes, "kill -SEGV $$")
    assert (result.exit_code, result.signal) == (None, signal.SIGSEGV)


@pytest.mark.parametrize(
    "name, code, text",
    [
        ("no-such-program", 127, "cannot start no-such-program: No such file or directory"),
        ("/no/such", 127, "cannot start /no/such: No such file or directory"),
        ("/etc/passwd", 126, "cannot start /etc/passwd: Permission denied"),
        ("/etc", 126, "cannot start /etc: Permission denied"),
    ],
)
def test_a_program_that_cannot_be_started_is_a_result_that_says_so(
    processes: Processes, name: str, code: int, text: str
) -> None:
    with CancellationToken() as token:
        result = processes.run([name], token=token)
    assert result.exit_code == code
    assert result.output == text + "\n"


def test_a_file_that_is_no_program_is_not_executable(processes: Processes, tmp_path: Any) -> None:
    (tmp_path / "tool").write_text("neither a script nor a program")
    (tmp_path / "tool").chmod(0o755)
    with CancellationToken() as token:
        result = processes.run([str(tmp_path / "tool")], token=token)
    assert (result.exit_code, "format error" in result.output) == (126, True)


def test_a_folder_that_is_not_there_is_a_result_that_says_so(processes: Processes) -> None:
    result = bash(processes, "echo never", cwd="/no/such/folder")
    assert result.exit_code == 126
    assert result.output == "cannot enter the folder /no/such/folder: No such file or directory\n"


def test_folder_and_environment_are_those_of_the_call(processes: Processes, tmp_path: Any) -> None:
    name = tmp_path / "größe \udcff"
    os.mkdir(name)
    result = bash(processes, 'pwd; echo "$A"', cwd=str(name), env={"PATH": os.environ["PATH"], "A": "ä=b\n"})
    assert result.output == f"{tmp_path}/größe \ufffd\nä=b\n\n"
    assert bash(processes, "echo ${A-none}").output == "none\n"


# -- output ---------------------------------------------------------------------------------------


def test_a_full_error_stream_blocks_nobody(processes: Processes) -> None:
    result = bash(processes, "head -c 1048576 /dev/zero | tr '\\0' e >&2; echo ok")
    assert result.output.endswith("eok\n")
    assert result.dropped > 900_000


def test_bytes_that_are_no_text_give_a_result(processes: Processes) -> None:
    result = bash(processes, "head -c 100000 /dev/urandom")
    assert result.exit_code == 0
    assert result.output.encode("utf-8")


def test_a_character_cut_by_the_limit_gives_a_result(processes: Processes) -> None:
    result = bash(processes, "yes 😀😀 | head -n 100", head=10, tail=10)
    assert "\ufffd" not in result.output
    assert result.dropped


def test_a_flood_is_bounded_and_keeps_its_ends() -> None:
    program = """
import resource
from syncagent.boundary.process import Processes
from syncagent.cancel import CancellationToken
p, token = Processes(), CancellationToken()
p.run(["true"], token=token)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
r = p.run(["bash", "-c", "echo first; yes | head -c 100000000; echo; echo last"], token=token,
          on_output=lambda text: False)
p.close()
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(r.exit_code, r.output[:6].strip(), r.output[-5:].strip(), r.dropped, len(r.output) < 90000,
      after - before < 20000)
"""
    assert run_host(program) == f"0 first last {100_000_012 - 16384 - 65536} True True\n"


def test_output_is_handed_on_while_the_program_runs(processes: Processes) -> None:
    call = Running(processes, "echo one; read x < <(sleep 60)")
    call.wait_for("one\n")
    assert call.running
    assert call.stop().output == "one\n"


def test_everything_is_handed_on_when_nothing_is_refused(processes: Processes) -> None:
    pieces: List[str] = []
    bash(processes, "for i in $(seq 3000); do echo é$i; done", on_output=pieces.append)
    assert "".join(pieces) == "".join(f"é{i}\n" for i in range(1, 3001))


def test_a_failing_receiver_ends_the_call_and_leaves_nothing(processes: Processes) -> None:
    mark = Mark()

    def fail(text: str) -> None:
        raise KeyError(text)

    with pytest.raises(KeyError):
        bash(processes, "setsid sleep 60 & echo go; sleep 60", on_output=fail, env=mark.env)
    assert mark.pids() == []


# -- input ----------------------------------------------------------------------------------------


def test_without_input_readers_see_the_end_at_once(processes: Processes) -> None:
    result = bash(processes, f"cat; read x; echo got:$x; {sys.executable} -c 'input()'; head -c1 </dev/tty")
    assert result.output.startswith("got:\n")
    assert "EOFError" in result.output
    assert "/dev/tty: No such device or address" in result.output


def test_input_is_fed_while_output_is_read(processes: Processes) -> None:
    data = bytes(range(32, 127)) * 20_000
    result = bash(processes, "cat", stdin=data, head=len(data))
    assert result.output.encode() == data


def test_input_that_nobody_reads_is_no_error(processes: Processes) -> None:
    assert bash(processes, "exit 4", stdin=b"x" * 1_000_000).exit_code == 4
    assert bash(processes, "exec <&-; echo on", stdin=b"x" * 1_000_000).output == "on\n"


def test_a_host_with_sigpipe_at_its_default_survives_a_broken_pipe() -> None:
    program = """
import signal
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
from syncagent.boundary.process import Processes
from syncagent.cancel import CancellationToken
p = Processes()
for _ in range(5):
    print(p.run(["true"], token=CancellationToken(), stdin=b"x" * 1000000).exit_code)
p.close()
"""
    assert run_host(program) == "0\n" * 5


# -- stops ----------------------------------------------------------------------------------------


def test_a_cancelled_token_starts_nothing(processes: Processes, tmp_path: Any) -> None:
    token = CancellationToken()
    token.cancel()
    with pytest.raises(Cancelled):
        processes.run(["touch", str(tmp_path / "made")], token=token)
    assert processes.supervisor_pid is None
    assert os.listdir(tmp_path) == []


def test_a_cancel_ends_the_call_and_keeps_its_output(processes: Processes) -> None:
    call = Running(processes, "echo ready; sleep 60")
    call.wait_for("ready")
    result = call.stop()
    assert (result.cancelled, result.timed_out, result.output) == (True, False, "ready\n")
    assert (result.exit_code, result.signal) == (None, signal.SIGTERM)


def test_a_time_out_ends_the_call_and_keeps_its_output(processes: Processes) -> None:
    warm(processes)
    result = bash(processes, "echo ready; sleep 60", timeout=0.5)
    assert (result.cancelled, result.timed_out, result.output) == (False, True, "ready\n")


def test_a_clean_exit_after_a_time_out_is_a_time_out_still(processes: Processes) -> None:
    warm(processes)
    result = bash(processes, "trap 'exit 0' TERM; echo ready; sleep 60 & wait", timeout=0.5)
    assert (result.timed_out, result.exit_code) == (True, 0)


def test_a_clean_exit_after_a_cancel_is_a_cancel_still(processes: Processes) -> None:
    call = Running(processes, "trap 'exit 0' TERM; echo ready; sleep 60 & wait")
    call.wait_for("ready")
    result = call.stop()
    assert (result.cancelled, result.exit_code) == (True, 0)


def test_a_time_out_that_comes_first_wins(processes: Processes) -> None:
    warm(processes)
    call = Running(processes, STUBBORN, timeout=0.5, grace=0.5)
    call.wait_for("term")
    result = call.stop()
    assert (result.timed_out, result.cancelled) == (True, False)


def test_a_cancel_that_comes_first_wins(processes: Processes) -> None:
    warm(processes)
    timeout = 0.5
    end = time.monotonic() + timeout
    call = Running(processes, STUBBORN, timeout=timeout, grace=DEADLINE)
    call.wait_for("ready")
    call.token.cancel()
    call.wait_for("term")
    time.sleep(max(0.0, end + 0.1 - time.monotonic()))  # the time-out comes too, and too late
    processes.kill_now()
    result = call.join()
    assert (result.timed_out, result.cancelled) == (False, True)
    assert result.signal == signal.SIGKILL


def test_what_ended_by_itself_was_not_stopped_by_a_later_cancel(processes: Processes) -> None:
    """The program has ended and only its background is left when the cancel comes."""
    script = "(until grep -q ') Z' /proc/$$/stat; do sleep 0.02; done; echo orphan; sleep 60) & exit 5"
    call = Running(processes, script, linger=30.0)
    call.wait_for("orphan")
    result = call.stop()
    assert (result.cancelled, result.exit_code) == (False, 5)
    assert result.stopped >= 1


def test_each_call_has_its_own_grace(processes: Processes) -> None:
    short = Running(processes, STUBBORN, grace=0.0)
    long = Running(processes, STUBBORN, grace=60.0)
    short.wait_for("ready")
    long.wait_for("ready")
    long.token.cancel()
    long.wait_for("term")
    assert short.stop().signal == signal.SIGKILL
    assert long.running
    processes.kill_now()
    assert long.join().signal == signal.SIGKILL


def test_kill_now_ends_the_grace_of_what_is_being_stopped_and_nothing_else(processes: Processes) -> None:
    other = Running(processes, "echo ready; read x < <(sleep 0.7); echo done")
    call = Running(processes, STUBBORN, grace=60.0)
    other.wait_for("ready")
    call.wait_for("ready")
    call.token.cancel()
    call.wait_for("term")
    processes.kill_now()
    assert call.join().cancelled
    result = other.join()
    assert (result.exit_code, result.output) == (0, "ready\ndone\n")


def test_kill_now_before_the_stop_leaves_no_grace(processes: Processes) -> None:
    call = Running(processes, STUBBORN, grace=60.0)
    call.wait_for("ready")
    processes.kill_now()
    assert call.stop().signal == signal.SIGKILL


def test_ctrl_c_in_the_calling_thread_leaves_nothing(processes: Processes) -> None:
    mark = Mark()
    script = f"setsid sleep 60 & kill -INT {os.getpid()}; sleep 60"
    # A shell that runs the tests in the background has the signal ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            bash(processes, script, env=mark.env)
    finally:
        signal.signal(signal.SIGINT, before)
    assert mark.pids() == []


def test_a_time_out_is_seconds_above_zero(processes: Processes) -> None:
    for timeout in (0, -1, float("nan")):
        with pytest.raises(ValueError, match="timeout"):
            bash(processes, "true", timeout=timeout)
    assert bash(processes, "true", timeout=float("inf")).exit_code == 0


def test_a_time_out_before_the_start_starts_nothing(processes: Processes, tmp_path: Any) -> None:
    bash(processes, "true")
    pid = processes.supervisor_pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        result = bash(processes, f"touch {tmp_path}/made", timeout=0.2)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert (result.timed_out, result.exit_code) == (True, None)
    assert bash(processes, "true").exit_code == 0
    assert os.listdir(tmp_path) == []


def test_a_cancel_before_the_start_needs_no_answer(processes: Processes, tmp_path: Any) -> None:
    """The supervisor doesn't answer, the cancel is prompt, and nothing starts when it wakes up."""
    bash(processes, "true")
    pid = processes.supervisor_pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        call = Running(processes, f"touch {tmp_path}/made")
        time.sleep(0.1)  # orders nothing: the cancel is right before the call, too
        begin = time.monotonic()
        with pytest.raises(Cancelled):
            call.stop()
        assert time.monotonic() - begin < DEADLINE / 4
    finally:
        os.kill(pid, signal.SIGCONT)
    assert bash(processes, "true").exit_code == 0
    assert os.listdir(tmp_path) == []


def test_a_silent_supervisor_is_an_error_and_not_a_hang(
    processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    bash(processes, "true")
    monkeypatch.setattr("syncagent.boundary.process.run.START_LIMIT", 0.2)
    monkeypatch.setattr("syncagent.boundary.process.launcher.END_LIMIT", 0.2)
    pid = processes.supervisor_pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(ProcessError, match="silent"):
        bash(processes, "true")


def test_a_cancel_in_a_forked_child_stops_nothing_of_its_parent(processes: Processes) -> None:
    call = Running(processes, "echo ready; read -t 0.3 < <(sleep 9); echo over")
    call.wait_for("ready")
    assert in_child(call.token.cancel) == 0
    result = call.join()
    assert (result.cancelled, result.exit_code, result.output) == (False, 0, "ready\nover\n")
