"""The writer's thread: what each failure means, for one session and for all."""

import os
import resource
import sqlite3
import subprocess
import threading
import time

import pytest
from logs import Log
from owners import put_out_of_reach
from store_child import put_all

from syncagent.boundary.store import backlog, writer
from syncagent.boundary.store.desk import Desk
from syncagent.boundary.store.sqlite import SQLiteStore
from syncagent.cancel import CancellationToken, Cancelled
from syncagent.errors import (
    LeaseLost,
    SessionExists,
    SessionLive,
    StoreBusy,
    StoreCorrupt,
    StoreFailed,
    StoreFull,
    StoreReadOnly,
    StoreReplaced,
)
from syncagent.log import Event
from syncagent.testing.points import FailPoints

pytestmark = pytest.mark.concurrent


@pytest.fixture
def points():
    with FailPoints() as points:
        yield points


@pytest.fixture
def store(tmp_path, points):
    store = SQLiteStore(tmp_path / "a.db", points=points, busy_timeout=30.0)
    yield store
    try:
        store.close()
    except (StoreFailed, StoreFull, StoreReplaced, StoreReadOnly):
        pass  # the test has seen it


class Session:
    """A session of a store with its log, and the errors it was told of."""

    def __init__(self, store, name, **options):
        self.store = store
        self.errors = []
        self.told = threading.Event()
        self.opened = store.create(name, on_failure=self.on_failure, **options)
        self.lease = self.opened.lease
        self.name = name
        self.log = Log()
        self.said = "hello"

    def on_failure(self, error):
        self.errors.append(error)
        self.told.set()

    def put(self, count=1, flush=True):
        for _ in range(count):
            # Put and taken in turn, so that the state which is kept with them stays small.
            if len(self.log.dicts) % 2:
                self.log.canceled(f"m-{len(self.log.dicts) - 1}")
            else:
                self.log.put(f"m-{len(self.log.dicts)}", self.said)
            put_all(self.store, self.opened, [Event.from_dict(self.log.dicts[-1])], flush=False)
        if flush:
            self.store.flush(self.lease)

    @property
    def stored(self):
        return list(self.store.read(self.name))

    @property
    def complete(self):
        return self.stored == self.log.events


DISK_FULL = sqlite3.OperationalError("database or disk is full")
IO_ERROR = sqlite3.OperationalError("disk I/O error")


# -- the thread -----------------------------------------------------------------------------------------


def names():
    return [thread.name for thread in threading.enumerate() if thread.name == "syncagent-store"]


def test_one_thread_writes_for_all_sessions_from_the_first_use_to_the_close(store):
    assert names() == []
    assert store.sessions() == [] and names() == [], "reading starts nothing"
    sessions = [Session(store, f"s{n}") for n in range(3)]
    for session in sessions:
        session.put()
    assert names() == ["syncagent-store"]
    store.close()
    assert names() == []
    store.close()
    with pytest.raises(StoreFailed, match="closed"):
        store.create("more", on_failure=print)
    with pytest.raises(StoreFailed, match="closed"):
        sessions[0].put()
    assert names() == [], "a closed store starts no thread"


def test_a_store_that_was_never_used_closes(store):
    store.close()


def test_a_thread_that_could_not_be_started_is_waited_for_by_nobody(store, monkeypatch):
    def refuse(thread):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="can't start"):
            store.create("s", on_failure=print)
    session = Session(store, "s")
    session.put()
    assert session.complete


def test_closing_writes_what_is_queued(store, monkeypatch):
    monkeypatch.setattr(backlog, "WINDOW", 600.0)
    session = Session(store, "s")
    session.put(5, flush=False)
    store.close()
    assert session.complete


def test_what_nobody_waits_for_is_on_disk_after_the_window(store, points):
    session = Session(store, "s")
    written = points.hold("store.commit.after")
    session.put(3, flush=False)
    assert written.reached.wait(60) and written.info["events"] >= 1
    written.release()
    deadline = time.monotonic() + 60
    while store.durable_seq(session.lease) < 3 and time.monotonic() < deadline:
        time.sleep(0.005)  # nobody announces it
    assert store.durable_seq(session.lease) == 3 and session.complete


def test_many_sessions_share_a_commit(store, points):
    sessions = [Session(store, f"s{n}") for n in range(20)]
    held = points.hold("store.commit.before")
    sessions[0].put(flush=False)
    assert held.reached.wait(60)
    for session in sessions:
        session.put(3, flush=False)
    before = points.hits("store.commit.after")
    held.release()
    store.flush()
    assert points.hits("store.commit.after") - before <= 3
    assert all(session.complete for session in sessions)


def test_forty_threads_append_and_flush_at_once(store):
    sessions = [Session(store, f"s{n}") for n in range(40)]
    failures = []

    def work(session):
        try:
            for _ in range(10):
                session.put()
        except Exception as exc:
            failures.append(exc)

    threads = [threading.Thread(target=work, args=(session,)) for session in sessions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == [] and all(session.complete for session in sessions)


def test_a_bug_in_the_writer_leaves_nobody_waiting(store, monkeypatch):
    session = Session(store, "s")

    def broken(*args):
        raise MemoryError("no memory")

    monkeypatch.setattr(writer.Writer, "_attempt", broken)
    with pytest.raises(StoreFailed, match="no memory"):
        session.put()
    assert session.told.wait(60)


def test_an_on_failure_that_raises_does_no_harm(store, points):
    def bad(error):
        raise RuntimeError("bad callback")

    first = store.create("first", on_failure=bad)
    second = Session(store, "second")
    points.fail("store.commit.before", IO_ERROR)
    store.append(first.lease, Log().put("m").events)
    with pytest.raises(StoreFailed):
        second.put()
    assert second.told.wait(60)


# -- a full disk ----------------------------------------------------------------------------------------


def test_a_full_disk_keeps_the_events_and_writes_them_when_there_is_room(store, points):
    sessions = [Session(store, name) for name in ("a", "b")]
    sessions[0].put()
    points.fail("store.commit.before", DISK_FULL, times=2)
    for session in sessions:
        with pytest.raises(StoreFull, match="make room"):
            session.put(3)
    assert sessions[0].stored == sessions[0].log.events[:1] and sessions[1].stored == []
    store.retry()
    with pytest.raises(StoreFull):
        store.flush()
    sessions[0].put(flush=False)
    store.retry()
    store.flush()
    assert all(session.complete for session in sessions)
    assert {type(error) for session in sessions for error in session.errors} == {StoreFull}


def test_the_database_says_itself_that_it_is_full(store, monkeypatch):
    """By a bound on its pages, which is what SQLite makes of a disk without room."""
    session = Session(store, "s")
    store._writer._submit(lambda d, p: d._conn.execute("PRAGMA max_page_count = 20").fetchone(), None)
    with pytest.raises(StoreFull):
        for _ in range(1000):
            session.put(20)
    stored = len(session.stored)
    assert 0 < stored < len(session.log.events) and session.stored == session.log.events[:stored]
    store._writer._submit(lambda d, p: d._conn.execute("PRAGMA max_page_count = 100000").fetchone(), None)
    store.retry()
    store.flush()
    assert session.complete


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
@pytest.mark.parametrize("journal", ["wal", "delete"])
def test_a_disk_that_is_really_full(tmp_path, journal):
    folder = tmp_path / "disk"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]).returncode:
        pytest.skip("this machine lets nobody mount")
    try:
        store = SQLiteStore(folder / "a.db", journal=journal)
        session = Session(store, "s")
        session.said = "x" * 3000
        (folder / "filler").write_bytes(b"x" * 300_000)
        with pytest.raises(StoreFull):
            for _ in range(1000):
                session.put(50)
        # Filled up to the last byte, with a runner that wants to give its lease back as well.
        stored = len(session.stored)
        assert session.stored == session.log.events[:stored] and stored < len(session.log.events)
        (folder / "filler").unlink()
        store.retry()
        store.flush()
        assert session.complete
        store.close()
        conn = sqlite3.connect(folder / "a.db")
        assert conn.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        conn.close()
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_quota_is_as_good_as_a_full_disk(store):
    """To SQLite it is an I/O error; a limit on the size of files stands for it."""
    session = Session(store, "s")
    session.put()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (150_000, hard))
    try:
        with pytest.raises(StoreFull, match="quota"):
            for _ in range(1000):
                session.put(50)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    stored = len(session.stored)
    assert session.stored == session.log.events[:stored] and stored < len(session.log.events)
    store.retry()
    store.flush()
    assert session.complete


def test_a_lease_that_cannot_be_given_back_for_want_of_space_is_given_back_later(store, points, tmp_path):
    first, second = Session(store, "first"), Session(store, "second")
    real = Desk.transaction
    failing = [True]

    def transaction(self, work, patience):
        if failing and failing.pop():
            raise DISK_FULL
        return real(self, work, patience)

    Desk.transaction = transaction
    try:
        store.release(first.lease)
    finally:
        Desk.transaction = real
    again = store.open("first", on_failure=print)
    assert again.lease.epoch == 2, "in this process it is free at once"
    store.release(again.lease)
    failing.append(True)
    Desk.transaction = transaction
    try:
        store.release(second.lease)
    finally:
        Desk.transaction = real
    assert {info.id: info.live for info in store.sessions()} == {"first": False, "second": True}
    third = Session(store, "third")
    third.put()
    assert {info.id: info.live for info in store.sessions()}["second"] is False
    other = SQLiteStore(tmp_path / "a.db")
    other.open("second", on_failure=print)
    other.close()


def test_closing_with_a_full_disk_says_what_was_lost_and_lets_go(store, points, tmp_path):
    session = Session(store, "s")
    session.put()
    points.fail("store.commit.before", DISK_FULL, times=None)
    session.put(flush=False)
    with pytest.raises(StoreFull):
        store.close()
    other = SQLiteStore(tmp_path / "a.db")
    assert other.open("s", on_failure=print).state.seq == 1
    other.close()


def test_a_new_session_on_a_full_disk_is_refused_and_the_store_goes_on(store, points):
    session = Session(store, "s")
    real = Desk.transaction

    def transaction(self, work, patience):
        raise DISK_FULL

    Desk.transaction = transaction
    try:
        with pytest.raises(StoreFull):
            store.create("more", on_failure=print)
    finally:
        Desk.transaction = real
    session.put()
    assert session.complete


# -- a broken disk --------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["store.commit.before", "store.commit.after"])
def test_a_write_error_fails_the_store_for_good(store, points, tmp_path, where):
    a, b = Session(store, "a"), Session(store, "b")
    a.put()
    points.fail(where, IO_ERROR)
    with pytest.raises(StoreFailed, match="reopen the store") as caught:
        b.put()
    assert caught.value.path == store.path and isinstance(caught.value.__cause__, sqlite3.Error)
    for use in (a.put, b.put, store.flush, lambda: Session(store, "c")):
        with pytest.raises(StoreFailed):
            use()
    store.retry()
    with pytest.raises(StoreFailed):
        store.flush()
    assert a.told.wait(60) and b.told.wait(60) and len(a.errors) == len(b.errors) == 1
    store._writer._thread.join(60)
    # Its sessions are cold at once, since it can't write them any more.
    other = SQLiteStore(tmp_path / "a.db")
    assert other.open("a", on_failure=print).state.seq == 1
    assert other.open("b", on_failure=print).state.seq == (0 if where.endswith("before") else 1)
    other.close()


def test_a_read_only_answer_in_the_middle_fails_the_store(store, points):
    session = Session(store, "s")
    points.fail("store.commit.before", sqlite3.OperationalError("attempt to write a readonly database"))
    with pytest.raises(StoreReadOnly):
        session.put()
    with pytest.raises(StoreReadOnly):
        session.put()


@pytest.mark.parametrize("removed", ["file", "log", "folder"])
def test_a_store_that_was_removed_is_noticed_at_the_next_barrier(tmp_path, removed):
    folder = tmp_path / "in"
    store = SQLiteStore(folder / "a.db")
    session = Session(store, "s")
    session.put()
    if removed == "folder":
        os.rename(folder, tmp_path / "out")
    else:
        os.unlink(folder / ("a.db" if removed == "file" else "a.db-wal"))
    with pytest.raises(StoreReplaced) as caught:
        session.put()
    assert caught.value.path == store.path and store.path in str(caught.value)
    with pytest.raises(StoreReplaced):
        store.close()


def test_a_barrier_with_nothing_to_write_notices_it_too(tmp_path):
    store = SQLiteStore(tmp_path / "a.db")
    session = Session(store, "s")
    session.put()
    os.unlink(tmp_path / "a.db")
    with pytest.raises(StoreReplaced):
        store.flush(session.lease)
    assert session.told.wait(60)
    with pytest.raises(StoreReplaced):
        session.put()
    store.close()


def test_a_damaged_session_leaves_the_others_usable(store):
    good, bad = Session(store, "good"), Session(store, "bad")
    good.put()
    bad.put()
    conn = sqlite3.connect(store.path)
    conn.execute("INSERT INTO events VALUES (2, 2, 1, 'odd', 1, NULL, '{}')")
    conn.commit()
    conn.close()
    good.put(flush=False)
    bad.put(flush=False)
    good.put()
    with pytest.raises(StoreCorrupt) as caught:
        store.flush(bad.lease)
    assert (caught.value.session, caught.value.seq) == ("bad", 2)
    assert good.complete and bad.told.wait(60) and good.errors == []
    with pytest.raises(StoreCorrupt):
        bad.put()
    good.put()
    assert good.complete


# -- others ---------------------------------------------------------------------------------------------


def test_a_file_that_stays_locked_is_busy_and_the_events_are_kept(tmp_path):
    store = SQLiteStore(tmp_path / "a.db", busy_timeout=0.3)
    session = Session(store, "s")
    other = sqlite3.connect(tmp_path / "a.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreBusy, match="has held the database"):
        session.put()
    with pytest.raises(StoreBusy):
        store.create("more", on_failure=print)
    with pytest.raises(StoreBusy):
        store.flush(session.lease)
    other.execute("COMMIT")
    other.close()
    store.retry()
    session.put()
    assert session.complete and [type(error) for error in session.errors] == [StoreBusy]
    store.close()


def test_a_wait_for_a_locked_file_can_be_cancelled(tmp_path):
    store = SQLiteStore(tmp_path / "a.db")
    session = Session(store, "s")
    other = sqlite3.connect(tmp_path / "a.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    begun = time.monotonic()
    with CancellationToken() as token:
        timer = threading.Timer(0.1, token.cancel)
        timer.start()
        session.put(flush=False)
        with pytest.raises(Cancelled):
            store.flush(session.lease, token=token)
        with pytest.raises(Cancelled):
            store.create("more", on_failure=print, token=token)
        timer.join()
    with CancellationToken() as token:
        timer = threading.Timer(0.1, token.cancel)
        timer.start()
        with pytest.raises(Cancelled):
            store.create("more", on_failure=print, token=token)
        timer.join()
    assert time.monotonic() - begun < 20
    other.execute("COMMIT")
    other.close()
    store.flush()
    assert session.complete and [info.id for info in store.sessions()] == ["s"]
    store.close()


def test_opening_a_locked_store_can_be_cancelled_and_tried_again(tmp_path):
    SQLiteStore(tmp_path / "a.db").close()
    first = SQLiteStore(tmp_path / "a.db")
    Session(first, "s")
    first.close()
    other = sqlite3.connect(tmp_path / "a.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    store = SQLiteStore(tmp_path / "a.db")
    with CancellationToken() as token:
        timer = threading.Timer(0.1, token.cancel)
        timer.start()
        with pytest.raises(Cancelled):
            store.open("s", on_failure=print, token=token)
        timer.join()
    other.execute("COMMIT")
    other.close()
    assert store.open("s", on_failure=print).lease.epoch == 2
    store.close()


def test_a_session_that_another_process_took_over_writes_nothing_more(store, tmp_path):
    mine, calm = Session(store, "mine"), Session(store, "calm")
    mine.put()
    other = SQLiteStore(tmp_path / "a.db")
    with pytest.raises(SessionLive):
        other.open("mine", on_failure=print)
    with pytest.raises(SessionLive, match="wait until it ends"):
        other.open("mine", steal=True, on_failure=print)
    put_out_of_reach(tmp_path / "a.db")
    with pytest.raises(SessionLive, match="open the session with steal"):
        other.open("mine", on_failure=print)
    taken = other.open("mine", steal=True, on_failure=print)
    assert taken.lease.epoch == 2 and taken.state.seq == 1
    with pytest.raises(LeaseLost, match="'mine'") as caught:
        mine.put()
    assert caught.value.session == "mine" and mine.told.wait(60)
    for use in (mine.put, lambda: store.flush(mine.lease)):
        with pytest.raises(LeaseLost):
            use()
    calm.put()
    assert calm.complete and mine.stored == mine.log.events[:1]
    store.release(mine.lease)
    with pytest.raises(SessionLive):
        store.open("mine", on_failure=print)
    other.close()
    assert store.open("mine", on_failure=print).lease.epoch == 3


def test_a_session_is_not_taken_from_a_handle_of_the_same_store(store):
    old = Session(store, "s")
    old.put()
    for steal in (False, True):
        with pytest.raises(SessionLive):
            store.open("s", steal=steal, on_failure=print)
    old.put()
    assert old.complete


def test_what_a_store_cannot_make_it_says(store):
    Session(store, "s")
    with pytest.raises(SessionExists):
        Session(store, "s")
    with pytest.raises(TypeError):
        Session(store, "t", meta={"x": object()})
    Session(store, "t", meta={"x": [1, None, "\ud800"]})
    assert {info.id: info.meta for info in store.sessions()}["t"] == {"x": [1, None, "\ud800"]}


def test_the_log_is_moved_into_the_database_when_it_is_large(store, monkeypatch):
    monkeypatch.setattr(writer, "CHECKPOINT_BYTES", 100_000)
    store._writer._checkpoint_at = 100_000
    session = Session(store, "s")
    session.said = "x" * 1000
    sizes = []
    for _ in range(40):
        session.put(20)
        sizes.append(os.stat(store.path + "-wal").st_size)
    assert max(sizes) < 300_000 and session.complete
    assert os.stat(store.path).st_size > 50_000


def test_a_log_that_cannot_be_moved_is_tried_again_when_it_has_grown(store, monkeypatch):
    monkeypatch.setattr(writer, "CHECKPOINT_BYTES", 50_000)
    store._writer._checkpoint_at = 50_000
    tried = []
    monkeypatch.setattr(Desk, "checkpoint", lambda desk: tried.append(1) and False)
    session = Session(store, "s")
    for _ in range(20):
        session.put(20)
    grown = os.stat(store.path + "-wal").st_size
    assert 1 <= len(tried) <= grown // 50_000


def test_a_checkpoint_that_breaks_fails_the_store(store, monkeypatch):
    store._writer._checkpoint_at = 1

    def broken(desk):
        raise IO_ERROR

    monkeypatch.setattr(Desk, "checkpoint", broken)
    session = Session(store, "s")
    session.put()
    assert session.told.wait(60) and isinstance(session.errors[0], StoreFailed)
    with pytest.raises(StoreFailed):
        session.put()
