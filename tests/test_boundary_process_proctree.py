"""Descendants are all found, and a signal never goes to another process."""

import ctypes
import errno
import os
import signal
import subprocess
import sys
from typing import Any, Iterator

import pytest
from processes import state_of, until

from syncagent.boundary.process import proctree

pytestmark = pytest.mark.concurrent


@pytest.fixture
def child() -> "Iterator[subprocess.Popen[bytes]]":
    with subprocess.Popen(["sleep", "60"]) as child:
        yield child
        child.kill()


def identity(pid: int) -> "tuple[proctree.Process, proctree.Stat]":
    stat = proctree.stat_of(pid)
    assert stat is not None
    return proctree.Process(pid, stat.start), stat


def test_a_reused_pid_is_never_signalled(child: Any) -> None:
    """The same pid with another start time is another process."""
    process, stat = identity(child.pid)
    assert proctree.send(process._replace(start=process.start - 1), stat, signal.SIGKILL)
    assert state_of(child.pid) in ("S", "R", "D")
    assert proctree.send(process, stat, signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL


def test_a_process_that_is_gone_is_no_error(child: Any) -> None:
    process, stat = identity(child.pid)
    child.kill()
    child.wait()
    assert proctree.send(process, stat, signal.SIGKILL)


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EPERM])
def test_without_pidfds_only_own_children_are_signalled(
    monkeypatch: pytest.MonkeyPatch, child: Any, number: int
) -> None:
    """An old kernel doesn't know them, a container's filter may forbid them."""

    def unavailable(pid: int) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "pidfd_open", unavailable)
    assert proctree.death_watch(os.getpid()) == -1
    process, stat = identity(child.pid)
    stat.parent = 1  # a grandchild's pid could be reused: its parent may reap it at any time
    assert proctree.send(process, stat, signal.SIGKILL)
    assert state_of(child.pid) in ("S", "R", "D")
    stat.parent = os.getpid()
    assert proctree.send(process, stat, signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL


def test_a_refused_signal_is_told(monkeypatch: pytest.MonkeyPatch, child: Any) -> None:
    def refuse(*args: Any) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(signal, "pidfd_send_signal", refuse)
    process, stat = identity(child.pid)
    stat.parent = 1
    assert not proctree.send(process, stat, signal.SIGTERM)
    stat.parent = os.getpid()
    monkeypatch.setattr(os, "kill", refuse)
    assert not proctree.send(process, stat, signal.SIGTERM)
    monkeypatch.undo()


def test_a_name_with_brackets_and_blanks_is_read_right(tmp_path: Any) -> None:
    os.symlink("/bin/sleep", tmp_path / "a) Z 1 (b")
    with subprocess.Popen([str(tmp_path / "a) Z 1 (b"), "60"]) as child:
        _, stat = identity(child.pid)
        assert (stat.parent, stat.living) == (os.getpid(), True)
        child.kill()


def test_a_zombie_is_not_living(child: Any) -> None:
    child.kill()
    until(lambda: state_of(child.pid) == "Z", "it is a zombie")
    assert not identity(child.pid)[1].living
    assert proctree.stat_of(2**22 + 1) is None


def test_descendants_are_found_at_any_depth_and_by_any_thread() -> None:
    program = """
import subprocess, threading
t = threading.Thread(target=lambda: print(subprocess.Popen(["sleep", "60"]).pid, flush=True))
t.start(); t.join()
threading.Thread(target=lambda: print(subprocess.Popen(["sh", "-c", "sleep 60; :"]).pid, flush=True) or
                 threading.Event().wait()).start()
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        shallow, deep = int(parent.stdout.readline()), int(parent.stdout.readline())
        below = until(lambda: proctree.children_of(deep), "the shell has started its child")
        found = {process.pid for process in proctree.descendants(set())}
        assert {parent.pid, shallow, deep, *below} <= found
        without = {process.pid for process in proctree.descendants({parent.pid})}
        assert not {parent.pid, shallow, deep, *below} & without
        for pid in (*below, deep, shallow, parent.pid):
            os.kill(pid, signal.SIGKILL)


def test_every_other_descriptor_is_closed_however_high() -> None:
    program = f"""
import os, sys
sys.path.append({os.path.dirname(proctree.__file__)!r})
import proctree
keep = os.open("/dev/null", os.O_RDONLY)
os.dup2(keep, 900)
os.dup2(keep, 77)
proctree.close_all_but({{keep, 77}})
print([fd for fd in range(1024) if os.path.exists(f"/proc/self/fd/{{fd}}")] == [0, 1, 2, keep, 77])
"""
    done = subprocess.run([sys.executable, "-I", "-S", "-c", program], stdout=subprocess.PIPE, text=True)
    assert done.stdout == "True\n"


def test_the_c_library_is_there_for_prctl() -> None:
    libc = proctree.load_libc()
    value = ctypes.c_int(-1)
    libc.prctl(37, ctypes.byref(value), 0, 0, 0)  # PR_GET_CHILD_SUBREAPER
    assert value.value == 0
    proctree.prctl(None, proctree.PR_SET_CHILD_SUBREAPER, 1)
