"""What the next event's rules depend on, and how it is kept between two opens."""

import json

import pytest
from hypothesis import given
from logs import Log, calls, examples, valid_logs

from syncagent.errors import InvalidLog
from syncagent.log import LogState, Phase, advance, check, closers


def kept(state):
    """The state as the store keeps it: through JSON."""
    return LogState.load(json.loads(json.dumps(state.dump())))


@examples(75)
@given(valid_logs(kills=0.04, noise=0.25))
def test_a_state_that_was_kept_goes_on_like_one_that_was_not(events):
    """At each balanced place of a log, and to its end: the same state, and the same order of the inbox."""
    full, loaded = LogState(), LogState()
    for event in events:
        advance(full, event)
        advance(loaded, event)
        if full.phase is Phase.IDLE:
            loaded = kept(loaded)
            assert loaded.dump() == full.dump()
        assert loaded == full
        assert [*map(list, loaded.pending.values())] == [*map(list, full.pending.values())]
        assert closers(loaded) == closers(full)


def test_a_kept_state_tells_where_the_log_stands():
    log = Log().whole().put("u-2", "日本").steer("s-1", wake=False)
    dump = check(log.events).dump()
    assert (dump["seq"], dump["time"], dump["turn"], dump["ending"]) == (11, log.time, 1, "completed")
    loaded = LogState.load(dump)
    assert list(loaded.pending["next_turn"]) == ["u-2"] and list(loaded.pending["next_step"]) == ["s-1"]
    assert loaded.pending["next_step"]["s-1"].wake is False


def test_the_last_header_is_kept_without_its_numbers():
    log = Log().asking().header("m-1").says("x").end_step().end_turn()
    header = check(log.events).dump()["header"]
    assert header == {"model": "m-1", "provider": "openai", "params": {}, "system": "Be brief.", "tools": []}
    log.asking("u-2").header("m-2", tools=[{"name": "bash"}], odd=1).says("x").end_step().end_turn()
    assert check(log.events).header["model"] == "m-2"
    assert check(log.events).header["odd"] == 1


def test_an_empty_log_has_a_state_to_keep():
    assert kept(LogState()) == LogState.load({}) == LogState()
    assert check([]).dump()["ending"] is None


def test_a_state_with_an_open_turn_is_not_kept():
    for log in (Log().turn(), Log().asking(), Log().acting("c1")):
        with pytest.raises(AssertionError):
            check(log.events).dump()
        with pytest.raises(AssertionError):
            check(log.events).kept()


def test_what_is_kept_of_a_state_is_not_changed_by_what_comes_after():
    log = Log().whole().put("a").steer("b")
    state = check(log.events)
    kept, before = state.kept(), state.dump()
    more = log.canceled("a").put("c").turn().taken("b").step().header("other").end_step().end_turn()
    check(more.events[kept.seq:], state)
    assert kept.dump() == before != state.dump()
    assert kept == check(log.events[: kept.seq])


def test_a_kept_state_that_somebody_damaged_is_refused():
    with pytest.raises(InvalidLog):
        LogState.load({"seq": 4, "pending": [{"target": "next_turn"}]})


def test_a_dump_is_not_changed_by_what_comes_after():
    state = check(Log().put("a").events)
    dump = state.dump()
    before = json.dumps(dump)
    check(Log().put("a").canceled("a").put("b").events[1:], state)
    assert json.dumps(dump) == before


def test_parked_messages_are_kept_at_the_head():
    log = Log().put("a").put("b").turn().taken("a").put("c").repair()
    assert list(kept(check(log.events)).pending["next_turn"]) == ["a", "b", "c"]


def test_open_calls_stand_in_the_models_order():
    log = Log().acting("c3", "c1", "c2").call("c2").result("c1", "DENIED")
    state = check(log.events)
    assert [(call.id, call.name, call.started) for call in state.open_calls()] == [
        ("c3", "bash", False), ("c2", "bash", True)
    ]


def test_a_phase_is_its_plain_word():
    assert f"{Phase.ACTING}" == str(Phase.ACTING) == "acting" == Phase.ACTING


def test_nothing_of_a_turn_is_left_in_the_state_after_it():
    busy = Log().acting("c1").asked("c1").decided("c1").call("c1").output("c1").result("c1").end_step()
    busy.step().retry().chunk("x", usage={"output_tokens": 1}).says(*calls("c2")).gap().repair()
    state, plain = check(busy.events), LogState(seq=busy.dicts[-1]["seq"], time=busy.time, turn=1)
    plain.ending = "interrupted"
    assert state == plain
