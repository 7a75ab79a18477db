"""The driver: a thread that runs turns while there is work, and what may stop it.

Its lock guards the token, the thread and the inbox; while it is held nothing blocks. The thread is
never the caller's, so a KeyboardInterrupt can't tear a step in two.
"""

import contextlib
import contextvars
import sys
import threading
import time
from typing import Callable, List, Optional, Tuple

from syncagent.cancel import CancellationToken, Cause
from syncagent.errors import AgentClosed, StoreBusy, StoreError, StoreFull
from syncagent.log import Message
from syncagent.log import events as ev
from syncagent.runtime import locks
from syncagent.runtime.inbox import Handle, Inbox, blocks_of
from syncagent.runtime.result import TurnResult
from syncagent.runtime.session import Session
from syncagent.runtime.stopping import Stopping
from syncagent.runtime.turn import Turn, Work

__all__ = ["Driver"]


class Driver:
    """The inbox of one agent and the thread that empties it, one turn at a time."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self.session: Session = work.session
        self.guard = locks.guard("agent", self.session.path)
        self.inbox = Inbox(self.session, self.guard)
        self.last: Optional[TurnResult] = None
        self.closed = False
        # What the agent's close gives back. A turn may outlive the Agent, which nobody need keep.
        self.held: Optional[contextlib.ExitStack] = None
        self.sending = 0  # messages on their way into the log
        self._failure: Optional[StoreError] = None  # the session can't be written any more
        # The open turn's token until its hand-over; None while there is no turn to cancel.
        self._token: Optional[CancellationToken] = None
        self._stopping = False  # that token is cancelled, and what waited then is parked
        self._turn: Optional[Turn] = None
        self._handles: List[Handle] = []  # whoever waits for the open turn
        self._thread: Optional[threading.Thread] = None  # None: idle
        self._ended: Optional[threading.Thread] = None
        self._waits_for: Optional[str] = None
        # For those who wait: how many turns were stopped, how many of them are followed by another
        # turn, and what the last one of those came to.
        self._stops = 0
        self._passed = 0
        self._passed_result: Optional[TurnResult] = None
        self.session.owner = self

    @property
    def status(self) -> str:
        with self.guard:
            turn, waits_for = self._turn, self._waits_for
            if self._thread is None:
                return "closed" if self.closed else "idle"
        inside = [] if turn is None else turn.stopping.inside()
        if turn is None or not turn.token.cancelled:
            tools = ", ".join(each.name for each in inside if each.kind == "tool")
            return waits_for or (f"running {tools}" if tools else "running")
        if not inside:
            return "cancelling"
        names = ", ".join(each.name for each in inside)
        return f"cancelling (waiting for {names}): {'; '.join(each.where() for each in inside)}"

    def check_open_locked(self) -> None:
        assert self.guard.held
        if self.closed:
            raise AgentClosed(f"the agent of session {self.session.id!r} is closed")

    def check_outside(self) -> None:
        """Raise `RuntimeError` in a thread of the turn, which would wait for itself."""
        with self.guard:
            turn = self._turn
            inside = threading.current_thread() is self._thread
        mine = threading.get_ident()
        if inside or (turn is not None and any(each.thread == mine for each in turn.stopping.inside())):
            raise RuntimeError("a turn can't wait for its own agent, nor close it: use send() or cancel()")

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
            waiting = [] if self.session.over else self.inbox.pending_locked()
            parked = False
            if only is not None:
                mine = self.inbox.waits_locked(only)
                waiting = [message for message in waiting if mine and message.id == only.id]
                token = token if only in self._handles else None
            elif keep_inbox:
                waiting, parked = [], self.inbox.park_locked()
            if token is None and not waiting and not parked:
                return False
            handles = self._log_stop_locked(cause, keep_inbox, scope, via, waiting)
            if self._turn is not None and self._token is not None and only is None:
                self._turn.dropped.extend(waiting)
            if token is not None:
                self._stop_locked()
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
        except (StoreError, AgentClosed):  # a dead store keeps no record; the stop must still work
            return self.inbox.forget_locked(ids)

    def _stop_locked(self) -> None:
        """The open turn's token is cancelled: what waits now starts nothing by itself."""
        assert self.guard.held
        self._stopping = True
        if self._turn is not None:
            self._turn.stopped_at = time.monotonic()
        self._stops += 1
        self.inbox.park_locked()

    def _token_fired(self, token: CancellationToken) -> None:
        """Wake-up of the turn's token. A hook may have cancelled it, or the store's end."""
        with self.guard:
            if self._token is token and not self._stopping:
                self._stop_locked()

    def limit_fired(self, handle: Handle, cause: Cause, text: Optional[str]) -> None:
        """A message's own time-out or token fired: it empties no inbox."""
        self.cancel(cause, keep_inbox=True, scope="tree", via="api", only=handle, text=text)

    def future_cancelled(self, handle: Handle) -> None:
        """Whoever holds the message's future cancelled it: the message is withdrawn if it waits."""
        if handle.future.cancelled() and handle.cause is None:  # else we have dropped it ourselves
            self.cancel(Cause.USER, keep_inbox=True, scope="tree", via="api", only=handle)

    def store_failed(self, error: StoreError) -> None:
        if isinstance(error, (StoreFull, StoreBusy)):
            return  # the events are kept; the next checkpoint says so to the turn
        with self.guard:
            token, self._failure = self._token, error
            self._start_locked()  # whoever waits is told by the thread: his callbacks may take their time
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
                self._stop_locked()
                wake = token.cancel_quietly(Cause.DISPOSED)
        if wake is not None:
            wake()
        for handle in handles:
            handle.drop(Cause.DISPOSED)

    # -- the thread -------------------------------------------------------------------------------

    def wake_locked(self) -> None:
        """Start the thread if something waits that may start a turn and no thread runs."""
        assert self.guard.held
        if self.inbox.ready_locked():
            self._start_locked()

    def _start_locked(self) -> None:
        assert self.guard.held
        if self._thread is not None:
            return
        # Not a daemon, whatever started it: the interpreter's end waits for the turn.
        name = f"syncagent-{self.session.id}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=False)
        try:
            self._thread.start()
        except RuntimeError:  # the system has no more threads
            self._thread = None
            raise

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
        if self._failure is not None:
            raise self._failure
        if self.closed or not self.inbox.ready_locked():
            return None
        chosen = self.inbox.choose_locked(new_turn=True)
        if not chosen.messages:
            return None
        number = self.session.state.turn + 1
        self._handles = list(chosen.handles)
        self.session.append(ev.TurnStart(turn=number))
        self.inbox.claim_locked(chosen)
        self._token, self._stopping = CancellationToken(), False
        if self._passed != self._stops:
            self._passed, self._passed_result = self._stops, self.last
            self.guard.notify_all()
        self._turn = Turn(
            work=self.work,
            desk=self,
            number=number,
            token=self._token,
            stopping=Stopping(token=self._token, say=self._notice, spare=self._spare),
            claimed=chosen.messages,
        )
        return self._turn

    def _notice(self, text: str) -> None:
        """Tell whoever waits for the turn, or standard error if nobody does who wants to be told."""
        with self.guard:
            wanted = [handle.notice for handle in self._handles if handle.notice is not None]
        for notice in wanted or [_to_standard_error]:
            with contextlib.suppress(Exception):  # of his own; the turn has other worries
                notice(text)

    def _spare(self) -> List[int]:
        """The processes that belong to no call, whatever thread needed them first."""
        supervisor = self.work.processes.supervisor_pid
        return [] if supervisor is None else [supervisor]

    def hurry(self) -> None:
        """No grace any more for what the turn's bodies have started by themselves."""
        with self.guard:
            turn = self._turn
        if turn is not None:
            turn.stopping.hurry()

    def _run_turn(self, turn: Turn) -> None:
        result: Optional[TurnResult] = None
        error: Optional[BaseException] = None
        # Context variables are those of whoever sent the message that the turn is for.
        context = self._handles[-1].context if self._handles else contextvars.Context()
        try:
            with turn.token.on_cancel(lambda: self._token_fired(turn.token)):
                result = context.copy().run(turn.run)
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

    def wait(self, timeout: Optional[float], *, through: bool) -> Tuple[bool, Optional[TurnResult]]:
        """Wait until no thread runs; whether that is so in time, and the last turn's result.

        A turn that is stopped while one waits ends the wait too, even if another turn follows it, but
        not with `through`, which also waits for messages that are on their way in.
        """
        self.check_outside()
        end = None if timeout is None else time.monotonic() + timeout
        with self.guard:
            before = self._stops
            while self._thread is not None or (through and self.sending):
                if self._passed > before and not through:
                    return True, self._passed_result
                left = None if end is None else end - time.monotonic()
                if left is not None and left <= 0:
                    return False, None
                self.guard.wait(left)
            ended, self._ended = self._ended, None
            last = self.last
        if ended is not None:
            ended.join()  # it has nothing left to do
        return True, last

    # -- what a turn asks for (see `Desk`) --------------------------------------------------------

    def claim_next(self) -> List[Message]:
        with self.guard:
            # A message that came after the stop is not for this turn.
            self._current_locked().raise_if_cancelled()
            chosen = self.inbox.choose_locked(new_turn=False)
            self._handles.extend(chosen.handles)
            self.inbox.claim_locked(chosen)
            return chosen.messages

    def steered(self) -> bool:
        with self.guard:
            return self.inbox.steered_locked()

    def put_next(self, text: str) -> None:
        with self.guard:
            self._current_locked().raise_if_cancelled()
            message = self.inbox.message_locked(blocks_of(text), source="turn_stopping")
            self.inbox.accept_locked(self.inbox.put_locked("next_step", message, wake=True), wake=True)

    def _current_locked(self) -> CancellationToken:
        assert self.guard.held and self._token is not None
        return self._token

    def hand_over(self) -> bool:
        with self.guard:
            cancelled = self._current_locked().cancelled
            if cancelled and not self._stopping:
                self._stop_locked()
            self._token = None
            return cancelled

    def waits_for(self, text: Optional[str]) -> None:
        with self.guard:
            self._waits_for = text


def _to_standard_error(text: str) -> None:
    if sys.stderr is not None:
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()
