"""What a fork must not carry over: descriptors that hold a lock, and SQLite in the middle of a call.

It knows descriptors and pids, no database. A child that inherits the lock file of a runner would keep
its sessions live after the parent's death; one that inherits a mutex which SQLite held in another
thread would hang in its first call.
"""

import contextlib
import functools
import os
import threading
import weakref
from typing import Dict, Iterator, List, Set, Tuple

from syncagent.errors import ForkedStore

__all__ = ["ForkGuard"]

#: How long a fork waits, in seconds, for a call of SQLite's to end. A disk that hangs must not hang it.
FORK_WAIT = 1.0


class ForkGuard:
    """One store's part in a fork: `busy` spans each use of SQLite, `check` refuses a child.

    `descriptors` are those that a child closes at once.
    """

    def __init__(self, path: str) -> None:
        self.descriptors: Set[int] = set()
        self._path = path
        self._pid = os.getpid()
        self._idle = threading.Condition(threading.Lock())
        self._inside = 0
        _guards().add(self)

    @property
    def forked(self) -> bool:
        """Whether this is a child of the process that opened the store."""
        return os.getpid() != self._pid

    def check(self) -> None:
        """Raise `ForkedStore` in a child."""
        if self.forked:
            raise ForkedStore(
                f"{self._path} was opened by process {self._pid} before it forked: open it anew",
                path=self._path,
            )

    @contextlib.contextmanager
    def busy(self) -> Iterator[None]:
        """While the block runs a fork waits, up to `FORK_WAIT`."""
        with self._idle:
            self._inside += 1
        try:
            yield
        finally:
            with self._idle:
                self._inside -= 1
                self._idle.notify_all()

    # -- called around a fork, in the thread that forks --------------------------------------------

    def _before(self) -> bool:
        """Hold back new calls and wait for those under way; False if the lock could not be had."""
        holding = self._idle.acquire(timeout=FORK_WAIT)
        if holding:
            self._idle.wait_for(lambda: self._inside == 0, timeout=FORK_WAIT)
        return holding

    def _in_parent(self) -> None:
        self._idle.release()

    def _in_child(self) -> None:
        for descriptor in self.descriptors:
            with contextlib.suppress(OSError):  # closed already
                os.close(descriptor)
        self.descriptors = set()
        self._idle = threading.Condition(threading.Lock())


@functools.lru_cache(maxsize=None)
def _guards() -> "weakref.WeakSet[ForkGuard]":
    """All guards of this process, and the hooks around a fork, which can't be unregistered."""
    guards: "weakref.WeakSet[ForkGuard]" = weakref.WeakSet()
    # By thread: while one waits in `before`, another may fork.
    held: Dict[int, List[Tuple[ForkGuard, bool]]] = {}

    def before() -> None:
        mine = held[threading.get_ident()] = []
        for guard in list(guards):
            mine.append((guard, guard._before()))

    def in_parent() -> None:
        for guard, holding in held.pop(threading.get_ident()):
            if holding:
                guard._in_parent()

    def in_child() -> None:
        mine = held.pop(threading.get_ident())
        held.clear()
        for guard, _ in mine:
            guard._in_child()

    os.register_at_fork(before=before, after_in_parent=in_parent, after_in_child=in_child)
    return guards
