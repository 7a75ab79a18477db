"""One transaction, alone among all writers, and what closing leaves behind."""

import os
import sqlite3

import pytest

from syncagent.boundary.store import schema
from syncagent.boundary.store.desk import Desk
from syncagent.boundary.store.faults import Patience
from syncagent.boundary.store.files import Places
from syncagent.boundary.store.forks import ForkGuard
from syncagent.boundary.store.lease import RunnerLock
from syncagent.errors import StoreBusy, StoreReplaced


def patience(seconds=60.0):
    return Patience(seconds, path="p")


@pytest.fixture
def places(tmp_path):
    return Places.of(tmp_path / "in" / "a.db")


def open_desk(places, journal="wal", guard=None):
    guard = guard or ForkGuard(places.path)
    return Desk.open(places, guard=guard, journal=journal, patience=patience())


def put(conn, key="k", value="v"):
    return conn.execute("INSERT INTO store(k, v) VALUES (?, ?)", (key, value)).rowcount


def value(places, key="k"):
    conn = schema.open_reader(places)
    row = conn.execute("SELECT v FROM store WHERE k = ?", (key,)).fetchone()
    conn.close()
    return row and row[0]


@pytest.mark.parametrize("journal", ["wal", "delete"])
def test_a_transaction_is_all_or_nothing(places, journal):
    desk = open_desk(places, journal)
    assert desk.transaction(put, patience()) == 1 and value(places) == "v"

    def fail(conn):
        put(conn, "other")
        raise KeyError("half way")

    with pytest.raises(KeyError):
        desk.transaction(fail, patience())
    assert value(places, "other") is None
    assert desk.transaction(lambda conn: put(conn, "third"), patience()) == 1
    desk.close(healthy=True)


def test_a_runner_is_entered_and_leaves(places):
    guard = ForkGuard(places.path)
    desk = open_desk(places, guard=guard)
    assert len(guard.descriptors) == 2  # its lock and the gate
    conn = schema.open_reader(places)
    assert conn.execute("SELECT id, pid FROM runners").fetchall() == [(desk.runner, os.getpid())]
    desk.transaction(
        lambda c: c.execute(
            "INSERT INTO sessions(uid, created, updated, runner) VALUES ('s', 1, 1, ?)", (desk.runner,)
        ),
        patience(),
    )
    desk.close(healthy=True)
    assert conn.execute("SELECT count(*) FROM runners").fetchone() == (0,)
    assert conn.execute("SELECT runner FROM sessions").fetchone() == (None,)
    conn.close()
    assert guard.descriptors == set() and os.listdir(places.runners) == ["gate"]


def test_a_clean_close_leaves_one_file(places):
    desk = open_desk(places)
    desk.transaction(put, patience())
    assert places.wal_size() > 0
    desk.close(healthy=True)
    assert sorted(os.listdir(os.path.dirname(places.path))) == ["a.db", "a.db-runners"]
    assert value(places) == "v"


def test_an_unhealthy_close_writes_nothing_and_lets_the_lock_go(places):
    desk = open_desk(places)
    desk.transaction(put, patience())
    files = [places.path, places.wal]
    before = [open_bytes(name) for name in files]
    desk.close(healthy=False)
    assert [open_bytes(name) for name in files] == before
    assert os.listdir(places.runners) == ["gate"]
    again = open_desk(places)
    assert value(places) == "v"
    again.close(healthy=True)


def open_bytes(name):
    with open(name, "rb") as file:
        return file.read()


@pytest.mark.parametrize("healthy", [True, False])
def test_closing_never_touches_the_files_of_a_store_that_took_the_name(places, healthy):
    """The log is deleted by its name; it must not be the other's."""
    desk = open_desk(places)
    desk.transaction(put, patience())
    for name in (places.path, places.wal, places.path + "-shm"):
        os.unlink(name)
    other = open_desk(places)
    other.transaction(lambda conn: put(conn, "new"), patience())
    if not healthy:
        with pytest.raises(StoreReplaced):
            desk.transaction(lambda conn: put(conn, "lost"), patience())
    desk.close(healthy=healthy)
    assert places.wal_size() > 0
    other.transaction(lambda conn: put(conn, "newer"), patience())
    assert value(places, "new") == value(places, "newer") == "v" and value(places) is None
    other.close(healthy=True)
    assert value(places, "new") == value(places, "newer") == "v"


def test_a_commit_into_a_deleted_file_is_no_success(places):
    desk = open_desk(places)
    os.unlink(places.path)
    with pytest.raises(StoreReplaced):
        desk.transaction(put, patience())
    desk.close(healthy=False)


def test_another_writer_is_waited_for_and_then_it_is_busy(places):
    desk = open_desk(places)
    other = sqlite3.connect(places.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreBusy):
        desk.transaction(put, patience(0.15))
    other.execute("COMMIT")
    assert desk.transaction(put, patience()) == 1
    other.close()
    desk.close(healthy=True)


def test_without_a_log_a_commit_waits_for_readers(places):
    desk = open_desk(places, "delete")
    reader = schema.open_reader(places)
    reader.execute("BEGIN")
    reader.execute("SELECT * FROM store").fetchall()
    with pytest.raises(StoreBusy):
        desk.transaction(put, patience(0.15))
    reader.execute("COMMIT")
    assert desk.transaction(put, patience()) == 1
    reader.close()
    desk.close(healthy=True)


def test_the_log_is_moved_into_the_database(places):
    desk = open_desk(places)
    desk.transaction(put, patience())
    assert desk.checkpoint() and places.wal_size() == 0 and value(places) == "v"
    desk.close(healthy=True)


def test_a_reader_in_the_way_keeps_the_log_and_holds_up_nobody(places):
    desk = open_desk(places)
    desk.transaction(put, patience())
    reader = schema.open_reader(places)
    reader.execute("BEGIN")
    assert reader.execute("SELECT count(*) FROM store").fetchone() == (4,)
    desk.transaction(lambda conn: put(conn, "more"), patience())
    assert not desk.checkpoint()
    assert desk.transaction(lambda conn: put(conn, "third"), patience()) == 1
    reader.execute("COMMIT")
    assert desk.checkpoint()
    reader.close()
    desk.close(healthy=True)


def test_no_two_checkpoint_at_once(places):
    first, second = open_desk(places), open_desk(places)
    first.transaction(put, patience())
    first._gate.enter(patience())
    assert not second.checkpoint()
    first._gate.leave()
    assert second.checkpoint()
    first.close(healthy=True)
    second.close(healthy=True)


@pytest.mark.parametrize("broken", ["lock", "row", "anchor"])
def test_an_opening_that_fails_leaves_nothing(places, monkeypatch, broken):
    """Neither a lock nor a descriptor; a test that leaves one fails."""
    open_desk(places).close(healthy=True)

    def fail(*args, **kwargs):
        raise OSError(5, "broken")

    if broken == "lock":
        monkeypatch.setattr(RunnerLock, "take", fail)
    elif broken == "row":
        monkeypatch.setattr(Desk, "_enter", fail)
    else:
        monkeypatch.setattr(schema, "open_reader", fail)
    guard = ForkGuard(places.path)
    with pytest.raises(OSError):
        open_desk(places, guard=guard)
    assert guard.descriptors == set() and os.listdir(places.runners) == ["gate"]
