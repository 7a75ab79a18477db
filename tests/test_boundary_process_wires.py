"""The descriptors of a call are all made or none, closed once, and no write to them can kill the host."""

import os
import signal
import socket
from typing import Any, List

import pytest

from syncagent.boundary.process.wires import Wires, sigpipe_held

pytestmark = pytest.mark.concurrent


def descriptors() -> List[str]:
    return sorted(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("feed", [True, False])
def test_all_are_closed_once(feed: bool) -> None:
    before = descriptors()
    wires = Wires(feed=feed)
    assert len(wires.theirs) == 4
    assert not any(os.get_inheritable(fd) for fd in wires.theirs)
    wires.close_request()
    wires.close_theirs()
    wires.close_stdin()
    wires.close_output()
    for _ in range(2):
        wires.close()
    assert descriptors() == before


def test_what_is_shared_comes_last_and_stays_the_caller_s() -> None:
    reader, writer = os.pipe()
    wires = Wires(feed=False, share=writer)
    assert wires.theirs[4:] == [writer]
    wires.close()
    os.close(writer)
    os.close(reader)


@pytest.mark.parametrize("feed", [True, False])
@pytest.mark.parametrize("fail_at", range(1, 5))
def test_a_failure_half_way_gives_back_what_was_made(
    monkeypatch: pytest.MonkeyPatch, feed: bool, fail_at: int
) -> None:
    before = descriptors()
    left = fail_at

    def limited(make: Any) -> Any:
        def call(*args: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0:
                raise OSError(24, "Too many open files")
            return make(*args)

        return call

    monkeypatch.setattr(os, "pipe", limited(os.pipe))
    monkeypatch.setattr(socket, "socketpair", limited(socket.socketpair))
    monkeypatch.setattr(os, "open", limited(os.open))
    with pytest.raises(OSError, match="Too many"):
        Wires(feed=feed)
    monkeypatch.undo()
    assert descriptors() == before


def test_a_broken_pipe_does_not_kill_a_host_that_has_sigpipe_at_its_default() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    before = signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        for _ in range(3):
            with pytest.raises(BrokenPipeError), sigpipe_held():
                os.write(writer, b"x")
        assert signal.SIGPIPE not in signal.sigpending()
        assert signal.SIGPIPE not in signal.pthread_sigmask(signal.SIG_BLOCK, [])
    finally:
        signal.signal(signal.SIGPIPE, before)
        os.close(writer)
