"""Work that one thread does and another waits for, and the wait itself.

It knows boxes and tokens; not what the work is.
"""

import contextlib
import queue
from typing import Any, Callable, ContextManager, Optional

import attrs

from syncagent.boundary.store.desk import Desk
from syncagent.boundary.store.faults import Patience
from syncagent.cancel import CancellationToken

__all__ = ["Job", "wait_for_box"]


@attrs.define(kw_only=True, eq=False)
class Job:
    """Work for the writer's thread that somebody waits for.

    The box wakes the one who waits. It is a queue of C, which a signal's handler may fill in the very
    thread that waits on it; a condition or an event would lock up there.
    """

    work: Callable[[Desk, Patience], Any]
    token: Optional[CancellationToken] = None
    box: "queue.SimpleQueue[None]" = attrs.field(factory=queue.SimpleQueue)
    done: bool = False
    result: Any = None
    error: Optional[BaseException] = None


def wait_for_box(
    box: "queue.SimpleQueue[None]",
    token: Optional[CancellationToken],
    is_over: Callable[[], bool],
    *,
    wake_ends: bool,
) -> None:
    """Wait until `is_over`, which is asked each time the box is filled.

    `wake_ends` says whether the token's cancel ends the wait with `Cancelled`, or only has `is_over`
    asked once more.
    """
    registration: ContextManager[object] = contextlib.nullcontext()
    if token is not None:
        registration = token.on_cancel(lambda: box.put(None))
    with registration:
        while True:
            box.get()
            if is_over():
                return
            if wake_ends and token is not None:
                token.raise_if_cancelled()
