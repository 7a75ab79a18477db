"""Which event may follow which: for each rule the logs that break it, and those that only just keep it."""

import copy
import json
import random
import time

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from logs import Log, examples, prefixes, random_log, reasoning, text, valid_logs
from rule_logs import BROKEN, KEPT, running

from syncagent.errors import InvalidLog
from syncagent.log import Event, LogState, Phase, advance, check, closers
from syncagent.log import events as ev


def snapshot(state):
    """All that a state holds, with the order of its dicts, as text."""
    return json.dumps(attrs.asdict(state), default=str)


def refusal(dicts):
    """The error that the last event gets; all before it are valid, and the state is left as it was."""
    state = check(Event.from_dict(item) for item in dicts[:-1])
    before = snapshot(state)
    with pytest.raises(InvalidLog) as caught:
        advance(state, Event.from_dict(dicts[-1]))
    assert snapshot(state) == before
    assert type(dicts[-1]["seq"]) is not int or caught.value.seq == dicts[-1]["seq"]
    return caught.value


BROKEN_CASES = [(rule, name, log) for rule, table in BROKEN.items() for name, log in table.items()]


@pytest.mark.parametrize(
    "rule, log",
    [(rule, log) for rule, _, log in BROKEN_CASES],
    ids=[f"{rule}: {name}" for rule, name, _ in BROKEN_CASES],
)
def test_a_log_that_breaks_a_rule_is_refused_by_its_id(rule, log):
    error = refusal(log.dicts)
    assert (error.rule, bool(error.text)) == (rule, True)
    assert f"breaks {rule}" in str(error)


@pytest.mark.parametrize("name", KEPT)
def test_a_log_that_only_just_keeps_the_rules_is_accepted(name):
    check(KEPT[name].events)


def test_every_rule_has_logs_that_break_it():
    assert list(BROKEN) == [f"L{n}" for n in range(1, 11)]
    assert min(len(table) for table in BROKEN.values()) >= 6


def test_check_starts_from_an_empty_log_and_goes_on_from_a_state():
    events = Log().whole("a").whole("b").events
    state = check(events[:9])
    assert check(events[9:], state) is state
    assert state == check(events)
    assert check([]) == LogState()


def test_check_leaves_a_given_state_before_the_event_that_breaks_a_rule():
    state = LogState()
    with pytest.raises(InvalidLog) as caught:
        check(Log().turn().step().step().events, state)
    assert (caught.value.rule, caught.value.seq) == ("L2", 3)
    assert state == check(Log().turn().step().events)


def test_the_phases_follow_the_events():
    log = Log().acting("c1").call("c1").result("c1").end_step().end_turn()
    phases = [str(check(beginning).phase) for beginning in prefixes(log.events)]
    assert phases == ["idle"] * 2 + ["turn"] * 2 + ["asking"] * 2 + ["acting"] * 3 + ["turn", "idle"]
    assert Phase.ASKING == "asking"


def test_what_a_living_turn_appends_is_held_to_the_same_shape_as_what_is_read():
    """A body that is made by hand and that no open would accept never gets into a log."""
    state = check(Log().asking().events)
    before = snapshot(state)
    wrong = [
        ev.AssistantChunk(turn=1, step=1, attempt=1, chunk={"kind": "text"}),
        ev.AssistantChunk(turn=1, step=1, attempt=1, chunk={"kind": "song", "text": "la"}),
        ev.AssistantMessage(turn=1, step=1, attempt=1, usage={},
                            message=ev.Message(id="a", role="assistant", content=[{"text": "no type"}])),
        ev.RequestHeader(turn=1, step=1, model="m", provider="p", params=(), system="", tools=[]),
        ev.InboxPut(target="nowhere", message=ev.Message(id="x", role="user", content=[]), wake=True),
        ev.ModelRetry(turn=1, step=1, attempt=2, delay_ms=0.5, error={"code": "x"}),
        ev.CancelRequested(cause="user", extra={"cause": "timeout"}),
        ev.Unknown(name="x", extra={"ignorable": True, "y": (1,)}),
    ]
    for body in wrong:
        with pytest.raises(InvalidLog) as caught:
            advance(state, Event(seq=state.seq + 1, time=state.time, body=body))
        assert caught.value.rule == "L1", body
        assert snapshot(state) == before


# -- properties ---------------------------------------------------------------------------------------


@examples(50)
@given(valid_logs())
def test_a_valid_log_is_accepted_event_by_event(events):
    state = LogState()
    for event in events:
        assert advance(state, event) is state
        assert (state.seq, state.time) == (event.seq, event.time)
    assert state.phase is Phase.IDLE


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats() | st.text(max_size=5)
    | st.sampled_from(["interrupted", "claimed", "canceled", "next_step", "user", "assistant", "c1"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


def places(value, path=()):
    """The paths to everything inside a JSON value."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from places(inner, path + (key,))


def put_at(value, path, new):
    for key in path[:-1]:
        value = value[key]
    if new is not DELETED:
        value[path[-1]] = new
    elif path[-1] != "turn" or "turn" in value:
        del value[path[-1]]


DELETED = object()
MUTATIONS = ["move", "double", "leave out", "swap types", "synthetic", "inside", "inside"]


@st.composite
def mutated_logs(draw):
    """A valid log with one or two changes: an event moved, doubled, left out, or changed inside."""
    dicts = [event.to_dict() for event in draw(valid_logs(kills=0.05))] or Log().turn().dicts
    dicts = copy.deepcopy(dicts)
    for _ in range(draw(st.integers(1, 2))):
        place = draw(st.integers(0, len(dicts) - 1))
        how = draw(st.sampled_from(MUTATIONS))
        if how == "move":
            dicts.insert(draw(st.integers(0, len(dicts) - 1)), dicts.pop(place))
        elif how == "double":
            dicts.insert(place, copy.deepcopy(dicts[place]))
        elif how == "leave out" and len(dicts) > 1:
            del dicts[place]
        elif how == "swap types":
            dicts[place]["type"] = draw(st.sampled_from(sorted(ev.VOCABULARY)))
        elif how == "synthetic":
            dicts[place]["data"]["synthetic"] = not dicts[place]["data"].get("synthetic", False)
        else:
            data = dicts[place]["data"]
            paths = [path for path in places(data) if path]
            put_at(data, draw(st.sampled_from(paths or [("turn",)])), draw(JSON | st.just(DELETED)))
    if draw(st.booleans()):
        for seq, item in enumerate(dicts, 1):  # else most mutations only break L1
            item["seq"], item["time"] = seq, 1000 + seq
    return dicts


@examples(100)
@given(mutated_logs())
def test_advance_refuses_with_a_rule_and_changes_nothing_or_accepts(dicts):
    """And what it refused is as if it had never been tried."""
    state, clean = LogState(), LogState()
    for item in dicts:
        before = snapshot(state)
        try:
            event = Event.from_dict(item)
            advance(state, event)
        except InvalidLog as exc:
            assert exc.rule in BROKEN
            assert snapshot(state) == before
            str(exc).encode()
        else:
            advance(clean, event)
    assert snapshot(state) == snapshot(clean)
    for event in closers(state):
        advance(state, event)
    assert state.phase is Phase.IDLE


@examples(50)
@given(valid_logs(), st.data())
def test_a_refusal_changes_nothing_for_what_follows(events, data):
    """Between any two events of a log every event of another log may be tried and refused."""
    others = random_log(random.Random(data.draw(st.integers(0, 99))))
    at = data.draw(st.integers(0, len(events)))
    state = check(events[:at])
    for other in others:
        before = snapshot(state)
        moved = attrs.evolve(other, seq=state.seq + 1, time=max(other.time, state.time))
        trial = copy.deepcopy(state)
        try:
            advance(trial, moved)
        except InvalidLog:
            assert snapshot(trial) == before
            with pytest.raises(InvalidLog):
                advance(state, moved)
            assert snapshot(state) == before
    check(events[at:], state)
    assert snapshot(state) == snapshot(check(events))


def seconds_for(count):
    log = Log().asking()
    first = log.events
    pieces = [
        Event(seq=len(first) + n, time=log.time, body=ev.AssistantChunk(
            turn=1, step=1, attempt=1, chunk={"kind": "text", "text": "word " * 40}))
        for n in range(1, count + 1)
    ]
    state = check(first)
    start = time.process_time()
    check(pieces, state)
    end = closers(state)
    took = time.process_time() - start
    assert len(end[0].body.message.text) == 200 * count
    return took


@pytest.mark.once
def test_a_long_answer_costs_linear_time():
    small = min(seconds_for(2_000) for _ in range(2))
    large = seconds_for(20_000)
    assert large < 40 * small  # quadratic would be 100 times


@pytest.mark.once
def test_much_output_of_a_call_costs_linear_time():
    def took(count):
        log = running("c1")
        state = check(log.events)
        chunk = ev.ToolChunk(turn=1, step=1, call_id="c1", text="line\n")
        start = time.process_time()
        check((Event(seq=state.seq + 1, time=log.time, body=chunk) for _ in range(count)), state)
        closers(state)
        return time.process_time() - start

    assert took(20_000) < 40 * min(took(2_000) for _ in range(2))


def test_text_of_a_message_keeps_its_blocks():
    state = check(Log().asking().says("a", reasoning("b"), text("c")).events)
    assert state.phase is Phase.ACTING and not state.calls
