"""How long a stop takes at every boundary: `python -m tests.benchmarks.cancel`.

From `cancel()` until `Cancelled` is caught in the thread that was blocked, and where there are
processes, until all of them are gone and reaped. The last columns count what was there afterwards and
not before: threads, descriptors, child processes. Absolute times depend on the machine.
"""

import functools
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any, Callable, Dict, Iterable, List, Optional

from syncagent import CallContext, Tool, tool
from syncagent.boundary.http.client import HttpClient
from syncagent.boundary.process import Processes
from syncagent.cancel import CancellationToken, Cancelled
from syncagent.runtime.stopping import Stopping
from tests.benchmarks._frame import Figure, Left, Target, options, percentile, report

#: Milliseconds: p50 and p99 of a group, of the best of three runs on an idle machine.
WAITS, TREES, KILLS = (2.0, 10.0), (5.0, 25.0), (15.0, 50.0)
GRACE = 0.2

#: Runs one round and returns its milliseconds.
Round = Callable[[], float]


def blocked(work: Callable[[CancellationToken], Any], ready: Callable[[threading.Thread], Any]) -> float:
    """One round: `work` blocks in a thread of its own until its token is cancelled."""
    ended: List[float] = []
    with CancellationToken() as token:

        def run() -> None:
            try:
                work(token)
            except Cancelled:
                pass
            ended.append(time.perf_counter())

        thread = threading.Thread(target=run)
        thread.start()
        ready(thread)
        begun = time.perf_counter()
        token.cancel()
        thread.join(60)
        assert ended, "it was not woken"
    return (ended[0] - begun) * 1000


# -- waits and HTTP ------------------------------------------------------------------------------------


def waits() -> Dict[str, Round]:
    from http_servers import wait_blocked

    return {"wait": lambda: blocked(lambda token: token.wait(60), wait_blocked)}


def request(name: str, authority: Any) -> float:
    """One request that waits at one of the places where requests wait."""
    import http_servers as servers
    from http_places import PLACES, Attempt

    with PLACES[name](authority) as case:
        client = HttpClient(verify=authority.bundle, trust_env=False, proxies=case.proxies)
        if case.warm:
            with CancellationToken() as token, client.stream("GET", case.url, token=token) as response:
                response.read()
        with CancellationToken() as token:
            attempt = Attempt(client, token, case)
            case.wait()
            if case.partial:
                servers.wait_until(lambda: attempt.pieces, "the first piece")
            if not case.busy:
                servers.wait_blocked(attempt.thread)
            begun = time.perf_counter()
            token.cancel()
            attempt.join()
            assert isinstance(attempt.outcome, Cancelled), attempt.outcome
        client.close()
    return (attempt.ended - begun) * 1000


def requests() -> Dict[str, Round]:
    from http_places import PLACES
    from http_servers import Authority

    folder = tempfile.mkdtemp()
    authority = Authority(folder)
    rounds: Dict[str, Round] = {}
    for name in PLACES:
        if "socks" not in name:
            rounds[name.replace("_", " ")] = functools.partial(request, name, authority)
    return rounds


# -- processes -----------------------------------------------------------------------------------------

SCRIPTS = {
    "a process": "echo ready; exec sleep 60",
    "a shell with a child": "echo ready; sleep 60; :",
    "one in the background": "sleep 60 & echo ready; wait",
    "a session of its own": "setsid sleep 60 & echo ready; wait",
    "a daemon": "(setsid bash -c 'sleep 60; :' &) ; echo ready; sleep 60; :",
    "a flood of output": "echo ready; exec yes",
    "a process that ignores TERM": "trap '' TERM; echo ready; while :; do sleep 60; done",
}


def process(processes: Processes, script: str) -> float:
    seen = threading.Event()
    return blocked(
        lambda token: processes.run(
            ["bash", "-c", script], token=token, grace=GRACE, on_output=lambda text: seen.set()
        ),
        lambda thread: seen.wait(60),
    )


def plain(script: str) -> float:
    """A body that takes no token and waits in a process that it has started by itself."""
    reader, writer = os.pipe()

    def work(token: CancellationToken) -> None:
        stopping = Stopping(token=token, say=print, spare=lambda: [])
        with stopping.at("tool", token, body=True):
            subprocess.run(["bash", "-c", script], stdout=writer)
        stopping.close()

    try:
        return blocked(work, lambda thread: os.read(reader, 6))
    finally:
        os.close(reader)
        os.close(writer)


def spin() -> None:
    print("looping", flush=True)
    while True:
        pass


def isolated(processes: Processes, it: Tool) -> float:
    """A loop that never looks, in a process of its own."""
    seen = threading.Event()

    def emit(text: str) -> bool:
        seen.set()
        return True

    return blocked(
        lambda token: it.invoke({}, CallContext(token=token, emit=emit, processes=processes)),
        lambda thread: seen.wait(60),
    )


HOST = """
import sys
from syncagent.boundary.process import Processes
from syncagent.cancel import CancellationToken
script = "sleep 60 & setsid sleep 60 & (setsid bash -c 'sleep 60; :' &) ; echo ready; wait; sleep 60"
with CancellationToken() as token:
    Processes().run(["bash", "-c", script], token=token, on_output=lambda text: print(text, flush=True))
"""


def killed() -> float:
    """kill -9 of a runtime whose tool has a tree of processes, until nothing of it is alive."""
    from processes import Mark

    mark = Mark()
    with subprocess.Popen([sys.executable, "-c", HOST], env=mark.env, stdout=subprocess.PIPE) as host:
        assert host.stdout is not None
        host.stdout.readline()
        while len(mark.pids()) < 6:
            time.sleep(0.001)
        begun = time.perf_counter()
        os.kill(host.pid, signal.SIGKILL)
        host.wait()
        while mark.pids():
            pass
        return (time.perf_counter() - begun) * 1000


# -- the table -----------------------------------------------------------------------------------------


def measure(name: str, one: Round, rounds: int, targets: Optional[Iterable[float]], quick: bool) -> Figure:
    one()  # warm
    before = Left.now()
    took = [one() for _ in range(rounds)]
    after = Left.now()
    values: Dict[str, Any] = {
        "p50": percentile(took, 0.5),
        "p99": percentile(took, 0.99),
        "max": max(took),
        "threads": after.threads - before.threads,
        "fds": after.descriptors - before.descriptors,
        "children": after.children - before.children,
    }
    judged = [Target(column, 0) for column in ("threads", "fds", "children")]
    if targets is not None:
        p50, p99 = targets
        # A short run has too few rounds for a 99th percentile: its maximum is judged, with room.
        judged += [Target("p50", p50), Target("max", 5 * p99) if quick else Target("p99", p99)]
    return Figure(name=name, values=values, targets=judged)


def main() -> None:
    given = options(__doc__ or "")
    rounds = 10 if given.quick else 200
    figures: List[Figure] = []

    def add(rows: Dict[str, Round], targets: Iterable[float], count: int = rounds) -> None:
        for name, one in rows.items():
            figures.append(measure(name, one, count, targets, given.quick))
            print(".", end="", file=sys.stderr, flush=True)

    add(waits(), WAITS)
    add(requests(), WAITS)
    processes = Processes()
    stubborn = (GRACE * 1000 + 30, GRACE * 1000 + 60)
    for name, script in SCRIPTS.items():
        late = "TERM" in name
        row: Dict[str, Round] = {name: functools.partial(process, processes, script)}
        add(row, stubborn if late else TREES, max(5, rounds // 5) if late else rounds)
    row = {"an isolated function": functools.partial(isolated, processes, tool(isolate=True)(spin))}
    add(row, TREES)
    processes.close()
    add({"a plain subprocess.run": functools.partial(plain, SCRIPTS["a process"])}, TREES)
    add({"the same with a tree": functools.partial(plain, SCRIPTS["a session of its own"])}, TREES)
    add({"kill -9 of the runtime": killed}, KILLS, max(5, rounds // 5))
    print(file=sys.stderr)
    report(figures, given, note=f"milliseconds; {rounds} rounds, fewer where each takes long")


if __name__ == "__main__":
    main()
