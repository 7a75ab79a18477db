"""The messages that wait for a turn, and the futures of those who sent them.

Everything here runs under the agent's lock. The log is the truth about what is pending; this adds
what the log doesn't hold: who waits, and which messages may start work by themselves.
"""

import contextlib
import contextvars
from concurrent.futures import Future
from typing import Any, Collection, Dict, List, Optional, Sequence, Set, Union

import attrs

from syncagent.boundary.tools.text import clean
from syncagent.cancel import CancellationToken, Cause
from syncagent.errors import StoreError
from syncagent.log import Message
from syncagent.log import events as ev
from syncagent.runtime.locks import Guard
from syncagent.runtime.result import TurnResult
from syncagent.runtime.session import Session

__all__ = ["Handle", "Inbox", "Input"]

Input = Union[str, Sequence[Dict[str, Any]]]


@attrs.define(eq=False)
class Handle:
    """One accepted message and whoever waits for it.

    `limits` holds its deadline and linked token while it is pending or runs; `cause` says why it was
    dropped.
    """

    id: str
    context: contextvars.Context
    future: "Future[TurnResult]" = attrs.field(factory=Future)
    limits: contextlib.ExitStack = attrs.field(factory=contextlib.ExitStack)
    cause: Optional[Cause] = None

    def drop(self, cause: Cause) -> None:
        """Settle the future of a message that no turn will run. Call it without a lock."""
        self.cause = self.cause or cause
        if not self.future.cancelled() and self.future.cancel():
            self.future.set_running_or_notify_cancel()

    def settle(self, result: Optional[TurnResult], error: Optional[BaseException]) -> None:
        """Settle the future with what came of the message. Call it without a lock."""
        if self.future.cancelled() or not (
            self.future.running() or self.future.set_running_or_notify_cancel()
        ):
            return
        if error is not None:
            self.future.set_exception(error)
        else:
            assert result is not None
            self.future.set_result(result)


class Inbox:
    """The inbox of one agent. `guard` is the agent's lock; every method needs it held."""

    def __init__(self, session: Session, guard: Guard) -> None:
        self._session = session
        self._guard = guard
        self._handles: Dict[str, Handle] = {}
        # Pending messages that start a turn, or another step, by themselves. A stop parks what waits
        # by taking it out; the next wake lets all that waits run.
        self._waking: Set[str] = set()

    def put_locked(self, target: str, content: List[Dict[str, Any]], wake: bool, id: Optional[str]) -> Handle:
        """Log the message and return its handle; it starts nothing before `wake_locked`."""
        assert self._guard.held
        # The seq of its put is unique in the session, so the id is too.
        key = id if id is not None else f"m-{self._session.seq + 1}"
        message = Message(id=key, role="user", content=content)
        self._session.append(ev.InboxPut(target=target, message=message, wake=wake))
        handle = Handle(id=key, context=contextvars.copy_context())
        handle.future.add_done_callback(lambda future: handle.limits.close())
        self._handles[key] = handle
        return handle

    def wake_locked(self, id: str) -> None:
        """Let the message start work, if it still waits."""
        assert self._guard.held
        if self.is_pending_locked(id):
            self._waking.add(id)

    def take_locked(self, ids: Collection[str], outcome: str) -> List[Handle]:
        """Log that the messages left the inbox; return the handles of those that have one."""
        assert self._guard.held
        if not ids:
            return []
        self._session.append(ev.InboxTaken(ids=list(ids), outcome=outcome))
        self._waking.difference_update(ids)
        return [self._handles.pop(key) for key in ids if key in self._handles]

    def forget_locked(self, ids: Collection[str]) -> List[Handle]:
        """The store is dead: nothing can be logged, and nobody is to wait for these messages."""
        assert self._guard.held
        self._waking.difference_update(ids)
        return [self._handles.pop(key) for key in ids if key in self._handles]

    def withdraw_locked(self, id: str) -> bool:
        """Take a message back whose put is not durable; False if a turn has claimed it already."""
        assert self._guard.held
        if not self.is_pending_locked(id):
            return False
        try:
            self.take_locked([id], "canceled")
        except StoreError:
            self.forget_locked([id])
        return True

    def choose_locked(self, *, new_turn: bool) -> "Claimed":
        """What a step is to take in: all of next_step, and for a new turn the first of next_turn.

        A message whose sender has cancelled its future is dropped instead. `claim_locked` logs it.
        """
        assert self._guard.held
        pending = self._session.pending()
        chosen = self._wanted_locked(pending["next_step"])
        if new_turn:
            rest = pending["next_turn"]
            while rest and not (first := self._wanted_locked(rest[:1])):
                rest = rest[1:]
            if rest:
                chosen = Claimed(chosen.messages + first.messages, chosen.handles + first.handles)
            # A wake lets all that waits run, each message in a turn of its own.
            self._waking.update(message.id for message in rest[1:])
        return chosen

    def _wanted_locked(self, messages: List[Message]) -> "Claimed":
        wanted = Claimed([], [])
        for message in messages:
            handle = self._handles.get(message.id)
            # From here on the future can't be cancelled by its holder any more.
            if handle is not None and not handle.future.set_running_or_notify_cancel():
                self.take_locked([message.id], "canceled")
                continue
            wanted.messages.append(message)
            if handle is not None:
                wanted.handles.append(handle)
        return wanted

    def claim_locked(self, chosen: "Claimed") -> None:
        """Log that the open turn took them."""
        self.take_locked([message.id for message in chosen.messages], "claimed")

    def ready_locked(self) -> bool:
        """Whether something waits that starts a turn."""
        assert self._guard.held
        return bool(self._waking)

    def steered_locked(self) -> bool:
        """Whether something waits that keeps the turn going."""
        assert self._guard.held
        return any(message.id in self._waking for message in self._session.pending()["next_step"])

    def is_pending_locked(self, id: str) -> bool:
        assert self._guard.held
        return any(message.id == id for queue in self._session.pending().values() for message in queue)

    def pending_locked(self) -> List[Message]:
        """What waits, next_step before next_turn."""
        assert self._guard.held
        pending = self._session.pending()
        return pending["next_step"] + pending["next_turn"]

    def park_locked(self) -> bool:
        """Let nothing that waits now start work by itself; True if something would have."""
        assert self._guard.held
        waiting, self._waking = self._waking, set()
        return bool(waiting)

    def abandon_locked(self) -> List[Handle]:
        """The agent closes: the messages stay in the log, their handles go."""
        assert self._guard.held
        self.park_locked()
        handles, self._handles = list(self._handles.values()), {}
        return handles


@attrs.frozen
class Claimed:
    """What a step takes in, and the handles of those who wait for it."""

    messages: List[Message]
    handles: List[Handle]


def blocks_of(content: Input) -> List[Dict[str, Any]]:
    """A user's input as content blocks. Raises `TypeError` or `ValueError` for what is no message."""
    if isinstance(content, str):
        if not content.strip():
            raise ValueError("a message needs text: this one is empty")
        return [{"type": "text", "text": clean(content)}]
    if not isinstance(content, (list, tuple)) or not all(isinstance(block, dict) for block in content):
        raise TypeError(f"a message is a string or a list of content blocks, not {type(content).__name__}")
    if not content:
        raise ValueError("a message needs content: this one is empty")
    return [clean(block) for block in content]


def limit(handle: Handle, token: CancellationToken, timeout: Optional[float], fire: Any) -> None:
    """Have `fire(handle, cause, text)` called when the token or the time-out of a message fires."""

    def fired() -> None:
        fire(handle, token.cause or Cause.USER, token.text)

    handle.limits.callback(token.close)
    if timeout is not None:
        handle.limits.enter_context(token.deadline(timeout))
    handle.limits.enter_context(token.on_cancel(fired))
    if handle.future.done():  # it was settled before its limits were complete
        handle.limits.close()
