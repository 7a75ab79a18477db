"""Where a store's files are, how they are made, and that a swap is noticed."""

import os
import sqlite3
import stat

import pytest
import store_child

from syncagent import Store
from syncagent.boundary.store.faults import Patience
from syncagent.boundary.store.files import Gate, Places, Watch, make_database_file, make_folder
from syncagent.errors import StoreBusy, StoreReplaced


def mode(path):
    return stat.S_IMODE(os.stat(path).st_mode)


def test_two_names_of_one_file_are_one_store(tmp_path, monkeypatch):
    (tmp_path / "real").mkdir()
    os.symlink(tmp_path / "real", tmp_path / "link")
    os.symlink(tmp_path / "real" / "a.db", tmp_path / "b.db")
    monkeypatch.chdir(tmp_path)
    one = Places.of(tmp_path / "real" / "a.db")
    assert one == Places.of("link/../link/a.db") == Places.of("b.db") == Places.of(str(tmp_path / "b.db"))
    assert one.runners == str(tmp_path / "real" / "a.db-runners")


def test_what_a_store_has_for_itself_is_all_that_it_makes(tmp_path):
    with Store(tmp_path / "a.db") as store:
        store.create("s1").close()
        store.open("s1").close()
        there = {str(path) for path in tmp_path.iterdir()}
        assert there <= set(Places.of(tmp_path / "a.db").private) and len(there) == 4


@pytest.mark.parametrize("path", ["", ":memory:", b"a.db", "a\0b"])
def test_what_is_no_path_of_a_file_is_refused(path):
    with pytest.raises(ValueError, match="a store is a file"):
        Places.of(path)


def test_a_folder_below_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(NotADirectoryError, match="file"):
            make_folder(str(path))


def test_an_empty_file_counts_as_missing(tmp_path):
    places = Places.of(tmp_path / "a.db")
    assert places.is_missing() and places.wal_size() == 0
    (tmp_path / "a.db").write_bytes(b"")
    assert places.is_missing()
    (tmp_path / "a.db-wal").write_bytes(b"x")
    assert not places.is_missing()


def test_what_we_make_is_for_its_owner_only(tmp_path):
    old = os.umask(0)
    try:
        make_folder(str(tmp_path / "a" / "b"))
        make_database_file(str(tmp_path / "a" / "b" / "c.db"))
    finally:
        os.umask(old)
    assert mode(tmp_path / "a" / "b") == 0o700 and mode(tmp_path / "a" / "b" / "c.db") == 0o600
    assert os.listdir(tmp_path / "a" / "b") == ["c.db"]


def test_what_is_there_is_left_as_it_is(tmp_path):
    os.chmod(tmp_path, 0o755)
    (tmp_path / "a.db").write_bytes(b"mine")
    os.chmod(tmp_path / "a.db", 0o644)
    make_folder(str(tmp_path))
    make_database_file(str(tmp_path / "a.db"))
    assert mode(tmp_path) == 0o755 and mode(tmp_path / "a.db") == 0o644
    assert (tmp_path / "a.db").read_bytes() == b"mine"


@pytest.mark.parametrize("error", [PermissionError(1, "no links here"), FileExistsError(17, "faster")])
def test_without_hard_links_the_file_is_made_in_place(tmp_path, monkeypatch, error):
    def link(source, target):
        if isinstance(error, FileExistsError):
            open(target, "wb").close()
        raise error

    monkeypatch.setattr(os, "link", link)
    make_database_file(str(tmp_path / "a.db"))
    assert os.listdir(tmp_path) == ["a.db"]


def opened(path):
    conn = sqlite3.connect(path, isolation_level=None)
    conn.execute("PRAGMA journal_mode = wal")
    conn.execute("CREATE TABLE IF NOT EXISTS t(x)")
    return conn


SWAPS = ["delete", "replace", "delete the log", "replace the log", "remove the folder"]


@pytest.mark.parametrize("swap", SWAPS)
def test_a_swapped_file_is_noticed(tmp_path, swap):
    path = tmp_path / "in" / "a.db"
    path.parent.mkdir()
    conn = opened(path)
    watch = Watch(Places.of(path))
    assert watch.check() > 0 and watch.check() > 0
    name = str(path) + ("-wal" if "log" in swap else "")
    if swap == "remove the folder":
        os.rename(path.parent, tmp_path / "out")
    elif swap.startswith("delete"):
        os.unlink(name)
    else:
        with open(tmp_path / "new", "wb") as file:
            file.write(b"x")
        os.replace(tmp_path / "new", name)
    with pytest.raises(StoreReplaced, match="deleted or replaced") as caught:
        watch.check()
    assert caught.value.path == str(path)
    conn.close()


def test_a_log_that_is_emptied_is_still_the_same(tmp_path):
    conn = opened(tmp_path / "a.db")
    watch = Watch(Places.of(tmp_path / "a.db"))
    assert watch.check() > 0
    conn.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    assert watch.check() == 0
    conn.close()


def test_without_a_log_the_database_alone_is_watched(tmp_path):
    conn = sqlite3.connect(tmp_path / "a.db")
    conn.execute("CREATE TABLE t(x)")
    conn.close()
    assert Watch(Places.of(tmp_path / "a.db")).check() == 0


def test_one_passes_the_gate_at_a_time_and_says_who(tmp_path):
    first, second = Gate(str(tmp_path / "gate")), Gate(str(tmp_path / "gate"))
    assert first.holder() is None
    first.enter(Patience(0, path="p"))
    with pytest.raises(StoreBusy, match=f"process {os.getpid()} "):
        second.enter(Patience(0.01, path="p"))
    first.leave()
    second.enter(Patience(60, path="p"))
    second.leave()
    first.close()
    second.close()
    assert mode(tmp_path / "gate") == 0o600


@pytest.mark.concurrent
def test_the_gate_opens_when_its_holder_is_killed(tmp_path):
    child = store_child.start("gate", tmp_path / "gate")
    assert child.stdout.readline() == "inside\n"
    gate = Gate(str(tmp_path / "gate"))
    with pytest.raises(StoreBusy, match=f"process {child.pid} "):
        gate.enter(Patience(0.01, path="p"))
    store_child.kill(child)
    gate.enter(Patience(60, path="p"))
    gate.close()
