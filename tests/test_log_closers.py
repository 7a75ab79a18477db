"""What closes a log: after a crash, after a stop, at a good end."""

import copy
import itertools
import json

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from logs import Log, calls, examples, lines, prefixes, reasoning, text, valid_logs, words
from naive import brief, naive_repair

from syncagent.errors import InvalidLog
from syncagent.log import (
    Event,
    LogState,
    Phase,
    advance,
    check,
    closers,
    derive_messages,
    dropped,
    pending_inbox,
)
from syncagent.log.closers import closing_bodies, not_dispatched

UNKNOWN, NOT_STARTED = "TOOL_OUTCOME_UNKNOWN", "TOOL_NOT_STARTED"


def added(log):
    """What repair adds to a log by hand, as dicts; the log with it is valid and balanced."""
    events = log.events
    more = closers(check(events))
    assert check(events + more).phase is Phase.IDLE
    return [event.to_dict() for event in more]


def ends(step=1):
    return [("step/end", step), ("turn/end", "interrupted")]


END = [("turn/end", "interrupted")]

CLAIMED = Log().put("u-1").put("u-2").steer("s-1").turn().taken("s-1", "u-1")

REPAIRS = {
    "messages are parked in the order of the claim, each in its list":
        (CLAIMED, [("put", "next_step", "s-1"), ("put", "next_turn", "u-1"), *END]),
    "claims of two steps: only what did not enter":
        (Log().asking().says("x").end_step().steer("s-1").steer("s-2").taken("s-1").taken("s-2"),
         [("put", "next_step", "s-1"), ("put", "next_step", "s-2"), *END]),
    "a claim that entered in part":
        (Log().put("a").steer("b").steer("c").turn().taken("b", "c", "a").step().user("c"),
         [("put", "next_step", "b"), ("put", "next_turn", "a"), *ends()]),
    "what entered in another order than it was claimed":
        (Log().put("a").steer("b").turn().taken("b", "a").step().user("a").says("x").end_step(),
         [("put", "next_step", "b"), *END]),
    "a claim of the second step, while the first one's is left over":
        (Log().put("a").turn().taken("a").step().says("x").end_step().steer("b").taken("b").step().user("b"),
         [("put", "next_turn", "a"), *ends(2)]),
    "a claim in a step, before its first message":
        (Log().put("a").turn().step().header().taken("a"), [("put", "next_turn", "a"), *ends()]),
    "a claim of an earlier turn that was stopped is not parked":
        (Log().put("a").turn().taken("a").end_turn("aborted").turn(), END),
    "a message that was put back and claimed again":
        (Log().put("a").turn().taken("a").end_turn("blocked").steer("a").turn().taken("a"),
         [("put", "next_step", "a"), *END]),
    "a message that repair had parked is parked again":
        (Log().put("a").turn().taken("a").repair().turn().taken("a"), [("put", "next_turn", "a"), *END]),
    "a message that was canceled in the open turn stays canceled":
        (Log().put("a").put("b").turn().taken("a").canceled("b").step().user("a"), ends()),
    "visible text behind white space, over several chunks":
        (Log().asking().chunk("\n").chunk("Hel").chunk("lo").chunk(" "),
         [("says", ("text", "\nHello ")), *ends()]),
    "reasoning alone":
        (Log().asking().chunk("hm", "reasoning"), [("says", ("reasoning", "hm")), *ends()]),
    "reasoning and text in turn":
        (Log().asking().chunk("a", "reasoning").chunk("b", "reasoning").chunk("c").chunk("d", "reasoning"),
         [("says", ("reasoning", "ab"), ("text", "c"), ("reasoning", "d")), *ends()]),
    "white-space blocks are left out":
        (Log().asking().chunk(" ", "reasoning").chunk("c").chunk("\n", "reasoning"),
         [("says", ("text", "c")), *ends()]),
    "what was left out between two runs of one kind doesn't part them":
        (Log().asking().chunk("a").chunk("\n", "reasoning").chunk("b").chunk("{", "tool_call").chunk("c"),
         [("says", ("text", "abc")), *ends()]),
    "a tool call alone is nothing visible":
        (Log().asking().chunk('{"x"', "tool_call", index=0, id="c1", name="bash"), ends()),
    "a header between the chunks of two attempts":
        (Log().asking().header().chunk("no").retry().header("m").chunk("yes"),
         [("says", ("text", "yes")), *ends()]),
    "a kill in the back-off: nothing of the failed attempt":
        (Log().asking().chunk("no").retry(), ends()),
    "three attempts":
        (Log().asking().chunk("a").retry().chunk("b").retry().chunk("c"), [("says", ("text", "c")), *ends()]),
    "text of an earlier step is not recovered again":
        (Log().asking().chunk("a").says("a").end_step().step().chunk(" "), ends(2)),
    "text that became a message is not recovered again":
        (Log().asking().chunk("a").says("a"), ends()),
    "text of a living failed attempt stays uncommitted":
        (Log().asking().chunk("a").end_step(), END),
    "messages, text and the ends":
        (Log().put("a").steer("b").turn().taken("b", "a").step().user("a").chunk("x"),
         [("put", "next_step", "b"), ("says", ("text", "x")), *ends()]),
    "messages, placeholders and the ends":
        (Log().put("a").steer("b").turn().taken("b", "a").step().user("a").says("x", *calls("c1")),
         [("put", "next_step", "b"), ("c1", NOT_STARTED), *ends()]),
    "placeholders in the model's order, not that of the starts":
        (Log().acting("c1", "c2", "c3").call("c3").call("c1"),
         [("c1", UNKNOWN), ("c2", NOT_STARTED), ("c3", UNKNOWN), *ends()]),
    "a result that is there is not added again":
        (Log().acting("c1", "c2", "c3").call("c2").result("c2").result("c1", "DENIED"),
         [("c3", NOT_STARTED), *ends()]),
    "a question that waits at the kill":
        (Log().acting("c1").asked("c1"), [("c1", NOT_STARTED), *ends()]),
    "an allowed call that did not start":
        (Log().acting("c1").asked("c1").decided("c1"), [("c1", NOT_STARTED), *ends()]),
    "an allowed call that started":
        (Log().acting("c1").asked("c1").decided("c1").call("c1"), [("c1", UNKNOWN), *ends()]),
    "a rejected call without its result":
        (Log().acting("c1").asked("c1").decided("c1", "rejected"), [("c1", NOT_STARTED), *ends()]),
    "a read-only call that started":
        (Log().acting("c1").call("c1", effect="read"), [("c1", UNKNOWN), *ends()]),
    "the same call id in another step is another call":
        (Log().acting("c1").call("c1").result("c1").end_step().step().says("y", *calls("c1")),
         [("c1", NOT_STARTED), *ends(2)]),
    "the same call id, finished there and running here":
        (Log().acting("c1").result("c1", "DENIED").end_step().step().says(*calls("c1")).call("c1"),
         [("c1", UNKNOWN), *ends(2)]),
    "an answer without calls": (Log().asking().says("x"), ends()),
    "a cut answer of a stop that did not come to its end":
        (Log().asking().chunk("x").cancel().says("x", interrupted=True), ends()),
    "after lost rows each call without result counts as started":
        (Log().acting("c1", "c2").call("c1").result("c1").gap(), [("c2", UNKNOWN), *ends()]),
    "lost rows while the model was asked":
        (Log().asking().chunk("x").gap(), [("says", ("text", "x")), *ends()]),
    "lost rows of one step say nothing of the next turn's calls":
        (Log().acting("c1").gap().repair().asking("u-2").says(*calls("c1")), [("c1", NOT_STARTED), *ends()]),
    "children and ignorable events change nothing":
        (Log().acting("c1").child("started", call_id="c1").unknown().cancel(),
         [("c1", NOT_STARTED), *ends()]),
    "a repair that stopped behind a park goes on":
        (Log().put("a").put("b").turn().taken("a", "b")
         .put("a", wake=False, synthetic=True), [("put", "next_turn", "b"), *END]),
}


@pytest.mark.parametrize("name", REPAIRS)
def test_a_cold_log_is_closed_by_these_and_no_others(name):
    log, wanted = REPAIRS[name]
    assert brief(added(log)) == wanted


def test_a_repair_stands_at_the_last_event_and_says_that_it_is_one():
    log = Log().put("a").steer("b").turn().taken("b", "a").step().user("a").says("x", *calls("c1"))
    for seq, item in enumerate(added(log), 8):
        assert (item["seq"], item["time"], item["data"]["synthetic"]) == (seq, log.time, True)


def test_a_parked_message_is_the_one_that_was_put():
    message = words("a", "日本", source="build", odd={"x": [1, None]})
    log = Log().put("a", message=message, note="kept", wake=True).turn().taken("a")
    data = added(log)[0]["data"]
    put = {"target": "next_turn", "message": message, "note": "kept"}
    assert data == {**put, "wake": False, "synthetic": True}


def test_a_put_that_says_it_is_not_synthetic_is_parked_by_one_that_is():
    assert added(Log().put("a", synthetic=False).turn().taken("a"))[0]["data"]["synthetic"] is True


def test_parked_messages_go_to_the_head_of_their_lists():
    log = Log().put("u-1").put("u-2").steer("s-1").turn().taken("s-1", "u-1")
    log.put("u-3").steer("s-2").steer("s-3")
    repaired = log.repair().events
    waiting = {target: [m.id for m in found] for target, found in pending_inbox(repaired).items()}
    assert waiting == {"next_step": ["s-1", "s-2", "s-3"], "next_turn": ["u-1", "u-2", "u-3"]}
    assert dropped(repaired) == []


def test_parked_messages_of_two_crashes_keep_their_order():
    log = Log().put("a").put("b").put("c").turn().taken("a", "b").repair().turn().taken("b").repair()
    assert [message.id for message in pending_inbox(log.events)["next_turn"]] == ["b", "a", "c"]


def test_a_recovered_answer_has_the_usage_that_was_seen_in_its_attempt():
    log = Log().asking().chunk("x", usage={"input_tokens": 7}).retry()
    log.chunk("a", usage={"input_tokens": 3, "output_tokens": 1}).chunk("b", usage={"output_tokens": 2})
    log.chunk("", "tool_call", usage=None)
    message = added(log)[0]["data"]
    assert message["usage"] == {"input_tokens": 3, "output_tokens": 2}
    assert message["attempt"] == 2
    assert added(Log().asking().chunk("x"))[0]["data"]["usage"] == {}


def test_a_recovered_answers_id_follows_from_turn_step_and_attempt():
    def id_of(log):
        return added(log)[0]["data"]["message"]["id"]

    logs = [
        Log().asking().chunk("x"),
        Log().asking().retry().chunk("x"),
        Log().asking().says("y").end_step().step().chunk("x"),
        Log().whole("a").asking("b").chunk("x"),
    ]
    ids = [id_of(log) for log in logs]
    assert len(set(ids)) == 4 and ids == [id_of(copy.deepcopy(log)) for log in logs]


def wording(log):
    data = added(log)[0]["data"]
    assert data["is_error"] is True and data["error"]["message"]
    return data["content"][0]["text"]


def test_an_unknown_outcome_tells_what_may_be_retried_and_quotes_the_output():
    said = wording(Log().acting("c1").call("c1").output("c1", "copied 41").output("c1", " of 90 files"))
    for part in ("unknown", "read-only", "idempotent", "side effects", "the user", "Do not retry blindly"):
        assert part in said
    assert "copied 41 of 90 files" in said
    assert "recorded before" not in wording(Log().acting("c1").call("c1"))


def test_a_refused_a_cut_and_a_call_that_never_began_are_told_apart():
    """One had its answer before the kill, one may have had an effect, one waited for an answer."""
    log = Log().acting("c1", "c2", "c3").asked("c1").decided("c1", "rejected")
    log.result("c1", "DENIED", "the user refused this call")
    log.asked("c2").decided("c2").call("c2").output("c2", "wrote half").asked("c3")
    said = {item["data"]["call_id"]: str(item["data"]["content"]) for item in added(log)[:2]}
    assert brief(added(log)) == [("c2", UNKNOWN), ("c3", NOT_STARTED), *ends()]
    assert "Do not retry blindly" in said["c2"] and "wrote half" in said["c2"]
    assert "never started" in said["c3"] and "blindly" not in said["c3"]
    told = derive_messages(log.repair().events)
    texts = [message.content[0]["content"][0]["text"] for message in told if message.role == "tool"]
    assert len(set(texts)) == 3 and texts[0] == "the user refused this call"


def test_a_stop_at_a_question_ends_the_turn_and_a_refusal_does_not():
    """The same question; what the log says of the turn is not the same."""
    stopped = Log().acting("c1").asked("c1").cancel().decided("c1", "cancelled")
    more = closers(check(stopped.events), "aborted")
    assert brief([event.to_dict() for event in more]) == [
        ("c1", "ABORTED_BEFORE_DISPATCH"), ("step/end", 1), ("turn/end", "aborted")
    ]
    refused = Log().acting("c1").asked("c1").decided("c1", "rejected").result("c1", "DENIED").end_step()
    refused.step().says("Then not.").end_step().end_turn()
    assert check(refused.events).phase is Phase.IDLE
    assert refused.events[-1].body.kind == "completed"


def test_output_of_another_call_is_not_quoted():
    log = Log().acting("c1", "c2").call("c1").call("c2").output("c2", "mine").output("c1", "yours")
    first, second = added(log)[:2]
    assert "yours" in str(first) and "mine" not in str(first)
    assert "mine" in str(second) and "yours" not in str(second)


def test_a_call_that_never_started_may_be_retried():
    said = wording(Log().acting("c1"))
    assert "never started" in said and "may be retried if it is still needed" in said
    assert "blindly" not in said


# -- properties ---------------------------------------------------------------------------------------


@examples(50)
@given(valid_logs(kills=0.04))
def test_every_beginning_closes_to_a_valid_log_as_the_rules_say(events):
    """A second repair adds nothing, and the same log gets the same bytes."""
    dicts = [event.to_dict() for event in events]
    whole, read_back = LogState(), LogState()
    for n in range(len(events) + 1):
        state = copy.deepcopy(whole)
        more = closers(state)
        assert brief([event.to_dict() for event in more]) == naive_repair(dicts[:n])
        assert lines(more) == lines(closers(read_back))
        assert state == whole == read_back
        assert all(event.time == state.time and event.body.synthetic for event in more)
        for closer in more:
            advance(state, closer)
        assert state.phase is Phase.IDLE
        assert closers(state) == []
        if n < len(events):
            advance(whole, events[n])
            advance(read_back, Event.from_dict(json.loads(json.dumps(dicts[n]))))


@pytest.mark.parametrize("name", REPAIRS)
def test_closers_in_any_other_order_are_refused(name):
    state = check(REPAIRS[name][0].events)
    bodies = closing_bodies(state)
    assert len(bodies) <= 6
    for order in itertools.permutations(range(len(bodies))):
        events = [
            Event(seq=state.seq + n, time=state.time, body=bodies[place]) for n, place in enumerate(order, 1)
        ]
        if list(order) == sorted(order):
            check(events, copy.deepcopy(state))
            continue
        with pytest.raises(InvalidLog):
            check(events, copy.deepcopy(state))


@examples(30)
@given(valid_logs(kills=0.04), st.randoms(use_true_random=False))
def test_closers_of_any_beginning_are_refused_in_another_order(events, rng):
    """Two of them change places, at random; nothing in between is taken for a closed log."""
    for beginning in prefixes(events):
        state = check(beginning)
        bodies = closing_bodies(state)
        if len(bodies) < 2:
            continue
        first, second = sorted(rng.sample(range(len(bodies)), 2))
        bodies[first], bodies[second] = bodies[second], bodies[first]
        with pytest.raises(InvalidLog):
            check((Event(seq=state.seq + n, time=state.time, body=b) for n, b in enumerate(bodies, 1)), state)
        assert state.phase is not Phase.IDLE


@pytest.mark.parametrize("name", REPAIRS)
def test_none_of_the_closers_can_be_left_out_or_come_twice(name):
    state = check(REPAIRS[name][0].events)
    bodies = closing_bodies(state)

    def balanced(bodies):
        events = [Event(seq=state.seq + n, time=state.time, body=body) for n, body in enumerate(bodies, 1)]
        try:
            return check(events, copy.deepcopy(state)).phase is Phase.IDLE
        except InvalidLog:
            return False

    assert balanced(bodies)
    for n in range(len(bodies)):
        assert not balanced(bodies[:n] + bodies[n + 1:])
        assert not balanced(bodies[:n + 1] + bodies[n:])


# -- a living turn ------------------------------------------------------------------------------------


@pytest.mark.parametrize("reason", ["completed", "aborted", "error", "blocked", "max_tokens"])
def test_a_living_turn_does_not_close_over_a_call_that_runs(reason):
    log = Log().acting("c1", "c2").call("c1").call("c2").result("c2")
    state = check(log.events)
    with pytest.raises(InvalidLog) as caught:
        closers(state, reason)
    assert (caught.value.rule, caught.value.seq) == ("L7", state.seq + 1)
    assert state == check(log.events)
    for end, rule in ((log.end_step, "L7"), (log.end_turn, "L2")):
        end()
        with pytest.raises(InvalidLog) as caught:
            check(log.events)
        assert caught.value.rule == rule
        log.dicts.pop()


def test_a_stopped_turn_keeps_what_was_shown_and_answers_for_what_did_not_start():
    shown = closers(check(Log().asking().chunk("Hel").chunk("{", "tool_call").events), "aborted")
    assert brief([event.to_dict() for event in shown])[0] == ("says", ("text", "Hel"))
    assert shown[0].body.interrupted and not any(event.body.synthetic for event in shown)
    left = closers(check(Log().acting("c1", "c2").call("c1").result("c1", "ABORTED").events), "aborted")
    assert brief([event.to_dict() for event in left]) == [
        ("c2", "ABORTED_BEFORE_DISPATCH"), ("step/end", 1), ("turn/end", "aborted")
    ]


def test_a_failed_attempt_commits_no_message():
    reason = {"kind": "error", "error": {"code": "overloaded", "message": "busy"}}
    events = closers(check(Log().asking().chunk("Hel").events), reason)
    assert [event.type for event in events] == ["step/end", "turn/end"]
    assert events[-1].data == {"turn": 1, "reason": reason}


def test_a_living_turn_parks_nothing():
    assert [e.type for e in closers(check(CLAIMED.events), "aborted")] == ["turn/end"]


def test_a_living_turn_is_closed_at_a_time_that_never_goes_back():
    state = check(Log().turn().events)
    assert [event.time for event in closers(state, "completed", time=state.time + 5)] == [state.time + 5]
    assert [event.time for event in closers(state, "completed", time=0)] == [state.time]


def test_an_idle_log_needs_no_closers():
    for log in (Log(), Log().whole(), Log().put("x").canceled("x").cancel(), Log().turn().repair()):
        assert closers(check(log.events)) == closers(check(log.events), "aborted") == []


@examples(50)
@given(valid_logs(), st.sampled_from(["aborted", "completed", "error", "blocked", "max_tokens"]))
def test_every_beginning_of_a_living_turn_closes_or_waits_for_a_call(events, reason):
    for beginning in prefixes(events):
        state = check(beginning)
        if state.cut:
            continue  # repair was here
        if any(call.started for call in state.open_calls()):
            with pytest.raises(InvalidLog) as caught:
                closers(state, reason)
            assert caught.value.rule == "L7"
            continue
        more = closers(state, reason)
        assert not any(event.body.synthetic for event in more)
        assert [event.body.kind for event in more if event.type == "turn/end"] == [reason][: len(more)]
        assert check(more, state).phase is Phase.IDLE


def test_a_call_that_a_stop_kept_from_starting_has_an_error_of_its_own():
    state = check(Log().acting("c1").events)
    body = not_dispatched(state, state.calls["c1"])
    assert body.code == "ABORTED_BEFORE_DISPATCH" and body.is_error
    advance(state, Event(seq=state.seq + 1, time=state.time, body=body))


def test_closers_leave_the_state_alone():
    state = check(Log().asking().chunk("a").chunk("b", "reasoning", usage={"output_tokens": 1}).events)
    before = attrs.asdict(state)
    message = closers(state)[0].body
    message.usage["output_tokens"] = 99
    message.message.content.append(text("more"))
    assert attrs.asdict(state) == before
    assert reasoning("b") in closers(state)[0].body.message.content
