"""How long a stop of a whole turn takes: `python -m tests.benchmarks.stop`, from a checkout.

From `agent.cancel()` until the turn's ending is on disk and its future settled, where the turn is
blocked in a stalled HTTP stream, in a tool with a tree of processes, or in a back-off; and beside
each, in the same run, a plain worker that looks at a flag every 50 ms. The last column is the ratio
of the medians. Absolute times depend on the machine; the ratio is what to compare.
"""

import random
import tempfile
import threading
import time
from pathlib import Path
from typing import Callable, Dict, Iterable, List, Tuple

from syncagent import Agent, ChatModel, Store, bash
from syncagent.testing import ModelServer, call, stall, status
from syncagent.testing.script import Entry
from tests.benchmarks._frame import Figure, Target, options, percentile, report

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
    given = options(__doc__ or "")
    rounds = 10 if given.quick else 100
    cases: Dict[str, Tuple[str, List[Entry]]] = {
        "a stalled stream": ("assistant/chunk", [["Once upon a time", stall()]]),
        "a tool with a tree": ("tool/chunk", [[call("bash", {"command": TREE})]]),
        "a back-off": ("model/retry", [status(429, headers={"Retry-After": "60"})]),
    }
    figures: List[Figure] = []
    with tempfile.TemporaryDirectory() as folder:
        for number, (name, (type, entries)) in enumerate(cases.items()):
            ours = stops(Path(folder), str(number), entries, event(type), rounds)
            p50, poll = percentile(ours, 0.5), percentile(polled(rounds), 0.5)
            values = {"p50": p50, "p99": percentile(ours, 0.99), "poll p50": poll, "ratio": p50 / poll}
            figures.append(Figure(name=name, values=values, targets=[Target("ratio", 1.0)]))
    report(figures, given, note=f"milliseconds; {rounds} rounds each")


if __name__ == "__main__":
    main()
