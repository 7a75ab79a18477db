"""What is said of a turn's ending and of a repair, to people and to programs."""

import json

import pytest
from log_writer import Log, calls

from syncagent import RepairReport, TurnResult
from syncagent.cancel import Cause
from syncagent.log import check, closers
from syncagent.runtime.result import Failure
from syncagent.surface.cli.report import count, describe_ending, describe_repair, result_object


@pytest.mark.parametrize(
    "result, said",
    [
        (TurnResult(turn=1, reason="completed", text=""), "turn 1 has completed"),
        (TurnResult(turn=2, reason="aborted", cause=Cause.TIMEOUT), "turn 2 was stopped (cause: timeout)"),
        (
            TurnResult(turn=None, reason="aborted", cause=Cause.USER),
            "the message was dropped before a turn took it (cause: user)",
        ),
        (
            TurnResult(turn=1, reason="max_tokens"),
            "turn 1 reached the output limit (max_tokens): its answer is cut",
        ),
        (
            TurnResult(turn=1, reason="error", error=Failure("rate_limit", "slow down")),
            "turn 1 failed: slow down [rate_limit]",
        ),
        (
            TurnResult(turn=1, reason="blocked", error=Failure("limit_steps", "50 steps")),
            "turn 1 was blocked: 50 steps [limit_steps]",
        ),
    ],
)
def test_each_ending_has_its_words(result, said):
    assert describe_ending(result) == said


def died():
    """A log whose process died: one call ran, one had not begun."""
    return Log().asking("m1").says(*calls("c1", "c2")).call("c1")


def test_a_repair_is_told_with_its_figures():
    report = RepairReport.of(closers(check(died().events)))
    said = describe_repair("s1", report)
    assert said == (
        "session s1: turn 1 had died with its process and was closed:"
        " 1 call of unknown outcome, 1 call not started"
    )


def test_a_repair_of_a_turn_that_had_done_nothing_is_short():
    log = Log().put("m1").turn()
    report = RepairReport.of(closers(check(log.events)))
    assert describe_repair("s1", report) == "session s1: turn 1 had died with its process and was closed"


def test_a_parked_message_and_recovered_text_are_told():
    log = Log().asking("m1").chunk("half")
    report = RepairReport.of(closers(check(log.events)))
    assert "4 characters of an answer recovered" in describe_repair("s", report)
    log = Log().put("m1").turn().taken("m1")
    report = RepairReport.of(closers(check(log.events)))
    assert "1 message back in the inbox" in describe_repair("s", report)


def test_the_object_of_a_turn_has_all_fields_and_is_json():
    report = RepairReport.of(closers(check(died().events)))
    result = TurnResult(
        turn=2,
        reason="error",
        partial_text="par",
        error=Failure("overloaded", "busy"),
        dropped=[died().events[0].body.message],
        usage={"input_tokens": 3},
    )
    found = result_object("s1", result, report)
    assert json.loads(json.dumps(found)) == found
    assert found["opened"] == {"turn": 1, "unknown": ["c1"], "not_started": ["c2"], "text": "", "parked": []}
    assert found["dropped"][0]["id"] == "m1"
    del found["opened"], found["dropped"]
    assert found == {
        "session": "s1",
        "turn": 2,
        "reason": "error",
        "text": None,
        "partial_text": "par",
        "error": {"code": "overloaded", "message": "busy"},
        "cause": None,
        "usage": {"input_tokens": 3},
    }
    done = result_object("s1", TurnResult(turn=1, reason="aborted", cause=Cause.USER), None)
    assert (done["cause"], done["error"], done["opened"], done["dropped"]) == ("user", None, None, [])


def test_things_are_counted():
    assert (count(0, "call"), count(1, "call"), count(2, "call")) == ("0 calls", "1 call", "2 calls")
