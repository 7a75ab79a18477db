"""The fixture that looks for what tests leave behind: it sees each kind, and waits for what is ending."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time

import leaks
import pytest

pytestmark = pytest.mark.concurrent

SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]  # what is left behind


def left_now(before, programs=None):
    return leaks.find_left(before, programs or {}, search=programs is not None, patience=0.02)


def test_nothing_is_left_by_doing_nothing():
    before = leaks.snapshot()
    assert left_now(before, leaks.marked_programs()) == []


def test_a_thread_is_seen():
    before = leaks.snapshot()
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait, name="left-over")
    thread.start()
    try:
        assert left_now(before) == ["thread 'left-over'"]
    finally:
        stop.set()
        thread.join()


def test_a_socket_is_seen():
    before = leaks.snapshot()
    with socket.socket():
        (left,) = left_now(before)
    assert "socket:" in left
    assert left_now(before) == []


def test_a_descriptor_that_took_over_a_number_is_seen(tmp_path):
    descriptor = os.open(tmp_path / "old", os.O_CREAT)
    before = leaks.snapshot()
    os.close(descriptor)
    again = os.open(tmp_path / "new", os.O_CREAT)
    try:
        assert again == descriptor
        assert left_now(before) == [f"descriptor {again}: {tmp_path / 'new'}"]
    finally:
        os.close(again)


def test_a_running_child_is_seen():
    before = leaks.snapshot()
    child = subprocess.Popen(SLEEP)
    try:
        (left,) = left_now(before)
        assert f"child process {child.pid}" in left
    finally:
        child.kill()
        child.wait()


def test_a_zombie_is_seen():
    before = leaks.snapshot()
    pid = os.posix_spawn("/bin/true", ["true"], {})
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    try:
        assert left_now(before) == [f"child process {pid}: zombie, nobody has waited for it"]
    finally:
        os.waitpid(pid, 0)


def test_a_program_that_escaped_from_its_parent_is_seen():
    before, programs = leaks.snapshot(), leaks.marked_programs()
    script = f"import subprocess; print(subprocess.Popen({SLEEP!r}, start_new_session=True).pid)"
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as parent:
        pid = int(parent.stdout.readline())
    try:
        (left,) = left_now(before, programs)
        assert left.startswith(f"process {pid}:")
    finally:
        os.kill(pid, signal.SIGKILL)
    assert leaks.find_left(before, programs, search=True) == []


def test_a_signal_handler_is_seen():
    before = leaks.snapshot()
    old = signal.signal(signal.SIGHUP, lambda *_: None)
    try:
        (left,) = left_now(before)
        assert left.startswith("handler of SIGHUP")
    finally:
        signal.signal(signal.SIGHUP, old)


def test_what_is_just_ending_is_waited_for():
    before = leaks.snapshot()
    thread = threading.Thread(target=time.sleep, args=(0.2,))
    thread.start()
    assert leaks.find_left(before, {}, search=False) == []


def test_a_descriptor_in_a_garbage_cycle_is_collected_and_not_reported():
    before = leaks.snapshot()

    class Holder:
        def __init__(self):
            self.me = self
            self.reader, self.writer = os.pipe()

        def __del__(self):
            os.close(self.reader)
            os.close(self.writer)

    Holder()
    assert left_now(before) == []


def test_looking_is_cheap():
    before = leaks.snapshot()
    start = time.perf_counter()
    for _ in range(20):
        leaks.find_left(before, {}, search=False)
    assert (time.perf_counter() - start) / 20 < 0.05
