"""A file is the old one or the new one: at a cancel, at an error and at a kill, wherever it comes."""

import errno
import json
import os
import signal
import stat
import subprocess
import sys

import pytest
from file_parts import Files, everything, refused

from syncagent import Cancelled
from syncagent.boundary.tools.atomic import DRAFT

CALLS = ["open", "write", "fchmod", "fsync", "rename", "close", "stat", "fstat", "mkdir", "unlink"]


class At:
    """Counts the system calls of the file tools, and does something before, or after, the n-th."""

    def __init__(self, monkeypatch, number, action, *, after=False):
        self.count = 0
        for name in CALLS:
            monkeypatch.setattr(os, name, self.wrap(getattr(os, name), number, action, after))

    def wrap(self, real, number, action, after):
        def call(*args, **options):
            self.count += 1
            mine = self.count == number
            if mine and not after:
                action()
            result = real(*args, **options)
            if mine and after:
                action()
            return result

        return call


# os.supports_dir_fd names the real functions: the tools are made before they are wrapped.
def rounds(tmp_path, monkeypatch, action, *, path="a.txt", after=False):
    """One write of `path` for each system call that it makes; yields how it ended and what is there."""
    for number in range(1, 200):
        root = tmp_path / str(number)
        root.mkdir()
        (root / "a.txt").write_text("old")
        files = Files(root)
        with monkeypatch.context() as patch:
            at = At(patch, number, lambda: action(files), after=after)
            try:
                outcome = files.write(path, "new" * 100)
            except BaseException as exc:
                outcome = type(exc)
        yield outcome, everything(root)
        if at.count < number:
            return
    raise AssertionError("a write without an end")


@pytest.mark.parametrize("after", [False, True])
def test_a_cancel_at_any_point_leaves_the_old_file_or_the_new_and_no_draft(tmp_path, monkeypatch, after):
    outcomes = []
    for outcome, there in rounds(tmp_path, monkeypatch, lambda files: files.token.cancel(), after=after):
        outcomes.append(outcome)
        assert there == {"a.txt": b"old" if outcome is Cancelled else b"new" * 100}
    assert outcomes.count(Cancelled) > 5 and outcomes[-1] == "wrote 300 bytes to a.txt (it had 3)"


def test_a_cancel_takes_the_folders_away_that_were_made(tmp_path, monkeypatch):
    cancel = lambda files: files.token.cancel()  # noqa: E731
    for outcome, there in rounds(tmp_path, monkeypatch, cancel, path="x/y/z.txt"):
        if outcome is Cancelled:
            assert there == {"a.txt": b"old"}
        else:
            assert there["x/y/z.txt"] == b"new" * 100


def fail(*args, **options):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("name", ["open", "write", "fchmod", "fsync", "rename"])
def test_a_full_disk_leaves_the_old_file_and_no_draft(tmp_path, monkeypatch, name):
    files = Files(tmp_path)
    (tmp_path / "a.txt").write_text("old")
    with monkeypatch.context() as patch:
        patch.setattr(os, name, fail)
        said = refused(files.write, "a.txt", "new")
    assert "the disk is full; free some space first" in said
    assert everything(tmp_path) == {"a.txt": b"old"}


KILLED = """
import json, os, signal, sys
from syncagent import file_tools
root, calls = sys.argv[1], json.loads(sys.argv[2])
number = 0
while True:
    number += 1
    where = os.path.join(root, str(number))
    os.mkdir(where)
    with open(os.path.join(where, "a.txt"), "w") as file:
        file.write("old")
    write = file_tools(where)[1]
    pid = os.fork()
    if pid == 0:
        count = 0
        def wrap(real):
            def call(*args, **options):
                global count
                count += 1
                if count == number:
                    os.kill(os.getpid(), signal.SIGKILL)
                return real(*args, **options)
            return call
        for name in calls:
            setattr(os, name, wrap(getattr(os, name)))
        write("a.txt", "new" * 1000)
        os._exit(0)
    status = os.waitpid(pid, 0)[1]
    print(number, status, flush=True)
    if status == 0:
        break
"""


@pytest.mark.concurrent
def test_a_kill_at_any_system_call_leaves_the_old_file_or_the_new(tmp_path):
    command = [sys.executable, "-c", KILLED, str(tmp_path), json.dumps(CALLS)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=100, check=True)
    rows = [[int(word) for word in line.split()] for line in done.stdout.splitlines()]
    contents = []
    for number, status in rows:
        assert status == (0 if number == len(rows) else signal.SIGKILL)
        there = everything(tmp_path / str(number))
        contents.append(there.pop("a.txt"))
        assert all(name.startswith(DRAFT) for name in there)
    assert set(contents) == {b"old", b"new" * 1000}
    assert contents == sorted(contents, reverse=True), "old, up to the rename; new from then on"
    assert len(rows) > 10


def test_the_mode_is_kept_and_a_new_file_has_the_usual_one(tmp_path):
    files = Files(tmp_path)
    old = os.umask(0o027)
    try:
        files.write("run.sh", "one")
        assert stat.S_IMODE(os.stat(tmp_path / "run.sh").st_mode) == 0o640
        os.chmod(tmp_path / "run.sh", 0o755)
        files.write("run.sh", "two")
        files.edit("run.sh", "two", "three")
    finally:
        os.umask(old)
    assert stat.S_IMODE(os.stat(tmp_path / "run.sh").st_mode) == 0o755


def test_a_hard_link_is_not_written_through(tmp_path):
    (tmp_path / "root").mkdir()
    (tmp_path / "out").write_text("outside")
    os.link(tmp_path / "out", tmp_path / "root" / "in")
    Files(tmp_path / "root").write("in", "changed")
    assert (tmp_path / "out").read_text() == "outside"


def test_what_came_meanwhile_is_not_overwritten(tmp_path, monkeypatch):
    files = Files(tmp_path)
    (tmp_path / "a.txt").write_text("one two")
    real = os.fsync

    def meanwhile(fd):
        monkeypatch.setattr(os, "fsync", real)
        (tmp_path / "a.txt").write_text("somebody else's")
        real(fd)

    monkeypatch.setattr(os, "fsync", meanwhile)
    assert "since this call has looked at it" in refused(files.edit, "a.txt", "one", "1")
    assert everything(tmp_path) == {"a.txt": b"somebody else's"}


def test_a_link_that_came_meanwhile_is_not_followed(tmp_path, monkeypatch):
    (tmp_path / "root").mkdir()
    (tmp_path / "out").write_text("outside")
    files = Files(tmp_path / "root")
    real = os.fsync

    def meanwhile(fd):
        monkeypatch.setattr(os, "fsync", real)
        os.symlink(tmp_path / "out", tmp_path / "root" / "new")
        real(fd)

    monkeypatch.setattr(os, "fsync", meanwhile)
    assert "it is another link" in refused(files.write, "new", "x")
    assert (tmp_path / "out").read_text() == "outside"
