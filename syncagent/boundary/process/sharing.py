"""One `Processes` for all agents of this OS process, counted. It knows no agent."""

import contextlib
import os
import threading
from typing import Dict, Iterator, Optional

import attrs

from syncagent.boundary.process.client import Processes

__all__ = ["shared"]


@attrs.define(eq=False)
class _Holder:
    """Counts who uses the shared `Processes` of one OS process."""

    lock: threading.Lock = attrs.field(factory=threading.Lock)
    users: int = 0
    processes: Optional[Processes] = None


# The only state of a module in this package: the supervisor belongs to the OS process, not to an
# agent, so its users are counted here, by pid. A forked child finds no entry of its own and counts
# from zero; what it inherited is dropped when it first asks.
_holders: Dict[int, _Holder] = {}


@contextlib.contextmanager
def shared() -> Iterator[Processes]:
    """The `Processes` that all agents of this OS process share, while the block runs.

    The last to leave ends and reaps the supervisor. Leaving the block in a forked child that
    inherited it does nothing.
    """
    pid = os.getpid()
    holder = _holders.setdefault(pid, _Holder())
    for other in set(_holders) - {pid}:
        _holders.pop(other, None)
    with holder.lock:
        holder.users += 1
        if holder.processes is None:
            holder.processes = Processes()
        processes = holder.processes
    try:
        yield processes
    finally:
        if os.getpid() == pid:
            _release(holder)


def _release(holder: _Holder) -> None:
    with holder.lock:
        holder.users -= 1
        last = None
        if holder.users == 0:
            last, holder.processes = holder.processes, None
    if last is not None:
        last.close()
