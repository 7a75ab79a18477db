"""The runtime's side of child processes: starts the supervisor when it is first needed, runs calls.

It knows no tool, no session and no log.

Lock order: `_State.lock` guards the supervisor and the list of calls; nothing blocks while it is
held but the start of the supervisor itself. The lock of a `Call` comes after it.
"""

import contextlib
import os
import threading
import time
from typing import Callable, Dict, Iterator, Mapping, Optional, Sequence, Set

import attrs

from syncagent.boundary.process.launcher import Supervisor
from syncagent.boundary.process.order import encode
from syncagent.boundary.process.pump import HeadTail, LiveText
from syncagent.boundary.process.run import Call, Conversation, NeverStarted, ProcessError, ProcessResult
from syncagent.boundary.process.wires import Wires
from syncagent.cancel import CancellationToken
from syncagent.seconds import check_seconds

__all__ = ["Processes"]


@attrs.define(eq=False)
class _State:
    """What a `Processes` has in one OS process; a forked child gets a new one, with a new lock."""

    lock: threading.Lock = attrs.field(factory=threading.Lock)
    supervisor: Optional[Supervisor] = None
    calls: Set[Call] = attrs.field(factory=set)
    idle: threading.Event = attrs.field(factory=threading.Event)
    closed: bool = False


@attrs.frozen(kw_only=True)
class _Job:
    """What one `run` was asked for."""

    order: bytes
    stdin: bytes
    token: CancellationToken
    deadline: Optional[float]
    buffer: HeadTail
    live: Optional[LiveText]
    share: Optional[int]


def _deadline(timeout: Optional[float]) -> Optional[float]:
    """On the monotonic clock; None if there is none."""
    limit = check_seconds("timeout", timeout, positive=True)
    return None if limit is None else time.monotonic() + limit


class Processes:
    """Runs child processes so that nothing of them is ever left; safe to use from many threads.

    The supervisor starts with the first `run` and ends with `close`, or when this process dies. A
    forked child starts its own. The umask and the limits of a tool are those of the moment when the
    supervisor started; its folder and environment are those of the call.
    """

    def __init__(self) -> None:
        self._states: Dict[int, _State] = {}

    def _state(self) -> _State:
        """This OS process's state. After a fork the inherited one can't be used: its lock may be held."""
        pid = os.getpid()
        state = self._states.get(pid)
        if state is None:
            state = self._states.setdefault(pid, _State())
            for other in set(self._states) - {pid}:
                inherited = self._states.pop(other, None)
                if inherited is not None:
                    for call in inherited.calls:
                        call.forget()
                    if inherited.supervisor is not None:
                        inherited.supervisor.forget()
        return state

    @property
    def supervisor_pid(self) -> Optional[int]:
        """The pid of the supervisor, None while there is none. Waits for one that is just starting."""
        state = self._state()
        with state.lock:
            return None if state.supervisor is None else state.supervisor.child.pid

    def run(
        self,
        argv: Sequence[str],
        *,
        token: CancellationToken,
        cwd: Optional[str] = None,
        env: Optional[Mapping[str, str]] = None,
        stdin: bytes = b"",
        timeout: Optional[float] = None,
        grace: float = 0.5,
        linger: float = 0.1,
        on_output: Optional[Callable[[str], object]] = None,
        head: int = 16384,
        tail: int = 65536,
        share: Optional[int] = None,
    ) -> ProcessResult:
        """Run a program to its end and return how it ended; nothing of it is left then.

        It gets no terminal, and `stdin` or nothing as input; `cwd` and `env` default to ours. When
        `token` is cancelled, or after `timeout` seconds, all of it gets TERM and, `grace` seconds
        later, KILL; so does, `linger` seconds after its own end, what it has left running. The
        output goes to `on_output` while it comes, in this thread, until that returns False. `share` is
        an open descriptor that the program gets as its number 3; it stays the caller's.

        Raises `Cancelled` if the token is cancelled before anything was started, `ProcessError` if
        nothing can be started or the guard is lost, `ValueError` for what no program can get. A
        program that isn't there is no exception but exit code 127 or 126 and a message.
        """
        _check_system()
        with _starting():
            order = encode(argv, cwd, env, grace, linger)
        return self.perform(
            order,
            token=token,
            stdin=stdin,
            timeout=timeout,
            on_output=on_output,
            head=head,
            tail=tail,
            share=share,
        )

    def perform(
        self,
        order: bytes,
        *,
        token: CancellationToken,
        stdin: bytes = b"",
        timeout: Optional[float] = None,
        on_output: Optional[Callable[[str], object]] = None,
        head: int,
        tail: int,
        share: Optional[int] = None,
    ) -> ProcessResult:
        """Have an order of `syncagent.boundary.process.order` done. The rest is as in `run`."""
        _check_system()
        job = _Job(
            order=order,
            stdin=stdin,
            token=token,
            deadline=_deadline(timeout),
            buffer=HeadTail(head=head, tail=tail),
            live=None if on_output is None else LiveText(on_output),
            share=share,
        )
        token.raise_if_cancelled()
        return self._run(self._state(), job)

    def _run(self, state: _State, job: _Job) -> ProcessResult:
        said = ""
        for _ in range(2):
            with _starting():
                supervisor = self._start(state)
            job.token.raise_if_cancelled()
            try:
                return _perform(state, supervisor, job)
            except NeverStarted as exc:
                # It was killed, or is no Python: nothing was started, so a second try is safe.
                said = self._discard(state, supervisor) or said
                if not exc.again:
                    break
        said = said or "it ended, or is silent"
        raise ProcessError(f"the supervisor of child processes doesn't run: {said}")

    def _start(self, state: _State) -> Supervisor:
        with state.lock:
            if state.closed:
                raise ProcessError("no child process can be started: it was closed")
            if state.supervisor is not None and not state.supervisor.alive:
                state.supervisor.end()
                state.supervisor = None
            if state.supervisor is None:
                state.supervisor = Supervisor.start()
            return state.supervisor

    def _discard(self, state: _State, supervisor: Supervisor) -> str:
        with state.lock:
            if state.supervisor is not supervisor:
                return ""
            state.supervisor = None
        return supervisor.end()

    def kill_now(self) -> None:
        """Set the grace of everything that runs to zero: what is being stopped is killed at once."""
        state = self._state()
        with state.lock:
            calls = list(state.calls)
        for call in calls:
            call.hurry()

    def close(self) -> None:
        """Kill what still runs, wait until it is gone, end and reap the supervisor; may be repeated."""
        state = self._state()
        with state.lock:
            state.closed = True
            calls = list(state.calls)
            supervisor, state.supervisor = state.supervisor, None
            if not calls:
                state.idle.set()
        for call in calls:
            call.stop("cancelled")
            call.kill()
        state.idle.wait()
        if supervisor is not None:
            supervisor.end()


def _check_system() -> None:
    if os.name != "posix":
        raise ProcessError("child processes need a POSIX system; this one isn't")


@contextlib.contextmanager
def _starting() -> Iterator[None]:
    """Before anything was started, what the system refuses is a `ProcessError`."""
    try:
        yield
    except OSError as exc:
        raise ProcessError(f"cannot start a child process: {exc}") from exc


@contextlib.contextmanager
def _listed(state: _State, call: Call) -> Iterator[None]:
    """Have the call among those that `kill_now` and `close` reach."""
    with state.lock:
        if state.closed:
            raise ProcessError("no child process can be started: it was closed")
        state.calls.add(call)
    try:
        yield
    finally:
        with state.lock:
            state.calls.discard(call)
            if state.closed and not state.calls:
                state.idle.set()


def _perform(state: _State, supervisor: Supervisor, job: _Job) -> ProcessResult:
    """Have one call done. Raises `NeverStarted` if the supervisor is dead or no supervisor."""
    with _starting():
        wires = Wires(feed=bool(job.stdin), share=job.share)
    call = Call(wires)
    with contextlib.ExitStack() as stack:
        stack.callback(call.close)
        stack.enter_context(_listed(state, call))
        # From here on a cancel reaches the call, also one that comes before there is a process.
        stack.enter_context(job.token.on_cancel(lambda: call.stop("cancelled")))
        job.token.raise_if_cancelled()
        with _starting():
            supervisor.send(wires.theirs, job.token)
        wires.close_theirs()
        talk = Conversation(
            call, wires, order=job.order, feed=job.stdin, buffer=job.buffer, live=job.live
        )
        if not talk.wait_for_guard(deadline=job.deadline):
            if call.verdict == "timed_out":
                return ProcessResult(exit_code=None, timed_out=True)
            job.token.raise_if_cancelled()
            raise ProcessError("no child process can be started: it was closed")
        try:
            talk.hold(deadline=job.deadline)
        except BaseException:
            # A failing `on_output`, or Ctrl+C in the main thread: still nothing is abandoned.
            talk.give_up()
            raise
        result = talk.result()
        if result.cancelled and not talk.started:
            job.token.raise_if_cancelled()
        return result
