"""Ctrl+C and SIGTERM while a turn is waited for: the only place where they may arrive.

A handler only puts the signal's number into a queue that the waiting main thread reads: it may
interrupt any line of Python, also one that holds a lock, so it takes none. It is there for the
length of one `run()`, in the main thread, and only where the host has left Python's own handler.
"""

import contextlib
import signal
import sys
import threading
from concurrent.futures import CancelledError
from queue import Empty, SimpleQueue
from types import FrameType, TracebackType
from typing import Any, Callable, Dict, List, Optional, Type

from syncagent.cancel import CancellationToken
from syncagent.runtime import agent as runtime
from syncagent.runtime.inbox import Handle, Input
from syncagent.runtime.result import TurnResult

__all__ = ["Agent", "Signals"]

#: The words of the log for the signals that are handled here.
VIA = {"SIGINT": "sigint", "SIGTERM": "sigterm", "SIGHUP": "sighup"}


class Signals:
    """The scope in which signals become notes in a queue; the old handlers return when it is left."""

    def __init__(self) -> None:
        self.notes: "SimpleQueue[Optional[int]]" = SimpleQueue()
        self._old: Dict[int, Any] = {}

    def __enter__(self) -> "Signals":
        if threading.current_thread() is threading.main_thread():
            for name in VIA:
                number = getattr(signal, name, None)
                if number is not None and signal.getsignal(number) is _own_handler(name):
                    self._old[number] = signal.signal(number, self._note)
        return self

    def _note(self, number: int, frame: Optional[FrameType]) -> None:
        self.notes.put(number)  # reentrant by its documentation: safe inside any line

    def restore(self) -> None:
        """Put the old handlers back; may be repeated."""
        while self._old:
            number, handler = self._old.popitem()
            signal.signal(number, handler)

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        value: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        self.restore()

    def late(self) -> List[int]:
        """The signals that came and were not looked at."""
        found: List[int] = []
        while True:
            try:
                number = self.notes.get_nowait()
            except Empty:
                return found
            if number is not None:
                found.append(number)


def _own_handler(name: str) -> Any:
    """The handler that stands where the host has set none."""
    return signal.default_int_handler if name == "SIGINT" else signal.SIG_DFL


class Agent(runtime.Agent):
    __doc__ = runtime.Agent.__doc__

    def run(
        self,
        content: Input,
        *,
        timeout: Optional[float] = None,
        token: Optional[CancellationToken] = None,
        notice: Optional[Callable[[str], None]] = None,
    ) -> TurnResult:
        """Send a message and wait for its turn.

        `timeout` is in seconds and `token` the caller's own (or a `threading.Event`): when one fires,
        the message's turn is cancelled, or the message withdrawn. `notice(text)` is told what a
        signal has brought about.

        In the main thread, where the host has no handler of its own, the first Ctrl+C stops the turn
        in order and KeyboardInterrupt is raised when its ending is in the log; the second kills what a
        stop gives time to end; the third leaves at once, with a log that the next open repairs. SIGTERM
        and SIGHUP stop the turn in order and raise `SystemExit` with 143 and 129. What is raised has
        the turn's result as `result`, None if it left at once.

        Raises what `send` raises, and the store's error if the ending could not be made durable.
        """
        self._driver.check_outside()
        say = notice or _silent
        with Signals() as signals:
            handle = self._send("next_turn", content, True, timeout, token)
            handle.future.add_done_callback(lambda future: signals.notes.put(None))
            number = self._wait(handle, signals, say)
            result = self._attend(handle)
        late = signals.late()
        number = number or (late[0] if late else None)
        if number is not None:
            _leave(number, result)
        return result

    def _wait(self, handle: Handle, signals: Signals, say: Callable[[str], None]) -> Optional[int]:
        """Wait until the future is settled; return the first signal that came, None if none did."""
        first: Optional[int] = None
        count = 0
        while True:
            try:
                number = _next(signals)
            except BaseException:  # raised by a handler of the host's
                self.cancel()
                with contextlib.suppress(CancelledError):  # the message was dropped: no turn to wait for
                    handle.future.exception()
                raise
            if number is None:
                return first
            first, count = first or number, count + 1
            # The stop first: whoever is told may be slow to listen.
            if count == 1:
                self.cancel(via=VIA[signal.Signals(number).name])
                say("stopping; press Ctrl+C again to kill what is running")
            elif count == 2:
                self.kill()
                say("killing; press Ctrl+C again to leave at once")
            else:
                signals.restore()
                _leave(number, None)


def _next(signals: Signals) -> Optional[int]:
    if sys.platform != "win32":
        return signals.notes.get()
    while True:  # a wait without a limit can't be interrupted there
        try:
            return signals.notes.get(timeout=0.2)
        except Empty:
            continue


def _leave(number: int, result: Optional[TurnResult]) -> None:
    leaving: BaseException = KeyboardInterrupt() if number == signal.SIGINT else SystemExit(128 + number)
    leaving.result = result  # type: ignore[attr-defined]
    raise leaving


def _silent(text: str) -> None:
    """A program that asked for no notices gets none."""
