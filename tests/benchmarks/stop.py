"""How long a stop takes: `python -m tests.benchmarks.stop [ROUNDS]`, from a checkout.

From `agent.cancel()` until the turn's ending is on disk and its future settled, where the turn is
blocked in a stalled HTTP stream, in a tool with a tree of processes, or in a back-off; and beside
each, in the same run, a plain worker that looks at a flag every 50 ms. The last column is the ratio
of the medians. Absolute times depend on the machine; the ratio is what to compare.
"""

import random
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Callable, Dict, Iterable, List

from syncagent import Agent, ChatModel, Store, bash
from syncagent.testing import ModelServer, call, stall, status
from syncagent.testing.script import Entry

TREE = "sleep 300 & setsid sleep 300 & echo ready; wait"
Ready = Callable[[Agent, ModelServer, int], None]


def stops(folder: Path, name: str, entries: List[Entry], ready: Ready, rounds: int) -> List[float]:
    """The milliseconds of each stop."""
    took: List[float] = []
    script: Iterable[Entry] = (entry for _ in range(rounds) for entry in entries)
    with ModelServer(script) as server, ChatModel("any", base_url=server.url) as model:
        with Store(folder / f"{name}.db") as store, Agent(model, store=store, tools=[bash]) as agent:
            for number in range(rounds):
                since = agent.seq
                future = agent.send("go")
                ready(agent, server, since)
                begun = time.perf_counter()
                agent.cancel()
                result = future.result(60)
                took.append((time.perf_counter() - begun) * 1000)
                assert result.reason == "aborted", result
    return took


def event(type: str) -> Ready:
    """Wait until the turn has written an event of the type."""

    def ready(agent: Agent, server: ModelServer, since: int) -> None:
        next(event for event in agent.follow(since) if event.type == type)

    return ready


def polled(rounds: int) -> List[float]:
    """The same for a worker that looks at a flag every 50 ms."""
    took: List[float] = []
    for _ in range(rounds):
        flag: List[bool] = []
        begun_working = threading.Event()

        def work() -> None:
            begun_working.set()
            while not flag:
                time.sleep(0.05)  # the poll that is compared with

        worker = threading.Thread(target=work)
        worker.start()
        begun_working.wait()
        time.sleep(random.uniform(0, 0.05))  # the flag is raised at any moment of the poll
        begun = time.perf_counter()
        flag.append(True)
        worker.join()
        took.append((time.perf_counter() - begun) * 1000)
    return took


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 50
    cases: Dict[str, List[Entry]] = {
        "assistant/chunk": [["Once upon a time", stall()]],
        "tool/chunk": [[call("bash", {"command": TREE})]],
        "model/retry": [status(429, headers={"Retry-After": "60"})],
    }
    words = {"assistant/chunk": "stalled stream", "tool/chunk": "tool with a tree", "model/retry": "back-off"}
    print(f"{rounds} rounds each")
    print(f"{'blocked in':<18} {'p50 ms':>8} {'p99 ms':>8} {'poll p50':>9} {'ratio':>7}")
    with tempfile.TemporaryDirectory() as folder:
        for type, entries in cases.items():
            ours = sorted(stops(Path(folder), type.replace("/", "-"), entries, event(type), rounds))
            theirs = polled(rounds)
            p50, p99 = statistics.median(ours), ours[int(len(ours) * 0.99) - 1]
            poll = statistics.median(theirs)
            print(f"{words[type]:<18} {p50:8.2f} {p99:8.2f} {poll:9.2f} {p50 / poll:7.3f}")


if __name__ == "__main__":
    main()
