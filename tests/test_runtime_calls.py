"""A step's calls: what is logged before a body runs, what a stop drains, and what a result may be."""

import datetime
import decimal
import pathlib
import threading

import attrs
import pytest
from runtime_parts import LONG, SOON, Background, Held, kinds, results, run_out, said, until

from syncagent.boundary.tools.base import CallContext, Tool, ToolOutput, tool
from syncagent.boundary.tools.bash import bash
from syncagent.cancel import CancellationToken, Cancelled, Cause
from syncagent.errors import LeaseLost, StoreFull, ToolError
from syncagent.log import events as ev
from syncagent.runtime.calls import EMIT_LIMIT
from syncagent.testing import call

pytestmark = pytest.mark.concurrent


def plain(body, name="work", **options):
    """A tool that takes no arguments."""
    return tool(name=name, **options)(body)


def outputs(agent, number=1):
    """What the model is told of the calls, in its order."""
    return [line[1] for line in said(agent.model.requests[number]) if line[0] == "tool"]


def codes(home, agent):
    return {id: code for id, (code, text) in results(home.events(agent)).items()}


# -- the course ----------------------------------------------------------------------------------------


def test_results_are_logged_as_they_come_and_the_model_gets_them_in_its_own_order(home):
    slow, quick = Held("slow"), Held("quick")
    agent = home.agent([[call("slow"), call("quick")], "done"], tools=[slow.tool, quick.tool])
    future = agent.send("go")
    slow.wait()
    quick.wait()
    quick.point.release()
    until(lambda: home.events(agent, "tool/result"), "the result of the quick one")
    slow.point.release()
    assert future.result(LONG).text == "done"
    assert list(results(home.events(agent))) == ["call_2", "call_1"]
    assert outputs(agent) == ["slow is done", "quick is done"]


def test_a_call_is_logged_with_its_raw_arguments_and_its_effect(home):
    @tool(effect="read")
    def look(path: str) -> str:
        """Look."""
        return path

    agent = home.agent([[call("look", ' {"path":\n"x"}'), call("look", {"path": "y"})], "done"], tools=[look])
    agent.run("go")
    calls = [event.body for event in home.events(agent, "tool/call")]
    assert [(each.name, each.arguments, each.effect) for each in calls] == [
        ("look", ' {"path":\n"x"}', "read"), ("look", '{"path": "y"}', "read")
    ]  # fmt: skip


def test_a_call_that_stands_alone_runs_in_the_drivers_thread_and_several_run_side_by_side(home):
    names = []
    both = threading.Barrier(2)

    def meet() -> str:
        """Meet."""
        names.append(threading.current_thread().name)
        both.wait(LONG)
        return "met"

    def alone() -> None:
        """Alone."""
        names.append(threading.current_thread().name)

    agent = home.agent(
        [call("alone"), [call("meet"), call("meet")], "done"], tools=[tool(alone), tool(meet)], session="s"
    )
    assert agent.run("go").text == "done"
    assert names == ["syncagent-s", "syncagent-call-meet", "syncagent-call-meet"]


def test_no_more_calls_than_allowed_run_at_once(home):
    tools = [Held(name) for name in ("a", "b", "c")]
    script = [[call("a"), call("b"), call("c")], "done"]
    agent = home.agent(script, tools=[held.tool for held in tools], max_parallel=2)
    future = agent.send("go")
    a, b, c = tools
    a.wait()
    b.wait()
    assert not c.point.reached.wait(SOON)
    b.point.release()
    c.wait()
    assert not home.events(agent, "tool/result")[0].body.call_id == "call_1"
    a.point.release()
    c.point.release()
    assert future.result(LONG).text == "done"
    assert outputs(agent) == ["a is done", "b is done", "c is done"]


def test_an_exclusive_call_is_a_barrier_between_groups(home):
    running, most, order = [], [], []
    lock = threading.Lock()

    def make(name, exclusive):
        def body():
            with lock:
                running.append(name)
                most.append(tuple(running))
                order.append(name)
            with lock:
                running.remove(name)
            return name

        return plain(body, name, exclusive=exclusive)

    names = ["a", "b", "only", "c", "d"]
    tools = [make(name, name == "only") for name in names]
    agent = home.agent([[call(name) for name in names], "done"], tools=tools)
    assert agent.run("go").text == "done"
    assert set(order[:2]) == {"a", "b"} and order[2] == "only" and set(order[3:]) == {"c", "d"}
    assert all(together == ("only",) for together in most if "only" in together)
    assert outputs(agent) == names


def test_a_group_behind_a_barrier_never_starts_after_a_stop(home):
    first = Held("first")
    ran = []
    only = plain(lambda: ran.append("only"), "only", exclusive=True)
    last = plain(lambda: ran.append("last"), "last")
    script = [[call("first"), call("only"), call("last")], "never"]
    agent = home.agent(script, tools=[first.tool, only, last])
    future = agent.send("go")
    first.wait()
    agent.cancel()
    assert future.result(LONG).reason == "aborted"
    assert ran == []
    assert codes(home, agent) == {
        "call_1": "ABORTED", "call_2": "ABORTED_BEFORE_DISPATCH", "call_3": "ABORTED_BEFORE_DISPATCH"
    }  # fmt: skip
    assert [event.body.call_id for event in home.events(agent, "tool/call")] == ["call_1"]


# -- a stop --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stubborn", [False, True], ids=["heard", "not heard"])
def test_of_three_calls_one_is_done_one_is_drained_and_one_never_starts(home, stubborn):
    done, running, waiting = Held("done"), Held("running", stubborn=stubborn), Held("waiting")
    script = [[call("done"), call("running"), call("waiting")], "understood"]
    tools = [done.tool, running.tool, waiting.tool]
    agent = home.agent(script, tools=tools, max_parallel=1)
    future = agent.send("go")
    done.wait()
    done.point.release()
    running.wait()
    agent.cancel()
    running.point.release()
    assert future.result(LONG).reason == "aborted"
    drained = None if stubborn else "ABORTED"
    assert codes(home, agent) == {"call_1": None, "call_2": drained, "call_3": "ABORTED_BEFORE_DISPATCH"}
    assert running.ends == ["returned" if stubborn else "Cancelled"]
    assert waiting.tokens == []
    assert agent.run("and now?").text == "understood"
    told = outputs(agent)
    assert told[0] == "done is done"
    assert told[1] == ("running is done" if stubborn else told[1])
    if not stubborn:
        assert "may have been done" in told[1]
    assert "was not run" in told[2]


def test_a_stop_ends_bodies_that_run_side_by_side_and_leaves_no_thread(home):
    tools = [Held(name) for name in ("a", "b", "c")]
    agent = home.agent([[call("a"), call("b"), call("c")]], tools=[held.tool for held in tools])
    future = agent.send("go")
    for held in tools:
        held.wait()
    agent.cancel("timeout")
    assert future.result(LONG).cause is Cause.TIMEOUT
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("syncagent-call")]
    assert {held.tokens[0].cause for held in tools} == {Cause.TIMEOUT}
    assert set(codes(home, agent).values()) == {"ABORTED"}


def test_a_stop_while_the_checkpoint_of_a_call_is_pending_runs_no_body(home):
    held = Held()
    agent = home.agent([[call("work")], "never"], tools=[held.tool])
    flush = home.points.hold("store.flush", nth=3)  # of the send, the request, the call
    future = agent.send("go")
    assert flush.reached.wait(LONG)
    commit = home.points.hold("store.commit.before")
    _queue(agent)
    flush.release()
    assert commit.reached.wait(LONG)
    agent.cancel()
    commit.release()
    assert future.result(LONG).reason == "aborted"
    assert held.tokens == []
    assert codes(home, agent) == {"call_1": "ABORTED_BEFORE_DISPATCH"}
    assert len(home.events(agent, "tool/call")) == 1


def test_a_body_can_stop_itself_and_never_the_turn(home):
    def quits(token: CancellationToken):
        """Quit."""
        token.cancel("hook", "enough")
        token.raise_if_cancelled()

    agent = home.agent([call("quits"), "on we go"], tools=[tool(quits)])
    assert agent.run("go").text == "on we go"
    assert codes(home, agent) == {"call_1": "TOOL_FAILED"}


def test_a_stop_that_the_body_swallows_gives_the_bodys_own_result(home):
    def stubborn(token: CancellationToken):
        """Save, then end."""
        token.wait(LONG)
        return "saved half of it"

    agent = home.agent([call("stubborn"), "next"], tools=[tool(stubborn)])
    future = agent.send("go")
    until(lambda: agent.status == "running stubborn", "the body")
    agent.cancel()
    assert future.result(LONG).reason == "aborted"
    assert results(home.events(agent)) == {"call_1": (None, "saved half of it")}


def test_an_error_of_the_body_at_a_stop_is_more_telling_than_the_stop(home):
    def breaks(token: CancellationToken):
        """Break."""
        token.wait(LONG)
        raise ToolError("the upload is half done", code="HALF_DONE")

    agent = home.agent([call("breaks")], tools=[tool(breaks)])
    future = agent.send("go")
    until(lambda: agent.status == "running breaks", "the body")
    agent.cancel()
    assert future.result(LONG).reason == "aborted"
    assert codes(home, agent) == {"call_1": "HALF_DONE"}


# -- checkpoints ---------------------------------------------------------------------------------------


def test_a_body_does_not_run_before_its_call_is_durable(home):
    held = Held()
    agent = home.agent([call("work"), "done"], tools=[held.tool])
    flush = home.points.hold("store.flush", nth=3)
    future = agent.send("go")
    assert flush.reached.wait(LONG)
    commit = home.points.hold("store.commit.before")
    _queue(agent)
    flush.release()
    assert commit.reached.wait(LONG)
    assert not held.point.reached.wait(SOON)
    commit.release()
    held.wait()
    assert [event.body.call_id for event in home.stored(agent, "tool/call")] == ["call_1"]
    held.point.release()
    assert future.result(LONG).text == "done"


def _queue(agent):
    """Something that isn't durable yet, so that the next flush has to wait."""
    agent._session.append(ev.CancelRequested(cause="user"))


def test_a_checkpoint_that_fails_runs_no_body_and_keeps_the_events(home):
    held = Held()
    agent = home.agent([[call("work"), call("work")], "never"], tools=[held.tool])
    flush = home.points.hold("store.flush", nth=3)
    future = agent.send("go")
    assert flush.reached.wait(LONG)
    home.points.fail("store.commit.before", StoreFull("no space", path=home.path), times=None)
    _queue(agent)
    flush.release()
    with pytest.raises(StoreFull):
        future.result(LONG)
    agent.wait(LONG)
    assert held.tokens == []
    assert codes(home, agent) == {"call_1": "CHECKPOINT_FAILED", "call_2": "CHECKPOINT_FAILED"}
    assert len(agent.model.requests) == 1
    before = home.events(agent)
    home.points.clear()
    agent.retry_flush()
    assert home.stored(agent) == before
    assert kinds(before) == ["error"]


def test_a_checkpoint_that_fails_by_no_error_of_the_store_closes_its_call_too(home):
    """Else the turn could not be closed, and no other begun."""
    held = Held()
    agent = home.agent([[call("work")], "on", "and on"], tools=[held.tool])
    home.points.fail("store.flush", MemoryError, nth=3)
    assert agent.run("go").text == "on"
    assert held.tokens == [] and codes(home, agent) == {"call_1": "CHECKPOINT_FAILED"}
    assert agent.run("more").text == "and on"


def test_a_lost_lease_before_a_call_runs_no_body(home):
    home.broken = True
    held = Held()
    agent = home.agent([call("work"), "never"], tools=[held.tool])
    flush = home.points.hold("store.flush", nth=3)
    future = agent.send("go")
    assert flush.reached.wait(LONG)
    lost = LeaseLost("gone", path=home.path, session=agent.session)
    agent._session.fail(lost)
    flush.release()
    with pytest.raises(LeaseLost):
        future.result(LONG)
    assert held.tokens == []


# -- time-outs -----------------------------------------------------------------------------------------


def test_a_time_out_stops_the_call_and_the_turn_goes_on(home):
    held = Held(timeout=0.05)
    agent = home.agent([call("work"), "on we go"], tools=[held.tool])
    assert agent.run("go").text == "on we go"
    assert codes(home, agent) == {"call_1": "TIMEOUT"}
    assert outputs(agent) == ["The tool work ran longer than 0.05 s and was stopped."]
    assert held.tokens[0].cause is Cause.TIMEOUT


def test_a_body_that_ends_after_its_time_out_has_timed_out_and_its_output_stays(home):
    def late(token: CancellationToken):
        """Be late."""
        token.wait(LONG)
        return "half of it"

    agent = home.agent([call("late"), "next"], tools=[plain(late, "late", timeout=0.05)])
    agent.run("go")
    assert codes(home, agent) == {"call_1": "TIMEOUT"}
    assert outputs(agent)[0].startswith("half of it\n")


def test_a_time_out_first_and_a_stop_later_is_a_time_out(home):
    held = Held(stubborn=True, timeout=0.05)
    agent = home.agent([call("work"), "never"], tools=[held.tool])
    future = agent.send("go")
    held.wait()
    until(lambda: held.tokens[0].cancelled, "the time-out")
    agent.cancel()
    held.point.release()
    assert future.result(LONG).reason == "aborted"
    assert codes(home, agent) == {"call_1": "TIMEOUT"}
    assert held.tokens[0].cause is Cause.TIMEOUT


def test_a_stop_first_and_a_time_out_later_is_a_stop(home):
    held, hears = Held(stubborn=True, timeout=LONG), Held("hears", timeout=LONG)
    agent = home.agent([[call("work"), call("hears")], "never"], tools=[held.tool, hears.tool])
    future = agent.send("go")
    held.wait()
    hears.wait()
    agent.cancel()
    run_out()
    held.point.release()
    assert future.result(LONG).reason == "aborted"
    assert codes(home, agent) == {"call_1": None, "call_2": "ABORTED"}
    assert {held.tokens[0].cause, hears.tokens[0].cause} == {Cause.USER}


def test_a_time_out_of_a_real_process_kills_it(home, tmp_path):
    command = f"trap '' TERM; echo begun; sleep 30; touch {tmp_path / 'late'}"
    agent = home.agent([call("bash", {"command": command, "timeout": 0.3}), "next"], tools=[bash])
    assert agent.run("go").text == "next"
    assert codes(home, agent) == {"call_1": "TIMEOUT"}
    assert outputs(agent)[0].startswith("begun\n")
    assert not (tmp_path / "late").exists()


# -- arguments -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", ["", "  ", "null", "{}", "\n"], ids=repr)
def test_empty_blank_and_null_arguments_mean_none(home, arguments):
    ran = []
    agent = home.agent([call("work", arguments), "done"], tools=[plain(lambda: ran.append(1))])
    assert agent.run("go").text == "done"
    assert ran == [1]


@pytest.mark.parametrize(
    "arguments",
    [
        '{"city": "San Fra', "[1]", '"x"', "NaN", '{"a":1}{"b":2}', "[" * 100_000,
        '{"city": 5}', '{"town": "x"}', "{}",
    ],
    ids=lambda text: text[:20],
)  # fmt: skip
def test_bad_arguments_are_an_error_result_and_nothing_runs(home, arguments):
    ran = []

    @tool
    def weather(city: str) -> str:
        """Weather."""
        ran.append(city)
        return "fine"

    script = [[call("weather", arguments), call("weather", {"city": "Rome"})], "sorry"]
    agent = home.agent(script, tools=[weather])
    assert agent.run("go").text == "sorry"
    assert codes(home, agent) == {"call_1": "BAD_ARGUMENTS", "call_2": None}
    assert "weather" in outputs(agent)[0]
    assert ran == ["Rome"]
    assert [event.body.call_id for event in home.events(agent, "tool/call")] == ["call_2"]


def test_a_check_of_arguments_that_fails_is_an_error_result_too(home):
    def structure(values):
        raise ValueError("never good enough")

    made = Tool(name="work", description="", parameters={}, body=lambda *args: "ran", structure=structure)
    agent = home.agent([call("work"), "sorry"], tools=[made])
    assert agent.run("go").text == "sorry"
    assert codes(home, agent) == {"call_1": "BAD_ARGUMENTS"}


def test_an_unknown_tool_is_an_error_result_that_names_the_known_ones(home):
    agent = home.agent([[call("fly"), call("", "x")], "sorry"], tools=[bash, plain(lambda: None)])
    assert agent.run("go").text == "sorry"
    assert codes(home, agent) == {"call_1": "UNKNOWN_TOOL", "call_2": "UNKNOWN_TOOL"}
    assert "'fly'" in outputs(agent)[0] and "bash, work" in outputs(agent)[0]
    assert home.events(agent, "tool/call") == []


# -- what a body raises --------------------------------------------------------------------------------


def raising(exc, name="work"):
    def body():
        raise exc

    return plain(body, name)


class Mute(Exception):
    def __str__(self):
        raise ValueError("no text")


class MuteToolError(ToolError):
    def __str__(self):
        raise OwnBase("no text")


class OwnBase(BaseException):
    pass


@pytest.mark.parametrize(
    "exc, code, words",
    [
        (ValueError("no luck"), "TOOL_FAILED", "work failed: ValueError: no luck"),
        (ToolError("try again with a path"), "TOOL_FAILED", "try again with a path"),
        (ToolError("in use", code="LOCKED"), "LOCKED", "in use"),
        (SystemExit(3), "TOOL_FAILED", "SystemExit: 3"),
        (RecursionError("deep"), "TOOL_FAILED", "RecursionError: deep"),
        (StopIteration(), "TOOL_FAILED", "StopIteration"),
        (Mute(), "TOOL_FAILED", "Mute (its text can't be had"),
        (MuteToolError("x", code="\ud800"), "TOOL_FAILED", "MuteToolError (its text can't be had"),
        (Cancelled(CancellationToken()), "TOOL_FAILED", "Cancelled"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
@pytest.mark.parametrize("parallel", [False, True], ids=["alone", "side by side"])
def test_what_a_body_raises_is_an_error_result_and_the_loop_goes_on(home, exc, code, words, parallel):
    script = [[call("work"), call("fine")] if parallel else call("work"), "I see"]
    agent = home.agent(script, tools=[raising(exc), plain(lambda: "ok", "fine")])
    assert agent.run("go").text == "I see"
    assert codes(home, agent)["call_1"] == code
    assert words in outputs(agent)[0]
    assert outputs(agent)[1:] == ["ok"] * parallel


@pytest.mark.parametrize(
    "exc", [GeneratorExit(), MemoryError(), OwnBase("x")], ids=lambda exc: type(exc).__name__
)
@pytest.mark.parametrize("parallel", [False, True], ids=["alone", "side by side"])
def test_what_is_more_than_an_error_closes_the_log_and_reaches_the_caller(home, exc, parallel):
    script = [[call("work"), call("fine")] if parallel else call("work"), "next"]
    agent = home.agent(script, tools=[raising(exc), plain(lambda: "ok", "fine")])
    with pytest.raises(type(exc)):
        agent.run("go")
    assert kinds(home.events(agent)) == ["error"]
    assert codes(home, agent)["call_1"] == "TOOL_FAILED"
    assert len(agent.model.requests) == 1
    assert agent.run("more").text == "next"


@pytest.mark.parametrize("parallel", [False, True], ids=["alone", "side by side"])
def test_a_keyboard_interrupt_of_a_body_stops_the_turn_parks_the_queue_and_reaches_the_caller(home, parallel):
    point = Held("fine")
    script = [[call("fine"), call("work")] if parallel else call("work"), "two", "three"]
    interrupt = threading.Event()

    def body():
        assert interrupt.wait(LONG)
        raise KeyboardInterrupt

    agent = home.agent(script, tools=[plain(body), point.tool])
    first, queued = agent.send("a"), agent.send("b")
    interrupt.set()
    with pytest.raises(KeyboardInterrupt):
        first.result(LONG)
    agent.wait(LONG)
    assert kinds(home.events(agent)) == ["aborted"]
    assert not queued.done()
    assert agent.run("c").text == "three"
    assert queued.result(LONG).text == "two"


def test_one_failing_call_does_not_lose_the_others_results(home):
    count = {"a": 0, "b": 0}

    def make(name):
        def body():
            count[name] += 1
            return f"{name} is done"

        return plain(body, name)

    script = [[call("a"), call("work"), call("b")], "I see"]
    agent = home.agent(script, tools=[make("a"), make("b"), raising(ValueError("no"))])
    assert agent.run("go").text == "I see"
    assert outputs(agent) == ["a is done", "work failed: ValueError: no", "b is done"]
    assert count == {"a": 1, "b": 1}


# -- what a body returns -------------------------------------------------------------------------------


@attrs.frozen
class Point:
    x: int
    y: float


def itself():
    found = [1]
    found.append(found)
    return found


def deep():
    value = []
    for _ in range(100_000):
        value = [value]
    return value


@pytest.mark.parametrize(
    "value",
    [
        {1}, b"\xff", datetime.datetime(2026, 1, 1), decimal.Decimal("1.5"), pathlib.Path("x"), float("nan"),
        Point(1, float("inf")), (n for n in range(3)), None, "", itself, deep, object(), "a\ud800",
        {"k": {2}}, 10**5000,
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_whatever_a_body_returns_is_a_text_and_the_loop_goes_on(home, value):
    agent = home.agent([call("work"), "I see"], tools=[plain(lambda: value() if callable(value) else value)])
    assert agent.run("go").text == "I see"
    (event,) = home.stored(agent, "tool/result")
    assert event.body.code is None
    assert [block["type"] for block in event.body.content] == ["text"]


def test_a_tool_may_give_blocks_and_an_error_of_its_own(home):
    blocks = [{"type": "text", "text": "half"}, {"type": "chart", "bars": [1, 2]}]
    made = ToolOutput(content=blocks, error="HALF")
    agent = home.agent([call("work"), "I see"], tools=[plain(lambda: made)])
    assert agent.run("go").text == "I see"
    (event,) = home.stored(agent, "tool/result")
    assert event.body.content == made.content
    assert event.body.error == {"code": "HALF", "message": "half"}


@pytest.mark.parametrize(
    "output",
    [
        ToolOutput(content="text"),
        ToolOutput(content=None),
        ToolOutput(content=["text"]),
        ToolOutput(content=[{"text": "no type"}]),
        ToolOutput(content=[{"type": "text", "text": 5}], error="ODD"),
        ToolOutput(content=[{"type": "chart", "bars": {1, 2}}]),
        ToolOutput(content=[{"type": "chart", "x": float("nan")}]),
        ToolOutput(content=[{"type": "text", "text": "x"}], error=5),
        ToolOutput(content=[{"type": "text", "text": "x"}], error="ABORTED"),
    ],
    ids=repr,
)
@pytest.mark.parametrize("timeout", [None, 60.0], ids=["", "limited"])
def test_an_output_that_the_log_cannot_hold_is_an_error_result_and_the_loop_goes_on(home, output, timeout):
    agent = home.agent([call("work"), "I see"], tools=[plain(lambda: output, timeout=timeout)])
    assert agent.run("go").text == "I see"
    (event,) = home.stored(agent, "tool/result")
    assert event.body.code in ("TOOL_FAILED", "ABORTED")


# -- output while it runs ------------------------------------------------------------------------------


def test_output_while_a_call_runs_is_in_the_log_before_its_result(home):
    def show(context: CallContext):
        """Show."""
        context.emit("one ")
        context.emit("")
        context.emit("two\ud800")
        return "end"

    agent = home.agent([call("show"), "done"], tools=[tool(show)])
    agent.run("go")
    shown = [event.body for event in home.stored(agent) if event.type.startswith("tool/")]
    assert [body.type for body in shown] == ["tool/call", "tool/chunk", "tool/chunk", "tool/result"]
    assert "".join(body.text for body in shown[1:3]) == "one two\ufffd"
    assert outputs(agent) == ["end"]


def test_output_while_a_call_runs_is_bounded(home):
    answers = []

    def show(context: CallContext):
        """Show a lot."""
        answers.extend(context.emit("ä" * 100) for _ in range(1000))
        return "end"

    agent = home.agent([call("show"), "done"], tools=[tool(show)])
    agent.run("go")
    shown = "".join(event.body.text for event in home.stored(agent, "tool/chunk"))
    assert len(shown.encode()) <= EMIT_LIMIT
    assert shown.startswith("ä" * 30_000) and "more output" in shown[-100:]
    assert answers == [True] * 327 + [False] * 673


def test_an_emit_that_is_kept_beyond_its_call_says_nothing_any_more(home):
    kept = []

    def keep(context: CallContext):
        """Keep."""
        kept.append(context)
        return "end"

    agent = home.agent([call("keep"), call("keep"), "done"], tools=[tool(keep)])
    agent.run("go")
    before = home.events(agent)
    for context in kept:
        assert context.emit("late") is False
        assert context.token.cancel() is False
    assert home.events(agent) == before
    agent.close()
    kept[0].emit("later still")


def test_emit_takes_text_only(home):
    def show(context: CallContext):
        """Show."""
        context.emit(b"x")

    agent = home.agent([call("show"), "done"], tools=[tool(show)])
    assert agent.run("go").text == "done"
    assert "emit() takes a string" in outputs(agent)[0]


def test_output_of_a_real_process_is_shown_while_it_runs(home):
    command = "echo one; read -t 60 < <(sleep 60); echo two"
    agent = home.agent([call("bash", {"command": command})], tools=[bash])
    future = agent.send("go")
    until(lambda: home.events(agent, "tool/chunk"), "the output")
    assert home.events(agent, "tool/chunk")[0].body.text == "one\n"
    agent.cancel()
    assert future.result(LONG).reason == "aborted"
    assert codes(home, agent) == {"call_1": "ABORTED"}


def test_much_output_of_a_real_process_is_bounded_and_ends_with_one_note(home):
    command = "yes 0123456789é | head -c 3000000"
    agent = home.agent([call("bash", {"command": command}), "done"], tools=[bash])
    assert agent.run("go").text == "done"
    chunks = [event.body.text for event in home.stored(agent, "tool/chunk")]
    shown = "".join(chunks)
    assert EMIT_LIMIT - 4 < len(shown.encode()) <= EMIT_LIMIT
    assert shown.count("more output") == 1 and shown.endswith("...]\n") and "\ufffd" not in shown
    assert len(chunks) < 40


# -- a system that has no more threads -----------------------------------------------------------------


def test_calls_run_one_after_the_other_where_no_thread_can_be_started(home, monkeypatch):
    where = plain(lambda: threading.current_thread().name)
    agent = home.agent([[call("work"), call("work")], "done"], tools=[where])
    start = threading.Thread.start

    def refuse(thread):
        if thread.name.startswith("syncagent-call"):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert agent.run("go").text == "done"
    assert outputs(agent) == [f"syncagent-{agent.session}"] * 2


def test_a_message_is_withdrawn_where_no_driver_can_be_started(home, monkeypatch):
    agent = home.agent(["one"])
    start = threading.Thread.start

    def refuse(thread):
        if thread.name == f"syncagent-{agent.session}":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RuntimeError, match="can't start"):
        agent.send("a")
    assert agent.status == "idle"
    monkeypatch.undo()
    assert agent.run("b").text == "one"
    assert [message.text for message in agent.dropped()] == ["a"]
    assert Background(agent.wait).result().text == "one"
