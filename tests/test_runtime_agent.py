"""What programs touch: the agent's calls, from any thread, and what they return."""

import contextvars
import copy
import gc
import itertools
import pickle
import signal
import threading
from concurrent.futures import CancelledError

import pytest
from runtime_parts import LONG, Background, Held, kinds, results, said, types, until
from test_boundary_store_forks import in_child

from syncagent.boundary.models.chat import ChatModel
from syncagent.boundary.tools.base import tool
from syncagent.boundary.tools.bash import bash
from syncagent.cancel import CancellationToken, Cause
from syncagent.errors import AgentClosed, ForkedStore, SessionLive
from syncagent.runtime.agent import Agent
from syncagent.runtime.result import TurnFailed
from syncagent.runtime.store import Store
from syncagent.testing import ModelServer, ScriptedModel, call, delay, hold, stall, status

pytestmark = pytest.mark.concurrent


# -- making one ----------------------------------------------------------------------------------------


def test_an_agent_without_a_session_gets_a_new_one(home):
    first, second = home.agent(["a"]), home.agent(["b"])
    assert first.session != second.session
    assert first.opened is None
    assert first.run("x").text == "a"
    assert [event.seq for event in home.stored(first)] == list(range(1, first.seq + 1))
    assert second.seq == 0


def test_a_turn_outlives_an_agent_that_nobody_keeps(tmp_path):
    """Its child processes are its own, and not those of the object that sent the message."""
    model = ScriptedModel([[hold("p"), call("bash", {"command": "echo hi"})], "done"])
    with Store(tmp_path / "runs.db") as store:
        future = Agent(model, store=store, tools=[bash], session="s").send("go")
        with model.point("p"):
            gc.collect()
        assert future.result(LONG).text == "done"
        assert [text for _, text in results(store.inspect("s")).values()] == ["hi\n"]


@pytest.mark.parametrize("copier", [copy.copy, copy.deepcopy, pickle.dumps])
def test_neither_agent_nor_store_nor_token_is_copied_or_pickled(home, copier):
    for thing in (home.agent(["a"]), home.store, CancellationToken()):
        with pytest.raises(TypeError, match=r"^an? \w+ can't be copied or pickled: "):
            copier(thing)


def test_an_agent_makes_or_opens_the_session_of_its_id(home):
    agent = home.agent(["one"], session="mine")
    agent.run("a")
    agent.close()
    again = home.agent(["two"], session="mine")
    assert again.run("b").turn == 2
    assert said(again.model.requests[0]) == [("user", "a"), ("assistant", "one"), ("user", "b")]


def test_a_session_that_is_live_cannot_be_driven_twice(home):
    home.agent(["one"], session="mine")
    with pytest.raises(SessionLive):
        home.agent(["two"], session="mine")


@pytest.mark.parametrize(
    "options, kind",
    [
        ({"max_steps": 0}, ValueError),
        ({"max_parallel": 0}, ValueError),
        ({"tools": [bash, bash]}, ValueError),
        ({"tools": [5]}, TypeError),
        ({"tools": [None]}, TypeError),
        ({"tools": 5}, TypeError),
        ({"store": "runs.db"}, TypeError),
        ({"session": "../x"}, ValueError),
    ],
    ids=lambda value: str(value)[:30],
)
def test_wrong_arguments_are_refused_and_leave_nothing_live(home, options, kind):
    with pytest.raises(kind):
        Agent(ScriptedModel(["x"]), **{"store": home.store, "session": "mine", **options})
    home.agent(["x"], session="mine")


def test_what_is_no_model_is_refused(home):
    with pytest.raises(TypeError, match="stream"):
        Agent("gpt", store=home.store)


def test_an_agent_that_cannot_be_made_gives_its_session_back(home, monkeypatch):
    from syncagent.runtime import agent as module

    def fail():
        raise OSError("no processes")

    monkeypatch.setattr(module.process, "shared", fail)
    with pytest.raises(OSError):
        home.agent(["x"], session="mine")
    monkeypatch.undo()
    home.agent(["x"], session="mine")


def test_functions_become_tools(home):
    def add(a: int, b: int) -> int:
        """Add.

        Args:
            a: One number.
            b: The other.
        """
        return a + b

    agent = home.agent([call("add", {"a": 2, "b": 3}), "5"], tools=[add])
    assert agent.run("2 + 3").text == "5"
    assert said(agent.model.requests[1])[-1] == ("tool", "5")
    (spec,) = agent.model.requests[0].tools
    assert (spec["name"], spec["description"]) == ("add", "Add.")


# -- run, send, wait -----------------------------------------------------------------------------------


def test_run_gives_the_result_of_its_own_turn(home):
    agent = home.agent(["one", "two"])
    assert [agent.run(text).text for text in ("a", "b")] == ["one", "two"]
    assert agent.wait().text == "two"


def test_wait_of_an_agent_without_turns_gives_none_and_in_a_turn_waits_no_longer_than_told(home):
    agent = home.agent([[hold("p"), "one"]])
    assert agent.wait() is None
    future = agent.send("a")
    assert agent.model.point("p").reached.wait(LONG)
    with pytest.raises(TimeoutError, match="running"):
        agent.wait(0.05)
    with pytest.raises(TimeoutError):
        agent.wait(0)
    agent.model.point("p").release()
    assert agent.wait(LONG).text == "one"
    assert future.done()


def test_a_hundred_messages_of_ten_threads_are_a_hundred_turns(home):
    agent = home.agent((lambda request: "re: " + request.messages[-1].text) for _ in range(100))
    futures = {}

    def sender(number):
        for count in range(10):
            text = f"{number}-{count}"
            futures[text] = agent.send(text)

    for thread in [Background(sender, number) for number in range(10)]:
        thread.result()
    results = {text: future.result(LONG) for text, future in futures.items()}
    for text, result in results.items():
        assert result.text == "re: " + text
    assert sorted(result.turn for result in results.values()) == list(range(1, 101))
    order = [event.body.message.text for event in home.events(agent, "inbox/put")]
    assert [event.body.message.text for event in home.events(agent, "user/message")] == order
    assert kinds(home.stored(agent)) == ["completed"] * 100
    for number in range(10):
        turns = [results[f"{number}-{count}"].turn for count in range(10)]
        assert turns == sorted(turns)


def test_senders_and_stoppers_at_once_leave_no_future_pending(home):
    agent = home.agent(itertools.repeat("x"))
    futures = []
    stop = threading.Event()

    def sender(number):
        for count in range(20):
            futures.append([agent.send, agent.steer][count % 2](f"{number}-{count}"))

    def stopper():
        while not stop.is_set():
            agent.cancel(keep_inbox=False)
            agent.cancel(keep_inbox=True)

    stopping = Background(stopper)
    senders = [Background(sender, number) for number in range(4)]
    for thread in senders:
        thread.result()
    stop.set()
    stopping.result()
    agent.send("wake")
    agent.wait(LONG)
    assert agent.status == "idle"
    until(lambda: all(future.done() for future in futures), "the end of all futures")
    for future in futures:
        if not future.cancelled():
            assert future.result().reason in ("completed", "aborted")


def test_raise_for_reason_tells_of_a_turn_that_failed(home):
    agent = home.agent([status(401, "who are you"), "fine"])
    with pytest.raises(TurnFailed, match="error.*authentication") as caught:
        agent.run("a").raise_for_reason()
    assert caught.value.result.reason == "error"
    assert agent.run("b").raise_for_reason().text == "fine"


def test_a_cause_or_scope_that_is_none_is_refused(home):
    agent = home.agent(["x"])
    for wrong in ({"cause": "because"}, {"scope": "world"}):
        with pytest.raises(ValueError):
            agent.cancel(**wrong)
    for cause in Cause:
        assert agent.cancel(cause) is False


# -- the with block ------------------------------------------------------------------------------------


def test_leaving_the_block_waits_for_quiet_and_closes(home):
    held = Held()
    model = ScriptedModel([call("work"), "one", "two"])
    with Agent(model, store=home.store, tools=[held.tool]) as agent:
        futures = [agent.send("a"), agent.send("b")]
        held.wait()
        threading.Timer(0.05, held.point.release).start()
    assert [future.result(0).text for future in futures] == ["one", "two"]
    with pytest.raises(AgentClosed):
        agent.send("c")


def test_leaving_the_block_waits_for_what_follows_a_stop_too(home):
    held = Held(stubborn=True)
    model = ScriptedModel([call("work"), "two"])
    with Agent(model, store=home.store, tools=[held.tool]) as agent:
        first = agent.send("a")
        held.wait()
        agent.cancel()
        second = agent.send("b")
        held.point.release()
    assert (first.result(0).reason, second.result(0).text) == ("aborted", "two")


def test_leaving_the_block_by_an_exception_closes_at_once(home):
    model = ScriptedModel([stall()])
    with pytest.raises(KeyError):
        with Agent(model, store=home.store) as agent:
            future, queued = agent.send("a"), agent.send("b")
            raise KeyError("x")
    with pytest.raises(CancelledError):
        queued.result(0)
    assert future.cancelled() or future.result(0).cause is Cause.DISPOSED


def test_a_closed_agent_can_be_asked_what_it_was(home):
    agent = home.agent(["one"])
    agent.run("a")
    agent.close()
    assert agent.wait(1).text == "one"
    assert (agent.status, agent.cancel(), agent.dropped()) == ("closed", False, [])
    assert [event.type for event in agent.follow()][-1] == "turn/end"


def test_a_store_that_closes_before_its_agents_ends_their_turns_in_order(home):
    held = [Held(), Held()]
    agents = [home.agent([call("work"), "never"], tools=[one.tool]) for one in held]
    futures = [agent.send("a") for agent in agents]
    for one in held:
        one.wait()
    home.store.close()
    for one, agent, future in zip(held, agents, futures):
        assert one.ends == ["Cancelled"]
        assert (future.result(0).reason, future.result(0).cause) == ("aborted", "disposed")
        assert agent.close() is True
        with pytest.raises(AgentClosed):
            agent.send("b")
    with Store(home.path) as store:
        assert [info.ending for info in store.sessions()] == ["aborted", "aborted"]


def test_a_turn_that_closes_its_own_store_is_told_so_and_goes_on(home):
    refused = []

    @tool
    def work():
        """Close the store."""
        with pytest.raises(RuntimeError, match="can't wait for its own agent") as caught:
            home.store.close()
        refused.append(caught.value)
        return "done"

    agent = home.agent([call("work"), "and on"], tools=[work])
    assert agent.run("go").text == "and on" and refused


# -- follow --------------------------------------------------------------------------------------------


def test_follow_gives_stored_and_live_events_alike_and_ends_with_the_agent(home):
    agent = home.agent(["one", ["two", hold("p")]])
    agent.run("a")
    middle = agent.seq
    stories = [Background(list, agent.follow(since=since)) for since in (0, middle - 2, middle)]
    agent.send("b")
    assert agent.model.point("p").reached.wait(LONG)
    agent.model.point("p").release()
    agent.wait(LONG)
    agent.close()
    whole = home.stored(agent)
    assert [story.result() for story in stories] == [whole, whole[middle - 2 :], whole[middle:]]
    assert list(agent.follow(since=agent.seq)) == []


def test_follow_shows_a_chunk_while_the_stream_goes_on(home):
    agent = home.agent([["a", hold("p"), "b"]])
    future = agent.send("x")
    seen = []
    for event in agent.follow():
        if event.type == "assistant/chunk":
            seen.append(event.body.chunk["text"])
            if len(seen) == 1:
                assert not future.done()
                agent.model.point("p").release()
        if event.type == "turn/end":
            break
    assert seen == ["a", "b"]
    agent.wait(LONG)


# -- context variables ---------------------------------------------------------------------------------

VARIABLE = contextvars.ContextVar("VARIABLE", default="unset")


def test_context_variables_of_the_sender_reach_every_boundary_and_leak_to_no_sibling(home):
    seen = []

    def body(name):
        def read() -> str:
            """Read and change."""
            seen.append((name, VARIABLE.get()))
            VARIABLE.set(f"changed by {name}")
            return "ok"

        return tool(name=name)(read)

    def hook(name):
        def read(view=None, *, token):
            seen.append((name, VARIABLE.get()))
            return "" if name == "system" else None

        return read

    agent = home.agent(
        [call("alone"), [call("left"), call("right")], "done", "again"],
        tools=[body("alone"), body("left"), body("right")],
        **{name: hook(name) for name in ("system", "pre_step", "request", "turn_stopping")},
    )
    VARIABLE.set("mine")
    assert agent.run("a").text == "done"
    assert {name for name, value in seen} == {
        "system", "pre_step", "request", "turn_stopping", "alone", "left", "right"
    }  # fmt: skip
    assert {value for name, value in seen} == {"mine"}
    seen.clear()
    Background(lambda: agent.run("b")).result()
    assert {value for name, value in seen} == {"unset"}
    assert VARIABLE.get() == "mine"


# -- the whole way -------------------------------------------------------------------------------------


def chat(server, **options):
    return ChatModel("m", base_url=server.url, api_key="k", **options)


def test_a_turn_over_http_with_a_real_process(home):
    script = [["Let me look.", call("bash", {"command": "echo $((6 * 7))"})], ["It is ", "42."]]
    with ModelServer(script) as server, chat(server) as model:
        agent = home.agent(model, tools=[bash])
        result = agent.run("what is it?")
        assert (result.reason, result.text) == ("completed", "It is 42.")
        results = [message for message in server.requests[1].body["messages"] if message["role"] == "tool"]
        assert [result["content"] for result in results] == ["42\n"]
        agent.close()


def test_a_real_process_dies_with_its_turn_and_the_next_request_pairs_up(home, tmp_path):
    def file(name):
        return tmp_path / name

    slow = f"echo begun > {file('begun')}; sleep 60; echo late > {file('late')}"
    commands = ["echo one", slow, "echo no"]
    script = [[call("bash", {"command": command}) for command in commands], "understood"]
    with ModelServer(script) as server, chat(server) as model:
        agent = home.agent(model, tools=[bash], max_parallel=1)
        future = agent.send("go")
        until(lambda: file("begun").exists(), "the command")
        agent.cancel()
        assert future.result(LONG).reason == "aborted"
        assert agent.run("and now?").text == "understood"  # the server answers 400 to calls without results
        messages = server.requests[1].body["messages"]
        texts = [message["content"] for message in messages if message["role"] == "tool"]
        agent.close()
    assert [event.body.code for event in home.stored(agent, "tool/result")] == [
        None, "ABORTED", "ABORTED_BEFORE_DISPATCH"
    ]  # fmt: skip
    assert texts[0] == "one\n" and "cancelled" in texts[1] and "not run" in texts[2]
    assert not file("late").exists()


def test_two_agents_with_real_processes_share_no_stop(home):
    scripts = [[call("bash", {"command": "sleep 0.5; echo ok"}), "done"] for _ in range(2)]
    first, second = (home.agent(script, tools=[bash]) for script in scripts)
    futures = [first.send("a"), second.send("b")]
    until(lambda: second.status == first.status == "running bash", "the commands")
    first.cancel()
    assert futures[0].result(LONG).reason == "aborted"
    assert futures[1].result(LONG).reason == "completed"
    assert said(second.model.requests[1])[-1] == ("tool", "ok\n")


@pytest.mark.once
def test_a_slow_stream_that_is_alive_is_not_cut(home):
    script = [["a", delay(0.4), "b", delay(0.4), "c", delay(0.4), "d", delay(0.4), "e"]]
    with ModelServer(script) as server, chat(server, idle_timeout=1.0) as model:
        agent = home.agent(model)
        assert agent.run("x").text == "abcde"
        agent.close()


def test_a_stream_that_goes_silent_ends_the_turn_and_its_text_stays(home):
    with ModelServer([["a", "b", stall()]]) as server, chat(server, idle_timeout=0.3) as model:
        agent = home.agent(model)
        result = agent.run("x")
        agent.close()
    assert (result.reason, result.error.code, result.partial_text) == ("error", "timeout", "ab")
    assert types(home.stored(agent)) == ["turn/start", "step/start", "user/message", "step/end", "turn/end"]


def test_a_forked_child_is_refused_and_leaves_the_running_agent_to_its_parent(home):
    """Also where another thread held the agent's lock at the fork, and on its way out of the block."""
    held = Held()
    agent = home.agent([[call("work")], "done"], tools=[held.tool])
    future = agent.send("go")
    held.wait()

    def leave():
        signal.alarm(int(LONG))  # it hangs where it waits for a thread that the child has not
        for use in (
            lambda: agent.run("x"),
            lambda: agent.steer("x"),
            agent.cancel,
            agent.wait,
            agent.dropped,
            lambda: next(agent.follow()),
            lambda: agent.status,
        ):
            with pytest.raises(ForkedStore, match="opened by process"):
                use()
        agent.__exit__(None, None, None)
        home.store.close()
        return agent.close()

    with agent._driver.guard, agent._session._guard:
        assert in_child(leave) == 0
    held.point.release()
    assert future.result(LONG).text == "done"
