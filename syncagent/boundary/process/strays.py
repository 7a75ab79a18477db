"""The children that a thread of this process has started by itself, past `Processes`. Linux only.

A tool that takes no token may wait in a `subprocess.run` of its own. The kernel lists the children of
each thread, so those of one call can be told from all others of the host; when they are gone, what
waits for them returns. Here nothing is a subreaper, as the host is none: what a child has made an
orphan before anybody looked (a daemon) isn't found. On other systems there is no such list, and
nothing is stopped.
"""

import os
import signal
import sys
import threading
import time
from typing import Any, Callable, Dict, Iterable, List, Set

import attrs

from syncagent.boundary.process import proctree

__all__ = ["Strays"]

#: Gives the pids that no stop may touch.
Spare = Callable[[], Iterable[int]]
#: How many of the stopped processes are named.
NAMED = 5
#: Seconds that a process may take to be held: on a busy machine it first has to get its turn.
HOLD_LIMIT = 0.25
#: Seconds after its KILL that a process may go on before it counts as one that refuses.
REFUSED_LIMIT = 2.0


@attrs.define
class _Seen:
    """A process that gets TERM now and KILL after the grace."""

    name: str
    kill_at: float


class Strays:
    """The children of one thread that it starts from now on, and all below them.

    Made in that thread. What it had started before is the host's and is left alone, and so are the
    pids that `spare` gives. `stop` may be called from another thread.
    """

    def __init__(self, *, grace: float = 0.5) -> None:
        self._thread = threading.get_native_id()
        self._process = os.getpid()
        self._grace = grace
        self._before: Set[proctree.Process] = set()
        for pid in self._children():
            stat = proctree.stat_of(pid)
            if stat is not None:
                self._before.add(proctree.Process(pid, stat.start))
        self._seen: Dict[proctree.Process, _Seen] = {}

    def stop(self, spare: Spare = tuple) -> None:
        """Look once: TERM to whoever is there for the first time, KILL to whoever had its grace."""
        if os.getpid() != self._process:
            return  # a forked child has its copy of this, and no such thread
        now = time.monotonic()
        children = self._children()
        # Asked for after the list: who is on it and to be spared is known by then.
        spared = {*spare(), *_of_multiprocessing()} if children else set()
        todo = [(os.getpid(), pid) for pid in children if pid not in spared]
        for process in self._seen:
            # One whose parent is dead isn't below the thread any more, and is no less its own.
            stat = proctree.stat_of(process.pid)
            if stat is not None and stat.start == process.start:
                todo.append((stat.parent, process.pid))
        due: Dict[proctree.Process, proctree.Stat] = {}
        done: Set[proctree.Process] = set(self._before)
        while todo:
            parent, pid = todo.pop(0)
            stat = proctree.stat_of(pid)
            if stat is None or stat.parent != parent:
                continue  # it has ended, and the pid may be a stranger's
            process = proctree.Process(pid, stat.start)
            if process in done:
                continue
            done.add(process)
            seen = self._seen.get(process)
            if stat.living and (seen is None or now >= seen.kill_at):
                _hold(process, stat)
                due[process] = stat
            todo.extend((pid, child) for child in proctree.children_of(pid))
        for process, stat in due.items():
            self._signal(process, stat, now)

    def settle(self, spare: Spare = tuple) -> None:
        """Wait until whoever was stopped is gone: what waited for a child returns before its children end.

        One that takes no KILL, being another user's, isn't waited for.
        """
        pause = 0.0002
        while any(self._is_due(process, seen) for process, seen in self._seen.items()):
            time.sleep(pause)
            pause = min(0.02, pause * 1.5)
            self.stop(spare)

    def _is_due(self, process: proctree.Process, seen: _Seen) -> bool:
        stat = proctree.stat_of(process.pid)
        alive = stat is not None and stat.start == process.start and stat.living
        return alive and time.monotonic() < seen.kill_at + REFUSED_LIMIT

    def _signal(self, process: proctree.Process, stat: proctree.Stat, now: float) -> None:
        first = process not in self._seen
        if first:
            self._seen[process] = _Seen(_name(process.pid), now + self._grace)
        if first and self._grace:
            proctree.send(process, stat, signal.SIGTERM)
            proctree.send(process, stat, signal.SIGCONT)
        else:
            proctree.send(process, stat, signal.SIGKILL)

    def hurry(self) -> None:
        """No grace from now on."""
        self._grace = 0.0
        for seen in list(self._seen.values()):
            seen.kill_at = min(seen.kill_at, time.monotonic())

    @property
    def stopped(self) -> str:
        """What was stopped, in words: "2 processes: make (pid 7), cc (pid 9)"; "" if nothing was."""
        if not self._seen:
            return ""
        names = [f"{seen.name} (pid {process.pid})" for process, seen in list(self._seen.items())]
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        count = f"{len(names)} process{'' if len(names) == 1 else 'es'}"
        return f"{count}: {', '.join(names[:NAMED])}{more}"

    def _children(self) -> List[int]:
        try:
            with open(f"/proc/self/task/{self._thread}/children") as file:
                return list(map(int, file.read().split()))
        except OSError:  # another system, or the thread has ended
            return []


def _hold(process: proctree.Process, stat: proctree.Stat) -> None:
    """Keep a process from starting others until it gets its signal, so that the list of them is whole.

    One that dies between the list and its signal would leave an orphan that nobody finds. The kernel
    holds it when it next leaves the kernel; one that doesn't come out in time isn't waited for.
    """
    proctree.send(process, stat, signal.SIGSTOP)
    end = time.monotonic() + HOLD_LIMIT
    while time.monotonic() < end:
        now = proctree.stat_of(process.pid)
        if now is None or now.held or not now.living or now.start != process.start:
            return
        time.sleep(0.0001)


def _of_multiprocessing() -> Set[int]:
    """The helpers that `multiprocessing` keeps for the whole process, whatever thread needed one first."""
    found: Set[int] = set()
    for module, holder, name in (
        ("multiprocessing.resource_tracker", "_resource_tracker", "_pid"),
        ("multiprocessing.forkserver", "_forkserver", "_forkserver_pid"),
    ):
        helper: Any = getattr(sys.modules.get(module), holder, None)
        pid = getattr(helper, name, None)
        if isinstance(pid, int):
            found.add(pid)
    return found


def _name(pid: int) -> str:
    """The program's name as the kernel has it, at most 15 bytes."""
    try:
        with open(f"/proc/{pid}/comm", "rb") as file:
            return file.read().decode("utf-8", "replace").strip()
    except OSError:
        return "?"
