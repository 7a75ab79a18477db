"""The one thread of a process that writes to a store's file.

It takes jobs and due events from the backlog and decides what each failure means: whether the events
are kept and tried again, one session is lost, or the whole store. It starts with the first job and
ends at `close`, or when the store has failed.
"""

import contextlib
import logging
import sqlite3
import threading
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple, TypeVar

from syncagent.boundary.store.backlog import Backlog, Entry, Held
from syncagent.boundary.store.desk import Desk
from syncagent.boundary.store.faults import (
    FAILED,
    Fault,
    Kind,
    Patience,
    fault_of,
    kind_of,
    looks_full,
    make_fault,
)
from syncagent.boundary.store.files import Places, Watch
from syncagent.boundary.store.forks import ForkGuard
from syncagent.boundary.store.jobs import Job
from syncagent.boundary.store.protocol import Lease, OnFailure, Opened, Points
from syncagent.boundary.store.tables import (
    Progress,
    Taken,
    create_session,
    release_session,
    take_session,
    write_events,
)
from syncagent.cancel import CancellationToken, Cancelled
from syncagent.errors import (
    LeaseLost,
    StoreBusy,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreReplaced,
)

__all__ = ["Writer"]

_logger = logging.getLogger("syncagent")
T = TypeVar("T")

#: The size in bytes of the log from which on it is moved into the database, and by which it must have
#: grown before that is tried again.
CHECKPOINT_BYTES = 4 << 20

#: Failures after which the state of the file is not known, or can't be changed.
FATAL = (Kind.IO, Kind.WRITE, Kind.READ_ONLY, Kind.CANT_OPEN, Kind.NO_DATABASE)


class Writer:
    """The thread and what it does. The backlog before it is what other threads talk to."""

    def __init__(
        self, places: Places, *, guard: ForkGuard, journal: str, points: Points, busy_timeout: float
    ) -> None:
        self.backlog = Backlog(places.path)
        self._places = places
        self._guard = guard
        self._journal = journal
        self._points = points
        self._busy_timeout = busy_timeout
        self._watch: Optional[Watch] = None
        self._thread: Optional[threading.Thread] = None
        self._starting = threading.Lock()
        # The writer's own:
        self._alive = True
        self._unreleased: List[Lease] = []
        self._checkpoint_at = CHECKPOINT_BYTES

    # -- for any thread ----------------------------------------------------------------------------

    def create(
        self,
        session: str,
        meta: Mapping[str, Any],
        on_failure: OnFailure,
        token: Optional[CancellationToken],
    ) -> Opened:
        def work(desk: Desk, patience: Patience) -> Opened:
            taken = desk.transaction(
                lambda conn: create_session(
                    conn, path=self._places.path, session=session, meta=meta, runner=desk.runner
                ),
                patience,
            )
            return self._hold(taken, on_failure)

        return self._submit(work, token)

    def open(
        self, session: str, steal: bool, on_failure: OnFailure, token: Optional[CancellationToken]
    ) -> Opened:
        def work(desk: Desk, patience: Patience) -> Opened:
            def take(conn: sqlite3.Connection) -> Taken:
                taken = take_session(
                    conn,
                    places=self._places,
                    session=session,
                    runner=desk.runner,
                    steal=steal,
                    is_held=self.backlog.is_held,
                    check=patience.check_token,
                )
                if taken.closers:
                    self._points("store.repair.before_commit", session=session, events=len(taken.closers))
                return taken

            return self._hold(desk.transaction(take, patience), on_failure)

        return self._submit(work, token)

    def release(self, lease: Lease) -> None:
        def work(desk: Desk, patience: Patience) -> None:
            try:
                desk.transaction(lambda conn: release_session(conn, lease), patience)
            except (sqlite3.Error, StoreFull, StoreBusy):
                self._unreleased.append(lease)  # with the next batch, or at the end
                raise

        if self.backlog.let_go(lease):
            with contextlib.suppress(StoreError):  # of no use to one who leaves
                self._submit(work, None)

    def check_files(self) -> None:
        """Raise `StoreReplaced`, and fail for good, if the files are not those that were opened."""
        if self._watch is None:
            return
        try:
            self._watch.check()
        except StoreReplaced:
            # The writer's thread fails the store, as it does for all other reasons.
            self._submit(lambda desk, patience: desk.watch.check(), None)
            raise

    def close(self) -> None:
        self.backlog.close()
        with self._starting:
            thread = self._thread
        if thread is not None:
            assert thread is not threading.current_thread(), "on_failure must not close the store"
            thread.join()
        fault = self.backlog.left_over()
        if fault is not None:
            raise fault.error()

    def _submit(
        self, work: Callable[[Desk, Patience], T], token: Optional[CancellationToken]
    ) -> T:
        if token is not None:
            token.raise_if_cancelled()
        with self._starting:
            self.backlog.raise_if_over()
            if self._thread is None:
                # A daemon, so that a program that forgot `close` can end; what it flushed is on disk.
                thread = threading.Thread(target=self._run, name="syncagent-store", daemon=True)
                thread.start()  # may fail for want of threads: then there is none to wait for
                self._thread = thread
        result: T = self.backlog.submit(Job(work=work, token=token))
        return result

    # -- the thread --------------------------------------------------------------------------------

    def _run(self) -> None:
        desk: Optional[Desk] = None
        try:
            while self._alive:
                work = self.backlog.next_work()
                if work is None:
                    break
                if isinstance(work, Job):
                    desk = desk or self._open_desk(work)
                    if desk is not None:
                        self._do(desk, work)
                else:
                    assert desk is not None, "a session was opened before it has events"
                    self._write(desk, work)
                    self._checkpoint(desk)
        except BaseException as exc:  # a bug of ours must not leave anybody waiting
            _logger.exception("the store's writer failed")
            self._die(fault_of(exc, path=self._places.path))
        finally:
            if desk is not None:
                desk.close(healthy=self._alive)

    def _open_desk(self, job: Job) -> Optional[Desk]:
        patience = Patience(self._busy_timeout, path=self._places.path, token=job.token)
        try:
            desk = Desk.open(self._places, guard=self._guard, journal=self._journal, patience=patience)
        except (Exception, Cancelled) as exc:
            self.backlog.finish(job, error=self._as_error(exc, doing="it can't be opened"))
            return None
        self._watch = desk.watch
        return desk

    def _do(self, desk: Desk, job: Job) -> None:
        patience = Patience(self._busy_timeout, path=self._places.path, token=job.token)
        try:
            result = job.work(desk, patience)
        except (Exception, Cancelled) as exc:
            full = self._is_full(exc)
            self.backlog.finish(job, error=self._as_error(exc, full=full))
            if not full and (kind_of(exc) in FATAL or isinstance(exc, StoreReplaced)):
                self._die(fault_of(exc, path=self._places.path))
        else:
            self.backlog.finish(job, result=result)

    def _hold(self, taken: Taken, on_failure: OnFailure) -> Opened:
        for held in self.backlog.hold(taken, on_failure):
            self._tell(self.backlog.lose(held, self._lease_lost(held)), self._lease_lost(held))
        return Opened(lease=taken.lease, state=taken.state, closers=taken.closers)

    def _checkpoint(self, desk: Desk) -> None:
        if not self._alive:
            return
        size = self._places.wal_size()
        if size < self._checkpoint_at:
            return
        try:
            emptied = desk.checkpoint()
        except (sqlite3.Error, OSError) as exc:
            self._die(fault_of(exc, path=self._places.path))
            return
        self._checkpoint_at = CHECKPOINT_BYTES + (0 if emptied else size)

    # -- a batch -----------------------------------------------------------------------------------

    def _write(self, desk: Desk, entries: List[Entry]) -> None:
        """Make a batch durable, or decide what its failure means."""
        try:
            self._attempt(desk, entries)
        finally:
            self.backlog.put_back()

    def _attempt(self, desk: Desk, entries: List[Entry]) -> None:
        sessions: Dict[Held, List[Entry]] = {}
        for entry in entries:
            sessions.setdefault(entry.held, []).append(entry)
        try:
            written, lost = self._commit(desk, sessions)
        except Exception as exc:
            self._failed(desk, sessions, exc)
            return
        if not self._alive:
            return  # it is on disk, and nobody may be told so any more
        settled = [entry for held in written for entry in sessions[held]]
        self.backlog.settle(settled, written)
        for held in lost:
            fault = self._lease_lost(held)
            self._tell(self.backlog.lose(held, fault), fault)

    def _commit(
        self, desk: Desk, sessions: Dict[Held, List[Entry]]
    ) -> Tuple[Dict[Held, Progress], List[Held]]:
        written: Dict[Held, Progress] = {}
        lost: List[Held] = []

        def work(conn: sqlite3.Connection) -> None:
            for held, entries in sessions.items():
                after = write_events(
                    conn,
                    lease=held.lease,
                    progress=held.progress,
                    events=[entry.event for entry in entries],
                    state=next((e.state for e in reversed(entries) if e.state is not None), None),
                )
                if after is None:
                    lost.append(held)
                else:
                    written[held] = after
            for lease in self._unreleased:
                release_session(conn, lease)
            self._points("store.commit.before", events=sum(map(len, sessions.values())))

        desk.transaction(work, Patience(self._busy_timeout, path=self._places.path))
        self._unreleased.clear()
        try:
            self._points("store.commit.after", events=sum(len(sessions[held]) for held in written))
        except Exception as exc:
            self._die(fault_of(exc, path=self._places.path))  # never written again: it is on disk
        return written, lost

    def _failed(self, desk: Desk, sessions: Dict[Held, List[Entry]], exc: Exception) -> None:
        path = self._places.path
        if self._is_full(exc) or isinstance(exc, StoreBusy) or kind_of(exc) is Kind.BUSY:
            fault = self._full_fault(exc) if self._is_full(exc) else fault_of(exc, path=path)
            self._tell(self.backlog.pause(fault), fault)
        elif kind_of(exc) not in (Kind.CORRUPT, Kind.CONSTRAINT) and not isinstance(exc, StoreCorrupt):
            self._die(fault_of(exc, path=path))
        elif len(sessions) > 1:
            # One session's pages are damaged; the others stay usable, so each is tried by itself.
            for entries in sessions.values():
                if self._alive and not self.backlog.is_paused():
                    self._attempt(desk, entries)
        else:
            (held,) = sessions
            fault = Fault(make=lambda: _corrupt(path, held, exc), cause=exc)
            self._tell(self.backlog.lose(held, fault), fault)

    def _is_full(self, exc: BaseException) -> bool:
        if isinstance(exc, StoreFull) or kind_of(exc) is Kind.FULL:
            return True
        largest = self._places.wal_size()
        return looks_full(exc, folder=self._places.runners, largest=largest)

    def _full_fault(self, exc: BaseException) -> Fault:
        if isinstance(exc, StoreFull):
            return fault_of(exc, path=self._places.path)
        path = self._places.path
        text = f"{path}: a quota is full; the events are kept in order: make room and retry ({exc})"
        return make_fault(StoreFull, text, path=path, cause=exc)

    def _as_error(self, exc: BaseException, *, full: bool = False, doing: str = FAILED) -> BaseException:
        """What the one who waits for a job gets."""
        if full:
            return self._full_fault(exc).error()
        if isinstance(exc, (sqlite3.Error, OSError)):
            return fault_of(exc, path=self._places.path, doing=doing).error()
        return exc

    def _lease_lost(self, held: Held) -> Fault:
        path, session = self._places.path, held.lease.session
        text = f"{path}: another process took session {session!r} over; nothing more is written here"
        return Fault(make=lambda: LeaseLost(text, path=path, session=session))

    def _die(self, fault: Fault) -> None:
        self._alive = False
        self._tell(self.backlog.die(fault), fault)

    def _tell(self, callbacks: List[OnFailure], fault: Fault) -> None:
        for callback in callbacks:
            try:
                callback(fault.error())
            except Exception:
                _logger.exception("a session's on_failure raised")


def _corrupt(path: str, held: Held, exc: BaseException) -> StoreCorrupt:
    seq, session = held.progress.next_seq, held.lease.session
    text = f"{path}: session {session!r} is damaged at event {seq}: {exc}"
    return StoreCorrupt(text, path=path, session=session, seq=seq)
