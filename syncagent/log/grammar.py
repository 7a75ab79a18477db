"""The machine that decides which event may follow which. Nothing else decides it.

Every append, every open, every test and `syncagent verify` call `advance`. It reads one table, then
the rules of the event's type; when a rule is broken it raises `InvalidLog` and has changed nothing.
Pure: no clock, no thread, no file.

A session is idle, or in a turn; a turn is a row of steps; a step asks the model, then acts on its
calls:

    idle ── turn/start ──> turn ── step/start ──> asking ── assistant/message ──> acting
      ^                    │  ^                     │                               │
      └───── turn/end ─────┘  └────── step/end ─────┴─────────── step/end ──────────┘

The rules, whose ids appear in errors:

    L1   seq is contiguous, time never goes back, data is JSON that reads back equal
    L2   an event stands only where the table allows it
    L3   turn numbers go up by one from 1; one turn is open at a time
    L4   step numbers go up by one from 1 in their turn, attempts in their step; events carry them
    L5   a tool/call starts a call that this step's message requested, once, if nobody refused it
    L6   a tool/result closes a requested call, once; without a tool/call it is an error that says so
    L7   a step ends with no open call
    L8   synthetic events close a turn, in one order, and nothing else follows them
    L9   an assistant message holds a call or something visible; a cut one holds no call
    L10  a message is put, taken and entered once at a time
"""

from typing import Any, Callable, FrozenSet, Iterable, Mapping, Optional, Tuple, Type

import attrs

from syncagent.errors import InvalidLog
from syncagent.log import events as ev
from syncagent.log.events import Body, Event
from syncagent.log.state import EFFECTS, Call, LogState, Phase

__all__ = ["advance", "check"]

IDLE, TURN, ASKING, ACTING = Phase.IDLE, Phase.TURN, Phase.ASKING, Phase.ACTING
ANYWHERE = {IDLE: IDLE, TURN: TURN, ASKING: ASKING, ACTING: ACTING}

#: type -> {where it may stand: where the log stands after it}
TABLE: Mapping[Type[Body], Mapping[Phase, Phase]] = {
    ev.InboxPut: ANYWHERE,
    ev.InboxTaken: ANYWHERE,
    ev.CancelRequested: ANYWHERE,
    ev.CancelSettled: {TURN: TURN, ASKING: ASKING, ACTING: ACTING},
    ev.SubagentStarted: ANYWHERE,
    ev.SubagentEnded: ANYWHERE,
    ev.TurnStart: {IDLE: TURN},
    ev.StepStart: {TURN: ASKING},
    ev.UserMessage: {ASKING: ASKING},
    ev.RequestHeader: {ASKING: ASKING},
    ev.AssistantChunk: {ASKING: ASKING},
    ev.ModelRetry: {ASKING: ASKING},
    ev.AssistantMessage: {ASKING: ACTING},
    ev.ApprovalAsked: {ACTING: ACTING},
    ev.ApprovalDecided: {ACTING: ACTING},
    ev.ToolCall: {ACTING: ACTING},
    ev.ToolChunk: {ACTING: ACTING},
    ev.ToolResult: {ACTING: ACTING},
    ev.StepEnd: {ASKING: TURN, ACTING: TURN},
    ev.TurnEnd: {TURN: IDLE},
    ev.LogGap: {TURN: TURN, ASKING: ASKING, ACTING: ACTING},
}

#: type -> which numbers of the open turn, step and attempt it carries; those that open one carry the next.
NUMBERS: Mapping[Type[Body], Tuple[str, ...]] = {
    body: tuple(
        name
        for name, opens in (("turn", ev.TurnStart), ("step", ev.StepStart), ("attempt", ev.ModelRetry))
        if name in attrs.fields_dict(body) and body is not opens
    )
    for body in TABLE
}

#: What repair may write, in the order in which it must (see `closers`).
CLOSERS: Tuple[Type[Body], ...] = (ev.InboxPut, ev.AssistantMessage, ev.ToolResult, ev.StepEnd, ev.TurnEnd)
#: The two codes that only a repair may give to a call.
REPAIR_CODES: FrozenSet[str] = frozenset({"TOOL_OUTCOME_UNKNOWN", "TOOL_NOT_STARTED"})


class _Broken(Exception):
    """A rule is broken: (rule, text)."""


def check(events: Iterable[Event], state: Optional[LogState] = None) -> LogState:
    """Advance over all events, from `state` or from an empty log; return the state.

    Raises `InvalidLog` at the first event that breaks a rule; a given `state` then stands before it.
    """
    state = LogState() if state is None else state
    for event in events:
        advance(state, event)
    return state


def advance(state: LogState, event: Event) -> LogState:
    """Take one more event into `state` and return it.

    Raises `InvalidLog` with the rule that the event breaks; the state is then as before.
    """
    body = event.body
    try:
        _check_place(state, event)
        _check_synthetic(state, body)
        rules = RULES.get(type(body))
        if rules is not None:
            rules(state, body)
    except _Broken as exc:
        raise InvalidLog(exc.args[0], event.seq, f"{event.type}: {exc.args[1]}") from None
    # From here on nothing raises.
    if body.synthetic:
        state.cut = True
        state.closing = state.closing or type(body) in CLOSERS
    effect = EFFECTS.get(type(body))
    if effect is not None:
        effect(state, body)
    state.seq, state.time = event.seq, event.time
    if not isinstance(body, ev.Unknown):
        state.phase = TABLE[type(body)][state.phase]
    return state


# -- rules that hold for every event ------------------------------------------------------------------


def _need(condition: object, rule: str, text: str) -> None:
    if not condition:
        raise _Broken(rule, text)


def _check_place(state: LogState, event: Event) -> None:
    """L1, L2 and L4. Its texts are made only when they are needed: most events are chunks of a stream."""
    body = event.body
    if event.seq != state.seq + 1:
        raise _Broken("L1", f"its seq is {event.seq}, not {state.seq + 1}")
    if event.time < state.time:
        raise _Broken("L1", f"its time {event.time} is before {state.time}")
    event.text  # raises L1 unless data reads back equal
    if isinstance(body, ev.Unknown):
        why = "this build doesn't know the type: upgrade syncagent to read this log"
        _need(body.ignorable, "L2", why)
        return
    if state.phase not in TABLE[type(body)]:
        raise _Broken("L2", f"it can't stand in phase {state.phase}")
    for name in NUMBERS[type(body)]:
        number, is_open = getattr(body, name), getattr(state, name)
        if number != is_open and number is not None:
            raise _Broken("L4", f"it carries {name} {number}; {name} {is_open} is open")


def _check_synthetic(state: LogState, body: Body) -> None:
    """L8: what repair wrote is marked, closes an open turn, and stands in one order to its end."""
    if not body.synthetic:
        _need(not state.cut, "L8", "only synthetic events follow a synthetic one in its turn")
        _need(not isinstance(body, ev.LogGap), "L8", "a gap is always synthetic")
        return
    _need(state.phase is not IDLE, "L8", "a synthetic event stands only in an open turn")
    if isinstance(body, ev.LogGap):
        _need(not state.closing, "L8", "a gap stands before the first closer")
    if isinstance(body, (ev.LogGap, ev.Unknown)):
        return
    _need(type(body) in CLOSERS, "L8", "repair never writes this type")
    claim = state.waiting_claim()
    if isinstance(body, ev.InboxPut):
        first = claim is not None and claim.put.message.id == body.message.id
        _need(first, "L8", "it doesn't park the first claimed message that did not enter")
        assert claim is not None
        same = body.target == claim.put.target and body.message == claim.put.message and not body.wake
        _need(same, "L8", "it doesn't park the message as it was put, with wake false")
    else:
        _need(claim is None, "L8", "a claimed message is neither entered nor parked")


# -- rules by type ------------------------------------------------------------------------------------


def _put(state: LogState, body: ev.InboxPut) -> None:
    key = body.message.id
    _need(body.message.role == "user", "L10", f"message {key!r} is no user's message")
    _need(not any(key in puts for puts in state.pending.values()), "L10", f"{key!r} is pending already")
    if not body.synthetic:
        _need(key not in state.claims, "L10", f"{key!r} is claimed by the open turn")


def _taken(state: LogState, body: ev.InboxTaken) -> None:
    for key in body.ids:
        _need(any(key in puts for puts in state.pending.values()), "L10", f"{key!r} is not pending")
    _need(len(set(body.ids)) == len(body.ids), "L10", "it takes a message twice")
    if body.outcome == "claimed":
        between = state.phase is TURN or (state.phase is ASKING and not state.entered and not state.begun)
        _need(between, "L2", "a claim stands between steps, or before a step's first message and request")


def _turn_start(state: LogState, body: ev.TurnStart) -> None:
    _need(body.turn == state.turn + 1, "L3", f"it is turn {body.turn}, not {state.turn + 1}")


def _step_start(state: LogState, body: ev.StepStart) -> None:
    _need(body.step == state.step + 1, "L4", f"it is step {body.step}, not {state.step + 1}")


def _user_message(state: LogState, body: ev.UserMessage) -> None:
    _need(not state.begun, "L2", "the request has begun")
    claim = state.claims.get(body.message.id)
    _need(claim is not None, "L10", f"the open turn did not claim {body.message.id!r}")
    assert claim is not None
    _need(not claim.entered, "L10", f"{body.message.id!r} has entered already")
    _need(body.message.role == "user", "L10", "it is no user's message")


def _header(state: LogState, body: ev.RequestHeader) -> None:
    _need(not state.chunked, "L2", "the open attempt has a chunk already")


def _retry(state: LogState, body: ev.ModelRetry) -> None:
    _need(body.attempt == state.attempt + 1, "L4", f"it is attempt {body.attempt}, not {state.attempt + 1}")


def _assistant_message(state: LogState, body: ev.AssistantMessage) -> None:
    message = body.message
    _need(message.role == "assistant", "L9", f"its role is {message.role}")
    _need(message.calls or message.visible, "L9", "it holds neither a call nor anything visible")
    if body.synthetic:
        _need(body.interrupted, "L8", "repair writes only interrupted messages")
        _need(state.shown.visible, "L8", "the open attempt streamed nothing visible")
    if body.interrupted:
        _need(not message.calls, "L9", "a cut message holds no call")
    ids = [call["id"] for call in message.calls]
    _need(all(ids), "L5", "a call has no id")
    _need(len(set(ids)) == len(ids), "L5", "two of its calls have the same id")


def _requested(state: LogState, call_id: str, rule: str) -> Call:
    call = state.calls.get(call_id)
    _need(call is not None, rule, f"this step's message did not request {call_id!r}")
    assert call is not None
    _need(not call.closed, rule, f"call {call_id!r} has its result already")
    return call


def _approval_asked(state: LogState, body: ev.ApprovalAsked) -> None:
    call = _requested(state, body.call_id, "L5")
    _need(not call.started, "L5", f"call {body.call_id!r} has started already")
    _need(call.approval is None, "L5", f"call {body.call_id!r} was asked for already")


def _approval_decided(state: LogState, body: ev.ApprovalDecided) -> None:
    call = _requested(state, body.call_id, "L5")
    _need(call.approval == "asked", "L5", f"nothing is asked for call {body.call_id!r}")


def _tool_call(state: LogState, body: ev.ToolCall) -> None:
    call = _requested(state, body.call_id, "L5")
    _need(not call.started, "L5", f"call {body.call_id!r} has started already")
    _need(call.approval in (None, "allowed"), "L5", f"call {body.call_id!r} is not allowed: {call.approval}")


def _tool_chunk(state: LogState, body: ev.ToolChunk) -> None:
    call = state.calls.get(body.call_id)
    running = call is not None and call.started and not call.closed
    _need(running, "L2", f"call {body.call_id!r} is not between its tool/call and its result")


def _tool_result(state: LogState, body: ev.ToolResult) -> None:
    call = _requested(state, body.call_id, "L6")
    if not state.ran(call):
        _need(body.is_error, "L6", "the body never ran, so it is an error")
        said = body.code in ("ABORTED", "TOOL_OUTCOME_UNKNOWN")
        _need(not said, "L6", f"the body never ran, so it can't be {body.code}")
    else:
        _need(body.code != "TOOL_NOT_STARTED", "L6", "the body has started")
    if body.synthetic:
        _need(body.is_error and body.code in REPAIR_CODES, "L8", "repair gives an error, of its own codes")
        _need(state.open_calls()[0] is call, "L8", "an earlier call of the model's order is still open")
    else:
        _need(body.code not in REPAIR_CODES, "L8", f"only repair gives the code {body.code}")


def _step_end(state: LogState, body: ev.StepEnd) -> None:
    open_ids = [call.id for call in state.open_calls()]
    _need(not open_ids, "L7", f"calls are open: {', '.join(map(repr, open_ids))}")
    if body.synthetic and state.phase is ASKING:
        _need(not state.shown.visible, "L8", "the open attempt's visible text is not recovered")


def _turn_end(state: LogState, body: ev.TurnEnd) -> None:
    interrupted = body.kind == "interrupted"
    _need(interrupted or not body.synthetic, "L8", "a synthetic turn/end is interrupted")
    _need(body.synthetic or not interrupted, "L8", "only repair ends a turn as interrupted")


RULES: Mapping[Type[Body], Callable[[LogState, Any], None]] = {
    ev.InboxPut: _put,
    ev.InboxTaken: _taken,
    ev.TurnStart: _turn_start,
    ev.StepStart: _step_start,
    ev.UserMessage: _user_message,
    ev.RequestHeader: _header,
    ev.ModelRetry: _retry,
    ev.AssistantMessage: _assistant_message,
    ev.ApprovalAsked: _approval_asked,
    ev.ApprovalDecided: _approval_decided,
    ev.ToolCall: _tool_call,
    ev.ToolChunk: _tool_chunk,
    ev.ToolResult: _tool_result,
    ev.StepEnd: _step_end,
    ev.TurnEnd: _turn_end,
}
