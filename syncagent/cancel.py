"""The stop signal: a token that is passed, as an argument, to every place that can block.

It knows no session, no loop and no boundary. `cancel()` stores the cause in the token and all its
descendants and then runs the wake-ups that blocked places have registered, in the canceller's
thread, once each, with no lock held. A check is one attribute read.
"""

import contextlib
import enum
import logging
import os
import threading
from types import TracebackType
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple, Type, Union

from syncagent.seconds import check_seconds

__all__ = ["CancellationToken", "Cancelled", "Cause"]

_logger = logging.getLogger("syncagent")


class Cause(str, enum.Enum):
    """Why a token was cancelled. A member equals its plain word: `Cause.USER == "user"`."""

    USER = "user"
    PARENT = "parent"
    TIMEOUT = "timeout"
    DISPOSED = "disposed"
    HOOK = "hook"

    def __str__(self) -> str:
        return str(self.value)


class Cancelled(BaseException):
    """Raised where a boundary finds its token cancelled.

    A `BaseException`, so that an `except Exception` in a tool or hook doesn't swallow a stop.
    `token` is the token that was found cancelled, `cause` why.
    """

    def __init__(self, token: "CancellationToken") -> None:
        super().__init__(token)
        self.token = token

    @property
    def cause(self) -> Optional[Cause]:
        return self.token.cause

    def __str__(self) -> str:
        return f"cancelled: {self.token.cause}" + (f" ({self.token.text})" if self.token.text else "")


class CancellationToken:
    """A one-way switch with a cause, in a tree.

    The first cause wins and never changes. Cancelling a token cancels its children, never its
    parent. Close a token when its work has ended (it is a context manager): that takes it out of
    its parent, frees the wake descriptor, and makes a later `cancel()` of the handle do nothing.
    """

    __slots__ = (
        "cause", "text", "_lock", "_wakeups", "_children", "_parent", "_inherit", "_next_key", "_pipe",
        "_closed", "_on_close", "__weakref__",
    )  # fmt: skip

    def __init__(self) -> None:
        # Once set, `cause` is never written again; `text` is set before it.
        self.cause: Optional[Cause] = None
        self.text: Optional[str] = None
        self._lock = threading.Lock()
        self._wakeups: Dict[int, Callable[[], object]] = {}
        self._children: Dict[int, "CancellationToken"] = {}
        self._parent: Optional["CancellationToken"] = None
        self._inherit: Optional[Cause] = None
        self._next_key = 0
        self._pipe: Optional[Tuple[int, int, int]] = None  # the last one is the pid of its process
        self._closed = False
        self._on_close: List[Callable[[], object]] = []

    def __repr__(self) -> str:
        state = f"cancelled: {self.cause}" if self.cause else "closed" if self._closed else "open"
        return f"<CancellationToken {state} at {id(self):#x}>"

    def __reduce__(self) -> Any:
        # A copy would have a cause of its own, and a stop would not reach it.
        raise TypeError("a CancellationToken can't be copied or pickled: hand on the token or a child")

    # -- asking -----------------------------------------------------------------------------------

    @property
    def cancelled(self) -> bool:
        """Whether it is cancelled; once True, True for ever and for every holder."""
        return self.cause is not None

    def raise_if_cancelled(self) -> None:
        """Raise `Cancelled` if the token is cancelled."""
        if self.cause is not None:
            raise Cancelled(self)

    def wait(self, timeout: Optional[float] = None) -> bool:
        """Wait until the token is cancelled; return whether it is.

        `timeout` is in seconds; None waits until the token is cancelled or closed.
        """
        timeout = check_seconds("timeout", timeout)
        if self.cause is not None:
            return True
        done = threading.Event()
        with self._lock:
            if self.cancelled:
                return True
            if self._closed:
                return False
            key = self._register_locked(done.set)
            self._on_close.append(done.set)
        try:
            done.wait(timeout)
        finally:
            with self._lock:
                self._wakeups.pop(key, None)
                with contextlib.suppress(ValueError):  # close() has already taken it
                    self._on_close.remove(done.set)
        return self.cancelled

    # -- cancelling -------------------------------------------------------------------------------

    def cancel(self, cause: Union[Cause, str] = Cause.USER, text: Optional[str] = None) -> bool:
        """Cancel the token and its descendants; return True if this call did it.

        `cause` is a `Cause` or its word; `text` explains a "hook". On a token that is cancelled
        or closed it does nothing and returns False. Never blocks: wake-ups must not either. Not
        for signal handlers, which run inside whatever the main thread does, also while it holds a
        lock that is needed here. Raises `ValueError` for an unknown cause.
        """
        wake = self.cancel_quietly(cause, text)
        if wake is None:
            return False
        wake()
        return True

    def cancel_quietly(
        self, cause: Union[Cause, str] = Cause.USER, text: Optional[str] = None
    ) -> Optional[Callable[[], None]]:
        """Cancel without waking anybody yet; return the function that runs the wake-ups, or None.

        For a caller that decides under a lock of its own, which no wake-up may meet: it calls the
        function, once, after it has released that lock.
        """
        wakeups: List[Callable[[], object]] = []
        below = self._mark(Cause(cause), text, wakeups)
        if below is None:
            return None
        while below:  # no recursion: a tree may be deeper than Python's stack
            child, shown = below.pop()
            below.extend(child._mark(shown, text, wakeups) or ())
        return lambda: _run_all(wakeups)

    def _mark(
        self, cause: Cause, text: Optional[str], wakeups: List[Callable[[], object]]
    ) -> Optional[List[Tuple["CancellationToken", Cause]]]:
        """Store the cause here and collect the wake-ups: the last registered comes first.

        Returns the children, each with the cause that it shows; None if the token was cancelled or
        closed before.
        """
        with self._lock:
            if self.cause is not None or self._closed:
                return None
            self.text = text
            self.cause = cause
            wakeups.extend(reversed(list(self._wakeups.values())))
            self._wakeups.clear()
            if self._pipe is not None and self._pipe[2] == os.getpid():  # else it wakes the parent's poll
                os.write(self._pipe[1], b"x")
            return [(child, child._inherit or cause) for child in self._children.values()]

    # -- being woken ------------------------------------------------------------------------------

    @contextlib.contextmanager
    def on_cancel(self, fn: Callable[[], object]) -> Iterator[None]:
        """Have `fn` called when the token is cancelled while the block runs.

        It runs once, in the canceller's thread, with no lock held; at once, in this thread, if
        the token is cancelled already. It must be short and must not block: notify, shut a socket
        down, write a byte. What it raises is logged and stops no other wake-up. Leaving the block
        does not wait for a call that is under way.
        """
        with self._lock:
            key = self._register_locked(fn) if self.cause is None else None
        if key is None:
            _run_all([fn])
        try:
            yield
        finally:
            if key is not None:
                with self._lock:
                    self._wakeups.pop(key, None)

    def _register_locked(self, fn: Callable[[], object]) -> int:
        assert self._lock.locked()
        self._next_key += 1
        self._wakeups[self._next_key] = fn
        return self._next_key

    def fileno(self) -> int:
        """A descriptor that becomes readable when the token is cancelled, for `select` and `poll`.

        Made when first asked for, never drained, and owned by the token: `close()` closes it.
        Raises `ValueError` on a closed token.
        """
        with self._lock:
            if self._closed:
                raise ValueError("the token is closed: it has no descriptor any more")
            if self._pipe is None or self._pipe[2] != os.getpid():
                self._pipe = (*os.pipe(), os.getpid())
                if self.cause is not None:
                    os.write(self._pipe[1], b"x")
            return self._pipe[0]

    # -- the tree ---------------------------------------------------------------------------------

    def child(self, cause: Union[Cause, str, None] = None) -> "CancellationToken":
        """A new token below this one; close it when its work has ended.

        When this token is cancelled the child shows the same cause, or `cause` where that is
        given: a child agent's turn shows "parent".
        """
        token = CancellationToken()
        token._inherit = Cause(cause) if cause is not None else None
        with self._lock:
            if self.cause is not None:
                token.text = self.text
                token.cause = token._inherit or self.cause
            elif not self._closed:
                token._parent = self
                self._children[id(token)] = token
        return token

    @classmethod
    def linked(cls, *sources: Union["CancellationToken", "threading.Event"]) -> "CancellationToken":
        """A new token that is cancelled when any source is: tokens, or `threading.Event`s.

        A token gives its cause, an event gives "user". An event is watched by one thread, which
        ends when the new token is closed or cancelled.
        """
        token = cls()
        try:
            for source in sources:
                if isinstance(source, CancellationToken):
                    token._link(source)
                elif callable(getattr(source, "is_set", None)) and callable(getattr(source, "wait", None)):
                    _EventWatch(source, token).start()
                else:
                    raise TypeError(f"linked() takes tokens and threading.Event objects, not {source!r}")
        except BaseException:
            token.close()
            raise
        return token

    def _link(self, source: "CancellationToken") -> None:
        def follow() -> None:
            self.cancel(source.cause or Cause.USER, source.text)

        registration = source.on_cancel(follow)
        registration.__enter__()
        with self._lock:
            self._on_close.append(lambda: registration.__exit__(None, None, None))

    @contextlib.contextmanager
    def deadline(self, seconds: float, text: Optional[str] = None) -> Iterator["CancellationToken"]:
        """Cancel this token with "timeout" and `text` if the block still runs after `seconds`.

        To limit a part of the work only, put the deadline on a child token. One timer thread runs
        while the block does and is joined when it is left.
        """
        timer = threading.Timer(check_seconds("a deadline", seconds), self.cancel, (Cause.TIMEOUT, text))
        timer.name = "syncagent-deadline"
        timer.daemon = True
        timer.start()
        try:
            yield self
        finally:
            timer.cancel()
            if timer is not threading.current_thread():
                timer.join()

    def close(self) -> None:
        """Free what the token holds: it leaves its parent, its wake-ups go, its descriptor closes.

        Closing cancels nothing and may be repeated. Whoever waits on the token is let go.
        """
        with self._lock:
            if self._closed:
                return
            self._closed = True
            pipe, self._pipe = self._pipe, None
            on_close, self._on_close = self._on_close, []
            self._wakeups.clear()
            self._children.clear()
            parent, self._parent = self._parent, None
            if pipe is not None:
                os.close(pipe[0])
                os.close(pipe[1])
        if parent is not None:
            with parent._lock:
                parent._children.pop(id(self), None)
        for undo in on_close:
            undo()

    def __enter__(self) -> "CancellationToken":
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        value: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        self.close()


def _run_all(wakeups: List[Callable[[], object]]) -> None:
    """Run every wake-up; log what one raises, and let a KeyboardInterrupt out only after the last."""
    interrupt: Optional[BaseException] = None
    for fn in wakeups:
        try:
            fn()
        except Exception:
            _logger.exception("a wake-up of a cancelled token failed")
        except BaseException as exc:
            interrupt = interrupt or exc
    if interrupt is not None:
        raise interrupt


class _EventWatch:
    """A thread that waits for a foreign `threading.Event` and can be let go without setting it.

    `Event.wait` can't be interrupted, and notifying its condition would make every other waiter
    return True. So one waiter of our own is put into the condition, as `Condition.wait` itself
    does, and taken out again; where an event has no such condition it is looked at every 50 ms.
    """

    def __init__(self, event: Any, token: CancellationToken) -> None:
        self._event = event
        self._token = token
        cond = getattr(event, "_cond", None)
        self._cond = cond if hasattr(cond, "_waiters") else None
        self._waiter = threading.Lock()
        self._waiter.acquire()
        self._stop = False
        self._thread = threading.Thread(target=self._run, name="syncagent-event-link", daemon=True)

    def start(self) -> None:
        if self._event.is_set():
            self._token.cancel(Cause.USER)
        with self._token._lock:
            if self._token.cause is not None:
                return
            self._token._register_locked(self._let_go)
            self._token._on_close.append(self._close)
        if self._cond is not None:
            with self._cond:
                if self._stop or self._event.is_set():
                    self._waiter.release()
                else:
                    self._cond._waiters.append(self._waiter)
        self._thread.start()

    def _run(self) -> None:
        if self._cond is not None:
            self._waiter.acquire()
        else:
            while not self._stop and not self._event.wait(0.05):
                pass
        if not self._stop:
            self._token.cancel(Cause.USER)

    def _let_go(self) -> None:
        """Let the thread end without the event. The token's wake-up, so it doesn't wait for it."""
        self._stop = True
        if self._cond is not None:
            with self._cond:
                with contextlib.suppress(ValueError):  # the event was set: it is out already
                    self._cond._waiters.remove(self._waiter)
                    self._waiter.release()

    def _close(self) -> None:
        self._let_go()
        started = self._thread.ident is not None
        if started and self._thread is not threading.current_thread():
            self._thread.join()
