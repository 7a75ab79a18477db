"""What a turn comes to and what an open repaired, as values."""

import pytest

from syncagent.cancel import Cause
from syncagent.errors import SyncagentError
from syncagent.log import Event, check, closers
from syncagent.log import events as ev
from syncagent.runtime.result import (
    Failure,
    RepairReport,
    TurnFailed,
    TurnResult,
    describe,
    error_of,
    failure_of,
)


def test_a_completed_turn_gives_itself_and_any_other_raises():
    done = TurnResult(turn=1, reason="completed", text="x")
    assert done.raise_for_reason() is done
    for reason in ("max_tokens", "blocked", "error", "aborted"):
        failed = TurnResult(turn=1, reason=reason)
        with pytest.raises(TurnFailed, match=f"the turn ended as {reason}$") as caught:
            failed.raise_for_reason()
        assert caught.value.result is failed
        assert isinstance(caught.value, SyncagentError)


def test_a_failure_says_what_and_why():
    result = TurnResult(turn=1, reason="error", error=Failure("rate_limit", "slow down"))
    with pytest.raises(TurnFailed, match=r"the turn ended as error: slow down \[rate_limit\]"):
        result.raise_for_reason()


def test_what_a_result_has_by_default():
    result = TurnResult(turn=None, reason="aborted", cause=Cause.USER)
    assert (result.text, result.partial_text, result.error) == (None, None, None)
    assert (result.dropped, result.usage) == ([], {})


def test_a_reason_of_the_log_becomes_a_failure():
    assert failure_of({"kind": "completed"}) is None
    assert failure_of({"kind": "error", "error": None}) is None
    assert failure_of({"kind": "error", "error": {"code": "c"}}) == Failure("c", "")
    assert failure_of({"kind": "error", "error": {"code": "c", "message": "m"}}) == Failure("c", "m")


def test_an_exception_is_described_whatever_its_str_does():
    class Mute(Exception):
        def __str__(self):
            raise RuntimeError("no")

    assert describe(ValueError("x")) == "ValueError: x"
    assert describe(ValueError()) == "ValueError"
    assert describe(Mute()) == "Mute (its text can't be had)"
    assert error_of(Mute(), default="failed") == {"code": "failed", "message": "Mute (its text can't be had)"}


def test_nothing_repaired_is_no_report():
    assert RepairReport.of([]) is None


def test_a_report_says_which_calls_text_and_messages():
    bodies = [
        ev.InboxPut(target="next_turn", message=_message("m-1", "go"), wake=True),
        ev.InboxPut(target="next_step", message=_message("m-2", "left"), wake=True),
        ev.TurnStart(turn=1),
        ev.InboxTaken(ids=["m-1", "m-2"], outcome="claimed"),
        ev.StepStart(turn=1, step=1),
        ev.UserMessage(turn=1, step=1, message=_message("m-1", "go")),
        ev.AssistantMessage(turn=1, step=1, attempt=1, usage={}, message=_calls("a", "b", "c")),
        ev.ToolCall(turn=1, step=1, call_id="a", name="t", arguments="", effect="read"),
        ev.ToolCall(turn=1, step=1, call_id="b", name="t", arguments="", effect="read"),
        ev.ToolResult(turn=1, step=1, call_id="a", content=[], is_error=False),
    ]
    added = closers(check([Event(seq=n, time=0, body=body) for n, body in enumerate(bodies, 1)]))
    report = RepairReport.of(added)
    assert (report.turn, report.unknown, report.not_started, report.text) == (1, ["b"], ["c"], "")
    assert [message.id for message in report.parked] == ["m-2"]
    assert report.events == added


def test_a_report_gives_back_the_text_that_was_streamed():
    bodies = [
        ev.TurnStart(turn=1),
        ev.StepStart(turn=1, step=1),
        ev.AssistantChunk(turn=1, step=1, attempt=1, chunk={"kind": "text", "text": "Hel"}),
        ev.AssistantChunk(turn=1, step=1, attempt=1, chunk={"kind": "text", "text": "lo"}),
    ]
    added = closers(check([Event(seq=n, time=0, body=body) for n, body in enumerate(bodies, 1)]))
    assert RepairReport.of(added).text == "Hello"


def _message(id, text):
    return ev.Message(id=id, role="user", content=[{"type": "text", "text": text}])


def _calls(*ids):
    blocks = [{"type": "tool_call", "id": id, "name": "t", "arguments": ""} for id in ids]
    return ev.Message(id="a-1-1-1", role="assistant", content=blocks)
