"""SIGTERM and SIGHUP outside of a turn: an exit code instead of a death, and everything put away.

While a turn is waited for the signals are `surface.interrupt`'s; it takes only those that have no
handler, so ours step aside.
"""

import contextlib
import signal
import threading
from types import FrameType
from typing import Any, Iterator, Optional

__all__ = ["aside", "exiting"]

_NAMES = ("SIGTERM", "SIGHUP")


@contextlib.contextmanager
def exiting() -> Iterator[None]:
    """In this block, and in the main thread, SIGTERM raises `SystemExit(143)`, SIGHUP 129.

    A signal that is ignored, as below nohup, or handled by a host, stays so.
    """
    with _swapped(signal.SIG_DFL, _exit):
        yield


@contextlib.contextmanager
def aside() -> Iterator[None]:
    """In this block inside of `exiting`, the signals have no handler."""
    with _swapped(_exit, signal.SIG_DFL):
        yield


def _exit(number: int, frame: Optional[FrameType]) -> None:
    raise SystemExit(128 + number)


@contextlib.contextmanager
def _swapped(old: Any, new: Any) -> Iterator[None]:
    changed = []
    try:
        if threading.current_thread() is threading.main_thread():
            for name in _NAMES:
                number = getattr(signal, name, None)
                if number is not None and signal.getsignal(number) is old:
                    changed.append(number)
                    signal.signal(number, new)
        yield
    finally:
        for number in changed:
            signal.signal(number, old)
