"""What goes on beside a turn that is being stopped: processes of bodies, patience, and the record."""

import contextlib
import os
import subprocess
import threading
import time

import pytest
from processes import Mark, until
from runtime_parts import LONG, Held, results

from syncagent.boundary.process import proctree
from syncagent.boundary.tools.base import tool
from syncagent.boundary.tools.bash import bash
from syncagent.cancel import CancellationToken
from syncagent.runtime.stopping import Stopping
from syncagent.testing import call, hold, stall, status

pytestmark = pytest.mark.concurrent

linux = pytest.mark.skipif(not proctree.sees_children(), reason="the kernel lists no children of a thread")


@pytest.fixture
def mark():
    mark = Mark()
    yield mark
    assert mark.pids() == []


def waiting(mark, run, **options):
    """A tool without a token that waits in processes of its own."""

    def work(command: str) -> str:
        """Wait."""
        return run(["bash", "-c", command])

    return tool(name="work", **options)(work)


def plain(mark, **options):
    return waiting(mark, lambda argv: str(subprocess.run(argv, env=mark.env).returncode), **options)


def stop(agent, mark, *, processes=1):
    """Send a message, stop its turn when the tool's processes are there, return the turn's result."""
    future = agent.send("go")
    until(lambda: names(mark).count("sleep") == processes, "the processes of the tool")
    agent.cancel()
    return future.result(LONG)


def names(mark):
    found = []
    for pid in mark.pids():
        with contextlib.suppress(OSError), open(f"/proc/{pid}/comm") as file:
            found.append(file.read().strip())
    return found


def text_of(events):
    (result,) = [event.body for event in events if event.type == "tool/result"]
    return "\n".join(block["text"] for block in result.content)


# -- processes that a body has started by itself -------------------------------------------------------


@linux
@pytest.mark.parametrize(
    "command, processes", [("exec sleep 60", 1), ("sleep 60 & setsid sleep 60 & wait", 2)]
)
def test_a_tool_that_waits_in_a_process_of_its_own_is_stopped_with_it(home, mark, command, processes):
    agent = home.agent([call("work", {"command": command}), "and on"], tools=[plain(mark)])
    assert stop(agent, mark, processes=processes).reason == "aborted"
    assert results(home.events(agent)) == {"call_1": ("ABORTED", text_of(home.events(agent)))}
    text = text_of(home.events(agent))
    assert text.startswith("-15\n[stopped with the call: ") and "sleep (pid " in text
    assert mark.pids() == []
    assert agent.run("again").text == "and on"


@linux
def test_what_it_raises_then_is_part_of_the_stop_and_no_failure_of_its_own(home, mark):
    tools = [waiting(mark, lambda argv: str(subprocess.check_output(argv, env=mark.env)))]
    agent = home.agent([call("work", {"command": "exec sleep 60"})], tools=tools)
    stop(agent, mark)
    ((code, text),) = results(home.events(agent)).values()
    assert code == "ABORTED" and "died with <Signals.SIGTERM: 15>" in text and "[stopped with" in text


@linux
def test_os_system_is_stopped_too(home, mark, monkeypatch):
    monkeypatch.setenv("TOOL_MARK", mark.value)

    @tool
    def work() -> int:
        """Wait."""
        return os.system("sleep 60; exit 3")

    agent = home.agent([call("work")], tools=[work])
    assert stop(agent, mark).reason == "aborted"


@linux
def test_each_process_that_a_body_goes_on_to_start_is_stopped(home, mark):
    started = []

    @tool
    def work() -> str:
        """One after the other."""
        for _ in range(4):
            started.append(subprocess.run(["sleep", "60"], env=mark.env).returncode)
        return "all four"

    agent = home.agent([call("work")], tools=[work])
    assert stop(agent, mark).reason == "aborted"
    assert started == [-15] * 4
    assert text_of(home.events(agent)).startswith("all four\n[stopped with the call: 4 processes: sleep ")


@linux
def test_a_calls_own_time_out_stops_them_as_well(home, mark):
    agent = home.agent(
        [call("work", {"command": "exec sleep 60"}), "seen"], tools=[plain(mark, timeout=0.3)]
    )
    assert agent.run("go").text == "seen"
    ((code, text),) = results(home.events(agent)).values()
    assert code == "TIMEOUT" and "ran longer than 0.3 s" in text and "[stopped with the call: " in text
    assert home.events(agent, "cancel/settled") == []


@linux
def test_a_stop_of_one_call_leaves_the_processes_of_the_other_alone(home, mark):
    other = Mark()
    slow = plain(other)
    tools = [plain(mark, timeout=0.3), tool(name="slow")(slow.function)]
    wait = {"command": "exec sleep 60"}
    agent = home.agent([[call("work", wait), call("slow", wait)]], tools=tools)
    future = agent.send("go")
    until(lambda: [event for event in home.events(agent) if event.type == "tool/result"], "the time-out")
    assert len(other.pids()) == 1
    agent.cancel()
    future.result(LONG)
    assert {code for code, _ in results(home.events(agent)).values()} == {"TIMEOUT", "ABORTED"}


@linux
def test_processes_that_the_host_has_started_go_on(home, mark):
    with subprocess.Popen(["sleep", "60"]) as host:
        agent = home.agent([call("work", {"command": "exec sleep 60"})], tools=[plain(mark)])
        stop(agent, mark)
        assert host.poll() is None
        host.kill()


@linux
def test_one_that_a_body_left_running_is_not_stopped_with_a_later_call(home, mark):
    """It was started in the same thread: the driver's. Nobody asked for its end."""
    kept = []

    @tool
    def serve() -> str:
        """Start a server and leave it."""
        kept.append(subprocess.Popen(["sleep", "60"]))
        return "it serves"

    agent = home.agent(
        [call("serve"), call("work", {"command": "exec sleep 60"})], tools=[serve, plain(mark)]
    )
    stop(agent, mark)
    (server,) = kept
    assert server.poll() is None
    server.kill()
    server.wait()


@linux
def test_a_hook_that_waits_in_a_process_is_stopped_too(home, mark):
    def pre_step(view, *, token):
        subprocess.run(["sleep", "60"], env=mark.env)

    agent = home.agent(["never"], pre_step=pre_step)
    assert stop(agent, mark).reason == "aborted"
    (settled,) = home.events(agent, "cancel/settled")
    assert [entry["boundary"] for entry in settled.body.boundaries] == ["hook pre_step"]


@linux
def test_a_kill_gives_them_no_grace(home, mark):
    """The process takes no TERM, and nobody waits for the length of the grace: it is an hour here."""
    agent = home.agent([call("work", {"command": "trap '' TERM; sleep 60; sleep 60"})], tools=[plain(mark)])
    future = agent.send("go")
    until(lambda: "sleep" in names(mark), "the process of the tool")
    boundary = until(
        lambda: [each for each in agent._driver._turn.stopping.inside() if each.kind == "tool"], "the call"
    )
    boundary[0].strays._grace = 3600.0
    agent.cancel()
    until(lambda: boundary[0].strays.stopped, "the TERM")
    assert not future.done()
    agent.kill()
    assert future.result(LONG).reason == "aborted"


def test_the_supervisor_is_nobodys_child_however_it_was_started(home):
    """The first command of all starts it, in the thread of its call."""
    agent = home.agent([call("bash", {"command": "echo begun; exec sleep 60"}), "on"], tools=[bash])
    future = agent.send("go")
    until(lambda: home.events(agent, "tool/chunk"), "the command")
    supervisor = agent._processes.supervisor_pid
    agent.cancel()
    assert future.result(LONG).reason == "aborted"
    assert agent._processes.supervisor_pid == supervisor
    assert "[stopped with" not in text_of(home.events(agent))


@linux
def test_a_supervisor_that_is_just_starting_is_spared_too(home, monkeypatch):
    """The stop comes when the call's thread has forked it and doesn't know its pid yet."""
    start, begun, go = subprocess.Popen, threading.Event(), threading.Event()

    def slow(*args, **options):
        child = start(*args, **options)
        begun.set()
        assert go.wait(LONG)
        return child

    monkeypatch.setattr("syncagent.boundary.process.launcher.subprocess.Popen", slow)
    agent = home.agent([call("bash", {"command": "sleep 60"})], tools=[bash])
    future = agent.send("go")
    assert begun.wait(LONG)
    agent.cancel()
    boundary = agent._driver._turn.stopping.inside()[0]
    until(boundary.lock.locked, "the look of the thread that looks")
    go.set()
    assert future.result(LONG).reason == "aborted"
    assert "[stopped with" not in text_of(home.events(agent))
    assert agent._processes.supervisor_pid is not None


# -- patience ------------------------------------------------------------------------------------------


def test_a_body_that_goes_on_is_told_of_after_a_second(home):
    held, said = Held(stubborn=True), []
    agent = home.agent([call("work")], tools=[held.tool])
    handle = agent._send("next_turn", "go")
    handle.notice = said.append
    held.wait()
    agent.cancel()
    until(lambda: said, "the notice")
    assert said[0].startswith("stopping: still waiting after 1 s for work for ")
    assert " in " in said[0] and ".py:" in said[0]
    held.point.release()
    assert handle.future.result(LONG).reason == "aborted"
    assert len(said) == 1
    (settled,) = home.events(agent, "cancel/settled")
    assert settled.body.ms >= 1000


def test_without_a_listener_it_is_told_on_standard_error(home, capfd):
    held = Held(stubborn=True)
    agent = home.agent([call("work")], tools=[held.tool])
    future = agent.send("go")
    held.wait()
    agent.cancel()
    told = []
    until(lambda: told.append(capfd.readouterr().err) or "".join(told), "the notice")
    held.point.release()
    future.result(LONG)
    assert "".join(told).startswith("stopping: still waiting after 1 s for work for ")


def test_a_notice_that_fails_harms_nothing(home):
    held, asked = Held(stubborn=True), threading.Event()

    def notice(text):
        asked.set()
        raise RuntimeError("no")

    agent = home.agent([call("work"), "on"], tools=[held.tool])
    handle = agent._send("next_turn", "go")
    handle.notice = notice
    held.wait()
    agent.cancel()
    assert asked.wait(LONG)
    held.point.release()
    assert handle.future.result(LONG).reason == "aborted"
    assert agent.run("again").text == "on"


# -- the record ----------------------------------------------------------------------------------------


def settled_of(home, agent):
    (event,) = home.events(agent, "cancel/settled")
    assert event.body.ms >= 0 and all(entry["ms"] >= 0 for entry in event.body.boundaries)
    following = [later.type for later in home.events(agent) if later.seq > event.seq]
    assert following[-1] == "turn/end" and set(following) <= {"step/end", "turn/end", "assistant/message"}
    return event.body.cause, [(entry["boundary"], entry.get("call_id")) for entry in event.body.boundaries]


def test_a_stop_of_a_stream_says_how_long_it_took_and_where(home):
    agent = home.agent([["so far", hold("x"), stall()]])
    future = agent.send("go")
    assert agent.model.point("x").reached.wait(LONG)
    agent.cancel("timeout")
    future.result(LONG)
    assert settled_of(home, agent) == ("timeout", [("model scripted", None)])


def test_a_stop_of_a_back_off_says_so(home):
    agent = home.agent([status(429, headers={"Retry-After": "60"})])
    future = agent.send("go")
    until(lambda: agent.status.startswith("retrying"), "the back-off")
    agent.cancel()
    future.result(LONG)
    assert settled_of(home, agent) == ("user", [("back-off", None)])


def test_a_stop_of_calls_names_each_in_the_order_in_which_they_ended(home):
    first, last = Held("first"), Held("last", stubborn=True)
    agent = home.agent([[call("last"), call("first")]], tools=[first.tool, last.tool])
    future = agent.send("go")
    first.wait()
    last.wait()
    agent.cancel()
    until(lambda: first.ends, "the end of the first")
    until(lambda: "call_2" in results(home.events(agent)), "its result")
    last.point.release()
    future.result(LONG)
    assert settled_of(home, agent) == ("user", [("tool first", "call_2"), ("tool last", "call_1")])


def test_a_stop_between_two_boundaries_names_none(home):
    agent = home.agent(["never"])
    point = home.points.hold("step.started")
    future = agent.send("a")
    assert point.reached.wait(LONG)
    agent.cancel()
    point.release()
    future.result(LONG)
    assert settled_of(home, agent) == ("user", [])


def test_a_turn_that_nobody_stopped_has_no_record(home):
    agent = home.agent([call("work"), "done"], tools=[tool(name="work")(lambda: "ok")])
    assert agent.run("go").text == "done"
    assert home.events(agent, "cancel/settled") == []


# -- on its own ----------------------------------------------------------------------------------------


def test_a_stop_that_comes_as_a_body_ends_starts_nobody():
    with CancellationToken() as token:
        stopping = Stopping(token=token, say=print, spare=lambda: [])
        with stopping.at("tool", token, name="work", body=True) as boundary:
            pass
        stopping._begin(boundary)
        stopping.close()
    assert stopping.settled == [] and stopping._thread is None


def test_a_stop_that_came_before_reaches_a_body_that_begins_then():
    with CancellationToken() as token:
        token.cancel()
        stopping = Stopping(token=token, say=print, spare=lambda: [])
        with stopping.at("tool", token, name="work", body=True):
            pass
        stopping.close()
    assert [entry["boundary"] for entry in stopping.settled] == ["tool work"]


def test_stops_and_ends_that_meet_leave_no_thread():
    for _ in range(200):
        with CancellationToken() as token:
            stopping = Stopping(token=token, say=print, spare=lambda: [])
            canceller = threading.Thread(target=token.cancel)
            canceller.start()
            for _ in range(3):
                with stopping.at("tool", token, name="work", body=True):
                    time.sleep(0)
            stopping.close()
            canceller.join()
            stopping.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "syncagent-stopping"]
