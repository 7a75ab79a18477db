"""What a piece of code left behind: threads, descriptors, child processes, programs, signal handlers.

Two cheap snapshots are compared. Only where they differ is anything collected, waited for or named.
"""

import gc
import os
import signal
import threading
import time
from typing import Any, Dict, List, NamedTuple, Tuple

#: How long what is just ending may take, in seconds.
PATIENCE = 5.0

#: Programs that tests start inherit this variable, so that one that escaped into a session or a
#: parent of its own is still known as ours.
MARK = "SYNCAGENT_TEST_RUN"

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD, signal.SIGALRM)


class Snapshot(NamedTuple):
    """What this process holds at one moment."""

    threads: Dict[int, threading.Thread]
    descriptors: Dict[int, Tuple[int, int, str]]
    children: Dict[int, str]
    handlers: Tuple[Any, ...]


def _descriptors() -> Dict[int, Tuple[int, int, str]]:
    """Each open descriptor with what it is: a number alone may have been closed and used again."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            status = os.stat(int(name))
            found[int(name)] = (status.st_dev, status.st_ino, os.readlink(f"/proc/self/fd/{name}"))
        except OSError:  # the listing's own descriptor, or one that another thread has just closed
            pass
    return found


def _children() -> Dict[int, str]:
    """Every child of this process and its state, zombies too."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return {}
    found = {}
    for task in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{task}/children", encoding="ascii") as file:
                pids = file.read().split()
        except OSError:  # that thread has just ended
            continue
        for pid in pids:
            found[int(pid)] = _describe(int(pid))
    return found


def _describe(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            command = file.read().replace(b"\0", b" ").decode(errors="replace").strip()
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            state = file.read().rpartition(")")[2].split()[0]
    except OSError:
        return "gone"
    return "zombie, nobody has waited for it" if state == "Z" else f"{state} {command or '?'}"


def marked_programs() -> Dict[int, str]:
    """Programs of this test run that are nobody's child any more, or somebody else's."""
    mark = f"{MARK}={os.environ[MARK]}".encode()
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            try:
                with open(f"/proc/{name}/environ", "rb") as file:
                    if mark in file.read():
                        found[int(name)] = _describe(int(name))
            except OSError:  # it has ended, or is another user's
                pass
    return found


def snapshot() -> Snapshot:
    threads = {id(thread): thread for thread in threading.enumerate()}
    handlers = tuple(signal.getsignal(number) for number in _SIGNALS)
    return Snapshot(threads, _descriptors(), _children(), handlers)


def _difference(before: Snapshot, programs: Dict[int, str], *, search: bool) -> List[str]:
    """What is there now and was not before, in words; programs are searched for only if asked."""
    now = snapshot()
    left = [f"thread {thread.name!r}" for key, thread in now.threads.items() if key not in before.threads]
    for number, what in now.descriptors.items():
        if before.descriptors.get(number) != what:
            left.append(f"descriptor {number}: {what[2]}")
    for pid, what_child in now.children.items():
        if pid not in before.children:
            left.append(f"child process {pid}: {what_child}")
    if search:
        for pid, command in marked_programs().items():
            if pid not in programs and pid not in now.children:
                left.append(f"process {pid}: {command}")
    for number_, old, new in zip(_SIGNALS, before.handlers, now.handlers):
        if old != new:
            left.append(f"handler of {signal.Signals(number_).name}: {new!r} instead of {old!r}")
    return left


def find_left(
    before: Snapshot, programs: Dict[int, str], *, search: bool, patience: float = PATIENCE
) -> List[str]:
    """What is left for good: what a collection doesn't free, and what doesn't end while one waits."""
    left = _difference(before, programs, search=search)
    deadline = time.monotonic() + patience
    pause = 0.001
    while left and time.monotonic() < deadline:
        gc.collect()
        time.sleep(pause)  # for what is just ending
        pause = min(pause * 2, 0.1)
        left = _difference(before, programs, search=search)
    return left
