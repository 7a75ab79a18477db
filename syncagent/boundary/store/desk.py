"""The writer's own things: its connection, the gate, the runner's lock; and one transaction.

It knows how a transaction is begun, committed and checked, not what is in it. All of it belongs to
the writer's thread and lives in that thread's frames alone. In a forked child those frames are never
freed, so nothing there closes the parent's connection.
"""

import contextlib
import sqlite3
from typing import Callable, Optional, TypeVar

import attrs

from syncagent.boundary.store import schema
from syncagent.boundary.store.faults import Kind, Patience, kind_of, patiently
from syncagent.boundary.store.files import Gate, Places, Watch
from syncagent.boundary.store.forks import ForkGuard
from syncagent.boundary.store.lease import RunnerLock, enter_runner, forget_dead_runners
from syncagent.errors import StoreBusy, StoreError

__all__ = ["Desk"]

T = TypeVar("T")


@attrs.define(kw_only=True, eq=False)
class Desk:
    """Made by `open`, used and closed by one thread."""

    places: Places
    guard: ForkGuard
    watch: Watch
    runner: int = 0  # this process's row among the runners
    _conn: sqlite3.Connection
    _anchor: Optional[sqlite3.Connection]
    _gate: Gate
    _lock: RunnerLock

    @classmethod
    def open(cls, places: Places, *, guard: ForkGuard, journal: str, patience: Patience) -> "Desk":
        """Open the database to write and enter this process among the runners.

        Raises what `schema.open_writer` raises.
        """
        with contextlib.ExitStack() as undo:
            with guard.busy():
                conn = schema.open_writer(places, journal=journal, patience=patience)
                undo.callback(conn.close)
                # See `close` for what it is there for.
                anchor = schema.open_reader(places) if journal == "wal" else None
                if anchor is not None:
                    undo.callback(anchor.close)
            gate = Gate(places.gate)
            undo.callback(gate.close)
            guard.descriptors.add(gate.fd)
            undo.callback(guard.descriptors.discard, gate.fd)
            lock = RunnerLock.take(places, guard)
            undo.callback(lock.drop, guard)
            watch = Watch(places)
            desk = cls(
                places=places, guard=guard, watch=watch, conn=conn, anchor=anchor, gate=gate, lock=lock
            )
            desk.runner = desk.transaction(desk._enter, patience)
            undo.pop_all()
        return desk

    def _enter(self, conn: sqlite3.Connection) -> int:
        forget_dead_runners(conn, self.places)
        return enter_runner(conn, self._lock)

    # -- transactions ------------------------------------------------------------------------------

    def transaction(self, work: Callable[[sqlite3.Connection], T], patience: Patience) -> T:
        """Do the work in a transaction, alone among all writers, and make it durable.

        All of it is written or nothing. Raises what the work raises, SQLite's errors, `StoreBusy`,
        `StoreReplaced` when it went into a file that is no longer there, and `Cancelled`.
        """
        self._gate.enter(patience)
        try:
            self._begin(patience)
            with self.guard.busy():
                try:
                    result = work(self._conn)
                    patiently(lambda: self._conn.execute("COMMIT"), patience)
                except BaseException:
                    if self._conn.in_transaction:
                        self._conn.execute("ROLLBACK")
                    raise
            self.watch.check()
            return result
        finally:
            self._gate.leave()

    def _begin(self, patience: Patience) -> None:
        def begin() -> None:
            with self.guard.busy():
                self._conn.execute("BEGIN IMMEDIATE")

        patiently(begin, patience)

    def checkpoint(self) -> bool:
        """Move the log into the database and empty it; False if a reader or writer is in the way."""
        try:
            self._gate.enter(Patience(0, path=self.places.path))
        except StoreBusy:
            return False
        try:
            with self.guard.busy():
                return self._checkpoint()
        finally:
            self._gate.leave()

    def _checkpoint(self) -> bool:
        # Without SQLite's wait: a reader that is in the way would hold up every append.
        self._conn.execute("PRAGMA busy_timeout = 0")
        try:
            busy = self._conn.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
            return not busy
        except sqlite3.OperationalError as exc:
            if kind_of(exc) in (Kind.BUSY, Kind.FULL):
                return False
            raise
        finally:
            self._conn.execute(f"PRAGMA busy_timeout = {int(schema.SLICE * 1000)}")

    # -- the end -----------------------------------------------------------------------------------

    def close(self, *, healthy: bool) -> None:
        """Give everything back. An unhealthy desk writes nothing any more."""
        healthy = healthy and self._leave()
        with self.guard.busy():
            # The last connection that may write takes the log into the database and deletes it. After
            # a failed write nothing is to be moved, so an unhealthy desk closes its reader last.
            connections = [self._anchor, self._conn] if healthy else [self._conn, self._anchor]
            for conn in connections:
                if conn is not None:
                    conn.close()
        self._lock.drop(self.guard)
        self.guard.descriptors.discard(self._gate.fd)
        self._gate.close()

    def _leave(self) -> bool:
        """Take this process out of the tables; False if the database can't be written any more."""

        def leave(conn: sqlite3.Connection) -> None:
            values = (self.runner,)
            conn.execute("UPDATE sessions SET runner = NULL, since = NULL WHERE runner = ?", values)
            conn.execute("DELETE FROM runners WHERE id = ?", values)

        try:
            self.transaction(leave, Patience(1.0, path=self.places.path))
            self.checkpoint()
        except StoreBusy:
            return True  # the lock's end says the same
        except (sqlite3.Error, StoreError):
            return False
        return True
