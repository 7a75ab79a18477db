"""Helpers of the process tests: what is alive, waiting with a deadline, hosts that can be killed."""

import os
import subprocess
import sys
import threading
import time
import uuid
from typing import Any, Callable, Dict, List, Optional, Sequence

import syncagent
from syncagent.boundary.process import Processes, ProcessResult
from syncagent.cancel import CancellationToken

#: Longer than anything here may take; a test that gets there has failed.
DEADLINE = 20.0


def until(condition: Callable[[], Any], what: str) -> Any:
    """Wait until the condition holds and return what it gave."""
    end = time.monotonic() + DEADLINE
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < end, f"not within {DEADLINE} s: {what}"
        time.sleep(0.002)  # nobody announces it


def state_of(pid: int) -> str:
    """The state letter of a process, "" if there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0].decode()
    except OSError:
        return ""


def parent_of(pid: int) -> int:
    with open(f"/proc/{pid}/stat", "rb") as file:
        return int(file.read().rpartition(b")")[2].split()[1])


def children_of(pid: int) -> List[int]:
    """The children of all threads of a process."""
    found: List[int] = []
    for task in os.listdir(f"/proc/{pid}/task"):
        try:
            with open(f"/proc/{pid}/task/{task}/children") as file:
                found += [int(child) for child in file.read().split()]
        except OSError:  # that thread has just ended
            pass
    return found


class Mark:
    """A variable in the environment of a tool, by which all that it starts is found."""

    def __init__(self) -> None:
        self.value = uuid.uuid4().hex

    @property
    def env(self) -> Dict[str, str]:
        return {**os.environ, "TOOL_MARK": self.value}

    def pids(self) -> List[int]:
        """The living processes that carry it."""
        found = []
        for name in os.listdir("/proc"):
            if name.isdigit() and int(name) != os.getpid():
                try:
                    with open(f"/proc/{name}/environ", "rb") as file:
                        if f"TOOL_MARK={self.value}".encode() in file.read():
                            found.append(int(name))
                except OSError:
                    pass
        return [pid for pid in found if state_of(pid) not in ("", "Z", "X")]


class Running:
    """A call in a thread of its own, with what it has written so far."""

    def __init__(self, processes: Processes, script: str, **options: Any) -> None:
        self.token: CancellationToken = options.pop("token", None) or CancellationToken()
        self.mark = Mark()
        self.output = ""
        self.result: Optional[ProcessResult] = None
        self.error: Optional[BaseException] = None
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, args=(processes, script, options), daemon=True)
        self._thread.start()

    def _run(self, processes: Processes, script: str, options: Dict[str, Any]) -> None:
        options.setdefault("env", self.mark.env)
        try:
            self.result = processes.run(
                ["bash", "-c", script], token=self.token, on_output=self._take, **options
            )
        except BaseException as exc:
            self.error = exc
        finally:
            with self._changed:
                self._changed.notify_all()

    def _take(self, text: str) -> None:
        with self._changed:
            self.output += text
            self._changed.notify_all()

    def wait_for(self, text: str) -> None:
        """Wait until the tool has written this."""
        with self._changed:
            ok = self._changed.wait_for(
                lambda: text in self.output or self.result or self.error, timeout=DEADLINE
            )
            assert ok and text in self.output, (text, self.output, self.result, self.error)

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def join(self) -> ProcessResult:
        """Wait for the end; return the result or raise what the call raised."""
        self._thread.join(DEADLINE)
        assert not self._thread.is_alive(), "the call hangs"
        self.token.close()
        if self.error is not None:
            raise self.error
        assert self.result is not None
        return self.result

    def stop(self) -> ProcessResult:
        self.token.cancel()
        return self.join()


def bash(processes: Processes, script: str, **options: Any) -> ProcessResult:
    """Run a script to its end."""
    with CancellationToken() as token:
        return processes.run(["bash", "-c", script], token=token, **options)


def start_host(program: str, args: Sequence[str] = (), **options: Any) -> "subprocess.Popen[str]":
    """A Python program of its own that uses syncagent, to be killed or looked at from outside."""
    return subprocess.Popen(
        [sys.executable, "-c", program, *args],
        stdout=subprocess.PIPE,
        text=True,
        **{"stdin": subprocess.DEVNULL, "env": {**os.environ, "PYTHONPATH": ROOT}, **options},
    )


def run_host(program: str, args: Sequence[str] = (), **options: Any) -> str:
    """Run such a program to its end and return what it wrote; it must succeed."""
    done = subprocess.run(
        [sys.executable, "-c", program, *args],
        stdout=subprocess.PIPE,
        text=True,
        timeout=60,
        **{"env": {**os.environ, "PYTHONPATH": ROOT}, **options},
    )
    assert done.returncode == 0, (done.returncode, done.stdout)
    return done.stdout


#: Where this process has syncagent from: the checkout or an installed wheel.
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(syncagent.__file__)))
