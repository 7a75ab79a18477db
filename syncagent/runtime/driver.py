"""The driver: a thread that runs turns while there is work, and what may stop it.

Its lock guards the token, the thread and the inbox; while it is held nothing blocks. The thread is
never the caller's, so a KeyboardInterrupt can't tear a step in two.
"""

import threading
import time
from typing import Callable, List, Optional

from syncagent.cancel import CancellationToken, Cause
from syncagent.errors import AgentClosed, StoreBusy, StoreError, StoreFull
from syncagent.log import Message
from syncagent.log import events as ev
from syncagent.runtime import locks
from syncagent.runtime.inbox import Handle, Inbox, blocks_of
from syncagent.runtime.result import TurnResult
from syncagent.runtime.session import Session
from syncagent.runtime.turn import Turn, Work

__all__ = ["Driver"]


class Driver:
    """The inbox of one agent and the thread that empties it, one turn at a time."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self.session: Session = work.session
        self.session.on_failure = self._store_failed
        self.guard = locks.guard("agent")
        self.inbox = Inbox(self.session, self.guard)
        self.last: Optional[TurnResult] = None
        self.closed = False
        # The open turn's token until its hand-over; None while there is no turn to cancel.
        self._token: Optional[CancellationToken] = None
        self._turn: Optional[Turn] = None
        self._handles: List[Handle] = []  # whoever waits for the open turn
        self._thread: Optional[threading.Thread] = None  # None: idle
        self._ended: Optional[threading.Thread] = None
        self._waits_for: Optional[str] = None
        self._bodies: List[str] = []

    @property
    def status(self) -> str:
        with self.guard:
            if self._thread is None:
                return "closed" if self.closed else "idle"
            bodies = ", ".join(self._bodies)
            if self._turn is not None and self._turn.token.cancelled:
                return f"cancelling (waiting for {bodies})" if bodies else "cancelling"
            return self._waits_for or (f"running {bodies}" if bodies else "running")

    def check_open_locked(self) -> None:
        assert self.guard.held
        if self.closed:
            raise AgentClosed(f"the agent of session {self.session.id!r} is closed")

    # -- the stop ---------------------------------------------------------------------------------

    def cancel(
        self,
        cause: Cause,
        *,
        keep_inbox: bool,
        scope: str,
        via: str,
        only: Optional[Handle] = None,
        text: Optional[str] = None,
    ) -> bool:
        """Stop what runs and empty the inbox, or park it; with `only`, stop that message alone:
        its turn, or the message itself while it waits. Whether there was anything to stop."""
        wake: Optional[Callable[[], None]] = None
        with self.guard:
            token = self._running_locked()
            waiting = [] if keep_inbox else self.inbox.pending_locked()
            parked = False
            if only is not None:
                waiting = [message for message in self.inbox.pending_locked() if message.id == only.id]
                token = token if only in self._handles else None
            elif keep_inbox:
                parked = self.inbox.park_locked()
            if token is None and not waiting and not parked:
                return False
            handles = self._log_stop_locked(cause, keep_inbox, scope, via, waiting)
            if self._turn is not None and only is None:
                self._turn.dropped.extend(waiting)
            if token is not None:
                self.inbox.park_locked()
                wake = token.cancel_quietly(cause, text)
        if wake is not None:
            wake()
        for handle in handles:
            handle.drop(cause)
        return True

    def _running_locked(self) -> Optional[CancellationToken]:
        """The token that a stop would cancel."""
        assert self.guard.held
        return None if self._token is None or self._token.cancelled else self._token

    def _log_stop_locked(
        self, cause: Cause, keep_inbox: bool, scope: str, via: str, waiting: List[Message]
    ) -> List[Handle]:
        assert self.guard.held
        ids = [message.id for message in waiting]
        try:
            self.session.append(
                ev.CancelRequested(cause=str(cause), via=via, keep_inbox=keep_inbox, scope=scope)
            )
            return self.inbox.take_locked(ids, "canceled")
        except StoreError:  # a dead store keeps no record; the stop itself must still work
            return self.inbox.forget_locked(ids)

    def limit_fired(self, handle: Handle, cause: Cause, text: Optional[str]) -> None:
        """A message's own time-out or token fired: it empties no inbox."""
        self.cancel(cause, keep_inbox=True, scope="tree", via="api", only=handle, text=text)

    def future_cancelled(self, handle: Handle) -> None:
        """Whoever holds the message's future cancelled it: the message is withdrawn if it waits."""
        if handle.future.cancelled():
            self.cancel(Cause.USER, keep_inbox=True, scope="tree", via="api", only=handle)

    def _store_failed(self, error: StoreError) -> None:
        if isinstance(error, (StoreFull, StoreBusy)):
            return  # the events are kept; the next checkpoint says so to the turn
        with self.guard:
            token = self._token
            self.inbox.park_locked()
        if token is not None:
            token.cancel(Cause.DISPOSED)

    def dispose(self) -> None:
        """Nothing wakes from now on; what runs is cancelled, what waits stays parked in the log."""
        wake: Optional[Callable[[], None]] = None
        with self.guard:
            if self.closed:
                return
            self.closed = True
            handles = self.inbox.abandon_locked()
            token = self._running_locked()
            if token is not None:
                self._log_stop_locked(Cause.DISPOSED, True, "tree", "api", [])
                wake = token.cancel_quietly(Cause.DISPOSED)
        if wake is not None:
            wake()
        for handle in handles:
            handle.drop(Cause.DISPOSED)

    # -- the thread -------------------------------------------------------------------------------

    def wake_locked(self) -> None:
        """Start the thread if something waits that may start a turn and no thread runs."""
        assert self.guard.held
        if self._thread is None and self.inbox.ready_locked():
            self._thread = threading.Thread(target=self._run, name=f"syncagent-{self.session.id}")
            self._thread.start()

    def _run(self) -> None:
        while True:
            failed: Optional[Exception] = None
            handles: List[Handle] = []
            with self.guard:
                try:
                    turn = self._begin_locked()
                except Exception as exc:  # the store is dead: say so to everybody who waits
                    turn, failed = None, exc
                    handles, self._handles = self._handles + self.inbox.abandon_locked(), []
            for handle in handles:
                handle.settle(None, failed)
            if turn is not None:
                self._run_turn(turn)
            elif self._rest():
                return

    def _rest(self) -> bool:
        """End the thread, unless something came in between: decided under the lock that wakes take."""
        with self.guard:
            if not self.closed and self.inbox.ready_locked():
                return False
            self._thread, self._ended = None, self._thread
            self.guard.notify_all()
            return True

    def _begin_locked(self) -> Optional[Turn]:
        """Open a turn and claim for it; None if nothing waits that may start one."""
        assert self.guard.held
        if self.closed or not self.inbox.ready_locked():
            return None
        chosen = self.inbox.choose_locked(new_turn=True)
        if not chosen.messages:
            return None
        number = self.session.state.turn + 1
        self._handles = list(chosen.handles)
        self.session.append(ev.TurnStart(turn=number))
        self.inbox.claim_locked(chosen)
        self._token = CancellationToken()
        self._turn = Turn(
            work=self.work, desk=self, number=number, token=self._token, claimed=chosen.messages
        )
        return self._turn

    def _run_turn(self, turn: Turn) -> None:
        result: Optional[TurnResult] = None
        error: Optional[BaseException] = None
        try:
            # Context variables are those of whoever sent the message.
            result = self._handles[0].context.copy().run(turn.run) if self._handles else turn.run()
        except BaseException as exc:
            error = exc
        turn.token.close()
        with self.guard:
            self._token = self._turn = self._waits_for = None
            self.last = result or self.last
            handles, self._handles = self._handles, []
            if error is not None:
                self.inbox.park_locked()
        for escaped in turn.escaped:
            error = error or escaped
        for handle in handles:
            handle.settle(result, error)

    def wait_idle(self, timeout: Optional[float]) -> bool:
        """Wait until no thread runs; False if one still does after `timeout` seconds."""
        if threading.current_thread() is self._thread:
            raise RuntimeError("an agent can't be waited for or closed by its own turn")
        end = None if timeout is None else time.monotonic() + timeout
        with self.guard:
            while self._thread is not None:
                left = None if end is None else end - time.monotonic()
                if left is not None and left <= 0:
                    return False
                self.guard.wait(left)
            ended, self._ended = self._ended, None
        if ended is not None:
            ended.join()  # it has nothing left to do
        return True

    # -- what a turn asks for (see `Desk`) --------------------------------------------------------

    def claim_next(self) -> List[Message]:
        with self.guard:
            chosen = self.inbox.choose_locked(new_turn=False)
            self._handles.extend(chosen.handles)
            self.inbox.claim_locked(chosen)
            return chosen.messages

    def steered(self) -> bool:
        with self.guard:
            return self.inbox.steered_locked()

    def put_next(self, text: str) -> None:
        with self.guard:
            handle = self.inbox.put_locked("next_step", blocks_of(text), True, None)
            self.inbox.wake_locked(handle.id)

    def hand_over(self) -> bool:
        with self.guard:
            token, self._token = self._token, None
            return token is not None and token.cancelled

    def waits_for(self, text: Optional[str]) -> None:
        with self.guard:
            self._waits_for = text

    def running(self, name: str, begins: bool) -> None:
        with self.guard:
            if begins:
                self._bodies.append(name)
            else:
                self._bodies.remove(name)
