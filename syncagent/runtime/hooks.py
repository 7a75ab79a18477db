"""The places where a host's own code takes part in a turn, and how it is called.

A hook is a boundary: it runs on the driver, with the turn's token, and never under a lock. It gets
one frozen object and `token=`; None from it means go on.
"""

from typing import Any, Callable, Optional, Sequence, Union

import attrs

from syncagent.boundary.models.protocol import ModelRequest
from syncagent.cancel import CancellationToken
from syncagent.errors import SyncagentError
from syncagent.log import Message
from syncagent.runtime.result import describe

__all__ = ["Continue", "HookFailed", "Hooks", "PreStep", "Reject", "RequestStep", "TurnStopping"]


@attrs.frozen
class Reject:
    """Returned by a hook: end the turn as blocked, with this text."""

    text: str


@attrs.frozen
class Continue:
    """Returned by `turn_stopping`: don't stop, go on with this text as the next message."""

    text: str


@attrs.frozen(kw_only=True)
class PreStep:
    """What `pre_step` sees: the messages that the step is about to take in."""

    session: str
    turn: int
    step: int
    messages: Sequence[Message]


@attrs.frozen(kw_only=True)
class RequestStep:
    """What `request` sees; it may return another `ModelRequest` to send instead."""

    session: str
    turn: int
    step: int
    request: ModelRequest


@attrs.frozen(kw_only=True)
class TurnStopping:
    """What `turn_stopping` sees: the answer with which the turn is about to end."""

    session: str
    turn: int
    step: int
    text: str


class HookFailed(SyncagentError):
    """A hook raised, or returned what it can't; the turn ends as an error."""


@attrs.frozen(kw_only=True)
class Hooks:
    """The hooks of one agent; None where there is none."""

    system: Union[str, Callable[..., str]] = ""
    pre_step: Optional[Callable[..., Any]] = None
    request: Optional[Callable[..., Any]] = None
    turn_stopping: Optional[Callable[..., Any]] = None

    def prompt(self, token: CancellationToken) -> str:
        """Assemble the system prompt."""
        if isinstance(self.system, str):
            return self.system
        text = _call("system", self.system, None, token)
        if not isinstance(text, str):
            raise HookFailed(f"system() returned {type(text).__name__}, not a string")
        return text


def ask(
    name: str, hook: Optional[Callable[..., Any]], view: Any, token: CancellationToken, *kinds: type
) -> Any:
    """Call a hook and return its answer, which is None or of one of `kinds`.

    Raises `HookFailed` for anything else, and when the hook raises; `Cancelled` passes.
    """
    if hook is None:
        return None
    token.raise_if_cancelled()
    answer = _call(name, hook, view, token)
    token.raise_if_cancelled()
    if answer is not None and not isinstance(answer, kinds):
        allowed = ", ".join(kind.__name__ for kind in kinds)
        raise HookFailed(f"{name} returned {type(answer).__name__}, not None or {allowed}")
    return answer


def _call(name: str, hook: Callable[..., Any], view: Any, token: CancellationToken) -> Any:
    try:
        return hook(token=token) if view is None else hook(view, token=token)
    except Exception as exc:
        raise HookFailed(f"{name} raised {describe(exc)}") from exc
