"""Ctrl+C and SIGTERM while a turn is waited for: the only place where they may arrive.

A signal becomes a byte in a socket that the waiting main thread reads; no handler takes a lock, for
it may interrupt any line of Python, also one that holds it. They are there for the length of one
`run()`, in the main thread, and only where the host has left Python's own handlers.
"""

import contextlib
import signal
import socket
import threading
from concurrent.futures import CancelledError
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
    """The scope in which signals are bytes of a socket; the old handlers return when it is left.

    The byte is written by the C part of Python's handlers (`signal.set_wakeup_fd`). The part in Python
    runs when the main thread does, so a signal that comes in the moment before that one falls asleep
    would not wake it. Where the host has a descriptor of its own there, it keeps it, and the part in
    Python writes.
    """

    def __init__(self) -> None:
        self.late: List[int] = []  # signals that had come and were not looked at, when it was left
        self._woken, self._wake = socket.socketpair()
        self._wake.setblocking(False)
        self._closing = threading.Lock()  # of `wake` and the end; no handler takes it
        self._closed = False
        self._old: Dict[int, Any] = {}
        self._ours: List[int] = []
        self._host: Optional[int] = None  # the host's descriptor, while ours is in its place

    def __enter__(self) -> "Signals":
        if threading.current_thread() is threading.main_thread():
            for name in VIA:
                number = getattr(signal, name, None)
                if number is not None and signal.getsignal(number) is _own_handler(name):
                    self._ours.append(number)
                    self._old[number] = signal.signal(number, self._note)
            if self._old:
                host = signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)
                if host == -1:
                    self._host = host
                else:
                    signal.set_wakeup_fd(host)
        return self

    def _note(self, number: int, frame: Optional[FrameType]) -> None:
        if self._host is None:
            with contextlib.suppress(OSError):  # the socket is full of signals, or closed
                self._wake.send(bytes([number]))

    def next(self) -> Optional[int]:
        """Wait for the next signal and return its number; None when `wake` was called."""
        while True:
            number = self._woken.recv(1)[0]
            if number == 0:
                return None
            if number in self._ours:  # others have handlers of the host's
                return number

    def wake(self, *_: object) -> None:
        """Have `next` return None; from any thread, and when the scope has been left."""
        with self._closing:
            if not self._closed:
                self._wake.send(b"\0")

    def restore(self) -> None:
        """Put the old handlers back, SIGINT's last; may be repeated."""
        if self._host is not None:
            # From here to the end the part in Python writes, so nothing that comes is lost.
            host, self._host = self._host, None
            signal.set_wakeup_fd(host)
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
        with self._closing:
            self._closed = True
            self._woken.setblocking(False)
            with contextlib.suppress(BlockingIOError):  # nothing is left to read
                while True:
                    self.late.extend(number for number in self._woken.recv(256) if number in self._ours)
            self._woken.close()
            self._wake.close()


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
        signal has brought about, and which tool goes on a second after it was stopped; the latter
        goes to standard error where there is no `notice`.

        In the main thread, where the host has no handler of its own, the first Ctrl+C stops the turn
        in order and KeyboardInterrupt is raised when its ending is in the log; the second kills what a
        stop gives time to end; at the third it is raised at once, with the turn still open: a process
        that ends then leaves a log that the next open repairs. SIGTERM and SIGHUP stop the turn in order
        and raise `SystemExit` with 143 and 129. What is raised has the turn's result as `result`, None
        if nobody waited for it.

        Raises what `send` raises, and the store's error if the ending could not be made durable.
        """
        self._driver.check_outside()
        say = notice or _silent
        with Signals() as signals:
            handle = self._send("next_turn", content, timeout=timeout, token=token)
            handle.notice = notice
            handle.future.add_done_callback(signals.wake)
            number = self._wait(handle, signals, say)
            result = self._attend(handle)
        number = number or next(iter(signals.late), None)
        if number is not None:
            _leave(number, result)
        return result

    def _wait(self, handle: Handle, signals: Signals, say: Callable[[str], None]) -> Optional[int]:
        """Wait until the future is settled; return the first signal that came, None if none did."""
        first: Optional[int] = None
        count = 0
        while True:
            try:
                number = signals.next()
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


def _leave(number: int, result: Optional[TurnResult]) -> None:
    leaving: BaseException = KeyboardInterrupt() if number == signal.SIGINT else SystemExit(128 + number)
    leaving.result = result  # type: ignore[attr-defined]
    raise leaving


def _silent(text: str) -> None:
    """A program that asked for no notices gets none."""
