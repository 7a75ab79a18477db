"""One session that this process drives: append is advance, then a hand-over to the writer.

It knows the log and the store, no model, no tool and no turn's course.
"""

import contextlib
import itertools
import time
from collections import deque
from typing import (
    Any,
    Callable,
    Collection,
    Deque,
    Dict,
    Iterable,
    Iterator,
    List,
    Mapping,
    Optional,
    Protocol,
)

from syncagent.boundary.store.protocol import Backend, Opened
from syncagent.cancel import CancellationToken
from syncagent.errors import AgentClosed, SessionOpenTurn, StoreBusy, StoreError, StoreFailed, StoreFull
from syncagent.log import Event, LogState, Message, Phase, advance
from syncagent.log.closers import closing_bodies
from syncagent.log.events import Body
from syncagent.log.folds import SURFACE, Transcript
from syncagent.runtime import locks
from syncagent.runtime.result import RepairReport, describe

__all__ = ["Session"]


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


class Owner(Protocol):
    """Who runs turns on the session: the driver of an agent."""

    def store_failed(self, error: StoreError) -> None:
        """The store fails, or the lease is lost; called in the writer's thread, with no lock held."""

    def check_outside(self) -> None:
        """Raise `RuntimeError` in a thread of its turn."""

    def dispose(self) -> None:
        """Cancel what runs; start nothing more."""

    def wait(self, timeout: Optional[float], *, through: bool) -> Any:
        """Return when nothing runs."""


class Session:
    """A live session: the state of its log, its messages, and the events that aren't durable yet.

    `report` says what the open repaired, or is None. Close it to give the lease back.
    """

    def __init__(
        self,
        id: str,
        *,
        backend: Backend,
        opened: Opened,
        on_close: Callable[["Session"], None],
    ) -> None:
        self.id = id
        self.report = RepairReport.of(opened.closers)
        self.closed = False
        self.owner: Optional[Owner] = None
        self._backend = backend
        self._lease = opened.lease
        self._state = opened.state
        self._on_close = on_close
        self._guard = locks.guard("session", backend.path)
        self._failure: Optional[StoreError] = None
        self._transcript = Transcript()
        self._recent: Deque[Event] = deque()
        for event in backend.read(id, types=SURFACE):
            self._transcript.add(event)

    # -- writing ----------------------------------------------------------------------------------

    def append(self, *bodies: Body) -> List[Event]:
        """Stamp the bodies, take them into the state and hand them to the writer; never blocks.

        Raises `InvalidLog` when one breaks a rule (it and those behind it are then not in the log),
        and the store's error when the store is dead.
        """
        with self._guard:
            return self._append_locked(bodies)

    def end_turn(self, reason: Mapping[str, Any]) -> List[Event]:
        """Append what the open turn needs to be closed, and its ending. Raises what `append` does."""
        with self._guard:
            self._raise_if_over_locked()  # a dead store may have kept results out of the log
            return self._append_locked(closing_bodies(self._state, reason))

    def _raise_if_over_locked(self) -> None:
        assert self._guard.held
        if self._failure is not None:
            raise self._failure
        if self.closed:
            raise AgentClosed(f"session {self.id!r} is closed")

    def _append_locked(self, bodies: Iterable[Body]) -> List[Event]:
        self._raise_if_over_locked()
        events: List[Event] = []
        fresh: List[Event] = []
        try:
            for body in bodies:
                # A clock that goes back holds the time: the log's never does.
                event = Event(seq=self._state.seq + 1, time=max(_now_ms(), self._state.time), body=body)
                advance(self._state, event)
                events.append(event)
                fresh.append(event)
                if self._state.phase is Phase.IDLE:  # the writer keeps each balanced state
                    self._hand_over_locked(fresh)
        finally:
            self._hand_over_locked(fresh)
            self._guard.notify_all()
        return events

    def _hand_over_locked(self, fresh: List[Event]) -> None:
        """Give the writer what the state has taken in already, and forget what it has written."""
        events, fresh[:] = list(fresh), []
        if not events:
            return
        balanced = self._state.kept() if self._state.phase is Phase.IDLE else None
        try:
            self._backend.append(self._lease, events, state=balanced)
        except StoreError as exc:
            self._failure = exc
            raise
        except BaseException as exc:
            # The state is ahead of what the writer has: nothing can follow it.
            text = f"{self._backend.path}: an append to session {self.id!r} was cut: {describe(exc)}"
            self._failure = StoreFailed(text, path=self._backend.path)
            raise
        for event in events:
            if event.type in SURFACE:
                self._transcript.add(event)
        self._forget_locked()
        self._recent.extend(events)

    def flush(self, *, token: Optional[CancellationToken] = None) -> None:
        """Return when all that was appended is durable.

        Raises the store's error, or `Cancelled` when `token` fires first; the events stay queued.
        """
        self._backend.flush(self._lease, token=token)
        with self._guard:
            self._forget_locked()

    def retry_flush(self, *, token: Optional[CancellationToken] = None) -> None:
        """After `StoreFull` or `StoreBusy`: have the kept events tried again."""
        self._backend.retry()
        self.flush(token=token)

    def _forget_locked(self) -> None:
        assert self._guard.held
        durable = self._backend.durable_seq(self._lease)
        while self._recent and self._recent[0].seq <= durable:
            self._recent.popleft()

    def fail(self, error: StoreError) -> None:
        """The writer's word that it could not write; the events of a full or busy store are kept."""
        with self._guard:
            if not isinstance(error, (StoreFull, StoreBusy)):
                self._failure = self._failure or error
            self._guard.notify_all()
        if self.owner is not None:
            self.owner.store_failed(error)

    def check_outside(self) -> None:
        """Raise `RuntimeError` in a turn of this session, which can't wait for its own end."""
        if self.owner is not None:
            self.owner.check_outside()

    def close(self) -> None:
        """Give the lease back after what was appended is durable, also what a full disk has kept.

        A turn that runs is cancelled first, with "disposed", and waited for. May be repeated. Raises
        the store's error if something could not be made durable, and `RuntimeError` in a turn of this
        session. In a forked child it does nothing: the session is the parent's.
        """
        if self.forked:
            return
        self.check_outside()
        if self.owner is not None:
            self.owner.dispose()
            self.owner.wait(None, through=True)
        with self._guard:
            if self.closed:
                return
            self.closed = True
            self._guard.notify_all()
        try:
            if self._failure is None:
                self._backend.retry()
                self._backend.flush(self._lease)
        finally:
            try:
                self._backend.release(self._lease)
            finally:
                self._on_close(self)

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, *exc: Any) -> None:
        self.close()

    # -- reading ----------------------------------------------------------------------------------

    @property
    def state(self) -> LogState:
        """The state of the log. Only the driver, which alone appends a turn's events, may look."""
        return self._state

    @property
    def path(self) -> str:
        """The file of its store."""
        return self._backend.path

    @property
    def forked(self) -> bool:
        """Whether this is a forked child of the process that opened it."""
        return self._backend.forked

    @property
    def over(self) -> bool:
        """Whether nothing can be appended any more: it is closed, or its store is dead."""
        return self.closed or self._failure is not None

    @property
    def seq(self) -> int:
        """The number of the last event."""
        return self._state.seq

    def messages(self) -> List[Message]:
        """The transcript for the next request."""
        with self._guard:
            return self._transcript.messages()

    def pending(self) -> Dict[str, List[Message]]:
        """What waits in the inbox, by target, in order."""
        with self._guard:
            return {t: [put.message for put in puts.values()] for t, puts in self._state.pending.items()}

    def events(self, *, since: int = 0, types: Optional[Collection[str]] = None) -> Iterator[Event]:
        """The events with a greater `seq` than `since`, durable or not, as they stand now."""
        with self._guard:
            # From the end: who follows asks for the last few of what may be many.
            count = min(len(self._recent), max(0, self._state.seq - since))
            recent = list(itertools.islice(reversed(self._recent), count))[::-1]
            first = recent[0].seq if recent else self._state.seq + 1
        if since + 1 < first:
            for event in self._backend.read(self.id, since=since, types=types):
                if event.seq >= first:
                    break
                since = event.seq
                yield event
        for event in recent:
            if event.seq > since and (types is None or event.type in types):
                yield event

    def load(self) -> List[Event]:
        """All events, once they are durable and if no turn is open; else `SessionOpenTurn`."""
        with self._guard:
            if self._state.phase is not Phase.IDLE:
                raise SessionOpenTurn(self.id, self._state.turn)
            last = self._state.seq
        self.flush()
        return [event for event in self._backend.read(self.id) if event.seq <= last]

    def follow(self, *, since: int = 0, token: Optional[CancellationToken] = None) -> Iterator[Event]:
        """Stored and live events with a greater `seq` than `since`; ends when the session closes.

        Raises the store's error if the store fails, and `Cancelled` when `token` is cancelled.
        """
        while True:
            for event in self.events(since=since):
                if token is not None:
                    token.raise_if_cancelled()
                since = event.seq
                yield event
            if not self._wait_for_more(since, token):
                return

    def _wait_for_more(self, since: int, token: Optional[CancellationToken]) -> bool:
        """Wait for an event behind `since`; False if none will come."""
        with contextlib.ExitStack() as stack:
            if token is not None:
                stack.enter_context(token.on_cancel(self._wake))
            stack.enter_context(self._guard)
            while True:
                if token is not None:
                    token.raise_if_cancelled()
                # After a failed append the state is ahead of what can ever be read.
                if self._state.seq > since and self._failure is None:
                    return True
                if self.closed:
                    return False
                if self._failure is not None:
                    raise self._failure
                self._guard.wait()

    def _wake(self) -> None:
        with self._guard:
            self._guard.notify_all()
