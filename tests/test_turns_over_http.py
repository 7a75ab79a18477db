"""Whole turns with every part real: a model behind a socket that checks pairing, tools, and a store."""

import itertools

import attrs
import http_servers as servers
import pytest
from runtime_parts import LONG, Held, kinds, results, types, until

from syncagent.boundary.models.chat import ChatModel
from syncagent.boundary.models.protocol import Chunk
from syncagent.boundary.tools.base import tool
from syncagent.boundary.tools.bash import bash
from syncagent.testing import (
    ModelServer,
    call,
    cut,
    data,
    delay,
    error,
    finish,
    hold,
    raw,
    stall,
    status,
    text,
    usage,
)

pytestmark = pytest.mark.concurrent


class World:
    """A server that plays a script, and an agent that asks it."""

    def __init__(self, home):
        self._home = home
        self._servers = []
        self._models = []

    def agent(self, script, *, model=None, **options):
        self.server = ModelServer(script)
        self._servers.append(self.server)
        options.setdefault("tools", [bash])
        chat = ChatModel("any", base_url=self.server.url, trust_env=False, **(model or {}))
        self._models.append(chat)
        return self._home.agent(chat, **options)

    def bodies(self):
        return [request.body for request in self.server.requests]

    def told(self, number):
        """What a request tells of calls: (id, content) of each result, in the order of the wire."""
        messages = self.server.requests[number].body["messages"]
        return [(m["tool_call_id"], m["content"]) for m in messages if m["role"] == "tool"]

    def close(self):
        self._home.close()
        for each in (*self._models, *self._servers):
            each.close()


@pytest.fixture
def world(home):
    made = World(home)
    yield made
    made.close()


def counting(counts, name="mark"):
    """A tool that notes how often it ran, and with what."""

    def body(city: str = "nowhere"):
        """Note."""
        counts.append(city)
        return f"{city} is noted"

    return tool(name=name)(body)


def part(text="", **more):
    return Chunk(kind="tool_call", text=text, **more)


def entries(*parts):
    """One object of the stream with these tool-call entries."""
    return data({"choices": [{"index": 0, "delta": {"tool_calls": list(parts)}}]})


# -- stops ---------------------------------------------------------------------------------------------


def test_a_stop_and_a_send_at_once_never_reach_the_wrong_request(world, home):
    """Both turns use the same connections; the stopped one's is gone, the next one's is left alone."""
    rounds = 30
    script = itertools.chain.from_iterable(([f"slow {n}", stall()], "echo") for n in range(rounds))
    agent = world.agent(script)
    for number in range(rounds):
        slow = agent.send("slow")
        world.server.request(2 * number)
        assert agent.cancel() is True
        echo = agent.send("echo")
        assert (slow.result(LONG).reason, echo.result(LONG).text) == ("aborted", "echo")
    assert kinds(home.events(agent)) == ["aborted", "completed"] * rounds
    assert len(world.server.requests) == 2 * rounds


def test_after_a_stop_the_wire_has_each_answer_its_results_and_only_then_the_user(world, home):
    held = Held()
    look = [["Let me look.", call("bash", {"command": "echo one"}), call("work"), call("bash")], "I see."]
    agent = world.agent(look, tools=[bash, held.tool], max_parallel=1)
    future = agent.send("go")
    held.wait()
    agent.cancel()
    assert future.result(LONG).reason == "aborted"
    assert agent.run("and now?").text == "I see."
    messages = world.bodies()[1]["messages"]
    roles = [message["role"] for message in messages]
    assert roles[:5] == ["user", "assistant", "tool", "tool", "tool"] and set(roles[5:]) == {"user"}
    ids = [entry["id"] for entry in messages[1]["tool_calls"]]
    assert (messages[1]["content"], [id for id, _ in world.told(1)]) == ("Let me look.", ids)
    assert [results(home.events(agent))[id][0] for id in ids] == [None, "ABORTED", "ABORTED_BEFORE_DISPATCH"]
    assert messages[-1]["content"] == "and now?"


def test_what_was_shown_before_a_stop_is_what_the_next_request_says(world, home):
    agent = world.agent([["a", "b", hold("p"), call("bash", {"command": "false"})], "ok"])
    future = agent.send("tell me")
    until(lambda: len(home.events(agent, "assistant/chunk")) == 2, "both deltas")
    agent.cancel()
    assert future.result(LONG).partial_text == "ab"
    assert world.server.requests[0].gone.wait(LONG)
    agent.run("go on")
    assert world.bodies()[1]["messages"][1] == {"role": "assistant", "content": "ab"}


# -- calls from fragments ------------------------------------------------------------------------------

HEAD = {"id": "x", "type": "function", "function": {"name": "mark"}}
HALVES = ['{"city"', ': "%s"}']


@pytest.mark.parametrize(
    "items, cities",
    [
        (
            [
                entries({"index": 0, **HEAD}, {"index": 0, "function": {"arguments": ' {"'}}),
                part('city": "Rome"}', index=0),
            ],
            ["Rome"],
        ),
        (
            [
                part(index=0, id="x", name="mark"),
                part(index=1, id="y", name="mark"),
                *[part(half.replace("%s", c), index=i) for half in HALVES for i, c in enumerate(["A", "B"])],
            ],
            ["A", "B"],
        ),
        ([call("mark", {"city": "A"}, id="X"), call("mark", {"city": "B"}, id="X")], ["A", "B"]),
        ([call("mark", {"city": "A"}, id=""), call("mark", {"city": "B"}, id="")], ["A", "B"]),
    ],
    ids=["two entries of one index", "interleaved", "one id twice", "no id"],
)
def test_calls_run_once_each_and_their_results_pair_up(world, items, cities):
    ran = []
    agent = world.agent([items, "done"], tools=[counting(ran)], max_parallel=1)
    assert agent.run("go").text == "done"
    assert ran == cities
    assert [content for _, content in world.told(1)] == [f"{city} is noted" for city in cities]
    assert len({id for id, _ in world.told(1)}) == len(cities)


def test_one_id_in_three_turns_is_three_calls(world):
    ran = []
    script = [item for n in "abc" for item in ([call("mark", {"city": n}, id="X")], n)]
    agent = world.agent(script, tools=[counting(ran)])
    assert [agent.run("go").text for _ in range(3)] == ["a", "b", "c"]
    assert ran == ["a", "b", "c"]
    told = world.told(5)
    assert [content for _, content in told] == [f"{n} is noted" for n in "abc"]
    assert len({id for id, _ in told}) == 3


@pytest.mark.parametrize("arguments", ["", "  ", None, "{}", "absent"], ids=repr)
def test_no_arguments_in_any_form_run_the_tool_once(world, arguments):
    ran = []
    function = {"name": "mark", **({} if arguments == "absent" else {"arguments": arguments})}
    agent = world.agent(
        [[entries({"index": 0, **HEAD, "function": function}), finish("tool_calls")], "done"],
        tools=[counting(ran)],
    )
    assert agent.run("go").text == "done"
    assert ran == ["nowhere"]


@pytest.mark.parametrize(
    "arguments",
    ['{"city": "San Fra', "[1]", '"x"', "NaN", '{"a":1}{"b":2}', "[" * 100_000, '{"a":' * 100_000],
    ids=lambda text: text[:12],
)
def test_arguments_that_are_not_valid_run_nothing_and_the_next_step_is_asked(world, home, arguments):
    ran = []
    agent = world.agent([[call("mark", arguments)], "sorry"], tools=[counting(ran)])
    assert agent.run("go").text == "sorry"
    assert ran == []
    ((_, content),) = world.told(1)
    assert "mark" in content
    assert [event.body.code for event in home.events(agent, "tool/result")] == ["BAD_ARGUMENTS"]


def test_empty_choices_first_and_usage_last_are_no_crash(world):
    agent = world.agent([[data({"choices": [], "prompt_filter_results": []}), "Hello", usage(3, 2)]])
    result = agent.run("go")
    assert (result.reason, result.text) == ("completed", "Hello")
    assert result.usage == {"input_tokens": 3, "output_tokens": 2}


def test_an_answer_after_its_calls_had_text_goes_back_with_the_text_before_the_calls(world):
    """A wire has one text for a message; nothing of the model's stands between calls and results."""
    agent = world.agent([["Before.", call("bash", {"command": "echo hi"}), " After."], "done"])
    assert agent.run("go").text == "done"
    assert [message["role"] for message in world.bodies()[1]["messages"]] == ["user", "assistant", "tool"]
    assert world.bodies()[1]["messages"][1]["content"] == "Before. After."


# -- how an answer ends --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments", ['{"command": "touch', '{"command": "touch marker"}'], ids=["half", "whole"]
)
@pytest.mark.parametrize(
    "end", [finish(None), cut(), cut(reset=True)], ids=["no finish reason", "cut", "reset"]
)
def test_a_call_of_an_answer_that_did_not_end_never_runs(world, home, tmp_path, monkeypatch, arguments, end):
    monkeypatch.chdir(tmp_path)
    item = part(arguments, index=0, id="x", name="bash")
    # Let the client have read what came before the reset, which throws it away.
    agent = world.agent([["Writing.", item, delay(0.05), end], "fine"])
    result = agent.run("go")
    assert result.reason == "error" and result.error.code in ("truncated", "connection")
    assert (result.text, result.partial_text) == (None, "Writing.")
    assert types(home.events(agent)) == ["turn/start", "step/start", "user/message", "step/end", "turn/end"]
    assert not (tmp_path / "marker").exists()
    assert agent.run("more").text == "fine"


@pytest.mark.parametrize("before", [[], ["Hel", "lo"]], ids=["first", "after two deltas"])
def test_an_error_object_is_tried_again_only_if_nothing_was_delivered(world, home, monkeypatch, before):
    monkeypatch.setattr("syncagent.runtime.request.FIRST_DELAY", 0.01)
    agent = world.agent([[*before, error("busy", type="overloaded_error")], "fine"])
    result = agent.run("go")
    if before:
        assert (result.reason, result.error.code, result.partial_text) == ("error", "overloaded", "Hello")
    else:
        assert (result.reason, result.text) == ("completed", "fine")
    assert len(world.server.requests) == (1 if before else 2)
    assert len(home.events(agent, "model/retry")) == (0 if before else 1)


def test_an_attempt_after_output_is_read_from_nothing(world, home, monkeypatch):
    monkeypatch.setattr("syncagent.runtime.request.FIRST_DELAY", 0.01)
    ran = []
    half = part('{"city": "Ro', index=0, id="x", name="mark")
    script = [["Hel", half, delay(0.05), cut(reset=True)], ["Hello", call("mark", {"city": "Rome"})], "done"]
    agent = world.agent(script, tools=[counting(ran)], model={"retry_after_output": True})
    assert agent.run("go").text == "done"
    assert ran == ["Rome"]
    first = home.events(agent, "assistant/message")[0].body
    assert (first.attempt, first.message.text, len(first.message.calls)) == (2, "Hello", 1)
    assert {event.body.attempt for event in home.events(agent, "assistant/chunk")} == {1, 2}


@pytest.mark.once
def test_comments_are_life_wherever_they_stand_and_change_no_text(world):
    """Before the first event, between two, and inside one of several lines."""
    ping = [delay(0.2), raw(b": ping\n\n")]
    inside = [delay(0.2), raw(b": ping\n")]
    lines = [
        b'data: {"choices": [{"index": 0,\n',
        b'data: "delta": {"content": "b"},\n',
        b'data: "x": 1}]}\n\n',
    ]
    pieces = [item for line in lines for item in (*inside, raw(line))]
    agent = world.agent([[*ping * 3, "a", *ping, *pieces, *ping, "c"]], model={"idle_timeout": 0.6})
    assert agent.run("go").text == "abc"


# -- what is not tried again ---------------------------------------------------------------------------


@pytest.mark.parametrize("seconds, obeyed", [("120", True), ("120.5", False)])
def test_a_wait_of_two_minutes_is_obeyed_and_a_longer_one_ends_the_turn(world, home, seconds, obeyed):
    agent = world.agent([status(429, headers={"Retry-After": seconds}), "never"])
    future = agent.send("go")
    if obeyed:
        until(lambda: agent.status == "retrying (1 of 5)", "the wait")
        agent.cancel()
    result = future.result(LONG)
    assert result.reason == ("aborted" if obeyed else "error")
    assert [event.body.delay_ms for event in home.events(agent, "model/retry")] == [120_000] * obeyed
    assert len(world.server.requests) == 1


def test_a_certificate_that_cannot_be_trusted_ends_the_turn_at_once(home, tmp_path):
    tls = servers.Authority(tmp_path).context()
    with servers.Server(servers.answering(servers.OK), tls=tls) as server:
        with ChatModel("m", base_url=server.url, trust_env=False) as model:
            agent = home.agent(model)
            result = agent.run("go")
            assert (result.reason, result.error.code) == ("error", "certificate")
            assert home.events(agent, "model/retry") == [] and server.connections == 1
            agent.close()


# -- hooks ---------------------------------------------------------------------------------------------


def test_a_request_hook_forces_a_tool_in_the_first_step_only(world, home):
    """The function that a forced choice names is on the wire, and the next step is free again."""
    choice = {"type": "function", "function": {"name": "bash"}}

    def force(view, *, token):
        if view.step == 1:
            return attrs.evolve(view.request, params={**view.request.params, "tool_choice": choice})

    agent = world.agent([[call("bash", {"command": "echo hi"})], text("do", "ne")], request=force)
    assert agent.run("go").text == "done"
    assert [body.get("tool_choice") for body in world.bodies()] == [choice, None]
    headers = [event.body.params for event in home.events(agent, "request/header")]
    assert headers == [{"tool_choice": choice}, {}]
