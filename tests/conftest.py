"""After every test: nothing that it started is left. Its warnings were errors, see setup.cfg."""

import os
import signal
import uuid
from typing import Any, Iterator

import leaks
import pytest

os.environ[leaks.MARK] = f"{os.getpid()}-{uuid.uuid4().hex}"

# A shell ignores SIGINT for what it starts in the background, and nohup SIGHUP; children inherit that.
for _number, _usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(_number) == signal.SIG_IGN:
        signal.signal(_number, _usual)

_FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: Any) -> Iterator[None]:
    report = yield
    if report.when == "call":
        item.stash[_FAILED] = report.failed
    return report


@pytest.fixture(autouse=True)
def nothing_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that leaves a thread, process, descriptor or signal handler behind.

    A descriptor is a socket, a pipe or an open log. A test that has failed already holds what it
    used in its traceback, so there is nothing to learn from it here.
    """
    search = request.node.get_closest_marker("concurrent") is not None
    programs = leaks.marked_programs() if search else {}
    before = leaks.snapshot()
    yield
    if request.node.stash.get(_FAILED, False):
        return
    left = leaks.find_left(before, programs, search=search)
    if left:
        pytest.fail("the test left behind:\n  " + "\n  ".join(left), pytrace=False)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Programs that escaped from tests without the mark `concurrent` are found here at the latest."""
    left = leaks.marked_programs()
    if left and exitstatus == 0:
        lines = [f"process {pid}: {command}" for pid, command in left.items()]
        print("\nthe tests left behind:\n  " + "\n  ".join(lines))
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture
def home(tmp_path: Any) -> Iterator[Any]:
    """A store for tests of the runtime; every log that they write is checked at the end."""
    from runtime_parts import Home

    with Home(tmp_path / "runs.db") as made:
        yield made
