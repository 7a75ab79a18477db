"""The runtime's locks: a condition with a name, that knows its owner and its process.

The order in which they may be taken is in the package's docstring. Tests replace `guard` with a
maker of locks that raise when the order is broken.
"""

import os
import threading
from types import TracebackType
from typing import Optional, Type

from syncagent.errors import ForkedStore

__all__ = ["Guard", "guard"]


class Guard:
    """A condition variable over a plain lock. Functions named `*_locked` assert `held`.

    In a forked child it raises `ForkedStore`: the thread that held it, or that would notify, is not
    there. `path` is the store that the error names.
    """

    def __init__(self, name: str, path: str = "") -> None:
        self.name = name
        self._path = path
        self._pid = os.getpid()
        self._condition = threading.Condition(threading.Lock())
        self._owner: Optional[int] = None

    @property
    def held(self) -> bool:
        """Whether the calling thread holds it."""
        return self._owner == threading.get_ident()

    def __enter__(self) -> "Guard":
        if os.getpid() != self._pid:
            text = f"{self._path} was opened by process {self._pid} before it forked: open it anew"
            raise ForkedStore(text, path=self._path)
        assert not self.held, f"the {self.name} lock is taken twice by one thread"
        self._condition.acquire()
        self._owner = threading.get_ident()
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        value: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        self._owner = None
        self._condition.release()

    def wait(self, timeout: Optional[float] = None) -> bool:
        """Release it, wait to be notified, take it again. `timeout` is in seconds."""
        self._owner = None
        try:
            return self._condition.wait(timeout)
        finally:
            self._owner = threading.get_ident()

    def notify_all(self) -> None:
        self._condition.notify_all()


def guard(name: str, path: str = "") -> Guard:
    """A new lock; `name` says which one it is in the lock order, `path` of which store."""
    return Guard(name, path)
