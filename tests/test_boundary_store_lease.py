"""Who is alive is what the kernel says, never what a pid or a clock says."""

import os
import socket
import sqlite3

import pytest
import store_child
from processes import until

from syncagent.boundary.store import lease
from syncagent.boundary.store.files import Places, make_folder
from syncagent.boundary.store.forks import ForkGuard
from syncagent.boundary.store.lease import Holder, RunnerLock, enter_runner, find_holder, forget_dead_runners


@pytest.fixture
def places(tmp_path):
    places = Places.of(tmp_path / "a.db")
    make_folder(places.runners)
    return places


@pytest.fixture
def conn():
    conn = sqlite3.connect(":memory:", isolation_level=None)
    conn.execute(
        "CREATE TABLE runners(id INTEGER PRIMARY KEY AUTOINCREMENT, pid INT, host TEXT, boot TEXT,"
        " started INT, lock TEXT)"
    )
    yield conn
    conn.close()


def test_a_runner_is_alive_while_its_lock_is_held(places, conn):
    guard = ForkGuard(places.path)
    lock = RunnerLock.take(places, guard)
    runner = enter_runner(conn, lock)
    assert guard.descriptors == {lock.fd}
    assert find_holder(conn, places, runner) == Holder(
        pid=os.getpid(), host=socket.gethostname(), known=True
    )
    assert find_holder(conn, places, runner) is not None, "asking must not take the lock away"
    lock.drop(guard)
    assert find_holder(conn, places, runner) is None
    assert guard.descriptors == set() and os.listdir(places.runners) == []


def test_nobody_is_behind_no_number_or_an_unknown_one(places, conn):
    assert find_holder(conn, places, None) is None
    assert find_holder(conn, places, 4711) is None


def test_nobody_is_alive_where_the_folder_of_the_locks_was_replaced_by_a_file(places, conn):
    lock = RunnerLock.take(places, ForkGuard(places.path))
    runner = enter_runner(conn, lock)
    lock.drop(ForkGuard(places.path))
    os.rmdir(places.runners)
    with open(places.runners, "w"):
        assert find_holder(conn, places, runner) is None


def test_two_who_ask_about_a_dead_runner_do_not_see_each_other(places, conn):
    """A probe that locked the file would make the other take the dead for alive."""
    guard = ForkGuard(places.path)
    lock = RunnerLock.take(places, guard)
    runner = enter_runner(conn, lock)
    guard.descriptors.discard(lock.fd)
    os.close(lock.fd)  # it died: the file is there, the lock is not
    probe = os.open(lock.path, os.O_RDONLY)
    import fcntl

    fcntl.flock(probe, fcntl.LOCK_SH | fcntl.LOCK_NB)
    assert find_holder(conn, places, runner) is None
    os.close(probe)


def test_a_runner_on_another_machine_counts_as_alive(places, conn):
    guard = ForkGuard(places.path)
    lock = RunnerLock.take(places, guard)
    runner = enter_runner(conn, lock)
    lock.drop(guard)
    conn.execute("UPDATE runners SET host = 'elsewhere', boot = 'another', pid = 7")
    assert find_holder(conn, places, runner) == Holder(pid=7, host="elsewhere", known=False)
    forget_dead_runners(conn, places)
    assert find_holder(conn, places, runner) is not None


@pytest.mark.parametrize("change", ["host = 'a-container'", "boot = 'before-the-restart'", "boot = ''"])
def test_the_same_machine_is_known_by_its_kernel_or_its_name(places, conn, change):
    guard = ForkGuard(places.path)
    lock = RunnerLock.take(places, guard)
    runner = enter_runner(conn, lock)
    lock.drop(guard)
    conn.execute(f"UPDATE runners SET {change}")
    assert find_holder(conn, places, runner) is None


def test_without_the_kernels_word_the_name_has_to_do(monkeypatch):
    def refuse(*args, **kwargs):
        raise FileNotFoundError

    monkeypatch.setattr("builtins.open", refuse)
    assert lease._boot_id() == ""


def test_what_killed_runners_left_is_removed_and_the_living_stay(places, conn):
    guard = ForkGuard(places.path)
    alive, dead = RunnerLock.take(places, guard), RunnerLock.take(places, guard)
    numbers = [enter_runner(conn, alive), enter_runner(conn, dead)]
    guard.descriptors.discard(dead.fd)
    os.close(dead.fd)
    forget_dead_runners(conn, places)
    assert conn.execute("SELECT id FROM runners").fetchall() == [(numbers[0],)]
    assert os.listdir(places.runners) == [alive.name]
    again = RunnerLock.take(places, guard)
    assert enter_runner(conn, again) > numbers[1], "a number is never used again"
    alive.drop(guard)
    again.drop(guard)


def test_a_lock_whose_file_was_removed_can_still_be_dropped(places):
    guard = ForkGuard(places.path)
    lock = RunnerLock.take(places, guard)
    os.unlink(lock.path)
    lock.drop(guard)
    assert guard.descriptors == set()


@pytest.mark.concurrent
def test_a_killed_process_is_dead_at_once(tmp_path):
    """And one that is only stopped, as by a debugger, is not."""
    import signal

    path = tmp_path / "a.db"
    child = store_child.start("hold", path, "s1")
    assert child.stdout.readline() == f"held {child.pid}\n"
    places = Places.of(path)
    conn = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    runner = conn.execute("SELECT runner FROM sessions").fetchone()[0]
    child.send_signal(signal.SIGSTOP)
    assert find_holder(conn, places, runner).pid == child.pid
    store_child.kill(child)
    assert find_holder(conn, places, runner) is None
    conn.close()


@pytest.mark.concurrent
def test_a_forked_child_does_not_keep_its_parents_sessions_live(tmp_path):
    path = tmp_path / "a.db"
    child = store_child.start("fork", path, "s1")
    words = child.stdout.readline().split()
    assert words[0] == "forked"
    places = Places.of(path)
    conn = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    runner = conn.execute("SELECT runner FROM sessions").fetchone()[0]
    assert find_holder(conn, places, runner) is not None
    os.kill(child.pid, 9)
    child.wait(60)
    os.kill(int(words[1]), 0)  # the grandchild lives on
    # It drops its copy of the lock as the first thing it does, which may be a moment after the fork.
    until(lambda: find_holder(conn, places, runner) is None, "the session is free")
    os.kill(int(words[1]), 9)
    child.stdout.read()
    with child:
        pass
    conn.close()
