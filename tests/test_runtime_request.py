"""A step's request: its attempts, what the log keeps of each, and the waits between them."""

import pytest
from runtime_parts import LONG, kinds, said, types, until

from syncagent.boundary.models.protocol import Chunk, ModelRequest
from syncagent.boundary.tools.base import tool
from syncagent.cancel import Cause
from syncagent.errors import ModelError
from syncagent.log import Event, check, derive_messages
from syncagent.testing import (
    ScriptedModel,
    call,
    cut,
    error,
    finish,
    hold,
    reasoning,
    status,
    text,
    usage,
)

pytestmark = pytest.mark.concurrent


def now(code=503, **more):
    """A failure after which the next attempt follows at once."""
    return status(code, headers={"Retry-After": "0"}, **more)


def cut_at(home, *items, **options):
    """A turn whose stream is stopped after these items; its agent and the result."""
    agent = home.agent([[*items, hold("cut"), "never"], "next"], **options)
    future = agent.send("go")
    assert agent.model.point("cut").reached.wait(LONG)
    agent.cancel()
    return agent, future.result(LONG)


def message(home, agent):
    """The body of the only assistant message, or None."""
    found = home.events(agent, "assistant/message")
    assert len(found) <= 1
    return found[0].body if found else None


def test_an_ending_that_is_unknown_is_no_success(home):
    class Odd:
        def stream(self, request, *, token):
            yield Chunk(text="so far")
            yield Chunk(finish="finished")

    result = home.agent(Odd()).run("go")
    assert (result.reason, result.error.code, result.partial_text) == ("error", "bad_response", "so far")


# -- what is asked -------------------------------------------------------------------------------------


def test_the_request_says_the_transcript_the_prompt_the_tools_and_the_parameters(home):
    @tool
    def look(path: str) -> str:
        """Look."""
        return path

    model = ScriptedModel(["one"], params={"temperature": 0})
    home.agent(model, tools=[look], system="Be brief.").run("go")
    (request,) = model.requests
    assert said(request) == [("user", "go")]
    assert (request.system, dict(request.params)) == ("Be brief.", {"temperature": 0})
    assert [spec["name"] for spec in request.tools] == ["look"]


def test_the_header_is_logged_only_when_it_differs_from_the_last_one(home):
    prompts = iter(["A", "A", "B", "B"])
    agent = home.agent(["1", "2", "3"], system=lambda *, token: next(prompts))
    for words in ("a", "b", "c"):
        agent.run(words)
    headers = [event.body for event in home.events(agent, "request/header")]
    assert [(header.turn, header.system) for header in headers] == [(1, "A"), (3, "B")]
    assert (headers[0].model, headers[0].provider, headers[0].tools) == ("scripted", "scripted", [])
    home.reopen()
    again = home.agent(["4"], session=agent.session, system="B")
    again.run("d")
    assert len(home.events(again, "request/header")) == 2


def test_a_request_hook_may_send_something_else(home):
    def replace(view, *, token):
        return ModelRequest(messages=view.request.messages, system="other", params={"n": 1})

    agent = home.agent(["one"], request=replace, system="mine")
    agent.run("go")
    assert agent.model.requests[0].system == "other"
    (header,) = home.events(agent, "request/header")
    assert (header.body.system, header.body.params) == ("other", {"n": 1})


def test_a_transcript_that_a_provider_would_refuse_is_not_sent(home):
    agent = home.agent(["never"], request=lambda view, *, token: ModelRequest(messages=()))
    result = agent.run("go")
    assert (result.reason, result.error.code) == ("error", "bad_request")
    assert agent.model.requests == []


def test_half_a_surrogate_pair_gets_neither_into_the_log_nor_into_the_request(home):
    agent = home.agent([["a\ud800b"], "two"], system="s\udfff")
    assert agent.run("go").text == "a\ufffdb"
    agent.run("more")
    assert said(agent.model.requests[1])[1] == ("assistant", "a\ufffdb")
    assert agent.model.requests[0].system == "s\ufffd"


def test_a_model_may_return_any_iterator_and_have_no_attributes(home):
    class Plain:
        def stream(self, request, *, token):
            return iter([Chunk(text="hi"), Chunk(finish="stop")])

    agent = home.agent(Plain())
    assert agent.run("go").text == "hi"
    (header,) = home.events(agent, "request/header")
    assert (header.body.model, header.body.provider, header.body.params) == ("Plain", "Plain", {})


def test_the_stream_is_closed_when_the_turn_is_stopped_in_it(home):
    closed = []

    class Watched(ScriptedModel):
        def stream(self, request, *, token):
            try:
                yield from super().stream(request, token=token)
            finally:
                closed.append(True)

    agent = home.agent(Watched([["a", hold("p")]]))
    future = agent.send("go")
    assert agent.model.point("p").reached.wait(LONG)
    agent.cancel()
    assert future.result(LONG).reason == "aborted"
    assert closed == [True]


# -- a stream that is cut by a stop --------------------------------------------------------------------


def test_text_and_reasoning_stay_and_calls_are_dropped_whole(home):
    agent, result = cut_at(
        home,
        reasoning("think", "ing"),
        "Look",
        " here.",
        call("a", {"x": 1}),
        Chunk(kind="tool_call", index=1, id="c", name="b", text='{"ha'),
    )
    body = message(home, agent)
    assert body.interrupted
    assert body.message.content == [
        {"type": "reasoning", "text": "thinking"},
        {"type": "text", "text": "Look here."},
    ]
    assert result.partial_text == "Look here."
    assert home.events(agent, "tool/result") == []
    assert agent.run("more").text == "next"


def test_runs_of_one_kind_are_one_block_and_blank_ones_are_left_out(home):
    agent, result = cut_at(home, "a", reasoning(" \n"), "b", reasoning("r"), text("c", " "), "\u2003")
    assert message(home, agent).message.content == [
        {"type": "text", "text": "ab"},
        {"type": "reasoning", "text": "r"},
        {"type": "text", "text": "c \u2003"},
    ]


@pytest.mark.parametrize(
    "items",
    [[], [" ", "\n\t"], [reasoning(" ")], [call("a")], [" ", call("a"), usage(1, 1)]],
    ids=["nothing", "blanks", "blank reasoning", "a call", "blanks and a call"],
)
def test_nothing_visible_leaves_no_message(home, items):
    agent, result = cut_at(home, *items)
    assert message(home, agent) is None
    assert (result.reason, result.partial_text, result.usage) == ("aborted", None, {})
    assert agent.run("more").text == "next"
    assert [line for line in said(agent.model.requests[1]) if line[0] == "assistant"] == []


def test_usage_that_was_seen_before_the_cut_stays(home):
    agent, result = cut_at(home, usage(100, 1), "a", Chunk(text="b", usage={"output_tokens": 5}))
    assert message(home, agent).usage == {"input_tokens": 100, "output_tokens": 5}
    assert result.usage == {"input_tokens": 100, "output_tokens": 5}


def test_a_cut_after_the_last_chunk_keeps_the_message_as_interrupted(home):
    agent, result = cut_at(home, "all of it", Chunk(finish="stop"))
    body = message(home, agent)
    assert body.interrupted and body.message.text == "all of it"
    assert (result.reason, result.text, result.partial_text) == ("aborted", None, "all of it")


def test_only_chunks_of_the_attempt_that_was_cut_count(home):
    agent = home.agent([["old", usage(9, 9), cut()], [reasoning("new"), hold("p")]])
    agent.model.retry_after_output = True
    future = agent.send("go")
    assert agent.model.point("p").reached.wait(LONG)
    agent.cancel()
    assert future.result(LONG).reason == "aborted"
    body = message(home, agent)
    assert (body.attempt, body.usage) == (2, {})
    assert body.message.content == [{"type": "reasoning", "text": "new"}]


# -- attempts ------------------------------------------------------------------------------------------


def test_an_attempt_that_showed_nothing_is_made_again(home):
    agent = home.agent([now(), [reasoning(" "), call("a"), now(429)], ["Hello", usage(1, 2)]])
    result = agent.run("go")
    assert (result.reason, result.text) == ("completed", "Hello")
    retries = [event.body for event in home.events(agent, "model/retry")]
    assert [(retry.attempt, retry.delay_ms, retry.error["code"]) for retry in retries] == [
        (2, 0, "overloaded"), (3, 0, "rate_limit")
    ]  # fmt: skip
    assert message(home, agent).attempt == 3
    assert len(agent.model.requests) == 3
    assert types(home.events(agent)).count("step/start") == 1


def test_an_attempt_that_showed_something_is_not_made_again_unless_the_model_says_so(home):
    agent = home.agent([["Hel", cut()], "never"])
    result = agent.run("go")
    assert (result.reason, result.error.code) == ("error", "connection")
    assert (result.text, result.partial_text) == (None, "Hel")
    assert home.events(agent, "model/retry") == []
    assert message(home, agent) is None
    chunks = [event.body.chunk["text"] for event in home.events(agent, "assistant/chunk")]
    assert chunks == ["Hel"]


def test_an_attempt_after_output_begins_from_nothing_and_the_log_keeps_both(home):
    ran = []
    mark = tool(name="mark")(lambda: ran.append(1))
    half = Chunk(kind="tool_call", index=0, id="c", name="mark", text='{"pri')
    script = [["Hel", half, cut(reset=True)], ["Hello", call("mark", id="d")], "done"]
    agent = home.agent(script, tools=[mark])
    agent.model.retry_after_output = True
    assert agent.run("go").text == "done"
    assert ran == [1]
    first = home.events(agent, "assistant/message")[0].body
    assert first.message.content == [
        {"type": "text", "text": "Hello"},
        {"type": "tool_call", "id": "d", "name": "mark", "arguments": "{}"},
    ]
    chunks = [event.body for event in home.events(agent, "assistant/chunk")]
    attempts = [(body.attempt, body.chunk["text"]) for body in chunks]
    assert attempts[:2] == [(1, "Hel"), (1, '{"pri')]
    assert (2, "Hello") in attempts


@pytest.mark.parametrize("after_output", [False, True])
def test_an_error_object_in_the_stream_is_classified_like_an_http_error(home, after_output):
    agent = home.agent([["Hel", "lo"] * after_output + [error("busy", type="overloaded_error")], "fine"])
    result = agent.run("go")
    if after_output:
        assert (result.reason, result.error.code, result.partial_text) == ("error", "overloaded", "Hello")
    else:
        assert (result.reason, result.text) == ("completed", "fine")


@pytest.mark.parametrize("complete", [False, True], ids=["half the arguments", "complete arguments"])
def test_a_stream_without_a_finish_runs_no_call(home, complete):
    ran = []
    mark = tool(name="mark")(lambda path="": ran.append(path))
    arguments = '{"path": "x"}' if complete else '{"path": "'
    agent = home.agent([["Writing.", call("mark", arguments), finish(None)], "next"], tools=[mark])
    result = agent.run("go")
    assert (result.reason, result.error.code, result.partial_text) == ("error", "truncated", "Writing.")
    assert ran == []
    assert message(home, agent) is None
    assert agent.run("more").text == "next"


def test_a_stream_without_a_finish_that_showed_nothing_is_asked_for_again(home):
    ran = []
    mark = tool(name="mark")(lambda: ran.append(1))
    entries = [[call("mark"), finish(None)], [call("mark")], "done"]
    agent = home.agent(entries, tools=[mark])
    future = agent.send("go")
    assert future.result(LONG).text == "done"
    assert ran == [1]
    assert [event.body.attempt for event in home.events(agent, "assistant/message")] == [2, 1]


def test_attempts_end_after_the_models_retries(home):
    agent = home.agent(ScriptedModel([now()] * 9, max_retries=2))
    result = agent.run("go")
    assert (result.reason, result.error.code) == ("error", "overloaded")
    assert len(agent.model.requests) == 3
    assert kinds(home.events(agent)) == ["error"]


def test_a_failure_that_no_retry_mends_is_not_retried(home):
    agent = home.agent([status(401)])
    assert agent.run("go").error.code == "authentication"
    assert len(agent.model.requests) == 1


def test_a_wait_longer_than_reasonable_ends_the_turn_and_says_so(home):
    agent = home.agent([status(429, headers={"Retry-After": "3600"})])
    result = agent.run("go")
    assert (result.reason, result.error.code) == ("error", "rate_limit")
    assert "3600 s" in result.error.message
    assert home.events(agent, "model/retry") == []


# -- the wait between attempts -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value, least, most",
    [
        ("2", 2000, 2000),
        ("1.5", 1500, 1500),
        ("Fri, 31 Dec 1999 23:59:59 GMT", 0, 0),
        ("-5", 0, 500),
        ("abc", 250, 500),
        ("", 250, 500),
        ("Fri, 31 Dec 99999 23:59:59 GMT", 250, 500),
        ("NaN", 250, 500),
        ("inf", 250, 500),
        (None, 250, 500),
    ],
)
def test_the_wait_is_the_providers_or_our_own(home, value, least, most):
    agent = home.agent([status(429, headers={} if value is None else {"Retry-After": value}), "fine"])
    future = agent.send("go")
    until(lambda: home.events(agent, "model/retry"), "the retry")
    agent.cancel()
    assert future.cancelled() or future.result(LONG).reason in ("aborted", "completed")
    (retry,) = home.events(agent, "model/retry")
    assert least <= retry.body.delay_ms <= most


def test_a_stop_in_the_wait_commits_nothing_and_asks_no_more(home):
    agent = home.agent([status(429, headers={"Retry-After": "60"}), "never"])
    future = agent.send("go")
    until(lambda: agent.status == "retrying (1 of 5)", "the wait")
    assert home.events(agent, "model/retry")  # it is logged before the wait
    agent.cancel()
    result = future.result(LONG)
    assert (result.reason, result.cause, result.partial_text) == ("aborted", Cause.USER, None)
    assert len(agent.model.requests) == 1
    assert message(home, agent) is None
    assert agent.wait(LONG) is result
    assert agent.status == "idle"


def test_a_stop_in_the_wait_after_output_keeps_what_was_shown_as_partial_text_only(home):
    agent = home.agent([["Hel", status(429, headers={"Retry-After": "60"})], "never"])
    agent.model.retry_after_output = True
    future = agent.send("go")
    until(lambda: agent.status.startswith("retrying"), "the wait")
    agent.cancel()
    result = future.result(LONG)
    assert (result.reason, result.partial_text) == ("aborted", "Hel")
    assert message(home, agent) is None


# -- calls from fragments ------------------------------------------------------------------------------


def fragment(index, body="", id=None, name=None):
    return Chunk(kind="tool_call", index=index, id=id, name=name, text=body)


@pytest.mark.parametrize(
    "chunks, wanted",
    [
        ([fragment(0, id="a", name="note"), fragment(0, ' {"'), fragment(0, 'text": "x"}')], ["x"]),
        (
            [
                fragment(0, id="a", name="note"),
                fragment(1, id="b", name="note"),
                fragment(0, '{"text": '),
                fragment(1, '{"text": '),
                fragment(0, '"x"}'),
                fragment(1, '"y"}'),
            ],
            ["x", "y"],
        ),
        ([fragment(0, '{"text": "x"}', "a", "note"), fragment(1, '{"text": "y"}', "a", "note")], ["x", "y"]),
        ([fragment(0, '{"text": "x"}', "", "note"), fragment(1, '{"text": "y"}', "", "note")], ["x", "y"]),
    ],
    ids=["two entries of one index", "interleaved", "the same id twice", "empty ids"],
)
def test_fragments_become_calls_that_each_have_their_result(home, chunks, wanted):
    noted = []

    @tool
    def note(text: str) -> str:
        """Note."""
        noted.append(text)
        return f"noted {text}"

    agent = home.agent([[*chunks, Chunk(finish="tool_calls")], "done"], tools=[note], max_parallel=1)
    assert agent.run("go").text == "done"  # the model refuses calls and results that don't pair up
    assert noted == wanted
    assert [line[1] for line in said(agent.model.requests[1]) if line[0] == "tool"] == [
        f"noted {text}" for text in wanted
    ]
    ids = [event.body.call_id for event in home.events(agent, "tool/result")]
    assert len(set(ids)) == len(wanted) and all(ids)


def test_the_same_call_id_in_later_turns_is_another_call(home):
    count = []
    tick = tool(name="tick")(lambda: count.append(1) or len(count))
    script = [call("tick", id="X"), "a", call("tick", id="X"), "b", call("tick", id="X"), "c"]
    agent = home.agent(script, tools=[tick])
    assert [agent.run(text).text for text in "123"] == ["a", "b", "c"]
    assert [line[1] for line in said(agent.model.requests[-1]) if line[0] == "tool"] == ["1", "2", "3"]


def test_usage_may_come_alone_and_last(home):
    tokens = Chunk(usage={"input_tokens": 3, "output_tokens": 1})
    agent = home.agent([[Chunk(), "a", tokens, Chunk(finish="stop")]])
    assert agent.run("go").usage == {"input_tokens": 3, "output_tokens": 1}
    assert message(home, agent).usage == {"input_tokens": 3, "output_tokens": 1}


def test_what_the_model_says_in_chunks_is_what_the_log_holds(home):
    agent = home.agent([["a" * 100, *["b"] * 500, "c"]])
    assert agent.run("go").text == "a" * 100 + "b" * 500 + "c"
    chunks = [event.body.chunk["text"] for event in home.stored(agent, "assistant/chunk")]
    assert chunks == ["a" * 100, *["b"] * 500, "c"]
    assert derive_messages(home.stored(agent))[-1].text == "".join(chunks)


def test_a_chunk_that_the_log_cannot_hold_ends_the_turn_in_order(home):
    agent = home.agent([["a", Chunk(usage={"input_tokens": float("nan")})], "fine"])
    result = agent.run("go")
    assert (result.reason, result.error.code) == ("error", "invalid_log")
    assert agent.run("more").text == "fine"
    check([Event.from_dict(event.to_dict()) for event in home.stored(agent)])


def test_a_model_error_of_the_users_own_model_is_retried_by_its_word(home):
    failures = [ModelError("warming up", code="overloaded", retryable=True, retry_after=0.0)]

    class Own:
        max_retries = 1

        def stream(self, request, *, token):
            if failures:
                raise failures.pop()
            yield Chunk(text="warm")
            yield Chunk(finish="stop")

    assert home.agent(Own()).run("go").text == "warm"
