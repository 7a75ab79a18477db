"""Named points where a test stops, breaks or kills the code under test. It knows no other module.

They take the place of sleeps: a test waits until a part has reached a point, looks, and lets it go.
"""

import os
import signal
import threading
from types import TracebackType
from typing import Any, Callable, Dict, List, Mapping, Optional, Type, Union

import attrs

__all__ = ["FailPoints", "Point", "PATIENCE"]

#: Seconds that a held part waits to be let go before it says that the test forgot it.
PATIENCE = 60.0


class Point:
    """A place where a scripted part stops until the test lets it go.

    `reached` is a `threading.Event` that is set when the part has come there, `info` what it said
    about itself. As a context manager it releases the part at the end of the block.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.reached = threading.Event()
        self.info: Dict[str, Any] = {}
        self._lock = threading.Lock()
        self._released = False
        self._wakeups: List[Callable[[], object]] = []

    def __repr__(self) -> str:
        state = "released" if self._released else "reached" if self.reached.is_set() else "not reached"
        return f"<Point {self.name!r} {state}>"

    @property
    def released(self) -> bool:
        """Whether nobody has to stop here any more."""
        return self._released

    def release(self) -> None:
        """Let the part go; who comes here later doesn't stop. May be repeated."""
        with self._lock:
            self._released = True
            wakeups, self._wakeups = self._wakeups, []
        for wake in wakeups:
            wake()

    def when_released(self, wake: Callable[[], object]) -> None:
        """Have `wake` called once when the point is released, at once if it is already."""
        with self._lock:
            if not self._released:
                self._wakeups.append(wake)
                return
        wake()

    def pause(self, patience: float = PATIENCE) -> None:
        """Stop here until released. Raises `AssertionError` after `patience` seconds."""
        done = threading.Event()
        self.when_released(done.set)
        self.reached.set()
        if not done.wait(patience):
            raise AssertionError(f"nobody released the point {self.name!r} within {patience:g} s")

    def __enter__(self) -> "Point":
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        value: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        self.release()


@attrs.define
class _Plan:
    """What happens at the `due`-th hit from now, and at the `times - 1` after it."""

    due: int
    act: Callable[[Dict[str, Any]], object]
    times: int = 1
    where: Mapping[str, Any] = attrs.field(factory=dict)

    def fits(self, info: Mapping[str, Any]) -> bool:
        return all(key in info and info[key] == value for key, value in self.where.items())


class FailPoints:
    """What to do when the code under test comes to its named points. By default nothing.

    Give it to `Store(path, points=points)`; the runtime then calls `points(name, **info)` where it
    can be stopped. As a context manager it releases whatever is held at the end of the block.
    Counts (`nth`) begin with the next hit after the call, and with `where` only the hits with these
    values count: `points.kill("store.append", type="tool/result")`.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._hits: Dict[str, int] = {}
        self._plans: Dict[str, List[_Plan]] = {}
        self._held: List[Point] = []

    def __call__(self, name: str, **info: Any) -> None:
        due: List[_Plan] = []
        with self._lock:
            self._hits[name] = self._hits.get(name, 0) + 1
            for plan in [plan for plan in self._plans.get(name, ()) if plan.fits(info)]:
                plan.due -= 1
                if plan.due <= 0:
                    due.append(plan)
                    plan.times -= 1
                if plan.times == 0:
                    self._plans[name].remove(plan)
        for plan in due:
            plan.act(info)

    def hits(self, name: str) -> int:
        """How often the code has come to the point."""
        with self._lock:
            return self._hits.get(name, 0)

    def hold(self, name: str, *, nth: int = 1, **where: Any) -> Point:
        """Stop the code at the nth hit until the returned point is released.

        The code goes on with an `AssertionError` if the test forgets it for a minute.
        """
        point = Point(name)

        def act(info: Dict[str, Any]) -> None:
            point.info.update(info)
            point.pause()

        with self._lock:
            self._held.append(point)
        self._plan(name, nth, act, 1, where)
        return point

    def fail(
        self,
        name: str,
        exc: Union[BaseException, Type[BaseException]],
        *,
        nth: int = 1,
        times: Optional[int] = 1,
        **where: Any,
    ) -> None:
        """Raise `exc` at the nth hit and the `times - 1` hits after it; `times=None` at all of them."""

        def act(info: Dict[str, Any]) -> None:
            raise exc

        self._plan(name, nth, act, -1 if times is None else times, where)

    def kill(self, name: str, *, nth: int = 1, **where: Any) -> None:
        """Kill this process at the nth hit, as `kill -9` does."""
        self._plan(name, nth, lambda info: os.kill(os.getpid(), signal.SIGKILL), 1, where)

    def clear(self) -> None:
        """Forget every plan and release whatever is held; the counts of hits stay."""
        with self._lock:
            self._plans.clear()
            held, self._held = self._held, []
        for point in held:
            point.release()

    def _plan(
        self,
        name: str,
        nth: int,
        act: Callable[[Dict[str, Any]], object],
        times: int,
        where: Mapping[str, Any],
    ) -> None:
        if nth < 1 or times == 0:
            raise ValueError("nth and times count from 1")
        with self._lock:
            self._plans.setdefault(name, []).append(_Plan(nth, act, times, where))

    def __enter__(self) -> "FailPoints":
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        value: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        self.clear()
