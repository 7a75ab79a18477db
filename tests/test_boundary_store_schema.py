"""The database is made once, checked before anything is written, and brought up to date."""

import os
import re
import pathlib
import shutil
import sqlite3
import stat
import subprocess
import tempfile
import threading

import pytest
import store_child
from test_boundary_store_forks import in_child

from syncagent.boundary.store import schema
from syncagent.boundary.store.faults import Patience
from syncagent.boundary.store.files import Places
from syncagent.errors import (
    NotAStore,
    StoreBusy,
    StoreFailed,
    StoreReadOnly,
    StoreTooNew,
    WALUnavailable,
)


def open_writer(path, journal="wal", seconds=60.0):
    return schema.open_writer(Places.of(path), journal=journal, patience=Patience(seconds, path=str(path)))


def values(conn, *pragmas):
    return [conn.execute(f"PRAGMA {name}").fetchone()[0] for name in pragmas]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "a.db"


def tree(folder):
    """Every file below a folder with its bytes."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


# -- making ---------------------------------------------------------------------------------------------


def test_a_new_store_is_ours_durable_and_private(tmp_path):
    old = os.umask(0)
    try:
        conn = open_writer(tmp_path / "new" / "a.db")
    finally:
        os.umask(old)
    assert values(conn, "application_id", "user_version") == [0x53594E43, schema.VERSION]
    assert values(conn, "journal_mode", "synchronous", "wal_autocheckpoint") == ["wal", 2, 0]
    tables = {row[0] for row in conn.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    assert tables >= {"store", "runners", "sessions", "events", "control"}
    for name in ("new", "new/a.db-runners"):
        assert stat.S_IMODE(os.stat(tmp_path / name).st_mode) == 0o700
    for name in ("new/a.db", "new/a.db-wal", "new/a.db-shm"):
        assert stat.S_IMODE(os.stat(tmp_path / name).st_mode) == 0o600
    conn.close()


def test_it_uses_nothing_that_an_old_sqlite_lacks(path):
    """SQLite 3.34 knows neither STRICT nor RETURNING nor the JSON operators."""
    conn = open_writer(path)
    sql = " ".join(row[0] or "" for row in conn.execute("SELECT sql FROM sqlite_master")).upper()
    assert "STRICT" not in sql and "GENERATED" not in sql and "->" not in sql
    columns = [row[1:4] for row in conn.execute("PRAGMA table_info(events)")]
    assert columns == [
        ("sid", "INTEGER", 1),
        ("seq", "INTEGER", 1),
        ("n", "INTEGER", 1),
        ("type", "TEXT", 1),
        ("time", "INTEGER", 1),
        ("surface", "INTEGER", 0),
        ("data", "TEXT", 1),
    ]
    conn.close()


def test_a_session_is_there_once_and_an_event_is_there_once(path):
    conn = open_writer(path)
    insert = "INSERT INTO sessions(uid, created, updated) VALUES ('s', 1, 1)"
    event = "INSERT INTO events VALUES (1, 1, 1, 'turn/start', 1, NULL, '{}')"
    for statement in (insert, event):
        conn.execute(statement)
        with pytest.raises(sqlite3.IntegrityError):
            conn.execute(statement)
    conn.close()


def test_making_it_is_one_transaction(path, monkeypatch):
    """Also with the sqlite-utils whose own statements would commit."""
    monkeypatch.setattr(schema, "VERSION", "no number")  # the last statement of all fails
    with pytest.raises(Exception):
        open_writer(path, seconds=0)
    assert os.stat(path).st_size == 0
    monkeypatch.undo()
    open_writer(path).close()


def test_opening_again_changes_nothing(path):
    open_writer(path).close()
    before = tree(path.parent)
    open_writer(path).close()
    assert tree(path.parent) == before


def test_many_threads_make_one_store(path):
    """Switching the journal can answer BUSY at once, whatever the time-out."""
    for round in range(5):
        target = path.parent / f"{round}.db"
        start = threading.Barrier(8)
        failures = []

        def make():
            start.wait(60)
            try:
                open_writer(target).close()
            except Exception as exc:
                failures.append(exc)

        threads = [threading.Thread(target=make) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
        conn = schema.open_reader(Places.of(target))
        assert conn.execute("SELECT count(*) FROM store").fetchone() == (3,)
        conn.close()


# -- what is not ours -----------------------------------------------------------------------------------


def other_database(path, wal=False):
    conn = sqlite3.connect(path, isolation_level=None)
    if wal:
        conn.execute("PRAGMA journal_mode = wal")
    conn.execute("CREATE TABLE bookmarks(url)")
    conn.execute("INSERT INTO bookmarks VALUES ('x')")
    return conn


@pytest.mark.parametrize("wal", [False, True])
def test_another_applications_database_is_untouched(path, wal):
    conn = other_database(path, wal)
    before = path.read_bytes()
    for opening in (open_writer, lambda p: schema.open_reader(Places.of(p))):
        with pytest.raises(NotAStore, match="another application"):
            opening(path)
    assert path.read_bytes() == before
    assert conn.execute("PRAGMA journal_mode").fetchone() == ("wal" if wal else "delete",)
    assert not os.path.exists(str(path) + "-runners")
    conn.close()


@pytest.mark.parametrize("pragma", ["application_id = 7", "user_version = 7"])
def test_a_database_without_tables_can_be_anothers_too(path, pragma):
    conn = sqlite3.connect(path, isolation_level=None)
    conn.execute(f"PRAGMA {pragma}")
    conn.close()
    with pytest.raises(NotAStore):
        open_writer(path)


def test_a_folder_or_a_device_is_no_store(path):
    path.mkdir()
    os.mkfifo(str(path) + ".pipe")
    for odd, what in ((path, "a folder"), (str(path) + ".pipe", "no plain file"), ("/dev/null", "no plain")):
        for opening in (open_writer, lambda p: schema.open_reader(Places.of(p))):
            with pytest.raises(NotAStore, match=what):
                opening(odd)
        assert not os.path.exists(f"{odd}-runners")


NO_DATABASES = {"text": b"longer than the header of a database" * 10, "zeros": b"\0" * 5000, "a byte": b"x"}


@pytest.mark.parametrize("content", NO_DATABASES.values(), ids=NO_DATABASES)
def test_a_file_that_is_no_database_is_untouched(path, content):
    path.write_bytes(content)
    with pytest.raises(NotAStore):
        open_writer(path)
    assert tree(path.parent) == {"a.db": content}


def test_an_empty_file_is_taken_and_keeps_its_mode(path):
    path.write_bytes(b"")
    os.chmod(path, 0o640)
    assert schema.open_reader(Places.of(path)) is None
    open_writer(path).close()
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o640


def test_a_reader_makes_nothing(path):
    assert schema.open_reader(Places.of(path)) is None
    assert os.listdir(path.parent) == []


def test_a_reader_can_write_nothing(path):
    open_writer(path).close()
    conn = schema.open_reader(Places.of(path))
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        conn.execute("DELETE FROM store")
    conn.close()


# -- versions -------------------------------------------------------------------------------------------


def newer(path, min_reader):
    conn = open_writer(path)
    conn.execute("UPDATE store SET v = ? WHERE k = 'min_reader'", (str(min_reader),))
    conn.execute("UPDATE store SET v = 'syncagent 9.1' WHERE k = 'written_by'")
    conn.execute("PRAGMA user_version = 9")
    conn.close()


def test_a_newer_store_is_untouched_and_says_who_wrote_it(path):
    newer(path, min_reader=9)
    before = path.read_bytes()
    for opening in (open_writer, lambda p: schema.open_reader(Places.of(p))):
        with pytest.raises(StoreTooNew, match="written by syncagent 9.1.*upgrade") as caught:
            opening(path)
        assert caught.value.version == 9
    assert path.read_bytes() == before


def test_a_newer_store_that_allows_it_can_be_read(path):
    newer(path, min_reader=1)
    schema.open_reader(Places.of(path)).close()
    with pytest.raises(StoreTooNew):
        open_writer(path)


def test_a_newer_store_of_quite_another_shape_is_refused(path):
    conn = open_writer(path)
    conn.execute("DROP TABLE store")
    conn.execute("PRAGMA user_version = 9")
    conn.close()
    with pytest.raises(StoreTooNew, match="written by a newer version"):
        schema.open_reader(Places.of(path))


def migrated(conn, path, step, target=2):
    schema.migrate(conn, str(path), migrations={1: step}, target=target)


def test_an_older_store_is_migrated_after_a_copy_was_made(path):
    conn = open_writer(path)
    migrated(conn, path, lambda c: c.execute("ALTER TABLE sessions ADD COLUMN title TEXT"))
    assert values(conn, "user_version") == [2]
    assert "title" in [row[1] for row in conn.execute("PRAGMA table_info(sessions)")]
    conn.close()
    copy = sqlite3.connect(str(path) + ".v1.bak")
    assert values(copy, "user_version", "quick_check") == [1, "ok"]
    assert "title" not in [row[1] for row in copy.execute("PRAGMA table_info(sessions)")]
    copy.close()


def test_a_migration_that_fails_leaves_the_old_schema(path):
    conn = open_writer(path)

    def step(c):
        c.execute("DROP TABLE control")
        c.execute("NO SUCH STATEMENT")

    with pytest.raises(sqlite3.OperationalError):
        migrated(conn, path, step)
    assert values(conn, "user_version") == [1]
    assert conn.execute("SELECT count(*) FROM control").fetchone() == (0,)
    migrated(conn, path, lambda c: None)
    assert values(conn, "user_version") == [2]
    conn.close()


def test_a_store_that_another_process_has_migrated_is_left_alone(path):
    conn = open_writer(path)
    conn.execute("PRAGMA user_version = 2")
    migrated(conn, path, lambda c: pytest.fail("migrated twice"))
    conn.close()


def test_opening_an_older_store_migrates_it(path, monkeypatch):
    open_writer(path).close()
    monkeypatch.setattr(schema, "VERSION", 2)
    monkeypatch.setattr(schema, "MIGRATIONS", {1: lambda c: c.execute("CREATE TABLE more(x)")})
    conn = open_writer(path)
    assert conn.execute("SELECT count(*) FROM more").fetchone() == (0,)
    conn.close()


# -- the journal ----------------------------------------------------------------------------------------


def locked():
    return sqlite3.OperationalError("database is locked")


class Journal:
    """A connection that answers one PRAGMA with a list of values or errors."""

    def __init__(self, *answers, synchronous=2):
        self.answers = list(answers)
        self.synchronous = synchronous
        self.value = None

    def execute(self, sql):
        if "journal_mode" in sql:
            self.value = self.answers.pop(0)
        elif sql == "PRAGMA synchronous":
            self.value = self.synchronous
        if isinstance(self.value, Exception):
            raise self.value
        return self

    def fetchone(self):
        return (self.value,)


@pytest.mark.parametrize(
    "answer", ["delete", "memory", "", sqlite3.OperationalError("locking protocol")]
)
def test_a_refused_log_is_an_error_that_says_what_to_do(answer):
    with pytest.raises(WALUnavailable, match='use a local disk, or ask for journal="delete"') as caught:
        schema.set_pragmas(Journal(answer), "runs.db", "wal", Patience(60, path="p"))
    assert caught.value.path == "runs.db"


def test_a_busy_answer_to_the_journal_is_asked_again():
    schema.set_pragmas(Journal(locked(), locked(), "wal"), "runs.db", "wal", Patience(60, path="p"))
    with pytest.raises(StoreBusy):
        schema.set_pragmas(Journal(locked()), "runs.db", "wal", Patience(0, path="p"))


def test_another_error_of_the_journal_is_itself():
    with pytest.raises(sqlite3.OperationalError, match="disk I/O"):
        error = sqlite3.OperationalError("disk I/O error")
        schema.set_pragmas(Journal(error), "runs.db", "wal", Patience(60, path="p"))


def test_durability_is_read_back():
    with pytest.raises(StoreFailed, match="synchronous is 1, not FULL"):
        schema.set_pragmas(Journal("wal", synchronous=1), "runs.db", "wal", Patience(60, path="p"))


def test_without_a_log_a_commit_also_syncs_the_folder(path):
    conn = open_writer(path, journal="delete")
    assert values(conn, "journal_mode", "synchronous") == ["delete", 3]
    conn.close()
    conn = open_writer(path, journal="wal")
    assert values(conn, "journal_mode", "synchronous") == ["wal", 2]
    conn.close()


# -- what can't be written ------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["the folder", "the file"])
def test_a_store_that_may_only_be_read_is_refused_and_can_be_read(path, monkeypatch, what):
    """Root may write everything, so the kernel's answer is put in; a real one is tested below."""
    open_writer(path).close()
    before = tree(path.parent)
    locked_path = str(path.parent if what == "the folder" else path)
    monkeypatch.setattr(os, "access", lambda name, mode: name != locked_path)
    with pytest.raises(StoreReadOnly, match=f"make {re.escape(locked_path)} writable"):
        open_writer(path)
    assert tree(path.parent) == before
    schema.open_reader(Places.of(path)).close()


def test_a_folder_that_cannot_be_made_is_read_only(path, monkeypatch):
    def refuse(name):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(schema, "make_folder", refuse)
    with pytest.raises(StoreReadOnly):
        open_writer(path)


def test_another_trouble_with_the_folder_is_itself(path):
    path.write_bytes(b"")
    with pytest.raises(OSError):
        open_writer(path / "below" / "a.db")


@pytest.mark.concurrent
@pytest.mark.parametrize("left", ["closed", "killed"])
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody who may write nothing")
def test_somebody_who_may_only_read_reads_it(left):
    """After a clean close there is no log beside the database; after a kill there is one."""
    # Not below pytest's own folder, which nobody else may enter.
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        read_as_nobody(pathlib.Path(name) / "store", left)


@pytest.mark.concurrent
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody who may write nothing")
def test_what_cannot_be_read_says_why():
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        path = pathlib.Path(name) / "a.db"
        child = store_child.start("hold", path, "s1")
        assert child.stdout.readline().startswith("held")
        store_child.kill(child)
        os.unlink(f"{path}-shm")  # as in a copy that somebody made

        def read():
            os.setuid(65534)
            with pytest.raises(StoreFailed, match=why):
                schema.open_reader(Places.of(path))
            return True

        for mode, why in ((0o600, "no permission"), (0o644, "copy a.db and a.db-wal elsewhere")):
            os.chmod(path, mode)
            os.chmod(f"{path}-wal", mode)
            assert in_child(read) == 0


def read_as_nobody(folder, left):
    child = store_child.start("hold", folder / "a.db", "s1")
    assert child.stdout.readline().startswith("held")
    if left == "killed":
        store_child.kill(child)
    else:
        assert store_child.finish(child) == 0
    for name in [folder, *folder.iterdir()]:
        os.chmod(name, 0o755 if name.is_dir() else 0o644)
    before = tree(folder)
    reader = store_child.start("as_nobody", folder / "a.db", "s1")
    words = [line.split()[0] for line in reader.stdout]
    assert store_child.finish(reader) == 0
    assert words == ["read", "StoreReadOnly", "StoreReadOnly"]
    assert tree(folder) == before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
def test_a_file_system_that_is_mounted_to_read_is_read_only(tmp_path):
    open_writer(tmp_path / "a" / "a.db").close()
    (tmp_path / "b").mkdir()
    mounted = subprocess.run(["mount", "--bind", "-o", "ro", str(tmp_path / "a"), str(tmp_path / "b")])
    if mounted.returncode != 0:
        pytest.skip("this machine lets nobody mount")
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", str(tmp_path / "b")], check=True)
        with pytest.raises(StoreReadOnly):
            open_writer(tmp_path / "b" / "a.db")
        conn = schema.open_reader(Places.of(tmp_path / "b" / "a.db"))
        assert conn.execute("SELECT count(*) FROM store").fetchone() == (3,)
        conn.close()
    finally:
        subprocess.run(["umount", str(tmp_path / "b")], check=True)


def test_a_reader_beside_a_log_that_is_there_does_not_read_around_it(path, monkeypatch):
    """Without the log's index nothing but the database could be read: old, or torn."""
    conn = open_writer(path)
    conn.execute("UPDATE store SET v = 'in the log' WHERE k = 'id'")
    shutil.copy(path, path.parent / "b.db")
    shutil.copy(str(path) + "-wal", path.parent / "b.db-wal")
    conn.close()
    real = schema._connect

    def connect(name, options):
        if options == "mode=ro":
            raise sqlite3.OperationalError("unable to open database file")
        return real(name, options)

    monkeypatch.setattr(schema, "_connect", connect)
    with pytest.raises(sqlite3.OperationalError):
        schema.open_reader(Places.of(path.parent / "b.db"))


def test_a_commit_that_was_cut_short_without_a_log_is_undone_by_a_reader(tmp_path):
    """What a killed process leaves is a journal; the pages in the file are not to be believed."""
    path = tmp_path / "a.db"
    conn = open_writer(path, journal="delete")
    conn.execute("PRAGMA cache_size = 1")
    conn.execute("PRAGMA cache_spill = 1")
    conn.execute("BEGIN IMMEDIATE")
    for index in range(2000):
        conn.execute("INSERT INTO store VALUES (?, ?)", (f"k{index}", "x" * 500))
    shutil.copy(path, tmp_path / "b.db")
    shutil.copy(str(path) + "-journal", tmp_path / "b.db-journal")
    conn.close()
    reader = schema.open_reader(Places.of(tmp_path / "b.db"))
    assert reader.execute("SELECT count(*) FROM store").fetchone() == (3,)
    with pytest.raises(sqlite3.OperationalError):
        reader.execute("DELETE FROM store")
    reader.close()
    open_writer(tmp_path / "b.db").close()


@pytest.mark.parametrize("name", ["a ? # % &=.db", "ünï 日本.db", "a'b\"c.db"])
def test_any_file_name_will_do(tmp_path, name):
    open_writer(tmp_path / name).close()
    assert {name, name + "-runners"} <= set(os.listdir(tmp_path))


def test_a_file_name_that_is_no_text_will_do(tmp_path):
    name = os.fsdecode(b"a\xff.db")
    open_writer(tmp_path / name).close()
    assert name in os.listdir(tmp_path)
