"""One turn, top to bottom: claim, ask, act, until the model has nothing more to do.

It runs on the driver. Every exit leaves an ending in the log; which one is decided in `run`.
"""

import time
from typing import Any, Callable, Dict, List, Mapping, Optional, Protocol

import attrs

from syncagent.boundary.models.protocol import Model, ModelRequest
from syncagent.boundary.process import Processes
from syncagent.boundary.tools.base import Tool
from syncagent.boundary.tools.text import clean
from syncagent.cancel import CancellationToken, Cancelled, Cause
from syncagent.errors import InvalidLog, ModelError, StoreError
from syncagent.log import Message
from syncagent.log import events as ev
from syncagent.log.folds import add_usage
from syncagent.runtime.calls import Calls
from syncagent.runtime.hooks import (
    Continue,
    HookFailed,
    Hooks,
    PreStep,
    Reject,
    RequestStep,
    TurnStopping,
    ask,
)
from syncagent.runtime.request import Answer, Request
from syncagent.runtime.result import TurnResult, describe, error_of, failure_of
from syncagent.runtime.session import Session
from syncagent.runtime.stopping import Stopping

__all__ = ["Desk", "POINTS", "Turn", "Work"]

Reason = Dict[str, Any]

#: name -> where it is, on the driver's thread with no lock held. Tests stop a turn there; see `Store`.
POINTS: Mapping[str, str] = {
    "turn.begun": "with `turn`: the turn is open and has claimed, nothing else has happened",
    "step.started": "with `turn` and `step`: its messages have entered",
    "request.ready": "with `turn` and `step`: all that the request rests on is durable",
    "step.ended": "with `turn` and `step`: another step follows, and has claimed nothing yet",
    "turn.closing": "with `turn`: nothing more is asked, and it can still be cancelled",
    "turn.handed_over": "with `turn`: nobody can cancel it any more, its ending is not in the log",
    "turn.ended": "with `turn`: its ending is in the log and not yet known to be durable",
}


class Desk(Protocol):
    """What a turn needs of its agent; each method takes the agent's lock for a moment."""

    def claim_next(self) -> List[Message]:
        """Claim what waits for the next step, and log it."""

    def steered(self) -> bool:
        """Whether something waits that keeps the turn going."""

    def put_next(self, text: str) -> None:
        """Put a hook's text into next_step, waking."""

    def hand_over(self) -> bool:
        """Take the turn's token away for good; return whether it was cancelled before."""

    def waits_for(self, text: Optional[str]) -> None:
        """Say what the turn waits for; None for nothing in particular."""


@attrs.frozen(kw_only=True)
class Work:
    """What stays the same through all turns of an agent."""

    session: Session
    model: Model
    tools: Mapping[str, Tool]
    hooks: Hooks
    processes: Processes
    max_steps: int
    max_parallel: int
    points: Callable[..., None]


class _Blocked(Exception):
    """A hook rejected, or a limit was reached: (code, text)."""


@attrs.define(kw_only=True)
class Turn:
    """One turn of an agent; `number` and `claimed` are in the log already."""

    work: Work
    desk: Desk
    number: int
    token: CancellationToken
    stopping: Stopping
    claimed: List[Message]
    dropped: List[Message] = attrs.field(factory=list)
    partial: str = ""  # the text of the last attempt that showed any
    usage: Dict[str, int] = attrs.field(factory=dict)
    escaped: List[BaseException] = attrs.field(factory=list)
    step: int = 0
    cut: bool = False  # the output limit has cut an answer of this turn
    stopped_at: Optional[float] = None  # by the monotonic clock, when its token was cancelled

    def run(self) -> TurnResult:
        """Run the turn and write its ending; return what it came to.

        Raises a `StoreError` when the ending can't be made durable: then only the store is at fault.
        """
        session = self.work.session
        answer = ""
        try:
            self.work.points("turn.begun", turn=self.number)
            answer = self._steps()
            reason: Reason = {"kind": "max_tokens" if self.cut else "completed"}
        except _Blocked as exc:
            reason = {"kind": "blocked", "error": {"code": exc.args[0], "message": exc.args[1]}}
        except BaseException as exc:
            reason = {"kind": "error", "error": _error_of(exc)}
            if not isinstance(exc, (Exception, Cancelled)) and exc not in self.escaped:
                self.escaped.append(exc)
            if isinstance(exc, KeyboardInterrupt):
                self.token.cancel(Cause.USER)
        self.stopping.close()
        self.work.points("turn.closing", turn=self.number)
        # From here on nobody can cancel the turn, also while its ending is being flushed.
        if self.desk.hand_over():
            reason = {"kind": "aborted"}
        elif self.escaped and reason["kind"] != "error":
            reason = {"kind": "error", "error": _error_of(self.escaped[0])}
        self.work.points("turn.handed_over", turn=self.number)
        if reason["kind"] == "aborted":
            self._settled()
        for event in session.end_turn(reason):
            if isinstance(event.body, ev.AssistantMessage):
                add_usage(self.usage, event.body.usage)
        self.work.points("turn.ended", turn=self.number)
        session.flush()  # checkpoint: turn end
        return self._result(reason, answer)

    def _settled(self) -> None:
        """Log how long the stop took, and where."""
        now = time.monotonic()
        self.work.session.append(
            ev.CancelSettled(
                turn=self.number,
                cause=str(self.token.cause),
                ms=round((now - (self.stopped_at or now)) * 1000, 3),
                boundaries=list(self.stopping.settled),
            )
        )

    def _ask(self, name: str, hook: Optional[Callable[..., Any]], view: Any, *kinds: type) -> Any:
        if hook is None:
            return None
        with self.stopping.at("hook", self.token, name=name, body=True):
            return ask(name, hook, view, self.token, *kinds)

    def _checkpoint(self) -> None:
        with self.stopping.at("checkpoint", self.token):
            self.work.session.flush(token=self.token)

    def _prompt(self) -> str:
        system = self.work.hooks.system
        if isinstance(system, str):
            return clean(system)
        with self.stopping.at("system prompt", self.token, body=True):
            return clean(self.work.hooks.prompt(self.token))

    def _steps(self) -> str:
        """Step after step until nothing more is asked; return the final answer."""
        messages = self.claimed
        while True:
            self.step += 1
            answer = self._one_step(messages)
            if not answer.calls and not self.desk.steered():
                self._stopping(answer)
                if not self.desk.steered():
                    return answer.text
            # Before the claim: what waits for the next step is then the next turn's.
            if self.step == self.work.max_steps:
                raise _Blocked("limit_steps", f"the turn has used its {self.step} steps")
            self.work.points("step.ended", turn=self.number, step=self.step)
            messages = self.desk.claim_next()

    def _one_step(self, messages: List[Message]) -> Answer:
        session, hooks = self.work.session, self.work.hooks
        where: Dict[str, Any] = {"turn": self.number, "step": self.step}
        view = PreStep(session=session.id, messages=tuple(messages), **where)
        _accept("pre_step", self._ask("pre_step", hooks.pre_step, view, Reject))
        self.token.raise_if_cancelled()
        session.append(ev.StepStart(**where))
        session.append(*[ev.UserMessage(message=message, **where) for message in messages])
        self.work.points("step.started", **where)
        answer = self._request()
        self.cut = self.cut or answer.cut
        add_usage(self.usage, answer.usage)
        if answer.calls:
            self._act(answer.calls)
        session.append(ev.StepEnd(**where))
        self.token.raise_if_cancelled()
        if self.escaped:
            raise self.escaped[0]
        return answer

    def _request(self) -> Answer:
        session, hooks, model = self.work.session, self.work.hooks, self.work.model
        self.token.raise_if_cancelled()
        request = ModelRequest(
            messages=tuple(session.messages()),
            system=self._prompt(),
            tools=tuple(tool.spec() for tool in self.work.tools.values()),
            params=dict(getattr(model, "params", None) or {}),
        )
        view = RequestStep(session=session.id, turn=self.number, step=self.step, request=request)
        answer = self._ask("request", hooks.request, view, Reject, ModelRequest)
        _accept("request", answer)
        request = answer or request
        sender = Request(
            session=session,
            model=model,
            turn=self.number,
            step=self.step,
            token=self.token,
            stopping=self.stopping,
            status=self.desk.waits_for,
        )
        sender.header(request)
        self._checkpoint()  # of the model request
        self.work.points("request.ready", turn=self.number, step=self.step)
        try:
            return sender.send(request)
        finally:
            self.partial = sender.partial or self.partial

    def _act(self, blocks: List[Dict[str, Any]]) -> None:
        Calls(
            session=self.work.session,
            tools=self.work.tools,
            processes=self.work.processes,
            turn=self.number,
            step=self.step,
            token=self.token,
            max_parallel=self.work.max_parallel,
            stopping=self.stopping,
            escaped=self.escaped,
        ).run(blocks)

    def _stopping(self, answer: Answer) -> None:
        view = TurnStopping(
            session=self.work.session.id, turn=self.number, step=self.step, text=answer.text
        )
        more = self._ask("turn_stopping", self.work.hooks.turn_stopping, view, Reject, Continue)
        _accept("turn_stopping", more)
        if isinstance(more, Continue):
            self.desk.put_next(more.text)

    def _result(self, reason: Reason, answer: str) -> TurnResult:
        kind = reason["kind"]
        return TurnResult(
            turn=self.number,
            reason=kind,
            text=answer if kind == "completed" else None,
            partial_text=(self.partial or None) if kind != "completed" else None,
            error=failure_of(reason),
            cause=self.token.cause if kind == "aborted" else None,
            dropped=list(self.dropped),
            usage=dict(self.usage),
        )


def _accept(name: str, answer: Any) -> None:
    if isinstance(answer, Reject):
        raise _Blocked("rejected", clean(f"{name}: {answer.text}"))


def _error_of(exc: BaseException) -> Dict[str, str]:
    """The code and the text under which the log keeps an exception."""
    if isinstance(exc, ModelError):
        return error_of(exc, default="failed")
    if isinstance(exc, HookFailed):
        code = "hook_failed"
    elif isinstance(exc, StoreError):
        name = type(exc).__name__
        code = "".join("_" + c.lower() if c.isupper() and i else c.lower() for i, c in enumerate(name))
    elif isinstance(exc, InvalidLog):
        code = "invalid_log"
    elif isinstance(exc, Cancelled):
        code = "cancelled"
    else:
        return {"code": "failed", "message": clean(describe(exc))}
    return {"code": code, "message": clean(str(exc))}
