"""What the next event's rules depend on, and what each event changes in it.

It judges nothing: `grammar.advance` asks the rules first and only then applies the change. Pure.
"""

import enum
from typing import Any, Callable, Dict, List, Mapping, Optional, Type

import attrs

from syncagent.log import events as ev
from syncagent.log.events import Body, Event, Message
from syncagent.log.shown import Shown

__all__ = ["Call", "Claim", "EFFECTS", "LogState", "Phase", "header_of", "message_id", "recovered_message"]


class Phase(str, enum.Enum):
    """Where a log stands. A member equals its plain word."""

    IDLE = "idle"
    TURN = "turn"
    ASKING = "asking"
    ACTING = "acting"

    def __str__(self) -> str:
        return str(self.value)


@attrs.define
class Call:
    """One requested call of the open step."""

    id: str
    name: str
    started: bool = False
    closed: bool = False
    approval: Optional[str] = None  # "asked", then the decision
    output: List[str] = attrs.field(factory=list)  # the texts of its tool/chunk events


@attrs.define
class Claim:
    """One message that the open turn took out of the inbox."""

    put: ev.InboxPut
    entered: bool = False
    parked: bool = False

    @property
    def waiting(self) -> bool:
        return not (self.entered or self.parked)


@attrs.define
class LogState:
    """All that the next event's rules depend on; `advance` alone changes it.

    `pending` holds the inbox by target, in order; `calls` and `claims` keep the model's order and the
    order of the claim.
    """

    seq: int = 0
    time: int = 0
    phase: Phase = Phase.IDLE
    turn: int = 0  # the open turn, or the last one
    ending: Optional[str] = None  # how the last closed turn ended
    header: Optional[Dict[str, Any]] = None  # the last request/header, without turn and step
    pending: Dict[str, Dict[str, ev.InboxPut]] = attrs.field(
        factory=lambda: {"next_step": {}, "next_turn": {}}
    )
    # of the open turn
    step: int = 0
    claims: Dict[str, Claim] = attrs.field(factory=dict)
    closing: bool = False  # a closer that repair wrote has been seen
    gap: bool = False  # the open step lost rows
    cut: bool = False  # a synthetic event has been seen: only synthetic ones follow
    # of the open step
    entered: bool = False  # a user/message is in it
    calls: Dict[str, Call] = attrs.field(factory=dict)
    # of the open attempt
    attempt: int = 1
    chunked: bool = False
    shown: Shown = attrs.field(factory=Shown)
    usage: Dict[str, Any] = attrs.field(factory=dict)

    @property
    def begun(self) -> bool:
        """Whether the open step's request has begun: at its first chunk, retry or message."""
        return self.chunked or self.attempt > 1 or self.phase is Phase.ACTING

    def waiting_claim(self) -> Optional[Claim]:
        """The first message that the open turn claimed and that neither entered nor was parked."""
        return next((claim for claim in self.claims.values() if claim.waiting), None)

    def open_calls(self) -> List[Call]:
        """The calls of the open step without a result, in the model's order."""
        return [call for call in self.calls.values() if not call.closed]

    def ran(self, call: Call) -> bool:
        """Whether the call's body may have run: its tool/call is there, or could be among lost rows."""
        return call.started or self.gap

    def kept(self) -> "LogState":
        """A balanced state as it stands: what comes later doesn't change it. Cheap, unlike its `dump`."""
        assert self.phase is Phase.IDLE, "only a balanced log has a state to keep"
        return LogState(
            seq=self.seq,
            time=self.time,
            turn=self.turn,
            ending=self.ending,
            header=self.header,
            pending={target: dict(puts) for target, puts in self.pending.items()},
        )

    def dump(self) -> Dict[str, Any]:
        """A balanced state as JSON, for `load`; an open turn has none."""
        assert self.phase is Phase.IDLE, "only a balanced log has a state to keep"
        return {
            "seq": self.seq,
            "time": self.time,
            "turn": self.turn,
            "ending": self.ending,
            "header": self.header,
            "pending": [put.to_dict() for puts in self.pending.values() for put in puts.values()],
        }

    @classmethod
    def load(cls, data: Mapping[str, Any]) -> "LogState":
        """The state that `dump` gave; `{}` is that of an empty log."""
        state = cls(
            seq=data.get("seq", 0),
            time=data.get("time", 0),
            turn=data.get("turn", 0),
            ending=data.get("ending"),
            header=data.get("header"),
        )
        for item in data.get("pending", ()):
            body = Event.from_dict({"seq": state.seq, "time": 0, "type": "inbox/put", "data": item}).body
            assert isinstance(body, ev.InboxPut)
            state.pending[body.target][body.message.id] = body
        return state


# -- what each event changes; nothing here raises -------------------------------------------------------


def _do_put(state: LogState, body: ev.InboxPut) -> None:
    key, queue = body.message.id, state.pending[body.target]
    if not body.synthetic:
        queue[key] = body
        return
    # Parked again: at the head of its list, behind those that this repair has parked before.
    parked = {k for k, claim in state.claims.items() if claim.parked}
    state.claims[key].parked = True
    head = {k: put for k, put in queue.items() if k in parked}
    tail = {k: put for k, put in queue.items() if k not in parked}
    state.pending[body.target] = {**head, key: body, **tail}


def _do_taken(state: LogState, body: ev.InboxTaken) -> None:
    for key in body.ids:
        queue = next(puts for puts in state.pending.values() if key in puts)
        put = queue.pop(key)
        if body.outcome == "claimed":
            state.claims[key] = Claim(put)


def _do_turn_start(state: LogState, body: ev.TurnStart) -> None:
    state.turn = body.turn


def _do_step_start(state: LogState, body: ev.StepStart) -> None:
    state.step = body.step


def _do_user_message(state: LogState, body: ev.UserMessage) -> None:
    state.entered = True
    state.claims[body.message.id].entered = True


def _do_header(state: LogState, body: ev.RequestHeader) -> None:
    state.header = header_of(body)


def _do_chunk(state: LogState, body: ev.AssistantChunk) -> None:
    state.chunked = True
    if body.chunk["kind"] != "tool_call":
        state.shown.add(body.chunk["kind"], body.chunk["text"])
    state.usage.update(body.chunk.get("usage") or {})


def _do_retry(state: LogState, body: ev.ModelRetry) -> None:
    state.attempt = body.attempt
    _drop_attempt(state)


def _do_assistant_message(state: LogState, body: ev.AssistantMessage) -> None:
    state.calls = {call["id"]: Call(id=call["id"], name=call["name"]) for call in body.message.calls}
    _drop_attempt(state)


def _drop_attempt(state: LogState) -> None:
    state.chunked, state.shown, state.usage = False, Shown(), {}


def _do_approval_asked(state: LogState, body: ev.ApprovalAsked) -> None:
    state.calls[body.call_id].approval = "asked"


def _do_approval_decided(state: LogState, body: ev.ApprovalDecided) -> None:
    state.calls[body.call_id].approval = body.decision


def _do_tool_call(state: LogState, body: ev.ToolCall) -> None:
    state.calls[body.call_id].started = True


def _do_tool_chunk(state: LogState, body: ev.ToolChunk) -> None:
    state.calls[body.call_id].output.append(body.text)


def _do_tool_result(state: LogState, body: ev.ToolResult) -> None:
    state.calls[body.call_id].closed = True


def _do_gap(state: LogState, body: ev.LogGap) -> None:
    state.gap = state.phase is Phase.ACTING


# What was open is forgotten, so that a balanced state is the same whether it was folded or loaded.


def _do_step_end(state: LogState, body: ev.StepEnd) -> None:
    state.calls, state.attempt = {}, 1
    state.entered = state.gap = False
    _drop_attempt(state)


def _do_turn_end(state: LogState, body: ev.TurnEnd) -> None:
    state.ending, state.step = body.kind, 0
    state.claims, state.cut, state.closing = {}, False, False


EFFECTS: Mapping[Type[Body], Callable[[LogState, Any], None]] = {
    ev.InboxPut: _do_put,
    ev.InboxTaken: _do_taken,
    ev.TurnStart: _do_turn_start,
    ev.StepStart: _do_step_start,
    ev.UserMessage: _do_user_message,
    ev.RequestHeader: _do_header,
    ev.AssistantChunk: _do_chunk,
    ev.ModelRetry: _do_retry,
    ev.AssistantMessage: _do_assistant_message,
    ev.ApprovalAsked: _do_approval_asked,
    ev.ApprovalDecided: _do_approval_decided,
    ev.ToolCall: _do_tool_call,
    ev.ToolChunk: _do_tool_chunk,
    ev.ToolResult: _do_tool_result,
    ev.LogGap: _do_gap,
    ev.StepEnd: _do_step_end,
    ev.TurnEnd: _do_turn_end,
}


def header_of(body: ev.RequestHeader) -> Dict[str, Any]:
    """What a request says, without the place where it was said: `LogState.header` compares by it."""
    return {key: value for key, value in body.to_dict().items() if key not in ("turn", "step")}


def message_id(state: LogState) -> str:
    """The id of the open attempt's assistant message: it follows from turn, step and attempt."""
    return f"a-{state.turn}-{state.step}-{state.attempt}"


def recovered_message(state: LogState) -> Message:
    """What the open attempt has shown, as a message."""
    return Message(id=message_id(state), role="assistant", content=state.shown.blocks())
