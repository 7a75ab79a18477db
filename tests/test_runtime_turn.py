"""A turn from its claim to its ending: steps, hooks, stops, limits and checkpoints."""

import threading

import pytest
from runtime_parts import LONG, SOON, Held, kinds, results, said, stop, types, until

from syncagent.boundary.tools.base import tool
from syncagent.cancel import CancellationToken, Cancelled, Cause
from syncagent.errors import ModelError, StoreError, StoreFull
from syncagent.log import derive_messages
from syncagent.runtime.hooks import Continue, Reject
from syncagent.runtime.result import Failure
from syncagent.testing import Point, ScriptedModel, call, cut, error, finish, hold, reasoning, status, usage

pytestmark = pytest.mark.concurrent


@tool
def echo(text: str) -> str:
    """Say it again."""
    return f"echo {text}"


# -- the course of a turn ------------------------------------------------------------------------------


def test_a_turn_asks_acts_and_asks_again_until_nothing_more_is_asked(home):
    agent = home.agent([["Look.", call("echo", {"text": "hi"})], "Done."], tools=[echo])
    result = agent.run("go")
    assert (result.turn, result.reason, result.text, result.partial_text) == (1, "completed", "Done.", None)
    assert (result.error, result.cause, result.dropped) == (None, None, [])
    assert [event.type for event in home.stored(agent)] == [
        "inbox/put", "turn/start", "inbox/taken",
        "step/start", "user/message", "request/header", "assistant/chunk", "assistant/chunk",
        "assistant/chunk", "assistant/message", "tool/call", "tool/result", "step/end",
        "step/start", "assistant/chunk", "assistant/message", "step/end", "turn/end",
    ]  # fmt: skip
    assert said(agent.model.requests[1]) == [
        ("user", "go"), ("assistant", "Look."), ("call", "echo"), ("tool", "echo hi")
    ]  # fmt: skip


def test_an_empty_answer_completes_with_an_empty_text(home):
    agent = home.agent([[], [" \n", call("nothing", id="x")], [" "], "more"])
    first, second = agent.run("a"), agent.run("b")
    assert (first.reason, first.text, first.partial_text) == ("completed", "", None)
    assert (second.reason, second.text) == ("completed", "")
    assert len(home.events(agent, "assistant/message")) == 1  # the one with the call
    assert agent.run("c").text == "more"


def test_steering_joins_the_next_step_of_the_running_turn(home):
    held = Held()
    agent = home.agent([call("work"), "done"], tools=[held.tool])
    first = agent.send("a")
    held.wait()
    second = agent.steer("b")
    held.point.release()
    assert first.result(LONG) is second.result(LONG)
    assert said(agent.model.requests[1])[-2:] == [("tool", "work is done"), ("user", "b")]


def test_steering_during_the_last_answer_makes_another_step(home):
    agent = home.agent([["one", hold("p")], "two"])
    first = agent.send("a")
    assert agent.model.point("p").reached.wait(LONG)
    second = agent.steer("b")
    agent.model.point("p").release()
    assert first.result(LONG).text == "two"
    assert second.result(LONG).turn == 1


def test_what_is_injected_wakes_nobody_and_enters_the_next_step_that_there_is(home):
    agent = home.agent(["one", [hold("p"), "two"]])
    note = agent.inject("the build is red")
    agent.wait(LONG)
    assert not note.done() and agent.status == "idle"
    assert agent.run("a").text == "one"
    assert note.result(LONG).turn == 1
    assert said(agent.model.requests[0]) == [("user", "the build is red"), ("user", "a")]
    second = agent.send("b")
    assert agent.model.point("p").reached.wait(LONG)
    late = agent.inject("too late")
    agent.model.point("p").release()
    assert second.result(LONG).text == "two"  # it keeps no turn going either
    assert not late.done()


def test_a_turn_that_uses_all_its_steps_is_blocked(home):
    script = [call("echo", {"text": "1"}), call("echo", {"text": "2"}), "fresh"]
    agent = home.agent(script, tools=[echo], max_steps=2)
    result = agent.run("a")
    assert (result.reason, result.error.code, result.text) == ("blocked", "limit_steps", None)
    assert len(home.events(agent, "tool/result")) == 2
    assert len(agent.model.requests) == 2
    assert agent.run("b").text == "fresh"


def test_what_steers_a_turn_at_its_last_step_is_the_next_turns(home):
    held = Held()
    agent = home.agent([call("work"), "fresh"], tools=[held.tool], max_steps=1)
    first = agent.send("a")
    held.wait()
    second = agent.steer("b")
    held.point.release()
    assert first.result(LONG).reason == "blocked"
    assert (second.result(LONG).turn, second.result().text) == (2, "fresh")


def test_usage_is_summed_over_the_steps_of_the_turn(home):
    agent = home.agent(
        [
            [call("echo", {"text": "a"}), usage(10, 1, cached=3)],
            ["done", usage(20, 2)],
            [usage(7, 0)],
            ["x", usage(5, 1), hold("p")],
        ],
        tools=[echo],
    )
    assert agent.run("a").usage == {"input_tokens": 30, "output_tokens": 3, "cached": 3}
    assert agent.run("b").usage == {"input_tokens": 7, "output_tokens": 0}
    future = agent.send("c")
    assert agent.model.point("p").reached.wait(LONG)
    agent.cancel()
    assert future.result(LONG).usage == {"input_tokens": 5, "output_tokens": 1}
    assert home.events(agent, "assistant/message")[-1].body.usage == {"input_tokens": 5, "output_tokens": 1}


# -- the output limit ----------------------------------------------------------------------------------


def test_calls_of_an_answer_that_the_limit_cut_are_dropped_whole_and_never_run(home):
    ran = []
    mark = tool(name="mark")(lambda: ran.append(1))
    agent = home.agent([["half", call("mark"), call("mark", '{"x'), finish("max_tokens")]], tools=[mark])
    result = agent.run("a")
    assert (result.reason, result.text, result.partial_text) == ("max_tokens", None, "half")
    assert ran == [] and len(agent.model.requests) == 1
    (message,) = home.events(agent, "assistant/message")
    assert message.body.message.content == [{"type": "text", "text": "half"}]
    assert not message.body.interrupted


def test_the_limit_stays_the_reason_even_when_a_later_step_completes(home):
    agent = home.agent([["half", hold("p"), finish("max_tokens")], "the rest", "whole"])
    first = agent.send("a")
    assert agent.model.point("p").reached.wait(LONG)
    agent.steer("go on")
    agent.model.point("p").release()
    result = first.result(LONG)
    assert (result.reason, result.text, result.partial_text) == ("max_tokens", None, "the rest")
    assert len(agent.model.requests) == 2
    assert agent.run("b").reason == "completed"


def test_an_answer_of_calls_alone_that_the_limit_cut_leaves_no_message(home):
    agent = home.agent([[call("echo", '{"te'), finish("max_tokens")], "ok"], tools=[echo])
    assert agent.run("a").reason == "max_tokens"
    assert home.events(agent, "assistant/message") == []
    assert agent.run("b").text == "ok"


# -- a stop at each boundary ---------------------------------------------------------------------------

BOUNDARIES = ["system", "pre_step", "request", "stream", "back-off", "tool", "turn_stopping"]


class Boundaries:
    """An agent whose boundaries note their tokens; one of them stops."""

    def __init__(self, home, where=None):
        self.where = where
        self.point = Point("boundary")
        self.tokens = {}

        def at(name):
            def hook(view=None, *, token):
                self.meet(name, token)
                return "Be brief." if name == "system" else None

            return hook

        def body(token: CancellationToken) -> str:
            """A body."""
            self.meet("tool", token)
            return "done"

        boundaries = self

        class Model(ScriptedModel):
            def stream(self, request, *, token):
                boundaries.meet("stream", token)
                yield from super().stream(request, token=token)

        delay = "30" if where == "back-off" else "0"
        script = [status(503, headers={"Retry-After": delay}), call("work"), "done"]
        self.agent = home.agent(
            Model(script),
            tools=[tool(name="work")(body)],
            system=at("system"),
            pre_step=at("pre_step"),
            request=at("request"),
            turn_stopping=at("turn_stopping"),
        )

    def meet(self, name, token):
        self.tokens.setdefault(name, []).append(token)
        if name == self.where:
            stop(self.point, token=token)

    def wait(self):
        if self.where == "back-off":
            until(lambda: self.agent.status == "retrying (1 of 5)", "the back-off")
        else:
            assert self.point.reached.wait(LONG)


def test_all_boundaries_of_a_turn_get_the_same_token_and_tools_a_child_of_it(home):
    met = Boundaries(home)
    assert met.agent.run("a").text == "done"
    (child,) = met.tokens.pop("tool")
    tokens = [token for name in met.tokens for token in met.tokens[name]]
    assert set(met.tokens) == {"system", "pre_step", "request", "stream", "turn_stopping"}
    assert len(set(map(id, tokens))) == 1
    assert child is not tokens[0]
    assert not tokens[0].cancelled


@pytest.mark.parametrize("where", BOUNDARIES)
def test_a_stop_ends_every_boundary(home, where):
    met = Boundaries(home, where)
    future = met.agent.send("a")
    met.wait()
    assert met.agent.cancel() is True
    result = future.result(LONG)
    assert (result.reason, result.cause, result.text) == ("aborted", Cause.USER, None)
    assert kinds(home.events(met.agent)) == ["aborted"]
    asked = {"back-off": 1, "tool": 2, "turn_stopping": 3}
    assert len(met.agent.model.requests) == asked.get(where, 0)
    if where in met.tokens:
        assert met.tokens[where][-1].cause is Cause.USER
    codes = {"tool": {"call_1": "ABORTED"}, "turn_stopping": {"call_1": None}}.get(where, {})
    assert {id: code for id, (code, text) in results(home.events(met.agent)).items()} == codes


@pytest.mark.parametrize("where", ["system", "pre_step", "request", "turn_stopping"])
def test_a_hook_that_raises_as_it_is_stopped_aborts_the_turn(home, where):
    point = Point("hook")

    def hook(view=None, *, token):
        if not point.released:
            try:
                stop(point, token=token)
            except Cancelled:
                raise ValueError("I was not ready") from None
        return "" if where == "system" else None

    agent = home.agent(["one", "two"], **{where: hook})
    future = agent.send("a")
    assert point.reached.wait(LONG)
    agent.cancel()
    assert future.result(LONG).reason == "aborted"
    point.release()
    assert agent.run("b").reason == "completed"


def test_a_stop_in_the_turn_stopping_hook_makes_no_second_step(home):
    met = Boundaries(home, "turn_stopping")
    future = met.agent.send("a")
    met.wait()
    met.agent.cancel()
    result = future.result(LONG)
    assert (result.reason, result.text, result.partial_text) == ("aborted", None, "done")
    assert len(home.events(met.agent, "step/start")) == 2
    assert home.events(met.agent, "assistant/message")[-1].body.message.text == "done"


def test_a_stop_during_setup_asks_nothing_and_keeps_the_users_message(home):
    point = Point("setup")
    agent = home.agent(["never"], pre_step=lambda view, *, token: stop(point))  # does not look at the token
    future = agent.send("keep me")
    assert point.reached.wait(LONG)
    agent.cancel()
    point.release()
    assert future.result(LONG).reason == "aborted"
    assert agent.model.requests == []
    (put,) = home.events(agent, "inbox/put")
    assert put.body.message.text == "keep me"
    assert [message.id for message in agent.dropped()] == [put.body.message.id]


def test_a_stop_after_the_message_and_before_its_calls_keeps_it_and_runs_nothing(home):
    ran = []
    mark = tool(name="mark")(lambda: ran.append(1))
    agent = home.agent([["Look.", call("mark"), call("mark")], "never"], tools=[mark])
    flush = home.points.hold("store.flush", nth=3)  # of the send, the request, the first call
    future = agent.send("a")
    assert flush.reached.wait(LONG)
    agent.cancel()
    flush.release()
    assert future.result(LONG).reason == "aborted"
    assert ran == []
    events = home.events(agent)
    assert {code for code, text in results(events).values()} == {"ABORTED_BEFORE_DISPATCH"}
    assert len(results(events)) == 2
    assert [block["type"] for block in home.events(agent, "assistant/message")[0].body.message.content] == [
        "text", "tool_call", "tool_call"
    ]  # fmt: skip


def test_a_stop_between_the_message_and_the_first_tool_call_leaves_no_tool_call(home):
    agent = home.agent([["Look.", call("echo", {"text": "x"}), call("echo", {"text": "y"})]], tools=[echo])
    checked = threading.Event()
    session = agent._session
    append = session.append

    def stop_after_the_message(*bodies):
        events = append(*bodies)
        if events and events[0].type == "assistant/message":
            checked.set()
            agent.cancel()
        return events

    session.append = stop_after_the_message
    assert agent.run("a").reason == "aborted"
    assert checked.is_set()
    events = home.events(agent)
    assert "tool/call" not in types(events)
    assert [code for code, text in results(events).values()] == ["ABORTED_BEFORE_DISPATCH"] * 2
    assert home.events(agent, "assistant/message")[0].body.interrupted is False


# -- hooks that decide ---------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["system", "pre_step", "request", "turn_stopping"])
def test_a_hook_that_raises_ends_the_turn_as_an_error_and_the_agent_goes_on(home, where):
    failing = [True]

    def hook(view=None, *, token):
        if failing:
            raise ValueError(f"no {where}")
        return "" if where == "system" else None

    agent = home.agent(["one", "two"], **{where: hook})
    result = agent.run("a")
    assert (result.reason, result.error.code, result.text) == ("error", "hook_failed", None)
    assert f"{where} raised ValueError: no {where}" in result.error.message
    failing.clear()
    assert agent.run("b").reason == "completed"


@pytest.mark.parametrize("where", ["pre_step", "request", "turn_stopping"])
def test_a_hook_that_rejects_blocks_the_turn_and_the_agent_goes_on(home, where):
    answers = [Reject("not today")]
    agent = home.agent(["one", "two"], **{where: lambda view, *, token: answers.pop() if answers else None})
    result = agent.run("a")
    assert (result.reason, result.error.code) == ("blocked", "rejected")
    assert "not today" in result.error.message
    entered = [event.body.message.text for event in home.events(agent, "user/message")]
    assert entered == ([] if where == "pre_step" else ["a"])
    assert [message.text for message in agent.dropped()] == (["a"] if where == "pre_step" else [])
    assert len(agent.model.requests) == (1 if where == "turn_stopping" else 0)
    assert agent.run("b").reason == "completed"


def test_a_rejection_of_what_steers_a_turn_ends_it(home):
    held = Held()
    agent = home.agent(
        [call("work"), "never"],
        tools=[held.tool],
        pre_step=lambda view, *, token: Reject("no more") if view.step == 2 else None,
    )
    first = agent.send("a")
    held.wait()
    second = agent.steer("b")
    held.point.release()
    assert first.result(LONG) is second.result(LONG)
    assert first.result().reason == "blocked"
    assert [message.text for message in agent.dropped()] == ["b"]


def test_a_turn_stopping_hook_can_ask_for_more(home):
    asked = []

    def turn_stopping(view, *, token):
        asked.append((view.turn, view.step, view.text))
        return Continue("and the docs?") if view.step == 1 else None

    agent = home.agent(["code is done", "docs are done"], turn_stopping=turn_stopping)
    assert agent.run("a").text == "docs are done"
    assert asked == [(1, 1, "code is done"), (1, 2, "docs are done")]
    assert said(agent.model.requests[1])[-1] == ("user", "and the docs?")
    users = [event.body.message for event in home.events(agent, "user/message")]
    assert [(message.text, message.source) for message in users] == [
        ("a", None), ("and the docs?", "turn_stopping")
    ]  # fmt: skip


# -- exceptions ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "exc, code",
    [
        (ModelError("denied", code="authentication"), "authentication"),
        (KeyError("a bug in a model"), "failed"),
        (RecursionError("deep"), "failed"),
    ],
    ids=["its own", "a bug", "recursion"],
)
def test_a_model_that_fails_ends_the_turn_as_an_error_and_the_agent_goes_on(home, exc, code):
    agent = home.agent([["Hel", "lo", exc], "fine"])
    result = agent.run("a")
    assert (result.reason, result.error.code) == ("error", code)
    assert (result.text, result.partial_text) == (None, "Hello")
    assert home.events(agent, "assistant/message") == []
    assert agent.run("b").text == "fine"
    assert said(agent.model.requests[-1]) == [("user", "a"), ("user", "b")]


def test_an_exception_whose_text_cannot_be_had_ends_a_turn_too(home):
    class Mute(Exception):
        def __str__(self):
            raise ValueError("no text")

    agent = home.agent(
        [["a", Mute()], "fine"], pre_step=lambda view, *, token: raise_if(view.turn == 2, Mute())
    )
    assert agent.run("a").error.message == "Mute (its text can't be had)"
    assert "Mute (its text" in agent.run("b").error.message
    assert agent.run("c").text == "fine"


@pytest.mark.parametrize("code", [None, 5, "", "\ud800"], ids=repr)
def test_a_model_error_with_a_code_that_no_log_can_hold_ends_the_turn_too(home, code):
    agent = home.agent([ModelError("\udfff", code=code), "fine"])
    assert agent.run("a").error == Failure("failed", "\ufffd")
    assert agent.run("b").text == "fine"


def raise_if(condition, exc):
    if condition:
        raise exc


def test_a_turn_that_fails_before_its_first_step_has_an_ending_too(home):
    agent = home.agent(["fine"])
    home.points.fail("turn.begun", OSError("no luck"))
    result = agent.run("a")
    assert (result.reason, result.error.code) == ("error", "failed")
    assert agent.run("b").text == "fine"
    assert kinds(home.events(agent)) == ["error", "completed"]


def test_a_providers_own_abort_is_an_error_and_no_stop(home):
    agent = home.agent([["half", finish("abort")], "next"])
    queued = None
    first = agent.send("a")
    queued = agent.send("b")
    result = first.result(LONG)
    assert (result.reason, result.cause) == ("error", None)
    assert queued.result(LONG).text == "next"


def test_a_cancelled_of_some_other_token_is_an_ordinary_error(home):
    other = CancellationToken()
    other.cancel()
    agent = home.agent([["a", Cancelled(other)], "fine"])
    result = agent.run("a")
    assert (result.reason, result.error.code) == ("error", "cancelled")
    assert agent.run("b").text == "fine"


@pytest.mark.parametrize("where", ["pre_step", "turn_stopping"])
def test_a_keyboard_interrupt_in_a_hook_stops_the_turn_and_reaches_the_caller(home, where):
    hook = {where: lambda view, *, token: raise_if(view.turn == 1, KeyboardInterrupt())}
    agent = home.agent(["one", "two"], **hook)
    with pytest.raises(KeyboardInterrupt):
        agent.run("a")
    assert kinds(home.events(agent)) == ["aborted"]
    assert agent.run("b").reason == "completed"


@pytest.mark.parametrize("exc", [SystemExit(3), GeneratorExit()], ids=["exit", "generator exit"])
def test_what_is_no_exception_closes_the_log_and_reaches_the_caller(home, exc):
    agent = home.agent(["one", "two"], pre_step=lambda view, *, token: raise_if(view.turn == 1, exc))
    with pytest.raises(type(exc)):
        agent.run("a")
    assert kinds(home.events(agent)) == ["error"]
    assert agent.run("b").reason == "completed"


# -- what a stopped turn leaves ------------------------------------------------------------------------


def test_what_was_streamed_before_a_stop_stays_and_is_no_answer(home):
    agent = home.agent([["a", "b", "c", hold("p"), "d"], "shorter"])
    future = agent.send("tell me")
    assert agent.model.point("p").reached.wait(LONG)
    agent.cancel(via="sigterm")
    result = future.result(LONG)
    assert (result.reason, result.text, result.partial_text) == ("aborted", None, "abc")
    (message,) = home.events(agent, "assistant/message")
    assert message.body.interrupted and message.body.message.text == "abc"
    assert home.events(agent)[-1].body.kind == "aborted"
    agent.run("try again but shorter")
    assert [line for line in said(agent.model.requests[-1]) if not line[1].startswith("[")] == [
        ("user", "tell me"), ("assistant", "abc"), ("user", "try again but shorter")
    ]  # fmt: skip


def test_a_stop_before_the_first_delta_leaves_no_words_of_the_models(home):
    agent = home.agent([[hold("p"), "a"]])
    future = agent.send("go")
    assert agent.model.point("p").reached.wait(LONG)
    agent.cancel()
    result = future.result(LONG)
    assert (result.reason, result.partial_text) == ("aborted", None)
    assert home.events(agent, "assistant/message") == []


def test_the_model_is_told_once_that_the_turn_before_was_stopped(home):
    agent = home.agent([["a", hold("p")], "b", "c"])
    future = agent.send("1")
    assert agent.model.point("p").reached.wait(LONG)
    agent.cancel()
    future.result(LONG)
    agent.run("2")
    agent.run("3")
    notices = [[line for line in said(request) if "stopped" in line[1]] for request in agent.model.requests]
    assert [len(found) for found in notices] == [0, 1, 1]
    assert said(agent.model.requests[1])[2:] == [notices[1][0], ("user", "2")]
    assert "stopped" not in "".join(event.text for event in home.events(agent))


def test_the_context_after_a_stop_is_that_of_the_log(home):
    second = Held("second")
    agent = home.agent(
        [[call("echo", {"text": "1"}), call("second"), call("echo", {"text": "3"})], "ok"],
        tools=[echo, second.tool],
        max_parallel=1,
    )
    future = agent.send("go")
    second.wait()
    agent.cancel()
    assert future.result(LONG).reason == "aborted"
    next_turn = agent.send("go on")
    assert next_turn.result(LONG).text == "ok"
    live = agent.model.requests[-1].messages
    assert ("tool", "echo 1") in said(agent.model.requests[-1])
    asked = home.events(agent, "assistant/message")[-1].seq
    assert list(live) == derive_messages(event for event in home.stored(agent) if event.seq < asked)
    session = agent.session
    home.reopen()
    again = home.agent(["x"], session=session)
    again.run("more")
    assert list(again.model.requests[0].messages)[: len(live)] == list(live)


# -- partial text --------------------------------------------------------------------------------------


def test_the_partial_text_is_that_of_the_last_attempt_that_showed_any(home):
    agent = home.agent(
        [
            ["Look.", call("echo", {"text": "1"})],
            [reasoning("hm"), "\n", "Hel", "lo", cut()],
            status(503, headers={"Retry-After": "0"}),
            [reasoning("hm"), "\n", error("out of order", type="invalid_request_error")],
        ],
        tools=[echo],
    )
    agent.model.retry_after_output = True
    agent.model.max_retries = 5
    result = agent.run("a")
    assert (result.reason, result.partial_text) == ("error", "\nHello")


def test_the_partial_text_of_a_second_attempt_is_not_glued_to_the_first(home):
    agent = home.agent([["Hel", cut()], [reasoning("again"), "Hello wor", cut()], ["Hi", hold("p")]])
    agent.model.retry_after_output = True
    future = agent.send("a")
    assert agent.model.point("p").reached.wait(LONG)
    agent.cancel()
    assert future.result(LONG).partial_text == "Hi"
    (message,) = home.events(agent, "assistant/message")
    assert (message.body.attempt, message.body.message.text) == (3, "Hi")


# -- checkpoints ---------------------------------------------------------------------------------------


def test_nothing_is_asked_before_all_that_the_request_rests_on_is_durable(home):
    asked = threading.Event()
    agent = home.agent([lambda request: asked.set() or "done"])
    started = home.points.hold("step.started")
    future = agent.send("a")
    assert started.reached.wait(LONG)
    commit = home.points.hold("store.commit.before")
    started.release()
    assert commit.reached.wait(LONG)
    until(lambda: home.events(agent, "request/header"), "the request")
    assert not asked.wait(SOON)
    commit.release()
    assert future.result(LONG).text == "done"


def test_a_full_disk_before_the_request_asks_nothing_and_keeps_the_events(home):
    agent = home.agent(["two", "three"])
    started = home.points.hold("step.started")
    future = agent.send("a")
    assert started.reached.wait(LONG)
    home.points.fail("store.commit.before", StoreFull("no space", path=home.path), times=None)
    started.release()
    with pytest.raises(StoreFull):
        future.result(LONG)
    agent.wait(LONG)
    assert agent.model.requests == []
    with pytest.raises(StoreFull):
        agent.send("b")
    before = home.events(agent)
    (end,) = home.events(agent, "turn/end")
    assert end.body.reason["error"]["code"] == "store_full"
    home.points.clear()
    agent.retry_flush()
    assert home.stored(agent) == before
    assert agent.run("c").turn == 2
    assert home.stored(agent)[: len(before)] == before


def test_neither_the_future_nor_the_next_turn_goes_ahead_of_a_durable_ending(home):
    agent = home.agent(["one", "two"])
    ended = home.points.hold("turn.closing")
    first, second = agent.send("a"), agent.send("b")
    assert ended.reached.wait(LONG)
    commit = home.points.hold("store.commit.before")
    ended.release()
    assert commit.reached.wait(LONG)
    until(lambda: home.events(agent, "turn/end"), "the ending")
    done = threading.Event()
    first.add_done_callback(lambda future: done.set())
    assert not done.wait(SOON)
    assert len(home.events(agent, "turn/start")) == 1
    commit.release()
    assert (first.result(LONG).turn, second.result(LONG).turn) == (1, 2)


def test_a_turn_whose_ending_cannot_be_made_durable_gives_its_waiter_the_stores_error(home):
    agent = home.agent(["one", "two", "three"])
    ended = home.points.hold("turn.closing")
    first, second = agent.send("a"), agent.send("b")
    assert ended.reached.wait(LONG)
    home.points.fail("store.commit.before", StoreFull("no space", path=home.path), times=None)
    ended.release()
    with pytest.raises(StoreError):
        first.result(LONG)
    agent.wait(LONG)
    assert not second.done()  # it is parked until there is room
    assert len(agent.model.requests) == 1
    home.points.clear()
    assert agent.run("c").turn == 3
    assert second.result(LONG).turn == 2
    assert kinds(home.stored(agent)) == ["completed", "completed", "completed"]


def test_closing_after_a_full_disk_writes_what_was_kept(home):
    agent = home.agent(["one"])
    ended = home.points.hold("turn.closing")
    future = agent.send("a")
    assert ended.reached.wait(LONG)
    home.points.fail("store.commit.before", StoreFull("no space", path=home.path))
    ended.release()
    with pytest.raises(StoreFull):
        future.result(LONG)
    assert agent.close() is True
    assert kinds(home.stored(agent)) == ["completed"]
