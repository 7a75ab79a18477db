"""The one function that closes a log: a turn that ends well, one that was stopped, one that died.

It decides what is missing, `grammar.advance` decides the order. Pure.
"""

from typing import Any, Dict, List, Mapping, Optional, Union

import attrs

from syncagent.errors import InvalidLog
from syncagent.log import events as ev
from syncagent.log.events import Body, Event
from syncagent.log.state import Call, LogState, Phase, recovered_message

__all__ = ["closers", "closing_bodies", "not_dispatched"]

UNKNOWN_TEXT = (
    "The outcome of this call is unknown: the process died after the call had begun and before its result"
    " was recorded. Its effects may have happened in full, in part or not at all. Do not retry blindly."
    " Only an operation that is read-only or idempotent may simply be run again. Before you repeat"
    " anything with side effects, check the state outside, or ask the user."
)
NOT_STARTED_TEXT = (
    "This call never started: the process died before it began, so it had no effect."
    " It may be retried if it is still needed."
)
NOT_DISPATCHED_TEXT = "This call was not run: the turn was stopped before it began, so it had no effect."


def closers(
    state: LogState, reason: Union[str, Mapping[str, Any]] = "interrupted", *, time: Optional[int] = None
) -> List[Event]:
    """The fewest events that close the open turn, in the one order that the grammar accepts.

    `reason` is a word, or an object `{"kind", "error"?}`. With "interrupted" the events are those of
    a crash repair, all synthetic, at the last event's time; with any other reason those of a living
    turn, at `time`. An idle log needs none. Raises `InvalidLog` (L7) when a living turn is to be closed
    over a call that still runs. `state` is not changed.
    """
    bodies = closing_bodies(state, reason)
    when = state.time if time is None else max(time, state.time)
    return [Event(seq=state.seq + n, time=when, body=body) for n, body in enumerate(bodies, 1)]


def closing_bodies(state: LogState, reason: Union[str, Mapping[str, Any]] = "interrupted") -> List[Body]:
    """The same without a place in the log, for a session that stamps them itself."""
    if state.phase is Phase.IDLE:
        return []
    end = {"kind": reason} if isinstance(reason, str) else dict(reason)
    dead = end["kind"] == "interrupted"
    bodies: List[Body] = []
    if dead:
        for claim in state.claims.values():
            if claim.waiting:
                bodies.append(_parked(claim.put))
    # A failed attempt commits no message; one that was cut by a stop or a crash keeps what it showed.
    if state.phase is Phase.ASKING and state.shown.visible and end["kind"] in ("interrupted", "aborted"):
        bodies.append(_cut_message(state, dead))
    bodies.extend(_placeholder(state, call, dead) for call in state.open_calls())
    if state.phase is not Phase.TURN:
        bodies.append(ev.StepEnd(turn=state.turn, step=state.step, synthetic=dead))
    bodies.append(ev.TurnEnd(turn=state.turn, reason=end, synthetic=dead))
    return bodies


def _parked(put: ev.InboxPut) -> Body:
    # Keys of other builds stay, but an explicit `"synthetic": false` must not undo ours.
    extra = {key: value for key, value in put.extra.items() if key != "synthetic"}
    return attrs.evolve(put, wake=False, synthetic=True, extra=extra)


def _cut_message(state: LogState, dead: bool) -> Body:
    return ev.AssistantMessage(
        turn=state.turn,
        step=state.step,
        attempt=state.attempt,
        message=recovered_message(state),
        usage=dict(state.usage),
        interrupted=True,
        synthetic=dead,
    )


def _placeholder(state: LogState, call: Call, dead: bool) -> Body:
    if not dead:
        if call.started:
            raise InvalidLog("L7", state.seq + 1, f"call {call.id!r} still runs: a living turn waits for it")
        return not_dispatched(state, call)
    if not state.ran(call):
        return _result(state, call, "TOOL_NOT_STARTED", NOT_STARTED_TEXT, dead)
    text = UNKNOWN_TEXT
    output = "".join(call.output)
    if output:
        text += "\n\nOutput that was recorded before:\n" + output
    return _result(state, call, "TOOL_OUTCOME_UNKNOWN", text, dead)


def not_dispatched(state: LogState, call: Call) -> Body:
    """The result of a call that a stop kept from starting."""
    return _result(state, call, "ABORTED_BEFORE_DISPATCH", NOT_DISPATCHED_TEXT, False)


def _result(state: LogState, call: Call, code: str, text: str, synthetic: bool) -> Body:
    content: List[Dict[str, Any]] = [{"type": "text", "text": text}]
    return ev.ToolResult(
        turn=state.turn,
        step=state.step,
        call_id=call.id,
        content=content,
        is_error=True,
        error={"code": code, "message": text.split(":")[0] + "."},
        synthetic=synthetic,
    )
