"""The vocabulary of the log: one class per event type, to and from JSON.

It knows the shape of each event, not where one may stand: that is `grammar`'s. Pure: no clock, no
thread, no file. A *body* is what happened; an `Event` is a body with its place in the log.
"""

from typing import Any, ClassVar, Dict, List, Mapping, Optional, Type, Union

import attrs

from syncagent.errors import InvalidLog
from syncagent.log import fields as f
from syncagent.log.fields import Message, is_visible

__all__ = [
    "ApprovalAsked",
    "ApprovalDecided",
    "AssistantChunk",
    "AssistantMessage",
    "Body",
    "CancelRequested",
    "CancelSettled",
    "Event",
    "InboxPut",
    "InboxTaken",
    "LogGap",
    "Message",
    "ModelRetry",
    "RequestHeader",
    "StepEnd",
    "StepStart",
    "SubagentEnded",
    "SubagentStarted",
    "ToolCall",
    "ToolChunk",
    "ToolResult",
    "TurnEnd",
    "TurnStart",
    "Unknown",
    "UserMessage",
    "is_visible",
]


@attrs.frozen(kw_only=True)
class Body:
    """What every body has: `synthetic` on what repair wrote, `extra` for keys of other builds."""

    type: ClassVar[str] = ""

    synthetic: bool = f.json_field(f.truth, default=False)
    extra: Dict[str, Any] = attrs.field(factory=dict, repr=False)

    def to_dict(self) -> Dict[str, Any]:
        return f.write_fields(self)


@attrs.frozen(kw_only=True)
class InboxPut(Body):
    """A user's message was accepted; `wake` says whether it starts work."""

    type = "inbox/put"
    target: str = f.json_field(f.one_of(f.TARGETS))
    message: Message = f.json_field(f.message_object)
    wake: bool = f.json_field(f.truth)


@attrs.frozen(kw_only=True)
class InboxTaken(Body):
    """Messages left the inbox: claimed by a turn, canceled unrun, or replaced."""

    type = "inbox/taken"
    ids: List[str] = f.json_field(f.strings)
    outcome: str = f.json_field(f.one_of(f.OUTCOMES))


@attrs.frozen(kw_only=True)
class CancelRequested(Body):
    """Somebody asked for a stop. An audit record: the turn's own ending doesn't repeat it."""

    type = "cancel/requested"
    cause: str = f.json_field(f.string)
    via: Optional[str] = f.json_field(f.string, default="api", always=True)
    keep_inbox: Optional[bool] = f.json_field(f.truth, default=False, always=True)
    scope: Optional[str] = f.json_field(f.string, default="tree", always=True)


@attrs.frozen(kw_only=True)
class CancelSettled(Body):
    """How long the stop of a turn took: `ms` until everything had ended, and at which boundaries.

    Each of `boundaries` is `{"boundary", "ms", "call_id"?}`, in the order in which they ended. A record
    for people that changes nothing: builds that don't know it may ignore it.
    """

    type = "cancel/settled"
    turn: int = f.json_field(f.integer)
    cause: str = f.json_field(f.string)
    ms: float = f.json_field(f.number)
    boundaries: List[Dict[str, Any]] = f.json_field(f.objects)
    ignorable: Optional[bool] = f.json_field(f.truth, default=True, always=True)


@attrs.frozen(kw_only=True)
class TurnStart(Body):
    type = "turn/start"
    turn: int = f.json_field(f.integer)


@attrs.frozen(kw_only=True)
class StepStart(Body):
    type = "step/start"
    turn: int = f.json_field(f.integer)
    step: int = f.json_field(f.integer)


@attrs.frozen(kw_only=True)
class UserMessage(Body):
    """A claimed message entered the transcript."""

    type = "user/message"
    turn: int = f.json_field(f.integer)
    step: int = f.json_field(f.integer)
    message: Message = f.json_field(f.message_object)


@attrs.frozen(kw_only=True)
class RequestHeader(Body):
    """What the request says beside its messages; written only when it differs from the last one."""

    type = "request/header"
    turn: int = f.json_field(f.integer)
    step: int = f.json_field(f.integer)
    model: str = f.json_field(f.string)
    provider: str = f.json_field(f.string)
    params: Dict[str, Any] = f.json_field(f.mapping)
    system: str = f.json_field(f.string)
    tools: List[Any] = f.json_field(f.values)


@attrs.frozen(kw_only=True)
class AssistantChunk(Body):
    """One delta of the stream: `{"kind", "text"}`, for a call also `index`, `id`, `name`."""

    type = "assistant/chunk"
    turn: int = f.json_field(f.integer)
    step: int = f.json_field(f.integer)
    attempt: int = f.json_field(f.integer)
    chunk: Dict[str, Any] = f.json_field(f.chunk_object)


@attrs.frozen(kw_only=True)
class ModelRetry(Body):
    """The attempt failed; attempt number `attempt` follows after `delay_ms`. Written before the wait."""

    type = "model/retry"
    turn: int = f.json_field(f.integer)
    step: int = f.json_field(f.integer)
    attempt: int = f.json_field(f.integer)
    delay_ms: int = f.json_field(f.integer)
    error: Dict[str, Any] = f.json_field(f.error_object)


@attrs.frozen(kw_only=True)
class AssistantMessage(Body):
    """What the model said in this step; `interrupted` on a prefix, which holds no tool call."""

    type = "assistant/message"
    turn: int = f.json_field(f.integer)
    step: int = f.json_field(f.integer)
    attempt: int = f.json_field(f.integer)
    message: Message = f.json_field(f.message_object)
    usage: Dict[str, Any] = f.json_field(f.mapping)
    interrupted: bool = f.json_field(f.truth, default=False)


@attrs.frozen(kw_only=True)
class ApprovalAsked(Body):
    type = "approval/asked"
    turn: int = f.json_field(f.integer)
    step: int = f.json_field(f.integer)
    call_id: str = f.json_field(f.string)


@attrs.frozen(kw_only=True)
class ApprovalDecided(Body):
    type = "approval/decided"
    turn: int = f.json_field(f.integer)
    step: int = f.json_field(f.integer)
    call_id: str = f.json_field(f.string)
    decision: str = f.json_field(f.one_of(f.DECISIONS))


@attrs.frozen(kw_only=True)
class ToolCall(Body):
    """The body of the call is about to run."""

    type = "tool/call"
    turn: int = f.json_field(f.integer)
    step: int = f.json_field(f.integer)
    call_id: str = f.json_field(f.string)
    name: str = f.json_field(f.string)
    arguments: str = f.json_field(f.string)
    effect: str = f.json_field(f.one_of(f.EFFECTS))


@attrs.frozen(kw_only=True)
class ToolChunk(Body):
    """Output of a call while it runs, coalesced and bounded."""

    type = "tool/chunk"
    turn: int = f.json_field(f.integer)
    step: int = f.json_field(f.integer)
    call_id: str = f.json_field(f.string)
    text: str = f.json_field(f.string)


@attrs.frozen(kw_only=True)
class ToolResult(Body):
    """The call is closed. `error` is `{"code", "message"}`."""

    type = "tool/result"
    turn: int = f.json_field(f.integer)
    step: int = f.json_field(f.integer)
    call_id: str = f.json_field(f.string)
    content: List[Dict[str, Any]] = f.json_field(f.blocks)
    is_error: bool = f.json_field(f.truth)
    error: Optional[Dict[str, Any]] = f.json_field(f.optional(f.error_object), default=None)

    @property
    def code(self) -> Optional[str]:
        return self.error["code"] if self.error is not None else None


@attrs.frozen(kw_only=True)
class SubagentStarted(Body):
    type = "subagent/started"
    call_id: Optional[str] = f.json_field(f.optional(f.string))
    session: str = f.json_field(f.string)
    mode: str = f.json_field(f.string)


@attrs.frozen(kw_only=True)
class SubagentEnded(Body):
    """A child has ended; `reason` as in its own turn/end. One that this build doesn't know is a failure."""

    type = "subagent/ended"
    call_id: Optional[str] = f.json_field(f.optional(f.string))
    session: str = f.json_field(f.string)
    mode: Optional[str] = f.json_field(f.optional(f.string), default=None)
    reason: Union[str, Dict[str, Any]] = f.json_field(f.ending)


@attrs.frozen(kw_only=True)
class LogGap(Body):
    """What a damaged file lost: `rows`. Only salvage writes it."""

    type = "log/gap"
    turn: int = f.json_field(f.integer)
    step: Optional[int] = f.json_field(f.optional(f.integer), default=None)
    rows: int = f.json_field(f.integer)


@attrs.frozen(kw_only=True)
class StepEnd(Body):
    type = "step/end"
    turn: int = f.json_field(f.integer)
    step: int = f.json_field(f.integer)


@attrs.frozen(kw_only=True)
class TurnEnd(Body):
    """The turn is over: `reason` is `{"kind", "error"?}`."""

    type = "turn/end"
    turn: int = f.json_field(f.integer)
    reason: Dict[str, Any] = f.json_field(f.reason_object)

    @property
    def kind(self) -> str:
        return str(self.reason["kind"])


@attrs.frozen(kw_only=True)
class Unknown(Body):
    """A type that this build doesn't know; the log may hold it only if `ignorable` is true."""

    name: str

    @property
    def ignorable(self) -> bool:
        return self.extra.get("ignorable") is True


VOCABULARY: Mapping[str, Type[Body]] = {
    cls.type: cls
    for cls in (
        InboxPut, InboxTaken, CancelRequested, CancelSettled, TurnStart, StepStart, UserMessage,
        RequestHeader, AssistantChunk, ModelRetry, AssistantMessage, ApprovalAsked, ApprovalDecided,
        ToolCall, ToolChunk, ToolResult, SubagentStarted, SubagentEnded, LogGap, StepEnd, TurnEnd,
    )  # fmt: skip
}


@attrs.frozen(kw_only=True)
class Event:
    """A body with its place: `seq` from 1 without a gap, `time` in ms since the epoch."""

    seq: int
    time: int
    body: Body
    _text: Optional[str] = attrs.field(default=None, eq=False, repr=False, alias="_text")

    @property
    def type(self) -> str:
        return self.body.name if isinstance(self.body, Unknown) else self.body.type

    @property
    def data(self) -> Dict[str, Any]:
        """The body as a JSON object."""
        return self.body.to_dict()

    @property
    def text(self) -> str:
        """The JSON text of `data`, made once; raises `InvalidLog` (L1) if it doesn't read back equal."""
        if self._text is None:
            object.__setattr__(self, "_text", _encode(self))
        assert self._text is not None
        return self._text

    def to_dict(self) -> Dict[str, Any]:
        return {"seq": self.seq, "time": self.time, "type": self.type, "data": self.data}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Event":
        """Read one event. Raises `InvalidLog` (L1) when its shape is not the type's."""
        if not isinstance(data, Mapping):
            raise InvalidLog("L1", 0, f"an event is an object, not {f.brief(data)}")
        where = 0
        try:
            where = _read("seq", f.integer, data)
            time = _read("time", f.integer, data)
            name = _read("type", f.string, data)
            return cls(seq=where, time=time, body=_read_body(where, name, _read("data", f.mapping, data)))
        except f.Malformed as exc:
            raise InvalidLog("L1", where, str(exc)) from None

    @classmethod
    def from_text(cls, seq: int, time: int, type: str, text: str) -> "Event":
        """Read one event whose `data` is the JSON `text`, which is kept as it is.

        Raises `InvalidLog` (L1) when it is no JSON object of the type's shape.
        """
        try:
            data = f.decode(text)
        except (ValueError, RecursionError):
            raise InvalidLog("L1", seq, f"the data of {type} is no JSON") from None
        if not isinstance(data, dict):
            raise InvalidLog("L1", seq, f"the data of {type} is {f.brief(data)}, not an object")
        return cls(seq=seq, time=time, body=_read_body(seq, type, data), _text=text)


def _read(key: str, reader: f.Reader, data: Mapping[str, Any]) -> Any:
    try:
        return reader(data.get(key))
    except f.Malformed as exc:
        raise f.Malformed(f"{key} {exc}") from None


def _read_body(seq: int, name: str, data: Dict[str, Any]) -> Body:
    cls = VOCABULARY.get(name)
    try:
        if cls is not None:
            return cls(**f.read_fields(cls, data))
        name.encode("utf-8")
        return Unknown(name=name, synthetic=data.get("synthetic") is True, extra=dict(data))
    except UnicodeEncodeError:
        raise InvalidLog("L1", seq, f"the type {f.brief(name)} is no text") from None
    except f.Malformed as exc:
        raise InvalidLog("L1", seq, f"{name}: {exc}") from None


def _encode(event: Event) -> str:
    """What is checked is what will be read: a body that no open would accept is refused here."""
    body = event.body
    if type(body) is AssistantChunk and not body.synthetic and not body.extra:
        plain = f.plain_chunk(body.turn, body.step, body.attempt, body.chunk)
        if plain is not None:
            return plain
    data = event.data
    try:
        text = f.encode(data)
        back = f.decode(text)
        same = back == data and _read_body(event.seq, event.type, back) == event.body
    except (TypeError, ValueError, RecursionError) as exc:
        raise InvalidLog("L1", event.seq, f"data is no JSON: {exc}") from None
    if not same:
        raise InvalidLog("L1", event.seq, "data does not read back equal from its JSON text")
    return text
