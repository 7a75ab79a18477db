"""What goes on beside a turn that is being stopped: who still runs, since when, and what helps.

Each boundary of a turn is entered through `Stopping.at`. A thread, which a turn has from its first body
on, sleeps until a stop. Then it looks after the bodies that haven't ended: it stops the processes that
one has started by itself, and after a second it says which goes on and where it stands. How long each
boundary took to end is what `cancel/settled` says.
"""

import contextlib
import os
import sys
import threading
import time
from typing import Any, Callable, Dict, Iterator, List, Optional

import attrs

from syncagent.boundary.process.strays import Spare, Strays
from syncagent.boundary.tools.text import clean
from syncagent.cancel import CancellationToken

__all__ = ["Boundary", "Stopping"]

#: Seconds after which a body that goes on is told of.
PATIENCE = 1.0
#: Seconds between two looks at the processes of a body that goes on: it may start others.
FIRST_PAUSE, LONGEST_PAUSE = 0.002, 0.05


@attrs.define(eq=False)
class Boundary:
    """One boundary that a thread of the turn is in. `lock` is held while its processes are signalled."""

    kind: str
    name: str
    call_id: Optional[str]
    strays: Optional[Strays]
    thread: int = attrs.field(factory=threading.get_ident)
    since: float = attrs.field(factory=time.monotonic)
    stopped_at: Optional[float] = None
    told: bool = False
    over: bool = False
    lock: threading.Lock = attrs.field(factory=threading.Lock)

    @property
    def stopped(self) -> str:
        """The processes that were stopped with it, in words; "" if there were none."""
        return "" if self.strays is None else self.strays.stopped

    def where(self) -> str:
        """For how long it has run, and the line on which its thread stands."""
        text = f"{self.name} for {time.monotonic() - self.since:.0f} s"
        frame = sys._current_frames().get(self.thread)
        if frame is not None:
            code = frame.f_code
            text += f", at {os.path.basename(code.co_filename)}:{frame.f_lineno} in {code.co_name}"
        return text

    def look(self, spare: Spare) -> None:
        with self.lock:
            if self.strays is not None and not self.over:
                self.strays.stop(spare)


class Stopping:
    """The boundaries that a turn's threads are in, and the thread that looks after them at a stop.

    `token` is the turn's; `say(text)` is told of a body that goes on; `spare()` gives the pids that no
    stop of a body may touch. Close it before the turn's ending is written.
    """

    def __init__(
        self,
        *,
        token: CancellationToken,
        say: Callable[[str], None],
        spare: Spare,
    ) -> None:
        self._token = token
        self._say = say
        self._spare = spare
        self._cond = threading.Condition()
        self._open: Dict[int, Boundary] = {}
        self._thread: Optional[threading.Thread] = None
        self._closed = False
        self.settled: List[Dict[str, Any]] = []  # what the turn's own stop has ended, in that order

    @contextlib.contextmanager
    def at(
        self,
        kind: str,
        token: CancellationToken,
        *,
        name: str = "",
        call_id: Optional[str] = None,
        body: bool = False,
    ) -> Iterator[Boundary]:
        """Be at a boundary while the block runs. `body` says that it is a stranger's code, which may
        have started processes by itself and may go on when it is told to stop."""
        mine = Boundary(kind, name or kind, call_id, Strays() if body else None)
        key = id(mine)
        with self._cond:
            self._open[key] = mine
            if body:
                self._watch_locked()
        try:
            with token.on_cancel(lambda: self._begin(mine)):
                yield mine
        finally:
            with mine.lock:
                mine.over = True
            if mine.strays is not None:
                mine.strays.settle(self._spare)
            with self._cond:
                del self._open[key]
                if mine.stopped_at is not None:
                    if self._token.cancelled:  # else only the call's own time-out
                        self.settled.append(_settled(mine))
                    self._cond.notify_all()

    def _begin(self, mine: Boundary) -> None:
        """Wake-up of its token; it may come when the block has just been left."""
        with self._cond:
            if id(mine) in self._open:
                mine.stopped_at = time.monotonic()
                self._cond.notify_all()

    def _watch_locked(self) -> None:
        """Have the thread there before it is needed: a stop must not wait until one has started."""
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="syncagent-stopping", daemon=True)
            with contextlib.suppress(RuntimeError):  # the system has no more threads: then nobody looks
                thread.start()
                self._thread = thread

    def _run(self) -> None:
        pause = FIRST_PAUSE
        known = 0
        while True:
            with self._cond:
                stopped = [each for each in self._open.values() if each.stopped_at is not None]
                todo = [each for each in stopped if each.strays is not None]
                if not todo:
                    if self._closed:
                        return
                    known = 0
                    self._cond.wait()
                    continue
            if len(todo) > known:
                pause = FIRST_PAUSE  # one more was stopped
            known = len(todo)
            for each in todo:
                each.look(self._spare)
                self._tell(each)
            with self._cond:
                self._cond.wait(pause)
            pause = min(LONGEST_PAUSE, pause * 1.5)

    def _tell(self, each: Boundary) -> None:
        assert each.stopped_at is not None
        late = time.monotonic() - each.stopped_at
        if late >= PATIENCE and not each.told and not each.over:
            each.told = True
            self._say(f"stopping: still waiting after {late:.0f} s for {each.where()}")

    def hurry(self) -> None:
        """No grace from now on for the processes of bodies."""
        with self._cond:
            for each in self._open.values():
                if each.strays is not None:
                    each.strays.hurry()
            self._cond.notify_all()

    def inside(self) -> List[Boundary]:
        """Where the turn's threads are now."""
        with self._cond:
            return list(self._open.values())

    def close(self) -> None:
        """End the thread and join it; nothing is open any more. May be repeated."""
        with self._cond:
            self._closed = True
            thread, self._thread = self._thread, None
            self._cond.notify_all()
        if thread is not None:
            thread.join()


def _settled(boundary: Boundary) -> Dict[str, Any]:
    assert boundary.stopped_at is not None
    label = boundary.kind if boundary.name == boundary.kind else f"{boundary.kind} {boundary.name}"
    found: Dict[str, Any] = {
        "boundary": clean(label),
        "ms": round((time.monotonic() - boundary.stopped_at) * 1000, 3),
    }
    if boundary.call_id is not None:
        found["call_id"] = boundary.call_id
    return found
