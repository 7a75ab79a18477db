"""The bash tool: what the model reads of a command's end, and what is shown while it runs."""

import threading
from typing import Any, Iterator, List

import pytest
from processes import DEADLINE, Mark

from syncagent.boundary.process import Processes, shared
from syncagent.boundary.tools.base import CallContext, ToolOutput
from syncagent.boundary.tools.bash import bash, bash_tool
from syncagent.cancel import CancellationToken, Cancelled
from syncagent.errors import ToolError

pytestmark = pytest.mark.concurrent


class Bench:
    """A context whose shown pieces are kept; something can be done at a piece."""

    def __init__(self, processes: Processes) -> None:
        self.token = CancellationToken()
        self.shown: List[str] = []
        self.at: Any = None
        self.more = True
        self.context = CallContext(token=self.token, emit=self._emit, processes=processes)

    def _emit(self, text: str) -> bool:
        self.shown.append(text)
        if self.at is not None:
            self.at("".join(self.shown))
        return self.more

    def run(self, command: str, tool: Any = bash, **values: Any) -> ToolOutput:
        output: ToolOutput = tool.invoke({"command": command, **values}, self.context)
        return output


@pytest.fixture
def bench() -> Iterator[Bench]:
    with shared() as processes:
        bench = Bench(processes)
        yield bench
        bench.token.close()


def test_the_model_sees_command_and_timeout() -> None:
    assert bash.name == "bash" and bash.effect == "write" and not bash.exclusive
    properties = bash.spec()["parameters"]["properties"]
    assert {name: schema["type"] for name, schema in properties.items()} == {
        "command": "string",
        "timeout": "number",
    }
    assert bash.spec()["parameters"]["required"] == ["command"]


@pytest.mark.parametrize(
    "command, text, error, message",
    [
        ("echo hi", "hi\n", None, ""),
        ("true", "(no output)", None, ""),
        ("echo out; echo err >&2; exit 3", "out\nerr\n[exit code 3]", "TOOL_FAILED", "exit code 3"),
        ("printf x; exit 1", "x\n[exit code 1]", "TOOL_FAILED", "exit code 1"),
        ("kill -SEGV $$", "[killed by signal 11 (SIGSEGV)]", "TOOL_FAILED", "killed by signal 11 (SIGSEGV)"),
        (
            "sleep 60 & echo hi",
            "hi\n[1 background process was stopped; background output not collected]",
            None,
            "",
        ),
        (
            "sleep 60 & sleep 60 & exit 2",
            "[exit code 2]\n[2 background processes were stopped; background output not collected]",
            "TOOL_FAILED",
            "exit code 2",
        ),
        ("cat; read x; echo got:$x", "got:\n", None, ""),
        ("false | true", "(no output)", None, ""),
        ("printf 'a\\377b'", "a\ufffdb", None, ""),
    ],
)
def test_the_end_of_a_command_is_told(
    bench: Bench, command: str, text: str, error: Any, message: str
) -> None:
    output = bench.run(command)
    assert (output.text, output.error, output.message) == (text, error, message)


def test_a_command_in_the_background_that_goes_on_talking_is_stopped_and_that_is_told(bench: Bench) -> None:
    output = bench.run("(while :; do echo x; sleep .1; done) & echo hi")
    assert "hi\n" in output.text and output.error is None
    assert output.text.endswith("stopped; background output not collected]")


def test_a_command_that_is_not_found_is_told(bench: Bench) -> None:
    output = bench.run("no-such-command-here")
    assert "no-such-command-here: command not found\n[exit code 127]" in output.text


def test_a_time_out_keeps_the_output(bench: Bench) -> None:
    output = bench.run("echo before; sleep 60", timeout=1.0)
    assert output.error == "TIMEOUT"
    assert output.text == "before\n[timed out after 1 s and was stopped]"
    assert output.message == "timed out after 1 s and was stopped"


@pytest.mark.once
def test_a_clean_exit_after_the_time_out_is_a_time_out(bench: Bench) -> None:
    output = bench.run("trap 'echo bye; exit 0' TERM; sleep 60 & wait", timeout=1.5)
    assert output.error == "TIMEOUT"
    assert "bye\n" in output.text


def test_a_cancel_keeps_the_output(bench: Bench) -> None:
    bench.at = lambda shown: "before" in shown and bench.token.cancel()
    output = bench.run("echo before; sleep 60")
    assert (output.error, output.text) == ("ABORTED", "before\n[cancelled and stopped]")


def test_a_deadline_of_the_call_s_token_is_a_time_out(bench: Bench) -> None:
    bench.at = lambda shown: "before" in shown and bench.token.cancel("timeout")
    output = bench.run("echo before; sleep 60")
    assert (output.error, output.text) == ("TIMEOUT", "before\n[timed out and was stopped]")


def test_a_cancel_before_anything_started_is_raised(bench: Bench) -> None:
    bench.token.cancel()
    with pytest.raises(Cancelled):
        bench.run("echo never")
    assert bench.shown == []


def test_a_killed_guard_is_a_failure_that_keeps_the_output(bench: Bench) -> None:
    output = bench.run("echo before; sleep 0.2; kill -9 $PPID; sleep 60")
    assert output.error == "TOOL_FAILED"
    assert output.text.startswith("before\n[a child process was lost: its guard ended unexpectedly")


def test_long_output_keeps_head_and_tail_and_counts_the_rest(bench: Bench) -> None:
    output = bench.run("seq 1000000")
    assert output.text.startswith("1\n2\n3\n") and output.text.endswith("999999\n1000000\n")
    assert "\n[... 6806976 bytes left out ...]\n" in output.text
    assert len(output.text) < 90_000


def test_output_is_shown_while_it_runs(bench: Bench) -> None:
    seen = threading.Event()
    bench.at = lambda shown: "one\n" in shown and seen.set()
    with CancellationToken() as token:
        context = CallContext(token=token, emit=bench.context.emit, processes=bench.context.processes)
        done: List[ToolOutput] = []
        thread = threading.Thread(
            target=lambda: done.append(bash.invoke({"command": "echo one; sleep 60"}, context))
        )
        thread.start()
        assert seen.wait(DEADLINE)
        assert done == []
        token.cancel()
        thread.join()
    assert done[0].error == "ABORTED"


def test_nothing_is_shown_any_more_when_nobody_wants_more(bench: Bench) -> None:
    bench.more = False
    output = bench.run("yes 0123456789é | head -c 3000000")
    assert len(bench.shown) == 1
    assert "bytes left out" in output.text


def test_small_output_is_shown_in_full_without_a_note(bench: Bench) -> None:
    output = bench.run("for i in $(seq 300); do echo $i; done")
    assert "".join(bench.shown) == output.text


@pytest.mark.parametrize(
    "arguments, text",
    [
        ("{}", "argument 'command' is missing"),
        ('{"command": 1}', "argument 'command' must be a string"),
        ('{"command": "ls", "timeout": 0}', "argument 'timeout' must be above 0"),
        ('{"command": "ls", "timeout": "9"}', "argument 'timeout' must be a number"),
        ('{"command": "ls", "grace": 9}', "there is no argument 'grace'"),
        ('{"command": "a\\u0000b"}', "a character that no program can get"),
        ('{"command": "a\\ud800b"}', "a character that no program can get"),
    ],
)
def test_bad_arguments_are_refused_before_anything_runs(arguments: str, text: str) -> None:
    with pytest.raises(ToolError, match="'bash'") as caught:
        bash.parse(arguments)
    assert caught.value.code == "BAD_ARGUMENTS" and text in str(caught.value)


def test_a_failure_of_the_one_who_shows_is_not_the_command_s(bench: Bench) -> None:
    def fail(shown: str) -> None:
        raise OSError("the disk is full")

    bench.at = fail
    with pytest.raises(OSError, match="the disk is full"):
        bench.run("echo hi; sleep 60")


def test_a_command_that_is_too_long_is_a_failure(bench: Bench) -> None:
    output = bench.run("true " + "x" * 200_000)
    assert output.error == "TOOL_FAILED"
    assert "Argument list too long" in output.text


def test_it_can_be_called_as_a_function() -> None:
    assert bash("echo hi").text == "hi\n"
    assert bash("sleep 60", timeout=0.2, grace=0.1).error == "TIMEOUT"
    with CancellationToken() as token:
        token.cancel()
        with pytest.raises(Cancelled):
            bash("echo hi", token=token)


def test_a_tool_of_own_settings(bench: Bench, tmp_path: Any) -> None:
    mark = Mark()
    mine = bash_tool(name="shell", timeout=0.4, grace=0.1, cwd=str(tmp_path), env=mark.env)
    assert mine.spec()["parameters"]["properties"]["timeout"]["default"] == 0.4
    assert bench.run("pwd; [ -n \"$TOOL_MARK\" ]", tool=mine).text == f"{tmp_path}\n"
    assert bench.run("trap '' TERM; while :; do sleep 0.05; done", tool=mine).error == "TIMEOUT"
    assert mark.pids() == []
    for timeout in (0, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="timeout"):
            bash_tool(timeout=timeout)
    with pytest.raises(ValueError, match="grace is seconds from 0 up, not -1"):
        bash_tool(grace=-1)
