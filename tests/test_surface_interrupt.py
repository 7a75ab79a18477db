"""Ctrl+C and SIGTERM while a turn is waited for, in processes that are really signalled."""

import json
import signal
import subprocess
import sys

import pytest
from processes import Mark

pytestmark = pytest.mark.concurrent

#: Longer than anything here may take; a test that gets there has failed.
DEADLINE = 60.0

PRELUDE = """
import json, os, signal, sys, threading, time
from syncagent import Agent, Store, tool
from syncagent.boundary.tools.bash import bash_tool
from syncagent.testing import FailPoints, ScriptedModel, assert_log, call, hold, stall

begun, let_go = threading.Event(), threading.Event()

@tool
def wait(*, token):
    "Wait until it is stopped."
    begun.set()
    token.wait(30)
    token.raise_if_cancelled()

@tool
def stubborn():
    "Wait, and listen to nobody."
    begun.set()
    let_go.wait(30)

def kill(number=signal.SIGINT):
    os.kill(os.getpid(), number)

def soon(work):
    thread = threading.Thread(target=work)
    thread.start()
    return thread

def handlers():
    return [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]

def endings(store, session):
    events = assert_log(store, session)
    return [event.data["reason"]["kind"] for event in events if event.type == "turn/end"]

def attempt(run, *args, **options):
    "What comes of a run: its name and its result."
    try:
        result = run(*args, **options)
        return "returned", result
    except BaseException as exc:
        found = getattr(exc, "result", "none")
        return (f"SystemExit {exc.code}" if isinstance(exc, SystemExit) else type(exc).__name__), found

def reason(result):
    return getattr(result, "reason", result)

path = sys.argv[1]
before = handlers()
"""


@pytest.fixture
def child(tmp_path):
    """Run a script in a process of its own; what it gives to `done(...)` comes back."""
    mark = Mark()

    def run(script):
        whole = PRELUDE + script.replace("done(", "print(json.dumps(") .rstrip() + ")\n"
        ran = subprocess.run(
            [sys.executable, "-c", whole, str(tmp_path / "runs.db")],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            timeout=DEADLINE,
            env=mark.env,
            text=True,
        )
        assert ran.returncode == 0, ran.stderr
        assert mark.pids() == []
        return json.loads(ran.stdout.splitlines()[-1])

    return run


def test_the_first_ctrl_c_stops_the_turn_in_order_and_the_next_turn_works(child):
    found = child("""
with Store(path) as store:
    with Agent(ScriptedModel([[call("wait")], "hello"]), tools=[wait], store=store, session="s1") as agent:
        soon(lambda: (begun.wait(30), kill()))
        said = []
        name, result = attempt(agent.run, "go", notice=said.append)
        via = [event.data["via"] for event in store.read("s1") if event.type == "cancel/requested"]
        again = agent.run("again")
    kinds = endings(store, "s1")
first = [name, reason(result), str(result.cause), via, said]
done([*first, reason(again), again.text, kinds, handlers() == before])
""")
    assert found == [
        "KeyboardInterrupt",
        "aborted",
        "user",
        ["sigint"],
        ["stopping; press Ctrl+C again to kill what is running"],
        "completed",
        "hello",
        ["aborted", "completed"],
        True,
    ]


@pytest.mark.parametrize("name, code", [("SIGTERM", 143), ("SIGHUP", 129)])
def test_sigterm_and_sighup_stop_the_turn_in_order_and_exit(child, name, code):
    found = child(f"""
with Store(path) as store:
    with Agent(ScriptedModel([["so far", hold("x"), stall()]]), store=store, session="s1") as agent:
        soon(lambda: (agent._driver.work.model.point("x").reached.wait(30), kill(signal.{name})))
        name, result = attempt(agent.run, "go")
    via = [event.data["via"] for event in store.read("s1") if event.type == "cancel/requested"]
    kinds = endings(store, "s1")
done([name, reason(result), result.partial_text, via, kinds, handlers() == before])
""")
    assert found == [f"SystemExit {code}", "aborted", "so far", [name.lower()], ["aborted"], True]


@pytest.mark.once
def test_a_burst_of_ctrl_c_never_hangs_and_each_turn_ends_once(child):
    found = child("""
names = []
with Store(path) as store:
    with Agent(ScriptedModel([call("wait")] * 10), tools=[wait], store=store, session="s1") as agent:
        for _ in range(10):
            begun.clear()
            over = threading.Event()

            def burst():
                begun.wait(30)
                for _ in range(5):
                    kill()
                    time.sleep(0.01)  # the distance of the burst
                over.set()

            thread = soon(burst)
            while not over.is_set():
                try:
                    if len(names) <= _:
                        name, _result = attempt(agent.run, "go")
                        names.append(name)
                    over.wait(30)
                except KeyboardInterrupt:
                    pass  # came after the turn: the host's to handle
            thread.join()
            agent.wait()
    kinds = endings(store, "s1")
done([sorted(set(names)), len(names), sorted(set(kinds)), len(kinds), handlers() == before])
""")
    assert found == [["KeyboardInterrupt"], 10, ["aborted"], 10, True]


@pytest.mark.once
def test_a_ctrl_c_at_any_moment_tears_no_turn(child):
    found = child("""
import random
randomly = random.Random(7)
lost, outcomes = [], set()

@tool
def short(*, token):
    "A moment."
    token.wait(0.01)

with Store(path) as store:
    with Agent(ScriptedModel(lambda request: "ok" for _ in range(1000)), store=store, session="s1") as agent:
        for number in range(60):
            delay = randomly.random() * 0.03
            came = threading.Event()

            def later():
                time.sleep(delay)  # any moment, on purpose
                kill()
                came.set()

            caught = 0
            try:
                thread = soon(later)
                name, result = attempt(agent.run, "go")
                caught = name == "KeyboardInterrupt"
                outcomes.add(str(reason(result)))
                came.wait(30)
                time.sleep(0)  # lets a handler run that is due
            except KeyboardInterrupt:
                caught = True
            while thread.is_alive():
                try:
                    thread.join()
                except KeyboardInterrupt:
                    caught = True
            if not caught:
                lost.append(number)
            agent.wait()
    kinds = endings(store, "s1")
done([lost, sorted(set(kinds) - {"aborted", "completed"}), handlers() == before])
""")
    assert found == [[], [], True]


def test_a_ctrl_c_that_lands_as_the_turn_ends_is_not_lost(child):
    found = child("""
points = FailPoints()
point = points.hold("turn.handed_over")
with Store(path, points=points) as store:
    with Agent(ScriptedModel(["hello"]), store=store, session="s1") as agent:
        soon(lambda: (point.reached.wait(30), kill()))
        name, result = attempt(agent.run, "go", notice=lambda text: point.release())
    kinds = endings(store, "s1")
done([name, reason(result), kinds, handlers() == before])
""")
    assert found == ["KeyboardInterrupt", "completed", ["completed"], True]


def test_the_second_kills_what_takes_its_time_to_end(child):
    found = child("""
slow = bash_tool(grace=30.0)
command = "trap '' TERM; echo ready; sleep 60"
with Store(path) as store:
    model = ScriptedModel([call("bash", {"command": command})])
    with Agent(model, tools=[slow], store=store, session="s1") as agent:
        def twice():
            for event in agent.follow():
                if event.type == "tool/chunk":
                    break
            kill()
            stopping.wait(30)
            kill()

        def notice(text):
            said.append(text.split(";")[0])
            stopping.set()

        stopping, said = threading.Event(), []
        thread = soon(twice)
        start = time.monotonic()
        name, result = attempt(agent.run, "go", notice=notice)
        thread.join()
    codes = [event.data["error"]["code"] for event in store.read("s1") if event.type == "tool/result"]
done([name, reason(result), said, codes, time.monotonic() - start < 20, endings(store, "s1")])
""")
    assert found == ["KeyboardInterrupt", "aborted", ["stopping", "killing"], ["ABORTED"], True, ["aborted"]]


def test_the_third_leaves_at_once_with_the_old_handlers(child):
    found = child("""
with Store(path) as store:
    with Agent(ScriptedModel([call("stubborn")]), tools=[stubborn], store=store, session="s1") as agent:
        told = [threading.Event() for _ in range(2)]
        said = []

        def thrice():
            begun.wait(30)
            for event in told:
                kill()
                event.wait(30)
            kill()

        def notice(text):
            told[len(said)].set()
            said.append(text)

        thread = soon(thrice)
        name, result = attempt(agent.run, "go", notice=notice)
        thread.join()
        status, restored = agent.status, handlers() == before
        let_go.set()
        agent.wait()
    kinds = endings(store, "s1")
done([name, result, status, restored, kinds])
""")
    status = found.pop(2)
    assert status.startswith("cancelling (waiting for stubborn)")
    assert found == ["KeyboardInterrupt", None, True, ["aborted"]]


def test_a_host_with_a_handler_of_its_own_keeps_it(child):
    found = child("""
heard = []
mine = lambda number, frame: heard.append(number)
signal.signal(signal.SIGINT, mine)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
with Store(path) as store:
    points = FailPoints()
    with Agent(ScriptedModel([["so far", hold("x"), "!"]]), store=store, session="s1") as agent:
        point = agent._driver.work.model.point("x")

        def signals():
            point.reached.wait(30)
            kill(), kill(signal.SIGTERM)
            while not heard:
                time.sleep(0.001)  # nobody announces it
            point.release()

        soon(signals)
        name, result = attempt(agent.run, "go")
    kept = signal.getsignal(signal.SIGINT) is mine and signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
done([name, reason(result), heard, kept])
""")
    assert found == ["returned", "completed", [signal.SIGINT.value], True]


def test_what_a_hosts_handler_raises_stops_the_turn_first(child):
    found = child("""
class Alarm(Exception):
    pass

def ring(number, frame):
    raise Alarm

signal.signal(signal.SIGINT, ring)
with Store(path) as store:
    with Agent(ScriptedModel([[call("wait")]]), tools=[wait], store=store, session="s1") as agent:
        soon(lambda: (begun.wait(30), kill()))
        name, result = attempt(agent.run, "go")
        kinds = endings(store, "s1")
done([name, result, kinds, signal.getsignal(signal.SIGINT) is ring])
""")
    assert found == ["Alarm", "none", ["aborted"], True]


def test_a_notice_that_fails_comes_after_the_stop(child):
    found = child("""
def notice(text):
    raise BrokenPipeError

with Store(path) as store:
    with Agent(ScriptedModel([[call("wait")]]), tools=[wait], store=store, session="s1") as agent:
        soon(lambda: (begun.wait(30), kill()))
        name, result = attempt(agent.run, "go", notice=notice)
        agent.wait()
    kinds = endings(store, "s1")
done([name, kinds, handlers() == before])
""")
    assert found == ["BrokenPipeError", ["aborted"], True]


def test_off_the_main_thread_no_handler_is_touched(child):
    found = child("""
found = []

def work():
    from syncagent import Agent, Store
    with Store(path) as store:
        with Agent(ScriptedModel([["a", hold("x")]]), store=store, session="s1") as agent:
            point = agent._driver.work.model.point("x")
            soon(lambda: (point.reached.wait(30), found.append(handlers() == before), point.release()))
            found.append(agent.run("go").text)

thread = soon(work)
thread.join()
done([found, handlers() == before])
""")
    assert found == [[True, "a"], True]


@pytest.mark.parametrize("where", ["asyncio.run(main())", "soon(lambda: asyncio.run(main())).join()"])
def test_it_works_inside_a_running_event_loop(child, where):
    found = child(f"""
import asyncio
found = []

async def main():
    with Store(path) as store:
        with Agent(ScriptedModel(["hello"]), store=store) as agent:
            found.append(agent.run("go").text)

{where}
done([found, handlers() == before])
""")
    assert found == [["hello"], True]


def test_a_stop_from_elsewhere_and_a_time_out_are_results(child):
    found = child("""
with Store(path) as store:
    model = ScriptedModel([[call("wait")], [stall()], "ok"])
    with Agent(model, tools=[wait], store=store, session="s1") as agent:
        soon(lambda: (begun.wait(30), agent.cancel()))
        stopped = attempt(agent.run, "go")
        late = attempt(agent.run, "go", timeout=0.1)
        fine = attempt(agent.run, "go")
done([[name, result.reason, result.cause and str(result.cause)] for name, result in (stopped, late, fine)])
""")
    assert found == [
        ["returned", "aborted", "user"],
        ["returned", "aborted", "timeout"],
        ["returned", "completed", None],
    ]


def test_a_host_that_is_woken_by_signals_itself_keeps_its_descriptor(child):
    found = child("""
import socket
woken, wake = socket.socketpair()
wake.setblocking(False)
signal.set_wakeup_fd(wake.fileno())
with Store(path) as store:
    with Agent(ScriptedModel([[call("wait")]]), tools=[wait], store=store, session="s1") as agent:
        soon(lambda: (begun.wait(30), kill()))
        name, result = attempt(agent.run, "go")
done([name, reason(result), list(woken.recv(9)), signal.set_wakeup_fd(-1) == wake.fileno()])
""")
    assert found == ["KeyboardInterrupt", "aborted", [signal.SIGINT.value], True]


def test_a_signal_wakes_also_a_thread_that_is_just_falling_asleep(child):
    """The handler in Python alone would be too late for some of these."""
    found = child("""
from syncagent.surface.interrupt import Signals
ready, count = threading.Event(), 0

def killer():
    for _ in range(2000):
        ready.wait(30)
        ready.clear()
        kill()

with Signals() as signals:
    soon(killer)
    for _ in range(2000):
        ready.set()
        count += signals.next() == signal.SIGINT
    threading.Timer(0.01, signals.wake).start()
    none = signals.next()
signals.wake()
done([count, none, signals.late, handlers() == before, signal.set_wakeup_fd(-1)])
""")
    assert found == [2000, None, [], True, -1]
