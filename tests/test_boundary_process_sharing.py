"""The agents of one OS process share a supervisor; the last one ends it."""

import os
import threading
from typing import List

import pytest
from processes import bash, state_of
from test_boundary_process_client import in_fork

from syncagent.boundary.process import Processes, shared

pytestmark = pytest.mark.concurrent


def test_the_last_user_ends_the_supervisor() -> None:
    with shared() as first:
        with shared() as second:
            assert first is second
            bash(first, "true")
            pid = first.supervisor_pid
        assert bash(first, "echo on").output == "on\n"
        assert first.supervisor_pid == pid
    assert pid is not None and state_of(pid) == ""
    with shared() as third:
        assert third is not first
        assert bash(third, "echo again").output == "again\n"


def test_users_that_start_nothing_start_no_supervisor() -> None:
    with shared() as processes:
        assert processes.supervisor_pid is None


def test_an_exception_in_the_block_releases_too() -> None:
    with pytest.raises(KeyError):
        with shared() as processes:
            bash(processes, "true")
            pid = processes.supervisor_pid
            raise KeyError
    assert pid is not None and state_of(pid) == ""


def test_a_forked_child_counts_its_own_users() -> None:
    """Leaving an inherited block there ends neither the parent's supervisor nor the child's own."""
    block = shared()
    processes = block.__enter__()
    bash(processes, "true")
    pid = processes.supervisor_pid

    def work() -> None:
        with shared() as own:
            assert own is not processes
            assert bash(own, "echo own").output == "own\n"
            block.__exit__(None, None, None)
            assert bash(own, "echo still").output == "still\n"
        with shared() as own:
            pass

    try:
        assert in_fork(work) == 0
        assert processes.supervisor_pid == pid
        assert bash(processes, "echo on").output == "on\n"
    finally:
        block.__exit__(None, None, None)
    assert pid is not None and state_of(pid) == ""


def test_threads_that_come_and_go_never_meet_a_closed_one() -> None:
    errors: List[BaseException] = []
    supervisors = set()

    def use() -> None:
        try:
            for _ in range(15):
                with shared() as processes:
                    assert bash(processes, "echo hi").output == "hi\n"
                    supervisors.add(processes.supervisor_pid)
        except BaseException as exc:
            errors.append(exc)

    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert not any(state_of(pid) for pid in supervisors if pid is not None)


def test_it_is_for_this_process_only() -> None:
    with shared() as processes:
        assert isinstance(processes, Processes)
        bash(processes, "true")
        assert processes.supervisor_pid != os.getpid()
