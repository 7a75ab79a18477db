"""What a fork does not carry over."""

import os
import threading

import pytest

from syncagent.boundary.store import forks
from syncagent.boundary.store.forks import ForkGuard
from syncagent.errors import ForkedStore

pytestmark = pytest.mark.concurrent


def in_child(check):
    """Run `check` in a forked child; return its exit code: 0 if it returned something true."""
    pid = os.fork()
    if pid == 0:
        code = 99
        try:
            code = 0 if check() else 1
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_child_is_refused_and_the_parent_is_not():
    guard = ForkGuard("runs.db")
    guard.check()

    def check():
        with pytest.raises(ForkedStore, match="opened by process") as caught:
            guard.check()
        return guard.forked and caught.value.path == "runs.db"

    assert in_child(check) == 0
    assert not guard.forked


def test_a_child_closes_the_descriptors_that_hold_a_lock(tmp_path):
    guard = ForkGuard("runs.db")
    fd = os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT)
    guard.descriptors.add(fd)

    def check():
        with pytest.raises(OSError):
            os.fstat(fd)
        return True

    assert in_child(check) == 0
    os.fstat(fd)
    guard.descriptors.discard(fd)
    os.close(fd)


def test_a_fork_waits_for_a_call_that_is_under_way():
    guard = ForkGuard("runs.db")
    entered, leave = threading.Event(), threading.Event()
    order = []

    def call():
        with guard.busy():
            entered.set()
            leave.wait(60)
            order.append("left")

    caller = threading.Thread(target=call)
    caller.start()
    assert entered.wait(60)
    timer = threading.Timer(0.2, leave.set)
    timer.start()
    assert in_child(lambda: True) == 0
    order.append("forked")
    caller.join()
    timer.join()
    assert order == ["left", "forked"]


def test_two_threads_may_fork_at_once(tmp_path, monkeypatch):
    """Both wait for the same call; each one's child is rid of the lock, and the parent goes on."""
    waiting, both = [], threading.Event()
    wait_for = threading.Condition.wait_for

    def counted(condition, *args, **options):
        waiting.append(condition)
        if len(waiting) == 2:
            both.set()
        return wait_for(condition, *args, **options)

    monkeypatch.setattr(forks, "FORK_WAIT", 60.0)
    guard = ForkGuard("runs.db")
    fd = os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT)
    guard.descriptors.add(fd)
    codes = []

    def check():
        with pytest.raises(OSError):
            os.fstat(fd)
        with guard.busy():
            return True

    threads = [threading.Thread(target=lambda: codes.append(in_child(check))) for _ in range(2)]
    with guard.busy():
        monkeypatch.setattr(threading.Condition, "wait_for", counted)
        for thread in threads:
            thread.start()
        assert both.wait(60)
        monkeypatch.undo()
    for thread in threads:
        thread.join()
    assert codes == [0, 0]
    assert guard._idle.acquire(timeout=60), "the lock is free again"
    guard._idle.release()
    guard.descriptors.discard(fd)
    os.close(fd)


def test_a_call_that_hangs_does_not_hang_a_fork(monkeypatch):
    monkeypatch.setattr(forks, "FORK_WAIT", 0.05)
    guard = ForkGuard("runs.db")
    with guard.busy():
        assert in_child(lambda: True) == 0
    with guard.busy():
        pass


def test_a_child_can_open_a_store_of_its_own():
    guard = ForkGuard("runs.db")
    with guard.busy():
        pass

    def check():
        own = ForkGuard("runs.db")
        with own.busy():
            own.check()
        return True

    assert in_child(check) == 0


def test_a_guard_that_nobody_needs_is_forgotten():
    before = len(forks._guards())
    guard = ForkGuard("runs.db")
    assert len(forks._guards()) == before + 1
    del guard
    assert len(forks._guards()) == before
