"""The queue before the writer: events that are not on disk yet, and who waits for them.

It knows tickets, sessions and faults; no database and no thread of its own. One lock guards it, and
nothing else is called while it is held.

Each queued event has a ticket, a number that only goes up. The head of the queue is written first, so
whatever has a lower ticket than the head is on disk, or was dropped with its session. `WINDOW`
seconds after an event was queued it is due, with all that came behind it; who waits for it makes it
due at once.
"""

import collections
import itertools
import queue
import threading
import time
from typing import Any, Deque, Dict, List, Optional, Sequence, Tuple, Union

import attrs

from syncagent.boundary.store.faults import Fault
from syncagent.boundary.store.jobs import Job, wait_for_box
from syncagent.boundary.store.protocol import Lease, OnFailure
from syncagent.boundary.store.tables import Progress, Taken
from syncagent.cancel import CancellationToken
from syncagent.errors import LeaseLost, StoreFailed
from syncagent.log import Event, LogState

__all__ = ["Backlog", "Entry", "Held"]

#: How long, in seconds, events are gathered before they are made durable unasked.
WINDOW = 0.05
#: What ends the window early, and the most that one transaction holds.
MAX_EVENTS = 2000
MAX_BYTES = 1 << 20


@attrs.define(kw_only=True, eq=False)
class Held:
    """A session that this process drives."""

    lease: Lease
    on_failure: OnFailure
    progress: Progress  # as written
    queued: int  # seq of the last event that was queued
    ticket: int = 0  # of that event; 0 if this store queued none
    fault: Optional[Fault] = None
    gone: bool = False  # what it has queued is dropped

    @property
    def durable(self) -> int:
        return self.progress.next_seq - 1


@attrs.define(kw_only=True, eq=False)
class Entry:
    """One event in the queue; `at` is when it came, `state` the log's state after it, where given."""

    ticket: int
    held: Held
    event: Event
    size: int
    at: float
    state: Optional[LogState] = None


class Backlog:
    """`append`, `flush` and the like are for any thread, the rest is the writer's."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)  # the writer waits on it
        self._queue: Deque[Entry] = collections.deque()
        self._bytes = 0
        self._taken = 0  # entries at the head that the writer is writing now
        self._last_ticket = 0
        self._urgent = 0  # tickets up to this one are due at once
        self._jobs: Deque[Job] = collections.deque()
        self._waiters: List[Tuple[int, "queue.SimpleQueue[None]"]] = []
        self._held: Dict[Tuple[int, int], Held] = {}
        self._paused: Optional[Fault] = None  # until retry()
        self._dead: Optional[Fault] = None  # for good
        self._closing = False

    # -- sessions ----------------------------------------------------------------------------------

    def is_held(self, sid: int) -> bool:
        """Whether a handle of this store can still write the session."""
        with self._lock:
            return any(held.lease.sid == sid and held.fault is None for held in self._held.values())

    def let_go(self, lease: Lease) -> bool:
        """Forget a session and drop what it has queued; False if it was forgotten before."""
        with self._lock:
            held = self._held.pop(_key(lease), None)
            if held is None:
                return False
            self._purge_locked(held)
            return True

    def durable_seq(self, lease: Lease) -> int:
        with self._lock:
            held = self._held.get(_key(lease))
            return held.durable if held is not None else 0

    def _find_locked(self, lease: Lease) -> Held:
        """The session of a lease. Raises `LeaseLost`, or whatever else took it from us."""
        assert self._lock.locked()
        held = self._held.get(_key(lease))
        if held is None:
            text = f"{self._path}: the lease of session {lease.session!r} was given back"
            raise LeaseLost(text, path=self._path, session=lease.session)
        if held.fault is not None:
            raise held.fault.error()
        return held

    def _purge_locked(self, held: Held) -> None:
        """Drop what the session has queued, but for what the writer is writing now."""
        head = list(itertools.islice(self._queue, self._taken))
        rest = [e for e in itertools.islice(self._queue, self._taken, None) if e.held is not held]
        self._queue = collections.deque(head + rest)
        self._bytes = sum(entry.size for entry in self._queue)
        held.gone = True

    # -- events ------------------------------------------------------------------------------------

    def append(
        self, lease: Lease, events: Sequence[Tuple[Event, int]], state: Optional[LogState]
    ) -> None:
        """Queue events, each with its size in bytes."""
        now = time.monotonic()
        with self._lock:
            held = self._find_locked(lease)
            self._raise_if_over_locked()
            was_empty, was_full = not self._queue, self._is_full_locked()
            for event, size in events:
                assert event.seq == held.queued + 1, "events are queued in order, without a gap"
                self._last_ticket += 1
                entry = Entry(ticket=self._last_ticket, held=held, event=event, size=size, at=now)
                self._queue.append(entry)
                self._bytes += size
                held.queued, held.ticket = event.seq, entry.ticket
            if state is not None and events:
                self._queue[-1].state = state
            if was_empty or (self._is_full_locked() and not was_full):
                self._changed.notify()

    def flush(self, lease: Optional[Lease], token: Optional[CancellationToken]) -> bool:
        """Wait until what is queued now is on disk; False if there was nothing to wait for.

        Raises what keeps it from that, and `Cancelled`.
        """
        box: "queue.SimpleQueue[None]" = queue.SimpleQueue()
        with self._lock:
            ticket = self._find_locked(lease).ticket if lease is not None else self._last_ticket
            if self._is_done_locked(ticket):
                if self._dead is not None:
                    raise self._dead.error()
                return False
            self._waiters.append((ticket, box))
            self._urgent = max(self._urgent, ticket)
            self._changed.notify()
        try:
            if not self._is_written(ticket, lease):
                wait_for_box(box, token, lambda: self._is_written(ticket, lease), wake_ends=True)
        finally:
            with self._lock:
                self._waiters.remove((ticket, box))
        return True

    def _is_written(self, ticket: int, lease: Optional[Lease]) -> bool:
        with self._lock:
            if lease is not None:
                self._find_locked(lease)  # what was dropped with its session is not written
            if self._is_done_locked(ticket):
                return True
            fault = self._dead or self._paused
            if fault is not None:
                raise fault.error()
            return False

    def _is_done_locked(self, ticket: int) -> bool:
        return ticket < (self._queue[0].ticket if self._queue else self._last_ticket + 1)

    def _is_full_locked(self) -> bool:
        return len(self._queue) >= MAX_EVENTS or self._bytes >= MAX_BYTES

    def _raise_if_over_locked(self) -> None:
        if self._dead is not None:
            raise self._dead.error()
        if self._closing:
            raise StoreFailed(f"{self._path}: the store is closed", path=self._path)

    def raise_if_over(self) -> None:
        """Raise what makes the store useless for good: its failure, or its end."""
        with self._lock:
            self._raise_if_over_locked()

    def retry(self) -> None:
        with self._lock:
            self._paused = None
            self._urgent = self._last_ticket
            self._changed.notify()

    # -- jobs --------------------------------------------------------------------------------------

    def submit(self, job: Job) -> Any:
        """Have the writer do a job; return its result or raise its error.

        Cancelled before the writer begins with it, it is never done. Once begun it watches its token
        itself, and what it has done stands.
        """
        with self._lock:
            self._raise_if_over_locked()  # from here on the writer's end waits for the job
            self._jobs.append(job)
            self._changed.notify()
        try:
            wait_for_box(job.box, job.token, lambda: self._is_settled(job), wake_ends=False)
        except BaseException:
            with self._lock:
                if job in self._jobs:
                    self._jobs.remove(job)
            raise
        if job.error is not None:
            raise job.error
        return job.result

    def _is_settled(self, job: Job) -> bool:
        with self._lock:
            if not job.done and job in self._jobs and job.token is not None:
                job.token.raise_if_cancelled()
            return job.done

    # -- the writer's side -------------------------------------------------------------------------

    def next_work(self) -> Union[Job, List[Entry], None]:
        """Wait for a job, or for events that are due; None when the store closes or has failed."""
        with self._lock:
            while self._dead is None:
                if self._jobs:
                    return self._jobs.popleft()
                wait: Optional[float] = None
                if self._queue and self._paused is None:
                    wait = self._due_in_locked()
                    if wait <= 0:
                        return self._take_locked()
                elif self._closing:
                    return None
                self._changed.wait(wait)
            return None

    def _due_in_locked(self) -> float:
        head = self._queue[0]
        if self._closing or head.ticket <= self._urgent or self._is_full_locked():
            return 0.0
        return head.at + WINDOW - time.monotonic()

    def _take_locked(self) -> List[Entry]:
        taken: List[Entry] = []
        size = 0
        for entry in self._queue:
            if taken and (len(taken) >= MAX_EVENTS or size + entry.size > MAX_BYTES):
                break
            taken.append(entry)
            size += entry.size
        self._taken = len(taken)
        return taken

    def hold(self, taken: Taken, on_failure: OnFailure) -> List[Held]:
        """Take a session in; return the handles that lost it to this one."""
        seq = taken.progress.next_seq - 1
        held = Held(lease=taken.lease, on_failure=on_failure, progress=taken.progress, queued=seq)
        with self._lock:
            sid = taken.lease.sid
            lost = [h for h in self._held.values() if h.lease.sid == sid and h.fault is None]
            self._held[_key(taken.lease)] = held
            return lost

    def settle(self, written: List[Entry], progress: Dict[Held, Progress]) -> None:
        """Take what is on disk out of the queue, and wake those who waited for it."""
        with self._lock:
            for held, after in progress.items():
                held.progress = after
            gone = {entry.ticket for entry in written}
            head = list(itertools.islice(self._queue, self._taken))
            for _ in head:
                self._queue.popleft()
            self._queue.extendleft(reversed([entry for entry in head if entry.ticket not in gone]))
            self._taken -= len(gone)
            self._bytes -= sum(entry.size for entry in written)
            self._wake_locked()

    def put_back(self) -> None:
        """The writer has nothing in hand any more: what it did not settle waits, in order."""
        with self._lock:
            self._taken = 0
            if any(entry.held.gone for entry in self._queue):
                self._queue = collections.deque(e for e in self._queue if not e.held.gone)
                self._bytes = sum(entry.size for entry in self._queue)
            self._wake_locked()

    def finish(self, job: Job, *, result: Any = None, error: Optional[BaseException] = None) -> None:
        with self._lock:
            job.done, job.result, job.error = True, result, error
        job.box.put(None)

    def lose(self, held: Held, fault: Fault) -> List[OnFailure]:
        """One session can't be written any more; return whom to tell."""
        with self._lock:
            if held.fault is not None:
                return []
            held.fault = fault
            self._purge_locked(held)
            self._wake_locked(all_of_them=True)
            return [held.on_failure]

    def pause(self, fault: Fault) -> List[OnFailure]:
        """Nothing can be written until `retry`; return whom to tell."""
        with self._lock:
            self._paused = fault
            self._wake_locked(all_of_them=True)
            return [held.on_failure for held in {entry.held: None for entry in self._queue}]

    def is_paused(self) -> bool:
        with self._lock:
            return self._paused is not None

    def die(self, fault: Fault) -> List[OnFailure]:
        """Nothing can be written any more, nor any job be done; return whom to tell."""
        with self._lock:
            self._dead = fault
            jobs = list(self._jobs)
            self._jobs.clear()
            self._wake_locked(all_of_them=True)
            told = [held.on_failure for held in self._held.values() if held.fault is None]
        for job in jobs:
            self.finish(job, error=fault.error())
        return told

    def _wake_locked(self, all_of_them: bool = False) -> None:
        for ticket, box in self._waiters:
            if all_of_them or self._is_done_locked(ticket):
                box.put(None)

    # -- the end -----------------------------------------------------------------------------------

    def close(self) -> None:
        """Take nothing more in; what is queued is tried once more."""
        with self._lock:
            self._closing = True
            self._paused = None
            self._changed.notify()

    def left_over(self) -> Optional[Fault]:
        """What kept queued events from the disk, after the writer's end; None if nothing did."""
        with self._lock:
            return (self._dead or self._paused) if self._queue else None


def _key(lease: Lease) -> Tuple[int, int]:
    return (lease.sid, lease.epoch)
