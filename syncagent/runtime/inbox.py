"""The messages that wait for a turn, and the futures of those who sent them.

The log is the truth about what is pending; this adds what the log doesn't hold: who waits, and which
messages may start work by themselves. The inbox is the agent's and under its lock; a handle has a
lock of its own, since whoever holds its future may settle it from any thread.
"""

import contextlib
import contextvars
import logging
import threading
from concurrent.futures import Future
from typing import Any, Callable, Collection, Dict, List, Optional, Sequence, Set, Union

import attrs

from syncagent.boundary.tools.text import clean
from syncagent.cancel import CancellationToken, Cause
from syncagent.errors import AgentClosed, StoreError
from syncagent.log import Message
from syncagent.log import events as ev
from syncagent.runtime.locks import Guard
from syncagent.runtime.result import TurnResult
from syncagent.runtime.session import Session

__all__ = ["Handle", "Inbox", "Input"]

_logger = logging.getLogger("syncagent")

Input = Union[str, Sequence[Dict[str, Any]]]


@attrs.define(eq=False)
class Handle:
    """One accepted message and whoever waits for it; `cause` says why it was dropped, and `notice(text)`
    is told of a stop of its turn that takes long.

    Its deadline and linked token are held until the future is settled. What settles it runs the
    callbacks of whoever holds the future, so those methods are called without a lock.
    """

    id: str
    context: contextvars.Context
    future: "Future[TurnResult]" = attrs.field(factory=Future)
    cause: Optional[Cause] = None
    notice: Optional[Callable[[str], object]] = None
    _lock: threading.Lock = attrs.field(factory=threading.Lock)
    _limits: Optional[contextlib.ExitStack] = None
    _over: bool = False  # settled: there is nothing to limit any more
    _told: bool = False  # the future may be told once that it runs or was cancelled

    def keep(self, limits: contextlib.ExitStack) -> None:
        """Hold the limits until the future is settled, which it may be already."""
        with self._lock:
            if not self._over:
                self._limits = limits
                return
        limits.close()

    def let_go(self) -> None:
        """The future is settled: its deadline and its linked token end."""
        with self._lock:
            limits, self._limits, self._over = self._limits, None, True
        if limits is not None:
            limits.close()

    def begin(self) -> bool:
        """A turn takes the message; False if whoever holds the future has cancelled it.

        From here on the future can't be cancelled by its holder any more.
        """
        with self._lock:
            first, self._told = not self._told, True
        return first and self.future.set_running_or_notify_cancel()

    def drop(self, cause: Cause) -> None:
        """Settle the future of a message that no turn will run."""
        self.cause = self.cause or cause
        self._settle(self.future.cancel)
        if self.future.cancelled():
            self.begin()  # tells those who wait for several futures at once

    def settle(self, result: Optional[TurnResult], error: Optional[BaseException]) -> None:
        """Settle the future with what came of the message."""
        if not (self.future.running() or self.begin()):
            return
        if error is not None:
            failure = error
            self._settle(lambda: self.future.set_exception(failure))
        else:
            assert result is not None
            value = result
            self._settle(lambda: self.future.set_result(value))

    def _settle(self, act: Callable[[], object]) -> None:
        try:
            act()
        except BaseException:  # of a callback: it must not end the thread that runs the turns
            if threading.current_thread() is threading.main_thread():
                raise  # a Ctrl+C of the user's
            _logger.exception("a callback of the future of message %r failed", self.id)


class Inbox:
    """The inbox of one agent. `guard` is the agent's lock; every method needs it held."""

    def __init__(self, session: Session, guard: Guard) -> None:
        self._session = session
        self._guard = guard
        self._handles: Dict[str, Handle] = {}
        # Pending messages that start a turn, or another step, by themselves. A stop parks what waits
        # by taking it out; the next wake lets all that waits run.
        self._waking: Set[str] = set()
        # Pending messages, in order, whose senders don't know yet whether they are durable: no turn
        # may take one, since its sender may still have to be told that it was not accepted.
        self._arriving: Dict[str, None] = {}

    def message_locked(self, content: List[Dict[str, Any]], source: Optional[str] = None) -> Message:
        """A new user message; `source` says who wrote it if it was not the user."""
        assert self._guard.held
        # Each put raises seq, so no two messages get the same id.
        return Message(id=f"m-{self._session.seq + 1}", role="user", content=content, source=source)

    def put_locked(self, target: str, message: Message, *, wake: bool) -> Handle:
        """Log the message and return its handle; no turn takes it before `accept_locked`."""
        assert self._guard.held
        key = message.id
        self._session.append(ev.InboxPut(target=target, message=message, wake=wake))
        handle = Handle(id=key, context=contextvars.copy_context())
        handle.future.add_done_callback(lambda future: handle.let_go())
        self._handles[key] = handle
        self._arriving[key] = None
        return handle

    def accept_locked(self, handle: Handle, *, wake: bool) -> None:
        """The message is durable: a turn may take it, and with `wake` it starts one."""
        assert self._guard.held
        if not self.waits_locked(handle):
            return
        if handle.id in self._arriving:
            # What was put before it is durable too, so the order of the puts stays that of the turns.
            order = list(self._arriving)
            for key in order[: order.index(handle.id) + 1]:
                del self._arriving[key]
        if wake:
            self._waking.add(handle.id)

    def take_locked(self, ids: Collection[str], outcome: str) -> List[Handle]:
        """Log that the messages left the inbox; return the handles of those that have one."""
        assert self._guard.held
        if not ids:
            return []
        self._session.append(ev.InboxTaken(ids=list(ids), outcome=outcome))
        return self.forget_locked(ids)

    def forget_locked(self, ids: Collection[str]) -> List[Handle]:
        """Nobody is to wait for these messages any more; logs nothing, for a store that is dead."""
        assert self._guard.held
        self._waking.difference_update(ids)
        for key in ids:
            self._arriving.pop(key, None)
        return [self._handles.pop(key) for key in ids if key in self._handles]

    def withdraw_locked(self, handle: Handle) -> bool:
        """Take a message back whose sender gets an error; False if a turn or a stop has taken it."""
        assert self._guard.held
        if not self.waits_locked(handle):
            return False
        try:
            self.take_locked([handle.id], "canceled")
        except (StoreError, AgentClosed):
            self.forget_locked([handle.id])
        return True

    def choose_locked(self, *, new_turn: bool) -> "Claimed":
        """What a step is to take in: all of next_step, and for a new turn the first of next_turn.

        A message whose sender has cancelled its future is dropped instead. `claim_locked` logs it.
        """
        assert self._guard.held
        pending = {
            target: [message for message in queue if message.id not in self._arriving]
            for target, queue in self._session.pending().items()
        }
        chosen = self._wanted_locked(pending["next_step"])
        if new_turn:
            rest = pending["next_turn"]
            while rest and not (first := self._wanted_locked(rest[:1])).messages:
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
            if handle is not None and not handle.begin():
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

    def waits_locked(self, handle: Handle) -> bool:
        """Whether this very message waits; one that was put back later has another handle."""
        assert self._guard.held
        return self._handles.get(handle.id) is handle

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


def limit(
    handle: Handle,
    token: CancellationToken,
    timeout: Optional[float],
    fire: Callable[[Handle, Cause, Optional[str]], object],
) -> None:
    """Have `fire(handle, cause, text)` called when the token or the time-out of a message fires.

    The token is the handle's from now on, and closed with it.
    """

    def fired() -> None:
        fire(handle, token.cause or Cause.USER, token.text)

    with contextlib.ExitStack() as limits:
        limits.callback(token.close)
        if timeout is not None:
            limits.enter_context(token.deadline(timeout))
        limits.enter_context(token.on_cancel(fired))
        handle.keep(limits.pop_all())
