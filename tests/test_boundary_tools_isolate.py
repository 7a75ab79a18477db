"""An isolated body is a process of its own: what comes back of it, and how it is stopped or dies."""

import functools
import os
import random
import signal
import subprocess
import sys
import threading
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Callable, Iterator, List, Optional

import pytest
from processes import ROOT, Mark, run_host, start_host, until
from runtime_parts import LONG, results

from syncagent.boundary.process import Processes, shared
from syncagent.boundary.tools import isolate
from syncagent.boundary.tools.base import CallContext, Tool, ToolOutput, tool
from syncagent.cancel import CancellationToken, Cancelled
from syncagent.errors import ToolError
from syncagent.log.closers import NOT_DISPATCHED_TEXT
from syncagent.testing import call

pytestmark = pytest.mark.concurrent


class Bench:
    """Runs calls as an agent does, and keeps what they show; `at` is told of it."""

    def __init__(self, processes: Processes) -> None:
        self.processes = processes
        self.token = CancellationToken()
        self.pieces: List[str] = []
        self.more = True
        self.at: Optional[Callable[[str], object]] = None

    def _emit(self, text: str) -> bool:
        self.pieces.append(text)
        if self.at is not None:
            self.at(self.shown)
        return self.more

    def run(self, function: Any, token: Optional[CancellationToken] = None, **values: Any) -> ToolOutput:
        it = function if isinstance(function, Tool) else tool(name="work", isolate=True)(function)
        context = CallContext(token=token or self.token, emit=self._emit, processes=self.processes)
        output: ToolOutput = it.invoke(values, context)
        return output

    @property
    def shown(self) -> str:
        return "".join(self.pieces)

    def stop_at(self, word: str, *cause: str) -> None:
        self.at = lambda shown: word in shown and self.token.cancel(*cause)


@pytest.fixture
def bench() -> Iterator[Bench]:
    with shared() as processes:
        bench = Bench(processes)
        yield bench
        bench.token.close()


# -- what comes back -----------------------------------------------------------------------------------


def test_the_body_runs_in_another_process_and_its_result_comes_back(bench: Bench) -> None:
    output = bench.run(lambda: os.getpid())
    assert output.error is None and int(output.text) != os.getpid()
    assert bench.shown == ""


def test_a_tool_that_is_isolated_can_still_be_called_and_parsed() -> None:
    @tool(isolate=True, effect="read", timeout=5.0)
    def add(a: int, b: int = 1) -> int:
        """Add."""
        return a + b

    assert add(2, b=3) == 5
    assert (add.name, add.effect, add.timeout, add.description) == ("add", "read", 5.0, "Add.")
    with pytest.raises(ToolError, match="argument 'a' must be an integer"):
        add.parse('{"a": "2"}')


@pytest.mark.parametrize(
    "make",
    [
        lambda: None,
        lambda: "",
        lambda: "é\ud800\0",
        lambda: 3,
        lambda: {"a": [1, 2.5, None, float("nan")], "b": {"c": (1, {2})}},
        lambda: (str(number) for number in range(3)),
        lambda: iter([1, 2]),
        lambda: threading,
        lambda: sys.version_info[:2],
        lambda: b"\xff",
        lambda: ToolOutput(content=[{"type": "text", "text": "a\ud800"}, {"type": "image", "data": "x"}]),
        lambda: ToolOutput.from_text("b", error="MINE", message="c"),
    ],
)
def test_any_result_is_what_it_is_without_isolation(bench: Bench, make: Any) -> None:
    assert bench.run(make) == bench.run(tool(name="plain")(make))


def test_a_result_that_cannot_be_pickled_is_a_text_as_it_is_without_isolation(bench: Bench) -> None:
    assert bench.run(lambda: threading.Lock()).text.startswith("<unlocked _thread.lock object")


@pytest.mark.once
def test_large_arguments_and_a_large_result(bench: Bench) -> None:
    def work(text: str) -> str:
        return text * 2

    assert len(bench.run(work, text="0123456789" * 2_500_000).text) == 50_000_000


def test_all_kinds_of_parameters(bench: Bench) -> None:
    def work(a: int, token: CancellationToken, b: int = 2, /, c: int = 3, *, d: int = 4, **more: Any) -> Any:
        return [a, token.cancelled, b, c, d, more]

    assert bench.run(work, a=1, d=5, e=6).text == '[1, false, 2, 3, 5, {"e": 6}]'
    assert bench.run(work, a=1, b=9).text == "[1, false, 9, 3, 4, {}]"


def test_an_argument_is_a_copy(bench: Bench) -> None:
    items = [1]
    assert bench.run(lambda items: items.append(2) or items, items=items).text == "[1, 2]"
    assert items == [1]


@pytest.mark.parametrize(
    "content, text",
    [
        ([{"data": b"x"}], "TypeError: Object of type bytes is not JSON serializable"),
        ([{"data": (1, 2)}], "it changes as JSON"),
        ([{"data": float("nan")}], "ValueError"),
    ],
)
def test_blocks_that_cannot_be_handed_back_are_told(bench: Bench, content: Any, text: str) -> None:
    with pytest.raises(ToolError, match="work failed: TypeError: the content of its ToolOutput") as caught:
        bench.run(lambda: ToolOutput(content=content))
    assert text in str(caught.value)


class Mine(ToolError):
    def __init__(self, amount: int) -> None:
        super().__init__(f"{amount} is too much", code="TOO_MUCH")


def test_an_error_of_the_tool_s_own_keeps_its_code(bench: Bench) -> None:
    def work() -> None:
        raise ToolError("that's mine", code="MY_CODE")

    def other() -> None:
        raise Mine(3)

    for body, told in ((work, ("that's mine", "MY_CODE")), (other, ("3 is too much", "TOO_MUCH"))):
        with pytest.raises(ToolError) as caught:
            bench.run(body)
        assert (str(caught.value), caught.value.code) == told


def raising(exc: Any) -> Callable[[], None]:
    def work() -> None:
        raise exc

    return work


def without_text() -> None:
    class Silent(Exception):
        def __str__(self) -> str:
            raise OSError

    raise Silent


@pytest.mark.once
def test_everything_else_that_is_raised_comes_back_as_type_and_text(bench: Bench) -> None:
    for body, text in (
        (raising(ValueError("boom")), "work failed: ValueError: boom"),
        (raising(KeyError), "work failed: KeyError"),
        (raising(KeyboardInterrupt()), "work failed: KeyboardInterrupt"),
        (raising(MemoryError()), "work failed: MemoryError"),
        (without_text, "work failed: Silent (its text can't be had)"),
        (lambda: sys.exit(3), "work failed: SystemExit: 3"),
        (lambda: sys.exit("no more"), "work failed: SystemExit: no more"),
    ):
        with pytest.raises(ToolError) as caught:
            bench.run(body)
        assert (str(caught.value), caught.value.code) == (text, "TOOL_FAILED")


def test_a_coroutine_is_refused_as_it_is_without_isolation(bench: Bench) -> None:
    async def nothing() -> None:
        pass

    text = "a coroutine came back: a tool is a plain function that may block"
    with pytest.raises(ToolError, match=f"work failed: TypeError: {text}"):
        bench.run(lambda: nothing())


# -- what it prints ------------------------------------------------------------------------------------


def test_all_that_it_prints_is_shown_and_is_no_part_of_the_result(bench: Bench) -> None:
    def work() -> str:
        print("a é")
        print("b", file=sys.stderr)
        os.write(1, b"c\n")
        subprocess.run(["echo", "d"])
        print("e", end="")
        return "done"

    assert bench.run(work).text == "done"
    assert bench.shown == "a é\nb\nc\nd\ne"


def test_what_it_prints_is_shown_while_it_runs(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)

    def work() -> None:
        print("here")
        time.sleep(600)

    bench.stop_at("here\n")
    with pytest.raises(Cancelled):
        bench.run(work)


def test_a_locale_that_knows_no_such_letters_changes_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LC_ALL", "C")
    monkeypatch.setenv("PYTHONIOENCODING", "latin-1")
    bench.run(lambda: print("é€\udfff"))
    assert bench.shown == "é€\\udfff\n"


def test_a_flood_is_drained_and_not_kept(bench: Bench) -> None:
    def work() -> str:
        for _ in range(300):
            print("0123456789" * 1000)
        return "done"

    bench.more = False
    assert bench.run(work).text == "done"
    assert len(bench.pieces) == 1


def test_emit_shows_text_and_knows_when_no_more_is_shown(bench: Bench) -> None:
    def work(context: CallContext) -> Any:
        print("one", end=" ")
        more = context.emit("two é\ud800\n")
        sys.stdout.close()
        deadline = time.monotonic() + 30
        while context.emit("more\n"):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        try:
            context.emit(b"three")  # type: ignore[arg-type]
        except TypeError as exc:
            return [more, str(exc)]

    def at(shown: str) -> None:
        bench.more = "more" not in shown

    bench.at = at
    assert bench.run(work).text == '[true, "emit() takes a string, not bytes"]'
    assert bench.shown.startswith("one two é\ufffd\n")


# -- stops ---------------------------------------------------------------------------------------------


def spin() -> None:
    print("here")
    while True:
        pass


def hold_the_gil() -> None:
    print("here")
    sum(range(10**10))


@pytest.mark.parametrize("body", [spin, hold_the_gil])
def test_a_body_that_never_looks_is_ended(bench: Bench, body: Any) -> None:
    bench.stop_at("here")
    begun = time.monotonic()
    with pytest.raises(Cancelled) as caught:
        bench.run(body)
    assert time.monotonic() - begun < 10.0
    assert caught.value.token is bench.token


def test_one_that_ignores_sigterm_is_killed_after_the_grace(bench: Bench) -> None:
    def work() -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print("here")
        while True:
            pass

    at: List[float] = []
    bench.at = lambda shown: (at.append(time.monotonic()), bench.token.cancel())
    with pytest.raises(Cancelled):
        bench.run(work)
    assert isolate.GRACE <= time.monotonic() - at[0] < isolate.GRACE + 10


@pytest.mark.parametrize("held", [False, True])
def test_one_with_a_token_that_holds_the_gil_or_loops_is_killed_after_the_grace(
    bench: Bench, held: bool
) -> None:
    def work(token: CancellationToken) -> None:
        print("here")
        sum(range(10**10)) if held else time.sleep(600)

    bench.stop_at("here")
    with pytest.raises(Cancelled):
        bench.run(work)


@pytest.mark.parametrize("cause, text", [("timeout", "too late é"), ("hook", "x" * 5000), ("user", None)])
def test_a_token_gets_the_cause(bench: Bench, cause: str, text: Optional[str]) -> None:
    def work(token: CancellationToken) -> Any:
        print("here")
        return [token.wait(), token.cause, len(token.text or "")]

    bench.at = lambda shown: bench.token.cancel(cause, text)
    output = bench.run(work)
    assert output.text == f'[true, "{cause}", {min(len(text or ""), 600)}]'


def test_a_body_that_unwinds_by_its_token_is_cancelled_and_may_clean_up(bench: Bench, tmp_path: Path) -> None:
    def work(path: str, token: CancellationToken) -> None:
        try:
            print("here")
            token.wait()
            token.raise_if_cancelled()
        finally:
            open(path, "w").close()

    bench.stop_at("here")
    with pytest.raises(Cancelled) as caught:
        bench.run(work, path=str(tmp_path / "cleaned"))
    assert caught.value.token is bench.token
    assert (tmp_path / "cleaned").exists()


def test_a_generator_stops_at_a_cancel(bench: Bench) -> None:
    def work(token: CancellationToken) -> Any:
        yield "a"
        print("here")
        token.wait()
        yield "b"

    bench.stop_at("here")
    with pytest.raises(Cancelled):
        bench.run(work)


def test_a_body_can_stop_itself_and_nobody_else(bench: Bench) -> None:
    def work(token: CancellationToken) -> None:
        token.cancel()
        token.raise_if_cancelled()

    with pytest.raises(ToolError, match="work failed: Cancelled: cancelled: user"):
        bench.run(work)
    assert not bench.token.cancelled


def test_sigterm_from_outside_cancels_the_token_as_a_user(bench: Bench) -> None:
    def work(token: CancellationToken) -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        return [token.wait(), token.cause]

    assert bench.run(work).text == '[true, "user"]'


def test_other_signals_of_the_body_leave_its_token_alone(bench: Bench) -> None:
    def work(token: CancellationToken) -> Any:
        seen: List[int] = []
        signal.signal(signal.SIGUSR1, lambda *_: seen.append(1))
        for _ in range(100):
            os.kill(os.getpid(), signal.SIGUSR1)
        return [token.wait(0.2), len(seen) > 0]

    assert bench.run(work).text == "[false, true]"


def test_a_body_can_end_its_copies(bench: Bench) -> None:
    """A worker of multiprocessing would swallow its SIGTERM, and cancel the body's token instead."""

    def work(token: CancellationToken) -> Any:
        import multiprocessing

        worker = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
        worker.start()
        worker.terminate()
        worker.join(10)
        return [worker.exitcode, token.wait(0.2)]

    assert bench.run(work).text == "[-15, false]"


def test_a_result_that_was_there_before_the_stop_is_the_result(bench: Bench) -> None:
    def work(token: CancellationToken) -> str:
        print("here")
        token.wait()
        return "done in spite of it"

    bench.stop_at("here")
    assert bench.run(work).text == "done in spite of it"


def test_a_stop_before_the_process_is_there_means_that_the_body_never_began(bench: Bench) -> None:
    bench.token.cancel()
    output = bench.run(lambda: print("never"))
    assert (output.error, output.text) == ("ABORTED_BEFORE_DISPATCH", NOT_DISPATCHED_TEXT)
    assert bench.shown == ""


def test_a_stop_while_it_is_unpacked_means_that_the_body_never_began(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "import sys, time\ndef work(): print('never')\n"
    (tmp_path / "slow_module.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    import slow_module

    (tmp_path / "slow_module.py").write_text(text + "print('importing', flush=True); time.sleep(600)\n")
    bench.stop_at("importing")
    output = bench.run(slow_module.work)
    assert output.error == "ABORTED_BEFORE_DISPATCH"
    assert bench.shown.strip() == "importing"


def test_a_tree_of_processes_is_gone_with_it(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    mark = Mark()
    monkeypatch.setenv("TOOL_MARK", mark.value)

    def work() -> None:
        subprocess.Popen(["setsid", "sleep", "600"])
        stubborn = "trap '' TERM; setsid sleep 600 & disown; while :; do sleep 0.05; done"
        subprocess.Popen(["bash", "-c", stubborn])
        if os.fork() == 0:
            os.setsid()
            os.fork()
            time.sleep(600)
        print("here")
        while True:
            pass

    bench.stop_at("here")
    with pytest.raises(Cancelled):
        bench.run(work)
    assert mark.pids() == []


def test_processes_that_it_left_are_stopped_and_that_is_told(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = Mark()
    monkeypatch.setenv("TOOL_MARK", mark.value)

    def work() -> str:
        subprocess.Popen(["setsid", "sleep", "600"])
        return "done"

    assert bench.run(work).text == "done\n[1 background process was stopped as the function had returned]"
    assert mark.pids() == []


def stop_at_random(bench: Bench, rounds: int) -> None:
    chance = random.Random(4)

    def work(token: Any = None) -> None:
        subprocess.Popen(["setsid", "sleep", "600"])
        time.sleep(600)

    for number in range(rounds):
        mark = Mark()
        os.environ["TOOL_MARK"] = mark.value
        token = CancellationToken()
        timer = threading.Timer(chance.uniform(0, 0.2), token.cancel)
        timer.start()
        try:
            output = bench.run(work if number % 2 else lambda: work(), token)
            assert output.error == "ABORTED_BEFORE_DISPATCH"
        except Cancelled as exc:
            assert exc.token is token
        finally:
            del os.environ["TOOL_MARK"]
            timer.join()
            token.close()
        assert mark.pids() == []


@pytest.mark.once
def test_a_stop_at_any_instant_leaves_nothing(bench: Bench) -> None:
    stop_at_random(bench, 10)


@pytest.mark.once
@pytest.mark.timeout(300)
def test_two_hundred_stops_at_any_instant_leave_nothing(bench: Bench) -> None:
    stop_at_random(bench, 200)


# -- deaths --------------------------------------------------------------------------------------------


def crash() -> None:
    signal.signal(signal.SIGSEGV, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGSEGV)


@pytest.mark.parametrize(
    "body, text",
    [
        (lambda: os._exit(3), "its process ended with exit code 3 before the function had returned"),
        (lambda: os._exit(0), "its process ended with exit code 0 before the function had returned"),
        (crash, "its process was killed by signal 11 (SIGSEGV) before the function had returned"),
        (
            lambda: os.kill(os.getpid(), signal.SIGKILL),
            "its process was killed by signal 9 (SIGKILL) before the function had returned;"
            " the system does that when memory runs out",
        ),
        (
            lambda: os.kill(os.getpid(), 40),
            "its process was killed by signal 40 before the function had returned",
        ),
    ],
)
def test_the_death_of_its_process_is_told(bench: Bench, body: Any, text: str) -> None:
    with pytest.raises(ToolError) as caught:
        bench.run(body)
    assert (str(caught.value), caught.value.code) == (f"work failed: {text}", "TOOL_FAILED")


def test_a_killed_guard_is_a_failure(bench: Bench) -> None:
    def work() -> None:
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(600)

    with pytest.raises(ToolError, match="its process was not to be had: a child process was lost: its guard"):
        bench.run(work)


def test_a_body_that_closes_every_descriptor_is_a_failure_and_no_hang(bench: Bench) -> None:
    with pytest.raises(ToolError, match="work failed: its process ended with exit code 1 before"):
        bench.run(lambda: os.closerange(3, 100))


def test_a_copy_that_the_body_has_forked_reports_nothing(bench: Bench) -> None:
    def work() -> str:
        body = os.getpid()
        if os.fork() == 0:
            while os.getppid() == body:
                time.sleep(0.002)  # nobody announces its end
            sys.exit("the copy's")
        return "the body's"

    assert bench.run(work).text.startswith("the body's")


def test_what_it_starts_gets_no_descriptor_of_ours(bench: Bench) -> None:
    def work() -> Any:
        done = subprocess.run(["ls", "/proc/self/fd"], stdout=subprocess.PIPE, text=True, close_fds=False)
        return done.stdout.split()

    assert bench.run(work).text == '["0", "1", "2", "3"]'  # the last one is what `ls` reads


def test_a_thread_that_it_left_is_waited_for_as_at_the_end_of_a_script(bench: Bench) -> None:
    def work() -> str:
        def late() -> None:
            time.sleep(0.2)
            print("late")

        threading.Thread(target=late).start()
        return "done"

    assert bench.run(work).text == "done"
    assert bench.shown == "late\n"


RUNTIME = """
import os, subprocess, sys, time
from syncagent import CallContext, CancellationToken, tool
from syncagent.boundary.process import shared

@tool(isolate=True)
def work():
    subprocess.Popen(["setsid", "sleep", "600"])
    print("running", flush=True)
    while True:
        pass

with shared() as processes:
    context = CallContext(token=CancellationToken(), emit=lambda text: print(text, flush=True) or True,
                          processes=processes)
    work.invoke({}, context)
"""


def test_a_killed_runtime_takes_it_along() -> None:
    mark = Mark()
    with start_host(RUNTIME, env={**mark.env, "PYTHONPATH": ROOT}) as host:
        assert host.stdout is not None and host.stdout.readline() == "running\n"
        until(lambda: len(mark.pids()) == 3, "the runtime, the body and what that has started")
        host.kill()
        until(lambda: mark.pids() == [], "all are gone")


# -- where a function comes from -----------------------------------------------------------------------

SCRIPT = """
import sys, threading
from syncagent import CallContext, CancellationToken, tool
from syncagent.boundary.process import shared

print("the script runs")
FACTOR = 2
LOCK = threading.Lock()

class Box:
    def __init__(self, value):
        self.value = value

def helper(value):
    return Box(value * FACTOR)

@tool
def other(value: int) -> int:
    return value + 1

@tool(isolate=True)
def work(value: int) -> int:
    return 1 if value == 0 else other(helper(value).value) + work(value - 1)

@tool(isolate=True)
def locked():
    with LOCK:
        pass

with shared() as processes:
    context = CallContext(token=CancellationToken(), emit=print, processes=processes)
    print(work.invoke(work.parse('{"value": 3}'), context).text)
    try:
        locked.invoke({}, context)
    except Exception as exc:
        print(exc)
"""


def test_a_function_of_a_script_works_and_the_script_is_not_run_again(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "script.py")],
        stdout=subprocess.PIPE,
        text=True,
        timeout=60,
        check=True,
        env={**os.environ, "PYTHONPATH": ROOT},
    )
    ran, result, error = done.stdout.splitlines()
    assert (ran, result) == ("the script runs", "16")
    assert error.startswith("tool 'locked' can't run isolated: the global 'LOCK', of type lock,")


@pytest.mark.parametrize("name", ["__main__", "a_cell", None])
def test_a_function_of_a_notebook_works(bench: Bench, name: Any) -> None:
    cell = "import os\nHERE = 'cell'\ndef work(): return f'{HERE} {os.path.basename(\"/a/b\")} {later()}'\n"
    names = {} if name is None else {"__name__": name}
    exec(cell, names)
    exec("def later(): return 'later'", names)
    assert bench.run(names["work"]).text == "cell b later"


def test_closures_lambdas_and_decorated_functions_work(bench: Bench) -> None:
    amount = 3

    def twice(function: Any) -> Any:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs) * 2

        return wrapper

    @tool(isolate=True)
    @twice
    def work(value: int) -> int:
        return value + amount

    class Counter:
        def __init__(self) -> None:
            self.start = 10

        def count(self, value: int) -> int:
            return self.start + value

    assert bench.run(work, value=1).text == "8"
    assert bench.run(Counter().count, value=1).text == "11"
    assert bench.run(functools.partial(lambda a, b: a - b, 10), b=1).text == "9"


MODULE = """
import os, threading
from syncagent import tool
LOCK = threading.Lock()
if os.environ.get("COUNT"):
    with open(os.environ["COUNT"], "a") as file:
        file.write("imported\\n")

@tool(isolate=True)
def work(value: int = 1, lock=LOCK) -> str:
    with LOCK, lock if lock is not LOCK else threading.Lock():
        return f"{value} {__name__} {other.name}"

@tool
def other(): pass

plain = tool(isolate=True, name="plain")(lambda: type(LOCK).__name__)
"""


def test_a_function_of_a_module_goes_by_its_name_though_the_name_is_the_tool_s(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "their_tools.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    import their_tools

    monkeypatch.setenv("COUNT", str(tmp_path / "count"))
    assert bench.run(their_tools.work, value=2).text == "2 their_tools other"
    assert bench.run(lambda: their_tools.work(3)).text == "3 their_tools other"
    their_work = their_tools.work
    assert bench.run(lambda: their_work(4)).text == "4 their_tools other"
    assert (tmp_path / "count").read_text() == "imported\n" * 3


def test_a_module_that_is_not_there_any_more_is_told(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone_tools.py").write_text("def work(): pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import gone_tools

    (tmp_path / "gone_tools.py").unlink()
    with pytest.raises(ToolError, match="work failed: it can't be unpacked in a process") as caught:
        bench.run(gone_tools.work)
    assert "No module named 'gone_tools'" in str(caught.value)


def test_the_folder_the_path_and_the_arguments_are_those_of_the_parent(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["me", "--option"])
    monkeypatch.syspath_prepend("/no/such/folder")
    monkeypatch.setenv("SOME_KEY", "k")
    path = list(sys.path)

    def work() -> bool:
        assert (os.getcwd(), sys.path, sys.argv) == (str(tmp_path), path, ["me", "--option"])
        return os.environ["SOME_KEY"] == "k" and sys.stdin.read() == ""

    assert bench.run(work).text == "true"


def test_a_stop_of_all_processes_is_no_success(bench: Bench) -> None:
    bench.at = lambda shown: threading.Thread(target=processes.close).start()
    processes = Processes()
    bench.processes = processes
    with pytest.raises(ToolError, match="its process was stopped together with all that ran here"):
        bench.run(spin)
    processes.close()


# -- in company ----------------------------------------------------------------------------------------


@pytest.mark.once
def test_many_run_side_by_side(bench: Bench) -> None:
    def work(number: int) -> int:
        os.write(1, f"{number}\n".encode())
        return number * number

    it = tool(name="work", isolate=True)(work)
    with ThreadPoolExecutor(8) as pool:
        outputs = list(pool.map(lambda number: bench.run(it, number=number).text, range(24)))
    assert outputs == [str(number**2) for number in range(24)]
    assert sorted(map(int, bench.shown.split())) == list(range(24))


def test_an_isolated_body_can_run_isolated_tools_and_processes_of_its_own(bench: Bench) -> None:
    @tool(isolate=True)
    def inner(pid: int) -> Any:
        print("from within")
        return [os.getpid() == pid, os.getppid() == pid]

    def work(context: CallContext) -> Any:
        result = context.processes.run(["echo", "hi"], token=context.token)
        return [inner.invoke({"pid": os.getpid()}, context).text, inner(os.getpid()), result.output]

    assert bench.run(work).text == '["[false, false]", [true, false], "hi\\n"]'
    assert bench.shown == "from within\n" * 2


def test_a_stop_reaches_what_an_isolated_body_runs(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    mark = Mark()
    monkeypatch.setenv("TOOL_MARK", mark.value)

    def work(context: CallContext) -> Any:
        script = "setsid sleep 600 & echo here; wait"
        result = context.processes.run(["bash", "-c", script], token=context.token, on_output=context.emit)
        # Its guard or ours was the first to say SIGTERM.
        return [result.signal, context.token.wait(30), context.token.cause]

    bench.stop_at("here", "disposed")
    assert bench.run(work).text == '[15, true, "disposed"]'
    assert mark.pids() == []


FORKED = """
import os
from syncagent import CallContext, CancellationToken, tool
from syncagent.boundary.process import shared

@tool(isolate=True)
def work(number: int) -> int:
    return number + 1

def run(number):
    with shared() as processes:
        context = CallContext(token=CancellationToken(), emit=print, processes=processes)
        return work.invoke({"number": number}, context).text

with shared() as processes:
    print(run(1), flush=True)
    pid = os.fork()
    if pid == 0:
        print(run(2), flush=True)
        os._exit(0)
    os.waitpid(pid, 0)
    print(run(3), flush=True)
"""


@pytest.mark.once
def test_a_forked_worker_can_make_calls() -> None:
    assert run_host(FORKED) == "2\n3\n4\n"


def test_a_forked_copy_that_cancels_its_token_tells_nothing_here(bench: Bench, tmp_path: Path) -> None:
    def work(path: str, token: CancellationToken) -> Any:
        print("here")
        while not os.path.exists(path):
            time.sleep(0.002)  # it is made in another process
        stopped = token.cancelled
        os.kill(os.getpid(), signal.SIGTERM)
        return [stopped, token.wait(30), token.cause]

    def at(shown: str) -> None:
        pid = os.fork()
        if pid == 0:
            bench.token.cancel("hook", "the copy's")
            os._exit(0)
        os.waitpid(pid, 0)
        (tmp_path / "done").touch()

    bench.at = at
    assert bench.run(work, path=str(tmp_path / "done")).text == '[false, true, "user"]'


# -- where it can't be ---------------------------------------------------------------------------------


def test_an_embedded_python_is_a_clear_error(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("executable", "_base_executable", "exec_prefix", "base_exec_prefix"):
        monkeypatch.setattr(sys, name, "/usr/sbin/uwsgi", raising=False)
    with pytest.raises(ToolError, match="its process was not to be had: .*embeds Python can set it"):
        bench.run(lambda: None)


ZIPPED = """
from syncagent import CallContext, CancellationToken, tool
from syncagent.boundary.process import shared
it = tool(isolate=True, name="it")(lambda: None)
with shared() as processes:
    try:
        it.invoke({}, CallContext(token=CancellationToken(), emit=print, processes=processes))
    except Exception as exc:
        print(exc)
"""


def test_a_zipped_package_is_a_clear_error(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "package.zip", "w") as file:
        for path in Path(ROOT, "syncagent").rglob("*.py"):
            file.write(path, path.relative_to(ROOT))
    said = run_host(ZIPPED, env={**os.environ, "PYTHONPATH": str(tmp_path / "package.zip")}, cwd=tmp_path)
    assert said.startswith("it failed: its process was not to be had: ") and "is no file (a zipped" in said


def test_an_interpreter_that_cannot_start_says_why(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONHOME", "/no/such/folder")
    text = r"(?s)its process could not begin: exit code 1: .*No module named 'enc"
    with pytest.raises(ToolError, match=text):
        bench.run(lambda: None)


def test_a_folder_that_was_removed_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    gone = "import os, syncagent.boundary.tools.isolate, syncagent.boundary.process\n"
    program = gone + "os.chdir('here')\nos.rmdir(os.getcwd())\n" + ZIPPED
    said = run_host(program, cwd=tmp_path)
    assert "it failed: its process was not to be had: cannot start a child process: [Errno 2]" in said


def test_without_files_in_memory_it_works_with_one_on_disk(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delattr(os, "memfd_create")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert bench.run(lambda: os.readlink("/proc/self/fd/3").startswith(str(tmp_path))).text == "true"
    assert list(tmp_path.iterdir()) == []


OPTIONS = """
import sys
from syncagent import CallContext, CancellationToken, tool
from syncagent.boundary.process import shared
it = tool(isolate=True, name="it")(lambda: [list(sys.flags)[:-1], sys.warnoptions[:1], __debug__])
with shared() as processes:
    told = it.invoke({}, CallContext(token=CancellationToken(), emit=print, processes=processes)).text
    print(told)
    import json
    print(json.dumps([list(sys.flags)[:-1], sys.warnoptions[:1], __debug__]))
"""


@pytest.mark.once
@pytest.mark.parametrize(
    "options", [[], ["-O"], ["-B", "-s", "-W", "error::UserWarning"], ["-X", "dev", "-bb"], ["-X", "utf8"]]
)
def test_the_options_of_the_interpreter_are_those_of_the_parent(options: List[str]) -> None:
    command = [sys.executable, *options, "-c", OPTIONS]
    env = {**os.environ, "PYTHONPATH": ROOT}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=60, check=True, env=env)
    told, ours = done.stdout.splitlines()
    assert told == ours


# -- in an agent ---------------------------------------------------------------------------------------


def test_an_agent_shows_what_it_prints_and_gets_its_result(home: Any) -> None:
    @tool(isolate=True)
    def work(value: int) -> int:
        print("working")
        return value * 2

    agent = home.agent([[call("work", {"value": 4})], "done"], tools=[work])
    assert agent.run("go").text == "done"
    assert "".join(event.body.text for event in home.events(agent, "tool/chunk")) == "working\n"
    assert results(home.events(agent)) == {"call_1": (None, "8")}


def test_a_cancel_of_the_turn_ends_it(home: Any) -> None:
    agent = home.agent([[call("spin")]], tools=[tool(isolate=True)(spin)])
    future = agent.send("go")
    next(event for event in agent.follow() if event.type == "tool/chunk")
    agent.cancel()
    assert future.result(LONG).reason == "aborted"
    assert results(home.events(agent))["call_1"][0] == "ABORTED"


def test_its_own_time_out_ends_it(home: Any) -> None:
    agent = home.agent([[call("spin")], "done"], tools=[tool(isolate=True, timeout=1.0)(spin)])
    assert agent.run("go").text == "done"
    text = "The tool spin ran longer than 1.0 s and was stopped."
    assert results(home.events(agent)) == {"call_1": ("TIMEOUT", text)}


def test_a_time_out_before_it_began_is_a_time_out_and_no_more(home: Any) -> None:
    it = tool(isolate=True, timeout=0.001, name="it")(lambda: None)
    agent = home.agent([[call("it")], "done"], tools=[it])
    assert agent.run("go").text == "done"
    text = "The tool it ran longer than 0.001 s and was stopped."
    assert results(home.events(agent)) == {"call_1": ("TIMEOUT", text)}


def test_a_cancel_while_its_process_gets_ready_is_no_cut(home: Any) -> None:
    """The body never began, so nobody need wonder what it has done."""
    it = tool(isolate=True, name="it")(lambda: None)
    agent = home.agent([[call("it")]], tools=[it])
    future = agent.send("go")
    next(event for event in agent.follow() if event.type == "tool/call")
    agent.cancel()
    future.result(LONG)
    code, text = results(home.events(agent))["call_1"]
    assert (code, text) in [("ABORTED_BEFORE_DISPATCH", NOT_DISPATCHED_TEXT), (None, "(no output)")]


def test_a_failure_reads_as_it_does_without_isolation(home: Any) -> None:
    bodies = [raising(ValueError("boom")), raising(ToolError("mine", code="MY_CODE")), lambda: sys.exit(3)]
    for body in bodies:
        both = [tool(name="it")(body), tool(name="it", isolate=True)(body)]
        told = []
        for it in both:
            agent = home.agent([[call("it")], "done"], tools=[it])
            agent.run("go")
            told.append(results(home.events(agent)))
        assert told[0] == told[1]


def test_a_module_with_an_isolated_tool_loads_no_more_for_it() -> None:
    """It is imported anew for each call: neither the log, nor processes, nor cloudpickle are needed."""
    program = """
import sys
before = set(sys.modules)  # a tool that measures coverage has loaded some of them
from syncagent import tool
@tool(isolate=True)
def work(x: int): ""
names = "cloudpickle", "cattrs", "syncagent.log.events", "syncagent.boundary.process", "socket", "tempfile"
print([name for name in names if name in sys.modules and name not in before])
"""
    assert run_host(program) == "[]\n"
