"""What a turn comes to, and what an open repaired: values that callers keep."""

from typing import Any, Dict, List, Mapping, Optional, Sequence

import attrs

from syncagent.boundary.tools.text import clean
from syncagent.cancel import Cause
from syncagent.errors import SyncagentError
from syncagent.log import Event, Message
from syncagent.log import events as ev

__all__ = ["Failure", "RepairReport", "TurnFailed", "TurnResult", "describe", "error_of"]


@attrs.frozen
class Failure:
    """Why a turn ended badly: a lower-case `code` and a `message` for people."""

    code: str
    message: str

    def __str__(self) -> str:
        return f"{self.message} [{self.code}]"


class TurnFailed(SyncagentError):
    """A turn ended otherwise than completed; `result` is its `TurnResult`."""

    def __init__(self, result: "TurnResult") -> None:
        super().__init__(result)
        self.result = result

    def __str__(self) -> str:
        why = f": {self.result.error}" if self.result.error else ""
        return f"the turn ended as {self.result.reason}{why}"


@attrs.frozen(kw_only=True)
class TurnResult:
    """How a turn ended.

    `turn` is its number, None if the message was dropped before a turn took it. `reason` is
    "completed", "max_tokens", "blocked", "error" or "aborted". `text` is the final answer, None
    unless the turn completed; `partial_text` what was streamed if it did not, or None. `cause` says
    who stopped an aborted turn. `dropped` are the messages that its stop dropped unrun. `usage` are
    the turn's tokens by the provider's names.
    """

    turn: Optional[int]
    reason: str
    text: Optional[str] = None
    partial_text: Optional[str] = None
    error: Optional[Failure] = None
    cause: Optional[Cause] = None
    dropped: List[Message] = attrs.field(factory=list)
    usage: Dict[str, int] = attrs.field(factory=dict)

    def raise_for_reason(self) -> "TurnResult":
        """Return the result if the turn completed, else raise `TurnFailed`."""
        if self.reason != "completed":
            raise TurnFailed(self)
        return self


def describe(exc: BaseException) -> str:
    """An exception's class and text, also of one whose own `str()` fails."""
    name, text = type(exc).__name__, _text(exc)
    if text is None:
        return f"{name} (its text can't be had)"
    return f"{name}: {text}" if text else name


def error_of(exc: BaseException, *, default: str) -> Dict[str, str]:
    """The code and the message under which the log keeps an exception that has a code.

    Models and tools raise classes of their own, and what is in them may be anything: a code that the
    log can't hold is replaced by `default`.
    """
    code, text = getattr(exc, "code", None), _text(exc)
    if not isinstance(code, str) or not code.strip() or clean(code) != code:
        code = default
    return {"code": code, "message": clean(describe(exc) if text is None else text)}


def _text(exc: BaseException) -> Optional[str]:
    try:
        return str(exc)
    except BaseException:  # of whoever wrote its class, on a thread that has to go on
        return None


def failure_of(reason: Mapping[str, Any]) -> Optional[Failure]:
    """The error in a turn/end's reason."""
    error = reason.get("error")
    return Failure(error["code"], error.get("message", "")) if error else None


@attrs.frozen(kw_only=True)
class RepairReport:
    """What the open of a cold session added: the closers of the turn that had died.

    `unknown` and `not_started` are ids of calls, `text` the streamed text that became a message,
    `parked` the messages that went back into the inbox.
    """

    turn: int
    unknown: List[str]
    not_started: List[str]
    text: str
    parked: List[Message]
    events: Sequence[Event] = attrs.field(repr=False)

    @classmethod
    def of(cls, closers: Sequence[Event]) -> Optional["RepairReport"]:
        """The report on these closers; None if there are none."""
        if not closers:
            return None
        bodies = [event.body for event in closers]
        results = [body for body in bodies if isinstance(body, ev.ToolResult)]
        end = bodies[-1]
        assert isinstance(end, ev.TurnEnd)
        return cls(
            turn=end.turn,
            unknown=[body.call_id for body in results if body.code == "TOOL_OUTCOME_UNKNOWN"],
            not_started=[body.call_id for body in results if body.code == "TOOL_NOT_STARTED"],
            text="".join(body.message.text for body in bodies if isinstance(body, ev.AssistantMessage)),
            parked=[body.message for body in bodies if isinstance(body, ev.InboxPut)],
            events=list(closers),
        )
