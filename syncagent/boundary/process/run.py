"""One tool process seen from the runtime: a poll loop in the calling thread, and what may stop it.

It knows the words of the control socket (see `supervisor`) and nothing of how a guard is started.
"""

import contextlib
import os
import select
import signal as signals
import socket
import threading
import time
from typing import List, Optional

import attrs

from syncagent.boundary.process.pump import HeadTail, LiveText
from syncagent.boundary.process.wires import NO_SIGPIPE, Wires, sigpipe_held
from syncagent.errors import SyncagentError

__all__ = ["Call", "Conversation", "NeverStarted", "ProcessError", "ProcessResult"]

READ_SIZE = 1 << 18
#: How much is read after the end, of what a stranger who holds the pipe may be writing still.
REST_LIMIT = 1 << 20
#: How long a guard may take to say its first word; then what was started is no supervisor.
START_LIMIT = 60.0
#: How long the supervisor may take to reap a guard that has finished.
LAST_WORD_LIMIT = 1.0


class ProcessError(SyncagentError):
    """A child process could not be started, or its supervision was lost.

    `output` is what it had written until then. `lost` says that the supervision was, or that the
    system refused to start it, so that the next try may go well.
    """

    def __init__(self, message: str, *, output: str = "", lost: bool = False) -> None:
        super().__init__(message)
        self.output = output
        self.lost = lost


class NeverStarted(Exception):
    """No guard has spoken, so nothing was started. `again` is whether a new supervisor may help."""

    def __init__(self, *, again: bool) -> None:
        super().__init__(again)
        self.again = again


@attrs.frozen(kw_only=True)
class ProcessResult:
    """How a tool process ended; when it is returned, nothing of the process is left.

    `exit_code` is None if a signal ended it, or if nothing was started; `signal` is that signal's
    number. `timed_out` and `cancelled` say that it was stopped, whatever its exit code says, and at
    most one of them is true: the first to come. `stopped` counts the processes that it had left in
    the background and that were stopped, `left` those that couldn't be, because they are another
    user's. `output` is standard output and error as they came, with a note where `dropped` bytes in
    the middle are left out.
    """

    exit_code: Optional[int]
    signal: Optional[int] = None
    timed_out: bool = False
    cancelled: bool = False
    stopped: int = 0
    left: int = 0
    output: str = ""
    dropped: int = 0

    @property
    def ending(self) -> str:
        """How the program itself ended, in words: its exit code, or the signal that killed it."""
        if self.signal is None:
            return "nothing was started" if self.exit_code is None else f"exit code {self.exit_code}"
        try:
            return f"killed by signal {self.signal} ({signals.Signals(self.signal).name})"
        except ValueError:  # a real-time signal has no name
            return f"killed by signal {self.signal}"


class Call:
    """A running call as other threads see it: they may stop it, and nothing else.

    The first of time-out and cancel wins. Nothing here blocks, and all is done under a lock, so
    that a stop which comes late never meets a descriptor that is somebody else's by then.
    """

    def __init__(self, wires: Wires) -> None:
        self._lock = threading.Lock()
        self._wires = wires
        self._begun = False
        self._pid = os.getpid()
        self.verdict: Optional[str] = None

    def begin(self) -> bool:
        """Allow the order to be sent; False if a stop came first, and then nothing starts."""
        with self._lock:
            self._begun = self.verdict is None
            return self._begun

    def stop(self, why: str) -> None:
        """TERM, then KILL after the grace; `why` is "cancelled" or "timed_out"."""
        if os.getpid() != self._pid:
            return  # a forked child cancels its copy of the token: the tool is its parent's
        with self._lock:
            if self.verdict is None:
                self.verdict = why
                if self._begun:
                    self._say_locked(b"T")
                elif self._wires.control is not None:
                    # Also wakes our own thread, which needn't wait for a guard that has no order.
                    with contextlib.suppress(OSError):
                        self._wires.control.shutdown(socket.SHUT_RDWR)

    def hurry(self) -> None:
        """No grace from now on."""
        with self._lock:
            self._say_locked(b"0")

    def kill(self) -> None:
        """KILL at once."""
        with self._lock:
            self._say_locked(b"K")

    def close(self) -> None:
        with self._lock:
            self._wires.close()

    def forget(self) -> None:
        """In a forked child: close its copies. The lock isn't taken, another thread may have held it."""
        self._wires.close()

    def _say_locked(self, word: bytes) -> None:
        assert self._lock.locked()
        if self._wires.control is not None:
            with contextlib.suppress(OSError):  # the guard is gone, and so is everything else
                self._wires.control.send(word, NO_SIGPIPE)


class Conversation:
    """The poll loop: writes the order and standard input, reads the output and the guard's words."""

    def __init__(
        self,
        call: Call,
        wires: Wires,
        *,
        order: bytes,
        feed: bytes,
        buffer: HeadTail,
        live: Optional[LiveText],
    ) -> None:
        assert wires.control is not None
        self._call = call
        self._wires = wires
        self._control = wires.control
        self._order = memoryview(order)
        self._feed = memoryview(feed)
        self._buffer = buffer
        self._live = live
        self._line = b""
        self._heard: List[str] = []  # the first word of each line, in order
        self._status = "none"
        self._stopped = self._left = 0
        self._error: Optional[str] = None
        self._over = False  # the guard is reaped, or nobody is at the other end any more
        self._output = wires.output
        self._read = memoryview(bytearray(READ_SIZE))
        self._poll = select.poll()
        self._poll.register(self._control, select.POLLIN)

    def wait_for_guard(self, *, deadline: Optional[float]) -> bool:
        """Wait for the guard's first word; False if a stop came first, or the deadline.

        The order is sent after that word, and nothing is started without it: so a stop may leave
        here at once. Raises `NeverStarted` when the supervisor is dead or silent.
        """
        limit = time.monotonic() + START_LIMIT
        while not self._heard and not self._over:
            now = time.monotonic()
            if deadline is not None and now >= deadline:
                self._call.stop("timed_out")
            elif now >= limit:
                raise NeverStarted(again=False)
            self._turn(now, deadline, limit)
        if not self._call.begin():
            return False
        if not self._heard:
            raise NeverStarted(again=True)
        return True

    def hold(self, *, deadline: Optional[float]) -> None:
        """Go on until nothing of the tool is left; `deadline` is on the monotonic clock."""
        assert self._output is not None and self._wires.request is not None
        self._poll.register(self._output, select.POLLIN)
        self._poll.register(self._wires.request, select.POLLOUT)
        if self._wires.stdin is not None:
            self._poll.register(self._wires.stdin, select.POLLOUT)
        while not self._over:
            now = time.monotonic()
            if deadline is not None and now >= deadline:
                self._call.stop("timed_out")
                deadline = None
            self._turn(now, deadline)
        self._read_rest()

    def give_up(self) -> None:
        """After a failure in `hold`: KILL, and wait until everything is dead."""
        self._live = None
        self._call.kill()
        self._end_request()
        self._end_stdin()
        while not self._over:
            self._turn(time.monotonic())

    def _turn(self, now: float, *limits: Optional[float]) -> None:
        """Wait for one thing to happen, or for the first of the limits, and deal with it."""
        due = self._live.due if self._live is not None else None
        ends = [end for end in (due, *limits) if end is not None]
        gone = "gone" in self._heard
        if gone:
            ends.append(now + LAST_WORD_LIMIT)
        ready = self._poll.poll(None if not ends else int(max(0.0, min(min(ends) - now, 1e6)) * 1000 + 0.999))
        now = time.monotonic()
        for fd, _ in ready:
            if fd == self._output:
                self._read_output(now)
            elif fd == self._control.fileno():
                self._listen()
            elif fd == self._wires.stdin:
                self._feed_stdin()
            elif self._wires.request is not None and fd == self._wires.request.fileno():
                self._send_order()
        if self._live is not None and due is not None and now >= due:
            self._live.flush(now)
        self._over = self._over or (gone and not ready)

    # -- output -----------------------------------------------------------------------------------

    def _read_output(self, now: float) -> int:
        assert self._output is not None
        try:
            count = os.readv(self._output, [self._read])
        except BlockingIOError:
            return 0
        if count == 0:
            self._poll.unregister(self._output)
            self._output = None
            return 0
        self._buffer.add(self._read[:count])
        if self._live is not None:
            self._live.add(self._read[:count], now)
        return count

    def _read_rest(self) -> None:
        """What the dead have left in the pipe."""
        limit = REST_LIMIT
        while self._output is not None and limit > 0:
            count = self._read_output(time.monotonic())
            if count == 0:
                break
            limit -= count
        if self._live is not None:
            self._live.finish(time.monotonic())

    # -- input ------------------------------------------------------------------------------------

    def _send_order(self) -> None:
        assert self._wires.request is not None
        try:
            self._order = self._order[self._wires.request.send(self._order, NO_SIGPIPE) :]
        except BlockingIOError:
            return
        except OSError:  # the guard is gone, or wants no order any more: the control socket says so
            self._order = self._order[:0]
        if not self._order:
            self._end_request()

    def _end_request(self) -> None:
        if self._wires.request is not None:
            self._poll.unregister(self._wires.request)
            self._wires.close_request()

    def _feed_stdin(self) -> None:
        assert self._wires.stdin is not None
        try:
            with sigpipe_held():
                self._feed = self._feed[os.write(self._wires.stdin, self._feed[:READ_SIZE]) :]
        except BlockingIOError:
            return
        except OSError:  # nobody reads it any more
            self._feed = self._feed[:0]
        if not self._feed:
            self._end_stdin()

    def _end_stdin(self) -> None:
        if self._wires.stdin is not None:
            self._poll.unregister(self._wires.stdin)
            self._wires.close_stdin()

    # -- the guard's words ------------------------------------------------------------------------

    def _listen(self) -> None:
        try:
            data = self._control.recv(4096)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self._over = self._over or not data
        *lines, self._line = (self._line + data).split(b"\n")
        for line in lines:
            self._hear(line.decode("utf-8", "replace"))

    def _hear(self, line: str) -> None:
        word, _, rest = line.partition(" ")
        self._heard.append(word)
        if word == "gone":
            self._status, stopped, left = rest.split()
            self._stopped, self._left = int(stopped), int(left)
        elif word == "error":
            self._error = rest
        elif word == "lost":
            self._error = f"its guard ended unexpectedly (status {rest}); all that it had started was killed"
        self._over = self._over or word in ("over", "lost")

    # -- the end ----------------------------------------------------------------------------------

    @property
    def started(self) -> bool:
        """Whether a process was started."""
        return "pid" in self._heard

    def result(self) -> ProcessResult:
        """How it ended. Raises `ProcessError` if nobody can say."""
        # What ended before the stop reached it was not stopped.
        reached = "stopping" in self._heard or "exit" not in self._heard
        verdict = self._call.verdict if reached else None
        if self._error is None and "gone" not in self._heard and "hello" in self._heard:
            self._error = "its guard ended unexpectedly, and their supervisor too"
        if self._error is not None and verdict is None:
            text = f"a child process was lost: {self._error}"
            raise ProcessError(text, output=self._buffer.text(), lost=True)
        code = None if self._status == "none" else int(self._status)
        return ProcessResult(
            exit_code=code if code is not None and code >= 0 else None,
            signal=-code if code is not None and code < 0 else None,
            timed_out=verdict == "timed_out",
            cancelled=verdict == "cancelled",
            stopped=self._stopped,
            left=self._left,
            output=self._buffer.text(),
            dropped=self._buffer.dropped,
        )
